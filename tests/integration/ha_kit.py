"""Brokers of one group in this process, and the helpers of the replication tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import until_async

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.store.types import NewMessage
from orbitmq.transport.client import RpcClient
from orbitmq.wire import javajson
from orbitmq.wire.frame import Frame

HOST = "127.0.0.1"
SEGMENT_BYTES = 1024 * 1024
BORN_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"


def make_broker(
    root: Path, role: BrokerRole = BrokerRole.ASYNC_MASTER, broker_id: int = 0, **options: Any
) -> Broker:
    """A broker on free ports with small log segments; options by the names of ``BrokerConfig``."""
    config = BrokerConfig(
        role=role,
        broker_id=broker_id,
        public_host=HOST,
        ha_public_host=HOST,
        bind_host=HOST,
        listen_port=0,
        **{"metadata_sync_interval_ms": 200, **options},
    )
    store = StoreConfig(root=str(root), segment_bytes=SEGMENT_BYTES, index_slots=1000, index_entries=50_000)
    return Broker(config, store)


@asynccontextmanager
async def pair(
    root: Path, *, role: BrokerRole = BrokerRole.ASYNC_MASTER, **options: Any
) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master and a slave that follows it, without a name server."""
    async with (
        make_broker(root / "master", role, **options) as master,
        make_broker(root / "slave", BrokerRole.SLAVE, 1, **options) as slave,
    ):
        introduce(slave, master)
        # Before the first message is in the log: a new slave would be sent only the newest segment.
        await until(lambda: bool(master.roles.replicas.status()), "the connection")
        await until(lambda: master.roles.replicas.links[0].next_offset == 0, "the first report")
        yield master, slave


def introduce(slave: Broker, master: Broker) -> None:
    """Tells a slave its master's addresses, like a name server."""
    slave.roles.master_announced(master.address, master.ha_address)


def put(broker: Broker, count: int, *, topic: str = "T", body: bytes = b"x" * 100, first: int = 0) -> None:
    """Appends messages like the send handler: in bulk, over four queues."""
    for start in range(first, first + count, 32):
        broker.store.append_batch(
            [
                NewMessage(topic, number % 4, b"%d " % number + body, b"TAGS\x01a\x02", number, BORN_HOST)
                for number in range(start, min(start + 32, first + count))
            ]
        )


until = until_async


async def gate_code(broker: Broker) -> int:
    """Returns the code that a send would be answered with now if it ended with the log."""
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    broker.gate.wait(broker.store.max_log_offset, told.set_result)
    return await told


def caught_up(master: Broker, slave: Broker) -> bool:
    return slave.store.max_log_offset == master.store.max_log_offset


def log_bytes(broker: Broker, start: int = 0) -> bytes:
    """Returns the raw log from an offset on."""
    store = broker.store
    pieces: list[bytes] = []
    at = max(start, store.min_log_offset)
    while piece := bytes(store.log_range(at, 1 << 20)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def assert_equal_logs(master: Broker, slave: Broker) -> None:
    """Checks that the logs are equal byte for byte, and that every queue has the same messages."""
    start = max(master.store.min_log_offset, slave.store.min_log_offset)
    assert slave.store.max_log_offset == master.store.max_log_offset
    assert log_bytes(master, start) == log_bytes(slave, start)
    for topic in master.store.topics():
        for queue_id in master.store.queues(topic):
            end = master.store.max_offset(topic, queue_id)
            assert slave.store.max_offset(topic, queue_id) == end
            first = slave.store.min_offset(topic, queue_id)
            assert slave.store.units(topic, queue_id, first, end) == master.store.units(
                topic, queue_id, first, end
            )


def config_file(broker: Broker, name: str) -> Any:
    """Returns a parsed metadata file; Apache writes integer keys without quotes, and so do we."""
    path = Path(broker.store_config.root) / "config" / name
    return javajson.loads(path.read_bytes()) if path.exists() else None


@asynccontextmanager
async def rpc() -> AsyncIterator[RpcClient]:
    client = RpcClient()
    try:
        yield client
    finally:
        await client.close()


async def ask(client: RpcClient, broker: Broker, code: int, body: bytes = b"") -> Frame:
    return await client.call(broker.address, code, body=body, timeout_s=5)


async def ha_status(client: RpcClient, broker: Broker) -> Any:
    answer = await ask(client, broker, RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == 0, answer.remark
    return json.loads(bytes(answer.body))


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    async with NameServer(NameServerConfig(bind_address=HOST, listen_port=0)) as server:
        yield server
