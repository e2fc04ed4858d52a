"""Reports code that blocks the event loop for too long.

One loop serves all connections, so a request or job that occupies it delays the others. Each place where the loop
runs our code measures how long that took (the requests of a read, steps of tasks, periodic jobs). Everything that
took longer than ``HOLD_S`` is counted for the metrics and logged, at most once per ``LOG_EVERY_S`` and name.

A process has one loop, so these counts are global. It measures elapsed time, so a process that gets no CPU and a
stalled disk count like slow code.
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
"""Names that are counted separately; there are fewer request codes and jobs than this."""
OTHERS: Final = "others"
monotonic: Final = time.monotonic


@dataclass(slots=True)
class Stall:
    """The stalls recorded under one name."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    logged_at: float = -LOG_EVERY_S


class Stalls:
    """Counts stalls by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Stall] = {}

    def note(self, name: str, held_s: float, detail: str = "") -> None:
        """Record that ``name`` blocked the loop for ``held_s`` seconds. ``detail`` only appears in the log."""
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
    """Wraps a coroutine so that each of its steps is measured. Await the wrapper, or make it a task, instead of
    ``work``."""

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
