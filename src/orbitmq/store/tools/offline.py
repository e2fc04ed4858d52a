"""Read-only access to a store directory, for tools: nothing is locked, created, repaired or changed.

The directory may belong to a running broker, to a dead one, or be a partial copy. Sizes are taken from the files
themselves where possible, so that a store of any configuration can be read.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from orbitmq.errors import CorruptionError
from orbitmq.record.scan import Scan, ScannedRecord, scan
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.index.index_file import ENTRY, HEADER, SLOT, IndexFile
from orbitmq.store.layout import BLANK_UNIT_SIZE, UNIT, UNIT_BYTES, offset_of_name

__all__ = ["OfflineQueue", "OfflineSegment", "OfflineStore", "detect_sizes"]

MAPS_MAX: Final = 8
READ_BYTES: Final = 20 * 8192
INDEX_NAME_DIGITS: Final = 17
SMALL_INDEX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class OfflineSegment:
    """One file of the log."""

    start: int
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OfflineQueue:
    """One consume queue. Its files are in the order of their first byte offsets."""

    topic: str
    queue_id: int
    files: tuple[tuple[int, str, int], ...]
    """(first byte, path, length), in order."""


class OfflineStore:
    """The files of one store."""

    def __init__(self, config: StoreConfig, fs: FileSystem = LOCAL_FILE_SYSTEM) -> None:
        self.config = detect_sizes(config, fs)
        self.fs = fs
        self._maps: OrderedDict[int, memoryview] = OrderedDict()
        self._segments = {segment.start: segment for segment in self.segments()}

    def look_again(self) -> None:
        """Detect sizes again, because a running broker may have created the first file of a kind in the meantime."""
        self.config = detect_sizes(self.config, self.fs)

    # Log.
    def segments(self) -> list[OfflineSegment]:
        """Returns the log files in order of their offsets."""
        found: list[OfflineSegment] = []
        for directory in self.config.log_directories:
            for name in self.fs.names(directory):
                path, start = posixpath.join(directory, name), offset_of_name(name)
                stat = self.fs.stat(path)
                if start is not None and stat is not None and not stat.is_directory:
                    found.append(OfflineSegment(start, path, stat.size_bytes))
        return sorted(found, key=lambda segment: segment.start)

    def scan(self, segment: OfflineSegment, position: int = 0, *, check_crc: bool = True) -> Scan:
        """Scan the records of a segment from a position on."""
        view = self.view(segment)
        return scan(view, position, len(view), check_crc=check_crc, log_base=segment.start)

    def view(self, segment: OfflineSegment) -> memoryview:
        """Returns the bytes of a segment; empty if the file is empty."""
        view = self._maps.get(segment.start)
        if view is None:
            if segment.size_bytes == 0:
                return memoryview(b"")
            handle = self.fs.open(segment.path)
            try:
                view = self.fs.map(handle, segment.size_bytes)
            finally:
                self.fs.close(handle)
            self._maps[segment.start] = view
            if len(self._maps) > MAPS_MAX:
                self._maps.popitem(last=False)
        else:
            self._maps.move_to_end(segment.start)
        return view

    def record_at(self, log_offset: int) -> ScannedRecord | None:
        """Returns the whole record that starts at a log offset; None if there is none. Its body is not checked."""
        size = self.config.segment_bytes
        segment = self._segments.get(log_offset - log_offset % size) if log_offset >= 0 else None
        if segment is None:
            return None
        view = self.view(segment)
        position = log_offset - segment.start
        if position + 4 > len(view):
            return None
        own_size = int.from_bytes(view[position : position + 4], "big", signed=True)
        end = position + own_size
        if own_size <= 0 or end > len(view):
            return None
        return next(iter(scan(view, position, end, check_crc=False, log_base=segment.start)), None)

    def record_bytes(self, record: ScannedRecord) -> memoryview:
        """Returns the bytes of a record found by ``record_at`` or ``scan``."""
        segment = self._segments[record.log_offset - record.log_offset % self.config.segment_bytes]
        return self.view(segment)[record.position : record.position + record.size]

    # Queues.
    def queues(self) -> list[OfflineQueue]:
        """Returns every consume queue, sorted by topic and queue id."""
        root = self.config.path("consumequeue")
        found: list[OfflineQueue] = []
        for topic in self.fs.names(root):
            for name in self.fs.names(posixpath.join(root, topic)):
                if name.isascii() and name.isdecimal():
                    found.append(self._queue(topic, int(name), posixpath.join(root, topic, name)))
        return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))

    def _queue(self, topic: str, queue_id: int, directory: str) -> OfflineQueue:
        files: list[tuple[int, str, int]] = []
        for name in self.fs.names(directory):
            path, start = posixpath.join(directory, name), offset_of_name(name)
            stat = self.fs.stat(path)
            if start is not None and stat is not None and not stat.is_directory:
                files.append((start, path, stat.size_bytes))
        return OfflineQueue(topic, queue_id, tuple(sorted(files)))

    def units(self, queue: OfflineQueue, first: int = 0) -> Iterator[tuple[int, int, int, int]]:
        """Yields (queue offset, log offset, record size, tag code) of all units from a queue offset on, up to the
        first empty one; blank units are left out."""
        for start, path, size in queue.files:
            handle = self.fs.open(path)
            try:
                position = max(0, first * UNIT_BYTES - start)
                while position < size:
                    data = self.fs.pread(handle, READ_BYTES, position)
                    for log_offset, record_size, code in UNIT.iter_unpack(
                        data[: len(data) - len(data) % UNIT_BYTES]
                    ):
                        if record_size <= 0 or log_offset < 0:
                            return
                        if record_size != BLANK_UNIT_SIZE:
                            yield (start + position) // UNIT_BYTES, log_offset, record_size, code
                        position += UNIT_BYTES
                    if len(data) < READ_BYTES:
                        break
            finally:
                self.fs.close(handle)

    def is_zero_behind(self, queue: OfflineQueue, queue_offset: int) -> bool:
        """Whether the files of a queue contain only zeros from a queue offset on."""
        for start, path, size in queue.files:
            position = max(0, queue_offset * UNIT_BYTES - start)
            handle = self.fs.open(path)
            try:
                while position < size and (data := self.fs.pread(handle, READ_BYTES, position)):
                    if data.strip(b"\0"):
                        return False
                    position += len(data)
            finally:
                self.fs.close(handle)
        return True

    # Index.
    def index_paths(self) -> list[str]:
        """Returns the paths of the index files, oldest first."""
        directory = self.config.path("index")
        names = self.fs.names(directory)
        return [
            posixpath.join(directory, name)
            for name in names
            if len(name) == INDEX_NAME_DIGITS and name.isascii() and name.isdecimal()
        ]

    def index_file(self, path: str) -> IndexFile:
        """Open an index file. Raises ``CorruptionError``."""
        return IndexFile.load(self.fs, path, self.config.index_slots, self.config.index_entries)

    def close(self) -> None:
        """Drop all memory maps."""
        self._maps.clear()


def detect_sizes(config: StoreConfig, fs: FileSystem) -> StoreConfig:
    """Returns the configuration with the sizes of the store's actual files."""
    changes: dict[str, Any] = {}
    sizes = [
        stat.size_bytes
        for directory in config.log_directories
        for name in fs.names(directory)
        if offset_of_name(name) is not None and (stat := fs.stat(posixpath.join(directory, name))) is not None
    ]
    if sizes and max(sizes) > 0:
        changes["segment_bytes"] = max(sizes)
    queue_bytes = _queue_file_bytes(config, fs)
    if queue_bytes:
        changes["queue_file_bytes"] = queue_bytes
    directory = config.path("index")
    for name in fs.names(directory):
        slots = _index_slots(config, fs, posixpath.join(directory, name))
        if slots is not None:
            changes["index_slots"], changes["index_entries"] = slots
            break
    return dataclasses.replace(config, **changes)


def _queue_file_bytes(config: StoreConfig, fs: FileSystem) -> int:
    root = config.path("consumequeue")
    for topic in fs.names(root):
        for queue in fs.names(posixpath.join(root, topic)):
            for name in fs.names(posixpath.join(root, topic, queue)):
                stat = fs.stat(posixpath.join(root, topic, queue, name))
                if offset_of_name(name) is not None and stat is not None and stat.size_bytes > 0:
                    return stat.size_bytes
    return 0


def _index_slots(config: StoreConfig, fs: FileSystem, path: str) -> tuple[int, int] | None:
    """Returns (slots, entries) of an index file; None if no pair fits. The file's length allows many pairs. In the
    correct one, the first and the last entry match the header, and the last entry is in its slot."""
    stat = fs.stat(path)
    if stat is None or stat.size_bytes <= HEADER.size or len(posixpath.basename(path)) != INDEX_NAME_DIGITS:
        return None
    room = stat.size_bytes - HEADER.size
    for slots in _slot_counts(config, room):
        entries = (room - SLOT.size * slots) // ENTRY.size
        if slots < 1 or entries < 2 or SLOT.size * slots + ENTRY.size * entries != room:
            continue
        try:
            file = IndexFile.load(fs, path, slots, entries)
        except CorruptionError:
            continue
        if _fits(file):
            return slots, entries
    return None


def _slot_counts(config: StoreConfig, room: int) -> Iterator[int]:
    """Yields likely slot counts, most likely first: the configured one, then fixed ratios of the entries, then all
    (for a small file)."""
    yield config.index_slots
    yield from (room // (SLOT.size + ENTRY.size * ratio) for ratio in range(1, 65))
    if room < SMALL_INDEX_BYTES:
        yield from range(1, room // SLOT.size)


def _fits(file: IndexFile) -> bool:
    if file.is_empty:
        return True
    first, last = file.entry(1), file.entry(file.count - 1)
    if (first.log_offset, last.log_offset) != (
        file.begin_log_offset,
        file.end_log_offset,
    ) or last.key_hash < 0:
        return False
    slot = file.read(HEADER.size + SLOT.size * (last.key_hash % file.slot_count), SLOT.size)
    return SLOT.unpack(slot) == (file.count - 1,)
