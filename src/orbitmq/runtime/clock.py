"""Time as a parameter. ``time.*`` is called nowhere else, so tests can own the clock."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock", "day_end_ms", "month_of"]


class Clock(Protocol):
    """Two times: the wall clock that is stored and sent, and a steady one for waits."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM_CLOCK = SystemClock()


def month_of(now_ms: int) -> tuple[int, int]:
    """First and last millisecond (end exclusive) of the local month a time lies in."""
    local = time.localtime(now_ms / 1000)
    following = (local.tm_year + local.tm_mon // 12, local.tm_mon % 12 + 1)
    start = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((*following, 1, 0, 0, 0, 0, 0, -1))
    return int(start * 1000), int(end * 1000)


def day_end_ms(now_ms: int) -> int:
    """The local midnight that ends the day a time lies in."""
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, local.tm_mday + 1, 0, 0, 0, 0, 0, -1)) * 1000)
