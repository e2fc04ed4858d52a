"""A cache of server responses.

Fresh entries are returned immediately. So are older ones, which are then refreshed in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from orbitmq.errors import OrbitError
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["Cache"]

logger = logging.getLogger(__name__)

V = TypeVar("V")


class _Entry(Generic[V]):
    __slots__ = ("loaded", "loading", "used", "value")

    def __init__(self, value: V, now: float) -> None:
        self.value = value
        self.loaded = now
        self.used = now
        self.loading = False


class Cache(Generic[V]):
    """Values by name. Failed loads are not cached, and a value survives a failed refresh."""

    def __init__(
        self,
        load: Callable[[str], Awaitable[V]],
        *,
        tasks: TaskOwner,
        clock: Clock,
        refresh_s: float,
        expiry_s: float,
        entries_max: int,
    ) -> None:
        self._load = load
        self._tasks = tasks
        self._now = clock.monotonic
        self._refresh_s = refresh_s
        self._expiry_s = expiry_s
        self._entries_max = entries_max
        self._entries: dict[str, _Entry[V]] = {}
        self._loading: dict[str, asyncio.Task[V | OrbitError]] = {}

    def known(self, name: str) -> V | None:
        """Returns the cached value, or None. Starts a refresh if the value is old."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        now = entry.used = self._now()
        if now - entry.loaded > self._refresh_s and not entry.loading:
            entry.loading = True
            self._tasks.start(self._refresh(name, entry), "refresh")
        return entry.value

    async def get(self, name: str) -> V:
        """Returns the value, loading it if necessary. Raises the errors of the load."""
        value = self.known(name)
        if value is not None:
            return value
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = self._tasks.start(self._load_first(name), "load")
            loading.add_done_callback(lambda _: self._loading.pop(name, None))
        found = await asyncio.shield(loading)
        if isinstance(found, OrbitError):
            raise found
        return found

    def forget(self, name: str) -> None:
        self._entries.pop(name, None)

    def names(self) -> list[str]:
        return list(self._entries)

    def expire(self) -> None:
        """Evict entries that have not been used for a long time. Call it periodically."""
        horizon = self._now() - self._expiry_s
        for name in [name for name, entry in self._entries.items() if entry.used < horizon]:
            del self._entries[name]

    async def _load_first(self, name: str) -> V | OrbitError:
        try:
            value = await self._load(name)
        except OrbitError as error:
            return error
        if len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[name] = _Entry(value, self._now())
        return value

    async def _refresh(self, name: str, entry: _Entry[V]) -> None:
        try:
            entry.value = await self._load(name)
        except OrbitError as error:
            logger.debug("not refreshed name=%s error=%s", name, error)
        finally:
            entry.loaded = self._now()
            entry.loading = False
