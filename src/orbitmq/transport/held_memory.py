"""One memory limit for all connections of a server: half frames, requests kept for later, unread answers.

Each connection has limits of its own, but thousands of peers that stay below them would still fill the memory. So the
server adds up what all of them hold. Counting every byte as it comes and goes would cost each request. Instead, the
traffic since the last sum is counted, which is the most that can have been added, and the sum is taken again when
that reaches a sixteenth of the limit.

What happens above each mark:

1. Above half of the limit, peers with more than ``PRESSED_BYTES`` of unread answers are not served until they have
   read some (normally 1 MiB). A peer that reads does not notice.
2. Above the limit, connections are closed until a quarter of it is free: first the largest holder of the host that
   holds most, then the next. So a host with ten thousand half frames is disconnected before the one large message of
   another host, and a host that holds little is never disconnected for what others hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from typing import Final, Protocol

__all__ = ["HELD_BYTES_MAX", "PRESSED_BYTES", "HeldMemory", "Holder"]

logger = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 512 * 1024 * 1024
PRESSED_BYTES: Final = 64 * 1024
_STEPS: Final = 16
_LOOK_AGAIN_S: Final = 0.5


class Holder(Protocol):
    """The attributes and methods of a connection that are used here."""

    remote: tuple[str, int]

    @property
    def held_bytes(self) -> int: ...
    def press(self, unsent_bytes: int) -> None: ...
    def drop(self, reason: str) -> None: ...


class HeldMemory:
    """Adds up the memory held by the connections of one server."""

    def __init__(self, holders: Collection[Holder], limit_bytes: int = HELD_BYTES_MAX) -> None:
        """``holders`` is the server's own set of connections, which grows and shrinks."""
        self._holders = holders
        self._limit_bytes = limit_bytes
        self._step_bytes = max(1, limit_bytes // _STEPS)
        self._timer: asyncio.TimerHandle | None = None
        self._planned = False
        self.moved_bytes = 0
        """Bytes read and written since the last sum."""
        self.pressed = False
        self.dropped_count = 0

    @property
    def held_bytes(self) -> int:
        """The memory held by all connections now."""
        return sum(holder.held_bytes for holder in self._holders)

    def moved(self, size_bytes: int) -> None:
        """Record how many bytes a connection read or wrote."""
        self.moved_bytes += size_bytes
        if self.moved_bytes >= self._step_bytes:
            self.look()

    def look(self) -> None:
        """Recompute the held memory. Notify the holders when it crosses half of the limit, in either direction. Above
        the limit, close connections at the end of the event loop's turn."""
        self.moved_bytes = 0
        held = self.held_bytes
        if held > self._limit_bytes and not self._planned:
            # uvloop writes when the turn ends: exceeding the limit only until then does not justify closing a
            # connection.
            self._planned = True
            asyncio.get_running_loop().call_soon(self._drop_if_above)
        pressed = held > self._limit_bytes // 2
        if pressed != self.pressed:
            self.pressed = pressed
            logger.warning("connections hold %s of memory bytes=%d", "much" if pressed else "less", held)
            for holder in list(self._holders):
                holder.press(PRESSED_BYTES if pressed else 0)
        if pressed and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.look()

    def _drop_if_above(self) -> None:
        self._planned = False
        held = self.held_bytes
        if held > self._limit_bytes:
            self._drop(held)

    def _drop(self, held: int) -> None:
        by_host: defaultdict[str, list[tuple[int, Holder]]] = defaultdict(list)
        sums: defaultdict[str, int] = defaultdict(int)
        for holder in self._holders:
            size = holder.held_bytes
            if size:
                by_host[holder.remote[0]].append((size, holder))
                sums[holder.remote[0]] += size
        for connections in by_host.values():
            connections.sort(key=lambda entry: entry[0])
        goal, before, count = self._limit_bytes * 3 // 4, held, 0
        while held > goal:
            host = max(sums, key=sums.__getitem__)
            size, holder = by_host[host].pop()
            sums[host] -= size
            held -= size
            count += 1
            holder.drop(f"connections hold {before} bytes, more than {self._limit_bytes}; this one {size}")
        self.dropped_count += count
        logger.error(
            "connections closed to free memory bytes=%d limit=%d closed=%d left=%d",
            before,
            self._limit_bytes,
            count,
            held,
        )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
