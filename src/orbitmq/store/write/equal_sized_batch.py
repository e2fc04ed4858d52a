"""Batches whose messages differ in nothing but body and unique key, as producers of fixed-size messages send them.

All entries of such a row have one size, so one C call takes it apart and another puts the records together: 0.8 us a
message instead of 2. What is odd about a row is left to ``Appender``, whose way is the definition.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from orbitmq.record.hashing import tags_code
from orbitmq.record.layout import (
    BATCH_ENTRY,
    CRC_MASK,
    FIXED_V4,
    HOLE_BYTES,
    LENGTH_16,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
)
from orbitmq.record.properties import find_property
from orbitmq.store.layout import UNIT
from orbitmq.store.queues.consume_queue import ConsumeQueue

__all__ = ["EvenRow", "EvenRows"]

COUNT_MAX: Final = 1024
"""Longer rows go the ordinary way: what is prepared for a row grows with its length."""
PLANS_MAX: Final = 128
KEY_BYTES: Final = 32
KEY_TAIL_BYTES: Final = 3
"""The last digits of a unique key count messages; what is before them changes every 4,096 messages or with time."""

_NAME: Final = b"UNIQ_KEY\x01"
_ENTRY_BYTES: Final = BATCH_ENTRY.size
_SIZE_AND_MAGIC: Final = Struct(">iI")
_QUEUE_AND_FLAG: Final = Struct(">ii")
_BODY_SIZE: Final = Struct(">i")
_UNIT_REST: Final = Struct(">iq")
_SHARED_BYTES: Final = 48
assert FIXED_V4.size == 8 + 4 + 8 + 16 + _SHARED_BYTES + 4
_IN_FIELDS: Final = 6
_OUT_FIELDS: Final = 11


class EvenRow(NamedTuple):
    """What is to be written for a row, and what its index entries are made of."""

    records: bytes
    units: bytes
    log_offsets: list[int]
    key_heads: tuple[bytes, ...]
    """Unique keys up to their last digits."""
    key_tails: tuple[bytes, ...]
    properties: bytes
    """Those of the first message; the others differ in the unique key alone."""


class _Plan:
    """The calls for rows of one shape, and the arguments of the second, reused from row to row."""

    __slots__ = ("pack", "pack_units", "unit_values", "unpack", "values")

    def __init__(self, count: int, body_size: int, before: int, behind: int, topic_bytes: int) -> None:
        """``before`` and ``behind``: bytes of the properties with their size before the key, and behind it."""
        head = KEY_BYTES - KEY_TAIL_BYTES
        key = f"{head}s{KEY_TAIL_BYTES}s"
        entry = Struct(">" + f"{_ENTRY_BYTES}s{body_size}s{before}s{key}{behind}s" * count)
        record = Struct(
            ">" + f"8sI8sqq{_SHARED_BYTES + 4}s{body_size}s{topic_bytes + before}s{key}{behind}s" * count
        )
        self.unpack: Callable[[bytes], tuple[Any, ...]] = entry.unpack
        self.pack: Callable[..., bytes] = record.pack
        self.pack_units: Callable[..., bytes] = Struct(">" + "q12s" * count).pack
        self.values: list[int | bytes] = [0] * (_OUT_FIELDS * count)
        self.unit_values: list[int | bytes] = [0] * (2 * count)


class EvenRows:
    """Remembers the shapes of rows seen lately."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, int, int, int, int], _Plan | None] = {}

    def encode(
        self, data: bytes, queue: ConsumeQueue, log_offset: int, shared: bytes, body_bytes_max: int
    ) -> EvenRow | None:
        """What to write at ``log_offset`` for a row of entries; None when it is not even, or new in its shape.

        ``shared`` is what the fixed parts of its records have in common, behind the log offset.
        """
        if len(data) < _ENTRY_BYTES:
            return None
        size, _, _, flag, body_size = BATCH_ENTRY.unpack_from(data)
        if not 0 <= body_size <= body_bytes_max or not 0 < size <= len(data):
            return None
        count, rest = divmod(len(data), size)
        body_end = _ENTRY_BYTES + body_size
        key = data.find(_NAME, body_end + 2, size) + len(_NAME)
        key_end = key + KEY_BYTES
        if rest or not 2 <= count <= COUNT_MAX or key < len(_NAME) or key_end >= size or data[key_end] != 2:
            return None
        properties = data[body_end + 2 : size]
        if (
            not _ordinary(properties, key - body_end - 2)
            or len(properties) != LENGTH_16.unpack_from(data, body_end)[0]
        ):
            return None
        plan = self._plan(count, body_size, key - body_end, size - key_end, len(queue.topic_field))
        if plan is None:
            return None
        entries = plan.unpack(data)
        before, behind, heads = entries[2::_IN_FIELDS], entries[5::_IN_FIELDS], entries[0::_IN_FIELDS]
        if (
            heads.count(heads[0]) != count
            or before.count(before[0]) != count
            or behind.count(behind[0]) != count
        ):
            return None
        record_size = FIXED_V4.size + len(queue.topic_field) + size - _ENTRY_BYTES
        end = log_offset + count * record_size
        log_offsets = list(range(log_offset, end, record_size))
        bodies, key_heads, key_tails = entries[1::_IN_FIELDS], entries[3::_IN_FIELDS], entries[4::_IN_FIELDS]
        values, fields = plan.values, _OUT_FIELDS
        values[0::fields] = [_SIZE_AND_MAGIC.pack(record_size, MAGIC_V1)] * count
        values[1::fields] = [crc32(body) & CRC_MASK for body in bodies]
        values[2::fields] = [_QUEUE_AND_FLAG.pack(queue.queue_id, flag)] * count
        values[3::fields] = range(queue.max_offset, queue.max_offset + count)
        values[4::fields] = log_offsets
        values[5::fields] = [shared + _BODY_SIZE.pack(body_size)] * count
        values[6::fields] = bodies
        values[7::fields] = [queue.topic_field + before[0]] * count
        values[8::fields] = key_heads
        values[9::fields] = key_tails
        values[10::fields] = behind
        units = plan.unit_values
        units[0::2] = log_offsets
        units[1::2] = [_UNIT_REST.pack(record_size, tags_code(find_property(properties, b"TAGS")))] * count
        return EvenRow(
            plan.pack(*values), plan.pack_units(*units), log_offsets, key_heads, key_tails, properties
        )

    def _plan(self, *shape: int) -> _Plan | None:
        # A plan costs as much as it saves in one row, so it is made when a shape comes for the second time.
        plans = self._plans
        try:
            plan = plans[shape]  # type: ignore[index]  # five numbers
        except KeyError:
            if len(plans) >= PLANS_MAX:
                plans.clear()
            plans[shape] = None  # type: ignore[index]  # the key is the shape, five numbers
            return None
        if plan is None:
            plan = plans[shape] = _Plan(*shape)  # type: ignore[index]  # the key is the shape, five numbers
        return plan


def _ordinary(properties: bytes, key: int) -> bool:
    """Whether properties whose unique key is at ``key`` can be stored as they are and have one such key."""
    start = key - len(_NAME)
    return (
        len(properties) <= PROPERTIES_BYTES_MAX
        and (start == 0 or properties[start - 1] == 2)
        and properties.find(_NAME, key) < 0
        and properties[-1] != 0
        and (len(properties) < HOLE_BYTES or bytes(HOLE_BYTES) not in properties)
    )


assert UNIT.size == 8 + _UNIT_REST.size
