"""Selects the records that a queue read returns (Apache: ``DefaultMessageStore.getMessage``, ``MessageFilter``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orbitmq.kernel.layout import (
    BORN_V6,
    FIXED,
    FIXED_V4,
    INT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    SLICE,
    STORE_V6,
    SYS_FLAG_AT,
    UNIT,
)
from orbitmq.kernel.plain.records import record_at
from orbitmq.kernel.plain.sql import Node, parse_program, selects

__all__ = ["Filter", "select"]

_EXTENSION_ADDRESS_MAX: Final = -(2**31) - 1
MAX_OFFSET: Final = 2**63 - 1


class Filter:
    """A subscription's filter. It selects records that have one of the tag codes and for which the SQL program is
    true.

    ``tag_codes`` is None to accept any tag, ``program`` is None to accept any properties; see
    ``orbitmq.kernel.sql_program``. Tag codes are hashes, so messages with other tags may pass. Like with Apache, the
    client compares the tags themselves. A unit with an extension address in place of a tag code passes.
    """

    def __init__(self, tag_codes: Iterable[int] | None = None, program: bytes | None = None) -> None:
        """Raises ``ValueError`` for an invalid program."""
        self._tag_codes = None if tag_codes is None else frozenset(tag_codes)
        self._root: Node | None = None
        self._node_count = 0
        if program is not None:
            self._root, self._node_count = parse_program(program)

    @property
    def has_tags(self) -> bool:
        return self._tag_codes is not None

    @property
    def node_count(self) -> int:
        """The number of nodes in the program, which determines the cost per record."""
        return self._node_count

    def matches_code(self, tag_code: int) -> bool:
        codes = self._tag_codes
        return codes is None or tag_code in codes or tag_code <= _EXTENSION_ADDRESS_MAX

    def matches_properties(self, properties: bytes) -> bool:
        """Whether the program selects a message with this property text."""
        return self._root is None or selects(self._root, properties)

    def matches_record(self, record: bytes | memoryview) -> bool:
        """Like ``matches_properties``, for a stored record. A record whose properties cannot be read is not
        selected."""
        if self._root is None:
            return True
        properties = record_properties(record)
        return properties is not None and selects(self._root, properties)


def record_properties(record: bytes | memoryview) -> bytes | None:
    """Returns the property text of a record, from the end of its size field to the end of the record. Returns None if
    the bytes are not a record."""
    if len(record) < FIXED_V4.size:
        return None
    _, magic = SIZE_AND_MAGIC.unpack_from(record)
    (sys_flag,) = INT.unpack_from(record, SYS_FLAG_AT)
    at = FIXED[sys_flag & (BORN_V6 | STORE_V6)].size
    if at > len(record):
        return None
    at += int.from_bytes(record[at - 4 : at], "big")
    topic_size_bytes = 2 if magic == MAGIC_V2 else 1
    if magic not in (MAGIC_V1, MAGIC_V2) or at + topic_size_bytes > len(record):
        return None
    at += topic_size_bytes + int.from_bytes(record[at : at + topic_size_bytes], "big")
    if at + 2 > len(record):
        return None
    return bytes(record[at + 2 :])


def select(
    units: bytes,
    at: int,
    window: tuple[memoryview | bytes, int],
    limits: tuple[int, int],
    taken: tuple[int, int],
    wanted: Filter | None,
    place: tuple[bytes, int, int, int],
) -> tuple[int, int, int, bytes, bool, tuple[int, ...]]:
    """Select the records that consume queue units point to, starting with unit number ``at``.

    ``window`` is a part of the log and its first log offset. ``limits`` are the maximum number of records and of
    bytes for the whole read; the first record is selected regardless of its size. ``taken`` are the records and bytes
    selected so far. ``place`` is the topic, the queue id, the queue offset of unit number 0, and the log offset from
    which the log and the units are trusted.

    Before the trusted offset, a record is selected only if it is whole, its body matches its checksum, and it
    contains its own log offset and the unit's queue and queue offset. Other records are skipped as damaged, unless
    their tag code already excludes them.

    From the trusted offset on, records are not checked, with these exceptions: the first record of the call, the
    record after a damaged one, and a record that starts before the end of the previous one. These must contain their
    own position, because the unit may be a stale, damaged one.

    Returns the number of the first unit that was not examined, the records and bytes selected, and the bounds of the
    slices in the window (a sequence of ``SLICE``; adjacent records share one). These are followed by whether a unit's
    record is outside the window (it is then the first unit not examined), and the numbers of the damaged units.
    """
    data, data_offset = window
    count_max, bytes_max = limits
    count, total = taken
    topic, queue_id, first_offset, trusted_offset = place
    slices: list[tuple[int, int]] = []
    damaged: list[int] = []
    is_outside = False
    follows_from = MAX_OFFSET
    while at < len(units) // UNIT.size and count < count_max:
        log_offset, size, tag_code = UNIT.unpack_from(units, at * UNIT.size)
        start, end = log_offset - data_offset, log_offset - data_offset + size
        if size <= 0 or start < 0 or end > len(data):
            is_outside = True
            break
        if wanted is None or wanted.matches_code(tag_code):
            if count and total + size > bytes_max:
                break
            record = bytes(data[start:end])
            is_trusted = log_offset >= trusted_offset
            if is_trusted and log_offset >= follows_from:
                is_right = True
            else:
                is_right = _is_named(record, log_offset, queue_id, first_offset + at)
                is_right = is_right and (is_trusted or _is_whole(record, log_offset, topic))
            if not is_right:
                damaged.append(at)
            elif wanted is None or wanted.matches_record(record):
                count += 1
                total += size
                if slices and slices[-1][1] == start:
                    slices[-1] = (slices[-1][0], end)
                else:
                    slices.append((start, end))
            follows_from = log_offset + size if is_right else MAX_OFFSET
        at += 1
    return at, count, total, b"".join(SLICE.pack(*each) for each in slices), is_outside, tuple(damaged)


def _is_named(record: bytes, log_offset: int, queue_id: int, queue_offset: int) -> bool:
    """Whether a record's header contains the log offset, queue id and queue offset of its unit."""
    if len(record) < RECORD_BYTES_MIN:
        return False
    size, magic, _, *own = FIXED_V4.unpack_from(record)[:7]
    named = size == len(record) and (own[0], own[2], own[3]) == (queue_id, queue_offset, log_offset)
    return magic in (MAGIC_V1, MAGIC_V2) and named


def _is_whole(record: bytes, log_offset: int, topic: bytes) -> bool:
    """Whether the bytes are a whole record of a topic, with an intact body."""
    found = record_at(record, 0, len(record), True, log_offset)
    return found is not None and found[11] == topic
