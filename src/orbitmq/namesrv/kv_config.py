"""Key-value configuration, kept in ``kvConfig.json`` (Apache: KVConfigManager, same file).

A change is on disk before it is visible and before it is answered. If the disk fails, nothing changes. Changes are
rare operator commands, so each one writes the whole file on a worker thread, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from orbitmq.errors import ServerError
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.wire import javajson

__all__ = ["ORDER_TOPIC_CONFIG", "KvConfig"]

logger = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The namespace that holds ``broker:queues;broker:queues`` for each topic with a fixed order of queues."""

Tables = Mapping[str, Mapping[str, str]]


class _Stored(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str | None]] = {}


class KvConfig:
    """Namespaces of text values. With a ``file`` they survive a restart."""

    def __init__(
        self, file: SafeFile | None = None, on_change: Callable[[str, str], None] | None = None
    ) -> None:
        self._file = file
        self._on_change = on_change
        self._tables: Tables = {}
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Read the file, or its backup. Raises ``CorruptionError`` if neither can be parsed."""
        if self._file is None:
            return
        stored = self._file.load(lambda content: javajson.decode(content, _Stored))
        if stored is not None:
            self._tables = {
                namespace: {key: value for key, value in table.items() if value is not None}
                for namespace, table in stored.config_table.items()
            }
            logger.info("kv config loaded path=%s namespaces=%d", self._file.path, len(self._tables))

    def value(self, namespace: str, key: str) -> str | None:
        table = self._tables.get(namespace)
        return None if table is None else table.get(key)

    def table(self, namespace: str) -> Mapping[str, str] | None:
        """Returns all keys of a namespace and their values: empty if its last key was deleted, ``None`` if it never
        existed."""
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str | None) -> None:
        """Set a key. Without a value, the namespace is created and the key stays unset, like a null in Apache."""
        await self._change(namespace, key, value, create=True)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key. The namespace stays. A missing key is not an error."""
        await self._change(namespace, key, None, create=False)

    async def _change(self, namespace: str, key: str, value: str | None, *, create: bool) -> None:
        async with self._changing:
            current = self._tables.get(namespace)
            if current is None and not create:
                return
            table = dict(current or {})
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
            if table == current:
                return
            tables = {**self._tables, namespace: table}
            await self._save(tables)
            self._tables = tables
        logger.info("kv config changed namespace=%s key=%s value=%s", namespace, key, value)
        if self._on_change is not None:
            self._on_change(namespace, key)

    async def _save(self, tables: Tables) -> None:
        content = msgspec.json.encode({"configTable": tables})
        if len(content) > javajson.BODY_BYTES_MAX:
            raise ServerError(f"kv config would exceed {javajson.BODY_BYTES_MAX} bytes")
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.save, content)
        except OSError as error:
            logger.error("kv config not written path=%s error=%s", self._file.path, error)
            raise ServerError(f"kv config cannot be written: {error.strerror or error}") from None
