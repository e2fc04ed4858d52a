"""Who is elected when the office is vacant, with an etcd in memory and a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.sim.loop import SimLoop

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.failover import coordinator
from orbitmq.broker.failover.coordinator import Failover
from orbitmq.broker.failover.etcd import Compare, KeyValue, Put
from orbitmq.broker.failover.state import Beginning, GroupState, Member
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.testing.faulty_fs import FaultyFileSystem

PREFIX = "/orbitmq/failover/g/"
LOG_END = 1_000
REVISION = 7


class Etcd:
    """The keys of one group. What is written counts; leases do not end."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        state = GroupState(1, 3, [1, 2, 3], [Beginning(1, 0)])
        self.keys = {"state": KeyValue("", msgspec.json.encode(state), 1, REVISION, 0)}

    def tell(self, member: int, log_end: int, vacancy: int = -1) -> None:
        told = Member(member, "", "", 1, log_end, vacancy)
        self.keys[f"members/{member}"] = KeyValue("", msgspec.json.encode(told), 1, 1, 0)

    def told(self, member: int) -> Member:
        return msgspec.json.decode(self.keys[f"members/{member}"].value, type=Member)

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        return 11, ttl_s

    async def keep_alive(self, _lease: int) -> int:
        return 6

    async def under(self, prefix: str) -> list[KeyValue]:
        return [msgspec.structs.replace(found, key=prefix + name) for name, found in self.keys.items()]

    async def put(self, key: str, value: bytes, lease: int) -> None:
        self.keys[key.removeprefix(PREFIX)] = KeyValue("", value, 1, 1, lease)

    async def transact(self, _compares: tuple[Compare, ...], puts: tuple[Put, ...]) -> bool:
        for put in puts:
            assert put.value is not None
            await self.put(put.key, put.value, put.lease)
        return True


async def frozen() -> None:
    return


def candidate(monkeypatch: pytest.MonkeyPatch) -> tuple[Failover, Etcd]:
    """Member 3, whose log ends at ``LOG_END``."""
    etcd = Etcd()
    monkeypatch.setattr(coordinator, "EtcdClient", lambda *_, **__: etcd)
    file = SafeFile(FaultyFileSystem(), "/failover.json")
    file.save(b'{"epoch": 1}')
    acks = SimpleNamespace(in_sync=None)
    roles: Any = SimpleNamespace(
        address="a",
        ha_address="h",
        freeze=frozen,
        replicas=SimpleNamespace(acks=acks),
        follower=SimpleNamespace(),
    )
    store: Any = SimpleNamespace(max_log_offset=LOG_END)
    config = BrokerConfig(failover_enabled=True, broker_id=3, failover_group="g", etcd_endpoints="http://e:1")
    gate: Any = SimpleNamespace()
    in_sync: Any = SimpleNamespace(told_safe=None)
    failover = Failover(
        config=config,
        store=store,
        roles=roles,
        gate=gate,
        in_sync=in_sync,
        file=file,
        on_office=lambda _epoch: None,
    )
    return failover, etcd


async def stand(failover: Failover, etcd: Etcd, seconds: float) -> bool:
    """Whether it is elected within that time, looking as often as it does."""
    for _ in range(int(seconds * 10)):
        await failover.look()
        if "master" in etcd.keys:
            return True
        await asyncio.sleep(0.1)
    return False


def on_virtual_clock(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=lambda: SimLoop(0)) as runner:
        runner.run(test())


def test_a_candidate_waits_until_the_others_have_told_how_long_their_logs_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they told at their start says nothing about what they have now."""

    async def test() -> None:
        failover, etcd = candidate(monkeypatch)
        for member in (1, 2):
            etcd.tell(member, 0)
        assert not await stand(failover, etcd, 1.5)
        assert (etcd.told(3).log_end, etcd.told(3).vacancy) == (LOG_END, REVISION)
        etcd.tell(1, LOG_END + 260, REVISION)
        etcd.tell(2, LOG_END - 1, REVISION)
        assert not await stand(failover, etcd, 0.3), "member 1 has more and goes first"

    on_virtual_clock(test)


def test_the_longest_log_goes_at_once_when_all_have_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        failover, etcd = candidate(monkeypatch)
        for member in (1, 2):
            etcd.tell(member, LOG_END - member, REVISION)
        assert await stand(failover, etcd, 0.3)

    on_virtual_clock(test)


def test_members_that_are_silent_or_told_of_an_older_vacancy_are_not_waited_for_longer_than_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        failover, etcd = candidate(monkeypatch)
        etcd.tell(1, LOG_END, REVISION - 1)
        etcd.tell(2, 0)
        assert not await stand(failover, etcd, 1.8)
        assert await stand(failover, etcd, 1.5)

    on_virtual_clock(test)
