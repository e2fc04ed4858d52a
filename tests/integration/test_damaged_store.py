"""A broker with corrupted old files: no client gets a damaged message, and every client gets all others."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import grpc
import pytest
from tests.integration.ha_kit import gate_code, introduce, make_broker, put, until
from tests.integration.test_proxy import _consumer, _receive
from tests.proxy.local import local_stack
from tests.unit.transport.loops import on_both_loops, run

from orbitmq.broker.config import BrokerRole
from orbitmq.client import ConsumeFromWhere, Message, Producer, PushConsumer, SimpleConsumer
from orbitmq.client.message import ReceivedMessage
from orbitmq.codes import PullFlag, ResponseCode
from orbitmq.kernel.layout import UNIT
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.record.codec import decode_records
from orbitmq.requests import RequestCode
from orbitmq.testing import run_broker
from orbitmq.testing.run_broker import RunningBroker
from orbitmq.transport.client import RpcClient

pytestmark = pytest.mark.slow

TOPIC = "old"
COUNT = 40
BAD = 5
SEGMENT_BYTES = 64 * 1024
OPTIONS = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
WHOLE = [number for number in range(COUNT) if number != BAD]
DAMAGES = {"body": WHOLE, "magic": WHOLE, "unit": list(range(COUNT)), "unit and body": WHOLE}


def text(number: int) -> str:
    return f"amount {number:05d} " + "x" * 4000


async def _fill(broker: RunningBroker) -> None:
    async with Producer("writers", broker.name_server) as producer:
        for number in range(COUNT):
            await producer.send(Message(TOPIC, text(number)))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x04
    path.write_bytes(content)


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[int]]:
    """Returns the directory of a stopped broker, and which messages of its only queue are intact."""
    with run_broker(data=tmp_path, **OPTIONS) as broker:
        broker.create_topic(TOPIC, queue_count=1)
        run("asyncio", lambda: _fill(broker))
    rot(tmp_path / "store", TOPIC, request.param)
    return tmp_path, DAMAGES[request.param]


def rot(store: Path, topic: str, damage: str) -> None:
    """Flips bits of message ``BAD`` of queue 0."""
    queue = next((store / "consumequeue" / topic / "0").iterdir())
    log_offset, _, _ = UNIT.unpack_from(queue.read_bytes(), BAD * UNIT.size)
    segment = store / "commitlog" / f"{log_offset - log_offset % SEGMENT_BYTES:020d}"
    assert log_offset < SEGMENT_BYTES, "an old segment: a start reads the newest"
    if "body" in damage:
        flip(segment, log_offset % SEGMENT_BYTES + 100)
    if damage == "magic":
        flip(segment, log_offset % SEGMENT_BYTES + 7)
    if "unit" in damage:
        flip(queue, BAD * UNIT.size + 6)


async def pull_all(
    address: str, topic: str = TOPIC, queue_id: int = 0, end: int = COUNT
) -> list[tuple[int, str]]:
    """Returns what a client gets that decodes whole responses and continues at ``nextBeginOffset``, like official
    ones.
    """
    client = RpcClient()
    found: list[tuple[int, str]] = []
    offset, pulls = 0, 0
    try:
        while offset < end:
            fields = {
                "consumerGroup": "TOOLS_CONSUMER",
                "topic": topic,
                "queueId": str(queue_id),
                "queueOffset": str(offset),
                "maxMsgNums": "8",
                "sysFlag": str(int(PullFlag.SUBSCRIPTION)),
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            }
            answer = await client.call(address, RequestCode.PULL_MESSAGE, ext=fields)
            found += [(record.queue_offset, record.body.decode()) for record in decode_records(answer.body)]
            next_offset = int(answer.ext_fields["nextBeginOffset"])
            assert next_offset > offset, answer.ext_fields
            offset, pulls = next_offset, pulls + 1
    finally:
        await client.close()
    assert pulls < COUNT
    return found


def test_pull_of_official_clients_passes_the_damage(
    damaged: tuple[Path, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    directory, whole = damaged
    with run_broker(
        data=directory, **OPTIONS, metricsExporterType="PROM", metricsPromExporterPort=0
    ) as broker:
        for _ in range(2):
            assert asyncio.run(pull_all(broker.address)) == [(number, text(number)) for number in whole]
        with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("integrity")]
    assert len(lines) == 1, lines
    assert f"topic={TOPIC} queue_id=0 queue_offset={BAD} " in lines[0]
    repaired = int(whole == list(range(COUNT)))
    for name, value in (("damaged_messages", 1 - repaired), ("repaired_queue_units", repaired)):
        assert re.search(rf"^orbitmq_{name}_total\S* {value}\b", page, re.MULTILINE), page


def test_push_consumer_gets_all_whole_messages(damaged: tuple[Path, list[int]]) -> None:
    directory, whole = damaged
    found: list[str] = []

    async def scenario(broker: RunningBroker) -> None:
        consumer = PushConsumer("pushed", broker.name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)

        async def take(message: ReceivedMessage) -> None:
            found.append(message.text())

        consumer.subscribe(TOPIC, handler=take)
        async with consumer:
            await until(lambda: len(found) == len(whole), lambda: f"{len(found)} messages")
        assert consumer.damaged_messages == 0, "the broker sends none"

    with run_broker(data=directory, **OPTIONS) as broker:
        run("asyncio", lambda: scenario(broker))
    assert sorted(found) == [text(number) for number in whole]


@pytest.mark.parametrize("at_once", [1, 16])
def test_pops_get_all_whole_messages(damaged: tuple[Path, list[int]], at_once: int) -> None:
    directory, whole = damaged
    found: list[str] = []

    async def scenario(broker: RunningBroker) -> None:
        consumer = SimpleConsumer("popped", broker.name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe(TOPIC)
        async with consumer, asyncio.timeout(30):
            while len(found) < len(whole):
                for message in await consumer.receive(at_once):
                    found.append(message.text())
                    await consumer.ack(message)
        assert consumer.damaged_messages == 0, "the broker sends none"

    with run_broker(data=directory, **OPTIONS) as broker:
        run("asyncio", lambda: scenario(broker))
    assert sorted(found) == [text(number) for number in whole]


def test_clients_of_the_proxy_get_all_whole_messages(damaged: tuple[Path, list[int]]) -> None:
    directory, whole = damaged
    found: list[str] = []
    with local_stack(directory, {}, **OPTIONS) as stack, grpc.insecure_channel(stack.endpoint) as channel:
        stream = _consumer(channel, "proxied", TOPIC, pb.SIMPLE_CONSUMER)
        for _ in range(COUNT):
            if len(found) < len(whole):
                found += [each.body.decode() for each in _receive(channel, "proxied", TOPIC, renew=False)]
        stream.close()
    assert sorted(found) == [text(number) for number in whole]


@on_both_loops
async def test_slave_refuses_a_damaged_record_and_acknowledges_nothing_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = make_broker(tmp_path / "master")
    async with master:
        put(master, 6_000, body=b"x" * 200)
        offset = master.store.log_offset_at("T", 0, 700)
    path = tmp_path / "master" / "commitlog" / f"{0:020d}"
    flip(path, offset + 120)
    master = make_broker(tmp_path / "master", BrokerRole.SYNC_MASTER, slave_timeout_ms=200)
    slave = make_broker(tmp_path / "slave", BrokerRole.SLAVE, 1)
    async with master, slave:
        introduce(slave, master)
        # Like a new slave whose operator wants the whole log: it begins with the first segment.
        slave.store.append_raw(0, bytes(master.store.log_range(0, 1000 * 100)))
        await until(lambda: slave.store.integrity.refused_count > 1, "a second refusal")
        assert slave.store.max_log_offset == offset
        put(master, 1)
        assert await gate_code(master) in (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
        assert f"log offset {offset}: body CRC" in caplog.text


@on_both_loops
async def test_slave_serves_no_damaged_message(tmp_path: Path) -> None:
    slave = make_broker(tmp_path / "slave")
    async with slave:
        put(slave, 8_000, topic="T", body=b"x" * 200)
        offset = slave.store.log_offset_at("T", 0, BAD)
    flip(tmp_path / "slave" / "commitlog" / f"{0:020d}", offset + 120)
    slave = make_broker(tmp_path / "slave", BrokerRole.SLAVE, 1, slave_read_enabled=True)
    async with slave:
        results = [slave.store.read("T", 0, at, 1) for at in range(8)]
    assert [result.count for result in results] == [0 if at == BAD else 1 for at in range(8)]
