"""A user with almost no rights against every method of the gRPC service: the data she is served, and what changes.

Attacks are generated from the service's descriptor: every text and number of a request takes every name, id, handle
and offset of the victims. A new method or field is attacked without anyone adding it here.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from tests.integration.rights_kit import ALICE, EVE, FORGED, GROUP, LISTS, SALARY, TOPIC, Scene
from tests.integration.test_proxy_rights import SECURED, ask, consumer, receive, send, signed
from tests.proxy.golden import SERVICE, metadata
from tests.proxy.local import LocalStack, local_stack

from orbitmq.auth.model import Action, Decision, Entry, Policies, Resource, User
from orbitmq.model.topic import TopicConfig
from orbitmq.proxy.clients import ClientKey
from orbitmq.proxy.http2.call import Call
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.service import Service

pytestmark = pytest.mark.slow

METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["MessagingService"].methods}
STREAMS = ("ReceiveMessage", "Telemetry")
NEVER_SUCCEEDS = {"SyncLiteSubscription"}
"""Lite topics are not served."""
RIGHTS = (
    (ALICE[0], f"Topic:{TOPIC}", Action.PUB, Action.SUB),
    (ALICE[0], f"Group:{GROUP}", Action.SUB),
    (EVE[0], "Topic:eve", Action.PUB, Action.SUB),
    (EVE[0], "Group:eve", Action.SUB),
    (EVE[0], "Topic:%DLQ%eve", Action.SUB),
)
VICTIM_NAMES = frozenset({TOPIC, GROUP, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"})
OWN: dict[str, Any] = {
    "name": "eve",
    "message_id": "01AB",
    "body": FORGED,
    "seconds": 60,
    "nanos": 0,
    "batch_size": 8,
    "max_delivery_attempts": 16,
    "expression": "*",
    "resource_namespace": "",
}
"""What fields of these names have in a request that is all Eve's own."""
LEFT_OUT = frozenset(
    {"delivery_timestamp", "lite_topic", "user_properties", "body_digest", "message_group", "priority"}
    | {"long_polling_timeout", "filter_expression", "permission", "orphaned_transaction_recovery_duration"}
)
"""With values of her own a request of these could not succeed."""
QUICK = {
    "grpcClientConsumerMinLongPollingTimeoutMillis": "20",
    "grpcClientConsumerMaxLongPollingTimeoutMillis": "50",
    "longPollingReserveTimeInMillis": "10",
}
"""A receive without a message ends at once."""
_TEXTS = (FieldDescriptor.TYPE_STRING,)
_WHOLE = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)


def _filled(kind: Any, path: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yields requests with Eve's own values everywhere, one for each choice of a oneof."""
    choices = [one for one in kind.DESCRIPTOR.oneofs if len(one.fields) > 1]
    for chosen in itertools.product(*(one.fields for one in choices)):
        left_out = {each.name for one in choices for each in one.fields} - {each.name for each in chosen}
        message = kind()
        for each in kind.DESCRIPTOR.fields:
            if each.name not in left_out | LEFT_OUT and len(path) < 6:
                _fill(message, each, path)
        yield message
        for each, value in message.ListFields():  # the other choices of nested oneofs
            if each.message_type is not None and not each.is_repeated:
                for inner in itertools.islice(_filled(type(value), (*path, each.name)), 1, None):
                    other = kind()
                    other.CopyFrom(message)
                    getattr(other, each.name).CopyFrom(inner)
                    yield other


def _fill(message: Any, each: FieldDescriptor, path: tuple[str, ...]) -> None:
    repeated = each.is_repeated
    if each.message_type is not None:
        inner = next(_filled(GetMessageClass(each.message_type), (*path, each.name)))
        if repeated:
            getattr(message, each.name).append(inner)
        else:
            getattr(message, each.name).CopyFrom(inner)
        return
    if each.enum_type is not None:
        value: Any = each.enum_type.values[-1].number
    elif each.type in _TEXTS:
        value = OWN.get(each.name, "eve")
    elif each.type == FieldDescriptor.TYPE_BYTES:
        value = OWN.get(each.name, b"eve")
    else:
        value = OWN.get(each.name, 0)
    if repeated:
        getattr(message, each.name).append(value)
    else:
        setattr(message, each.name, value)


def _leaves(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Yields every nested message with each of its plain fields."""
    for each in message.DESCRIPTOR.fields:
        if each.message_type is None:
            yield message, each
        elif each.is_repeated:
            for inner in (
                getattr(message, each.name) if each.message_type.GetOptions().map_entry is False else ()
            ):
                yield from _leaves(inner)
        elif message.HasField(each.name):
            yield from _leaves(getattr(message, each.name))


def _names(message: Any) -> set[str]:
    """Returns the topics and groups a request names."""
    return {value.name for value in _resources(message)}


def _resources(message: Any) -> Iterator[Any]:
    if message.DESCRIPTOR.name == "Resource":
        yield message
        return
    for each, value in message.ListFields():
        if each.message_type is not None and not each.message_type.GetOptions().map_entry:
            for inner in value if each.is_repeated else [value]:
                yield from _resources(inner)


@dataclass
class GrpcScene:
    """A proxy inside a broker, with the victims' messages."""

    stack: LocalStack
    channel: grpc.Channel
    is_4x: bool
    receipt: str = ""
    recall: str = ""
    transaction: str = ""
    message_id: str = ""
    offsets: list[int] = field(default_factory=list)
    attempts: int = 0

    def requests(self, name: str) -> Iterator[Any]:
        kind = GetMessageClass(METHODS[name].input_type)
        texts = [*VICTIM_NAMES, self.receipt, self.recall, self.transaction, self.message_id, "alice@1"]
        texts += ["rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"]
        for base in _filled(kind):
            yield base
            yield from self._informed(base)
            for index, (_, each) in enumerate(list(_leaves(base))):
                values: list[Any] = []
                if each.type in _TEXTS:
                    values = [*texts]
                elif each.type in _WHOLE:
                    values = [*self.offsets, -1, 2**31 - 1]
                elif each.enum_type is not None:
                    values = [value.number for value in each.enum_type.values]
                for value in values:
                    request = kind()
                    request.CopyFrom(base)
                    holder, _ = list(_leaves(request))[index]
                    with contextlib.suppress(ValueError):  # beyond 32 bits
                        if each.is_repeated:
                            del getattr(holder, each.name)[:]
                            getattr(holder, each.name).append(value)
                        else:
                            setattr(holder, each.name, value)
                        yield request

    def _informed(self, base: Any) -> Iterator[Any]:
        """Yields requests with the names of the victims together with what belongs to them."""
        known = {"receipt_handle": self.receipt, "recall_handle": self.recall, "message_id": self.message_id}
        known |= {"transaction_id": self.transaction}
        for topic, group in itertools.product((TOPIC, "eve"), (GROUP, "eve")):
            request = type(base)()
            request.CopyFrom(base)
            for holder, each in list(_leaves(request)):
                if each.name in known and not each.is_repeated:
                    setattr(holder, each.name, known[each.name])
                if each.name == "resolution":
                    setattr(holder, each.name, pb.COMMIT)
            _rename(request, topic, group)
            yield request

    def attack(self, name: str) -> list[str]:
        wrong: dict[str, None] = {}
        before, log_end = self._state()
        eve = signed(*EVE, client_id="eve@1")
        for number, request in enumerate(self.requests(name)):
            givens = [eve]
            if number < 8:
                givens += [signed(*EVE, client_id="alice@1"), metadata("alice@1"), metadata("eve@1")]
            for given in givens:
                self.attempts += 1
                if name == "NotifyClientTermination":  # it may have ended Eve's client
                    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
                    settings.subscription.group.name = "eve"
                    assert self._served("Telemetry", pb.TelemetryCommand(settings=settings), eve)
                served = self._served(name, request, given)
                if SALARY in served:
                    wrong[f"{name} served a message of others"] = None
                if served and self._is_ok(name, served):
                    if given[-1][0] != "authorization":
                        wrong[f"{name} succeeded without a signature"] = None
                    if VICTIM_NAMES & _names(request):
                        wrong[f"{name} succeeded on {sorted(VICTIM_NAMES & _names(request))}"] = None
        wrong |= dict.fromkeys(self._changed(before, log_end))
        return list(wrong)

    def _served(self, name: str, request: Any, given: list[tuple[str, str]]) -> bytes:
        """Returns all responses of a call, concatenated; empty when it failed."""
        try:
            if name == "Telemetry":
                stream = self.channel.stream_stream(
                    SERVICE + name, type(request).SerializeToString, pb.TelemetryCommand.FromString
                )
                answers = list(stream(iter([request]), metadata=given, timeout=15))
                return b"".join(answer.SerializeToString() for answer in answers)
            if name == "ReceiveMessage":
                call = self.channel.unary_stream(
                    SERVICE + name, type(request).SerializeToString, pb.ReceiveMessageResponse.FromString
                )
                answers = list(call(request, metadata=given, timeout=15))
                return b"".join(answer.SerializeToString() for answer in answers)
            return bytes(ask(self.channel, name, request, given).SerializeToString())
        except (grpc.RpcError, StopIteration):
            return b""

    def _is_ok(self, name: str, served: bytes) -> bool:
        if name == "ReceiveMessage":
            return pb.ReceiveMessageResponse.FromString(served).HasField("message")
        if name == "Telemetry":
            return pb.TelemetryCommand.FromString(served).status.code == pb.OK
        return bool(getattr(pb, f"{name}Response").FromString(served).status.code == pb.OK)

    def _scene(self) -> Scene:
        none: Any = None
        return Scene(self.stack.inside, none, none, none, self.is_4x)

    def _state(self) -> tuple[dict[str, Any], int]:
        async def read() -> tuple[dict[str, Any], int]:
            state = self._scene().state()
            state["client"] = self.stack.proxy.clients.find(ClientKey("alice@1", ALICE[0]))
            return state, self.stack.inside.store.max_log_offset

        return self.stack.loop.run(read())

    def _changed(self, before: dict[str, Any], log_end: int) -> list[str]:
        async def read() -> list[str]:
            known = {name: value for name, value in before.items() if name != "client"}
            found = list(self._scene()._changes(known, log_end))
            if self.stack.proxy.clients.find(ClientKey("alice@1", ALICE[0])) is not before["client"]:
                found.append("changed: the client of alice")
            return found

        return self.stack.loop.run(read())


def _rename(request: Any, topic: str, group: str) -> None:
    for each, value in request.ListFields():
        if each.message_type is None or each.message_type.GetOptions().map_entry:
            continue
        for inner in value if each.is_repeated else [value]:
            if inner.DESCRIPTOR.name == "Resource":
                inner.name = group if each.name == "group" else topic
            else:
                _rename(inner, topic, group)


@contextlib.contextmanager
def grpc_scene(folder: Path, *, is_4x: bool) -> Iterator[GrpcScene]:
    settings: dict[str, Any] = dict(SECURED)
    if is_4x:
        home = folder / "home"
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "plain_acl.yml").write_text(LISTS)
        inner = '{"accessKey":"root-account","secretKey":"root-secret-1"}'
        settings = {"aclEnable": True, "rocketmqHome": str(home), "brokerFastFailureEnable": False}
        settings["innerClientAuthenticationCredentials"] = inner
    settings |= {"recallMessageEnable": True, "transactionCheckInterval": 3_600_000}
    settings |= {"appendCkAsync": False, "enablePopBufferMerge": False}
    with (
        local_stack(folder, QUICK, **settings) as stack,
        grpc.insecure_channel(stack.endpoint) as channel,
        contextlib.ExitStack() as clients,
    ):
        stack.loop.run(_prepare(stack, is_4x=is_4x))
        alice = signed(*ALICE, client_id="alice@1")
        clients.enter_context(consumer(channel, TOPIC, GROUP, alice))
        clients.enter_context(consumer(channel, "eve", "eve", signed(*EVE, client_id="eve@1")))
        made = GrpcScene(stack, channel, is_4x)
        _make_victims(made, alice)
        yield made


async def _prepare(stack: LocalStack, *, is_4x: bool) -> None:
    broker = stack.inside
    if not is_4x:
        table = broker.security.table
        entries: dict[str, list[Entry]] = {}
        for user, text, *actions in RIGHTS:
            resource = Resource.parse(text)
            assert resource is not None
            entries.setdefault(user, []).append(Entry(resource, tuple(actions), Decision.ALLOW))
        for name, secret in (ALICE, EVE):
            table.store_user(User(name, secret))
            table.store_policies(name, Policies(tuple(entries[name])))
    for topic, group in ((TOPIC, GROUP), ("eve", "eve")):
        mixed = {"message.type": "MIXED"}
        config = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, attributes=mixed)
        broker.topics.update(config)
        broker.offsets.commit("test", group, topic, 0, 0)
        broker.groups.find(group)


def _make_victims(made: GrpcScene, alice: list[tuple[str, str]]) -> None:
    for number in range(3):
        assert send(made.channel, TOPIC, SALARY + b"%d" % number, alice).code == pb.OK
    message = pb.Message(topic=pb.Resource(name=TOPIC), body=SALARY)
    message.system_properties.message_id = "01AA"
    message.system_properties.message_type = pb.TRANSACTION
    half = ask(made.channel, "SendMessage", pb.SendMessageRequest(messages=[message]), alice)
    message.system_properties.message_type = pb.DELAY
    message.system_properties.message_id = "01AD"
    message.system_properties.delivery_timestamp.GetCurrentTime()
    message.system_properties.delivery_timestamp.seconds += 3_600
    delayed = ask(made.channel, "SendMessage", pb.SendMessageRequest(messages=[message]), alice)
    assert (half.status.code, delayed.status.code) == (pb.OK, pb.OK)
    made.transaction = half.entries[0].transaction_id
    made.recall = delayed.entries[0].recall_handle
    received = receive(made.channel, TOPIC, GROUP, alice)
    made.receipt = received[0].system_properties.receipt_handle
    made.message_id = received[0].system_properties.message_id

    async def offsets() -> list[int]:
        scene = made._scene()
        return [record.log_offset for record in scene.records()]

    made.offsets = made.stack.loop.run(offsets())[:6]


@pytest.mark.parametrize("is_4x", [False, True], ids=["policies", "lists"])
def test_eve_reads_and_changes_nothing_of_others_with_any_method(tmp_path: Path, is_4x: bool) -> None:
    with grpc_scene(tmp_path, is_4x=is_4x) as attacked:
        assert {method.path for method in attacked.stack.proxy.service.methods()} == {
            SERVICE + name for name in METHODS
        }
        wrong = [told for name in sorted(METHODS) for told in attacked.attack(name)]
        assert wrong == []
        assert attacked.attempts > 2_000


@pytest.mark.parametrize("is_4x", [False, True], ids=["policies", "lists"])
def test_missing_check_of_any_method_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_4x: bool
) -> None:
    """Removes the required rights of each method in turn."""
    allow = Service._allow
    open_method = ""

    async def planted(service: Service, call: Call, *rights: Any) -> ClientKey:
        assert call.method is not None
        return await allow(service, call, *(() if call.method.path == SERVICE + open_method else rights))

    monkeypatch.setattr(Service, "_allow", planted)
    missed = []
    with grpc_scene(tmp_path, is_4x=is_4x) as attacked:
        for name in sorted(METHODS.keys() - NEVER_SUCCEEDS):
            open_method = name
            if not attacked.attack(name):
                missed.append(name)
    assert missed == []
