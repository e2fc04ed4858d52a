"""Permissions of users through a proxy: access lists of 4.x, clients of other users, old dates, forged handles."""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.apache.process import wait_until
from tests.proxy.golden import SERVICE, metadata
from tests.proxy.local import LocalStack, local_stack

from orbitmq.auth.model import Action, Decision, Entry, Policies, Resource, User
from orbitmq.model.topic import TopicConfig
from orbitmq.proxy.clients import ClientKey
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb

INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'
SECURED: dict[str, Any] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"admin","password":"secret12"}',
    "innerClientAuthenticationCredentials": INNER,
    "brokerFastFailureEnable": False,
}
LISTS = """
accounts:
- accessKey: inner-key
  secretKey: inner-secret
  admin: true
- accessKey: sender01
  secretKey: sender-secret
  topicPerms: [Listed=PUB]
- accessKey: reader01
  secretKey: reader-secret
  topicPerms: [Listed=SUB]
  groupPerms: [readers=SUB]
"""


def signed(name: str, secret: str, client_id: str = "c", date: str = "") -> list[tuple[str, str]]:
    date = date or time.strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex()
    credential = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return [*metadata(client_id), ("x-mq-date-time", date), ("authorization", credential)]


def ask(channel: grpc.Channel, name: str, request: Any, given: list[tuple[str, str]]) -> Any:
    answer = getattr(pb, f"{name}Response").FromString
    call = channel.unary_unary(SERVICE + name, type(request).SerializeToString, answer)
    return call(request, metadata=given, timeout=10)


def send(channel: grpc.Channel, topic: str, body: bytes, given: list[tuple[str, str]]) -> pb.Status:
    message = pb.Message(topic=pb.Resource(name=topic), body=body)
    message.system_properties.message_id = f"01{body.hex()}"
    status = ask(channel, "SendMessage", pb.SendMessageRequest(messages=[message]), given).status
    assert isinstance(status, pb.Status)
    return status


def receive(
    channel: grpc.Channel, topic: str, group: str, given: list[tuple[str, str]], *, renew: bool = False
) -> list[pb.Message]:
    request = pb.ReceiveMessageRequest(batch_size=16, auto_renew=renew)
    request.group.name, request.message_queue.topic.name = group, topic
    request.long_polling_timeout.seconds = 5
    request.invisible_duration.seconds = 60
    call = channel.unary_stream(
        SERVICE + "ReceiveMessage",
        pb.ReceiveMessageRequest.SerializeToString,
        pb.ReceiveMessageResponse.FromString,
    )
    return [
        answer.message for answer in call(request, metadata=given, timeout=15) if answer.HasField("message")
    ]


class Telemetry:
    """A telemetry stream with one command sent."""

    def __init__(
        self, channel: grpc.Channel, command: pb.TelemetryCommand, given: list[tuple[str, str]]
    ) -> None:
        self._started = threading.Event()
        self._call = channel.stream_stream(
            SERVICE + "Telemetry", pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString
        )(self._commands(command), metadata=given, timeout=60)
        self._started.set()

    def _commands(self, command: pb.TelemetryCommand) -> Iterator[pb.TelemetryCommand]:
        yield command
        self._started.wait()  # a gRPC thread runs this, possibly before the call is known here
        self._call.code()  # until it ends

    def answer(self) -> pb.TelemetryCommand:
        command = next(self._call)
        assert isinstance(command, pb.TelemetryCommand)
        return command

    def close(self) -> None:
        self._call.cancel()


@contextlib.contextmanager
def consumer(
    channel: grpc.Channel, topic: str, group: str, given: list[tuple[str, str]]
) -> Iterator[Telemetry]:
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add().topic.name = topic
    stream = Telemetry(channel, pb.TelemetryCommand(settings=settings), given)
    try:
        assert stream.answer().status.code == pb.OK
        yield stream
    finally:
        stream.close()


@contextlib.contextmanager
def own_channel(stack: LocalStack) -> Iterator[grpc.Channel]:
    """Yields a channel with its own connection: channels of one process share theirs."""
    with grpc.insecure_channel(stack.endpoint, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


def test_access_lists_of_4x_count_for_grpc_too(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(LISTS)
    settings: dict[str, Any] = {
        "aclEnable": True,
        "rocketmqHome": str(home),
        "innerClientAuthenticationCredentials": '{"accessKey":"inner-key","secretKey":"inner-secret"}',
        "brokerFastFailureEnable": False,
    }
    with local_stack(tmp_path, **settings) as stack, grpc.insecure_channel(stack.endpoint) as channel:

        async def prepare() -> None:
            stack.inside.topics.update(
                TopicConfig(topic_name="Listed", read_queue_nums=1, write_queue_nums=1)
            )
            stack.inside.offsets.commit("test", "readers", "Listed", 0, 0)

        stack.loop.run(prepare())
        sender, reader = signed("sender01", "sender-secret"), signed("reader01", "reader-secret")
        assert send(channel, "Listed", b"unsigned", metadata("c")).code == pb.UNAUTHORIZED
        assert send(channel, "Listed", b"wrong", signed("sender01", "reader-secret")).code == pb.UNAUTHORIZED
        assert send(channel, "Listed", b"unknown", signed("nobody01", "x")).code == pb.UNAUTHORIZED
        assert send(channel, "Listed", b"reader", reader).code == pb.UNAUTHORIZED
        assert send(channel, "Listed", b"sender", sender).code == pb.OK
        assert stack.loop.run(_stored(stack, "Listed")) == 1
        route = pb.QueryRouteRequest(topic=pb.Resource(name="Listed"))
        for given in (sender, reader):
            assert ask(channel, "QueryRoute", route, given).status.code == pb.OK, "either right is enough"
        assert [one.body for one in receive(channel, "Listed", "readers", reader)] == [b"sender"]
        assert receive(channel, "Listed", "readers", sender) == []
        assert receive(channel, "Listed", "others", reader) == []


async def _stored(stack: LocalStack, topic: str) -> int:
    return stack.inside.store.max_offset(topic, 0)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Yields a stack in which alice has the topic and group payroll, and eve only her own."""
    with local_stack(tmp_path_factory.mktemp("rights"), **SECURED) as running:

        async def prepare() -> None:
            table = running.inside.security.table
            for name in ("alice", "eve"):
                own = "payroll" if name == "alice" else "eve"
                table.store_user(User(name, f"{name}-secret"))
                entries = []
                for text in (f"Topic:{own}", f"Group:{own}"):
                    resource = Resource.parse(text)
                    assert resource is not None
                    entries.append(Entry(resource, (Action.PUB, Action.SUB), Decision.ALLOW))
                table.store_policies(name, Policies(tuple(entries)))
                running.inside.topics.update(
                    TopicConfig(topic_name=own, read_queue_nums=1, write_queue_nums=1)
                )
                running.inside.offsets.commit("test", own, own, 0, 0)

        running.loop.run(prepare())
        yield running


def test_only_the_user_of_a_client_acts_for_it(stack: LocalStack) -> None:
    alice, eve = signed("alice", "alice-secret", "a@1"), signed("eve", "eve-secret", "a@1")
    beat = pb.HeartbeatRequest(group=pb.Resource(name="payroll"))
    with grpc.insecure_channel(stack.endpoint) as channel, consumer(channel, "payroll", "payroll", alice):
        client = stack.proxy.clients.find(ClientKey("a@1", "alice"))
        assert client is not None
        for group in ("payroll", "eve", ""):
            end = pb.NotifyClientTerminationRequest(group=pb.Resource(name=group))
            assert ask(channel, "NotifyClientTermination", end, eve).status.code != pb.OK
            assert (
                ask(channel, "NotifyClientTermination", end, metadata("a@1")).status.code == pb.UNAUTHORIZED
            )
            heartbeat = pb.HeartbeatRequest(group=pb.Resource(name=group))
            assert ask(channel, "Heartbeat", heartbeat, eve).status.code != pb.OK
            assert ask(channel, "Heartbeat", heartbeat, metadata("a@1")).status.code == pb.UNAUTHORIZED
        # Her own client of that name is another one.
        with consumer(channel, "eve", "eve", eve):
            end = pb.NotifyClientTerminationRequest(group=pb.Resource(name="eve"))
            assert ask(channel, "NotifyClientTermination", end, eve).status.code == pb.OK
        assert stack.proxy.clients.find(ClientKey("a@1", "alice")) is client
        assert client.group == "payroll"
        assert ask(channel, "Heartbeat", beat, alice).status.code == pb.OK
        end = pb.NotifyClientTerminationRequest(group=pb.Resource(name="payroll"))
        assert ask(channel, "NotifyClientTermination", end, alice).status.code == pb.OK
        assert ask(channel, "Heartbeat", beat, alice).status.code == pb.UNRECOGNIZED_CLIENT_TYPE


def test_heartbeat_of_a_consumer_that_lost_its_group_is_refused(stack: LocalStack) -> None:
    eve = signed("eve", "eve-secret", "e@1")
    with grpc.insecure_channel(stack.endpoint) as channel, consumer(channel, "eve", "eve", eve):
        other = pb.HeartbeatRequest(group=pb.Resource(name="payroll"))
        assert ask(channel, "Heartbeat", other, eve).status.code == pb.UNAUTHORIZED
        own = pb.HeartbeatRequest(group=pb.Resource(name="eve"))
        assert ask(channel, "Heartbeat", own, eve).status.code == pb.OK


@contextlib.contextmanager
def _revoked(stack: LocalStack, name: str) -> Iterator[None]:
    """Removes the user's policies inside the block."""
    table = stack.inside.security.table

    async def store(policies: Policies | None) -> Policies | None:
        before = table.policies.get(name)
        table.store_policies(name, policies)
        return before

    before = stack.loop.run(store(None))
    try:
        yield
    finally:
        stack.loop.run(store(before))


def test_heartbeat_of_a_producer_takes_a_signature_and_the_right_to_publish(stack: LocalStack) -> None:
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.add().name = "eve"
    eve = signed("eve", "eve-secret", "p@1")
    with grpc.insecure_channel(stack.endpoint) as channel:
        stream = Telemetry(channel, pb.TelemetryCommand(settings=settings), eve)
        assert stream.answer().status.code == pb.OK
        assert (
            ask(channel, "Heartbeat", pb.HeartbeatRequest(), metadata("p@1")).status.code == pb.UNAUTHORIZED
        )
        assert ask(channel, "Heartbeat", pb.HeartbeatRequest(), eve).status.code == pb.OK
        client = stack.proxy.clients.find(ClientKey("p@1", "eve"))
        assert client is not None
        assert stack.proxy.transactions._may_publish(client, "eve")
        with _revoked(stack, "eve"):
            answer = ask(channel, "Heartbeat", pb.HeartbeatRequest(), eve)
            assert answer.status.code == pb.UNAUTHORIZED
            assert not stack.proxy.transactions._may_publish(client, "eve")
        stream.close()


def test_receive_on_hold_is_refused_once_its_user_has_lost_the_right(stack: LocalStack) -> None:
    eve = signed("eve", "eve-secret", "h@1")
    with own_channel(stack) as channel, consumer(channel, "eve", "eve", eve), ThreadPoolExecutor(1) as pool:
        waits = pool.submit(receive, channel, "eve", "eve", eve)
        wait_until(lambda: stack.proxy.receiving.waiting == 1, timeout_s=10, what="the receive")
        with own_channel(stack) as other, _revoked(stack, "eve"):
            assert send(other, "eve", b"x", signed("admin", "secret12")).code == pb.OK
            assert waits.result(20) == []


def test_telemetry_that_is_not_signed_ends_whatever_it_says(stack: LocalStack) -> None:
    answer = pb.TelemetryCommand()
    answer.verify_message_result.nonce = "guessed"
    with grpc.insecure_channel(stack.endpoint) as channel:
        stream = Telemetry(channel, answer, metadata("a@1"))
        with pytest.raises(grpc.RpcError) as failed:
            stream.answer()
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_without_users_another_connection_does_not_end_a_client(tmp_path: Path) -> None:
    with local_stack(tmp_path) as running, own_channel(running) as own, own_channel(running) as other:

        async def prepare() -> None:
            running.inside.topics.update(TopicConfig(topic_name="Open"))

        running.loop.run(prepare())
        end = pb.NotifyClientTerminationRequest(group=pb.Resource(name="open"))
        with consumer(own, "Open", "open", metadata("o@1")):
            assert ask(other, "NotifyClientTermination", end, metadata("o@1")).status.code == pb.FORBIDDEN
            beat = pb.HeartbeatRequest(group=pb.Resource(name="open"))
            assert ask(own, "Heartbeat", beat, metadata("o@1")).status.code == pb.OK
            assert ask(own, "NotifyClientTermination", end, metadata("o@1")).status.code == pb.OK


def _forward(topic: str, handle: str) -> pb.ForwardMessageToDeadLetterQueueRequest:
    request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, message_id="01")
    request.topic.name = request.group.name = topic
    return request


def _ack(topic: str, handle: str) -> pb.AckMessageRequest:
    request = pb.AckMessageRequest()
    request.topic.name = request.group.name = topic
    request.entries.add(message_id="01", receipt_handle=handle)
    return request


def _change(topic: str, handle: str) -> pb.ChangeInvisibleDurationRequest:
    request = pb.ChangeInvisibleDurationRequest(receipt_handle=handle, message_id="01")
    request.topic.name = request.group.name = topic
    request.invisible_duration.seconds = 30
    return request


def _dead_letters(stack: LocalStack, group: str) -> int:
    return stack.loop.run(_stored(stack, f"%DLQ%{group}"))


def _received(stack: LocalStack, channel: grpc.Channel, name: str, topic: str) -> tuple[str, str]:
    """Returns id and handle of a message of that user's topic."""
    given = signed(name, f"{name}-secret", f"{name}@2")
    body = f"{name} {time.monotonic_ns()}".encode()
    assert send(channel, topic, body, given).code == pb.OK
    found: dict[bytes, pb.Message] = {}
    while body not in found:
        found |= {one.body: one for one in receive(channel, topic, topic, given)}
    system = found[body].system_properties
    return system.message_id, system.receipt_handle


def test_receipt_handle_names_only_what_was_received(stack: LocalStack) -> None:
    """eve knows the position of a payroll message, and forges a handle for it, or alters her own."""
    eve, alice = signed("eve", "eve-secret", "eve@2"), signed("alice", "alice-secret", "alice@2")
    with grpc.insecure_channel(stack.endpoint) as channel:
        _, foreign = _received(stack, channel, "alice", "payroll")
        _, own = _received(stack, channel, "eve", "eve")
        fields, theirs = own.split(" "), foreign.split(" ")
        assert len(fields) == 10
        moved = [*fields[:8], theirs[8], fields[9]]
        forged = {
            "of alice": foreign,
            "offset of alice": " ".join(moved),
            "without a seal": " ".join(moved[:9]),
            "own without a seal": " ".join(fields[:9]),
            "seal of alice": " ".join([*fields[:9], theirs[9]]),
            "empty seal": " ".join([*fields[:9], ""]),
            "another queue offset": " ".join([*fields[:7], str(int(fields[7]) + 1), *fields[8:]]),
            "later": " ".join([fields[0], str(int(fields[1]) + 1), *fields[2:]]),
        }
        for label, handle in forged.items():
            for name, request in (
                ("ForwardMessageToDeadLetterQueue", _forward("eve", handle)),
                ("AckMessage", _ack("eve", handle)),
                ("ChangeInvisibleDuration", _change("eve", handle)),
            ):
                status = ask(channel, name, request, eve).status
                assert status.code == pb.INVALID_RECEIPT_HANDLE, (label, name, status)
        assert _dead_letters(stack, "eve") == 0
        broken = ask(channel, "AckMessage", _ack("eve", "broken"), eve).status.code
        assert broken == pb.INTERNAL_SERVER_ERROR, "as Apache answers what cannot be parsed"
        changed = ask(channel, "ChangeInvisibleDuration", _change("eve", own), eve)
        assert changed.status.code == pb.OK
        status = ask(channel, "ForwardMessageToDeadLetterQueue", _forward("eve", changed.receipt_handle), eve)
        assert status.status.code == pb.OK
        assert _dead_letters(stack, "eve") == 1
        assert ask(channel, "AckMessage", _ack("payroll", foreign), alice).status.code == pb.OK


def test_plain_handle_of_apaches_proxies_is_held_to_the_record_it_names(tmp_path: Path) -> None:
    options = {"acceptPlainReceiptHandles": "true", "receiptHandleKey": "a key of the cluster"}
    with (
        local_stack(tmp_path, options, brokerFastFailureEnable=False) as running,
        own_channel(running) as channel,
    ):

        async def prepare() -> None:
            for name in ("mixed", "secret"):
                running.inside.topics.update(
                    TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
                )
                running.inside.offsets.commit("test", name, name, 0, 0)

        running.loop.run(prepare())
        given = metadata("m@1")
        for number in range(2):
            assert send(channel, "mixed", f"m{number}".encode(), given).code == pb.OK
            assert send(channel, "secret", f"s{number}".encode(), given).code == pb.OK
        handles = [one.system_properties.receipt_handle for one in receive(channel, "mixed", "mixed", given)]
        secret = [one.system_properties.receipt_handle for one in receive(channel, "secret", "secret", given)]
        plain = [handle.rpartition(" ")[0] for handle in handles]
        fields = plain[0].split(" ")
        other = " ".join([*fields[:8], secret[0].split(" ")[8]])
        method = "ForwardMessageToDeadLetterQueue"
        assert ask(channel, method, _forward("mixed", other), given).status.code == pb.INVALID_RECEIPT_HANDLE
        nowhere = " ".join([*fields[:8], "99999999"])
        assert ask(channel, method, _forward("mixed", nowhere), given).status.code == pb.INTERNAL_SERVER_ERROR
        assert _dead_letters(running, "mixed") == 0
        assert ask(channel, method, _forward("mixed", plain[0]), given).status.code == pb.OK
        assert _dead_letters(running, "mixed") == 1
        assert ask(channel, "AckMessage", _ack("mixed", plain[1]), given).status.code == pb.OK


@pytest.mark.parametrize("date", ["20200101T000000Z", "20991231T000000Z", "yesterday", "20201301T000000Z"])
def test_call_signed_with_a_date_of_another_time_is_refused(stack: LocalStack, date: str) -> None:
    with grpc.insecure_channel(stack.endpoint) as channel:
        route = pb.QueryRouteRequest(topic=pb.Resource(name="eve"))
        status = ask(channel, "QueryRoute", route, signed("eve", "eve-secret", date=date)).status
        assert (status.code, status.message.split()[0]) == (pb.UNAUTHORIZED, "datetime")
        assert ask(channel, "QueryRoute", route, signed("eve", "eve-secret")).status.code == pb.OK
