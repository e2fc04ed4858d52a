"""Sizes of messages, read from the consume queues after they were stored."""

from __future__ import annotations

from typing import Any

from tests.unit.store.support import message, open_store

from orbitmq.broker.statistics.metrics import MessageSizes
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.faulty_fs import FaultyFileSystem


def put(store: MessageStore, stats: BrokerStats, count: int, **fields: Any) -> int:
    """Stores messages and counts them like the broker; returns their size."""
    total = 0
    for number in range(count):
        one = message(number, **fields)
        size = store.append(one).size
        stats.put(one.topic, one.queue_id, 1, size)
        total += size
    return total


def test_sizes_of_all_messages_since_the_start_are_counted_once() -> None:
    store, stats = open_store(FaultyFileSystem()), BrokerStats()
    put(store, stats, 3)  # earlier ones: already counted elsewhere
    stats = BrokerStats()
    sizes = MessageSizes(store, stats)
    small = put(store, stats, 21, body=b"x")  # across files of eight units
    small += put(store, stats, 2, body=b"x", queue_id=1)
    large = put(store, stats, 5, body=b"y" * 1_500)
    sizes.look()
    sizes.look()
    histogram = sizes.by_topic["TopicA"]
    assert histogram.counts == [23, 5, 0, 0, 0, 0, 0]
    assert histogram.sum == small + large
    more = put(store, stats, 1, body=b"x")
    sizes.look()
    assert histogram.counts[0] == 24
    assert histogram.sum == small + large + more
    store.close()


def test_deleted_topic_is_forgotten_and_counts_from_its_new_beginning() -> None:
    store, stats = open_store(FaultyFileSystem()), BrokerStats()
    sizes = MessageSizes(store, stats)
    put(store, stats, 4)
    put(store, stats, 2, topic="TopicB")
    sizes.look()
    store.delete_topic("TopicA")
    stats.forget_topic("TopicA")
    sizes.look()
    assert set(sizes.by_topic) == {"TopicB"}
    put(store, stats, 3)
    sizes.look()
    assert sum(sizes.by_topic["TopicA"].counts) == 3
    store.close()
