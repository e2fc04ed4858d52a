"""Reading queues: batches of records as slices of the log, and searches by time (Apache: ``getMessage``).

A read copies no message: units are read from the queue, each record becomes a slice of the mapped segment, and
neighbours in the log become one slice, so that a batch usually goes out with very few.

Where a unit holds an extension address in place of a tag code (``enableConsumeQueueExt``) and the extension is gone,
the message passes any tag filter: the client looks at the tag itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import compress, islice
from struct import Struct
from typing import Final

from orbitmq.store.components import StoreParts
from orbitmq.store.layout import UNIT, UNIT_BYTES
from orbitmq.store.log.commit_log import CommitLog
from orbitmq.store.queues.consume_queue import ConsumeQueue
from orbitmq.store.queues.queue_ext import ADDRESS_MAX
from orbitmq.store.read.selection import select
from orbitmq.store.types import ReadResult, ReadStatus
from orbitmq.store.write.property_dictionary import TextColumns

__all__ = ["QueueReader"]

READ_BYTES_MIN: Final = 100
READ_BYTES_MAX: Final = 128 << 20
"""Apache's bounds of the size a reader may ask for."""

LOG_OFFSET: Final = Struct(">q")
_RUN_COUNT_MAX: Final = 64
_RUN_BYTES_MAX: Final = _RUN_COUNT_MAX * UNIT_BYTES
_SIZES: Final = tuple(Struct(">" + "8xi8x" * count) for count in range(_RUN_COUNT_MAX + 1))
"""By the number of units: reads nothing but the record sizes."""
assert _SIZES[1].size == UNIT_BYTES

TagCodes = frozenset[int] | None
Predicate = Callable[[memoryview], bool] | None


class QueueReader:
    """Answers reads from queues and log."""

    def __init__(self, parts: StoreParts, memory_bytes: int) -> None:
        self._log = parts.log
        self._by_key = parts.queues.by_key
        self._parts = parts
        self._extensions = parts.queues.extensions
        self._texts = TextColumns()
        self._machine_bytes = memory_bytes
        self.corrects_offsets = True
        """False on a slave: a consumer there keeps its offset whatever it asked for."""
        self.confirm_offset: int | None = None
        """Records that end behind this are not given yet; None: all are."""

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
    ) -> ReadResult:
        """See ``MessageStore.read``."""
        queue = self._by_key.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, self._corrected(offset, 0), 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            if offset == high and predicate is not None:
                self._texts.verdicts(queue, predicate, offset, offset)
            return self._outside(offset, low, high)
        config = self._parts.config
        log = self._log
        log_limit = log.end if self.confirm_offset is None else self.confirm_offset
        memory_start = log.end - self._machine_bytes * config.memory_ratio_percent // 100
        bytes_max = (
            READ_BYTES_MAX if max_bytes is None else min(max(max_bytes, READ_BYTES_MIN), READ_BYTES_MAX)
        )
        count_max = max(1, min(max_count, config.memory_transfer_count_max))
        # Without a filter no more units are needed than messages may be given.
        window = count_max
        if tag_codes is not None or predicate is not None:
            window = max(config.filter_window_bytes // UNIT_BYTES, max_count, 1)
        units = queue.units(offset, min(window, high - offset))
        if not units:
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
        if self.confirm_offset is not None:
            # What is held back is not there yet for a reader, not even to be passed over by a filter.
            units = _up_to(units, log_limit)
            if not units:
                return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        limit = min(bytes_max, config.memory_transfer_bytes_max)
        if LOG_OFFSET.unpack_from(units)[0] < memory_start:
            count_max = min(count_max, config.disk_transfer_count_max)
            limit = min(bytes_max, config.disk_transfer_bytes_max)
        if tag_codes is not None and self._extensions is not None:
            units = self._extensions.with_tag_codes(queue, units)
        limits = (count_max, limit, log_limit)
        slices: list[memoryview] = []
        if predicate is None:
            looked, count, size = collect(log, units, limits, tag_codes, slices)
            is_gone = size < 0
        else:
            known = None
            if tag_codes is None:
                end = offset + len(units) // UNIT_BYTES
                known = self._texts.verdicts(queue, predicate, offset, end)
            if known is None:
                looked, count, size, is_gone = select(log, units, limits, (tag_codes, predicate), slices)
            else:
                looked, count, size = _collect_judged(log, units, limits, known, slices)
                is_gone = size < 0
        # As in Apache, how far the reader lags is measured at the last record looked at.
        lags = looked > 0 and LOG_OFFSET.unpack_from(units, (looked - 1) * UNIT_BYTES)[0] < memory_start
        status = ReadStatus.FOUND
        if not count:
            status = ReadStatus.MESSAGE_WAS_REMOVING if is_gone else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, offset + looked, low, high, slices, count, max(size, 0), lags)

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


def _up_to(units: bytes, log_end: int) -> bytes:
    """The units whose records end at or before a log offset; units are in log order."""
    low, high = 0, len(units) // UNIT_BYTES
    while low < high:
        middle = (low + high) // 2
        log_offset, size, _ = UNIT.unpack_from(units, middle * UNIT_BYTES)
        if log_offset + size <= log_end:
            low = middle + 1
        else:
            high = middle
    return units[: low * UNIT_BYTES]


def _whole_run(log: CommitLog, units: bytes, limits: tuple[int, int, int]) -> memoryview | None:
    """All records of ``units`` as one slice when they are neighbours in the log, as those of a batch are; else None.

    Units are in log order, so their records are neighbours exactly when their sizes add up to the span they cover.
    """
    first, size, _ = UNIT.unpack_from(units)
    if LOG_OFFSET.unpack_from(units, UNIT_BYTES)[0] != first + size:
        return None
    last, last_size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
    count_max, bytes_max, log_limit = limits
    end = last + last_size
    start = first - first % log.segment_bytes
    count = len(units) // UNIT_BYTES
    if (
        first < 0
        or end - first > bytes_max
        or end > min(log_limit, start + log.segment_bytes)
        or count > count_max
    ):
        return None
    sizes = _SIZES[count].unpack(units)
    if sum(sizes) != end - first or min(sizes) <= 0:
        return None
    view = log.segments.view(start)
    return None if view is None else view[first - start : end - start]


def _collect_judged(
    log: CommitLog,
    units: bytes,
    limits: tuple[int, int, int],
    known: tuple[array[int], bytearray],
    slices: list[memoryview],
) -> tuple[int, int, int]:
    """As ``collect``, for those units whose numbers have a verdict of 1."""
    numbers, verdicts = known
    matching = compress(range(len(numbers)), map(verdicts.__getitem__, numbers))
    places = list(islice(matching, limits[0]))
    found = b"".join([units[at * UNIT_BYTES : (at + 1) * UNIT_BYTES] for at in places])
    looked, count, size = collect(log, found, limits, None, slices)
    if looked < len(places):  # the next one exceeds a limit
        return places[looked], count, size
    # Those that were not asked for come with the next read, also when some of these are gone.
    return (places[-1] + 1 if len(places) == limits[0] else len(numbers)), count, size


def collect(
    log: CommitLog, units: bytes, limits: tuple[int, int, int], tag_codes: TagCodes, slices: list[memoryview]
) -> tuple[int, int, int]:
    """Add the records of ``units`` with one of the codes (None: any) to ``slices``.

    ``limits``: most records, most bytes (the first record is taken in any case), and the log offset behind which
    nothing is given. Gives the units looked at, the records taken and their bytes, or -1 in place of the bytes when
    there would have been a record but it is gone or damaged.
    """
    # Hot: two million messages a second. A run of neighbours costs one slice, and a record in the segment at hand
    # costs two comparisons.
    count_max, bytes_max, log_limit = limits
    if tag_codes is None and not log.damaged and 2 * UNIT_BYTES <= len(units) <= _RUN_BYTES_MAX:
        run = _whole_run(log, units, limits)
        if run is not None:
            slices.append(run)
            return len(units) // UNIT_BYTES, len(units) // UNIT_BYTES, len(run)
    view: memoryview | None = None
    looked = count = total = 0
    start = stop = run_start = run_end = 0
    is_gone = False
    for log_offset, size, tag_code in UNIT.iter_unpack(units):
        if count == count_max:
            break
        if tag_codes is not None and tag_code not in tag_codes and tag_code > ADDRESS_MAX:
            looked += 1
            continue
        end = log_offset + size
        if total + size > bytes_max and count:
            break
        if log_offset == run_end and end <= stop:
            run_end = end
        elif start <= log_offset and end <= stop and view is not None and size > 0:
            slices.append(view[run_start - start : run_end - start])
            run_start, run_end = log_offset, end
        else:
            if view is not None:
                slices.append(view[run_start - start : run_end - start])
                view, stop = None, 0
            if log_limit < end <= log.end:
                break
            looked += 1
            start = log_offset - log_offset % log.segment_bytes
            is_gone = size <= 0 or end > log.end or end > start + log.segment_bytes
            if not is_gone and not (log.damaged and log.in_damage(log_offset)):
                view = log.segments.view(start)
            if view is None:
                is_gone = True
                continue
            # With damage about every record goes this way, to be checked on its own.
            stop = min(start + log.segment_bytes, log_limit) if not log.damaged else 0
            run_start, run_end = log_offset, end
            count += 1
            total += size
            continue
        looked += 1
        count += 1
        total += size
    if view is not None:
        slices.append(view[run_start - start : run_end - start])
    return looked, count, total if count or not is_gone else -1
