"""A server: its listening ports, their connections, and an orderly shutdown.

Corresponds to Apache's NettyRemotingServer. The port and the fast port (listenPort - 2) are two ``Listener`` values
with their own routers.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.busy_wait import BusyWait
from orbitmq.transport.connection import Connection, ConnectionLimits
from orbitmq.transport.held_memory import HELD_BYTES_MAX, HeldMemory
from orbitmq.transport.ports import bind_port
from orbitmq.transport.router import Router
from orbitmq.transport.tls import ServerTls

__all__ = ["Listener", "Server", "ServerLimits"]

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server."""

    connections: int = 16_384
    idle_s: float = 120.0
    connection: ConnectionLimits = ConnectionLimits()
    held_bytes: int = HELD_BYTES_MAX
    """Half frames, kept requests and unread answers of all connections together."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A port to listen on. Port 0 lets the system choose; a bound socket is used as it is."""

    host: str
    port: int
    router: Router
    bound: socket.socket | None = None


class Server:
    """Accepts connections on one or more ports until stopped."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        *,
        limits: ServerLimits = ServerLimits(),
        tls: ServerTls | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        awake_for: frozenset[int] = frozenset(),
    ) -> None:
        """``awake_for`` are the codes of requests whose senders wait for the response; see ``BusyWait``."""
        self._awake_for = awake_for
        self._listeners = listeners
        self._limits = limits
        self._tls = tls if tls is not None else ServerTls()
        self._on_open = on_open
        self._on_close = on_close
        self._tasks = TaskOwner("server", watched=True)
        self._busy_wait: BusyWait | None = None
        self._sockets: list[asyncio.Server] = []
        self._all_closed = asyncio.Event()
        self._stopping = False
        self.connections: set[Connection] = set()
        self.held = HeldMemory(self.connections, limits.held_bytes)
        self.ports: list[int] = []
        """The bound port of each listener, in order."""

    async def start(self) -> None:
        """Start to listen. If a port cannot be bound, closes the others and raises ``OSError``."""
        loop = asyncio.get_running_loop()
        self._busy_wait = BusyWait(self._awake_for) if self._awake_for else None
        try:
            for listener in self._listeners:
                bound = listener.bound or bind_port(listener.host, listener.port)
                try:
                    server = await loop.create_server(
                        functools.partial(self._connection, listener.router), sock=bound, backlog=_BACKLOG
                    )
                except OSError:
                    bound.close()
                    raise
                self._sockets.append(server)
                self.ports.append(server.sockets[0].getsockname()[1])
        except OSError:
            for listener in self._listeners[len(self._sockets) :]:
                if listener.bound is not None:
                    listener.bound.close()
            await self.stop(0.0)
            raise
        period_s = min(10.0, max(0.05, self._limits.idle_s / 4))
        self._tasks.start(every(period_s, self._close_idle), "idle-sweep")

    def _connection(self, router: Router) -> Connection:
        connection = Connection(
            tasks=self._tasks,
            router=router,
            limits=self._limits.connection,
            server_tls=self._tls,
            on_open=self._opened,
            on_close=self._closed,
        )
        connection.busy_wait = self._busy_wait
        connection.held = self.held
        return connection

    def local_connection(self) -> Connection:
        """Returns the server's end of a connection inside this process. It is served like the connections of the
        first port."""
        connection = Connection(
            tasks=self._tasks,
            router=self._listeners[0].router,
            limits=self._limits.connection,
            on_open=self._opened,
            on_close=self._closed,
        )
        connection.busy_wait = self._busy_wait
        connection.held = self.held
        return connection

    def _opened(self, connection: Connection) -> None:
        if self._stopping or len(self.connections) >= self._limits.connections:
            reason = "stopping" if self._stopping else f"limit of {self._limits.connections} reached"
            logger.warning("connection refused peer=%s reason=%s", connection.remote_text, reason)
            connection.abort()
            return
        self.connections.add(connection)
        if self._on_open is not None:
            self._on_open(connection)

    def _closed(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        if self._on_close is not None:
            self._on_close(connection)
        if self._stopping and not self.connections:
            self._all_closed.set()

    def _close_idle(self) -> None:
        horizon = asyncio.get_running_loop().time() - self._limits.idle_s
        for connection in list(self.connections):
            if connection.last_active < horizon:
                logger.info("closing idle connection peer=%s", connection.remote_text)
                connection.abort()

    async def stop_accepting(self) -> None:
        """Close the listening ports. Open connections stay."""
        for server in self._sockets:
            server.close()
        self._sockets.clear()

    async def stop(self, wait_s: float = 5.0) -> None:
        """Stop accepting, send queued responses, and close. Connections that remain after ``wait_s`` are aborted."""
        await self.stop_accepting()
        self._stopping = True
        for connection in list(self.connections):
            connection.close()
        if self.connections and wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._all_closed.wait()
            except TimeoutError:
                logger.warning("aborting connections that did not close count=%d", len(self.connections))
        for connection in list(self.connections):
            connection.abort()
        self.held.close()
        await self._tasks.close()
        # One turn of the loop lets the aborted transports report their end.
        await asyncio.sleep(0)
