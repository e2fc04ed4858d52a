"""A running clock that can be moved ahead."""

from __future__ import annotations

from orbitmq.runtime.clock import SYSTEM_CLOCK

__all__ = ["TurnedClock"]


class TurnedClock:
    """A ``runtime.clock.Clock`` with the machine's time plus an offset. Waits take as long as they do in reality."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()

    def turn(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("a broker's clock can only be moved forward")
        self._ahead_ms += ms
