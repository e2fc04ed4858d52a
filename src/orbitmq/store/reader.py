"""Reading queues: batches of records as slices of the log, and searches by time (Apache: ``getMessage``).

A read copies no message: units are read from the queue, each record becomes a slice of the mapped segment, and
neighbours in the log become one slice, so that a batch usually goes out with very few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orbitmq.store.commit_log import CommitLog
from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.layout import UNIT, UNIT_BYTES
from orbitmq.store.parts import StoreParts
from orbitmq.store.types import ReadResult, ReadStatus

__all__ = ["QueueReader"]

READ_BYTES_MIN: Final = 100
READ_BYTES_MAX: Final = 128 << 20
"""Apache's bounds of the size a reader may ask for."""

TagCodes = frozenset[int] | None
Predicate = Callable[[memoryview], bool] | None


class QueueReader:
    """Answers reads from queues and log. Holds no state of its own."""

    def __init__(self, parts: StoreParts, memory_bytes: int) -> None:
        self._log = parts.log
        self._by_key = parts.queues.by_key
        self._config = parts.config
        self._memory_bytes = memory_bytes * parts.config.memory_ratio_percent // 100
        self.corrects_offsets = True
        """False on a slave: a consumer there keeps its offset whatever it asked for."""

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int | None,
        tag_codes: TagCodes,
        predicate: Predicate,
        log_limit: int,
    ) -> ReadResult:
        """See ``MessageStore.read``; records at or behind ``log_limit`` are not given."""
        queue = self._by_key.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, self._corrected(offset, 0), 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return self._outside(offset, low, high)
        config = self._config
        limit = READ_BYTES_MAX if max_bytes is None else min(max(max_bytes, READ_BYTES_MIN), READ_BYTES_MAX)
        window = max(config.filter_window_bytes // UNIT_BYTES, max_count)
        batch = _Batch(self._log, log_limit, self._log.end - self._memory_bytes)
        if tag_codes is None and predicate is None:
            # Nothing is filtered out: no more units are needed than messages are asked for.
            window = min(window, max_count, config.memory_transfer_count_max)
        batch.limits = (
            max_count,
            limit,
            config.memory_transfer_count_max,
            config.memory_transfer_bytes_max,
            config.disk_transfer_count_max,
            config.disk_transfer_bytes_max,
        )
        units = queue.units(offset, max(1, min(window, high - offset)))
        if not units:
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
        if tag_codes is None and predicate is None:
            looked = batch.fill(units)
        else:
            looked = batch.fill_filtered(units, tag_codes, predicate)
        return ReadResult(
            batch.status,
            offset + looked,
            low,
            high,
            batch.slices,
            batch.count,
            batch.size_bytes,
            batch.last_log_offset < batch.memory_start,
        )

    def _outside(self, offset: int, low: int, high: int) -> ReadResult:
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0), low, high)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, self._corrected(offset, low), low, high)
        if offset == high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, high), low, high)

    def _corrected(self, asked: int, right: int) -> int:
        return right if self.corrects_offsets or self._config.check_offset_on_slave else asked

    def store_time(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Store time of a message; -1 when it is not there."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        unit = queue.unit(queue_offset)
        return -1 if unit is None else self._log.store_time(unit[0])

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool) -> int:
        """Binary search: the first message stored at or after the time (``upper``: the last at or before)."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            stored_ms = self.store_time(queue, middle)
            if stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        if upper:
            return max(low - 1, queue.min_offset)
        return low


class _Batch:
    """A result being filled."""

    __slots__ = (
        "_log",
        "_log_limit",
        "count",
        "last_log_offset",
        "limits",
        "memory_start",
        "size_bytes",
        "slices",
        "status",
    )

    def __init__(self, log: CommitLog, log_limit: int, memory_start: int) -> None:
        self._log = log
        self._log_limit = log_limit
        self.memory_start = memory_start
        """Records before this log offset count as being on the disk only."""
        self.limits = (0, 0, 0, 0, 0, 0)
        self.slices: list[memoryview] = []
        self.count = 0
        self.size_bytes = 0
        self.last_log_offset = 1 << 62
        self.status = ReadStatus.NO_MATCHED_MESSAGE

    def fill(self, units: bytes) -> int:
        """Take records without a filter; gives how many units were looked at."""
        # Hot: two million messages a second. A run of neighbours costs one slice; limits are compared in place.
        log, log_limit, memory_start = self._log, self._log_limit, self.memory_start
        segment_bytes, damaged = log.segment_bytes, log.damaged
        max_count, max_bytes, memory_count, memory_bytes, disk_count, disk_bytes = self.limits
        memory_count = min(memory_count, max_count)
        memory_bytes = min(memory_bytes, max_bytes)
        disk_count = min(disk_count, max_count)
        disk_bytes = min(disk_bytes, max_bytes)
        slices, view = self.slices, None
        looked = count = total = 0
        segment_start = segment_end = run_start = run_end = -1
        for log_offset, size, _ in UNIT.iter_unpack(units):
            if count:
                if log_offset >= memory_start:
                    if count >= memory_count or total + size > memory_bytes:
                        break
                elif count >= disk_count or total + size > disk_bytes:
                    break
            end = log_offset + size
            if end > log_limit or size <= 0:
                if size <= 0 or end > log.end:
                    looked += 1
                    self.status = ReadStatus.MESSAGE_WAS_REMOVING if not count else self.status
                    continue
                break  # not confirmed yet
            if log_offset != run_end or end > segment_end:
                if run_end > run_start:
                    slices.append(view[run_start - segment_start : run_end - segment_start])  # type: ignore[index]
                run_start = run_end = -1
                if not segment_start <= log_offset < segment_end:
                    segment_start = log_offset - log_offset % segment_bytes
                    segment_end = segment_start + segment_bytes
                    view = log.segments.view(segment_start) if log_offset >= 0 else None
                if view is None or end > segment_end or (damaged and log.in_damage(log_offset)):
                    segment_start = segment_end = -1
                    looked += 1
                    self.status = ReadStatus.MESSAGE_WAS_REMOVING if not count else self.status
                    continue
                run_start = log_offset
            run_end = end
            looked += 1
            count += 1
            total += size
            self.last_log_offset = log_offset
        if run_end > run_start:
            slices.append(view[run_start - segment_start : run_end - segment_start])  # type: ignore[index]
        if count:
            self.status = ReadStatus.FOUND
        self.count, self.size_bytes = count, total
        return looked

    def fill_filtered(self, units: bytes, tag_codes: TagCodes, predicate: Predicate) -> int:
        """Take the records a filter lets through; gives how many units were looked at."""
        log = self._log
        looked = 0
        for log_offset, size, tag_code in UNIT.iter_unpack(units):
            if self.count and self._is_full(log_offset, size):
                break
            if log_offset + size > self._log_limit and log_offset + size <= log.end:
                break  # not confirmed yet
            looked += 1
            self.last_log_offset = log_offset
            if tag_codes is not None and tag_code not in tag_codes:
                continue
            record = log.slice(log_offset, size) if size > 0 and not log.in_damage(log_offset) else None
            if record is None:
                if not self.count:
                    self.status = ReadStatus.MESSAGE_WAS_REMOVING
                continue
            if predicate is not None and not predicate(record):
                if not self.count:
                    self.status = ReadStatus.NO_MATCHED_MESSAGE
                continue
            self.slices.append(record)
            self.count += 1
            self.size_bytes += size
            self.status = ReadStatus.FOUND
        return looked

    def _is_full(self, log_offset: int, size: int) -> bool:
        max_count, max_bytes, memory_count, memory_bytes, disk_count, disk_bytes = self.limits
        if log_offset < self.memory_start:
            memory_count, memory_bytes = disk_count, disk_bytes
        return self.count >= min(max_count, memory_count) or self.size_bytes + size > min(
            max_bytes, memory_bytes
        )
