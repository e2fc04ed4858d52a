"""Walks the records of a log segment (Apache: ``CommitLog.checkMessageAndReturnSize``).

Used by recovery, by tools and by Spark readers, over millions of records: the loop allocates one tuple, the topic
and the properties per record and nothing else. Apache answers "-1" to everything that is not a record; here the
four ways a walk can end are told apart, because what follows differs (``ScanEnd``).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from mmap import mmap
from typing import Final, NamedTuple
from zlib import crc32

from orbitmq.record.layout import (
    BLANK,
    BLANK_BYTES,
    BORN_V6,
    CRC_MASK,
    FIXED_V4,
    HEAD,
    HOLE_BYTES,
    HOST_V6_MORE_BYTES,
    INT,
    LONG,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    STORE_TIME_AT,
    STORE_V6,
)

__all__ = ["EndKind", "Scan", "ScanEnd", "ScannedRecord", "is_zero", "scan"]

_FIXED_BYTES: Final = FIXED_V4.size
_HOSTS_V6: Final = BORN_V6 | STORE_V6
_STORE_TIME_V6_AT: Final = STORE_TIME_AT + HOST_V6_MORE_BYTES
_ZEROES: Final = bytes(64 * 1024)
_HOLE: Final = bytes(HOLE_BYTES)


class EndKind(Enum):
    """Why a walk ended."""

    LIMIT = "limit"
    """The last record ended exactly at ``end``."""
    BLANK = "blank"
    """The end-of-segment marker: the log goes on in the next segment."""
    ZEROES = "zeroes"
    """Size and magic are zero: nothing was written here, or the page that held it never reached the disk.
    ``is_zero`` tells whether anything follows."""
    BAD = "bad"
    """Something was written that is not a whole, intact record: torn or rotten, see ``reason``."""


class ScanEnd(NamedTuple):
    """Where and why a walk ended."""

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
    """An iterator over records; ``end`` says how it went once it is exhausted."""

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
        buffer, limit, log_base = self._buffer, self._limit, self._log_base
        check_crc = self._check_crc
        unpack, make = HEAD.unpack_from, tuple.__new__
        # bytes and mmap hand out bytes when sliced, at half the price of bytes(view[...]).
        sliced = buffer if isinstance(buffer, bytes | mmap) else None
        position = self._start
        last_start = limit - RECORD_BYTES_MIN
        # Slices of a memoryview cost no copy, which counts for the CRC of large bodies.
        with memoryview(buffer) as view:
            while position <= last_start:
                # fmt: off
                (size, magic, body_crc, queue_id, queue_offset, log_offset, sys_flag, stored_ms,
                 body_size) = unpack(view, position)
                # fmt: on
                body_position = position + _FIXED_BYTES
                if sys_flag & _HOSTS_V6:
                    # Store time and body size move.
                    if size < RECORD_BYTES_MIN + HOST_V6_MORE_BYTES or position + size > limit:
                        break
                    if sys_flag & BORN_V6:
                        body_position += HOST_V6_MORE_BYTES
                        (stored_ms,) = LONG.unpack_from(view, position + _STORE_TIME_V6_AT)
                    if sys_flag & STORE_V6:
                        body_position += HOST_V6_MORE_BYTES
                    if body_position > limit:
                        break
                    (body_size,) = INT.unpack_from(view, body_position - 4)
                end = position + size
                body_end = body_position + body_size
                if body_size < 0 or body_end + 3 > end or end > limit:
                    break
                if magic == MAGIC_V1:
                    topic_start = body_end + 1
                    topic_end = topic_start + view[body_end]
                elif magic == MAGIC_V2:
                    topic_start = body_end + 2
                    topic_end = topic_start + (view[body_end] << 8 | view[body_end + 1])
                else:
                    break
                properties_start = topic_end + 2
                if (
                    properties_start > end
                    or (view[topic_end] << 8 | view[topic_end + 1]) != end - properties_start
                    or (log_base is not None and log_offset != log_base + position)
                    or (check_crc and crc32(view[body_position:body_end]) & CRC_MASK != body_crc)
                ):
                    break
                if sliced is not None:
                    topic, properties = sliced[topic_start:topic_end], sliced[properties_start:end]
                else:
                    topic, properties = bytes(view[topic_start:topic_end]), bytes(view[properties_start:end])
                # No checksum covers topic and properties: see _torn.
                if not view[end - 1] and _torn(view, topic, properties, end, limit):
                    break
                if len(properties) >= HOLE_BYTES and _HOLE in properties:
                    break
                # fmt: off
                yield make(ScannedRecord, (
                    position, size, magic, body_crc, queue_id, queue_offset, log_offset, sys_flag, stored_ms,
                    body_position, body_size, topic, properties,
                ))
                # fmt: on
                position = end
            self.end = _diagnose(view, position, limit, log_base)


def scan(
    buffer: bytes | bytearray | memoryview | mmap,
    start: int,
    end: int,
    *,
    check_crc: bool = True,
    log_base: int | None = None,
) -> Scan:
    """Iterate over the records between two positions of a segment.

    With ``log_base`` (the log offset of position 0) a record must also say the offset it lies at: bytes of an
    earlier life of the file do not pass. Nothing is raised for what the buffer holds; ``Scan.end`` tells.
    """
    return Scan(buffer, start, end, check_crc=check_crc, log_base=log_base)


def is_zero(buffer: bytes | bytearray | memoryview | mmap, start: int, end: int) -> bool:
    """Whether every byte from ``start`` to ``end`` is zero, at memory speed."""
    with memoryview(buffer) as view:
        while start < end:
            size = min(end - start, len(_ZEROES))
            if view[start : start + size] != _ZEROES[:size]:
                return False
            start += size
    return True


def _torn(view: memoryview, topic: bytes, properties: bytes, end: int, limit: int) -> bool:
    """Whether a record that ends with a zero byte was not written whole.

    The checksum covers the body alone, so a power cut behind the body leaves a record that adds up, with zeroes
    where the rest should be. We never store text that ends with a zero (``codec.py``), but Apache does if a
    client sends it. So such a record passes if another follows at once, unless it ends where a sector does: then
    the zeroes may be a lost sector. A record without properties ends with their size, which is zero by right.
    """
    if not properties and not topic.endswith(b"\0"):
        return False
    if end == limit or end % HOLE_BYTES == 0:
        return end != limit
    return end + BLANK_BYTES > limit or BLANK.unpack_from(view, end)[1] not in (
        MAGIC_V1,
        MAGIC_V2,
        MAGIC_BLANK,
    )


def _diagnose(view: memoryview, position: int, limit: int, log_base: int | None) -> ScanEnd:
    """Name the reason why no record starts here. Runs once per walk, so it may be slow."""
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
    from orbitmq.errors import RecordError
    from orbitmq.record.codec import decode_record

    try:
        record = decode_record(view[position:limit])
    except RecordError as error:
        return str(error)
    if log_base is not None and record.log_offset != log_base + position:
        return f"the record says log offset {record.log_offset}, it lies at {log_base + position}"
    return "topic or properties are zeroes: the record was not written whole"
