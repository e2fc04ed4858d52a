"""Connection limits, and the sharing of event loop time among connections."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from orbitmq.runtime.stalls import monotonic

__all__ = ["CALL_BYTES", "Http2Limits", "Served", "Turns"]

CALL_BYTES: Final = 4096
"""Rough memory cost of an open call, excluding its headers and messages."""
_TURN_S: Final = 0.004
_SLICE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits per connection, except ``connections`` and ``held_bytes``, which apply to all of them together."""

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
    """Over all connections; see ``transport/held_memory.py`` for what happens above it."""
    resets: int = 4096
    """Calls a client may cancel between two sweeps."""
    settings: int = 64
    """Entries in a SETTINGS frame; clients send fewer than ten."""
    opening_s: float = 20.0
    """TLS and the preface must be complete within this time, even if the peer trickles bytes."""
    request_s: float = 60.0
    """A request must be complete within this time. Large ones get more, see ``request_bytes_s``."""
    request_bytes_s: int = 32 * 1024
    """Every this many bytes of a request add a second to ``request_s``."""
    silent_s: float = 60.0
    """A peer that has been silent this long is sent a PING."""
    ping_s: float = 20.0
    """A peer that has not answered a PING after this time is considered dead."""


class Served(Protocol):
    """The part of a connection that ``Turns`` uses."""

    def serve(self, until: float) -> bool: ...


class Turns:
    """Shares each turn of the event loop among all connections of a server.

    A connection serves what it has read immediately while the turn has time left. The rest is served in later turns,
    round-robin, so no peer can monopolize the loop however cheap its frames are to send.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = monotonic  # uvloop's clock does not advance during a turn
        self._waiting: deque[Served] = deque()
        self._planned = False
        self._end = 0.0

    def until(self) -> float:
        """Returns when a connection that has just read must stop."""
        if not self._planned:
            self._planned = True
            self._end = self._now() + _TURN_S
            self._loop.call_soon(self._next)
        return min(self._end, self._now() + _SLICE_S)

    def wait(self, connection: Served) -> None:
        """Serve the rest of a connection's data in a later turn."""
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
