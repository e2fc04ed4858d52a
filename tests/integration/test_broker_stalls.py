"""Requests that are cheap for a peer and expensive for a careless broker: none holds the event loop for long.

Costs are CPU seconds of the thread that runs the loop, so a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_access_control import Asker, running
from tests.integration.test_proxy_floods import Turn, longest_turn

from orbitmq.broker.broker import Broker
from orbitmq.client.sync import LoopThread
from orbitmq.codes import ResponseCode
from orbitmq.requests import Request, RequestCode
from orbitmq.wire.frame import Frame

TURN_S = 0.1
"""5 ms and 5 ms for each of the up to 8 MiB sent here, twice, for the collector and a core shared with other work.
The defects that these tests are for took from 0.2 s to minutes."""


class Attacked:
    """A broker on its own loop, and one client on another."""

    def __init__(self, loop: LoopThread, broker: Broker, turn: Turn) -> None:
        self.loop = loop
        self.broker = broker
        self.turn = turn

    def ask(self, code: Request, body: bytes = b"", **fields: str) -> Frame:
        async def run() -> Frame:
            async with Asker(self.broker.address, None) as asker:
                return await asker.ask(code, fields, body)

        return asyncio.run(run())


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    with contextlib.ExitStack() as ends:
        loop = LoopThread()
        ends.callback(loop.close)
        stack = AsyncExitStack()

        async def start() -> Broker:
            return await stack.enter_async_context(running(tmp_path))

        broker = loop.run(start())
        ends.callback(lambda: loop.run(stack.aclose()))
        yield Attacked(loop, broker, ends.enter_context(longest_turn(loop)))


def _heartbeat(**data: Any) -> bytes:
    return json.dumps({"clientID": "eve@1", "consumerDataSet": [], "producerDataSet": [], **data}).encode()


def _producers(count: int) -> bytes:
    return _heartbeat(producerDataSet=[{"groupName": f"p{number}"} for number in range(count)])


def _with_member(member: bytes) -> bytes:
    return b'{"clientID":"e","consumerDataSet":[],"producerDataSet":[],"x":%b}' % member


def _subscriptions(count: int) -> bytes:
    subscription = {"topic": "T", "subString": "*", "subVersion": 1}
    return _heartbeat(consumerDataSet=[{"groupName": "g", "subscriptionDataSet": [subscription] * count}])


def test_heartbeat_of_very_many_producer_groups_is_registered_in_turns(attacked: Attacked) -> None:
    """It used to take minutes: each group was compared with all others of the connection."""
    assert attacked.ask(RequestCode.HEART_BEAT, _producers(10_000)).code == 0
    assert attacked.turn.worst_s < TURN_S
    answer = attacked.ask(RequestCode.HEART_BEAT, _producers(200_000))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert attacked.turn.worst_s < TURN_S


BODIES = {
    "subscriptions": (RequestCode.HEART_BEAT, _subscriptions(60_000)),
    "bare keys": (RequestCode.HEART_BEAT, _with_member(b"{%b}" % b",".join([b"1:1"] * 900_000))),
    "object keys": (RequestCode.HEART_BEAT, _with_member(b"{%b}" % b",".join([b'{"a":1}:1'] * 600_000))),
    "nulls": (
        RequestCode.HEART_BEAT,
        b'{"consumerDataSet":null,"x":[%b],"clientID":"e"}' % b",".join([b'{"a":null}'] * 500_000),
    ),
    "queues": (
        RequestCode.LOCK_BATCH_MQ,
        json.dumps(
            {
                "consumerGroup": "g",
                "clientId": "e",
                "mqSet": [{"topic": "T", "brokerName": "b", "queueId": number} for number in range(60_000)],
            }
        ).encode(),
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_body_of_very_many_small_things_is_refused(attacked: Attacked, name: str) -> None:
    code, body = BODIES[name]
    assert attacked.ask(code, body).code != 0
    assert attacked.turn.worst_s < TURN_S


def test_topic_that_is_listed_very_often_is_looked_at_once(attacked: Attacked) -> None:
    assert attacked.ask(RequestCode.SEND_MESSAGE_V2, b"x", **_SEND).code == 0
    topics = "T;" * 300_000
    answer = attacked.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topicList=topics)
    assert answer.code == 0
    assert attacked.turn.worst_s < TURN_S
    topics = ";".join(map(str, range(2_001)))
    answer = attacked.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topicList=topics)
    assert answer.code == ResponseCode.INVALID_PARAMETER


_SEND = {
    "a": "p",
    "b": "T",
    "c": "TBW102",
    "d": "1",
    "e": "0",
    "f": "0",
    "g": "1",
    "h": "0",
    "i": "",
    "j": "0",
}
