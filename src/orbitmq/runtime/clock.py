"""Passes time as a parameter. ``time.*`` is called only here, so that tests control the clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

__all__ = [
    "SYSTEM_CLOCK",
    "Clock",
    "ClockSteps",
    "ForwardClock",
    "SteadyClock",
    "SystemClock",
    "day_end_ms",
    "month_of",
]

logger = logging.getLogger(__name__)

STEP_MS_MIN: Final = 500
"""A smaller difference comes from slewing the clock, or from reading one of the two late."""
STEPS_MAX: Final = 100
_NS_PER_MS: Final = 1_000_000


class Clock(Protocol):
    """Reads two times: the wall clock for times that are stored and sent, and a monotonic clock for waits."""

    def now_ms(self) -> int:
        """Returns the milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Returns the seconds of a clock that never goes backwards."""


class SystemClock:
    """The machine's own clock."""

    def __repr__(self) -> str:
        return "SYSTEM_CLOCK"  # as the default of a parameter in a signature

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK = SystemClock()


class SteadyClock:
    """A clock for waits. It starts at the wall time and ignores later steps of the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.now_ms() - clock.monotonic() * 1000

    def now_ms(self) -> int:
        return int(self._began_ms + self._clock.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._clock.monotonic()


class ForwardClock:
    """The wall clock for stored times. It follows the wall clock forwards immediately, and never goes backwards.

    After the wall clock is set back, this clock continues to advance at normal speed until the wall clock has caught
    up. So stored times never decrease, and a message due in five seconds is still due in five seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic: Final = clock.monotonic
        self._difference_ns = clock.now_ms() * _NS_PER_MS - self._steady_ns()
        """Our time minus the steady clock. Milliseconds are truncated after the addition, or a time could be a
        millisecond ahead of the wall clock."""
        self._behind_ms = 0

    def _steady_ns(self) -> int:
        return round(self._clock.monotonic() * 1e9)

    def at_least(self, stored_ms: int) -> None:
        """Continue after a time that an earlier process or another machine has stored."""
        self._difference_ns = max(self._difference_ns, stored_ms * _NS_PER_MS - self._steady_ns())

    def now_ms(self) -> int:
        wall_ms = self._clock.now_ms()
        steady_ns = self._steady_ns()
        behind_ms = (self._difference_ns + steady_ns) // _NS_PER_MS - wall_ms
        if behind_ms <= 0:
            self._difference_ns = max(self._difference_ns, wall_ms * _NS_PER_MS - steady_ns)
            self._behind_ms = 0
            return wall_ms
        if behind_ms - self._behind_ms >= STEP_MS_MIN:
            self._behind_ms = behind_ms
            logger.warning(
                "the clock was set back; stored times stay ahead until it catches up ahead_ms=%d",
                behind_ms,
            )
        return wall_ms + behind_ms


class ClockSteps:
    """Records when and by how much the wall clock was stepped while this process ran, by position in a log.

    A stored due time is a wall time that was computed when the message was stored. After a clock step it must be
    shifted by the step, because otherwise the message would be delivered too early or too late.
    """

    def __init__(self, clock: Clock, log_end: Callable[[], int]) -> None:
        """``log_end`` is the offset of the next record."""
        self._clock = clock
        self._log_end = log_end
        self._difference_ms = self._difference()
        self._steps: list[tuple[int, int]] = []
        """The end of the log when a step was noticed, and the step in milliseconds."""

    def _difference(self) -> int:
        return self._clock.now_ms() - int(self._clock.monotonic() * 1000)

    def look(self) -> None:
        """Compare the clocks. Must be called before a due time is stored, and before one is compared with the
        clock."""
        difference_ms = self._difference()
        step_ms = difference_ms - self._difference_ms
        if not step_ms:
            return
        self._difference_ms = difference_ms
        if abs(step_ms) >= STEP_MS_MIN:
            logger.warning("the clock jumped step_ms=%+d; due times move with it", step_ms)
            self._steps.append((self._log_end(), step_ms))
            del self._steps[:-STEPS_MAX]

    def passed(self, ms: int) -> None:
        """Advance both clocks by ``ms``, for tests. This does not count as a clock step."""
        self._difference_ms += ms

    def shift_ms(self, log_offset: int) -> int:
        """Returns the milliseconds to add to a due time stored at ``log_offset``."""
        return sum(step_ms for end, step_ms in self._steps if log_offset < end)


def month_of(now_ms: int) -> tuple[int, int]:
    """Returns the first and last millisecond (end exclusive) of the local month that contains a time."""
    local = time.localtime(now_ms / 1000)
    following = (local.tm_year + local.tm_mon // 12, local.tm_mon % 12 + 1)
    start = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((*following, 1, 0, 0, 0, 0, 0, -1))
    return int(start * 1000), int(end * 1000)


def day_end_ms(now_ms: int) -> int:
    """Returns the local midnight at the end of the day that contains a time, in milliseconds since the epoch."""
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, local.tm_mday + 1, 0, 0, 0, 0, 0, -1)) * 1000)
