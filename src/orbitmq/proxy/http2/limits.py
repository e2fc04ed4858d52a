"""Limits of connections, and the sharing of event loop time among connections."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from orbitmq.runtime.stalls import monotonic

__all__ = ["CALL_BYTES", "Http2Limits", "Served", "Turns"]

CALL_BYTES: Final = 4096
"""Rough memory cost of an open call in bytes, excluding its headers and messages."""
_TURN_S: Final = 0.004
_SLICE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits per connection, except ``connections`` and ``held_bytes``, which apply to all connections together."""

    connections: int = 16_384
    calls: int = 4096
    message_bytes: int = 136_314_880
    header_bytes: int = 16_384
    """Size of one header block. Java's gRPC accepts 8 KiB."""
    open_header_bytes: int = 8 * 1024 * 1024
    """Size of the headers of all open calls of a connection."""
    unsent_bytes: int = 64 * 1024 * 1024
    write_pause_bytes: int = 1024 * 1024
    held_bytes: int = 512 * 1024 * 1024
    """Bytes held for all connections; see ``transport/held_memory.py`` for what happens above the limit."""
    resets: int = 4096
    """Number of calls that a client may cancel between two sweeps."""
    settings: int = 64
    """Number of entries in a SETTINGS frame. Clients send fewer than ten."""
    opening_s: float = 20.0
    """Seconds within which TLS and the preface must be complete, even if the peer sends bytes slowly."""
    request_s: float = 60.0
    """Seconds within which a request must be complete. Large requests get more; see ``request_bytes_s``."""
    request_bytes_s: int = 32 * 1024
    """Number of bytes of a request that extend ``request_s`` by one second."""
    silent_s: float = 60.0
    """Seconds after which a silent peer is sent a PING."""
    ping_s: float = 20.0
    """Seconds without an answer to the PING after which a peer is considered dead."""


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
        """Returns the time at which a connection that has just read must stop."""
        if not self._planned:
            self._planned = True
            self._end = self._now() + _TURN_S
            self._loop.call_soon(self._next)
        return min(self._end, self._now() + _SLICE_S)

    def wait(self, connection: Served) -> None:
        """Schedule the rest of a connection's data for a later turn."""
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
