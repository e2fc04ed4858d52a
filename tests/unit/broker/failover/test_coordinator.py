"""Which candidate is elected when there is no master, with an etcd in memory and a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.sim.loop import SimLoop

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.failover import parts
from orbitmq.broker.failover.coordinator import Failover
from orbitmq.broker.failover.etcd import Compare, KeyValue, Put
from orbitmq.broker.failover.state import (
    Acknowledged,
    Beginning,
    GroupState,
    Member,
    StateError,
)
from orbitmq.errors import ServerError
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.types import FlushMode
from orbitmq.testing.faulty_fs import FaultyFileSystem

PREFIX = "/orbitmq/failover/g/"
LOG_END = 1_000
REVISION = 7


class Etcd:
    """The keys of one group. Writes are recorded; leases do not expire."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        state = GroupState(1, 3, [1, 2, 3], [Beginning(1, 0)])
        self.keys = {"state": KeyValue("", msgspec.json.encode(state), 1, REVISION, 0)}

    def acknowledge(self, log_offset: int) -> None:
        value = msgspec.json.encode(Acknowledged(1, log_offset))
        self.keys["acknowledged"] = KeyValue("", value, 1, 1, 0)

    @property
    def state(self) -> GroupState:
        return msgspec.json.decode(self.keys["state"].value, type=GroupState)

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

    async def transact(self, _compares: Sequence[Compare], puts: Sequence[Put]) -> bool:
        for put in puts:
            assert put.value is not None
            await self.put(put.key, put.value, put.lease)
        return True


class Log:
    """The part of a store that a candidate uses."""

    flush_mode = FlushMode.ASYNC
    confirm_offset = 0

    def __init__(self, log_end: int, *, is_clean: bool) -> None:
        self.max_log_offset = log_end
        self.recovery = SimpleNamespace(clean=is_clean)

    def limit_reads(self, log_offset: int) -> None:
        self.confirm_offset = log_offset

    def truncate(self, log_offset: int) -> None:
        self.max_log_offset = log_offset


async def frozen() -> None:
    return


def candidate(
    monkeypatch: pytest.MonkeyPatch, *, in_doubt: bool = False, log_end: int = LOG_END, **options: Any
) -> tuple[Failover, Etcd]:
    """Returns member 3, whose log ends at ``log_end``. ``in_doubt``: its machine lost power under ASYNC_FLUSH."""
    etcd = Etcd()
    monkeypatch.setattr(parts, "EtcdClient", lambda *_, **__: etcd)
    file = SafeFile(FaultyFileSystem(), "/failover.json")
    file.save(b'{"epoch": 1, "exposed": "boot before this one"}')
    roles: Any = SimpleNamespace(address="a", ha_address="h", freeze=frozen)
    store: Any = Log(log_end, is_clean=not in_doubt)
    config = BrokerConfig(
        failover_enabled=True, broker_id=3, failover_group="g", etcd_endpoints="http://e:1", **options
    )
    gate: Any = SimpleNamespace()
    events = BrokerEvents()
    group = parts.FailoverParts.of(config, store, file, events)
    return Failover(config, store, group, roles, gate, events), etcd


async def stand(failover: Failover, etcd: Etcd, seconds: float) -> bool:
    """Returns whether it is elected within that time, looking as often as it does."""
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
    """The log ends they published at their start do not show what they have now."""

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


@pytest.mark.parametrize("why", ["power cut", "shorter than what was acknowledged"])
def test_a_log_in_doubt_is_elected_only_when_the_whole_set_is_back_without_a_longer_one(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    async def test() -> None:
        if why == "power cut":
            failover, etcd = candidate(monkeypatch, in_doubt=True)
        else:
            failover, etcd = candidate(monkeypatch)
            etcd.acknowledge(LOG_END + 1)
        etcd.tell(1, LOG_END - 1, REVISION)
        assert not await stand(failover, etcd, 30.0), "member 2 may have what is missing"
        assert failover.ineligible
        etcd.tell(2, LOG_END + 1, REVISION - 1)
        assert not await stand(failover, etcd, 5.0), "member 2 has not told in this vacancy"
        etcd.tell(2, LOG_END + 1, REVISION)
        assert not await stand(failover, etcd, 5.0), "member 2 has more"
        etcd.tell(2, LOG_END - 1, REVISION)
        assert await stand(failover, etcd, 0.5)
        assert etcd.state.history[-1].gave_up == (0 if why == "power cut" else LOG_END + 1)

    on_virtual_clock(test)


def test_a_member_with_an_emptied_store_is_not_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        failover, etcd = candidate(monkeypatch, in_doubt=True)
        etcd.tell(1, LOG_END - 1, REVISION)
        emptied = Member(2, "", "", 0, 0, REVISION)
        etcd.keys["members/2"] = KeyValue("", msgspec.json.encode(emptied), 1, 1, 0)
        assert not await stand(failover, etcd, 30.0)

    on_virtual_clock(test)


def test_a_log_that_is_not_in_doubt_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        failover, etcd = candidate(monkeypatch)
        etcd.acknowledge(LOG_END)
        assert await stand(failover, etcd, 4.0)
        assert etcd.state.history[-1] == Beginning(2, LOG_END)

    on_virtual_clock(test)


def test_acknowledged_bytes_that_an_election_gave_up_are_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Member 3 returns with them and keeps them until an operator allows it to truncate them."""

    def given_up(etcd: Etcd) -> None:
        history = [Beginning(1, 0), Beginning(2, LOG_END - 400, LOG_END - 100)]
        state = GroupState(2, 1, [1, 3], history)
        etcd.keys["state"] = KeyValue("", msgspec.json.encode(state), 1, REVISION, 0)

    async def test() -> None:
        failover, etcd = candidate(monkeypatch)
        given_up(etcd)
        with pytest.raises(StateError, match=r"from offset 600 to 900, .* haTruncateSlave=true"):
            await failover.look()
        assert failover._store.max_log_offset == LOG_END
        failover, etcd = candidate(monkeypatch, cut_differing_log=True)
        given_up(etcd)
        await failover.look()
        assert failover._store.max_log_offset == LOG_END - 400

    on_virtual_clock(test)


def test_what_this_process_knows_to_be_acknowledged_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        failover, etcd = candidate(monkeypatch)
        state = GroupState(2, 1, [1, 3], [Beginning(1, 0), Beginning(2, LOG_END - 400)])
        etcd.keys["state"] = KeyValue("", msgspec.json.encode(state), 1, REVISION, 0)
        failover._store.limit_reads(LOG_END - 399)
        with pytest.raises(StateError, match=r"from offset 600 to 601, "):
            await failover.look()
        failover._store.limit_reads(LOG_END - 400)
        await failover.look()
        assert failover._store.max_log_offset == LOG_END - 400

    on_virtual_clock(test)


def test_an_operator_elects_a_member_despite_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        failover, etcd = candidate(monkeypatch, in_doubt=True)
        etcd.acknowledge(LOG_END + 50)
        assert not await stand(failover, etcd, 30.0)
        with pytest.raises(ServerError, match=r"50 bytes or more .* members \[1, 2\] .* --acceptLoss"):
            await failover.change_role(BrokerRole.SYNC_MASTER, 0)
        failover._accepts_loss = True
        assert await stand(failover, etcd, 0.5)
        assert etcd.state.in_sync == [3]
        assert etcd.state.history[-1] == Beginning(2, LOG_END, 1 << 62), "more than etcd knows of may be lost"
        told = msgspec.json.decode(etcd.keys["acknowledged"].value, type=Acknowledged)
        assert told == Acknowledged(2, LOG_END), "what is acknowledged from now on is counted from there"

    on_virtual_clock(test)
