"""Calls servers by address, over shared connections that are opened when needed.

Corresponds to Apache's NettyRemotingClient.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Final

from orbitmq.codes import SerializeType
from orbitmq.errors import ConnectFailedError
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.connection import Connection, ConnectionLimits, request_fields
from orbitmq.transport.local import LocalServer, connect_local
from orbitmq.transport.router import Router
from orbitmq.transport.tls import TlsFilter
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header

__all__ = ["RpcClient", "Signer", "split_address"]

logger = logging.getLogger(__name__)

_NO_ROUTES: Final = Router(())
SILENCE_S: Final = 10.0
"""How long a server may leave calls unanswered: longer than most process pauses, short enough for a heartbeat or
two."""
GATHERED_BYTES: Final = 2048
"""Measured with 100 sends in flight: 52,000/s, against 30,000/s when all requests of a turn leave in one write,
because then client and broker wait for each other. A smaller value costs system calls and gains nothing."""


Signer = Callable[[Mapping[str, str], bytes], dict[str, str]]
"""Returns the fields of a request with a signature."""


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of ``host:port``. IPv6 hosts may be in brackets."""
    host, _, port = address.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ConnectFailedError(f"not an address of the form host:port: {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class RpcClient:
    """Opens, keeps and closes connections, one for each address."""

    def __init__(
        self,
        *,
        router: Router = _NO_ROUTES,
        limits: ConnectionLimits = ConnectionLimits(),
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 3.0,
        serialize_type: SerializeType = SerializeType.JSON,
        sign: Signer | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        """``sign`` adds a signature to the fields of every request; see ``orbitmq.auth.signature``."""
        self._router = router
        self._limits = limits
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = limits.idle_s
        self._serialize_type = serialize_type
        self._on_close = on_close
        self._tasks = TaskOwner("rpc-client")
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection | str]] = {}
        self._sweeping = False
        self._all_closed = asyncio.Event()
        self._closed = False
        self._local: dict[str, LocalServer] = {}
        self.sign = sign

    def reach_locally(self, address: str, server: LocalServer) -> None:
        """Use a connection inside this process, without a socket, for ``address``."""
        self._local[address] = server

    def open_connection(self, address: str) -> Connection | None:
        """Returns the connection to ``address`` if it is open, otherwise None."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    async def connection(self, address: str) -> Connection:
        """Returns the connection to ``address``, opening it if necessary. Raises ``ConnectFailedError``."""
        connection = self._open.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise ConnectFailedError("the client is closed")
        opening = self._opening.get(address)
        if opening is None:
            split_address(address)
            opening = self._tasks.start(self._connect(address), f"connect-{address}")
            self._opening[address] = opening
            opening.add_done_callback(lambda done: self._opening.pop(address, None))
        try:
            # Shielded, so that a caller that gives up does not cancel the attempt that others wait for.
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # only ``close`` does that
                raise ConnectFailedError("the client is closed") from None
            raise
        if isinstance(opened, str):
            raise ConnectFailedError(opened)
        return opened

    async def _connect(self, address: str) -> Connection | str:
        """Returns a connection, or the reason why there is none. Every waiting caller raises an error of its own from
        it."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        inside = self._local.get(address)
        if inside is not None:
            connection = self._new_connection(host)
            connect_local(connection, inside(), (host, port))
            self._open[address] = connection
            return connection
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(lambda: self._new_connection(host), host, port)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: a host name no resolver can take
            return f"cannot connect to {address}: {str(error) or 'timed out'}"
        if connection.closed:
            return f"cannot connect to {address}: closed by the peer at once"
        # The address it was opened with, which its owner compares: a host name, or IPv6 in brackets.
        connection.remote_text = address
        self._open[address] = connection
        if not self._sweeping:
            self._sweeping = True
            self._tasks.start(every(min(10.0, self._idle_s / 4), self._close_idle), "idle-sweep")
        return connection

    def _new_connection(self, host: str) -> Connection:
        connection = Connection(
            tasks=self._tasks,
            router=self._router,
            limits=self._limits,
            client_tls=None if self._tls is None else TlsFilter(self._tls, server_side=False, host=host),
            on_close=self._connection_closed,
        )
        connection.serialize_type = self._serialize_type
        connection.gathered_bytes = GATHERED_BYTES
        connection.silence_s = SILENCE_S
        return connection

    def _connection_closed(self, connection: Connection) -> None:
        for address, known in list(self._open.items()):
            if known is connection:
                del self._open[address]
        if self._on_close is not None:
            self._on_close(connection)
        if self._closed and not self._open:
            self._all_closed.set()

    def _close_idle(self) -> None:
        horizon = asyncio.get_running_loop().time() - self._idle_s
        for connection in list(self._open.values()):
            if connection.last_active < horizon:
                connection.abort()

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        ext: dict[str, str] | None = None,
    ) -> Frame:
        """Call the server at ``address`` and return its response. The time to connect counts against
        ``timeout_s``."""
        left_s = timeout_s
        connection = self.open_connection(address)
        if connection is None or timeout_s <= 0:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_s
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self.connection(address)
            except TimeoutError:
                if timeout_s <= 0:  # used up before, such as by a burst of sends that is being encoded
                    raise ConnectFailedError(f"the time limit ended before connecting to {address}") from None
                raise ConnectFailedError(f"no connection to {address} within {timeout_s:g} s") from None
            left_s = max(0.001, deadline - loop.time())
        if self.sign is not None:
            header, ext = None, self.sign(request_fields(header, ext) or {}, body)
        return await connection.call(code, header, body, timeout_s=left_s, ext=ext)

    async def notify(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Send a oneway request. Returns when it has been passed to the connection."""
        connection = await self.connection(address)
        if self.sign is not None:
            header, ext = None, self.sign(request_fields(header, ext) or {}, body)
        connection.notify(code, header, body, ext=ext)

    def drop(self, address: str) -> None:
        """Close the connection to ``address``, if there is one."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self, wait_s: float = 1.0) -> None:
        """Close all connections. Waiting calls raise ``ConnectionLostError``. Connections that do not close within
        ``wait_s`` are aborted."""
        self._closed = True
        for connection in list(self._open.values()):
            connection.close()
        if self._open:
            try:
                async with asyncio.timeout(wait_s):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in list(self._open.values()):
                    connection.abort()
        await self._tasks.close()
        # One turn of the loop lets the aborted transports report their end.
        await asyncio.sleep(0)
