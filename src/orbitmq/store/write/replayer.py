"""Checks replicated bytes before they are stored, and extracts queue units and index keys from them.

A slave does this for every message of its master, in bulk (``orbitmq.kernel``). Special cases are left to
``Dispatcher``: a new queue, a jump in queue offsets, units that hold something other than tag codes.
"""

from __future__ import annotations

from typing import Final

from orbitmq.kernel import NO_KEYS, dispatch_records
from orbitmq.kernel.layout import (
    BLANK,
    BLANK_BYTES,
    BORN_V6,
    FIXED,
    IDENTITY,
    INT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    STORE_V6,
    SYS_FLAG_AT,
)
from orbitmq.record.property_crc import first_wrong
from orbitmq.record.scan import EndKind, scan
from orbitmq.store.components import StoreParts
from orbitmq.store.queues.consume_queue import TAIL_BYTES_MAX, ConsumeQueue

__all__ = ["Replayer", "Replica"]

MORE_THAN_BODY_BYTES: Final = PROPERTIES_BYTES_MAX + 1024
"""Maximum size of a record without its body."""

Found = tuple[list[tuple[bytes, int, int, bytes]], int, int, int, bytes]


class Replica:
    """Checked bytes of a master's log, starting at a record boundary."""

    def __init__(self, data: bytes, log_offset: int, with_keys: int, segment_bytes: int) -> None:
        self.log_offset = log_offset
        self.found: Found | None = dispatch_records(
            data, 0, len(data), True, log_offset, with_keys, len(data)
        )
        self.fault = ""
        """Why some of the bytes must not be stored; empty if all may be."""
        position = 0 if self.found is None else self.found[3]
        while position < len(data):
            room = segment_bytes - (log_offset + position) % segment_bytes
            if _is_begun(data, position, room, log_offset):
                break
            limit = min(len(data), position + room)
            scanned = scan(data, position, limit, log_base=log_offset)
            for _ in scanned:
                pass
            assert scanned.end is not None
            room -= scanned.end.position - position
            position = scanned.end.position
            if scanned.end.kind is EndKind.BLANK and not scanned.end.reason and position + room == limit:
                position = limit
            elif position < limit and not _is_begun(data, position, room, log_offset):
                self.fault = scanned.end.reason or "zeros"
                break
        self.whole_size = position
        """Size of the leading whole records and markers."""
        self.size = position if self.fault else len(data)
        """How many leading bytes may be stored: ``whole_size``, plus possibly the beginning of another record."""


def _is_begun(data: bytes, position: int, room: int, log_base: int) -> bool:
    """Whether a record or an end-of-segment marker may start there and extend past the end of the data.

    ``room`` is the number of bytes left in the segment, and ``log_base`` is the log offset of position 0.
    """
    rest = len(data) - position
    if rest < BLANK_BYTES:
        return rest < room
    size, magic = BLANK.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        return bool(rest < size == room)
    if magic not in (MAGIC_V1, MAGIC_V2) or not max(rest + 1, RECORD_BYTES_MIN) <= size <= room - BLANK_BYTES:
        return False
    if rest < RECORD_BYTES_MIN:
        return True
    (sys_flag,) = INT.unpack_from(data, position + SYS_FLAG_AT)
    fixed_bytes = FIXED[sys_flag & (BORN_V6 | STORE_V6)].size
    if IDENTITY.unpack_from(data, position)[2] != log_base + position:
        return False
    if rest < fixed_bytes:
        return True
    # A corrupt size would make the replica wait for bytes that belong to other records.
    (body_bytes,) = INT.unpack_from(data, position + fixed_bytes - INT.size)
    return bool(body_bytes >= 0 and 0 < size - body_bytes - fixed_bytes <= MORE_THAN_BODY_BYTES)


class Replayer:
    """Updates the queues and the index of one store from replicated records."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._with_keys = NO_KEYS if parts.index is None else parts.index.with_keys

    def check(self, data: bytes, log_offset: int) -> Replica:
        """Check bytes that start at a record boundary of the master's log. Changes nothing."""
        wrong = first_wrong(data, 0, len(data)) if self._parts.config.property_crc_enabled else -1
        replica = Replica(
            data if wrong < 0 else data[:wrong], log_offset, self._with_keys, self._parts.log.segment_bytes
        )
        if wrong >= 0 and not replica.fault:
            replica.fault = "a record does not match its property __CRC32#"
        return replica

    def replay(self, replica: Replica, arrived: dict[ConsumeQueue, None]) -> tuple[int, list[ConsumeQueue]]:
        """Dispatch the leading records, either all or none of them.

        Returns the log offset after them, and the queues whose tails are long enough that the caller must write them.
        """
        parts, log_offset = self._parts, replica.log_offset
        if replica.found is None:
            return log_offset, []
        groups, _, newest_ms, position, keys = replica.found
        by_key = parts.queues.by_key
        queues: list[ConsumeQueue] = []
        for topic, queue_id, first, _ in groups:
            queue = by_key.get((topic.decode("utf-8", "replace"), queue_id))
            if queue is None or queue.max_offset != first or queue.has_own_codes:
                return log_offset, []
            queues.append(queue)
        for queue, (_, _, _, units) in zip(queues, groups, strict=True):
            queue.extend(units)
            arrived[queue] = None
        if parts.index is not None:
            parts.index.put_keys(keys)
        parts.log.last_store_ms = max(parts.log.last_store_ms, newest_ms)
        return log_offset + position, [queue for queue in queues if len(queue.tail) >= TAIL_BYTES_MAX]
