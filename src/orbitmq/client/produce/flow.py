"""Limits the sends in flight. Sends beyond the limits wait; this is the producer's only backpressure."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

__all__ = ["InFlight", "Turns"]

PER_TURN: Final = 128
"""Sends that are encoded in one turn of the event loop. They are written at its end, so the first one waits for the
last one to be encoded; without this limit a burst of thousands uses up its time before the first byte is sent."""


class InFlight:
    """Slots for sends, limited in number and in bytes, granted first come, first served. Owned by one event loop."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_count_max", "_idle", "_waiting", "closed")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self.closed = False
        """New sends get no slot; those already waiting do."""

    @property
    def count(self) -> int:
        """The number of sends in flight."""
        return self._count

    @property
    def waiting(self) -> int:
        """The number of sends that wait for a slot."""
        return len(self._waiting)

    @property
    def size(self) -> int:
        """The size of the bodies in flight, in bytes."""
        return self._bytes

    def try_enter(self, size: int) -> bool:
        """Take a slot if one is free. Returns whether it was taken; the caller must then call ``leave`` with the same
        size."""
        if self._waiting or self.closed or not self._fits(size):
            return False
        self._count += 1
        self._bytes += size
        return True

    def _fits(self, size: int) -> bool:
        # A message larger than the whole limit is sent on its own.
        return self._count < self._count_max and (self._bytes + size <= self._bytes_max or not self._count)

    async def enter(self, size: int) -> None:
        """Wait for a slot and take it. The caller must call ``leave`` with the same size."""
        if self.try_enter(size):
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(size)  # it was ours already
            else:
                place.cancel()
                self._admit()
            raise

    def leave(self, size: int) -> None:
        """Release a slot taken for a body of this size."""
        self._count -= 1
        self._bytes -= size
        if self._waiting:
            self._admit()
        if not self._count and self._idle:
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting:
            size, place = waiting[0]
            if place.done():
                waiting.popleft()
                continue
            if not self._fits(size):
                return
            waiting.popleft()
            self._count += 1
            self._bytes += size
            place.set_result(None)

    async def drained(self) -> None:
        """Wait until nothing is in flight and no caller waits."""
        while self._count or self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter


class Turns:
    """Spreads a burst of sends over several turns of the event loop, first come, first served."""

    __slots__ = ("_left", "_scheduled", "_waiting")

    def __init__(self) -> None:
        self._left = PER_TURN
        self._scheduled = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place in the current turn. Returns False if there is none."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._left <= 0 or self._waiting:
            return False
        self._left -= 1
        return True

    async def wait(self) -> None:
        """Wait for a place in a later turn. Call ``take`` first."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _next(self) -> None:
        """Begin the next turn. Sends that are already waiting go first."""
        waiting, left = self._waiting, PER_TURN
        while waiting and left:
            place = waiting.popleft()
            if not place.done():  # else its send was cancelled
                place.set_result(None)
                left -= 1
        self._left = left
        self._scheduled = left < PER_TURN
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._next)
