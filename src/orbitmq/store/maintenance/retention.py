"""Decides which log segments to remove, and when the disk is too full for writes. Performs no I/O.

Corresponds to Apache's CleanCommitLogService. Three watermarks apply to the used fraction of a disk, lowest first.
Above *reclaim*, expired segments are removed at any hour. Above *force*, the oldest are removed even if they have not
expired. Above *forbid*, writes are refused as well. They stay refused until usage is below *force* again, which
prevents flapping. The removed segments are always a prefix of the log, and never include the one being written.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final, Self

from orbitmq.store.config import StoreConfig, delete_hours
from orbitmq.store.types import SegmentInfo

__all__ = [
    "DiskGuard",
    "DiskLevel",
    "Retention",
    "Watermarks",
    "expired_segments",
    "is_delete_hour",
]

logger = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000
MANUAL_ROUNDS: Final = 20
"""Apache runs a manual clean-up for this many rounds, ten seconds apart."""

FORCE_BOUNDS: Final = (0.30, 0.85)
FORBID_BOUNDS: Final = (0.35, 0.90)
"""Apache clamps the two upper watermarks to these bounds, whatever the configuration says."""


class DiskLevel(enum.IntEnum):
    """How full the fuller of the two disks (log, queues) is."""

    OK = 0
    RECLAIM = 1
    FORCE = 2
    FORBID = 3


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The used fractions of a disk, 0.0 to 1.0, above which a measure is taken."""

    reclaim: float = 0.75
    force: float = 0.85
    forbid: float = 0.90

    @classmethod
    def of(cls, config: StoreConfig) -> Self:
        """Returns the configured watermarks, with the two upper ones clamped."""
        return cls(
            reclaim=config.disk_used_percent_max / 100,
            force=min(max(config.disk_force_percent / 100, FORCE_BOUNDS[0]), FORCE_BOUNDS[1]),
            forbid=min(max(config.disk_forbid_percent / 100, FORBID_BOUNDS[0]), FORBID_BOUNDS[1]),
        )

    def level(self, used: float) -> DiskLevel:
        """Returns the level for a used fraction. A negative fraction means unknown: expired segments are then removed
        to be safe."""
        if used > self.forbid:
            return DiskLevel.FORBID
        if used > self.force:
            return DiskLevel.FORCE
        if used > self.reclaim or used < 0:
            return DiskLevel.RECLAIM
        return DiskLevel.OK


class DiskGuard:
    """Tracks whether writes are forbidden, and keeps them forbidden until the disk is below the force watermark."""

    def __init__(self, marks: Callable[[], Watermarks]) -> None:
        """``marks`` returns the current watermarks, because an operator may change them."""
        self._marks = marks
        self.level = DiskLevel.OK
        self.writes_forbidden = False

    def observe(self, log_used: Sequence[float], queue_used: float) -> DiskLevel:
        """Update the level from the used fractions of the log's disks (only the emptiest counts) and of the queues'
        disk. Returns the level."""
        assert log_used, "a store has at least one log directory"
        marks = self._marks()
        self.level = max(marks.level(min(log_used)), marks.level(queue_used))
        used = max(min(log_used), queue_used)
        if self.level is DiskLevel.FORBID and not self.writes_forbidden:
            self.writes_forbidden = True
            logger.error(
                "sends refused, disk usage above the limit used=%.1f%% limit=%.1f%%",
                100 * used,
                100 * marks.forbid,
            )
        elif self.level < DiskLevel.FORCE and self.writes_forbidden:
            self.writes_forbidden = False
            logger.warning("disk usage below the limit, sends accepted again used=%.1f%%", 100 * used)
        return self.level


def expired_segments(
    segments: Sequence[SegmentInfo],
    *,
    now_ms: int,
    reserved_ms: int,
    count_max: int,
    forced: bool = False,
) -> list[SegmentInfo]:
    """Returns the segments to remove, oldest first: a prefix of ``segments``, never the last one, at most
    ``count_max``.

    ``forced`` includes segments that have not expired.
    """
    expired: list[SegmentInfo] = []
    for segment in segments[:-1]:
        if len(expired) >= count_max:
            break
        if not forced and now_ms <= segment.modified_ms + reserved_ms:
            break
        expired.append(segment)
    return expired


def is_delete_hour(now_ms: int, hours: frozenset[int], zone: tzinfo | None = None) -> bool:
    """Whether ``now_ms`` falls into one of ``hours``. The hours are in ``zone``, or in the machine's time zone by
    default."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).hour in hours


class Retention:
    """Decides, once per round, which segments to remove. Keeps the disk guard and the remaining rounds of a manual
    request."""

    def __init__(self, config: StoreConfig, zone: tzinfo | None = None) -> None:
        self._config = config
        self._zone = zone
        self.guard = DiskGuard(lambda: Watermarks.of(config))
        self.manual_rounds = 0

    def trigger(self) -> None:
        """Remove expired segments in the coming rounds, regardless of the hour (TRIGGER_DELETE_FILES)."""
        self.manual_rounds = MANUAL_ROUNDS

    def decide(
        self, segments: Sequence[SegmentInfo], now_ms: int, log_used: Sequence[float], queue_used: float
    ) -> list[SegmentInfo]:
        """Returns the segments to remove now. Afterwards ``guard.writes_forbidden`` is up to date."""
        level = self.guard.observe(log_used, queue_used)
        hours = delete_hours(self._config.delete_when)
        manual = self.manual_rounds > 0
        if manual:
            self.manual_rounds -= 1
        if level is DiskLevel.OK and not manual and not is_delete_hour(now_ms, hours, self._zone):
            return []
        return expired_segments(
            segments,
            now_ms=now_ms,
            reserved_ms=self._config.retention_hours * HOUR_MS,
            count_max=self._config.delete_batch_count_max,
            forced=self._config.force_clean_enabled and level >= DiskLevel.FORCE,
        )
