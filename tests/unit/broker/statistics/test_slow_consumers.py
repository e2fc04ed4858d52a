"""Groups that read too far back are disabled, if the operator enables it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import World

from orbitmq.broker.statistics.slow_consumers import SlowConsumers


class Guarded(World):
    def __init__(self, directory: Path, *, wanted: bool) -> None:
        super().__init__(directory, slow_consumers_disabled=wanted, slow_consumer_bytes=1_000)
        self.guard = SlowConsumers(
            config=self.config, offsets=self.offsets, groups=self.groups, store=self.store
        )
        for group in ("near", "far", "done"):
            self.group(group)
        for _ in range(30):
            self.put("T", body=bytes(100))
        self.offsets.note_pull("far", "T", 0, 0, 1)
        self.offsets.note_pull("near", "T", 0, 0, 29)
        self.offsets.note_pull("done", "T", 0, 0, 30)

    def stopped(self) -> list[str]:
        return [name for name, config in self.groups.configs.items() if not config.consume_enable]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Guarded]:
    world = Guarded(tmp_path, wanted=True)
    yield world
    world.store.close()


def test_only_the_group_that_lags_is_stopped(world: Guarded) -> None:
    world.guard.check()
    assert world.stopped() == ["far"]
    world.guard.check()
    assert world.stopped() == ["far"]


def test_group_at_the_end_of_a_quiet_queue_is_not_behind(world: Guarded) -> None:
    for _ in range(30):
        world.put("busy", body=bytes(100))
    assert "done" not in world.guard.lags()


def test_pulls_of_deleted_topics_and_groups_are_passed_over(world: Guarded) -> None:
    world.offsets.note_pull("unknown", "T", 0, 0, 0)
    world.offsets.note_pull("near", "gone", 0, 0, 5)
    world.guard.check()
    assert world.stopped() == ["far"]


def test_nothing_is_stopped_unless_wanted(tmp_path: Path) -> None:
    world = Guarded(tmp_path, wanted=False)
    world.guard.check()
    assert world.stopped() == []
    world.store.close()
