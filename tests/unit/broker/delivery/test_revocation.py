"""Parked requests whose permission was revoked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from orbitmq.broker.delivery.revocation import Revocation
from orbitmq.codes import ResponseCode
from orbitmq.errors import NoPermission
from orbitmq.transport.connection import Connection
from orbitmq.wire.frame import Frame, whole_frame


def test_request_that_is_no_longer_granted_is_answered_once_and_given_up() -> None:
    sent: list[bytes] = []
    connection = cast(Connection, SimpleNamespace(send=sent.append))

    def refuse(*_: Any) -> None:
        raise NoPermission("revoked")

    revoked = Revocation(refuse)
    assert revoked.refuses(Frame(11, 7), connection)
    answer = whole_frame(b"".join(sent))
    assert answer is not None
    assert (answer.code, answer.opaque, answer.body) == (ResponseCode.NO_PERMISSION, 7, b"")
    assert not Revocation(lambda *_: None).refuses(Frame(11, 8), connection)
    assert len(sent) == 1
