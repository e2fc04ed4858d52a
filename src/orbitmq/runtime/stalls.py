"""Who held the event loop longer than anybody may.

One loop serves all connections: a request or a job that occupies it delays the others. The places where the loop runs
code of ours measure how long that took (requests of a read, steps of tasks, periodic jobs) and report what took
longer than ``HOLD_S`` here: counted for the metrics, and logged, at most once in ``LOG_EVERY_S`` for each name.

There is one such count in a process, as there is one loop. Time is the machine's own: a process that got no CPU, or a
disk that stalled, holds the loop like a slow loop of ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

__all__ = ["HOLD_S", "STALLS", "Stall", "Stalls", "measured", "monotonic"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

HOLD_S: Final = 0.02
LOG_EVERY_S: Final = 10.0
NAMES_MAX: Final = 256
"""Names that are counted apart; there are fewer codes and jobs than this."""
OTHERS: Final = "others"
monotonic: Final = time.monotonic


@dataclass(slots=True)
class Stall:
    """What one name is responsible for."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    logged_at: float = -LOG_EVERY_S


class Stalls:
    """Counts by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Stall] = {}

    def note(self, name: str, held_s: float, detail: str = "") -> None:
        """``name`` held the loop for ``held_s``. ``detail`` is for the log alone."""
        stall = self.by_name.get(name)
        if stall is None:
            if len(self.by_name) >= NAMES_MAX:
                name = OTHERS
            stall = self.by_name.setdefault(name, Stall())
        stall.count += 1
        stall.total_s += held_s
        stall.longest_s = max(stall.longest_s, held_s)
        now = monotonic()
        if now - stall.logged_at >= LOG_EVERY_S:
            stall.logged_at = now
            logger.warning(
                "event loop held by=%s held_ms=%.0f count=%d %s", name, held_s * 1000, stall.count, detail
            )

    @property
    def count(self) -> int:
        return sum(stall.count for stall in self.by_name.values())


STALLS: Final = Stalls()


class measured(Generator[Any, Any, T]):  # noqa: N801 - used like a function
    """A coroutine whose every step is measured. To be awaited or made a task of once, in place of ``work``."""

    __slots__ = ("_name", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], name: str) -> None:
        self._work = work
        self._name = name

    def send(self, value: Any) -> Any:
        began = monotonic()
        try:
            return self._work.send(value)
        finally:
            held_s = monotonic() - began
            if held_s > HOLD_S:
                STALLS.note(self._name, held_s)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __iter__(self) -> Generator[Any, Any, T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __await__(self) -> Generator[Any, Any, T]:
        return self
