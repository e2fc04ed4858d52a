"""One queue of one topic: the log positions of its messages (Apache: ``ConsumeQueue``).

Unit ``n`` is the message with queue offset ``n``. New units collect in ``tail``, where readers see them immediately,
and reach the file in one write. A process that dies loses only tails, which recovery rebuilds from the log.

Invariants
1. Units are dense: ``tail_start + len(tail) / 20 == max_offset``; all units below ``tail_start`` are in files.
2. ``min_offset <= max_offset``; units below ``min_offset`` point below the start of the log, or are blank.
3. ``log_end`` is the end of the last unit's record. No record before it needs to be dispatched again.
4. After the last unit the files contain zeros.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict
from collections.abc import Sequence

from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.layout import (
    BLANK_UNIT_SIZE,
    SCHEDULE_TOPIC,
    UNIT,
    UNIT_BYTES,
    file_name,
    offset_of_name,
)
from orbitmq.store.log.segment import zero_range

__all__ = ["TAIL_BYTES_MAX", "ConsumeQueue", "HandleCache"]

TAIL_BYTES_MAX = 4096
"""Tail size at which it is written to its file: about 200 units, so the write costs 5 ns per message."""

READ_AHEAD_UNITS = 256
"""Units fetched per read for a consumer that reads a file in batches, which mostly hold 32 units."""

_BLANK_UNIT = UNIT.pack(0, BLANK_UNIT_SIZE, 0)
_BLANK_CHUNK_UNITS = 8192


class HandleCache:
    """An LRU cache of open descriptors. Thousands of queues share a few hundred."""

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._handles: OrderedDict[str, int] = OrderedDict()

    def open(self, path: str, create_bytes: int = 0) -> int:
        """Returns a descriptor that is owned by the cache and valid until the next call. With ``create_bytes`` a
        missing file is created with that size."""
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        if create_bytes:
            self._fs.make_directories(posixpath.dirname(path))
            handle = self._fs.open(path, write=True, create=True)
            if self._fs.file_size(handle) != create_bytes:
                self._fs.truncate(handle, create_bytes)
        else:
            handle = self._fs.open(path, write=True)
        self._handles[path] = handle
        if len(self._handles) > self._limit:
            self._fs.close(self._handles.popitem(last=False)[1])
        return handle

    def forget(self, path: str) -> None:
        """Close the descriptor of a file that is about to be removed."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._fs.close(handle)

    def close(self) -> None:
        for handle in self._handles.values():
            self._fs.close(handle)
        self._handles.clear()


class ConsumeQueue:
    """The units of one queue. The store's hot path reads and writes the attributes directly."""

    __slots__ = (
        "_ahead",
        "_ahead_start",
        "_directory",
        "_file_units",
        "_fs",
        "_handles",
        "_path_number",
        "_path_text",
        "cursor",
        "first_file",
        "has_own_codes",
        "log_end",
        "max_offset",
        "min_offset",
        "queue_id",
        "tail",
        "tail_start",
        "topic",
        "topic_bytes",
        "unsynced",
    )

    def __init__(
        self, fs: FileSystem, handles: HandleCache, directory: str, topic: str, queue_id: int, file_units: int
    ) -> None:
        self._fs = fs
        self._handles = handles
        self._directory = directory
        self._file_units = file_units
        self._path_number = -1
        self._path_text = ""
        self.topic = topic
        self.topic_bytes = topic.encode("utf-8", "surrogateescape")
        self.queue_id = queue_id
        self.has_own_codes = topic == SCHEDULE_TOPIC
        """Whether units may contain something other than the tag code: due times or extension addresses."""
        self.unsynced: set[int] = set()
        self._empty_at(0)

    def _empty_at(self, queue_offset: int) -> None:
        self.min_offset = queue_offset
        self.max_offset = queue_offset
        self.tail = bytearray()
        self.tail_start = queue_offset
        self._ahead, self._ahead_start = b"", 0
        self.log_end = -1
        self.first_file = queue_offset // self._file_units
        self.cursor = queue_offset
        """The queue offset that recovery expects of the queue's next message in its scan. Unused
        otherwise."""

    # Load.
    def load(self) -> bool:
        """Find the files; ``rewind`` then sets the end. Returns False if the files cannot form a queue (a wrong
        length, a gap)."""
        fs, file_bytes = self._fs, self._file_units * UNIT_BYTES
        numbers: list[int] = []
        for name in fs.names(self._directory):
            start = offset_of_name(name)
            if start is None:
                continue
            stat = fs.stat(posixpath.join(self._directory, name))
            if stat is None or stat.size_bytes != file_bytes or start % file_bytes:
                return False
            numbers.append(start // file_bytes)
        if not numbers:
            self._empty_at(0)
            return True
        if numbers != list(range(numbers[0], numbers[-1] + 1)):
            return False
        self._empty_at(numbers[0] * self._file_units)
        self.max_offset = self.tail_start = (numbers[-1] + 1) * self._file_units
        return True

    def rewind(self, log_offset: int) -> None:
        """Drop all units from the first one that is invalid or whose record starts at or after ``log_offset``.

        Changes memory only; ``cut_files`` changes the files.
        """
        self._end_at(self.count_below(log_offset))

    def count_below(self, log_offset: int) -> int:
        """Returns the queue offset of the first unit that is invalid or whose record starts at or after
        ``log_offset``."""
        low, high = self.first_file * self._file_units, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit[1] > 0 and 0 <= unit[0] < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _end_at(self, queue_offset: int) -> None:
        """Make ``queue_offset`` the end, and drop the units at or after it from the tail. The files do not change."""
        if queue_offset >= self.tail_start:
            del self.tail[(queue_offset - self.tail_start) * UNIT_BYTES :]
        else:
            self.tail.clear()
            self.tail_start = queue_offset
            self._ahead = b""
        self.max_offset = queue_offset
        self.min_offset = min(self.min_offset, queue_offset)
        self.log_end = -1
        if queue_offset > self.first_file * self._file_units:
            unit = self.unit(queue_offset - 1)
            if unit is not None and unit[1] != BLANK_UNIT_SIZE:
                self.log_end = unit[0] + unit[1]

    def cut_files(self) -> None:
        """Erase everything after ``tail_start`` from the files. Later files are removed and the rest of the current
        one is zeroed.

        The first file stays even if it is empty, because its name keeps the queue's numbering.
        """
        file_bytes = self._file_units * UNIT_BYTES
        last, index = divmod(self.tail_start, self._file_units)
        for name in self._fs.names(self._directory):
            start = offset_of_name(name)
            if start is None:
                continue
            path = posixpath.join(self._directory, name)
            number = start // file_bytes
            if number > last or (number == last and index == 0 and number > self.first_file):
                self._handles.forget(path)
                self._fs.remove(path)
                self.unsynced.discard(number)
            elif number == last:
                handle = self._handles.open(path)
                # Overwritten rather than truncated and extended: a crash between the two would cost the whole queue.
                zero_range(self._fs, handle, index * UNIT_BYTES, file_bytes)
                self.unsynced.add(number)

    # Append.
    def append(self, log_offset: int, size: int, tag_code: int) -> None:
        """Add the unit of the next message. The caller must write the tail once it is long enough."""
        self.tail += UNIT.pack(log_offset, size, tag_code)
        self.max_offset += 1
        self.log_end = log_offset + size

    def extend(self, units: bytes) -> None:
        """Add the units of the next messages. The caller must write the tail once it is long enough."""
        if units:
            self.tail += units
            self.max_offset += len(units) // UNIT_BYTES
            log_offset, size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
            self.log_end = log_offset + size

    def replace(self, queue_offset: int, log_offset: int, size: int, tag_code: int) -> None:
        """Overwrite the unit of a message. Raises ``OSError``."""
        unit = UNIT.pack(log_offset, size, tag_code)
        if queue_offset >= self.tail_start:
            start = (queue_offset - self.tail_start) * UNIT_BYTES
            self.tail[start : start + UNIT_BYTES] = unit
        else:
            number, index = divmod(queue_offset, self._file_units)
            handle = self._handles.open(self._path(number))
            if self._fs.pwrite(handle, unit, index * UNIT_BYTES) != UNIT_BYTES:
                raise OSError(28, f"queue file {self._path(number)} accepts no units")
            self.unsynced.add(number)
            self._ahead = b""
        if queue_offset == self.max_offset - 1:
            self.log_end = log_offset + size

    @staticmethod
    def recoded(units: bytes, codes: Sequence[int]) -> bytes:
        """Returns the same units with their third field, the code, replaced by ``codes``."""
        return b"".join(
            UNIT.pack(log_offset, size, code)
            for (log_offset, size, _), code in zip(UNIT.iter_unpack(units), codes, strict=True)
        )

    def write_tail(self) -> None:
        """Write the tail to the files. After an ``OSError`` the tail is kept, and the call may be repeated."""
        while self.tail:
            number, index = divmod(self.tail_start, self._file_units)
            count = min(len(self.tail), (self._file_units - index) * UNIT_BYTES)
            handle = self._handles.open(self._path(number), self._file_units * UNIT_BYTES)
            written = self._fs.pwrite(handle, self.tail[:count], index * UNIT_BYTES)
            whole = written // UNIT_BYTES
            self.unsynced.add(number)
            del self.tail[: whole * UNIT_BYTES]
            self.tail_start += whole
            if written != count and whole == 0:
                raise OSError(28, f"queue file {self._path(number)} accepts no more units")

    def start_at(self, queue_offset: int) -> None:
        """Start an empty queue at an offset above 0. The units before it in its file are written blank."""
        number, index = divmod(queue_offset, self._file_units)
        self._empty_at(queue_offset)
        if index:
            handle = self._handles.open(self._path(number), self._file_units * UNIT_BYTES)
            for start in range(0, index, _BLANK_CHUNK_UNITS):
                count = min(_BLANK_CHUNK_UNITS, index - start)
                self._fs.pwrite(handle, _BLANK_UNIT * count, start * UNIT_BYTES)
            self.unsynced.add(number)

    def skip_to(self, queue_offset: int, log_offset: int) -> None:
        """Fill the offsets of lost messages with blank units that point at the damage, so that units stay sorted."""
        blank = UNIT.pack(log_offset, BLANK_UNIT_SIZE, 0)
        while self.max_offset < queue_offset:
            count = min(_BLANK_CHUNK_UNITS, queue_offset - self.max_offset)
            self.tail += blank * count
            self.max_offset += count
            self.write_tail()

    def truncate(self, log_offset: int) -> None:
        """Drop units whose records start at or after ``log_offset``, in memory and on disk."""
        self.rewind(log_offset)
        self.cut_files()

    # Read.
    def units(self, queue_offset: int, count: int) -> bytes:
        """Returns up to ``count`` units from an offset inside the queue on, as bytes; fewer at the end of a file."""
        if queue_offset >= self.tail_start:
            start = (queue_offset - self.tail_start) * UNIT_BYTES
            return bytes(self.tail[start : start + count * UNIT_BYTES])
        # Units in a file do not change until the queue is cut, which discards the read-ahead.
        start = (queue_offset - self._ahead_start) * UNIT_BYTES
        if start >= 0 and start + count * UNIT_BYTES <= len(self._ahead):
            return self._ahead[start : start + count * UNIT_BYTES]
        number, index = divmod(queue_offset, self._file_units)
        room = min(self._file_units - index, self.tail_start - queue_offset)
        stored = min(count, room)
        # No read-ahead for a single unit: a binary search reads at scattered offsets.
        read = stored if count == 1 else min(max(count, READ_AHEAD_UNITS), room)
        try:
            handle = self._handles.open(self._path(number))
        except FileNotFoundError:
            return b""
        data = self._fs.pread(handle, read * UNIT_BYTES, index * UNIT_BYTES)
        if read > stored:
            self._ahead, self._ahead_start = data, queue_offset
            return data[: stored * UNIT_BYTES]
        if stored < count and queue_offset + stored == self.tail_start and self.tail:
            data += self.tail[: (count - stored) * UNIT_BYTES]
        return data

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Returns (log offset, record size, tag code) of one message; None if its unit cannot be read."""
        data = self.units(queue_offset, 1)
        if len(data) != UNIT_BYTES:
            return None
        log_offset, size, tag_code = UNIT.unpack(data)
        return log_offset, size, tag_code

    @property
    def first_log_offset(self) -> int:
        """The log offset of the first message in the files; -1 if there is none."""
        first = self.first_file * self._file_units
        unit = self.unit(first) if first < self.max_offset else None
        return -1 if unit is None or unit[1] <= 0 else unit[0]

    def next_file_offset(self, queue_offset: int) -> int:
        """Returns the first queue offset of the file after the one that contains ``queue_offset``."""
        return (queue_offset // self._file_units + 1) * self._file_units

    # Maintenance.
    def correct_min(self, log_start: int) -> None:
        """Move ``min_offset`` to the first unit whose record is still in the log. It never decreases."""
        low, high = max(self.min_offset, self.first_file * self._file_units), self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is None or unit[0] < log_start or unit == (0, BLANK_UNIT_SIZE, 0):
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    def expire(self, log_start: int) -> int:
        """Remove leading files whose records have all expired, but never the last file. Returns the number
        removed."""
        removed = 0
        while (end := (self.first_file + 1) * self._file_units) < self.tail_start:
            unit = self.unit(end - 1)
            if unit is not None and unit[0] >= log_start:
                break
            path = self._path(self.first_file)
            self._handles.forget(path)
            self._fs.remove(path)
            self.unsynced.discard(self.first_file)
            self.first_file += 1
            removed += 1
        self.correct_min(log_start)
        return removed

    def clear(self) -> None:
        """Remove the files. The queue is then empty and starts at 0 again."""
        for name in self._fs.names(self._directory):
            path = posixpath.join(self._directory, name)
            self._handles.forget(path)
            self._fs.remove(path)
        self.unsynced.clear()
        self._empty_at(0)

    def take_unsynced(self) -> list[str]:
        """Returns the paths of files written since the last call. The caller must sync them."""
        paths = [self._path(number) for number in self.unsynced]
        self.unsynced.clear()
        return paths

    def _path(self, number: int) -> str:
        # The same file is read and written over and over; building its path costs as much as reading from it.
        if self._path_number != number:
            self._path_text = posixpath.join(
                self._directory, file_name(number * self._file_units * UNIT_BYTES)
            )
            self._path_number = number
        return self._path_text
