"""SendMessage and RecallMessage: the request a broker gets, and the answer the client gets."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError, OrbitError, TopicNotFound
from orbitmq.model.route import MessageQueue
from orbitmq.proxy.brokers import TopicFacts
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.sending import Sending, jump_hash
from orbitmq.proxy.statuses import Refused
from orbitmq.record.ids import offset_message_id
from orbitmq.record.properties import decode_properties
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import SendMessageRequestV2
from orbitmq.wire.javajson import encode as encode_java

NOW_MS = 1_700_000_000_000
OFFSET_ID = offset_message_id(bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big"), 4711)


def accepted(code: int = ResponseCode.SUCCESS, **more: str) -> Frame:
    fields = {"msgId": OFFSET_ID, "queueId": "1", "queueOffset": "7", **more}
    return Frame(int(code), 0, ext_raw=encode_java(fields))


class _Call:
    remote = "192.0.2.1:5000"

    def __init__(self) -> None:
        self.answers: list[pb.SendMessageResponse] = []

    def answer(self, data: bytes) -> None:
        self.answers.append(pb.SendMessageResponse.FromString(data))


class _Brokers:
    """Two brokers a and b; keeps the requests, and answers each with ``reply``."""

    def __init__(self, kind: str = "NORMAL", queues: int = 2) -> None:
        self.kind = kind
        self.publish = [
            MessageQueue(topic="T", broker_name=name, queue_id=number)
            for name in "ab"
            for number in range(queues)
        ]
        self.is_open, self.signs, self.is_cached = True, False, True
        self.unknown: OrbitError | None = None
        self.reply: Frame | OrbitError = accepted()
        self.sent: list[tuple[str, int, Any, bytes]] = []
        self.forgotten: list[str] = []
        self.topics = SimpleNamespace(known=self._known, forget=self.forgotten.append)
        self.rpc = self

    def _facts(self) -> TopicFacts:
        return TopicFacts(cast(Any, None), self.publish, ["a", "b"], self.kind)

    def _known(self, topic: str) -> TopicFacts | None:
        return self._facts() if self.is_cached else None

    async def facts(self, topic: str) -> TopicFacts:
        if self.unknown is not None:
            raise self.unknown
        return self._facts()

    def address(self, name: str) -> str:
        return f"{name}:1"

    def knows(self, name: str) -> bool:
        return name in ("a", "b")

    def signed(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        return {**fields, "Signature": "s"} if self.signs else fields

    def open_connection(self, address: str) -> Any:
        return self._connection(address) if self.is_open else None

    async def connection(self, address: str) -> Any:
        return self._connection(address)

    def _connection(self, address: str) -> Any:
        def call_binary(code: int, raw: bytes, body: bytes, *, timeout_s: float) -> asyncio.Future[Frame]:
            frame = Frame(code, 0, ext_raw=raw, serialize_type=SerializeType.ROCKETMQ)
            self.sent.append((address, code, decode_header(SendMessageRequestV2, frame), body))
            future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
            if isinstance(self.reply, OrbitError):
                future.set_exception(self.reply)
            else:
                future.set_result(self.reply)
            return future

        return SimpleNamespace(call_binary=call_binary)

    async def call(
        self, address: str, code: int, header: None, body: bytes, *, timeout_s: float, ext: dict[str, str]
    ) -> Frame:
        self.sent.append((address, code, ext, body))
        if isinstance(self.reply, OrbitError):
            raise self.reply
        return self.reply

    async def ask(self, address: str, code: int, header: Any) -> Frame:
        self.sent.append((address, code, header, b""))
        return Frame(0, 0, ext_raw=encode_java({"msgId": "recalled"}))


class _Transactions:
    def __init__(self) -> None:
        self.served: list[str] = []
        self.noted: list[tuple[object, ...]] = []

    def serve(self, topic: str) -> None:
        self.served.append(topic)

    def note(self, *place: object) -> None:
        self.noted.append(place)


class _Kit:
    def __init__(self, brokers: _Brokers | None = None, **options: Any) -> None:
        self.brokers = brokers or _Brokers()
        self.transactions = _Transactions()
        self.call = _Call()
        self.failures: list[int] = []
        self.sending = Sending(
            ProxyConfig(**options), cast(Any, self.brokers), cast(Any, self.transactions), ManualClock(NOW_MS)
        )

    def send(self, *messages: pb.Message) -> pb.SendMessageResponse:
        request = pb.SendMessageRequest(messages=messages)
        return asyncio.run(self.sending.send(cast(Any, self.call), request))

    def start(self, *messages: pb.Message) -> bool:
        async def run() -> bool:
            request = pb.SendMessageRequest(messages=messages)
            started = self.sending.start(cast(Any, self.call), request, self.failures.append)
            await asyncio.sleep(0)
            return started

        return asyncio.run(run())

    def refused(self, *messages: pb.Message) -> int:
        with pytest.raises(Refused) as refused:
            self.send(*messages)
        return refused.value.code

    def queues(self) -> list[tuple[str, int]]:
        return [(address, header.queue_id) for address, _, header, _ in self.brokers.sent]


def message(number: int = 1, *, topic: str = "T", body: bytes = b"x", **system: Any) -> pb.Message:
    made = pb.Message(topic=pb.Resource(name=topic), body=body)
    made.system_properties.message_id = f"id{number}"
    for name, value in system.items():
        setattr(made.system_properties, name, value)
    return made


def test_single_message_reaches_its_broker_without_a_task_and_is_answered() -> None:
    kit = _Kit()
    assert kit.start(message(tag="red"))
    [(address, code, header, body)] = kit.brokers.sent
    assert (address, code, body) == ("a:1", RequestCode.SEND_MESSAGE_V2, b"x")
    assert (header.topic, header.broker_name, header.queue_id) == ("T", "a", 0)
    assert header.born_timestamp == NOW_MS
    properties = decode_properties(header.properties.encode())
    assert (properties["UNIQ_KEY"], properties["TAGS"]) == ("id1", "red")
    [answer] = kit.call.answers
    assert answer.status.code == pb.OK
    [entry] = answer.entries
    assert (entry.message_id, entry.offset) == ("id1", 7)
    assert (kit.sending.sent, kit.failures) == (1, [])


def test_send_never_creates_a_topic() -> None:
    kit = _Kit()
    kit.send(message())
    assert kit.brokers.sent[0][2].default_topic == "-"


@pytest.mark.parametrize("reason", ["two messages", "unknown topic", "signed calls", "no connection"])
def test_send_that_needs_a_lookup_is_left_to_the_slow_path(reason: str) -> None:
    kit = _Kit()
    kit.brokers.is_cached = reason != "unknown topic"
    kit.brokers.signs = reason == "signed calls"
    kit.brokers.is_open = reason != "no connection"
    assert not kit.start(*[message()] * (2 if reason == "two messages" else 1))
    assert (kit.brokers.sent, kit.call.answers) == ([], [])


def test_messages_take_turns_on_the_queues_and_groups_stay_on_theirs() -> None:
    kit = _Kit()
    for _ in range(5):
        kit.send(message())
    assert kit.queues() == [("a:1", 0), ("a:1", 1), ("b:1", 0), ("b:1", 1), ("a:1", 0)]
    kit.brokers.sent.clear()
    kit.brokers.kind = "FIFO"
    for _ in range(3):
        kit.send(message(message_group="order-1"))
    queue = kit.brokers.publish[jump_hash("order-1", 4)]
    assert kit.queues() == [(f"{queue.broker_name}:1", queue.queue_id)] * 3


def test_topic_without_a_writable_queue_is_forbidden() -> None:
    assert _Kit(_Brokers(queues=0)).refused(message()) == pb.FORBIDDEN


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, pb.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, pb.SLAVE_PERSISTENCE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, pb.HA_NOT_AVAILABLE),
    ],
)
def test_stored_message_that_is_not_safe_yet_is_answered_with_its_place_and_a_warning(
    code: ResponseCode, expected: pb.Code
) -> None:
    kit = _Kit()
    kit.brokers.reply = accepted(code)
    answer = kit.send(message())
    assert (answer.status.code, answer.entries[0].status.code) == (expected, expected)
    assert answer.entries[0].offset == 7
    assert kit.sending.sent == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
        (ResponseCode.TOPIC_NOT_EXIST, pb.TOPIC_NOT_FOUND),
        (ResponseCode.NO_PERMISSION, pb.INTERNAL_SERVER_ERROR),
        (ResponseCode.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
    ],
)
def test_message_that_a_broker_refuses_is_never_answered_as_stored(
    code: ResponseCode, expected: pb.Code
) -> None:
    kit = _Kit()
    kit.brokers.reply = Frame(int(code), 0, remark="no")
    assert kit.start(message())
    answer = kit.send(message())
    for given in (answer, *kit.call.answers):
        assert (given.status.code, list(given.entries)) == (expected, [])
    assert (kit.sending.sent, kit.failures) == (0, [expected])
    assert bool(kit.brokers.forgotten) == (expected == pb.TOPIC_NOT_FOUND), "its route is read again"


def test_lost_broker_is_reported_and_its_route_forgotten_on_every_path() -> None:
    kit = _Kit()
    kit.brokers.reply = ConnectionLostError("gone")
    assert kit.start(message())
    assert kit.call.answers[0].status.code == pb.INTERNAL_SERVER_ERROR
    assert kit.failures == [pb.INTERNAL_SERVER_ERROR]
    assert kit.brokers.forgotten == ["T"]
    for messages in ([message()], [message(1), message(2)]):
        kit.brokers.forgotten.clear()
        with pytest.raises(ConnectionLostError):
            kit.send(*messages)
        assert kit.brokers.forgotten == ["T"], f"{len(messages)} messages"
    assert kit.sending.sent == 0


def test_unreadable_answer_of_a_broker_is_an_error_and_not_a_success() -> None:
    kit = _Kit()
    kit.brokers.reply = Frame(0, 0, ext_raw=b"{")
    answer = kit.send(message())
    assert (answer.status.code, len(answer.entries)) == (pb.INTERNAL_SERVER_ERROR, 0)


def test_batch_is_one_request_and_is_answered_with_every_id() -> None:
    kit = _Kit()
    answer = kit.send(*(message(number, body=b"%d" % number) for number in range(3)))
    [(address, code, fields, body)] = kit.brokers.sent
    assert (address, code, fields["m"]) == ("a:1", RequestCode.SEND_BATCH_MESSAGE, "true")
    assert all(f"UNIQ_KEY\x01id{number}".encode() in body for number in range(3))
    assert answer.entries[0].message_id == "id0,id1,id2"


def test_call_with_unfit_messages_is_refused_before_a_broker_is_called() -> None:
    kit = _Kit(body_bytes_max=100)
    assert kit.refused() == pb.MESSAGE_CORRUPTED
    assert kit.refused(message(), message(topic="Other")) == pb.MESSAGE_CORRUPTED
    assert kit.refused(*[message()] * 1025) == pb.BAD_REQUEST
    assert kit.refused(message(), message(body=b"")) == pb.MESSAGE_BODY_EMPTY
    assert kit.refused(message(body=bytes(60)), message(body=bytes(60))) == pb.MESSAGE_BODY_TOO_LARGE
    assert kit.brokers.sent == []


@pytest.mark.parametrize(
    ("kind", "is_refused"), [("NORMAL", False), ("MIXED", False), ("FIFO", True), ("TRANSACTION", True)]
)
def test_message_of_another_type_than_its_topic_is_refused(kind: str, is_refused: bool) -> None:
    kit = _Kit(_Brokers(kind))
    if is_refused:
        assert kit.refused(message()) == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    else:
        assert kit.send(message()).status.code == pb.OK
    assert _Kit(_Brokers(kind), check_message_type=False).send(message()).status.code == pb.OK


def test_missing_topic_is_a_type_conflict_unless_types_are_not_checked() -> None:
    kit = _Kit()
    kit.brokers.unknown = TopicNotFound("no route")
    assert kit.refused(message()) == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    kit = _Kit(check_message_type=False)
    kit.brokers.unknown = TopicNotFound("no route")
    with pytest.raises(TopicNotFound):
        kit.send(message())


def test_half_message_is_served_and_its_place_noted() -> None:
    kit = _Kit(_Brokers("TRANSACTION"))
    kit.brokers.reply = accepted(transactionId="tx")
    answer = kit.send(message(message_type=pb.TRANSACTION))
    assert answer.entries[0].transaction_id == "tx"
    assert kit.transactions.served == ["T"]
    assert kit.transactions.noted == [("T", "tx", "a:1", 7, 4711)]


def test_signed_send_carries_the_signature_of_its_fields() -> None:
    kit = _Kit()
    kit.brokers.signs = True
    assert kit.send(message()).status.code == pb.OK
    [(_, code, fields, body)] = kit.brokers.sent
    assert (code, body) == (RequestCode.SEND_MESSAGE_V2, b"x")
    assert (fields["Signature"], fields["b"], fields["e"], fields["n"]) == ("s", "T", "0", "a")


@pytest.mark.parametrize(("wait_s", "level"), [(0, 1), (1, 1), (2, 2), (5, 2), (7200, 18)])
def test_delay_becomes_the_first_level_that_is_long_enough(wait_s: int, level: int) -> None:
    kit = _Kit(_Brokers("DELAY"), use_delay_level=True)
    delayed = message()
    delayed.system_properties.delivery_timestamp.seconds = NOW_MS // 1000 + wait_s
    kit.send(delayed)
    properties = decode_properties(kit.brokers.sent[0][2].properties.encode())
    assert properties["DELAY"] == str(level)


def test_time_of_birth_that_does_not_fit_a_header_is_replaced_with_now() -> None:
    kit = _Kit()
    for seconds, expected in ((1_600_000_000, 1_600_000_000_000), (10**11, NOW_MS), (-5, NOW_MS)):
        born = message()
        born.system_properties.born_timestamp.seconds = seconds
        kit.send(born)
        assert kit.brokers.sent[-1][2].born_timestamp == expected


def _recall(kit: _Kit, handle: str) -> pb.RecallMessageResponse:
    request = pb.RecallMessageRequest(topic=pb.Resource(name="T"), recall_handle=handle)
    return asyncio.run(kit.sending.recall(request))


def _handle(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_recall_goes_to_the_broker_that_its_handle_names() -> None:
    kit = _Kit(_Brokers("DELAY"))
    assert _recall(kit, _handle("v1 T b 123 id")).message_id == "recalled"
    [(address, code, header, _)] = kit.brokers.sent
    assert (address, code, header.broker_name) == ("b:1", RequestCode.RECALL_MESSAGE, "b")


@pytest.mark.parametrize(
    "text", ["v1 Other b 123 id", "v2 T b 123 id", "v1 T unknown 123 id", "v1 T b 123", "", "ä"]
)
def test_recall_handle_of_another_topic_or_broker_is_refused(text: str) -> None:
    kit = _Kit(_Brokers("DELAY"))
    with pytest.raises(Refused, match="recall handle is invalid"):
        _recall(kit, _handle(text) if text.isascii() else text)
    assert kit.brokers.sent == []


def test_recall_from_a_topic_without_delays_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        _recall(_Kit(), _handle("v1 T b 123 id"))
    assert refused.value.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
