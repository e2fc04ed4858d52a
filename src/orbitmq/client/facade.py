"""The base class of the blocking clients: start, stop, and an event loop on a thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from orbitmq.client.consume.consumer_base import ConsumerBase
from orbitmq.client.loop_thread import LoopThread

__all__ = ["Facade", "make"]

T = TypeVar("T")


async def make(function: Callable[..., T], *arguments: Any, **settings: Any) -> T:
    """Call a function on the loop, because asyncio objects belong to the loop they are created on."""
    return function(*arguments, **settings)


class Facade:
    """The base class of the blocking clients. ``_client`` is the asyncio client, ``_loop`` the loop it runs on."""

    _client: Any

    def __init__(
        self, kind: Callable[..., Any], loop: LoopThread | None, *arguments: Any, **settings: Any
    ) -> None:
        self._owns_loop = loop is None
        self._stopped = False
        self._loop = loop or LoopThread()
        try:
            self._client = self._loop.run(make(kind, *arguments, **settings))
        except BaseException:
            self._close_loop()
            raise

    def _close_loop(self) -> None:
        if self._owns_loop:
            self._loop.close()

    def __del__(self) -> None:
        if getattr(self, "_stopped", True) or not hasattr(self, "_client"):
            return
        if self._client._instance.running:
            text = f"client {self.client_id} was not stopped: `with` does it, or `client.stop()`"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            self._client._instance.forget()
        if self._owns_loop:
            self._loop.close_soon()

    @property
    def client_id(self) -> str:
        client_id: str = self._client.client_id
        return client_id

    @property
    def group(self) -> str:
        group: str = self._client.group
        return group

    @property
    def held_messages(self) -> dict[str, int]:
        held: dict[str, int] = self._client.held_messages
        return held

    @property
    def damaged_messages(self) -> int:
        damaged: int = getattr(self._client, "damaged_messages", 0)
        return damaged

    def start(self) -> None:
        """Start the asyncio client; see its ``start``."""
        self._loop.run(self._client.start())

    def stop(self) -> None:
        """Stop the asyncio client; see its ``stop``. Also ends the loop if it belongs to this client. A second stop
        does nothing."""
        if self._stopped:
            return
        if getattr(self._client, "handles_here", False):
            # Called by a handler: the stop waits for the handler to return, so the handler cannot wait for the stop.
            stopping = self._loop.submit(self._client.stop())
            self._stopped = True
            if self._owns_loop:
                stopping.add_done_callback(lambda _: self._loop.close_soon())
            return
        self._stopped = True
        try:
            self._loop.run(self._client.stop())
        finally:
            self._close_loop()

    async def _leave(self, kind: type[BaseException] | None) -> None:
        """Leave the block as ``async with`` would, but without the stop."""
        if kind is None and isinstance(self._client, ConsumerBase) and self._client._instance.running:
            self._client._acknowledge_left()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._close_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stopped:
            self._loop.run(self._leave(kind))
        self.stop()
