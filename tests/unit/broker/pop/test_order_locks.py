"""Locks of ordered pops."""

from __future__ import annotations

import pytest
from tests.integration.pop_kit import golden

from orbitmq.broker.pop.order_locks import OrderLocks
from orbitmq.errors import BodyError
from orbitmq.wire import javajson

PLACE = ("T", "G", 0)


def test_lock_blocks_others_until_all_are_acknowledged_or_visible() -> None:
    locks = OrderLocks()
    locks.hand_out(PLACE, "one", 1_000, 500, [4, 5, 6])
    assert locks.blocks(*PLACE, "two", 1_400)
    assert locks.blocks(*PLACE, None, 1_400)
    assert not locks.blocks(*PLACE, "one", 1_400)
    assert not locks.blocks(*PLACE, "two", 1_500)
    assert locks.ack(*PLACE, 5, 1_000, 1_100).commit == 4
    assert locks.ack(*PLACE, 4, 1_000, 1_100).commit == 6
    assert not locks.ack(*PLACE, 9, 1_000, 1_100).known
    assert locks.ack(*PLACE, 6, 999, 1_100).commit == -1  # of an older pop
    last = locks.ack(*PLACE, 6, 1_000, 1_100)
    assert (last.commit, last.free) == (7, True)


def test_message_handed_out_again_counts_unless_the_same_attempt_asks() -> None:
    locks = OrderLocks()
    locks.hand_out(PLACE, "one", 1_000, 500, [4, 5])
    assert locks.hand_out(PLACE, "one", 1_100, 500, [4, 5]).counts == {}
    assert locks.hand_out(PLACE, "two", 2_000, 500, [5, 6]).counts == {5: 1}
    assert locks.hand_out(PLACE, "three", 3_000, 500, [5, 6]).counts == {5: 2, 6: 1}


def test_changed_time_of_one_message_moves_the_end_of_the_lock() -> None:
    locks = OrderLocks()
    lock = locks.hand_out(PLACE, "one", 1_000, 500, [4, 5])
    assert locks.change_visible(PLACE, 4, 1_000, 9_000)
    assert not locks.change_visible(PLACE, 4, 999, 9_000)
    assert lock.blocked_until(1_600) == 9_000
    assert locks.blocks(*PLACE, "two", 8_999)
    assert not locks.blocks(*PLACE, "two", 9_000)


def test_file_of_apache_is_read_and_written_alike() -> None:
    content = golden()["consumerOrderInfo"].encode()
    locks = OrderLocks()
    locks.take(content)
    lock = locks.find("PopOrderB", "G_orderB", 0)
    assert lock is not None
    assert (lock.offsets, lock.counts, lock.attempt_id) == ([2, 3, 4], {2: 2, 3: 1, 4: 1}, "att-4")
    assert javajson.loads(locks.encode()) == javajson.loads(content)
    for bad in (b"[]", b"{", b'{"table":{"a":3}}'):
        with pytest.raises(BodyError):
            OrderLocks().take(bad)


def test_locks_of_gone_topics_and_old_ones_are_dropped() -> None:
    locks = OrderLocks()
    locks.hand_out(PLACE, None, 1_000, 500, [1])
    locks.hand_out(("Other", "G", 0), None, 1_000, 500, [1])
    locks.expire(2_000, lambda topic, _group: topic == "T")
    assert locks.find("Other", "G", 0) is None
    assert locks.find(*PLACE) is not None
    locks.expire(1_000 + 24 * 3_600_000 + 1, lambda _topic, _group: True)
    assert locks.find(*PLACE) is None
