"""Limits repeated log lines: the first is logged immediately, then one per interval with the number of suppressed
lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["LogLimits"]

PERIOD_S: Final = 30.0
_KEYS_MAX: Final = 1000


class LogLimits:
    """Limits log lines by key. An outage of one broker is one key, however many queues and attempts notice it."""

    def __init__(self, monotonic: Callable[[], float], period_s: float = PERIOD_S) -> None:
        self._monotonic = monotonic
        self._period_s = period_s
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def log(self, logger: logging.Logger, level: int, key: Hashable, text: str, *arguments: object) -> None:
        """Log a line, or only count it. The first line of a key after a quiet period is logged immediately."""
        left_out = self._due(key)
        if left_out is None:
            return
        if left_out:
            text, arguments = f"{text} repeated=%d", (*arguments, left_out)
        logger.log(level, text, *arguments)

    def log_error(
        self,
        logger: logging.Logger,
        key: Hashable,
        text: str,
        *arguments: object,
        error: BaseException | None,
    ) -> None:
        """Log an error at WARNING with its traceback, limited like ``log``."""
        left_out = self._due(key)
        if left_out is None:
            return
        if left_out:
            text, arguments = f"{text} repeated=%d", (*arguments, left_out)
        logger.warning(text, *arguments, exc_info=error)

    def _due(self, key: Hashable) -> int | None:
        """Returns how many lines of the key were suppressed since the last one; None if this one is suppressed
        too."""
        now = self._monotonic()
        since, left_out = self._seen.get(key, (now - self._period_s, 0))
        if now - since < self._period_s:
            self._seen[key] = (since, left_out + 1)
            return None
        if len(self._seen) >= _KEYS_MAX:
            self._seen.clear()
        self._seen[key] = (now, 0)
        return left_out

    def warning(self, logger: logging.Logger, key: Hashable, text: str, *arguments: object) -> None:
        """Log a line at WARNING, limited like ``log``."""
        self.log(logger, logging.WARNING, key, text, *arguments)
