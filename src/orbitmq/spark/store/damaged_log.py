"""Reads the intact records of a block of a damaged log, and reports the position, bytes and rows of the damage.

After damaged bytes, reading resumes at the next intact record that belongs there: magic, size, log offset and
checksum must all match. Missing rows are counted by the gaps between the queue offsets of each queue's first and last
intact record in the block, so the number is a lower bound.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from orbitmq.errors import RecordError
from orbitmq.kernel.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from orbitmq.record.scan import EndKind, ScannedRecord, scan
from orbitmq.spark.arrow import Positions

__all__ = ["MAGIC", "Damage", "Whole", "find_record", "whole_records"]

logger = logging.getLogger(__name__)

_SIZE_BYTES: Final = 4
_SHOWN_MAX: Final = 20
MAGIC: Final = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2)), re.DOTALL
)
"""Follows the size of a record."""


def find_record(view: memoryview, start: int, log_base: int) -> ScannedRecord | None:
    """Returns the first intact record of ``view`` at or after ``start`` whose log offset matches its position, or
    None. ``view`` begins at log offset ``log_base``."""
    for match in MAGIC.finditer(view, start):
        at = match.start() - _SIZE_BYTES
        size = int.from_bytes(view[at : at + _SIZE_BYTES], "big", signed=True) if at >= start else 0
        if RECORD_BYTES_MIN <= size <= len(view) - at:
            record = next(iter(scan(view[at : at + size], 0, size, log_base=log_base + at)), None)
            if record is not None:
                return record._replace(position=at)
    return None


@dataclass(slots=True)
class Whole:
    """The intact records of some bytes, by position, and the damaged parts between these records."""

    starts: Positions
    damaged: list[tuple[int, int, str]] = field(default_factory=list)
    rows_missing: int = 0


def whole_records(
    view: memoryview, log_base: int, *, open_end: bool, last_of_segment: bool, check_crc: bool
) -> Whole:
    """Returns all intact records in the bytes of a block. With ``open_end``, the log may end within the block. With
    ``last_of_segment``, the block may contain the marker of the segment's end."""
    starts: list[int] = []
    damaged: list[tuple[int, int, str]] = []
    queues: dict[tuple[bytes, int], list[int]] = {}
    at = newest_ms = 0
    while at < len(view):
        walk = scan(view, at, len(view), check_crc=check_crc, log_base=log_base)
        for record in walk:
            starts.append(record.position)
            at, newest_ms = record.position + record.size, record.store_timestamp_ms
            seen = queues.setdefault((record.topic, record.queue_id), [record.queue_offset] * 2 + [0])
            seen[0], seen[1] = min(seen[0], record.queue_offset), max(seen[1], record.queue_offset)
            seen[2] += 1
        end = walk.end
        if end is None or end.kind is EndKind.LIMIT or (end.kind is EndKind.BLANK and last_of_segment):
            break
        following = find_record(view, at + 1, log_base)
        if open_end and (following is None or following.store_timestamp_ms < newest_ms):
            break  # the end of the log; records from an earlier use of the file may follow
        stop = len(view) if following is None else following.position
        damaged.append((at, stop, end.reason or end.kind.value))
        at = stop
    missing = sum(max(0, last - first + 1 - count) for first, last, count in queues.values())
    return Whole(np.array(starts, np.int64), damaged, missing)


class Damage:
    """The damage that one task skips. With ``fail``, the first damage raises ``RecordError`` instead."""

    def __init__(self, path: str, *, fail: bool) -> None:
        self._path = path
        self._fail = fail
        self._ranges: list[tuple[int, int]] = []
        self.rows = 0
        """Lower bound of the skipped rows."""
        self._reason = ""

    def add(self, start: int, end: int, reason: str, rows: int) -> None:
        """Records damage between the log offsets ``start`` and ``end``. ``rows`` is a lower bound of the lost
        rows."""
        if self._fail:
            raise RecordError(
                f"{self._path}: the record at log offset {start} cannot be read: {reason}. "
                "failOnDataLoss=false skips such records"
            )
        self._ranges.append((start, end))
        self.rows += rows
        self._reason = self._reason or reason

    def tell(self) -> None:
        """Logs everything that was skipped, in one line."""
        if not self._ranges:
            return
        shown = ", ".join(f"{start} to {end}" for start, end in self._ranges[:_SHOWN_MAX])
        more = len(self._ranges) - _SHOWN_MAX
        logger.warning(
            "damaged records skipped path=%s rows_at_least=%d bytes=%d log_offsets=%s reason=%s",
            self._path,
            max(self.rows, 1),
            sum(end - start for start, end in self._ranges),
            f"{shown} and {more} more ranges" if more > 0 else shown,
            self._reason,
        )
