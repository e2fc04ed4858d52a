"""Iterates over the records of a log segment (Apache: ``CommitLog.checkMessageAndReturnSize``).

Used by recovery, tools and Spark readers. ``kernel.walk_records`` decides what a whole record is. Apache returns -1
for everything else. Here the four ways in which a scan can end are distinguished, because each requires a different
action (``ScanEnd``).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from mmap import mmap
from typing import Final, NamedTuple

from orbitmq.errors import RecordError
from orbitmq.kernel import walk_records
from orbitmq.kernel.layout import (
    BLANK_BYTES,
    BORN_V6,
    FIXED,
    HOLE_BYTES,
    INT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    STORE_V6,
    SYS_FLAG_AT,
)
from orbitmq.record.codec import decode_record

__all__ = ["EndKind", "Scan", "ScanEnd", "ScannedRecord", "is_zero", "scan"]

FIRST_BYTES: Final = 4096
PIECE_BYTES: Final = 1 << 20
"""Records are read in pieces that grow from the first size to the second, because many callers need only one
record."""
MORE_THAN_BODY_BYTES: Final = PROPERTIES_BYTES_MAX + 1024
"""The most a record may contain in addition to its body."""
_ZEROES: Final = bytes(64 * 1024)


class EndKind(Enum):
    """Why a scan ended."""

    LIMIT = "limit"
    """The last record ended exactly at ``end``."""
    BLANK = "blank"
    """The end-of-segment marker: the log continues in the next segment."""
    ZEROES = "zeroes"
    """Size and magic are zero: nothing was written here, or the page never reached the disk. ``is_zero`` tells
    whether anything follows."""
    BAD = "bad"
    """Something was written that is not a whole, intact record: torn or damaged, see ``reason``."""


class ScanEnd(NamedTuple):
    """Where and why a scan ended."""

    kind: EndKind
    position: int
    """In the buffer: where the next record would begin (the marker itself for ``BLANK``)."""
    reason: str


class ScannedRecord(NamedTuple):
    """One whole record. Positions are in the scanned buffer."""

    position: int
    size: int
    magic: int
    body_crc: int
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    store_timestamp_ms: int
    body_position: int
    body_size: int
    topic: bytes
    properties: bytes


class Scan:
    """An iterator over records; ``end`` is the result once it is exhausted."""

    def __init__(
        self,
        buffer: bytes | bytearray | memoryview | mmap,
        start: int,
        end: int,
        *,
        check_crc: bool,
        log_base: int | None,
    ) -> None:
        assert 0 <= start <= end <= len(buffer), (start, end, len(buffer))
        self._buffer = buffer
        self._start = start
        self._limit = end
        self._check_crc = check_crc
        self._log_base = log_base
        self.end: ScanEnd | None = None

    def __iter__(self) -> Iterator[ScannedRecord]:
        limit, log_base = self._limit, self._log_base
        position, room = self._start, FIRST_BYTES
        with memoryview(self._buffer) as view:
            while True:
                # From the start of a sector on: a record that ends with one needs a closer look.
                low, high = position - position % HOLE_BYTES, min(position + room, limit)
                base = None if log_base is None else log_base + low
                piece = bytes(view[low:high])
                walked, _ = walk_records(piece, position - low, len(piece), self._check_crc, base)
                if walked and high < limit and walked[-1][0] + walked[-1][1] == len(piece):
                    walked.pop()  # what follows may show that it was not written whole
                for record in walked:
                    yield ScannedRecord(low + record[0], *record[1:9], low + record[9], *record[10:])
                if walked:
                    position = low + walked[-1][0] + walked[-1][1]
                    room = min(2 * room, PIECE_BYTES)
                    continue
                needed = _record_bytes(view, position, limit)
                if high == limit or position + needed + BLANK_BYTES <= high:
                    break
                room = needed + BLANK_BYTES
            self.end = _diagnose(view, position, limit, log_base)


def _record_bytes(view: memoryview, position: int, limit: int) -> int:
    """Returns the size of the record that may begin here; 0 if none does."""
    if limit - position < RECORD_BYTES_MIN:
        return 0
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    (sys_flag,) = INT.unpack_from(view, position + SYS_FLAG_AT)
    layout = FIXED[sys_flag & (BORN_V6 | STORE_V6)]
    if magic not in (MAGIC_V1, MAGIC_V2) or limit - position < max(size, layout.size):
        return 0
    # With a damaged size the rest of the segment would be copied, so the body must account for it.
    (body_size,) = INT.unpack_from(view, position + layout.size - INT.size)
    return int(size) if 0 <= size - body_size <= MORE_THAN_BODY_BYTES else 0


def scan(
    buffer: bytes | bytearray | memoryview | mmap,
    start: int,
    end: int,
    *,
    check_crc: bool = True,
    log_base: int | None = None,
) -> Scan:
    """Iterate over the records between two positions of a segment.

    If ``log_base`` (the log offset of position 0) is given, a record must also contain its own log offset, so that
    bytes of an earlier use of the file are refused. No content of the buffer raises an error; see ``Scan.end``.
    """
    return Scan(buffer, start, end, check_crc=check_crc, log_base=log_base)


def is_zero(buffer: bytes | bytearray | memoryview | mmap, start: int, end: int) -> bool:
    """Whether every byte from ``start`` to ``end`` is zero. Fast, because the comparison runs in C."""
    with memoryview(buffer) as view:
        while start < end:
            size = min(end - start, len(_ZEROES))
            if view[start : start + size] != _ZEROES[:size]:
                return False
            start += size
    return True


def _diagnose(view: memoryview, position: int, limit: int, log_base: int | None) -> ScanEnd:
    """Returns why no record starts here. Runs once per scan, so it may be slow."""
    room = limit - position
    if room == 0:
        return ScanEnd(EndKind.LIMIT, position, "")
    if room < BLANK_BYTES:
        kind = EndKind.ZEROES if not any(view[position:limit]) else EndKind.BAD
        return ScanEnd(kind, position, f"{room} bytes are too few for a record or a marker")
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if size == 0 and magic == 0:
        return ScanEnd(EndKind.ZEROES, position, "")
    if magic == MAGIC_BLANK:
        if size == room:
            return ScanEnd(EndKind.BLANK, position, "")
        return ScanEnd(EndKind.BLANK, position, f"the marker says {size} bytes, {room} are left")
    return ScanEnd(EndKind.BAD, position, _fault(view, position, limit, log_base))


def _fault(view: memoryview, position: int, limit: int, log_base: int | None) -> str:
    try:
        record = decode_record(view[position:limit])
    except RecordError as error:
        return str(error)
    if log_base is not None and record.log_offset != log_base + position:
        return f"the record names log offset {record.log_offset}, but it is at {log_base + position}"
    return "topic or properties are zeroes: the record was not written whole"
