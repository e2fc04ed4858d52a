"""The servers of ``orbitmq demo``: a name server, a master and a slave, all in this process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.examples.shop import LEVELS
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore

__all__ = ["Cluster", "Replication", "run_cluster"]

_LOOPBACK: Final = "127.0.0.1"
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_FOLLOWS_S: Final = 20.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Replication:
    """The result of comparing the master's log with the slave's."""

    master_bytes: int
    slave_bytes: int
    master_digest: str
    slave_digest: str

    def differences(self) -> list[str]:
        if self.master_bytes != self.slave_bytes:
            return [f"the slave has {self.slave_bytes} bytes of the master's log of {self.master_bytes}"]
        if self.master_digest != self.slave_digest:
            return [
                f"the logs differ: sha256 {self.master_digest[:16]} at the master, "
                f"{self.slave_digest[:16]} at the slave"
            ]
        return []


@dataclass(frozen=True, slots=True)
class Cluster:
    """The running servers."""

    name_server: str
    master: Broker
    slave: Broker

    async def replication(self) -> Replication:
        """Wait, up to a limit, until the slave has replicated everything, and compare the two logs byte for byte."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FOLLOWS_S):
                while self.slave.store.max_log_offset < self.master.store.max_log_offset:  # noqa: ASYNC110 - nothing tells of it; looked at within a time limit
                    await asyncio.sleep(_POLL_S)
        # What the slave does not have yet is reported separately; compare the common part.
        end = self.master.store.max_log_offset
        return Replication(
            end,
            self.slave.store.max_log_offset,
            _digest(self.master.store, end),
            _digest(self.slave.store, end),
        )


def _digest(store: MessageStore, end: int) -> str:
    digest = hashlib.sha256()
    at = 0
    while at < end:
        piece = store.log_range(at, min(1 << 20, end - at))
        if not piece:
            break
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


@contextlib.asynccontextmanager
async def run_cluster(directory: Path) -> AsyncIterator[Cluster]:
    """Run all three servers until the block ends, with their data below ``directory``."""
    name_server = NameServer(
        NameServerConfig(listen_port=0, bind_address=_LOOPBACK, kv_config_path="", config_store_path="")
    )
    async with (
        name_server,
        _broker(directory / "master", name_server.address, BrokerRole.ASYNC_MASTER, 0) as master,
        _broker(directory / "slave", name_server.address, BrokerRole.SLAVE, 1) as slave,
    ):
        # A slave that connects later gets only the newest part of the log, so wait for it before the first byte.
        async with asyncio.timeout(_FOLLOWS_S):
            while not any(link.next_offset == 0 for link in master.roles.replicas.links):  # noqa: ASYNC110 - nothing tells of it; looked at within a time limit
                await asyncio.sleep(_POLL_S)
        yield Cluster(name_server.address, master, slave)


def _broker(directory: Path, name_server: str, role: BrokerRole, broker_id: int) -> Broker:
    config = BrokerConfig(
        role=role,
        broker_id=broker_id,
        listen_port=0,
        bind_host=_LOOPBACK,
        public_host=_LOOPBACK,
        ha_public_host=_LOOPBACK,
        name_servers=name_server,
        transaction_timeout_ms=1_000,
        transaction_check_interval_ms=1_000,
    )
    store = StoreConfig(
        root=str(directory),
        delay_levels=LEVELS,
        segment_bytes=_SEGMENT_BYTES,
        index_slots=50_000,
        index_entries=200_000,
    )
    return Broker(config, store)
