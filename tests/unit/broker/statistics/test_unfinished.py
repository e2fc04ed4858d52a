"""The unfinished messages of a group, with and without committed offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import World, talking
from tests.unit.broker.kit import channel, subscriptions

from orbitmq.broker.statistics.unfinished import QueueLag, UnfinishedCounter

START_MS = 1_700_000_000_000


class Counted(World):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.popped: dict[tuple[str, str, int], int] = {}
        self.counter = UnfinishedCounter(
            offsets=self.offsets,
            consumers=self.consumers,
            store=self.store,
            popped=lambda topic, group, queue_id: self.popped.get((topic, group, queue_id), 0),
        )

    def member(
        self,
        *topics: str,
        where: str = "CONSUME_FROM_LAST_OFFSET",
        model: str = "CLUSTERING",
        kind: str = "CONSUME_PASSIVELY",
    ) -> None:
        _, connection = talking(1)
        self.consumers.register(
            "g",
            channel(connection, "c1", self.clock.now_ms()),
            consume_type=kind,
            message_model=model,
            from_where=where,
            subscriptions=subscriptions(*topics),
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Counted]:
    world = Counted(tmp_path)
    world.topic("T")
    world.group("g")
    for _ in range(5):
        world.put("T")
        world.clock.advance(1000)
    yield world
    world.store.close()


def test_group_that_committed_nothing_lags_from_where_its_first_pull_started(world: Counted) -> None:
    world.member("T")
    world.offsets.note_pull("g", "T", 0, 2, 4)
    world.offsets.note_pull("g", "T", 0, 4, 5)
    assert world.counter.of("g", "T", 0) == QueueLag(2, 5, 3, START_MS + 2000)


def test_group_that_has_not_pulled_lags_from_where_its_client_would_start(world: Counted) -> None:
    world.member("T", where="CONSUME_FROM_FIRST_OFFSET")
    assert world.counter.of("g", "T", 0).count == 5
    assert world.counter.of("g", "T", 1) == QueueLag(0, 0, 0, 0)


def test_new_group_that_starts_at_the_end_is_told_to_start_at_cached_messages(world: Counted) -> None:
    world.member("T")  # like Apache's broker: the whole queue is in memory
    assert world.counter.of("g", "T", 0).count == 5


def test_committed_offset_counts_and_popped_messages_are_added(world: Counted) -> None:
    world.member("T")
    world.offsets.commit("", "g", "T", 0, 4)
    assert world.counter.of("g", "T", 0) == QueueLag(4, 5, 1, START_MS + 4000)
    world.popped["T", "g", 0] = 3
    assert world.counter.of("g", "T", 0) == QueueLag(4, 5, 4, START_MS + 1000)


def test_first_pull_after_a_commit_does_not_count(world: Counted) -> None:
    world.member("T")
    world.offsets.commit("", "g", "T", 0, 3)
    world.offsets.note_pull("g", "T", 0, 3, 4)
    assert world.offsets.first_pull("g", "T", 0) == -1
    world.offsets.note_pull("g", "T", 1, 0, 0)
    world.offsets.remove_group("g")
    assert world.offsets.first_pull("g", "T", 1) == -1


def test_broadcasting_group_and_pull_consumer_without_offsets_have_no_lag(world: Counted) -> None:
    world.member("T", model="BROADCASTING", where="CONSUME_FROM_FIRST_OFFSET")
    world.offsets.commit("", "g", "T", 0, 1)  # from before it was broadcasting
    assert world.counter.of("g", "T", 0).count == 0
    assert list(world.counter.pairs()) == []


def test_pull_consumer_lags_by_its_committed_offsets_only(world: Counted) -> None:
    world.member("T", kind="CONSUME_ACTIVELY")
    world.offsets.note_pull("g", "T", 0, 0, 1)
    assert world.counter.of("g", "T", 0).count == 0
    world.offsets.commit("", "g", "T", 0, 1)
    assert world.counter.of("g", "T", 0).count == 4


def test_group_without_members_lags_by_its_committed_offsets_only(world: Counted) -> None:
    world.offsets.note_pull("g", "T", 0, 0, 1)
    assert list(world.counter.pairs()) == []
    assert world.counter.of("g", "T", 0).count == 0
    world.offsets.commit("", "g", "T", 0, 1)
    assert list(world.counter.pairs()) == [("g", "T")]
    assert world.counter.of("g", "T", 0).count == 4


def test_retry_topics_are_counted_and_every_pair_is_listed_once(world: Counted) -> None:
    world.topic("%RETRY%g", 1)
    world.put("%RETRY%g")
    world.member("T", "%RETRY%g")
    world.offsets.commit("", "g", "T", 0, 1)
    world.offsets.commit("", "g", "old", 0, 1)  # no longer subscribed
    world.offsets.commit("", "g", "%RETRY%g_T", 0, 0)  # of popping
    assert sorted(world.counter.pairs()) == [("g", "%RETRY%g"), ("g", "%RETRY%g_T"), ("g", "T")]
    assert world.counter.of("g", "%RETRY%g", 0).count == 1


def test_expired_messages_are_not_unfinished(world: Counted) -> None:
    world.offsets.commit("", "g", "T", 0, 99)  # the queue was cut off
    assert world.counter.of("g", "T", 0) == QueueLag(5, 5, 0, 0)
