"""Reads queues: returns batches of records as slices of the log, and finds offsets by time (Apache: ``getMessage``).

A read copies no message: units are read from the queue, ``kernel.select`` chooses among their records, and each run
of adjacent records in the log becomes one slice of the mapped segment. It also verifies the checksum of each record
it chooses. Damaged records are skipped and reported (``store/read/integrity.py``).

If a unit holds an extension address in place of a tag code (``enableConsumeQueueExt``) and the extension no longer
exists, the message passes any tag filter, because the client compares the tag itself.
"""

from __future__ import annotations

from typing import Final

from orbitmq.kernel import Filter, select
from orbitmq.kernel.layout import LONG
from orbitmq.record.property_crc import right_slices
from orbitmq.store.components import StoreParts
from orbitmq.store.layout import UNIT, UNIT_BYTES
from orbitmq.store.queues.consume_queue import ConsumeQueue
from orbitmq.store.read.integrity import Integrity
from orbitmq.store.types import ReadResult, ReadStatus

__all__ = ["QueueReader", "Reads"]

READ_BYTES_MIN: Final = 100
READ_BYTES_MAX: Final = 128 << 20
"""Apache's upper bound on the size of a read."""

FILTER_WORK_MAX: Final = 40_000
"""SQL program nodes one read may evaluate: 20 ms with the plain kernel, 2 ms with the compiled one. With programs of
more than 50 nodes, a read covers fewer units than the window of a filtered read holds."""

_FOUND: Final = ReadStatus.FOUND
_NO_MATCH: Final = ReadStatus.NO_MATCHED_MESSAGE
_REMOVING: Final = ReadStatus.MESSAGE_WAS_REMOVING


class QueueReader:
    """Serves reads from the queues and the log."""

    def __init__(self, parts: StoreParts, memory_bytes: int) -> None:
        self._log = parts.log
        self.queues: Final = parts.queues.by_key
        """Queues by topic and queue id."""
        self._parts = parts
        self._extensions = parts.queues.extensions
        self._machine_bytes = memory_bytes
        self.own_offset = 0
        """This process has written the log from this offset on. The part of it that counts as in memory
        (``memory_ratio_percent``) is not verified again."""
        self.checks_property_crc: Final = parts.config.property_crc_enabled
        self.integrity = Integrity(parts.log, parts.dispatcher, checks_property_crc=self.checks_property_crc)
        self.corrects_offsets = True
        """False on a slave, where a consumer keeps the offset it requested."""
        self.confirm_offset: int | None = None
        """Records that end after this are not served yet; None serves all."""

    def written_from(self, log_offset: int) -> None:
        """Set ``own_offset``, from which the log is trusted."""
        self.own_offset = log_offset

    def limit(self, log_offset: int | None) -> None:
        """Set ``confirm_offset``: records that end after it are not served. None serves all."""
        self.confirm_offset = log_offset

    def correct_offsets(self, corrects: bool) -> None:
        """Set whether a read outside a queue returns the correct offset (``corrects_offsets``)."""
        self.corrects_offsets = corrects

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        wanted: Filter | None = None,
    ) -> ReadResult:
        """Returns records of a queue from ``offset``, whole and in order. Never raises for any offset.

        ``wanted`` selects by tag code, by SQL program or both; without it every record is returned. The store's own
        limits also bound counts and bytes. ``next_offset`` is where to continue, even if nothing was found.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, self._corrected(offset, 0), 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return self._outside(offset, low, high)
        window, in_memory, on_disk = self.limits(max_count, max_bytes, wanted)
        units = queue.units(offset, window if window < high - offset else high - offset)
        if not units:
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
        memory_start = self._memory_start()
        first_offset: int = LONG.unpack_from(units)[0]
        lags = first_offset < memory_start
        limits = on_disk if lags else in_memory
        if wanted is not None and wanted.has_tags and self._extensions is not None:
            units = self._extensions.with_tag_codes(queue, units)
        result = ReadResult(_NO_MATCH, offset, low, high)
        trusted_offset = self.own_offset if self.own_offset > memory_start else memory_start
        place = (queue.topic_bytes, queue_id, offset, trusted_offset)
        looked, damaged = self._collect(units, first_offset, limits, wanted, result, place)
        if damaged:
            numbers = [offset + number for number in damaged]
            if self.integrity.examine(queue, numbers):
                return self.read(topic, queue_id, offset, max_count, max_bytes=max_bytes, wanted=wanted)
            fetched = self.integrity.first_fetched(queue, numbers)
            if fetched is not None:
                units = units[: (fetched - offset) * UNIT_BYTES]
                result = ReadResult(_NO_MATCH, offset, low, high)
                looked = self._collect(units, first_offset, limits, wanted, result, place)[0] if units else 0
        if not looked:
            # Every record is held back, or the first one is being fetched from another broker.
            result.status = ReadStatus.OFFSET_OVERFLOW_ONE
            return result
        result.next_offset = offset + looked
        # Like Apache, measure the reader's lag at the last record examined; units are in log order.
        if lags:
            result.from_disk = LONG.unpack_from(units, (looked - 1) * UNIT_BYTES)[0] < memory_start
        return result

    # Hot: runs once per pull. `min` and `max` would cost a quarter of a microsecond each.
    def limits(
        self, max_count: int, max_bytes: int | None, wanted: Filter | None
    ) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Returns how many units a read examines, and the maximum records and bytes of a read that begins in memory
        and of one that begins on disk."""
        config = self._parts.config
        count_max = config.memory_transfer_count_max
        if max_count < count_max:
            count_max = max_count if max_count > 0 else 1
        disk_count_max = config.disk_transfer_count_max
        bytes_max, disk_bytes_max = config.memory_transfer_bytes_max, config.disk_transfer_bytes_max
        asked = READ_BYTES_MAX if max_bytes is None or max_bytes > READ_BYTES_MAX else max_bytes
        if asked < READ_BYTES_MIN:
            asked = READ_BYTES_MIN
        return (
            # Without a filter, one unit per returned message is enough.
            count_max if wanted is None else self._filtered_count(wanted, max_count),
            (count_max, asked if asked < bytes_max else bytes_max),
            (
                count_max if count_max < disk_count_max else disk_count_max,
                asked if asked < disk_bytes_max else disk_bytes_max,
            ),
        )

    def reads(self) -> Reads:
        """Returns a reader for several reads in a row, between which nothing is removed from the log."""
        return Reads(self)

    def bounds(self) -> tuple[int, int]:
        """Returns two log offsets: where the records that are likely in memory start, and from where the log is
        trusted."""
        memory_start = self._memory_start()
        return memory_start, self.own_offset if self.own_offset > memory_start else memory_start

    def _memory_start(self) -> int:
        return self._log.end - self._machine_bytes * self._parts.config.memory_ratio_percent // 100

    def window(self, log_offset: int) -> tuple[memoryview, int] | None:
        """Returns the part of the log around an offset that may be served, and its first log offset; None if there is
        none."""
        return self._log.window(log_offset, self.confirm_offset)

    @property
    def has_extensions(self) -> bool:
        """Whether units may hold extension addresses in place of tag codes."""
        return self._extensions is not None

    def _filtered_count(self, wanted: Filter, max_count: int) -> int:
        """Returns how many units a filtered read examines."""
        count = max(self._parts.config.filter_window_bytes // UNIT_BYTES, max_count, 1)
        if wanted.node_count:
            count = min(count, max(FILTER_WORK_MAX // wanted.node_count, 1))
        return count

    def _collect(
        self,
        units: bytes,
        log_offset: int,
        limits: tuple[int, int],
        wanted: Filter | None,
        result: ReadResult,
        place: tuple[bytes, int, int, int],
    ) -> tuple[int, list[int]]:
        """Add the selected records to the result and set its status; returns the number of units examined, and the
        indexes of those that are damaged or whose records are. The record of the first unit starts at ``log_offset``;
        ``place`` is topic, queue id and queue offset of the first unit, and the log offset before which records are
        verified.

        Records that end after ``confirm_offset`` do not exist yet for readers: not even a filter may skip them.
        Expired and damaged records are skipped.
        """
        at, count, total = 0, 0, 0
        damaged: list[int] = []
        log, confirm_offset = self._log, self.confirm_offset
        while True:
            if confirm_offset is not None:
                _, size, _ = UNIT.unpack_from(units, at * UNIT_BYTES)
                if confirm_offset < log_offset + size <= log.end:
                    break
            before, is_outside = at, True
            found = log.window(log_offset, confirm_offset)
            if found is not None:
                at, count, total, bounds, is_outside, faulty = select(
                    units, at, found, limits, (count, total), wanted, place
                )
                if faulty:
                    damaged += faulty
                if bounds and self.checks_property_crc:
                    bounds, wrong = right_slices(found[0], bounds)
                    count -= len(wrong)
                    total -= sum(size for _, size in wrong)
                    damaged += [number - place[2] for number, _ in wrong]
                if bounds:
                    result.pieces.append((found[0], bounds))
            if at > before:
                result.status = _FOUND if count else _NO_MATCH
            elif is_outside:
                unit_offset, size, _ = UNIT.unpack_from(units, at * UNIT_BYTES)
                if self.integrity.is_damage(unit_offset, size):
                    damaged.append(at)
                at += 1
                if not count:
                    result.status = _REMOVING
            if not is_outside or (at + 1) * UNIT_BYTES > len(units):
                break
            log_offset = LONG.unpack_from(units, at * UNIT_BYTES)[0]
        result.count, result.size_bytes = count, total
        return at, damaged

    def _outside(self, offset: int, low: int, high: int) -> ReadResult:
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0), low, high)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, self._corrected(offset, low), low, high)
        if offset == high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, high), low, high)

    def _corrected(self, asked: int, right: int) -> int:
        return right if self.corrects_offsets or self._parts.config.check_offset_on_slave else asked

    def store_time(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Returns the store time of a message; -1 if it does not exist."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        unit = queue.unit(queue_offset)
        return -1 if unit is None else self._log.store_time(unit[0])

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool) -> int:
        """Returns the queue offset of the first message stored at or after the time; with ``upper``, of the last one
        stored at or before it. Uses a binary search."""
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


class Reads:
    """Reads queues repeatedly, looking up limits, bounds and the log window once instead of on every read.

    The log may grow between two reads, but nothing may be removed from it.
    """

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._memory_start, self._trusted_offset = reader.bounds()
        self._window: tuple[memoryview, int] = (memoryview(b""), 0)
        self._window_end = 0
        self._asked: tuple[int, Filter | None] = (-1, None)
        self._limits: tuple[int, tuple[int, int], tuple[int, int]]

    def read(
        self, topic: str, queue_id: int, offset: int, max_count: int, wanted: Filter | None
    ) -> ReadResult:
        """Like ``QueueReader.read``, but may leave ``from_disk`` unset."""
        reader = self._reader
        queue = reader.queues.get((topic, queue_id))
        is_plain = not reader.checks_property_crc and queue is not None
        if (
            not is_plain
            or queue is None
            or (wanted is not None and wanted.has_tags and reader.has_extensions)
        ):
            return reader.read(topic, queue_id, offset, max_count, wanted=wanted)
        low, high = queue.min_offset, queue.max_offset
        if low <= offset < high:
            if self._asked != (max_count, wanted):
                self._asked = (max_count, wanted)
                self._limits = reader.limits(max_count, None, wanted)
            unit_count, in_memory, on_disk = self._limits
            units = queue.units(offset, unit_count if unit_count < high - offset else high - offset)
            if units:
                log_offset = LONG.unpack_from(units)[0]
                if not self._window[1] <= log_offset < self._window_end:
                    self._move(log_offset)
                # A record outside the window ends the selection like any other that needs a closer look.
                at, count, size_bytes, bounds, is_outside, damaged = select(
                    units,
                    0,
                    self._window,
                    on_disk if log_offset < self._memory_start else in_memory,
                    (0, 0),
                    wanted,
                    (queue.topic_bytes, queue_id, offset, self._trusted_offset),
                )
                if at and not is_outside and not damaged:
                    status = _FOUND if count else _NO_MATCH
                    pieces = [(self._window[0], bounds)]
                    return ReadResult(status, offset + at, low, high, pieces, count, size_bytes)
        return reader.read(topic, queue_id, offset, max_count, wanted=wanted)

    def _move(self, log_offset: int) -> None:
        """Move the window to the part of the log around ``log_offset``, if it can be served."""
        window = self._reader.window(log_offset)
        if window is not None:
            self._window, self._window_end = window, window[1] + len(window[0])
