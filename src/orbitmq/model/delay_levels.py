"""Parses delay levels such as "1s 5s 10s ...", and returns the duration of each (Apache:
``ScheduleMessageService``)."""

from __future__ import annotations

import re
from typing import Final

from orbitmq.errors import ConfigError

__all__ = ["DELAY_LEVELS_DEFAULT", "DelayLevels", "parse_delay_level"]

DELAY_LEVELS_DEFAULT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS: Final = 1000
_LEVELS_MAX: Final = 65_536
_JAVA_INT: Final = re.compile(rb"[+-]?[0-9]+")
_INT_MIN: Final = -(1 << 31)
_INT_MAX: Final = (1 << 31) - 1


class DelayLevels:
    """The delay levels of a broker, counted from 1. Messages of level n wait in queue n - 1 of the schedule topic."""

    def __init__(self, text: str = DELAY_LEVELS_DEFAULT) -> None:
        """Parse the levels. Raises ``ConfigError``, which names the entry that cannot be parsed."""
        words = text.split()
        if not 0 < len(words) <= _LEVELS_MAX:
            raise ConfigError(
                f"messageDelayLevel has {len(words)} levels; between 1 and {_LEVELS_MAX} are accepted"
            )
        self._delays_ms: Final = tuple(_delay_ms(word, text) for word in words)

    @property
    def max_level(self) -> int:
        """The highest level."""
        return len(self._delays_ms)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delays in milliseconds, in the order of the levels from 1 on."""
        return self._delays_ms

    def clamp(self, level: int) -> int:
        """Returns the level, limited to the highest one. Levels below 1 mean "no delay" and are returned
        unchanged."""
        return min(level, len(self._delays_ms))

    def delay_ms(self, level: int) -> int:
        """Returns the delay of a level in milliseconds. An unknown level has a delay of one second, like in
        Apache."""
        return self._delays_ms[level - 1] if 1 <= level <= len(self._delays_ms) else _UNKNOWN_LEVEL_MS

    def due_ms(self, level: int, stored_ms: int) -> int:
        """Returns when a message stored at that time is due, in milliseconds since the epoch. The message's consume
        queue unit contains this value instead of a tag code."""
        return stored_ms + self.delay_ms(self.clamp(level))


def parse_delay_level(text: bytes) -> int:
    """Returns the level in a DELAY property, read like Java's ``Integer.parseInt``: a sign is allowed, spaces and
    underscores are not. Raises ``ValueError``."""
    if _JAVA_INT.fullmatch(text) is None or not _INT_MIN <= (level := int(text)) <= _INT_MAX:
        raise ValueError(f"DELAY={text[:32]!r} is not an integer of 32 bits")
    return level


def _delay_ms(word: str, text: str) -> int:
    number, unit = word[:-1], word[-1]
    if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()):
        raise ConfigError(f"messageDelayLevel {text!r}: {word!r} is not a number followed by s, m, h or d")
    return int(number) * _UNITS_MS[unit]
