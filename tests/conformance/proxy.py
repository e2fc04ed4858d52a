"""A TCP proxy that misbehaves on demand: cuts connections, stops forwarding, refuses."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]


class Proxy:
    """Listens at one address and forwards to another. ``async with`` runs it."""

    def __init__(self, listen: tuple[str, int], forward: tuple[str, int]) -> None:
        self._listen = listen
        self._forward = forward
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.flow()
        while self._tasks:  # not cancelled: the stream callbacks of asyncio 3.11 complain of that
            self.cut()
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """Resets every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Keeps connections open and forwards nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        """Resumes forwarding."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._forward)
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                self._writers.discard(end)
                end.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        except (ConnectionError, OSError):
            pass
        finally:
            writer.transport.abort()
