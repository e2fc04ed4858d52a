"""Locks of orderly consumers."""

from __future__ import annotations

import pytest
from tests.unit.broker.kit import CONFIG

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.errors import InvalidParameter
from orbitmq.model.route import MessageQueue
from orbitmq.testing.manual_clock import ManualClock


def queues(*ids: int, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(broker_name="broker-a", queue_id=number, topic=topic) for number in ids]


def test_a_queue_belongs_to_the_first_who_asks() -> None:
    locks = QueueLocks(CONFIG, ManualClock())
    assert locks.lock("g", "one", queues(0, 1)) == queues(0, 1)
    assert locks.lock("g", "two", queues(1, 2)) == queues(2)
    assert locks.lock("other", "two", queues(1)) == queues(1)


def test_a_lock_expires_a_minute_after_it_was_last_renewed() -> None:
    clock = ManualClock()
    locks = QueueLocks(CONFIG, clock)
    locks.lock("g", "one", queues(0))
    clock.advance(50_000)
    assert locks.lock("g", "one", queues(0)) == queues(0)
    clock.advance(60_000)
    assert locks.any_held("g")
    assert locks.lock("g", "two", queues(0)) == []
    clock.advance(1)
    assert not locks.any_held("g")
    assert locks.lock("g", "two", queues(0)) == queues(0)
    assert locks.lock("g", "one", queues(0)) == []


def test_unlocking_gives_up_only_what_is_held() -> None:
    locks = QueueLocks(CONFIG, ManualClock())
    locks.lock("g", "one", queues(0))
    locks.lock("g", "two", queues(1))
    locks.unlock("g", "one", queues(0, 1))
    locks.unlock("nobody", "one", queues(0))
    assert locks.lock("g", "three", queues(0, 1)) == queues(0)


def test_expiry_leaves_nothing_behind() -> None:
    clock = ManualClock()
    locks = QueueLocks(CONFIG, clock)
    locks.lock("g", "one", queues(0))
    clock.advance(30_000)
    locks.lock("g", "two", queues(1))
    clock.advance(30_001)
    locks.expire()
    assert locks.any_held("g")
    clock.advance(30_000)
    locks.expire()
    assert locks._groups == {}


def test_locks_above_the_limit_are_refused_and_those_held_are_renewed() -> None:
    locks = QueueLocks(BrokerConfig(queue_locks_max=3), ManualClock())
    with pytest.raises(InvalidParameter, match=r"3 queue locks and the limit is 3 \(maxQueueLocks\)"):
        locks.lock("g", "one", queues(*range(10)))
    assert locks.lock("g", "one", queues(2, 1)) == queues(2, 1)
    with pytest.raises(InvalidParameter):
        locks.lock("made-up", "one", queues(0))
    assert list(locks._groups) == ["g"]
    locks.unlock("g", "one", queues(0))
    assert locks.lock("h", "one", queues(0)) == queues(0)
    assert (locks.bound.size, locks.bound.refused) == (3, 2)


def test_expired_locks_make_room() -> None:
    clock = ManualClock()
    locks = QueueLocks(BrokerConfig(queue_locks_max=1), clock)
    locks.lock("g", "one", queues(0))
    clock.advance(60_001)
    locks.expire()
    assert locks.lock("h", "one", queues(0)) == queues(0)
