"""Acknowledging, extending the invisible time, dead letters and renewal, with brokers that record their requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError
from orbitmq.proxy.acking import Acking
from orbitmq.proxy.clients import Client, ClientKey, Clients
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.handles import Handle, HandleSeal, parse_handle, seal_keys
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.renewal import Held
from orbitmq.proxy.statuses import Refused
from orbitmq.record.codec import encode_record
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.types import NewMessage
from orbitmq.testing.manual_clock import ManualClock

CLOCK_MS = 1_700_000_000_000
ACK, CHANGE, BACK, VIEW = (
    RequestCode.ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.VIEW_MESSAGE_BY_ID,
)


class _Brokers:
    """Answers every request with the code set for it, success if none is."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Any, bytes]] = []
        self.codes: dict[int, int] = {}
        self.body = b""
        self.fails = False

    def knows(self, name: str) -> bool:
        return name == "b"

    def address(self, name: str) -> str:
        return f"{name}:10911"

    async def call(self, address: str, code: int, header: Any, body: bytes = b"") -> Any:
        self.asked.append((code, header, body))
        if self.fails:
            raise ConnectionLostError("gone")
        fields = {"popTime": str(CLOCK_MS + 1), "invisibleTime": "30000", "reviveQid": "4"}
        return SimpleNamespace(
            code=self.codes.get(code, 0),
            remark="why",
            body=self.body,
            serialize_type=int(SerializeType.JSON),
            ext_fields=fields,
            ext_raw=msgspec.json.encode(fields),
        )

    async def ask(self, address: str, code: int, header: Any, body: bytes = b"") -> Any:
        answer = await self.call(address, code, header, body)
        assert answer.code == 0
        return answer

    def of(self, code: int) -> list[Any]:
        return [header for asked, header, _ in self.asked if asked == code]


class _Kit:
    def __init__(self, config: ProxyConfig | None = None, *, keys: tuple[bytes, ...] = ()) -> None:
        self.config = config or ProxyConfig()
        self.clock = ManualClock(CLOCK_MS)
        self.brokers = _Brokers()
        self.clients = Clients(self.config, self.clock)
        self.seal = HandleSeal(keys)
        self.changes: list[tuple[Handle, int]] = []
        self.refuses = False
        self.tasks = TaskOwner("test")
        brokers: Any = self.brokers
        self.acking = Acking(
            self.config, brokers, self.clients, self.seal, clock=self.clock, tasks=self.tasks
        )
        self.renewal: Any = self.acking.renewal
        self.renewal._change, self.renewal._retry_delay_ms = self._change, self._retry_delay_ms
        settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
        stream = SimpleNamespace(remote="h:1", header=lambda _: "", connection=None, done=False)
        self.client: Client = self.clients.register(ClientKey("c"), settings, cast(Any, stream))

    async def _change(self, group: str, topic: str, handle: Handle, invisible_ms: int) -> Handle:
        self.changes.append((handle, invisible_ms))
        if self.refuses:
            raise ConnectionLostError("gone")
        return handle.changed(self.clock.now_ms(), invisible_ms, 0)

    async def _retry_delay_ms(self, group: str, attempts: int) -> int:
        return attempts * 1000

    def hold(self, offset: int = 5, received_ms: int = CLOCK_MS) -> str:
        handle = parse_handle(_handle(offset))
        text = self.seal.text(handle, "G", "T")
        self.renewal.keep(self.client, "01", text, Held("G", "T", handle, received_ms, 1))
        return text

    def ack(self, *handles: str, client: Client | None = None) -> pb.AckMessageResponse:
        request = pb.AckMessageRequest(group=pb.Resource(name="G"), topic=pb.Resource(name="T"))
        for handle in handles:
            request.entries.add(message_id="01", receipt_handle=handle)
        return asyncio.run(self.acking.ack(request, client))


def _handle(offset: int = 5, *, age_ms: int = 0, broker: str = "b", retry: str = "0") -> str:
    return f"{offset} {CLOCK_MS - age_ms} 60000 3 {retry} {broker} 0 {offset} {offset * 100}"


def test_acknowledgement_names_message_and_pop() -> None:
    kit = _Kit()
    response = kit.ack(_handle())
    assert response.status.code == response.entries[0].status.code == pb.OK
    (header,) = kit.brokers.of(ACK)
    assert (header.consumer_group, header.topic, header.queue_id, header.offset) == ("G", "T", 0, 5)
    assert header.extra_info == _handle().rpartition(" ")[0]
    assert kit.acking.acknowledged == 1


@pytest.mark.parametrize(("retry", "topic"), [("1", "%RETRY%G_T"), ("2", "%RETRY%G+T")])
def test_message_of_a_retry_topic_is_acknowledged_there(retry: str, topic: str) -> None:
    kit = _Kit()
    assert kit.ack(_handle(retry=retry)).status.code == pb.OK
    assert kit.brokers.of(ACK)[0].topic == topic


def test_entries_are_answered_one_by_one_and_in_order() -> None:
    kit = _Kit()
    handles = [_handle(), "broken", _handle(age_ms=60_000), _handle(broker="x"), *map(_handle, range(100))]
    response = kit.ack(*handles)
    assert response.status.code == pb.MULTIPLE_RESULTS
    assert [entry.receipt_handle for entry in response.entries] == handles
    codes = [entry.status.code for entry in response.entries]
    assert codes[:4] == [
        pb.OK,
        pb.INTERNAL_SERVER_ERROR,
        pb.INVALID_RECEIPT_HANDLE,
        pb.INVALID_RECEIPT_HANDLE,
    ]
    assert set(codes[4:]) == {pb.OK}
    assert len(kit.brokers.asked) == 101


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.NO_MESSAGE, pb.INVALID_RECEIPT_HANDLE),
        (ResponseCode.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
        (ResponseCode.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
    ],
)
def test_refusal_of_the_broker_reaches_the_client(code: int, expected: pb.Code) -> None:
    kit = _Kit()
    kit.brokers.codes[ACK] = int(code)
    assert kit.ack(_handle()).status.code == expected
    assert kit.acking.acknowledged == 0


def test_broker_that_is_gone_fails_its_own_entries_only() -> None:
    kit = _Kit()
    kit.brokers.fails = True
    assert kit.ack(_handle()).status.code == pb.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(("count", "code"), [(0, pb.INTERNAL_SERVER_ERROR), (2049, pb.BAD_REQUEST)])
def test_number_of_entries_is_bounded(count: int, code: pb.Code) -> None:
    with pytest.raises(Refused) as refused:
        _Kit().ack(*["x"] * count)
    assert refused.value.code == code


def test_batches_have_one_request_with_bits_for_each_pop() -> None:
    kit = _Kit(ProxyConfig(batch_ack=True))
    first, other = f"4 {CLOCK_MS} 60000 3 0 b 0", f"0 {CLOCK_MS} 60000 3 0 b 1"
    response = kit.ack(f"{first} 4 400", f"{first} 6 600", "broken", f"{other} 9 900")
    assert [entry.status.code for entry in response.entries] == [
        pb.OK,
        pb.OK,
        pb.INTERNAL_SERVER_ERROR,
        pb.OK,
    ]
    ((code, _, body),) = kit.brokers.asked
    assert code == RequestCode.BATCH_ACK_MESSAGE
    acks = msgspec.json.decode(body)["acks"]
    assert [(ack["q"], ack["so"], ack["b"]) for ack in acks] == [(0, 4, "BQ=="), (1, 0, "AAI=")]


def _change(kit: _Kit, handle: str, seconds: int, client: Client | None = None) -> Any:
    request = pb.ChangeInvisibleDurationRequest(
        group=pb.Resource(name="G"), topic=pb.Resource(name="T"), message_id="01", receipt_handle=handle
    )
    request.invisible_duration.seconds = seconds
    return asyncio.run(kit.acking.change(request, client))


def test_changed_time_gives_a_new_handle_with_a_seal() -> None:
    kit = _Kit(keys=seal_keys("the key of the cluster", ""))
    sealed = kit.seal.text(parse_handle(_handle()), "G", "T")
    answer = _change(kit, sealed, 30)
    new, is_ours = kit.seal.open(answer.receipt_handle, "G", "T")
    assert is_ours
    assert (new.pop_time_ms, new.invisible_ms, new.revive_queue_id, new.log_offset) == (
        CLOCK_MS + 1,
        30_000,
        4,
        500,
    )
    assert kit.brokers.of(CHANGE)[0].invisible_time == 30_000
    with pytest.raises(Refused):
        _change(kit, _handle(), 30)


@pytest.mark.parametrize("seconds", [-1, 43_201])
def test_time_beyond_the_limits_is_refused(seconds: int) -> None:
    with pytest.raises(Refused) as refused:
        _change(_Kit(), _handle(), seconds)
    assert refused.value.code == pb.ILLEGAL_INVISIBLE_TIME


def _forward(kit: _Kit, handle: str, client: Client | None = None) -> pb.Status:
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name="G"), topic=pb.Resource(name="T"), message_id="01", receipt_handle=handle
    )
    return asyncio.run(kit.acking.forward(request, client)).status


def _stored(topic: str = "T", offset: int = 5) -> bytes:
    return encode_record(NewMessage(topic, 0, b"x", b"", 0, bytes(8)), offset, offset * 100, 1, bytes(8))


def test_dead_letter_is_sent_back_and_acknowledged() -> None:
    kit = _Kit()
    kit.brokers.body = _stored()
    assert _forward(kit, _handle()).code == pb.OK
    assert [code for code, _, _ in kit.brokers.asked] == [VIEW, BACK, ACK]
    (header,) = kit.brokers.of(BACK)
    assert (header.offset, header.group, header.delay_level, header.origin_topic) == (500, "G", -1, "T")


@pytest.mark.parametrize(("topic", "offset"), [("payroll", 5), ("T", 6)])
def test_plain_handle_of_another_message_buries_nothing(topic: str, offset: int) -> None:
    kit = _Kit()
    kit.brokers.body = _stored(topic, offset)
    with pytest.raises(Refused) as refused:
        _forward(kit, _handle())
    assert refused.value.code == pb.INVALID_RECEIPT_HANDLE
    assert not kit.brokers.of(BACK)


def test_sealed_handle_is_not_looked_up() -> None:
    kit = _Kit(keys=seal_keys("the key of the cluster", ""))
    assert _forward(kit, kit.seal.text(parse_handle(_handle()), "G", "T")).code == pb.OK
    assert [code for code, _, _ in kit.brokers.asked] == [BACK, ACK]


def test_handle_without_a_place_in_the_log_is_no_dead_letter() -> None:
    with pytest.raises(Refused, match="commit log offset is empty"):
        _forward(_Kit(), _handle().rpartition(" ")[0])


def test_refused_dead_letter_is_not_acknowledged() -> None:
    kit = _Kit()
    kit.brokers.body = _stored()
    kit.brokers.codes[BACK] = int(ResponseCode.SYSTEM_ERROR)
    assert _forward(kit, _handle()).code == pb.INTERNAL_SERVER_ERROR
    assert not kit.brokers.of(ACK)


# -- renewal -----------------------------------------------------------------------------------------------


def test_message_is_renewed_shortly_before_its_time_and_longer_each_time() -> None:
    kit = _Kit()
    text = kit.hold()
    asyncio.run(kit.renewal.renew_due())
    assert not kit.changes
    for expected_ms in (60_000, 180_000, 300_000):
        held = kit.client.held["01", text]
        kit.clock.advance(held.handle.visible_ms - kit.clock.now_ms() - 5000)
        asyncio.run(kit.renewal.renew_due())
        assert kit.changes[-1][1] == expected_ms
    assert kit.ack(text, client=kit.client).status.code == pb.OK
    assert not kit.client.held
    assert kit.brokers.of(ACK)[0].extra_info == held.handle.extra_info, "the renewed handle counts"


def test_handle_of_another_group_does_not_end_the_renewal() -> None:
    kit = _Kit(keys=seal_keys("the key of the cluster", ""))
    text = kit.hold()
    request = pb.AckMessageRequest(group=pb.Resource(name="Other"), topic=pb.Resource(name="T"))
    request.entries.add(message_id="01", receipt_handle=text)
    response = asyncio.run(kit.acking.ack(request, kit.client))
    assert response.status.code == pb.INVALID_RECEIPT_HANDLE
    assert ("01", text) in kit.client.held


def test_renewal_ends_after_failures_in_a_row() -> None:
    kit = _Kit()
    kit.hold()
    kit.refuses = True
    kit.clock.advance(55_000)
    for left in (1, 1, 0):
        asyncio.run(kit.renewal.renew_due())
        assert len(kit.client.held) == left


def test_message_held_for_too_long_is_left_to_the_retries_of_its_group() -> None:
    kit = _Kit()
    kit.hold(received_ms=CLOCK_MS - 10_800_000)
    kit.clock.advance(55_000)
    asyncio.run(kit.renewal.renew_due())
    assert [invisible_ms for _, invisible_ms in kit.changes] == [1000]
    assert not kit.client.held


def test_client_that_ends_gives_back_what_it_held() -> None:
    kit = _Kit()
    for offset in range(3):
        kit.hold(offset)

    async def run() -> None:
        kit.clients.unregister(ClientKey("c"))
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert [invisible_ms for _, invisible_ms in kit.changes] == [1000] * 3
    assert not kit.client.held


def test_nothing_is_held_where_renewal_is_off() -> None:
    kit = _Kit(ProxyConfig(auto_renew=False))
    kit.hold()
    assert not kit.client.held
