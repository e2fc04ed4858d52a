"""The in-sync set of a master: what is safe, which readers see it, which members join and which leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.failover.in_sync import InSyncSet
from orbitmq.broker.replication.master import SlaveLink
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode


@dataclass
class Log:
    """The part of a store that is used."""

    max_log_offset: int = 0
    held_back: int | None = None
    flush_mode: FlushMode = FlushMode.ASYNC
    flushed_offset: int = 0
    waiting: list[tuple[int, Callable[[bool], None]]] = field(default_factory=list)

    def when_flushed(self, log_end: int, callback: Callable[[bool], None]) -> None:
        self.waiting.append((log_end, callback))

    def flush(self, *, done: bool = True) -> None:
        if done:
            self.flushed_offset = self.max_log_offset
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback(done)

    @property
    def confirm_offset(self) -> int:
        return self.max_log_offset if self.held_back is None else self.held_back

    def limit_reads(self, log_offset: int | None) -> None:
        self.held_back = log_offset


@dataclass
class Link:
    member: int
    acknowledged: int


@dataclass
class World:
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = Log()
        self.links: list[Link] = []
        self.woken: list[tuple[str, int]] = []
        events = BrokerEvents()
        events.readable.of_any.append(lambda topic, queue_id: self.woken.append((topic, queue_id)))
        self.arrived = events.arrived
        config = BrokerConfig(failover_enabled=True, broker_id=1, slave_timeout_ms=3_000, **self.options)
        self.set = InSyncSet(
            config,
            cast(MessageStore, self.log),
            cast(list[SlaveLink], self.links),
            events,
        )

    def begin(self, *members: int) -> None:
        self.set.begin(members, self.log.max_log_offset, 0.0)

    def write(self, size: int = 100) -> None:
        self.log.max_log_offset += size
        self.arrived("T", 0)


def test_master_alone_is_its_own_set() -> None:
    world = World()
    world.begin(1)
    world.write()
    assert world.set.safe_end() == world.log.confirm_offset == 100
    assert world.woken == [("T", 0)]


def test_safe_is_what_the_slowest_member_has_and_strangers_do_not_count() -> None:
    world = World()
    world.begin(1, 2, 3)
    assert world.set.safe_end() == -1, "two members are missing"
    world.write()
    world.links[:] = [Link(2, 80), Link(3, 60), Link(0, 100)]
    assert world.set.safe_end() == 60
    world.links.append(Link(3, 20))  # an old connection of the same member
    assert world.set.safe_end() == 60
    world.links[:] = [Link(2, 100), Link(0, 100)]
    assert world.set.safe_end() == -1


def test_consumers_wait_for_the_set_and_are_woken_under_load() -> None:
    world = World()
    world.begin(1, 2)
    world.links[:] = [Link(2, 0)]
    world.write()
    world.write()
    assert not world.woken
    world.links[0].acknowledged = 100
    world.set.progressed()
    assert world.log.confirm_offset == 100
    assert world.woken == [("T", 0)], "although the last message is not safe yet"
    world.links[0].acknowledged = 200
    world.set.progressed()
    assert world.woken == [("T", 0)] * 2
    world.links[0].acknowledged = 0
    world.set.progressed()
    assert world.log.confirm_offset == 200, "what was read stays read"
    world.write()
    world.set.end()
    assert world.log.confirm_offset == 200, "the next master may not have the rest"
    assert len(world.woken) == 2
    world.set.safe_end_announced(250)
    assert world.log.confirm_offset == 250, "as the next master says"
    assert len(world.woken) == 2
    world.set.safe_end_announced(300)
    world.set.safe_end_announced(10)
    assert world.log.confirm_offset == 300
    assert len(world.woken) == 3


def test_a_slave_shows_what_its_master_says_is_safe_and_a_new_master_goes_on_from_there() -> None:
    world = World()
    world.log.max_log_offset = 100
    assert world.log.confirm_offset == 0, "after a start it is unknown what is safe"
    world.set.safe_end_announced(100)
    world.write()
    assert (world.log.confirm_offset, world.woken) == (100, [])
    world.begin(1, 2)
    assert world.set.safe_end() == -1, "the other member is missing"
    assert world.log.confirm_offset == 100, "what was safe stays so"
    world.set.safe_end_announced(200)
    assert world.log.confirm_offset == 100, "a master decides by itself"
    world.links[:] = [Link(2, 200)]
    world.set.progressed()
    assert (world.log.confirm_offset, world.woken) == (200, [("T", 0)])


def test_under_sync_flush_consumers_read_what_is_also_on_the_masters_disk() -> None:
    """After a power cut of the master, the others may follow it without the bytes it had not flushed."""
    world = World()
    world.log.flush_mode = FlushMode.SYNC
    world.begin(1, 2)
    world.links[:] = [Link(2, 0)]
    world.write()
    world.links[0].acknowledged = 100
    world.set.progressed()
    assert (world.log.confirm_offset, world.woken) == (0, [])
    assert world.set.safe_end() == 100, "sends wait for the disk on their own"
    world.set.progressed()
    assert [end for end, _ in world.log.waiting] == [100], "waited for once"
    world.log.flush(done=False)
    world.set.progressed()
    world.log.flush()
    assert (world.log.confirm_offset, world.woken) == (100, [("T", 0)])


def test_slave_joins_only_after_it_was_waited_for() -> None:
    world = World()
    world.begin(1)
    world.write()
    assert world.set.proposal(1.0) is None
    world.write(50)  # acknowledged by the master alone
    world.links[:] = [Link(2, 100)]  # where the log ended at the last look: near
    assert world.set.proposal(2.0) is None, "it lacks what was acknowledged meanwhile"
    assert world.set.safe_end() == 100, "but from now on nothing is acknowledged without it"
    world.links[0].acknowledged = 149
    assert world.set.proposal(3.0) is None
    world.links[0].acknowledged = 150
    assert world.set.proposal(4.0) == frozenset({1, 2})
    world.set.propose(frozenset({1, 2}))
    world.write()
    assert world.set.safe_end() == 150
    world.set.settle([1, 2], 4.0)
    assert world.set.members == {1, 2}
    assert world.set.proposal(5.0) is None


def test_slave_that_stops_while_it_joins_is_waited_for_no_longer() -> None:
    world = World()
    world.begin(1)
    world.write()
    world.links[:] = [Link(2, 0)]
    assert world.set.proposal(1.0) is None
    assert world.set.safe_end() == 0
    world.write()
    assert world.set.proposal(4.5) is None
    assert world.set.safe_end() == 200
    world.links[0].acknowledged = 200
    world.set.proposal(5.0)
    world.links.clear()
    world.set.proposal(5.1)
    assert world.set.safe_end() == 200


def test_member_leaves_when_it_is_gone_or_lags_too_long() -> None:
    world = World({"not_caught_up_ms": 15_000})
    world.begin(1, 2, 3)
    world.links[:] = [Link(2, 0), Link(3, 0)]
    world.write()
    assert world.set.proposal(1.0) is None
    world.links[:] = [Link(3, 50)]
    assert world.set.proposal(2.9) is None
    assert world.set.proposal(4.1) == frozenset({1, 3}), "no connection for slaveTimeout"
    assert world.set.safe_end() == -1, "etcd has not said so yet"
    world.set.settle([1, 3], 4.1)
    assert world.set.safe_end() == 50
    assert world.set.proposal(14.0) is None
    assert world.set.proposal(16.2) == frozenset({1}), "never at the end for 15 s"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"in_sync_replicas": 3}, 40),
        ({"in_sync_replicas": 2}, 60),
        ({"in_sync_replicas": 2, "all_in_sync_acknowledge": False}, 90),
        ({"in_sync_replicas": 4}, -1),
    ],
)
def test_number_of_copies_asked_for_is_a_bound_of_its_own(options: dict[str, Any], expected: int) -> None:
    world = World(options)
    world.begin(1, 2)
    world.write()
    # 3 follows without being in the set.
    world.links[:] = [Link(2, 60), Link(3, 40 if options["in_sync_replicas"] == 3 else 90)]
    assert world.set.safe_end() == expected
