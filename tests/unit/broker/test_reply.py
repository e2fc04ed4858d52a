"""Request-reply: a reply reaches the requesting client, or its sender gets the reason why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.broker.kit import channel, door, open_store, peer, safe_file

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.reply import ReplyHandlers
from orbitmq.broker.handlers.send_checks import SendChecks
from orbitmq.broker.quotas import LimitsConfig
from orbitmq.broker.tables.clients import ProducerTable
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConnectionLostError, RequestTimeoutError
from orbitmq.record.codec import decode_record
from orbitmq.record.properties import decode_properties, encode_properties
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.router import Call, Reply
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import PushReplyMessageToClientRequest, SendMessageRequest, SendMessageResponse

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
TOPIC = "DefaultCluster_REPLY_TOPIC"


class Bench:
    def __init__(self, directory: Path, **options: Any) -> None:
        clock = ManualClock()
        config = BrokerConfig(broker_name="broker-a", **options)
        self.store = open_store(directory, clock)
        topics = TopicTable(config, clock, safe_file(directory, "topics.json"), events=BrokerEvents())
        topics.load()
        producers = ProducerTable(config, clock)
        self.asker = peer(9)
        self.pushed: list[tuple[int, PushReplyMessageToClientRequest, bytes]] = []
        cast(Any, self.asker).call = self._call
        self.answer: Callable[[], Frame] = lambda: Frame(code=0, opaque=1)
        producers.register("PG", channel(self.asker, "asker@1"))
        puts = door(self.store, clock, config)
        self.handlers = ReplyHandlers(
            config=config,
            store_host=HOST,
            producers=producers,
            puts=puts,
            checks=SendChecks(config, topics, puts.gate, clock, LimitsConfig(), BrokerEvents()),
            clock=clock,
        )

    async def _call(
        self, code: int, header: PushReplyMessageToClientRequest, body: bytes, *, timeout_s: float
    ) -> Frame:
        assert timeout_s == 10.0
        self.pushed.append((code, header, body))
        return self.answer()

    def reply(self, properties: dict[str, str] | None = None, **changes: Any) -> Reply:
        fields: dict[str, Any] = {
            "producer_group": "RG",
            "topic": TOPIC,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": 7,
            "flag": 0,
            "properties": encode_properties(
                {"REPLY_TO_CLIENT": "asker@1", "CORRELATION_ID": "c"} if properties is None else properties
            ).decode(),
        }
        header = SendMessageRequest(**(fields | changes))
        call = Call(header, Frame(code=325, opaque=1, body=b"answer"), peer(2))
        return asyncio.run(self.handlers.reply(call))

    def stored(self) -> list[bytes]:
        units = self.store.units(TOPIC, 0, 0, 100)
        return [decode_record(self.store.record_at(offset, size) or b"").body for offset, size, _ in units]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


def test_a_reply_is_passed_on_and_stored(bench: Bench) -> None:
    reply = bench.reply()
    [(code, header, body)] = bench.pushed
    assert (code, body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
    assert (header.born_host, header.store_host) == ("10.0.0.1:2", "127.0.0.1:10911")
    properties = decode_properties((header.properties or "").encode())
    assert properties["CORRELATION_ID"] == "c"
    assert int(properties["PUSH_REPLY_TIME"]) == header.store_timestamp
    assert (reply.code, reply.ext) == (0, {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})
    assert isinstance(reply.header, SendMessageResponse)
    assert (reply.header.msg_id, reply.header.queue_offset) == (f"{HOST.hex().upper()}{0:016X}", 0)
    assert bench.stored() == [b"answer"]


def test_without_storing_the_id_is_zero(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_replies=False)
    reply = bench.reply()
    assert isinstance(reply.header, SendMessageResponse)
    assert (reply.code, reply.header.msg_id, bench.stored()) == (0, "0", [])
    bench.store.close()


@pytest.mark.parametrize(
    ("properties", "text"),
    [({"CORRELATION_ID": "c"}, "REPLY_TO_CLIENT"), ({"REPLY_TO_CLIENT": "gone@1"}, "gone@1")],
)
def test_a_reply_to_nobody_fails_and_says_why(bench: Bench, properties: dict[str, str], text: str) -> None:
    reply = bench.reply(properties)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert text in (reply.remark or "")
    assert bench.pushed == []


@pytest.mark.parametrize("error", [RequestTimeoutError("slow"), ConnectionLostError("gone")])
def test_an_asker_that_does_not_take_it_fails_the_reply(bench: Bench, error: Exception) -> None:
    def fail() -> Frame:
        raise error

    bench.answer = fail
    assert bench.reply().code == ResponseCode.SYSTEM_ERROR
    bench.answer = lambda: Frame(code=1, opaque=1, remark="unknown correlation id")
    assert bench.reply().code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"topic": "bad topic"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "unknown", "default_topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_bad_places_are_refused(bench: Bench, changes: dict[str, Any], code: int) -> None:
    assert bench.reply(**changes).code == code
    assert bench.pushed == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"role": BrokerRole.SLAVE, "broker_id": 1}, ResponseCode.SYSTEM_BUSY),
        ({"accept_sends_from_ms": 2**60}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_broker_that_takes_no_messages_takes_no_reply(
    tmp_path: Path, options: dict[str, Any], code: int
) -> None:
    bench = Bench(tmp_path, **options)
    assert bench.reply().code == code
    bench.store.close()
