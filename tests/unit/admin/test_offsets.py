"""Moves a group in one queue, depending on what brokers of different releases support. The responses are scripted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orbitmq.admin import Admin
from orbitmq.admin.errors import AdminError
from orbitmq.admin.offsets import END, reset_queue
from orbitmq.codes import ResponseCode, Version
from orbitmq.model.route import MessageQueue
from orbitmq.requests import BY_CODE, Request, RequestCode
from orbitmq.wire.frame import Frame, FrameDecoder, encode_response
from orbitmq.wire.header import encode_ext

QUEUE = MessageQueue(topic="Orders", broker_name="broker-a", queue_id=3)
V4_9_7 = 407
STORED = {"consumerGroup": "billing", "topic": "Orders", "queueId": "3", "commitOffset": "7"}


def answer(code: int, version: int) -> Frame:
    (frame,) = FrameDecoder().feed(encode_response(code, 1, version=version))
    return frame


Asked = tuple[Request, dict[str, str]]


def moved(monkeypatch: pytest.MonkeyPatch, *, version: int, online: bool) -> list[Asked]:
    """Moves queue 3 to offset 7; returns the requests the broker received."""
    asked: list[Asked] = []

    async def call(
        self: Admin, address: str, code: int, header: Any = None, *rest: Any, **options: Any
    ) -> Frame:
        asked.append((BY_CODE[code], encode_ext(header)))
        refused = code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and not online
        return answer(ResponseCode.SYSTEM_ERROR if refused else ResponseCode.SUCCESS, version)

    monkeypatch.setattr(Admin, "call", call)
    admin = Admin("127.0.0.1:9")
    asyncio.run(reset_queue(admin, "billing", QUEUE, broker="127.0.0.1:10911", timestamp_ms=END, offset=7))
    return asked[1:]


@pytest.mark.parametrize("online", [False, True])
def test_newer_brokers_are_told_the_queue(monkeypatch: pytest.MonkeyPatch, online: bool) -> None:
    asked = moved(monkeypatch, version=Version.V5_5_0, online=online)
    [(stored, offset), (reset, target)] = asked
    assert (stored, reset) == (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert offset.items() >= STORED.items()
    expected = {"topic": "Orders", "group": "billing", "queueId": "3", "offset": "7"}
    assert target.items() >= expected.items()


def test_older_brokers_only_store_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    [(code, offset)] = moved(monkeypatch, version=V4_9_7, online=False)
    assert code == RequestCode.UPDATE_CONSUMER_OFFSET
    assert offset.items() >= STORED.items()


def test_members_of_older_brokers_would_all_go_back_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdminError, match=r"members of billing are online, and V4_9_7 .* stop them first"):
        moved(monkeypatch, version=V4_9_7, online=True)
