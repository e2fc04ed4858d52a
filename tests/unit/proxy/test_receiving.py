"""ReceiveMessage: the request to the broker, and how its response is handled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError
from orbitmq.proxy.brokers import Brokers, TopicFacts
from orbitmq.proxy.clients import Client, ClientKey
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.handles import Handle, HandleSeal
from orbitmq.proxy.http2.call import CallEnded
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.receiving import Receiving
from orbitmq.proxy.statuses import Refused
from orbitmq.record.codec import encode_record
from orbitmq.record.properties import encode_properties
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.types import NewMessage
from orbitmq.testing.manual_clock import ManualClock


def _record(offset: int, *, topic: str = "T", **properties: str) -> bytes:
    message = NewMessage(topic, 0, b"%d" % offset, encode_properties(properties), 0, bytes(8))
    return encode_record(message, offset, offset * 100, 1, bytes(8))


class _Brokers:
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.code = 0
        self.records: list[bytes] = []
        self.fields: dict[str, str] = {}
        self.fails = False
        self.forgotten: list[str] = []
        self.topics = SimpleNamespace(forget=self.forgotten.append)

    pick_readable = Brokers.pick_readable

    async def facts(self, topic: str) -> TopicFacts:
        return TopicFacts(cast(Any, None), [], ["a", "b"], "NORMAL")

    def address(self, name: str) -> str:
        return f"{name}:1"

    async def call(self, address: str, code: int, header: Any, *, timeout_s: float) -> Any:
        self.asked.append(header)
        if self.fails:
            raise ConnectionLostError("gone")
        fields = {
            "popTime": "1000",
            "invisibleTime": "60000",
            "reviveQid": "3",
            "restNum": "0",
            **self.fields,
        }
        return SimpleNamespace(
            code=self.code,
            remark="why",
            body=b"".join(self.records),
            serialize_type=int(SerializeType.JSON),
            ext_fields=fields,
            ext_raw=msgspec.json.encode(fields),
        )


class _Acking:
    def __init__(self) -> None:
        self.seal = HandleSeal()
        self.acked: list[int] = []
        self.buried: list[int] = []
        self.given_back: list[int] = []

    async def ack_one(self, group: str, topic: str, handle: Handle) -> None:
        self.acked.append(handle.queue_offset)

    async def bury(self, group: str, topic: str, handle: Handle, message_id: str) -> None:
        self.buried.append(handle.queue_offset)

    async def change_one(self, group: str, topic: str, handle: Handle, ms: int, *, suspend: bool) -> None:
        assert (ms, suspend) == (1000, True)
        self.given_back.append(handle.queue_offset)


class _Renewal:
    def __init__(self) -> None:
        self.kept: list[str] = []

    def keep(self, client: Client, message_id: str, text: str, held: Any) -> None:
        self.kept.append(text)

    async def release(self, *_: object) -> None:
        return None


class _Call:
    def __init__(self, left_s: float | None = None) -> None:
        self.written: list[pb.ReceiveMessageResponse] = []
        self.done = False
        self.pending_bytes = 0
        self.left_s = left_s
        self.version = "5.1.2"
        self.drains = 0

    def time_left_s(self) -> float | None:
        return self.left_s

    def header(self, name: str) -> str:
        return self.version

    def write(self, data: bytes) -> None:
        self.written.append(pb.ReceiveMessageResponse.FromString(data))

    async def drain(self, limit: int = 0) -> None:
        raise CallEnded


class _Kit:
    def __init__(self) -> None:
        self.config = ProxyConfig()
        self.brokers = _Brokers()
        self.acking = _Acking()
        self.renewal = _Renewal()
        self.call = _Call()
        settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
        settings.backoff_policy.max_attempts = 17
        self.client = Client(ClientKey("c"), settings, 0.0)
        self.request = pb.ReceiveMessageRequest(batch_size=16)
        self.request.group.name = "G"
        self.request.message_queue.topic.name = "T"
        self.request.message_queue.broker.name = "b"
        self.request.invisible_duration.seconds = 30
        self.is_revoked = False

    async def recheck(self) -> None:
        if self.is_revoked:
            raise Refused(pb.UNAUTHORIZED, "no permission")

    def receive(self) -> list[pb.Message]:
        async def run() -> None:
            tasks = TaskOwner("test")
            receiving = Receiving(
                self.config,
                cast(Any, self.brokers),
                cast(Any, self.acking),
                cast(Any, self.renewal),
                clock=ManualClock(),
                tasks=tasks,
            )
            try:
                await receiving.receive(cast(Any, self.call), self.request, self.client, self.recheck)
            finally:
                assert receiving.waiting == 0
                for _ in range(10):
                    await asyncio.sleep(0)
                await tasks.close()

        asyncio.run(run())
        assert self.call.written[0].status.code == pb.OK
        return [one.message for one in self.call.written if one.HasField("message")]

    def refused(self) -> int:
        with pytest.raises(Refused) as refused:
            self.receive()
        return refused.value.code

    @property
    def pop(self) -> Any:
        return self.brokers.asked[-1]


def test_receive_is_one_pop_of_all_queues_of_the_broker() -> None:
    kit = _Kit()
    kit.brokers.records = [_record(7, UNIQ_KEY="01")]
    kit.brokers.fields = {"startOffsetInfo": "0 0 6"}
    (message,) = kit.receive()
    assert message.body == b"7"
    assert message.system_properties.receipt_handle == "6 1000 60000 3 0 b 0 7 700"
    pop = kit.pop
    assert (pop.consumer_group, pop.topic, pop.queue_id, pop.max_msg_nums) == ("G", "T", -1, 16)
    assert (pop.invisible_time, pop.poll_time, pop.order, pop.broker_name) == (30_000, 19_900, False, "b")
    assert not kit.renewal.kept


def test_broker_that_cannot_be_read_is_replaced() -> None:
    kit = _Kit()
    kit.request.message_queue.broker.name = "gone"
    kit.brokers.records = [_record(1)]
    kit.receive()
    assert kit.pop.broker_name == "a"


def test_messages_of_push_consumers_are_kept_hidden() -> None:
    kit = _Kit()
    kit.request.auto_renew = True
    kit.brokers.records = [_record(1, UNIQ_KEY="01"), _record(2, UNIQ_KEY="02")]
    found = kit.receive()
    assert kit.renewal.kept == [one.system_properties.receipt_handle for one in found]
    assert kit.pop.invisible_time == kit.config.invisible_default_ms


@pytest.mark.parametrize(("topic", "flag"), [("T", "0"), ("%RETRY%G_T", "1"), ("%RETRY%G+T", "2")])
def test_handle_says_which_topic_a_message_came_from(topic: str, flag: str) -> None:
    kit = _Kit()
    kit.brokers.records = [_record(7, topic=topic)]
    (message,) = kit.receive()
    assert message.topic.name == "T"
    assert message.system_properties.receipt_handle.split(" ")[4] == flag


def test_stored_handle_of_a_message_counts_with_its_place_in_the_log() -> None:
    kit = _Kit()
    kit.brokers.records = [_record(7, POP_CK="1 2 3 4 0 b 5 6")]
    (message,) = kit.receive()
    assert message.system_properties.receipt_handle == "1 2 3 4 0 b 5 6 700"


def test_deliveries_of_an_ordered_group_are_counted_by_the_broker() -> None:
    kit = _Kit()
    kit.brokers.records = [_record(7), _record(8)]
    kit.brokers.fields = {"orderCountInfo": "0 qo0%7 2;0 0 1"}
    attempts = [one.system_properties.delivery_attempt for one in kit.receive()]
    assert attempts == [3, 2]


def test_messages_of_other_tags_are_dropped_and_those_tried_too_often_buried() -> None:
    kit = _Kit()
    kit.request.filter_expression.expression = "A || B"
    kit.brokers.records = [_record(1, TAGS="A"), _record(2, TAGS="C"), _record(3, TAGS="B"), _record(4)]
    kit.brokers.fields = {"orderCountInfo": "0 qo0%3 17"}
    assert [one.body for one in kit.receive()] == [b"1"]
    assert sorted(kit.acking.acked) == [2, 4]
    assert kit.acking.buried == [3]


def test_nothing_but_other_tags_is_nothing() -> None:
    kit = _Kit()
    kit.request.filter_expression.expression = "A"
    kit.brokers.records = [_record(2, TAGS="C")]
    assert kit.refused() == pb.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.POLLING_TIMEOUT, pb.MESSAGE_NOT_FOUND),
        (ResponseCode.PULL_NOT_FOUND, pb.MESSAGE_NOT_FOUND),
        (ResponseCode.POLLING_FULL, pb.TOO_MANY_REQUESTS),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, pb.CONSUMER_GROUP_NOT_FOUND),
        (ResponseCode.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
    ],
)
def test_answer_without_messages_has_its_status(code: int, expected: pb.Code) -> None:
    kit = _Kit()
    kit.brokers.code = int(code)
    assert kit.refused() == expected
    assert kit.brokers.forgotten == (["T"] if expected == pb.INTERNAL_SERVER_ERROR else [])


def test_route_is_asked_for_again_when_the_broker_is_gone() -> None:
    kit = _Kit()
    kit.brokers.fails = True
    assert kit.refused() == pb.INTERNAL_SERVER_ERROR
    assert kit.brokers.forgotten == ["T"]


@pytest.mark.parametrize(
    ("seconds", "code"), [(9, pb.ILLEGAL_INVISIBLE_TIME), (43_201, pb.ILLEGAL_INVISIBLE_TIME)]
)
def test_invisible_time_is_held_to_its_limits(seconds: int, code: pb.Code) -> None:
    kit = _Kit()
    kit.request.invisible_duration.seconds = seconds
    assert kit.refused() == code
    assert not kit.brokers.asked


@pytest.mark.parametrize(
    ("asked_s", "left_s", "poll_ms"),
    [(30, None, 19_900), (1, None, 4900), (10, None, 9900), (15, 8.0, 7900), (None, 25.0, 19_900)],
)
def test_poll_fits_the_limits_and_the_deadline(
    asked_s: int | None, left_s: float | None, poll_ms: int
) -> None:
    kit = _Kit()
    kit.call.left_s = left_s
    if asked_s is not None:
        kit.request.long_polling_timeout.seconds = asked_s
    kit.brokers.records = [_record(1)]
    kit.receive()
    assert kit.pop.poll_time == poll_ms


@pytest.mark.parametrize(("version", "code"), [("5.0.2", pb.BAD_REQUEST), ("5.1.2", pb.ILLEGAL_POLLING_TIME)])
def test_deadline_below_the_shortest_poll_is_refused(version: str, code: pb.Code) -> None:
    kit = _Kit()
    kit.call.left_s, kit.call.version = 3.0, version
    assert kit.refused() == code


def test_client_that_leaves_before_the_last_message_gets_none() -> None:
    kit = _Kit()
    kit.brokers.records = [_record(1), _record(2), _record(3)]
    kit.call.pending_bytes = 1
    with pytest.raises(CallEnded):
        kit.receive()
    assert kit.acking.given_back == [1, 2, 3]


def test_client_whose_permission_was_revoked_while_it_waited_gets_none() -> None:
    kit = _Kit()
    kit.brokers.records = [_record(1), _record(2)]
    kit.is_revoked = True
    assert kit.refused() == pb.UNAUTHORIZED
    assert kit.call.written == []
    assert kit.acking.given_back == [1, 2]


def test_filter_is_passed_to_the_broker() -> None:
    kit = _Kit()
    kit.request.filter_expression.type = pb.SQL
    kit.request.filter_expression.expression = "a > 1"
    kit.brokers.records = [_record(1)]
    kit.receive()
    assert (kit.pop.exp_type, kit.pop.exp) == ("SQL92", "a > 1")
