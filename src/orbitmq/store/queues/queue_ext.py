"""The extension of a consume queue: store time and filter bitmap of each message (Apache: ConsumeQueueExt).

A unit has a variable length: ``size 2, tag code 8, store time 8, bitmap size 2, bitmap``. A size of -1 ends a file
early. While it is in use (``enableConsumeQueueExt``), the queue unit holds an *address* in place of the tag code: the
position of the extension unit minus 2**63, which no tag code or due time reaches. Losing a unit is harmless because
the record itself is read instead. Mistaking another message's unit for it is not harmless, because that message would
be skipped. So after a crash writing resumes after everything that any queue unit refers to (``resume_after``).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from struct import Struct
from typing import Final

from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.layout import file_name, offset_of_name

__all__ = ["ADDRESS_MAX", "ExtUnit", "QueueExt", "decode_ext_unit", "encode_ext_unit", "is_ext_address"]

UNIT_HEAD: Final = Struct(">hqqh")
UNIT_BYTES_MIN: Final = 20
UNIT_BYTES_MAX: Final = 32767
assert UNIT_HEAD.size == UNIT_BYTES_MIN, "persisted: every queue extension on disk depends on it"
END_BYTES: Final = 4
"""Reserved after the last unit of a file."""
END_MARK: Final = b"\xff\xff"

ADDRESS_BASE: Final = -(2**63)
ADDRESS_MAX: Final = -(2**31) - 1
POSITION_MAX: Final = ADDRESS_MAX - ADDRESS_BASE


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """The data kept for one message."""

    tag_code: int
    store_ms: int
    bitmap: bytes = b""


def is_ext_address(code: int) -> bool:
    """Whether the third field of a queue unit is an extension address, not a tag code or a due time."""
    return code <= ADDRESS_MAX


def encode_ext_unit(unit: ExtUnit) -> bytes:
    """Returns the stored form. Raises ``ValueError`` if it would exceed 32,767 bytes."""
    size = UNIT_BYTES_MIN + len(unit.bitmap)
    if size > UNIT_BYTES_MAX:
        raise ValueError(f"a filter bitmap of {len(unit.bitmap)} bytes does not fit a queue extension unit")
    return UNIT_HEAD.pack(size, unit.tag_code, unit.store_ms, len(unit.bitmap)) + unit.bitmap


def decode_ext_unit(data: bytes) -> ExtUnit | None:
    """Returns the unit at the start of ``data``; None if it is missing or incomplete."""
    if len(data) < UNIT_BYTES_MIN:
        return None
    size, tag_code, store_ms, bitmap_bytes = UNIT_HEAD.unpack_from(data)
    if bitmap_bytes < 0 or size != UNIT_BYTES_MIN + bitmap_bytes or len(data) < size:
        return None
    return ExtUnit(tag_code, store_ms, data[UNIT_BYTES_MIN:size])


class QueueExt:
    """The extension files of one queue. Owned by the store's thread."""

    def __init__(self, fs: FileSystem, directory: str, file_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._file_bytes = file_bytes
        self._starts: list[int] = []
        self._end = 0
        self._handle: tuple[int, int] | None = None
        """Start and handle of the file being written."""
        self._unsynced: set[int] = set()

    def load(self, last_address: int | None) -> None:
        """Find the files and resume writing after ``last_address``, the newest address in the queue's units. If the
        unit there cannot be read, writing resumes in a new file."""
        offsets = [offset_of_name(name) for name in self._fs.names(self._directory)]
        self._starts = [start for start in offsets if start is not None and start % self._file_bytes == 0]
        self.resume_after(last_address)

    def resume_after(self, last_address: int | None) -> None:
        """Cut everything after the unit at ``last_address``. None cuts everything."""
        if last_address is None:
            self._cut(0)
            return
        unit = self.read(last_address)
        position = last_address - ADDRESS_BASE
        if unit is not None:
            self._cut(position + UNIT_BYTES_MIN + len(unit.bitmap))
        else:
            self._cut(self._file_start(position) + self._file_bytes)

    @property
    def end_address(self) -> int:
        """The address of the next unit, unless its file is full."""
        return self._end + ADDRESS_BASE

    def append(self, unit: ExtUnit) -> int:
        """Store a unit and return its address. The unit is in the file before the queue unit that refers to it is.

        Raises ``OSError`` with nothing stored, and ``ValueError`` for a bitmap that does not fit.
        """
        data = encode_ext_unit(unit)
        start = self._file_start(self._end)
        if self._end + len(data) + END_BYTES > start + self._file_bytes:
            if self._end > start:
                self._write(END_MARK, self._end)
                start += self._file_bytes
            if len(data) + END_BYTES > self._file_bytes or start > POSITION_MAX:
                raise ValueError("a queue extension unit does not fit its file")
            self._end = start
        self._write(data, self._end)
        address = self._end + ADDRESS_BASE
        self._end += len(data)
        return address

    def read(self, address: int) -> ExtUnit | None:
        """Returns the unit at an address; None if it was removed or never existed."""
        position = address - ADDRESS_BASE
        if not is_ext_address(address) or position < 0:
            return None
        start = self._file_start(position)
        if start not in self._starts:
            return None
        opened = self._handle
        handle = opened[1] if opened is not None and opened[0] == start else self._fs.open(self._path(start))
        try:
            size = min(UNIT_BYTES_MAX, start + self._file_bytes - position)
            return decode_ext_unit(
                self._fs.pread(handle, min(size, 256), position - start)
            ) or decode_ext_unit(self._fs.pread(handle, size, position - start))
        finally:
            if opened is None or opened[1] != handle:
                self._fs.close(handle)

    def drop_before(self, first_address: int) -> int:
        """Remove files that end before ``first_address``, the first address still in use. Returns the number
        removed."""
        position = first_address - ADDRESS_BASE
        gone = [start for start in self._starts if start + self._file_bytes <= position]
        for start in gone:
            self._remove(start)
        return len(gone)

    def flush(self) -> None:
        """Sync all written files to disk."""
        for start in sorted(self._unsynced):
            handle = self._fs.open(self._path(start), write=True)
            try:
                self._fs.sync_data(handle)
            finally:
                self._fs.close(handle)
            self._unsynced.discard(start)

    def close(self) -> None:
        opened, self._handle = self._handle, None
        if opened is not None:
            self._fs.close(opened[1])

    def destroy(self) -> None:
        """Remove every file, because the queue was deleted."""
        self._cut(0)
        self._fs.remove_tree(self._directory)

    def _cut(self, end: int) -> None:
        for start in [start for start in self._starts if start >= end]:
            self._remove(start)
        start = self._file_start(end)
        if start in self._starts and end > start:
            # Zero the space after the last unit: Apache's reader takes any positive size for a unit.
            self.close()
            handle = self._fs.open(self._path(start), write=True)
            try:
                self._fs.truncate(handle, end - start)
                self._fs.truncate(handle, self._file_bytes)
            finally:
                self._fs.close(handle)
        self._end = end

    def _write(self, data: bytes, position: int) -> None:
        start = self._file_start(position)
        if self._handle is None or self._handle[0] != start:
            self.close()
            self._fs.make_directories(self._directory)
            handle = self._fs.open(self._path(start), write=True, create=True)
            self._handle = (start, handle)
            if self._fs.file_size(handle) != self._file_bytes:
                self._fs.truncate(handle, self._file_bytes)
            if start not in self._starts:
                self._starts.append(start)
        written = self._fs.pwrite(self._handle[1], data, position - start)
        if written != len(data):
            raise OSError(f"{self._path(start)}: the disk took {written} of {len(data)} bytes")
        self._unsynced.add(start)

    def _remove(self, start: int) -> None:
        if self._handle is not None and self._handle[0] == start:
            self.close()
        self._starts.remove(start)
        self._unsynced.discard(start)
        self._fs.remove(self._path(start))

    def _file_start(self, position: int) -> int:
        return position - position % self._file_bytes

    def _path(self, start: int) -> str:
        return posixpath.join(self._directory, file_name(start))
