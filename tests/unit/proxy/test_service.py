"""The calls of the protocol: the rights each needs, what it refuses, and which failures are counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.errors import ConnectionLostError, OrbitError
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.proxy.access import Right
from orbitmq.proxy.brokers import TopicFacts
from orbitmq.proxy.clients import ClientKey, Clients
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.http2.call import GrpcError, GrpcStatus
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.service import Parts, Service
from orbitmq.proxy.statuses import OK, Refused
from orbitmq.testing.manual_clock import ManualClock

NOW_MS = 1_700_000_000_123
PUB_T, SUB_T, SUB_G = Right.pub_topic("T"), Right.sub_topic("T"), Right.sub_group("G")


class _Connection:
    """Can be the key of a weak table."""


class _Call:
    remote = "192.0.2.1:5000"
    done = False

    def __init__(
        self, *sent: pb.TelemetryCommand, client_id: str = "c", connection: object | None = None
    ) -> None:
        self.connection = connection or _Connection()
        self.written: list[bytes] = []
        self._client_id = client_id
        self._sent = [command.SerializeToString() for command in sent]

    def header(self, name: str) -> str:
        return self._client_id if name == "x-mq-client-id" else ""

    def answer(self, data: bytes) -> None:
        self.written.append(data)

    write = answer

    async def receive(self) -> bytes | None:
        return self._sent.pop(0) if self._sent else None


class _Access:
    """Grants what is in ``rights``, everything if that is None; keeps what was required."""

    version = 1

    def __init__(self, rights: set[Right] | None = None) -> None:
        self.rights = rights
        self.required: set[Right] = set()

    async def check(self, call: object, rights: tuple[Right, ...]) -> str:
        self.required.update(rights)
        if self.rights is not None and not set(rights) <= self.rights:
            raise Refused(pb.FORBIDDEN, "no right")
        return "alice"

    def allows(self, user: str, right: Right, remote: str) -> bool:
        return False


class _Kit:
    def __init__(self, access: _Access | None = None, *, kind: str = "NORMAL") -> None:
        self.clock = ManualClock(NOW_MS)
        self.config = ProxyConfig()
        self.clients = Clients(self.config, self.clock)
        self.asked: list[str] = []
        self.served: list[str] = []
        self.failure: OrbitError | Refused | None = None
        self.fast = False
        self.group: SubscriptionGroupConfig | None = None
        facts = TopicFacts(cast(Any, None), [], [], kind)
        self.brokers = SimpleNamespace(facts=self._answer("facts", facts), group=self._group)
        ok = SimpleNamespace(
            route=lambda *_: pb.QueryRouteResponse(status=OK),
            assignment=lambda *_, **options: pb.QueryAssignmentResponse(
                status=OK, assignments=[pb.Assignment()] * options["fifo"]
            ),
        )
        sending = SimpleNamespace(
            start=self._start,
            send=self._answer("send", pb.SendMessageResponse(status=OK)),
            recall=self._answer("recall", pb.RecallMessageResponse(status=OK)),
        )
        acking = SimpleNamespace(
            ack=self._answer("ack", pb.AckMessageResponse(status=OK)),
            change=self._answer("change", pb.ChangeInvisibleDurationResponse(status=OK)),
            forward=self._answer("forward", pb.ForwardMessageToDeadLetterQueueResponse(status=OK)),
        )
        transactions = SimpleNamespace(end=self._answer("end", None), serve=self.served.append)
        parts: dict[str, Any] = {
            "brokers": self.brokers,
            "clients": self.clients,
            "routes": ok,
            "sending": sending,
            "receiving": SimpleNamespace(receive=self._answer("receive", None)),
            "acking": acking,
            "transactions": transactions,
            "commands": SimpleNamespace(answered=lambda client, _: self.asked.append("command")),
        }
        self.service = Service(self.config, Parts(**parts), access=access, clock=self.clock)

    def _answer(self, name: str, value: Any) -> Any:
        async def answer(*_: object) -> Any:
            self.asked.append(name)
            if self.failure is not None:
                raise self.failure
            return value

        return answer

    async def _group(self, name: str) -> SubscriptionGroupConfig | None:
        return self.group

    def _start(self, call: _Call, request: object, failed: Any) -> bool:
        if isinstance(self.failure, Refused | OrbitError):
            raise self.failure
        return self.fast

    def register(self, settings: pb.Settings, call: _Call | None = None, owner: str = "") -> _Call:
        stream = call or _Call()
        self.clients.register(ClientKey("c", owner), settings, cast(Any, stream))
        return stream

    def run(self, name: str, request: Any, call: _Call | None = None) -> list[bytes]:
        call = call or _Call()

        async def run() -> None:
            [method] = [one for one in self.service.methods() if one.path.endswith(f"/{name}")]
            work = method.start(cast(Any, call), request.SerializeToString())
            if work is not None:
                await work

        asyncio.run(run())
        return call.written

    def code(self, name: str, request: Any, call: _Call | None = None) -> int:
        answer = RESPONSES[name].FromString(self.run(name, request, call)[0])
        return int(answer.status.code)

    def telemetry(self, *commands: pb.TelemetryCommand, client_id: str = "c") -> list[pb.TelemetryCommand]:
        call = _Call(*commands, client_id=client_id)
        return [pb.TelemetryCommand.FromString(data) for data in self.run("Telemetry", pb.Settings(), call)]


T, G = pb.Resource(name="T"), pb.Resource(name="G")
RESPONSES: dict[str, Any] = {
    name: getattr(pb, f"{name}Response")
    for name in (
        "QueryRoute",
        "QueryAssignment",
        "Heartbeat",
        "SendMessage",
        "ReceiveMessage",
        "AckMessage",
        "ForwardMessageToDeadLetterQueue",
        "EndTransaction",
        "NotifyClientTermination",
        "ChangeInvisibleDuration",
        "RecallMessage",
        "SyncLiteSubscription",
    )
}
CALLS: list[tuple[str, Any, set[Right]]] = [
    ("QueryRoute", pb.QueryRouteRequest(topic=T), {Right.any_of_topic("T")}),
    ("QueryAssignment", pb.QueryAssignmentRequest(topic=T, group=G), {SUB_T, SUB_G}),
    ("SendMessage", pb.SendMessageRequest(messages=[pb.Message(topic=T)]), {PUB_T}),
    (
        "ReceiveMessage",
        pb.ReceiveMessageRequest(group=G, message_queue=pb.MessageQueue(topic=T)),
        {SUB_T, SUB_G},
    ),
    ("AckMessage", pb.AckMessageRequest(topic=T, group=G), {SUB_T, SUB_G}),
    (
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest(topic=T, group=G),
        {SUB_T, SUB_G},
    ),
    ("ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest(topic=T, group=G), {SUB_T, SUB_G}),
    ("EndTransaction", pb.EndTransactionRequest(topic=T, transaction_id="x"), {PUB_T}),
    ("RecallMessage", pb.RecallMessageRequest(topic=T), {PUB_T}),
    ("SyncLiteSubscription", pb.SyncLiteSubscriptionRequest(topic=T, group=G), {SUB_T, SUB_G}),
]
ORDERED = SubscriptionGroupConfig(group_name="G", consume_message_orderly=True)
NAMES = [name for name, _, _ in CALLS]


def consumer(group: str = "G", topics: int = 1) -> pb.Settings:
    settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    for _ in range(topics):
        settings.subscription.subscriptions.add().topic.name = "T"
    return settings


def producer(*topics: str) -> pb.Settings:
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.SetInParent()
    for topic in topics:
        settings.publishing.topics.add().name = topic
    return settings


# -- rights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "request_", "rights"), CALLS, ids=NAMES)
def test_call_needs_exactly_its_rights(name: str, request_: Any, rights: set[Right]) -> None:
    access = _Access()
    kit = _Kit(access)
    kit.register(consumer(), owner="alice")
    kit.run(name, request_)
    assert access.required == rights


@pytest.mark.parametrize(("name", "request_", "rights"), CALLS, ids=NAMES)
def test_call_that_lacks_one_of_its_rights_reaches_nothing(
    name: str, request_: Any, rights: set[Right]
) -> None:
    for missing in rights:
        kit = _Kit(_Access(rights - {missing}))
        kit.register(consumer(), owner="alice")
        kit.fast = True
        assert kit.code(name, request_) == pb.FORBIDDEN
        assert kit.asked == []


@pytest.mark.parametrize(("name", "request_", "rights"), CALLS, ids=NAMES)
def test_call_without_a_client_id_is_refused(name: str, request_: Any, rights: set[Right]) -> None:
    kit = _Kit()
    kit.fast = True
    assert kit.code(name, request_, _Call(client_id=" ")) == pb.CLIENT_ID_REQUIRED
    assert kit.asked == []


def test_heartbeat_of_a_consumer_needs_its_own_group_and_the_one_it_names() -> None:
    access = _Access()
    kit = _Kit(access)
    kit.register(consumer("Own"), owner="alice")
    assert kit.code("Heartbeat", pb.HeartbeatRequest(group=G)) == pb.OK
    assert access.required == {Right.sub_group("Own"), SUB_G}


def test_heartbeat_of_a_producer_needs_all_its_topics_and_keeps_it_alive() -> None:
    access = _Access()
    kit = _Kit(access)
    kit.register(producer("T", "U"), owner="alice")
    for _ in range(3):
        kit.clock.advance(100_000)
        assert kit.code("Heartbeat", pb.HeartbeatRequest()) == pb.OK
        kit.clients.expire()
    assert access.required == {PUB_T, Right.pub_topic("U")}
    access.rights = {PUB_T}
    kit.clock.advance(100_000)
    assert kit.code("Heartbeat", pb.HeartbeatRequest()) == pb.FORBIDDEN
    kit.clock.advance(100_000)
    kit.clients.expire()
    assert kit.clients.find(ClientKey("c", "alice")) is None, "a refused heartbeat does not count"


def test_heartbeat_of_an_unknown_client_is_refused() -> None:
    assert _Kit().code("Heartbeat", pb.HeartbeatRequest()) == pb.UNRECOGNIZED_CLIENT_TYPE


def test_client_is_terminated_only_over_its_own_connection_without_users() -> None:
    kit = _Kit()
    stream = kit.register(consumer())
    request = pb.NotifyClientTerminationRequest(group=G)
    assert kit.code("NotifyClientTermination", request) == pb.FORBIDDEN
    assert kit.clients.find(ClientKey("c")) is not None
    same = _Call(connection=stream.connection)
    assert kit.code("NotifyClientTermination", request, same) == pb.OK
    assert kit.clients.find(ClientKey("c")) is None


def test_consumer_is_terminated_only_with_the_right_on_its_group() -> None:
    kit = _Kit(_Access({SUB_G}))
    kit.register(consumer("Own"), owner="alice")
    request = pb.NotifyClientTerminationRequest(group=G)
    assert kit.code("NotifyClientTermination", request) == pb.FORBIDDEN
    assert kit.clients.find(ClientKey("c", "alice")) is not None


# -- settings ------------------------------------------------------------------------------------------


def settings(asked: pb.Settings) -> pb.TelemetryCommand:
    return pb.TelemetryCommand(settings=asked)


def test_settings_of_a_consumer_register_it_and_are_answered_with_those_of_its_group() -> None:
    access = _Access()
    kit = _Kit(access)
    kit.group = ORDERED
    [answer] = kit.telemetry(settings(consumer()))
    assert answer.status.code == pb.OK
    assert answer.settings.subscription.fifo
    assert access.required == {SUB_G, SUB_T}
    client = kit.clients.find(ClientKey("c", "alice"))
    assert client is not None
    assert client.stream is None, "the stream has ended"


def test_settings_of_a_producer_need_every_topic_and_serve_only_transactional_ones() -> None:
    access = _Access()
    kit = _Kit(access, kind="TRANSACTION")
    kit.telemetry(settings(producer("T", "U")))
    assert access.required == {PUB_T, Right.pub_topic("U")}
    assert kit.served == ["T", "U"]
    kit = _Kit(kind="NORMAL")
    kit.telemetry(settings(producer("T")))
    assert kit.served == []


def test_producer_of_a_topic_that_cannot_be_read_is_registered() -> None:
    kit = _Kit()
    kit.failure = ConnectionLostError("down")
    [answer] = kit.telemetry(settings(producer("T")))
    assert answer.status.code == pb.OK
    assert kit.clients.find(ClientKey("c")) is not None


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (pb.Settings(client_type=pb.PRODUCER), GrpcStatus.INVALID_ARGUMENT),
        (consumer(group=""), GrpcStatus.INVALID_ARGUMENT),
        (consumer(topics=2001), GrpcStatus.INVALID_ARGUMENT),
        (producer("a b"), GrpcStatus.INVALID_ARGUMENT),
    ],
    ids=["neither", "no group", "too many topics", "bad topic"],
)
def test_unfit_settings_end_the_stream_and_register_nobody(asked: pb.Settings, status: GrpcStatus) -> None:
    kit = _Kit()
    with pytest.raises(GrpcError) as ended:
        kit.telemetry(settings(asked))
    assert ended.value.status == status
    assert len(kit.clients) == 0


def test_settings_without_the_right_end_the_stream_and_register_nobody() -> None:
    kit = _Kit(_Access({SUB_T}))
    with pytest.raises(GrpcError, match="no right"):
        kit.telemetry(settings(consumer()))
    assert len(kit.clients) == 0


def test_consumer_settings_of_a_producer_type_are_refused() -> None:
    asked = consumer()
    asked.client_type = pb.PRODUCER
    with pytest.raises(GrpcError, match="Client type is not consumer, type: PRODUCER"):
        _Kit().telemetry(settings(asked))


def test_stream_without_a_client_id_gets_a_status_and_ends() -> None:
    kit = _Kit()
    [answer] = kit.telemetry(settings(consumer()), settings(consumer()), client_id="")
    assert answer.status.code == pb.CLIENT_ID_REQUIRED
    assert len(kit.clients) == 0


def test_answer_to_a_command_reaches_the_commands() -> None:
    kit = _Kit()
    kit.telemetry(pb.TelemetryCommand(verify_message_result=pb.VerifyMessageResult(nonce="n")))
    assert kit.asked == ["command"]


# -- receiving -----------------------------------------------------------------------------------------


def received(written: list[bytes]) -> list[pb.ReceiveMessageResponse]:
    return [pb.ReceiveMessageResponse.FromString(data) for data in written]


RECEIVE = pb.ReceiveMessageRequest(group=G, message_queue=pb.MessageQueue(topic=T))


def test_receive_ends_with_the_time_of_its_delivery() -> None:
    kit = _Kit()
    kit.register(consumer())
    [end] = received(kit.run("ReceiveMessage", RECEIVE))
    assert (end.delivery_timestamp.seconds, end.delivery_timestamp.nanos) == (1_700_000_000, 123_000_000)
    assert kit.asked == ["receive"]


def test_failed_receive_answers_its_status_before_the_time_and_is_counted() -> None:
    kit = _Kit()
    kit.register(consumer())
    kit.failure = ConnectionLostError("down")
    status, end = received(kit.run("ReceiveMessage", RECEIVE))
    assert status.status.code == pb.INTERNAL_SERVER_ERROR
    assert end.HasField("delivery_timestamp")
    assert kit.service.calls == {("ReceiveMessage", str(int(pb.INTERNAL_SERVER_ERROR))): 1}


# -- answers and counts --------------------------------------------------------------------------------


def test_failures_of_sends_are_counted_on_both_paths_and_successes_are_not() -> None:
    request = pb.SendMessageRequest(messages=[pb.Message(topic=T)])
    kit = _Kit()
    assert kit.code("SendMessage", request) == pb.OK
    assert kit.service.calls == {}
    expected: dict[tuple[str, str], int] = {}
    for failure, code in (
        (Refused(pb.MESSAGE_BODY_EMPTY, "empty"), pb.MESSAGE_BODY_EMPTY),
        (ConnectionLostError("down"), pb.INTERNAL_SERVER_ERROR),
    ):
        kit.failure = failure
        assert kit.code("SendMessage", request) == code
        expected["SendMessage", str(int(code))] = 1
    assert kit.service.calls == expected
    kit = _Kit(_Access())  # with users every send takes the path of tasks
    kit.failure = ConnectionLostError("down")
    assert kit.code("SendMessage", request) == pb.INTERNAL_SERVER_ERROR
    assert kit.service.calls == {("SendMessage", str(int(pb.INTERNAL_SERVER_ERROR))): 1}


def test_every_other_call_is_counted_by_its_code() -> None:
    kit = _Kit()
    request = pb.AckMessageRequest(topic=T, group=G)
    assert kit.code("AckMessage", request) == pb.OK
    kit.failure = Refused(pb.INVALID_RECEIPT_HANDLE, "bad")
    assert kit.code("AckMessage", request) == pb.INVALID_RECEIPT_HANDLE
    assert kit.service.calls == {
        ("AckMessage", str(int(pb.OK))): 1,
        ("AckMessage", str(int(pb.INVALID_RECEIPT_HANDLE))): 1,
    }


def test_assignment_knows_whether_its_group_is_ordered() -> None:
    kit = _Kit()
    request = pb.QueryAssignmentRequest(topic=T, group=G)
    for group, count in ((None, 0), (ORDERED, 1)):
        kit.group = group
        [data] = kit.run("QueryAssignment", request)
        assert len(pb.QueryAssignmentResponse.FromString(data).assignments) == count


def test_transaction_without_an_id_is_refused() -> None:
    kit = _Kit()
    request = pb.EndTransactionRequest(topic=T, transaction_id=" ")
    assert kit.code("EndTransaction", request) == pb.INVALID_TRANSACTION_ID
    assert kit.asked == []


def test_bytes_that_are_no_request_end_the_call_with_a_status() -> None:
    kit = _Kit()
    damaged = SimpleNamespace(SerializeToString=lambda: b"\xff\xff")
    for name in ("SendMessage", "ReceiveMessage", "AckMessage"):
        with pytest.raises(GrpcError) as ended:
            kit.run(name, damaged)
        assert ended.value.status == GrpcStatus.INTERNAL
