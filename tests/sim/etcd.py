"""Simulates etcd as failover uses it: one linearizable store with leases, behind the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.sim.loop import PROCESS, SimLoop

from orbitmq.broker.failover.etcd import Compare, EtcdError, KeyValue, Put

HOST = "10.0.0.9"


class SimEtcd:
    """The store. Leases expire in simulated time."""

    def __init__(self, loop: SimLoop, network: Any) -> None:
        self.loop = loop
        self.network = network
        self.revision = 1
        self.keys: dict[str, KeyValue] = {}
        self.leases: dict[int, tuple[float, int]] = {}
        self._next_lease = 100
        self.slow_s = 0.0
        """Longest additional time of each half of a call."""
        self.is_down = False

    def expire(self) -> None:
        for lease, (until, _) in list(self.leases.items()):
            if until <= self.loop.now:
                self.end_lease(lease)

    def end_lease(self, lease: int) -> None:
        self.leases.pop(lease, None)
        for key in [key for key, entry in self.keys.items() if lease and entry.lease == lease]:
            del self.keys[key]
            self.revision += 1

    def grant(self, ttl_s: int) -> tuple[int, int]:
        self._next_lease += 1
        self.leases[self._next_lease] = (self.loop.now + ttl_s, ttl_s)
        return self._next_lease, ttl_s

    def keep_alive(self, lease: int) -> int:
        found = self.leases.get(lease)
        if found is None:
            return 0
        self.leases[lease] = (self.loop.now + found[1], found[1])
        return found[1]

    def transact(self, compares: Sequence[Compare], puts: Sequence[Put]) -> bool:
        for compare in compares:
            entry = self.keys.get(compare.key)
            seen = 0 if entry is None else entry.create_revision if compare.created else entry.mod_revision
            if seen != compare.revision:
                return False
        if any(put.lease and put.lease not in self.leases for put in puts):
            raise EtcdError("lease not found")
        self.revision += 1
        for put in puts:
            if put.value is None:
                self.keys.pop(put.key, None)
                continue
            before = self.keys.get(put.key)
            created = self.revision if before is None else before.create_revision
            self.keys[put.key] = KeyValue(put.key, put.value, created, self.revision, put.lease)
        return True


class SimEtcdClient:
    """The client interface used by the coordinator."""

    def __init__(self, store: SimEtcd, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s

    async def _ask(self, work: Any) -> Any:
        """Sends a call, which may fail before or after it took effect."""
        network, loop = self._store.network, self._store.loop
        process = PROCESS.get()
        assert process is not None

        store, host = self._store, process.host

        def delay() -> float:
            usual: float = network.delay()
            return usual + (loop.chance.uniform(0.0, store.slow_s) if store.slow_s else 0.0)

        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.sleep(delay())
                if store.is_down or network.is_cut(host, HOST):
                    await loop.create_future()
                store.expire()
                result = work()
                await asyncio.sleep(delay())
                if network.is_cut(HOST, host):
                    await loop.create_future()
                return result
        except TimeoutError:
            raise EtcdError("etcd did not answer") from None

    async def close(self) -> None:
        return

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        return await self._ask(lambda: self._store.grant(ttl_s))  # type: ignore[no-any-return]

    async def keep_alive(self, lease: int) -> int:
        return await self._ask(lambda: self._store.keep_alive(lease))  # type: ignore[no-any-return]

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: self._store.end_lease(lease))

    async def under(self, prefix: str) -> list[KeyValue]:
        return await self._ask(  # type: ignore[no-any-return]
            lambda: [self._store.keys[key] for key in sorted(self._store.keys) if key.startswith(prefix)]
        )

    async def put(self, key: str, value: bytes, lease: int = 0) -> None:
        await self.transact((), (Put(key, value, lease),))

    async def transact(self, compares: Sequence[Compare], puts: Sequence[Put]) -> bool:
        return await self._ask(lambda: self._store.transact(compares, puts))  # type: ignore[no-any-return]
