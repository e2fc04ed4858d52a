"""The listening port. Accepts connections, sweeps idle ones and shuts down gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import Final

from orbitmq.proxy.http2.call import Method
from orbitmq.proxy.http2.connection import Http2Connection, Port
from orbitmq.proxy.http2.limits import Http2Limits, Turns
from orbitmq.proxy.http2.proxy_protocol import Balancers
from orbitmq.runtime.stalls import monotonic
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.held_memory import HeldMemory
from orbitmq.transport.ports import bind_port
from orbitmq.transport.tls import ServerTls

__all__ = ["GrpcServer"]

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_SWEPT_AT_ONCE: Final = 2000
"""How many calls are checked before other work may run."""


class GrpcServer:
    """Serves ``methods`` on one port, over TLS and plain text."""

    def __init__(
        self,
        methods: Iterable[Method],
        *,
        host: str,
        port: int,
        tls: ServerTls,
        limits: Http2Limits,
        balancers: Balancers | None = None,
        idle_s: float = 120.0,
    ) -> None:
        self._methods = {method.path: method for method in methods}
        self._host = host
        self._port = port
        self.tls = tls
        """May be replaced while the server runs; new connections use the new certificate."""
        self._limits = limits
        self._idle_s = idle_s
        self._balancers = balancers or Balancers()
        self._tasks = TaskOwner("grpc")
        self._server: asyncio.Server | None = None
        self.connections: set[Http2Connection] = set()
        self.held = HeldMemory(self.connections, limits.held_bytes)
        self._turns: Turns | None = None
        self._all_closed: asyncio.Event | None = None
        self.port = 0

    def use_tls(self, tls: ServerTls) -> None:
        """Use this certificate for new connections."""
        self.tls = tls

    async def start(self, bound: socket.socket | None = None) -> None:
        """Start to listen, on ``bound`` if it is given. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        self._turns = Turns()
        bound = bound or bind_port(self._host, self._port)
        try:
            self._server = await loop.create_server(self._connection, sock=bound, backlog=_BACKLOG)
        except OSError:
            bound.close()
            raise
        self.port = self._server.sockets[0].getsockname()[1]
        self._tasks.start(every(min(10.0, self._idle_s / 4), self._sweep), "idle-sweep")

    @property
    def buffered_bytes(self) -> int:
        """Bytes of requests, headers and unread answers that all connections hold."""
        return self.held.held_bytes

    def _connection(self) -> Http2Connection:
        assert self._turns is not None
        connection = Http2Connection(
            Port(
                methods=self._methods,
                tasks=self._tasks,
                tls=self.tls,
                limits=self._limits,
                balancers=self._balancers,
                held=self.held,
                turns=self._turns,
                on_open=self.connections.add,
                on_close=self._closed,
            )
        )
        if len(self.connections) >= self._limits.connections:
            logger.warning("connection refused reason=limit of %d reached", self._limits.connections)
            asyncio.get_running_loop().call_soon(connection.abort)
        return connection

    def _closed(self, connection: Http2Connection) -> None:
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections:
            self._all_closed.set()

    async def _sweep(self) -> None:
        idle_before = monotonic() - self._idle_s
        seen = 0
        for connection in list(self.connections):
            seen += 1 + connection.sweep(idle_before)
            if seen >= _SWEPT_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)

    async def stop(self, wait_s: float = 3.0) -> None:
        """Refuse new calls, wait at most ``wait_s`` seconds for the running ones, then close."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.go_away()
        if self.connections:
            self._all_closed = asyncio.Event()
            try:
                async with asyncio.timeout(wait_s):
                    await self._all_closed.wait()
            except TimeoutError:
                logger.info("calls aborted at shutdown connections=%d", len(self.connections))
        for connection in list(self.connections):
            connection.abort()
        self.held.close()
        await self._tasks.close()
        await asyncio.sleep(0)
