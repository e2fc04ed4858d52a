"""A TCP proxy that stalls, cuts and delays connections, to simulate a bad network between two servers.

``async with ChaosProxy(host, port) as proxy:`` listens on ``proxy.address`` and forwards bytes to the target. When a
connection is cut, bytes still in the proxy are lost, as in a real network.
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Final, Self

from orbitmq.runtime.tasks import TaskOwner

__all__ = ["ChaosProxy"]

_PIECE_BYTES: Final = 16 * 1024


class ChaosProxy:
    """A proxy between one server and its clients."""

    def __init__(self, host: str, port: int, *, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = (host, port)
        self._listen = listen
        self._tasks = TaskOwner("chaos-proxy")
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.delay_s = 0.0
        """The delay of every chunk of bytes."""
        self.accepting = True
        """If False, new connections are closed immediately."""
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, *self._listen)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._tasks.close()
        await asyncio.sleep(0)

    # -- faults ----------------------------------------------------------------------------------------

    def stall(self) -> None:
        """Stop forwarding, but keep connections open."""
        self._flowing.clear()

    def cut(self) -> None:
        """Abort every connection in both directions."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close_listener(self) -> None:
        """Refuse new connections from now on, like a machine without a listener."""
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)

    def heal(self) -> None:
        """End all faults. Connections that were cut stay closed."""
        self.delay_s = 0.0
        self.accepting = True
        self._flowing.set()

    def fault(self, chance: random.Random) -> str:
        """Cause a random fault, or end all faults. Returns the name of the action."""
        name = chance.choice(("stall", "cut", "delay", "closed", "heal", "heal"))
        if name == "stall":
            self.stall()
        elif name == "cut":
            self.cut()
        elif name == "delay":
            self.delay_s = chance.uniform(0.0, 0.05)
        elif name == "closed":
            self.accepting = False
            self.cut()
        else:
            self.heal()
        return name

    # -- bytes -----------------------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepting:
            writer.transport.abort()
            return
        self._tasks.start(self._serve(reader, writer), "connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, their_writer}
        self._writers |= both
        back = self._tasks.start(self._pass_on(their_reader, writer), "back")
        try:
            await self._pass_on(reader, their_writer)
            await back
        finally:
            self._writers -= both

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(_PIECE_BYTES):
                await self._flowing.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if writer.is_closing():
                    break
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, OSError):
            pass
        finally:
            # Closing one direction closes both: neither broker uses half-open connections.
            writer.transport.abort()
