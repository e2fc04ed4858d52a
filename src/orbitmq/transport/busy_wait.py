"""Busy-waits for a peer that sends one request at a time.

A loop that sleeps between the requests of such a peer pays for a sleep and a wake-up each time, and its code is no
longer in the CPU caches. On virtual machines that costs more than serving a small request. So after the requests of
one connection have arrived one by one for a while, the loop polls for the next request before it sleeps. If none
arrives in time, busy-waits become rarer; each request that does arrive in time undoes one step of that.

Only used for requests whose senders wait for the response. A consumer has several pulls in flight and sends its next
request anyway; busy-waiting for it was measured to cost a tenth of a pull.
"""

from __future__ import annotations

import asyncio
from typing import Final

from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.wire.frame import Request

__all__ = ["BusyWait"]

AWAKE_S: Final = 60e-6
IN_A_ROW: Final = 16
"""Single requests in a row from one connection before the loop busy-waits for it."""
MISSES_MAX: Final = 8


class BusyWait:
    """The busy-wait of one server. Called for each read, it keeps the loop polling briefly if that has been
    worthwhile."""

    __slots__ = ("_awake", "_clock", "_codes", "_in_a_row", "_last", "_loop", "_misses", "_skip", "_until")

    def __init__(self, codes: frozenset[int], clock: Clock = SYSTEM_CLOCK) -> None:
        """``codes`` are the requests whose senders wait for the response."""
        self._codes = codes
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._last = 0  # its id, which keeps nothing alive
        self._in_a_row = 0
        self._awake = False
        self._until = 0.0
        self._misses = self._skip = 0

    def served(self, connection: object, only: Request | None) -> None:
        """Record that a read of ``connection`` was served. ``only`` is the request if the read contained a single
        one."""
        # Hot path: once per read.
        if (
            only is None
            or id(connection) != self._last
            or only.code not in self._codes
            or only.request_count != 1
        ):
            self._last = id(connection)
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._awake:
            # One step per success, so that a peer whose every second request is late is not waited for half the time.
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
