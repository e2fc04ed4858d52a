"""Bounds of connections, and how the event loop's time is shared among them."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from orbitmq.runtime.stalls import monotonic

__all__ = ["CALL_BYTES", "Http2Limits", "Served", "Turns"]

CALL_BYTES: Final = 4096
"""Rough cost of an open call beside its headers and messages."""
_TURN_S: Final = 0.004
_SLICE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Bounds of one connection, and ``connections`` and ``held_bytes`` of all of them together."""

    connections: int = 16_384
    calls: int = 4096
    message_bytes: int = 136_314_880
    header_bytes: int = 16_384
    """One header block. Java's gRPC accepts 8 KiB."""
    open_header_bytes: int = 8 * 1024 * 1024
    """Headers of all open calls of a connection."""
    unsent_bytes: int = 64 * 1024 * 1024
    write_pause_bytes: int = 1024 * 1024
    held_bytes: int = 512 * 1024 * 1024
    """Over all connections; see ``transport/held_memory.py`` for what happens beyond."""
    resets: int = 4096
    """Calls a client may cancel between two sweeps."""
    settings: int = 64
    """Entries of a SETTINGS frame; clients send fewer than ten."""
    opening_s: float = 20.0
    """TLS and the preface must be complete by then, however a peer spreads their bytes."""
    request_s: float = 60.0
    """A request must be complete by then; a large one has longer, see ``request_bytes_s``."""
    request_bytes_s: int = 32 * 1024
    """Each of these many bytes of a request adds a second to ``request_s``."""
    silent_s: float = 60.0
    """A peer that was silent for so long is sent a PING."""
    ping_s: float = 20.0
    """A peer that does not answer a PING for so long is gone."""


class Served(Protocol):
    """A connection, as far as it matters here."""

    def serve(self, until: float) -> bool: ...


class Turns:
    """Shares one turn of the event loop among all connections of a server.

    A connection serves what it read at once while the turn's time lasts. What is left is served in later turns,
    one connection after the other, so that no peer can hold the loop, however little its frames cost it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = monotonic  # the clock of a uvloop stands still during a turn
        self._waiting: deque[Served] = deque()
        self._planned = False
        self._end = 0.0

    def until(self) -> float:
        """When a connection that has just read must stop."""
        if not self._planned:
            self._planned = True
            self._end = self._now() + _TURN_S
            self._loop.call_soon(self._next)
        return min(self._end, self._now() + _SLICE_S)

    def wait(self, connection: Served) -> None:
        """Serve a connection's rest in a later turn."""
        self._waiting.append(connection)
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        waiting = self._waiting
        now = self._now()
        self._end = now + _TURN_S
        while waiting and now < self._end:
            connection = waiting.popleft()
            if connection.serve(min(self._end, now + _SLICE_S)):
                waiting.append(connection)
            now = self._now()
        self._planned = bool(waiting)
        if waiting:
            self._loop.call_soon(self._next)
