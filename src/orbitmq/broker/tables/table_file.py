"""Reads and writes ``topics.json`` and ``subscriptionGroup.json``, tables of named configs with a data version.

A broker may hold tens of thousands of configs and rewrites the file at every change. The text of each config is
therefore cached until the config is replaced, so a rewrite mostly joins cached texts. Config members that this
project does not know are kept separately and written back.

Saving takes six disk syncs, so a thread does it, once per set of changes (``TableSaves``). An operator's changes are
saved before the response is sent. Requests do not wait for changes that clients cause in passing, because a heartbeat
may name hundreds of new groups.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from orbitmq.errors import BodyError
from orbitmq.model.data_version import DataVersion
from orbitmq.model.members import to_object, unknown_members
from orbitmq.runtime.safe_file import CONTENT_BYTES_MAX, SafeFile
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.wire import javajson

__all__ = ["LoadedTable", "TableFile", "TableSaves", "differences"]

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=msgspec.Struct)
_VERSION_MEMBER: Final = "dataVersion"


def differences(before: C, after: C) -> str:
    """Returns the new values of the members that differ, as `` name=value`` each, for a log line."""
    values = ((name, getattr(before, name), getattr(after, name)) for name in after.__struct_fields__)
    return "".join(f" {name}={new}" for name, old, new in values if new != old)


class LoadedTable(msgspec.Struct, Generic[C]):
    """The parsed content of a table file."""

    data_version: DataVersion
    entries: dict[str, C]
    others: dict[str, Any]
    """The other members of the file."""


class TableFile(Generic[C]):
    """Reads and writes one table file."""

    def __init__(self, file: SafeFile, member: str, config_type: type[C]) -> None:
        self._file = file
        self._member = member
        self._config_type = config_type
        self._unknown: dict[str, dict[str, Any]] = {}
        self._texts: dict[str, tuple[C, str]] = {}

    def load(self) -> LoadedTable[C] | None:
        """Returns the content, or None if the file does not exist. Raises ``CorruptionError``."""
        loaded = self._file.load(self._parse)
        if loaded is not None:
            self._texts.clear()
        return loaded

    def content(
        self, data_version: DataVersion, entries: Mapping[str, C], others: Mapping[str, Any] | None = None
    ) -> bytes:
        """Returns the bytes to write to the file."""
        members = {
            _VERSION_MEMBER: _indented(data_version, 1),
            self._member: self._table_text(entries),
            **{name: _indented(value, 1) for name, value in (others or {}).items()},
        }
        lines = ",\n".join(f'\t"{name}":{text}' for name, text in sorted(members.items()))
        return f"{{\n{lines}\n}}".encode()

    def write(self, content: bytes) -> None:
        """Replace the file. Raises ``OSError``."""
        self._file.save(content)

    def forget(self, name: str) -> None:
        """Drop the cached text and unknown members of a deleted config."""
        self._unknown.pop(name, None)
        self._texts.pop(name, None)

    def _parse(self, content: bytes) -> LoadedTable[C]:
        raw = javajson.loads(content, bytes_max=CONTENT_BYTES_MAX)
        if not isinstance(raw, dict):
            raise BodyError("the file is not a JSON object")
        table = raw.pop(self._member, None) or {}
        version = raw.pop(_VERSION_MEMBER, None) or {}
        entries: dict[str, C] = {}
        unknown: dict[str, dict[str, Any]] = {}
        try:
            data_version = msgspec.convert(version, DataVersion, strict=False)
            for name, value in table.items():
                members = {key: item for key, item in value.items() if item is not None}
                entries[name] = msgspec.convert(members, self._config_type, strict=False)
                if extra := unknown_members(self._config_type, members):
                    unknown[name] = extra
        except (msgspec.ValidationError, AttributeError) as error:
            raise BodyError(f"member {self._member} cannot be read: {error}") from None
        self._unknown = unknown
        return LoadedTable(data_version, entries, raw)

    def _table_text(self, entries: Mapping[str, C]) -> str:
        if not entries:
            return "{}"
        lines = ",\n".join(
            f"\t\t{_quoted(name)}:{self._text(name, config)}" for name, config in entries.items()
        )
        return f"{{\n{lines}\n\t}}"

    def _text(self, name: str, config: C) -> str:
        known = self._texts.get(name)
        if known is not None and known[0] is config:
            return known[1]
        extra = self._unknown.get(name)
        text = _indented(config if extra is None else to_object(config, extra), 2)
        self._texts[name] = (config, text)
        return text


class TableSaves:
    """Decides when a table is saved. Older content never overwrites newer content."""

    def __init__(
        self,
        name: str,
        content: Callable[[], bytes],
        write: Callable[[bytes], None],
        tasks: TaskOwner | None = None,
    ) -> None:
        """``write`` raises ``OSError``. Only one thread calls it at a time. ``tasks`` runs background saves; without
        it, every save is synchronous."""
        self._name = name
        self._content = content
        self._write = write
        self._writing = threading.Lock()
        self._made = self._written = 0
        self._dirty = False
        self._running: asyncio.Task[None] | None = None
        self._tasks = tasks

    def now(self) -> None:
        """Save before returning. A disk error is logged, and the next save retries."""
        self._dirty = True
        try:
            self.persist()
        except OSError as error:
            logger.error("%s not saved error=%s", self._name, error)

    def aside(self) -> None:
        """Save in the background, together with other changes made in this turn of the event loop."""
        if self._tasks is None or self._tasks.closed:
            self.now()
            return
        self._dirty = True
        if self._running is None:
            self._running = self._tasks.start(self._save_aside(), f"save-{self._name}")

    @property
    def is_running(self) -> bool:
        """Whether a background save has started and not ended yet."""
        return self._running is not None

    async def saved(self) -> None:
        """Wait until all changes so far are saved or a save has failed."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def persist(self) -> None:
        """Save if there are unsaved changes. Raises ``OSError``."""
        if self._dirty:
            self._put(*self._next())
            self._dirty = False

    async def _save_aside(self) -> None:
        await asyncio.sleep(0)
        try:
            while self._dirty:
                self._dirty = False
                number, content = self._next()
                try:
                    await asyncio.to_thread(self._put, number, content)
                except OSError as error:
                    self._dirty = True  # the periodic save retries
                    logger.error("%s not saved error=%s", self._name, error)
                    return
                except asyncio.CancelledError:
                    self._dirty = True  # it is unknown whether it was written
                    raise
        finally:
            self._running = None

    def _next(self) -> tuple[int, bytes]:
        self._made += 1
        return self._made, self._content()

    def _put(self, number: int, content: bytes) -> None:
        with self._writing:
            if number > self._written:
                self._write(content)
                self._written = number


def _indented(value: Any, depth: int) -> str:
    # Line breaks inside strings are escaped, so every literal line break comes from the writer.
    return javajson.encode_pretty(value).decode().replace("\n", "\n" + "\t" * depth)


def _quoted(text: str) -> str:
    return javajson.encode(text).decode()
