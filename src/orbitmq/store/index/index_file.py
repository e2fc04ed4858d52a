"""One file of the key index, byte-compatible with Apache's (IndexFile, IndexHeader).

::

    header 40: begin time 8, end time 8, begin log offset 8, end log offset 8, used slots 4, entry count 4
    slots: 4 bytes each, the number of the newest entry in the slot, 0 for none
    entries: key hash 4, log offset 8, seconds since begin time 4, number of the previous entry in the slot 4

Counting starts at 1, so entry 0 is never used. Its 20 bytes hold our mark: how many entries were known to be on disk.
Apache neither reads nor writes it. After a crash Apache must discard an unfinished file; we cut it back to the mark,
which saves rereading gigabytes of log.

Rules for writers:

1. Entries are written with ``pwrite``: a full disk is an ``OSError`` that leaves the file as it was. Only the header
   and the slots are written through a map, into blocks allocated beforehand. The header counts an entry last.
2. Log offsets and times of entries never decrease, so a file can be cut by binary search.
3. The mark is written only after ``sync_data`` has returned for everything it covers.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from struct import Struct
from sys import byteorder
from threading import Lock
from typing import Final, NamedTuple, Self
from zlib import crc32

from orbitmq.errors import CorruptionError
from orbitmq.kernel import link_keys
from orbitmq.kernel.layout import INDEX_ENTRY, INDEX_KEY
from orbitmq.runtime.filesystem import FileSystem

__all__ = [
    "ENTRY",
    "HEADER",
    "IndexEntry",
    "IndexFile",
    "IndexMark",
    "IndexProgress",
]

logger = logging.getLogger(__name__)

HEADER: Final = Struct(">qqqqii")
SLOT: Final = Struct(">i")
ENTRY: Final = INDEX_ENTRY
MARK: Final = Struct(">iiqI")
assert HEADER.size == 40, "persisted: every index file on disk depends on it"
assert SLOT.size == 4, "persisted"
assert MARK.size == ENTRY.size, "persisted"

MARK_SEED: Final = crc32(b"orbitmq index mark")
WALK_STEPS_MAX: Final = 1_000_000
"""A query stops after this many entries of a slot (about 0.3 s): a popular tag fills one slot with millions."""
SECTOR_BYTES: Final = 512
"""Number of bytes that a disk writes atomically."""
SCAN_BYTES: Final = 20 * 50_000
"""Bytes of entries fetched per read in a scan."""


class IndexEntry(NamedTuple):
    """One entry as it is stored in the file."""

    key_hash: int
    log_offset: int
    seconds: int
    previous: int


class IndexMark(NamedTuple):
    """The part of the file known to be on disk: the entries below number ``end``, their slots, and the time of the
    last one."""

    end: int
    used_slots: int
    end_ms: int


class IndexProgress(NamedTuple):
    """A mark not yet written, and the number of cuts when it was taken. A later cut makes it invalid."""

    mark: IndexMark
    cuts: int


class IndexFile:
    """An index file of fixed size, opened for writing on the first ``put``. Reading needs no open file."""

    def __init__(self, fs: FileSystem, path: str, slot_count: int, entry_count_max: int) -> None:
        self._fs = fs
        self.path = path
        self.slot_count = slot_count
        self.entry_count_max = entry_count_max
        self.entries_at = HEADER.size + slot_count * SLOT.size
        self.size_bytes = self.entries_at + entry_count_max * ENTRY.size
        self._handle: int | None = None
        self._map: memoryview | None = None
        self._mark_lock = Lock()
        self._cuts = 0
        self._cut_unfinished = False
        """Entries were dropped from memory and slots, but may still be in the file, its mark and its header."""
        self.begin_ms = 0
        self.end_ms = 0
        self.begin_log_offset = 0
        self.end_log_offset = 0
        self.used_slots = 0
        self.count = 1
        """The number that the next entry will get."""

    # Lifecycle.
    @classmethod
    def make(cls, fs: FileSystem, path: str, slot_count: int, entry_count_max: int) -> None:
        """Create a file with its blocks allocated, for a later ``create``. May run on any thread. Raises
        ``OSError``."""
        file = cls(fs, path, slot_count, entry_count_max)
        try:
            file._open_for_writing(create=True)
        except OSError:
            file.remove()
            raise
        file.close()

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        path: str,
        slot_count: int,
        entry_count_max: int,
        *,
        after: Self | None = None,
        made: str = "",
    ) -> Self:
        """Returns a new, empty file that starts where ``after``, the file before it, ends. ``made`` is the path of a
        file prepared by ``make``, if there is one. Raises ``OSError``."""
        file = cls(fs, path, slot_count, entry_count_max)
        if after is not None:
            file.begin_ms = file.end_ms = after.end_ms
            file.begin_log_offset = file.end_log_offset = after.end_log_offset
        try:
            if made:
                fs.replace(made, path)
            file._open_for_writing(create=not made)
        except OSError:
            file.close()
            fs.remove(path)
            raise
        file._write_header()
        return file

    @classmethod
    def load(cls, fs: FileSystem, path: str, slot_count: int, entry_count_max: int) -> Self:
        """Open an existing file. Raises ``CorruptionError`` if its size or header is invalid."""
        file = cls(fs, path, slot_count, entry_count_max)
        found = fs.stat(path)
        if found is None or found.size_bytes != file.size_bytes:
            size = "nothing" if found is None else f"{found.size_bytes} bytes"
            raise CorruptionError(f"index file {path} has {size}, not {file.size_bytes} bytes")
        header = file.read(0, HEADER.size)
        (
            file.begin_ms,
            file.end_ms,
            file.begin_log_offset,
            file.end_log_offset,
            file.used_slots,
            stored_count,
        ) = HEADER.unpack(header)
        file.count = stored_count or 1  # Apache leaves 0 in a file without entries
        if not 1 <= file.count <= entry_count_max or file.end_log_offset < file.begin_log_offset:
            raise CorruptionError(f"index file {path} has an impossible header {HEADER.unpack(header)}")
        return file

    def close(self) -> None:
        """Release the map and the handle, without a sync. The file can still be read."""
        self._map = None
        handle, self._handle = self._handle, None
        if handle is not None:
            self._fs.close(handle)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        self._fs.remove(self.path)

    @property
    def is_full(self) -> bool:
        return self.count >= self.entry_count_max

    @property
    def is_empty(self) -> bool:
        return self.count <= 1

    # Write.
    def put(self, keys: bytes) -> int:
        """Add as many keys (a sequence of ``INDEX_KEY``) as fit. Returns the number added.

        Raises ``OSError`` with the file unchanged.
        """
        slot_map = self._map
        if slot_map is None:
            slot_map = self._open_for_writing()
        count = min(len(keys) // INDEX_KEY.size, self.entry_count_max - self.count)
        if count <= 0:
            return 0
        # Slots are written before the entries; when the disk refuses the entries, the slots are reset. No reader
        # follows a slot to an entry the header does not count yet.
        keys = keys[: count * INDEX_KEY.size]
        slots = slot_map[HEADER.size : self.entries_at]
        entries, used_slots = link_keys(slots.cast("i"), keys, self.count, self.begin_ms)
        try:
            self._write_at(entries, self.entries_at + self.count * ENTRY.size)
        except OSError:
            for key_hash, _, _, previous in reversed(list(ENTRY.iter_unpack(entries))):
                SLOT.pack_into(slots, SLOT.size * (key_hash % self.slot_count), previous)
            raise
        if self.count == 1:
            _, self.begin_log_offset, self.begin_ms = INDEX_KEY.unpack_from(keys)
        _, self.end_log_offset, self.end_ms = INDEX_KEY.unpack_from(keys, len(keys) - INDEX_KEY.size)
        self.count += count
        self.used_slots += used_slots
        self._write_header()
        return count

    def cut(self, log_offset: int) -> int:
        """Drop the entries at or after a log offset. Returns the number dropped.

        After an ``OSError`` the next call finishes the cut; nothing may be put before that.
        """
        count = self._first_at_or_beyond(log_offset)
        cut_count = self.count - count
        if cut_count > 0:
            self._drop_from(count)
        if self._cut_unfinished:
            self._finish_cut()
        return cut_count

    def sync(self, progress: IndexProgress) -> None:
        """Sync everything ``progress`` covers, then write its mark. May run on a worker thread."""
        # Uses its own handle because the owner may close the file meanwhile.
        handle = self._fs.open(self.path, write=True)
        try:
            self._fs.sync_data(handle)
            with self._mark_lock:
                if progress.cuts == self._cuts:
                    self._write_mark(handle, progress.mark)
        finally:
            self._fs.close(handle)

    @property
    def progress(self) -> IndexProgress:
        """The mark to write once a sync that starts now has finished."""
        return IndexProgress(IndexMark(self.count, self.used_slots, self.end_ms), self._cuts)

    def mark(self) -> IndexMark | None:
        """Returns the mark left by the last sync, or None if it is missing or invalid."""
        count, used_slots, end_ms, checksum = MARK.unpack(self.read(self.entries_at, MARK.size))
        if checksum != self._checksum(count, used_slots, end_ms) or not 1 <= count <= self.entry_count_max:
            return None
        return IndexMark(count, used_slots, end_ms)

    def restore(self, mark: IndexMark) -> None:
        """Restore the state of the mark after a crash, so that every slot points to an entry covered by the mark."""
        slot_map = self._open_for_writing()
        slots = _decode_slots(slot_map[HEADER.size : self.entries_at])
        wrong = _positions_outside(slots, 0, mark.end)
        lost: set[int] = set()
        for slot in wrong:
            number = self._newest_below(slot, slots[slot], mark.end)
            if number is None:
                lost.add(slot)
            else:
                SLOT.pack_into(slot_map, HEADER.size + SLOT.size * slot, number)
        if lost:
            # The entries that led back are lost. This is rare (a power cut, not a killed process), so a full scan is
            # acceptable.
            newest, slot_count = dict.fromkeys(lost, 0), self.slot_count
            for number, values in enumerate(self._raw_entries(1, mark.end), 1):
                slot = values[0] % slot_count
                if slot in newest:
                    newest[slot] = number
            for slot, number in newest.items():
                SLOT.pack_into(slot_map, HEADER.size + SLOT.size * slot, number)
        self.count, self.used_slots, self.end_ms = mark
        self.end_log_offset = self.entry(mark.end - 1).log_offset if mark.end > 1 else self.begin_log_offset
        self._clear_from(mark.end)
        self._write_header()

    # Read.
    def entry(self, number: int) -> IndexEntry:
        """Returns the entry at ``number`` without validation."""
        return IndexEntry._make(ENTRY.unpack(self.read(self.entries_at + number * ENTRY.size, ENTRY.size)))

    def entries(self, start: int = 1, end: int | None = None) -> Iterator[tuple[int, IndexEntry]]:
        """Returns the entries from number ``start`` to before ``end`` (default: the file's count), with their
        numbers."""
        found = self._raw_entries(start, self.count if end is None else end)
        return ((number, IndexEntry._make(values)) for number, values in enumerate(found, start))

    def slots(self) -> array[int]:
        """Returns all slots: the number of the newest entry in each, or 0 if it has none."""
        return _decode_slots(self.read(HEADER.size, self.slot_count * SLOT.size))

    def trailing_count(self, log_offset: int) -> int:
        """Returns how many of the last entries belong to the record at ``log_offset``."""
        number = self.count - 1
        while number >= 1 and self.entry(number).log_offset == log_offset:
            number -= 1
        return self.count - 1 - number

    def meets(self, begin_ms: int, end_ms: int) -> bool:
        """Whether an entry may have been stored between the two times, both inclusive."""
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms

    def find(self, key_hash: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Returns the log offsets of up to ``count_max`` entries with that hash, newest first, stored between two
        times (in whole seconds)."""
        found: list[int] = []
        if self.is_empty or count_max <= 0:
            return found
        view, temporary = self._map, -1
        if view is None:
            temporary = self._fs.open(self.path)
            view = self._fs.map(temporary, self.size_bytes)
        try:
            unpack, entries_at = ENTRY.unpack_from, self.entries_at
            (number,) = SLOT.unpack_from(view, HEADER.size + SLOT.size * (key_hash % self.slot_count))
            above = self.count
            for _ in range(WALK_STEPS_MAX):
                # Numbers strictly decrease along a slot; any other number is the end of the chain or damage.
                if not 0 < number < above:
                    break
                above = number
                stored_hash, log_offset, seconds, number = unpack(view, entries_at + 20 * number)
                stored_ms = self.begin_ms + seconds * 1000
                if stored_hash == key_hash and begin_ms <= stored_ms <= end_ms:
                    found.append(log_offset)
                    if len(found) >= count_max:
                        break
                if stored_ms < begin_ms or seconds < 0:
                    break
            else:
                logger.warning("index walk cut short path=%s hash=%d", self.path, key_hash)
        finally:
            del view
            if temporary >= 0:
                self._fs.close(temporary)
        return found

    def read(self, position: int, size: int) -> bytes:
        """Returns ``size`` raw bytes of the file from ``position`` on; fewer if the file is shorter."""
        if self._handle is not None:
            return self._fs.pread(self._handle, size, position)
        handle = self._fs.open(self.path)
        try:
            return self._fs.pread(handle, size, position)
        finally:
            self._fs.close(handle)

    # Internals.
    def _raw_entries(self, number: int, end: int) -> Iterator[tuple[int, ...]]:
        while number < end:
            size = min(SCAN_BYTES, (end - number) * ENTRY.size)
            data = self.read(self.entries_at + number * ENTRY.size, size)
            if len(data) < size:
                raise CorruptionError(f"index file {self.path} ends within entries {number} to {end}")
            yield from ENTRY.iter_unpack(data)
            number += size // ENTRY.size

    def _open_for_writing(self, *, create: bool = False) -> memoryview:
        if self._map is None:
            fs = self._fs
            if self._handle is None:
                self._handle = fs.open(self.path, write=True, create=create)
            if create:
                # Truncated first, because leftovers of an earlier file of that name would be taken for slots and
                # entries.
                fs.truncate(self._handle, 0)
                fs.truncate(self._handle, self.size_bytes)
            # Allocate the blocks first: on a full disk, a store through the map into a hole raises SIGBUS.
            fs.allocate(self._handle, 0, self.entries_at + ENTRY.size)
            self._map = fs.map(self._handle, self.size_bytes, write=True)
        return self._map

    def _write_header(self) -> None:
        assert self._map is not None
        HEADER.pack_into(
            self._map,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_log_offset,
            self.end_log_offset,
            self.used_slots,
            self.count,
        )

    def _write_at(self, data: bytes, position: int) -> None:
        assert self._handle is not None
        written = 0
        while written < len(data):
            count = self._fs.pwrite(self._handle, memoryview(data)[written:], position + written)
            if count <= 0:
                raise OSError(f"index file {self.path}: the disk took {written} of {len(data)} bytes")
            written += count

    def _write_mark(self, handle: int, mark: IndexMark) -> None:
        self._fs.pwrite(handle, MARK.pack(*mark, self._checksum(*mark)), self.entries_at)

    def _clear_from(self, number: int) -> None:
        """Zero the entries from ``number`` on, so that nothing stale can be taken for an entry."""
        assert self._handle is not None
        position = self.entries_at + number * ENTRY.size
        while used := len(self.read(position, SCAN_BYTES).rstrip(b"\0")):
            self._write_at(bytes(used), position)
            position += used

    @staticmethod
    def _checksum(count: int, used_slots: int, end_ms: int) -> int:
        return crc32(b"%d %d %d" % (count, used_slots, end_ms), MARK_SEED)

    def _first_at_or_beyond(self, log_offset: int) -> int:
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle).log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _drop_from(self, count: int) -> None:
        """Drop the entries from number ``count`` on, in memory and in the slots. Changes nothing if it raises
        ``OSError``."""
        slot_map = self._open_for_writing()
        # A slot's oldest dropped entry, the first one seen in ascending order, tells where the slot must point.
        newest: dict[int, int] = {}
        for _, entry in self.entries(count):
            newest.setdefault(entry.key_hash % self.slot_count, entry.previous)
        for slot, number in newest.items():
            SLOT.pack_into(slot_map, HEADER.size + SLOT.size * slot, number)
            if number <= 0:
                self.used_slots -= 1
        self.count = count
        if count > 1:
            last = self.entry(count - 1)
            self.end_log_offset, self.end_ms = last.log_offset, self.begin_ms + last.seconds * 1000
        with self._mark_lock:
            self._cuts += 1
        self._cut_unfinished = True

    def _finish_cut(self) -> None:
        """Erase the dropped entries from the file. May be called again after an ``OSError``."""
        self._open_for_writing()
        with self._mark_lock:
            if (mark := self.mark()) is not None and mark.end > self.count:
                # The old mark covers entries that are about to be erased. The new one is already valid because
                # nothing was added.
                assert self._handle is not None
                self._write_mark(self._handle, self.progress.mark)
        self._clear_from(self.count)
        self._write_header()
        self._cut_unfinished = False

    def _newest_below(self, slot: int, number: int, count: int) -> int | None:
        """Follow the chain of a slot back to its newest entry below ``count``. Returns None if the chain is
        broken."""
        while number >= count:
            if number >= self.entry_count_max:
                return None
            entry = self.entry(number)
            if (
                entry.key_hash % self.slot_count != slot
                or not 0 <= entry.previous < number
                or entry.log_offset <= 0
            ):
                return None
            if 0 in (entry.key_hash, entry.previous) and self._spans_sectors(number):
                return None  # half of it may have been lost
            number = entry.previous
        return number if number >= 0 else None

    def _spans_sectors(self, number: int) -> bool:
        first = self.entries_at + number * ENTRY.size
        return first // SECTOR_BYTES != (first + ENTRY.size - 1) // SECTOR_BYTES


def _decode_slots(data: bytes | memoryview) -> array[int]:
    slots = array("i")
    assert slots.itemsize == SLOT.size
    slots.frombytes(data)
    if byteorder == "little":
        slots.byteswap()
    return slots


def _positions_outside(numbers: array[int], low: int, end: int) -> list[int]:
    """Returns the positions of the numbers that are below ``low`` or at or above ``end``."""
    # Checking a block's extremes first halves the time: 0.23 s instead of 0.46 s for five million slots.
    found: list[int] = []
    for start in range(0, len(numbers), 256):
        block = numbers[start : start + 256]
        if max(block) >= end or min(block) < low:
            found += [start + at for at, number in enumerate(block) if not low <= number < end]
    return found
