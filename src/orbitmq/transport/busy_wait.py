"""Staying awake for a peer that asks one thing after the other.

A loop that sleeps between the requests of such a peer pays for each with a sleep and a wake-up, and its code is cold
when it comes back. On virtual machines that is more than serving a small request takes. So when requests of one
connection have come one by one for a while, the loop polls for the next one (busy-wait) before it sleeps. Where none
comes in time the next attempt is made later and later; each request that does come in time takes one step of that
back.

Only for requests whose peers wait for the answer: a consumer has several pulls on the way, its next request comes
anyway, and staying awake for it was measured to cost a tenth of a pull.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.wire.frame import Frame

__all__ = ["BusyWait"]

AWAKE_S: Final = 60e-6
IN_A_ROW: Final = 16
"""Lone requests of one connection that are taken for a habit."""
MISSES_MAX: Final = 8


class BusyWait:
    """Of one server. Told of each read; keeps the loop turning for a moment where that has paid."""

    __slots__ = ("_awake", "_clock", "_codes", "_in_a_row", "_last", "_loop", "_misses", "_skip", "_until")

    def __init__(self, codes: frozenset[int], clock: Clock = SYSTEM_CLOCK) -> None:
        """``codes``: of the requests whose peers are waited for."""
        self._codes = codes
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._last = 0  # its id, which keeps nothing alive
        self._in_a_row = 0
        self._awake = False
        self._until = 0.0
        self._misses = self._skip = 0

    def served(self, connection: object, frames: Sequence[Frame]) -> None:
        """A read of ``connection`` brought these, and they were served."""
        # Hot: once per read.
        if len(frames) != 1 or id(connection) != self._last or frames[0].code not in self._codes:
            self._last = id(connection)
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._awake:
            # One step for one success: a peer whose every second request comes late is not waited for half the time.
            self._misses = max(0, self._misses - 1)
            self._until = self._clock.monotonic() + AWAKE_S
        elif self._in_a_row >= IN_A_ROW:
            if self._skip:
                self._skip -= 1
                return
            self._awake = True
            self._until = self._clock.monotonic() + AWAKE_S
            self._loop.call_soon(self._stay)

    def _stay(self) -> None:
        if self._in_a_row and self._clock.monotonic() < self._until:
            self._loop.call_soon(self._stay)
            return
        self._awake = False
        self._misses = min(self._misses + 1, MISSES_MAX)
        self._skip = 1 << self._misses
