"""The other end of a connection for tests: raw bytes in and out, or frames."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from orbitmq.transport.client import RpcClient
from orbitmq.transport.router import RawRoute, Route, Router
from orbitmq.transport.server import Listener, Server, ServerLimits
from orbitmq.transport.tls import ServerTls
from orbitmq.wire.frame import Frame, FrameDecoder

HOST = "127.0.0.1"


@asynccontextmanager
async def serving(
    routes: Iterable[Route | RawRoute], *, limits: ServerLimits = ServerLimits(), tls: ServerTls | None = None
) -> AsyncIterator[Server]:
    """Yields a started server on a free port."""
    server = Server([Listener(HOST, 0, Router(routes))], limits=limits, tls=tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1.0)


@asynccontextmanager
async def closing(client: RpcClient) -> AsyncIterator[RpcClient]:
    try:
        yield client
    finally:
        await client.close()


def address_of(server: Server) -> str:
    return f"{HOST}:{server.ports[0]}"


class RawPeer:
    """A socket that sends exactly the given bytes and reads only on request."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()

    @classmethod
    async def connect(cls, server: Server, *, receive_buffer_bytes: int | None = None) -> RawPeer:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, (HOST, server.ports[0]))
        return cls(sock)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        """Returns the next bytes; empty at the end of the stream, however it ended."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20)
        except ConnectionError:
            return b""

    async def frame(self) -> Frame:
        """Returns the next whole frame."""
        while not self._frames:
            data = await self.receive()
            assert data, "the server closed the connection instead of answering"
            self._frames.extend(self._decoder.feed(data))
            assert self._decoder.error is None, self._decoder.error
        return self._frames.popleft()

    async def closed_by_server(self) -> bytes:
        """Waits for the end of the stream; returns the bytes before it."""
        received = b""
        while data := await self.receive():
            received += data
        return received

    def close(self) -> None:
        self._socket.close()

    async def __aenter__(self) -> RawPeer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
