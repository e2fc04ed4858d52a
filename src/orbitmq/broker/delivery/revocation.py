"""Requests on hold are checked again after users or policies have changed.

A pull may be on hold for an hour. Without this, a user whose right was revoked meanwhile would still be answered with
the next message. Nothing is checked twice while nothing changes: each request keeps the version it was granted under.
"""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.errors import BrokerError
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import refuse
from orbitmq.wire.frame import Frame

__all__ = ["Revocation"]


class Revocation:
    """The version of what is granted, and the check of a request under a later one."""

    def __init__(self, check: Callable[[Frame, Connection], None] | None = None) -> None:
        """``check`` raises ``BrokerError`` for a request that is not granted any more."""
        self.version = 0
        self._check = check

    def changed(self) -> None:
        """Users or policies have changed."""
        self.version += 1

    def refuses(self, frame: Frame, connection: Connection) -> bool:
        """Whether a request on hold is not granted any more; it is answered then."""
        try:
            if self._check is not None:
                self._check(frame, connection)
        except BrokerError as error:
            answer = refuse(frame, error.response_code, error.remark)
            if answer is not None:
                connection.send(answer)
            return True
        return False
