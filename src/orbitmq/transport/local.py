"""Connects two ends inside one process, without a socket.

A proxy in local mode calls its broker this way. Everything that one end writes in one turn of the loop reaches the
other end in the next turn, in one piece, so that bulk work stays in bulk. Limits, responses and calls in both
directions are those of any connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["LocalServer", "LocalTransport", "connect_local"]

LocalServer = Callable[[], asyncio.Protocol]
"""Creates the server's end of a new connection."""


class LocalTransport(asyncio.Transport):
    """Passes the writes of one end to the other."""

    def __init__(self, protocol: asyncio.Protocol, remote: tuple[str, int]) -> None:
        super().__init__({"peername": remote})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._other: LocalTransport | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._planned = False
        self._high = 1024 * 1024
        self._write_paused = False
        self._reading = True
        self._closing = False
        self._lost = False

    def attach(self, other: LocalTransport) -> None:
        self._other = other

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        self._buffer.append(data)
        self._buffered += len(data)
        self._plan()
        if self._buffered > self._high and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._planned = False
        other = self._other
        if other is None or self._lost:
            return
        if self._buffer and not other._reading:
            return  # resume_reading comes back here
        if self._buffer:
            data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
            self._buffer.clear()
            self._buffered = 0
            if self._write_paused:
                self._write_paused = False
                self._protocol.resume_writing()
            if not other._lost:
                other._protocol.data_received(data)
        if self._closing and not self._buffer:
            self._end()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1024 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._buffered

    # -- reading ---------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._other is not None:
            self._other._plan()

    def is_reading(self) -> bool:
        return self._reading

    # -- ending ----------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._plan()

    def abort(self) -> None:
        self._closing = True
        self._buffer.clear()
        self._buffered = 0
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        """Notify both ends of the end of the connection, once."""
        if self._lost:
            return
        self._lost = True
        self._protocol.connection_lost(None)
        if self._other is not None and not self._other._lost:
            self._other._closing = True
            self._loop.call_soon(self._other._end)


def connect_local(client: asyncio.Protocol, server: asyncio.Protocol, address: tuple[str, int]) -> None:
    """Connect two protocols as the ends of one connection. ``address`` is that of the server; the client has none."""
    to_server = LocalTransport(client, address)
    to_client = LocalTransport(server, ("127.0.0.1", 0))
    to_server.attach(to_client)
    to_client.attach(to_server)
    server.connection_made(to_client)
    client.connection_made(to_server)
