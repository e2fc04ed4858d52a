"""Pops and acknowledgements of one socket read served together: the same responses and state as one by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.micro_broker import Sink, send_fields

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.pop import service
from orbitmq.broker.pop.checkpoints import Checkpoint
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import NoPermission
from orbitmq.model.names import pop_retry_topic
from orbitmq.model.topic import PERM_READ_WRITE
from orbitmq.record.codec import decode_records
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.types import NewMessage
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.connection import Connection, ConnectionLimits
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

TOPIC = "BenchmarkTest"
QUEUES = 8
JSON = SerializeType.JSON


class Written(Sink):
    """Records writes."""

    def __init__(self) -> None:
        super().__init__()
        self.content = bytearray()

    def write(self, data: bytes) -> None:
        self.content += data


class Client:
    """A client connected to the broker in memory, without a socket."""

    def __init__(self, broker: Broker, tasks: TaskOwner) -> None:
        self.broker = broker
        self.sink = Written()
        limits = ConnectionLimits(turn_bytes=1 << 30)
        self.connection = Connection(tasks=tasks, router=broker.main_router, limits=limits)
        self.connection.connection_made(self.sink)  # type: ignore[arg-type]  # as much of a transport as is used

    async def read(self, *requests: bytes) -> list[Frame]:
        """Returns the responses to one read."""
        self.sink.content.clear()
        self.connection.data_received(b"".join(requests))
        for _ in range(4):
            await asyncio.sleep(0)
        return FrameDecoder().feed(bytes(self.sink.content))

    def state(self) -> object:
        """Returns all state left behind by pops and acknowledgements, except records of the revive topic."""
        pop, stats = self.broker.pop, self.broker.stats
        table = sorted(
            (one.key, one.invisible_ms, one.revive_queue_id, one.revive_offset, list(one.offsets), one.acked)
            for one in pop.log.table
        )
        gets = {key: (one.count, one.bytes, one.times) for key, one in stats.gets.items()}
        counts = {key: one.count for key, one in stats.others.items() if "_NUMS" in key[0]}
        ends = [self.broker.store.max_offset(pop.log.topic, queue_id) for queue_id in range(8)]
        return table, gets, counts, ends, self.broker.offsets.committed, pop.log.table.in_flight_of_groups()


@asynccontextmanager
async def serving(directory: Path, clock: ManualClock, seed: int = 0) -> AsyncIterator[Client]:
    config = BrokerConfig(
        listen_port=0, bind_host="127.0.0.1", public_host="127.0.0.1", property_filter_enabled=True
    )
    async with Broker(config, StoreConfig(root=str(directory)), clock=clock) as broker:
        tasks = TaskOwner("test")
        client = Client(broker, tasks)
        rng = random.Random(seed)
        broker.pop.dice = lambda: rng.randrange(100)  # type: ignore[method-assign]
        for number in range(QUEUES * 40):
            tag = b"TAGS\x01%b\x02" % rng.choice((b"a", b"b"))
            fields = send_fields(number, batch=False) | {"e": str(number % QUEUES), "i": tag.decode()}
            body = b"%d" % number * rng.choice((1, 100))
            (answer,) = await client.read(encode_request(310, number, fields, body, JSON))
            assert answer.code == ResponseCode.SUCCESS
        yield client
        await tasks.close()


def pop(opaque: int, clock: ManualClock, **changes: Any) -> bytes:
    fields = {
        "consumerGroup": "poppers",
        "topic": TOPIC,
        "queueId": "-1",
        "maxMsgNums": "8",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": str(clock.now_ms()),
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    given = {name: str(value) for name, value in changes.items()}
    return encode_request(200050, opaque, fields | given, b"", JSON)


def receipts(answer: Frame) -> list[tuple[str, str, int]]:
    """Returns receipt, queue id and offset of each message of a response."""
    fields, found = answer.ext_fields, []
    starts = {
        tuple(entry.split(" ")[:2]): entry.split(" ")[2]
        for entry in fields["startOffsetInfo"].split(";")
        if entry
    }
    for entry in filter(None, fields["msgOffsetInfo"].split(";")):
        kind, queue_id, offsets = entry.split(" ")
        receipt = (
            f"{starts[kind, queue_id]} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {kind} "
            f"broker-a {queue_id}"
        )
        found += [(f"{receipt} {offset}", queue_id, int(offset)) for offset in offsets.split(",")]
    return found


def without_hosts(answer: Frame) -> object:
    """Returns a response without the ports of broker and client."""
    records = [(one.topic, one.queue_id, one.queue_offset, one.body) for one in decode_records(answer.body)]
    return answer.code, answer.opaque, answer.remark, answer.ext_raw, records


def ack(opaque: int, receipt: tuple[str, str, int], **changes: Any) -> bytes:
    text, queue_id, offset = receipt
    fields = {"consumerGroup": "poppers", "topic": TOPIC, "queueId": queue_id, "extraInfo": text}
    fields |= {"offset": str(offset)} | {name: str(value) for name, value in changes.items()}
    return encode_request(200051, opaque, fields, b"", JSON)


def any_pop(rng: random.Random, opaque: int, clock: ManualClock) -> bytes:
    changes: dict[str, Any] = rng.choice(
        (
            {},
            {},
            {"queueId": rng.randrange(QUEUES)},
            {"queueId": QUEUES},
            {"maxMsgNums": rng.choice((1, 32, 33))},
            {"exp": "a"},
            {"exp": "n > 5 OR TAGS = 'b'", "expType": "SQL92"},
            {"exp": "(", "expType": "SQL92"},
            {"order": "true", "consumerGroup": "ordered", "attemptId": str(rng.randrange(2))},
            {"consumerGroup": "others", "initMode": 1},
            {"topic": "unknown"},
            {"bornTime": 1},
        )
    )
    return pop(opaque, clock, **changes)


def any_ack(rng: random.Random, opaque: int, receipts: list[tuple[str, str, int]]) -> bytes:
    changes: dict[str, Any] = rng.choice(
        ({}, {}, {}, {"offset": 1 << 40}, {"extraInfo": "short"}, {"queueId": 99}, {"consumerGroup": "x"})
    )
    return ack(opaque, rng.choice(receipts), **changes)


@pytest.mark.parametrize("seed", range(6))
def test_answers_and_state_are_those_of_single_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(service, "_ACK_WAIT_S", 1e6)  # both write acknowledgements when they stop

    async def scenario() -> None:
        clock, rng = ManualClock(), random.Random(seed)
        async with (
            serving(tmp_path / "together", clock, seed) as together,
            serving(tmp_path / "alone", clock, seed) as alone,
        ):
            held: list[tuple[str, str, int]] = []
            for _ in range(6):
                requests = [
                    any_ack(rng, opaque, held) if held and rng.random() < 0.6 else any_pop(rng, opaque, clock)
                    for opaque in range(rng.randrange(2, 9))
                ]
                answers = await together.read(*requests)
                singles = [answer for request in requests for answer in await alone.read(request)]
                assert list(map(without_hosts, answers)) == list(map(without_hosts, singles))
                assert together.state() == alone.state()
                for answer in answers:
                    if answer.code == ResponseCode.SUCCESS and answer.body:
                        assert [record.queue_offset for record in decode_records(answer.body)] == [
                            offset for _, _, offset in receipts(answer)
                        ]
                        held += receipts(answer)
            assert len(held) > 8

    asyncio.run(scenario())


def in_broker(tmp_path: Path, scenario: Callable[[Client, ManualClock], Any]) -> None:
    async def run() -> None:
        clock = ManualClock()
        async with serving(tmp_path, clock) as client:
            await scenario(client, clock)

    asyncio.run(run())


def test_pops_whose_checkpoints_the_store_refuses_hand_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: Client, clock: ManualClock) -> None:
        broker = client.broker
        requests = [pop(number, clock, queueId=0) for number in range(3)]
        requests.append(pop(3, clock, queueId=0, order="true", consumerGroup="ordered"))

        def refuse(*_arguments: object, **_options: object) -> None:
            raise StoreUnavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(broker.puts, "append", refuse)
            answers = await client.read(*requests)
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 3 + [0]
        assert not any(answer.body for answer in answers[:3])
        assert broker.offsets.query("poppers", TOPIC, 0) == 0
        assert not len(broker.pop.log.table)
        answers = await client.read(*requests[:3])
        assert [answer.ext_fields["startOffsetInfo"] for answer in answers] == ["0 0 0", "0 0 8", "0 0 16"]
        assert broker.offsets.query("poppers", TOPIC, 0) == 24

    in_broker(tmp_path, scenario)


def test_every_request_of_a_run_passes_the_guard(tmp_path: Path) -> None:
    async def scenario(client: Client, clock: ManualClock) -> None:
        def guard(frame: Frame, _connection: Connection) -> None:
            if frame.ext_fields["consumerGroup"] == "stranger":
                raise NoPermission("strangers may not pop")

        client.broker._pop.guard = client.broker.main_router.guard = guard
        stranger = pop(1, clock, consumerGroup="stranger")
        answers = await client.read(pop(0, clock), stranger, pop(2, clock))
        assert [answer.code for answer in answers] == [0, ResponseCode.NO_PERMISSION, 0]
        held = receipts(answers[0])
        acks = [ack(0, held[0]), ack(1, held[1], consumerGroup="stranger"), ack(2, held[2])]
        answers = await client.read(*acks)
        assert [answer.code for answer in answers] == [0, ResponseCode.NO_PERMISSION, 0]
        assert "stranger" not in client.broker.groups.configs

    in_broker(tmp_path, scenario)


def test_pops_of_one_read_share_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: Client, clock: ManualClock) -> None:
        appends: list[int] = []
        append = client.broker.puts.append

        def counted(messages: Any) -> Any:
            appends.append(len(messages))
            return append(messages)

        monkeypatch.setattr(client.broker.puts, "append", counted)
        answers = await client.read(*(pop(number, clock, queueId=number) for number in range(5)))
        assert [answer.code for answer in answers] == [0] * 5
        assert appends == [5]

    in_broker(tmp_path, scenario)


def test_receipt_of_a_redelivered_message_has_the_time_of_its_checkpoint(tmp_path: Path) -> None:
    async def scenario(client: Client, clock: ManualClock) -> None:
        broker, group = client.broker, "poppers"
        name = pop_retry_topic(TOPIC, group, version_2=False)
        broker.topics.create_own(name, 1, PERM_READ_WRITE)
        broker.puts.deliver([NewMessage(name, 0, b"again", b"", clock.now_ms(), broker.pop.store_host)])
        # After a reset the same position can be popped twice in one millisecond.
        taken = Checkpoint(name, group, 0, 0, clock.now_ms(), 60_000, 0, range(1))
        broker.pop.log.table.add(taken)
        (answer,) = await client.read(pop(0, clock, maxMsgNums=1, queueId=0, exp="none"))
        [record] = decode_records(answer.body)
        assert (record.topic, record.body) == (TOPIC, b"again")
        receipt = (record.find(b"POP_CK") or b"").split(b" ")
        assert answer.ext_fields["popTime"] == str(clock.now_ms() + 1) == receipt[1].decode()
        assert not broker.pop.log.table.in_flight(TOPIC, group, 0)

    in_broker(tmp_path, scenario)
