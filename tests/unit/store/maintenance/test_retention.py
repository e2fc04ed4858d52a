"""Which segments are deleted, and when writes are refused."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest

from orbitmq.broker.config import change_option
from orbitmq.errors import ConfigError
from orbitmq.store.config import StoreConfig, delete_hours
from orbitmq.store.maintenance.retention import (
    DiskGuard,
    DiskLevel,
    Retention,
    Watermarks,
    expired_segments,
    is_delete_hour,
)
from orbitmq.store.types import SegmentInfo

HOUR = 3_600_000
NOON = 12 * HOUR  # of the first day of the epoch, UTC
FOUR = 4 * HOUR + 100 * 24 * HOUR


def segments(*modified_ms: int) -> list[SegmentInfo]:
    return [SegmentInfo(i * 1000, 1000, f"/log/{i}", modified) for i, modified in enumerate(modified_ms)]


@pytest.mark.parametrize(
    ("modified_ms", "forced", "count_max", "gone"),
    [
        ((), False, 10, 0),
        ((1,), False, 10, 0),
        ((1,), True, 10, 0),
        ((1, 2, 3), False, 10, 2),
        ((1, 2, 3, 4, 5), False, 3, 3),
        ((1, 900, 3, 4), False, 10, 1),
        ((900, 1, 2), False, 10, 0),
        ((900, 901, 902), True, 10, 2),
        ((900, 901, 902), True, 1, 1),
    ],
)
def test_expired_segments_are_a_prefix_and_never_the_last(
    modified_ms: tuple[int, ...], forced: bool, count_max: int, gone: int
) -> None:
    all_of_them = segments(*modified_ms)
    expired = expired_segments(all_of_them, now_ms=1000, reserved_ms=500, count_max=count_max, forced=forced)
    assert expired == all_of_them[:gone]


def test_segment_expires_only_after_its_whole_time() -> None:
    two = segments(100, 100)
    assert expired_segments(two, now_ms=600, reserved_ms=500, count_max=9) == []
    assert expired_segments(two, now_ms=601, reserved_ms=500, count_max=9) == two[:1]


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("4", {4}), ("00;23", {0, 23}), (" 01 ; 02 ;", {1, 2}), ("", set())]
)
def test_delete_hours_are_parsed(text: str, hours: set[int]) -> None:
    assert delete_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "x", "-1", "4,5", "1;x"])
def test_delete_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="deleteWhen"):
        delete_hours(text)


def test_delete_hour_counts_in_the_given_time_zone() -> None:
    assert is_delete_hour(FOUR, frozenset({4}), UTC)
    assert not is_delete_hour(FOUR - 1, frozenset({4}), UTC)
    assert is_delete_hour(FOUR + HOUR - 1, frozenset({4}), UTC)
    assert is_delete_hour(FOUR, frozenset({6}), timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("used", "level"),
    [
        (0.0, DiskLevel.OK),
        (0.75, DiskLevel.OK),
        (0.76, DiskLevel.RECLAIM),
        (-1.0, DiskLevel.RECLAIM),
        (0.86, DiskLevel.FORCE),
        (0.91, DiskLevel.FORBID),
    ],
)
def test_disk_level_rises_above_each_mark(used: float, level: DiskLevel) -> None:
    assert Watermarks().level(used) is level


@pytest.mark.parametrize(
    ("force", "forbid", "expected"),
    [(85, 90, (0.85, 0.90)), (0, 0, (0.30, 0.35)), (100, 100, (0.85, 0.90)), (50, 60, (0.50, 0.60))],
)
def test_upper_marks_are_clamped(force: int, forbid: int, expected: tuple[float, float]) -> None:
    marks = Watermarks.of(StoreConfig(disk_force_percent=force, disk_forbid_percent=forbid))
    assert (marks.force, marks.forbid) == expected


def test_writes_stay_forbidden_until_the_disk_is_below_the_force_mark() -> None:
    guard = DiskGuard(Watermarks)
    steps = [(0.5, False), (0.89, False), (0.95, True), (0.87, True), (0.80, False), (0.89, False)]
    for used, forbidden in steps:
        guard.observe([used], 0.1)
        assert guard.writes_forbidden is forbidden, used


def test_emptiest_log_disk_and_the_queue_disk_decide() -> None:
    guard = DiskGuard(Watermarks)
    assert guard.observe([0.99, 0.5], 0.1) is DiskLevel.OK
    assert guard.observe([0.99, 0.5], 0.88) is DiskLevel.FORCE
    assert guard.observe([0.99, 0.5], 0.95) is DiskLevel.FORBID


def test_retention_waits_for_the_hour_unless_asked_or_short_of_space() -> None:
    config = StoreConfig(retention_hours=1, delete_when="04", delete_batch_count_max=2)
    retention = Retention(config, UTC)
    old = segments(0, 0, 0, 0)
    noon = FOUR - 4 * HOUR + NOON
    assert retention.decide(old, noon, [0.1], 0.1) == []
    assert retention.decide(old, FOUR, [0.1], 0.1) == old[:2]
    assert retention.decide(old, noon, [0.8], 0.1) == old[:2]
    fresh = segments(noon, noon, noon)
    assert retention.decide(fresh, noon, [0.8], 0.1) == []
    assert retention.decide(fresh, noon, [0.87], 0.1) == fresh[:2]
    assert not retention.guard.writes_forbidden
    assert retention.decide(fresh, noon, [0.95], 0.1) == fresh[:2]
    assert retention.guard.writes_forbidden


def test_manual_cleaning_lasts_twenty_rounds() -> None:
    retention = Retention(StoreConfig(retention_hours=1, delete_when="04"), UTC)
    old, noon = segments(0, 0), FOUR - 4 * HOUR + NOON
    retention.trigger()
    rounds = [bool(retention.decide(old, noon, [0.1], 0.1)) for _ in range(25)]
    assert rounds == [True] * 20 + [False] * 5


def test_force_can_be_switched_off_and_options_changed() -> None:
    config = StoreConfig(force_clean_enabled=False, retention_hours=1, delete_when="04")
    retention = Retention(config, UTC)
    fresh, six = segments(FOUR, FOUR, FOUR), FOUR + 2 * HOUR
    assert retention.decide(fresh, six, [0.95], 0.1) == fresh[:2], "expired, and the disk is nearly full"
    assert retention.decide(fresh, six, [0.2], 0.1) == []
    change_option(config, "deleteWhen", "06")
    assert retention.decide(fresh, six, [0.2], 0.1) == fresh[:2]
    change_option(config, "fileReservedTime", "72")
    assert retention.decide(fresh, six, [0.95], 0.1) == []
    change_option(config, "cleanFileForciblyEnable", "true")
    assert retention.decide(fresh, six, [0.95], 0.1) == fresh[:2]
    change_option(config, "diskSpaceCleanForciblyRatio", "30")
    assert retention.decide(fresh, six, [0.4], 0.1) == fresh[:2]
