"""Converts delays and times from the user's units to those of the wire."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from orbitmq.model.delay_levels import DelayLevels

__all__ = ["delay_level_for", "delay_ms_for", "moment_ms"]

_LEVELS_MS: Final = DelayLevels().delays_ms


def delay_ms_for(delay: timedelta | float) -> int:
    """Returns a delay in milliseconds. ``delay`` is a timedelta or seconds. Raises ``TypeError`` or
    ``ValueError``."""
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise TypeError(f"a delay is a timedelta or a number of seconds, not {delay!r}")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds < 1e10:
        raise ValueError(f"a delay of {seconds:g} s is not possible")
    return round(seconds * 1000)


def delay_level_for(delay: timedelta | float) -> int:
    """Returns the shortest of the default delay levels that is not shorter than ``delay``, from 1 (shortest) to 18
    (longest)."""
    wanted_ms = delay_ms_for(delay)
    for level, level_ms in enumerate(_LEVELS_MS, start=1):
        if level_ms >= wanted_ms:
            return level
    return len(_LEVELS_MS)


def moment_ms(moment: datetime) -> int:
    """Returns a time in milliseconds since the epoch. Raises ``ValueError`` for a time without a zone, which is
    ambiguous."""
    if not isinstance(moment, datetime):
        raise TypeError(f"a time is a datetime, not {moment!r}")
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: use datetime.now(UTC) or .astimezone()")
    return round(moment.timestamp() * 1000)
