"""The files of timer messages: wheel, log and checkpoint (Apache: TimerWheel, TimerLog, TimerCheckpoint).

The wheel has one slot per second for fourteen days, each with the positions of its first and last units in the log.
The log holds one unit of 52 bytes per waiting message, with the position of its record in the commit log and the
position of the previous unit of the same slot. Both files are in Apache 5.5.0's format, so either broker can continue
from the other's files. They are in memory only as far as the page cache holds them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from orbitmq.errors import BodyError, CorruptionError
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.wire.bodies import TimerCheckPoint

__all__ = [
    "DELETE",
    "PLAIN",
    "ROLL",
    "WHEEL_SECONDS",
    "CheckPointFile",
    "Slot",
    "TimerLog",
    "TimerUnit",
    "TimerWheel",
]

WHEEL_SECONDS: Final = 2 * 7 * 86_400
SLOT: Final = Struct(">qqqii")
UNIT: Final = Struct(">iqiqiqiiq")
TAIL: Final = Struct(">iqI")
assert SLOT.size == 32, "persisted: second, first place, last place, count, unused"
assert UNIT.size == 52, "persisted: size, place before, kind, written, delay, log offset, size, topic hash, 0"
assert TAIL.size == 16, "persisted: room left, 0, magic"
WHEEL_BYTES: Final = WHEEL_SECONDS * SLOT.size
TAIL_MAGIC: Final = 0xCBD43194
PLAIN: Final = 1
ROLL: Final = 2
"""The kind of a unit whose message waits longer than the window. The message is stored again when its slot is
reached."""
DELETE: Final = 4
"""Kind of a unit whose message cancels another one of the same second."""
_KINDS: Final = 0xF
_NONE: Final = -1
_NAME_DIGITS: Final = 20
_BLOCK_BYTES: Final = 1 << 16
_CHECK_POINT_BYTES: Final = 4_096
_CHECK_POINT_USED: Final = 56


class Slot(NamedTuple):
    """The units of one second: the positions of the first and the last one, and their number."""

    first: int
    last: int
    units: int


class TimerUnit(NamedTuple):
    """The unit of one waiting message."""

    place: int
    before: int
    kind: int
    written_ms: int
    delay_ms: int
    log_offset: int
    size: int

    @property
    def second(self) -> int:
        """The second of its slot, since 1970-01-01."""
        return (self.written_ms + self.delay_ms) // 1000


class TimerWheel:
    """The slots by second. A slot that is in use for another second counts as empty."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._handle = -1

    @property
    def exists(self) -> bool:
        """Whether the file exists and has the right size."""
        found = self._fs.stat(self._path)
        return found is not None and found.size_bytes == WHEEL_BYTES

    def open(self) -> None:
        """Open the file. If it is missing, it is created as a sparse file. Raises ``OSError``."""
        fs = self._fs
        fs.make_directories(posixpath.dirname(self._path))
        self._handle = fs.open(self._path, write=True, create=True)
        fs.truncate(self._handle, WHEEL_BYTES)

    def close(self) -> None:
        if self._handle >= 0:
            self._fs.close(self._handle)
            self._handle = -1

    def remove(self) -> None:
        """Delete the file; the wheel must be closed."""
        self._fs.remove(self._path)

    # Read and written by position: writing to a mapped hole kills the process when the disk is full.
    def slot(self, second: int) -> Slot | None:
        data = self._fs.pread(self._handle, SLOT.size, second % WHEEL_SECONDS * SLOT.size)
        stored, first, last, count, _ = SLOT.unpack(data)
        return Slot(first, last, count) if stored == second and last != _NONE else None

    def put(self, second: int, slot: Slot) -> None:
        self._fs.pwrite(self._handle, SLOT.pack(second, *slot, 0), second % WHEEL_SECONDS * SLOT.size)

    def waiting(self, from_second: int) -> list[tuple[int, Slot]]:
        """Returns the slots in use from ``from_second`` on, skipping holes in the file."""
        found: list[tuple[int, Slot]] = []
        position: int | None = 0
        while position is not None and position < WHEEL_BYTES:
            position = self._fs.next_data(self._handle, position)
            if position is None:
                break
            position -= position % SLOT.size
            data = self._fs.pread(self._handle, _BLOCK_BYTES, position)
            data = data[: len(data) // SLOT.size * SLOT.size]
            if not data:
                break
            if data.count(0) != len(data):
                found += [
                    (second, Slot(first, last, count))
                    for second, first, last, count, _ in SLOT.iter_unpack(data)
                    if second >= from_second and last != _NONE
                ]
            position += len(data)
        return found

    def sync(self) -> None:
        """Sync the file to disk. May be called on another thread."""
        if self._handle >= 0:
            self._fs.sync_data(self._handle)


class TimerLog:
    """The units, in files of equal size. ``open`` must be called first."""

    def __init__(self, fs: FileSystem, directory: str, file_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._file_bytes = file_bytes
        self._handles: dict[int, int] = {}
        """The open files by their start positions, in ascending order."""
        self._unwritten = bytearray()
        self._block = (0, b"")
        self.end = 0
        """Position of the next unit."""

    def end_at(self, place: int) -> None:
        """Make ``place`` the end of the log. The next unit overwrites what is there."""
        self.end = place

    @property
    def exists(self) -> bool:
        return bool(self._starts())

    def _starts(self) -> list[int]:
        names = [
            name for name in self._fs.names(self._directory) if len(name) == _NAME_DIGITS and name.isdigit()
        ]
        return sorted(int(name) for name in names)

    def _path(self, start: int) -> str:
        return posixpath.join(self._directory, f"{start:0{_NAME_DIGITS}d}")

    def open(self, end: int) -> None:
        """Open the existing files, which are known to be complete up to ``end``. Raises ``CorruptionError`` and
        ``OSError``."""
        for start in self._starts():
            self._handles[start] = handle = self._fs.open(self._path(start), write=True)
            if self._fs.file_size(handle) != self._file_bytes or start % self._file_bytes:
                raise CorruptionError(
                    f"{self._path(start)} is not a timer log file of {self._file_bytes} bytes"
                )
        first = next(iter(self._handles), 0)
        last = max(self._handles, default=0) + self._file_bytes
        if not first <= end <= last:
            raise CorruptionError(f"the timer log must reach {end}; it has {first} to {last}")
        self.end = end

    def close(self) -> None:
        for handle in self._handles.values():
            self._fs.close(handle)
        self._handles.clear()
        self._unwritten.clear()
        self._block = (0, b"")

    def remove(self) -> None:
        """Delete the files; the log must be closed."""
        self._fs.remove_tree(self._directory)
        self.end = 0

    def append(self, before: int, kind: int, times: tuple[int, int], record: tuple[int, int, int]) -> int:
        """Append a unit and return its position. ``times`` are the times of writing and of the slot; ``record`` is
        the log offset, size and topic hash of the message.

        The unit can be read immediately; ``write`` puts it into the file.
        """
        used = self.end % self._file_bytes
        if used + UNIT.size + TAIL.size > self._file_bytes or self.end not in self._room():
            self._next_file(used)
        place = self.end
        written_ms, slot_ms = times
        log_offset, size, topic_hash = record
        self._unwritten += UNIT.pack(
            UNIT.size, before, kind, written_ms, slot_ms - written_ms, log_offset, size, topic_hash, 0
        )
        self.end = place + UNIT.size
        return place

    def _room(self) -> range:
        start = max(self._handles, default=-1)
        return range(start, start + self._file_bytes) if start >= 0 else range(0)

    def _next_file(self, used: int) -> None:
        if used:
            self._unwritten += TAIL.pack(self._file_bytes - used, 0, TAIL_MAGIC)
            self.end += TAIL.size
        self.write()
        start = -(-self.end // self._file_bytes) * self._file_bytes
        fs = self._fs
        fs.make_directories(self._directory)
        handle = fs.open(self._path(start), write=True, create=True)
        fs.truncate(handle, self._file_bytes)
        fs.sync_directory(self._directory)
        self._handles[start] = handle
        self.end = start

    def write(self) -> None:
        """Write appended units to their file. Raises ``OSError``, and then keeps the units for a retry."""
        if not self._unwritten:
            return
        begin = self.end - len(self._unwritten)
        start = begin - begin % self._file_bytes
        data = memoryview(bytes(self._unwritten))
        done = 0
        while done < len(data):
            done += self._fs.pwrite(self._handles[start], data[done:], begin - start + done)
        self._unwritten.clear()
        self._block = (0, b"")

    def unit(self, place: int) -> TimerUnit | None:
        """Returns the unit at a position, or None if there is no unit."""
        self.write()
        block_start, block = self._block
        if not block_start <= place <= block_start + len(block) - UNIT.size:
            # The units of a slot are close together, older ones first, so read the block that ends with this unit.
            block_start = max(place + UNIT.size - _BLOCK_BYTES, place - place % self._file_bytes)
            handle = self._handles.get(place - place % self._file_bytes)
            if handle is None or place < 0:
                return None
            block = self._fs.pread(handle, place + UNIT.size - block_start, block_start % self._file_bytes)
            self._block = (block_start, block)
        if place + UNIT.size > block_start + len(block):
            return None
        size, before, kind, written, delay, log_offset, record_size, _, _ = UNIT.unpack_from(
            block, place - block_start
        )
        if size != UNIT.size or not 0 < kind <= _KINDS:
            return None
        return TimerUnit(place, before, kind, written, delay, log_offset, record_size)

    def units_from(self, place: int) -> Iterator[TimerUnit]:
        """Yields consecutive complete units and moves the end of the log past them."""
        while True:
            used = place % self._file_bytes
            found = None if used + UNIT.size > self._file_bytes else self.unit(place)
            if found is None:
                start = place - used + self._file_bytes
                if start not in self._handles or used + UNIT.size + TAIL.size <= self._file_bytes:
                    return
                place = start
                continue
            place += UNIT.size
            self.end = place
            yield found

    def expire(self, log_offset: int) -> None:
        """Delete the files whose last unit refers to a part of the commit log before ``log_offset``."""
        room = self._file_bytes - TAIL.size
        last_unit = room - room % UNIT.size - UNIT.size
        for start in list(self._handles)[:-1]:
            found = self.unit(start + last_unit)
            if found is not None and found.log_offset >= log_offset:
                break
            self._fs.close(self._handles.pop(start))
            self._fs.remove(self._path(start))

    def sync(self) -> None:
        """Sync the newest two files to disk. May be called on another thread."""
        for start in list(self._handles)[-2:]:
            self._fs.sync_data(self._handles[start])


class CheckPointFile:
    """The file ``config/timercheck``, which stores the progress of the timer."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def load(self) -> TimerCheckPoint:
        """Returns the saved checkpoint, or one with zeros if the file does not exist."""
        if self._fs.stat(self._path) is None:
            return TimerCheckPoint()
        handle = self._fs.open(self._path)
        try:
            data = self._fs.pread(handle, _CHECK_POINT_USED, 0)
        finally:
            self._fs.close(handle)
        try:
            return TimerCheckPoint.decode(data.ljust(_CHECK_POINT_USED, b"\0"))
        except BodyError as error:
            raise CorruptionError(f"{self._path}: {error}") from None

    def save(self, point: TimerCheckPoint) -> None:
        """Write the checkpoint in place, which is safe because it fits into a sector. Raises ``OSError``."""
        self._fs.make_directories(posixpath.dirname(self._path))
        handle = self._fs.open(self._path, write=True, create=True)
        try:
            self._fs.truncate(handle, _CHECK_POINT_BYTES)
            self._fs.pwrite(handle, point.encode(), 0)
            self._fs.sync_data(handle)
        finally:
            self._fs.close(handle)
