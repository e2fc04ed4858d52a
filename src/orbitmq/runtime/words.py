"""Formats counts and durations for messages to people."""

from __future__ import annotations

from typing import Final

__all__ = ["counted", "duration_text"]

_UNITS: Final = ((120, "s", 1), (7_200, "min", 60), (172_800, "h", 3_600))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Returns the number and its noun, such as ``1 attempt`` or ``2,000 attempts``. Pass ``plural`` if it is
    irregular."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration_text(duration_ms: float) -> str:
    """Returns a duration with two or three digits, such as ``0 s``, ``250 ms``, ``90 s`` or ``2.5 h``. Never
    negative."""
    duration_ms = max(0.0, duration_ms)
    seconds = duration_ms / 1000
    if seconds < 1:
        return f"{int(duration_ms)} ms" if duration_ms else "0 s"
    for limit, unit, each in _UNITS:
        if seconds < limit:
            amount = seconds / each
            return f"{amount:.0f} {unit}" if amount >= 10 or each == 1 else f"{amount:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"
