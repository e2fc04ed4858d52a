"""A clock that moves only on request."""

from __future__ import annotations

__all__ = ["ManualClock"]


class ManualClock:
    """An implementation of ``runtime.clock.Clock`` for tests. Its two times move only through ``advance``, or
    ``jump`` for the wall clock."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, ms: float) -> None:
        """Let ``ms`` milliseconds pass on both clocks."""
        assert ms >= 0, "time does not go back; use jump for the wall clock"
        self._now_ms += int(ms)
        self._monotonic += ms / 1000

    def jump(self, now_ms: int) -> None:
        """Set only the wall clock, forwards or back, like an administrator or NTP."""
        self._now_ms = now_ms
