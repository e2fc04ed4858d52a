"""Rechecks requests on hold after users or policies have changed.

A pull may be on hold for an hour. Without this, a user whose permission was revoked meanwhile would still receive the
next message. Each request keeps the version under which it was granted, so nothing is rechecked without a change.
"""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.errors import BrokerError
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import refuse
from orbitmq.wire.frame import Frame

__all__ = ["Revocation"]


class Revocation:
    """Keeps the version of users and policies, and rechecks requests that were granted under an older one."""

    def __init__(self, check: Callable[[Frame, Connection], None]) -> None:
        """``check`` raises ``BrokerError`` if a request is no longer granted."""
        self.version = 0
        self._check = check

    def changed(self) -> None:
        """Record that users or policies have changed."""
        self.version += 1

    def refuses(self, frame: Frame, connection: Connection) -> bool:
        """Whether a request on hold is no longer granted. If so, it is answered with the error."""
        try:
            self._check(frame, connection)
        except BrokerError as error:
            answer = refuse(frame, error.response_code, error.remark)
            if answer is not None:
                connection.send(answer)
            return True
        return False
