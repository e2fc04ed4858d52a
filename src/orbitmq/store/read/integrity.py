"""Handles damaged messages. They are reported once, skipped by readers, and repaired if the log has the data that a
queue lost.

A reader skips a message whose unit and record do not match (see ``kernel.select``) and reports it here. The log is
the source of truth: if it holds a whole record with that queue offset between the records of the neighbouring units,
the unit is the damaged part, and it is overwritten. Otherwise the record is damaged, and only another replica has it.
While the record is fetched from a replica (``fetch``), readers stop before the message; if the fetch fails, they skip
it.

Not detected: a record's checksum covers only its body, so a changed property, flag, time or host is served as it is,
and a changed tag code of a unit hides the message from readers that filter by tag.
"""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from orbitmq.kernel import record_starts, walk_records
from orbitmq.kernel.layout import (
    BLANK,
    BLANK_BYTES,
    IDENTITY,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET,
    RECORD_BYTES_MIN,
)
from orbitmq.record.property_crc import is_right
from orbitmq.record.scan import ScannedRecord, scan
from orbitmq.store.layout import BLANK_UNIT_SIZE
from orbitmq.store.log.commit_log import CommitLog
from orbitmq.store.queues.consume_queue import ConsumeQueue
from orbitmq.store.write.dispatch import Dispatcher

__all__ = ["Integrity"]

logger = logging.getLogger(__name__)

SEARCH_BYTES: Final = 32 << 20
"""Maximum log bytes searched for the records of damaged units in one read: some 20 ms."""
NEIGHBOURS: Final = 256
"""Units checked on each side of a damaged one to find the nearest correct one."""
KNOWN_MAX: Final = 10_000
"""Damaged messages remembered. Beyond that the oldest are evicted, and reported again at their next read."""
ATTEMPTS: Final = 3
"""Repair attempts per unit, so that a file that does not retain writes cannot make a reader retry forever."""
_PIECE_BYTES: Final = 1 << 20
_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


class Integrity:
    """The known damaged messages of one store."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, *, checks_property_crc: bool = False) -> None:
        self._checks_property_crc = checks_property_crc
        self._log = log
        self._dispatcher = dispatcher
        self._attempts_left: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self.damaged_count = 0
        """Damaged messages found since the start."""
        self.repaired_count = 0
        """Queue units repaired since the start."""
        self._fetch: Callable[[int, str, int], bool] | None = None
        self._fetching: set[int] = set()
        self.refused_count = 0
        """Number of times bytes from a master were refused because they contained a damaged record."""

    def fetch_with(self, fetch: Callable[[int, str, int], bool] | None) -> None:
        """Repair records with ``fetch`` from now on. ``fetch`` is called with the record's log offset, and with the
        topic and queue id whose readers need it (empty and 0 if no reader does). It starts a repair from another
        broker and returns whether one is in progress. When that has ended, ``fetch_ended`` must be called."""
        self._fetch = fetch

    def refused(self) -> None:
        """Count a refusal of damaged bytes from a master."""
        self.refused_count += 1

    def is_damage(self, log_offset: int, size: int) -> bool:
        """Whether a unit whose record is not in the log is damaged. The unit of a message known to be lost is not."""
        return size != BLANK_UNIT_SIZE and not self._log.in_damage(log_offset)

    def examine(self, queue: ConsumeQueue, numbers: Sequence[int]) -> bool:
        """Repair or report the messages at these queue offsets (ascending), each once. Returns True if a unit was
        repaired, so that the read should be repeated."""
        keys = {number: (queue.topic, queue.queue_id, number) for number in numbers}
        left = {number: self._attempts_left.get(key, ATTEMPTS) for number, key in keys.items()}
        wanted = [
            number
            for number in numbers
            if not self._is_fetched(queue, number) and (left[number] or not self._starts_fetch(queue, number))
        ]
        wanted = [number for number in wanted if left[number]]
        if not wanted:
            return False
        found = self._search(queue, wanted)
        is_repaired = False
        for number in wanted:
            record = found.get(number)
            if record is None and self._starts_fetch(queue, number):
                continue
            reason = self._fault(queue, number) if record is None else self._repair(queue, record)
            is_repaired = is_repaired or not reason
            self._remember(keys[number], 0 if reason else left[number] - 1)
            if reason:
                self.damaged_count += 1
                logger.error(
                    "damaged message skipped topic=%s queue_id=%d queue_offset=%d reason=%s",
                    *keys[number],
                    reason,
                )
        return is_repaired

    # Records being fetched from another broker.
    def first_fetched(self, queue: ConsumeQueue, numbers: Sequence[int]) -> int | None:
        """Returns the first of these queue offsets whose record is being fetched; None if there is none."""
        return next((number for number in numbers if self._is_fetched(queue, number)), None)

    def _is_fetched(self, queue: ConsumeQueue, number: int) -> bool:
        if not self._fetching:
            return False
        unit = queue.unit(number)
        return unit is not None and unit[0] in self._fetching

    def _starts_fetch(self, queue: ConsumeQueue, number: int) -> bool:
        unit = queue.unit(number)
        if self._fetch is None or unit is None or not self._log.start <= unit[0] < self._log.end:
            return False
        if not self._fetch(unit[0], queue.topic, queue.queue_id):
            return False
        self._fetching.add(unit[0])
        return True

    def fetch_ended(self, log_offset: int) -> None:
        """Record that the repair of a record has ended, whether or not it succeeded."""
        self._fetching.discard(log_offset)

    def whole_at(self, log_offset: int) -> bytes | None:
        """Returns the record at a log offset if its body matches its checksum, otherwise None. Reports nothing."""
        found = self._log.record(log_offset)
        if found is None:
            return None
        record = bytes(found)
        if not walk_records(record, 0, len(record), True, log_offset)[0]:
            return None
        return record if self.matches_property_crc(record) else None

    def matches_property_crc(self, record: bytes | memoryview) -> bool:
        """Whether a record matches the checksum in its properties; True if such checksums are not verified."""
        return not self._checks_property_crc or is_right(record)

    def after_marker(self, log_offset: int) -> int:
        """Returns the start of the next segment if an end-of-segment marker is at the offset, otherwise the
        offset."""
        room = self._log.segment_bytes - log_offset % self._log.segment_bytes
        head = self._log.slice(log_offset, BLANK_BYTES)
        return (
            log_offset + room
            if head is not None and BLANK.unpack(head) == (room, MAGIC_BLANK)
            else log_offset
        )

    def overwrite(self, log_offset: int, data: bytes) -> bytes:
        """Durably replace bytes of the log and return the previous ones. Raises ``OSError``."""
        before = self._log.slice(log_offset, len(data))
        assert before is not None, (log_offset, len(data))
        kept = bytes(before)
        self._log.overwrite(log_offset, data)
        return kept

    def found(self, log_offset: int, reason: str) -> None:
        """Handle a damaged record that no reader has met. It is repaired from another broker, or reported once."""
        if self._fetch is not None and self._fetch(log_offset, "", 0):
            return
        key = ("", 0, log_offset)
        if key not in self._attempts_left:
            self.damaged_count += 1
            logger.error("damaged record found log_offset=%d reason=%s", log_offset, reason)
        self._remember(key, 0)

    def next_record(self, log_offset: int) -> int:
        """Returns the log offset where the log continues after a damaged record: the next record of its segment, or
        the next segment."""
        start = log_offset - log_offset % self._log.segment_bytes
        end = min(self._log.end - start, self._log.segment_bytes)
        view = self._log.segments.view(start)
        following = end if view is None else self._next_head(view, log_offset - start + 1, end, start)
        return start + (following if following < end else self._log.segment_bytes)

    def is_whole(self, record: memoryview, log_offset: int) -> bool:
        """Whether the bytes are one record with an intact body. A damaged record is reported once."""
        walked, _ = walk_records(bytes(record), 0, len(record), True, log_offset)
        if walked and self.matches_property_crc(record):
            return True
        key = ("", 0, log_offset)
        if self._fetch is not None:
            self._fetch(log_offset, "", 0)
        if key not in self._attempts_left:
            self.damaged_count += 1
            scanned = scan(record, 0, len(record), log_base=log_offset)
            reason = "" if any(scanned) or scanned.end is None else scanned.end.reason
            logger.error("damaged message skipped log_offset=%d reason=%s", log_offset, reason)
        self._remember(key, 0)
        return False

    def _remember(self, key: tuple[str, int, int], attempts_left: int) -> None:
        known = self._attempts_left
        known[key] = attempts_left
        known.move_to_end(key)
        if len(known) > KNOWN_MAX:
            known.popitem(last=False)

    def _repair(self, queue: ConsumeQueue, record: ScannedRecord) -> str:
        """Overwrite a message's unit with the values of its record. Returns why that failed; empty if it
        succeeded."""
        number = record.queue_offset
        before = queue.unit(number)
        if before is not None and before[:2] == (record.log_offset, record.size):
            return ""  # it is correct now, so an earlier read was wrong
        code = self._dispatcher.code(queue, record.properties, record.store_timestamp_ms)
        try:
            queue.replace(number, record.log_offset, record.size, code)
        except OSError as error:
            return f"the queue unit is damaged and cannot be written: {error}"
        self.repaired_count += 1
        logger.warning(
            "queue unit repaired topic=%s queue_id=%d queue_offset=%d log_offset=%d size=%d damaged=%s",
            *(queue.topic, queue.queue_id, number, record.log_offset, record.size, before),
        )
        return ""

    def _fault(self, queue: ConsumeQueue, number: int) -> str:
        """Returns a description of what is wrong with a message whose whole record is not in the log."""
        unit = queue.unit(number)
        if unit is None:
            return "the queue unit cannot be read"
        log_offset, size, _ = unit
        where = f"log offset {log_offset}"
        data = self._log.slice(log_offset, size) if size > 0 else None
        if data is None:
            return f"the queue unit names {size} bytes at {where}, which the log does not have"
        scanned = scan(data, 0, size, log_base=log_offset)
        record = next(iter(scanned), None)
        if record is None:
            reason = "" if scanned.end is None else scanned.end.reason
            return f"no whole record at {where}: {reason or 'zeros'}"
        if not self.matches_property_crc(data[: record.size]):
            return f"the record at {where} does not match its property __CRC32#"
        if record.size != size:
            return f"the record at {where} has {record.size} bytes, the queue unit says {size}"
        topic = record.topic.decode("utf-8", "replace")
        return f"the record at {where} is number {record.queue_offset} of {topic}/{record.queue_id}"

    # Search.
    def _search(self, queue: ConsumeQueue, numbers: Sequence[int]) -> dict[int, ScannedRecord]:
        """Returns the whole records of these messages that are in the log, by queue offset. Searches between the
        records of the neighbouring units."""
        low = self._end_before(queue, numbers[0])
        high = min(self._start_after(queue, numbers[-1]), low + SEARCH_BYTES)
        wanted, found = frozenset(numbers), dict[int, ScannedRecord]()
        for log_offset, view in self._heads(low, high):
            (number,) = QUEUE_OFFSET.unpack_from(view)
            if number not in wanted or number in found:
                continue
            record = next(iter(scan(view, 0, len(view), log_base=log_offset)), None)
            if (
                record is not None
                and (record.topic, record.queue_id) == (queue.topic_bytes, queue.queue_id)
                and not self._log.in_damage(log_offset)
                and self.matches_property_crc(view[: record.size])
            ):
                found[number] = record._replace(position=log_offset)
                if len(found) == len(wanted):
                    break
        return found

    def _end_before(self, queue: ConsumeQueue, number: int) -> int:
        """Returns the end of the nearest earlier record with a correct unit, or the start of the log if there is none
        nearby."""
        for earlier in range(number - 1, max(queue.min_offset, number - NEIGHBOURS) - 1, -1):
            unit = queue.unit(earlier)
            if unit is not None and self._is_at(earlier, unit):
                return unit[0] + unit[1]
        return self._log.start

    def _start_after(self, queue: ConsumeQueue, number: int) -> int:
        """Returns the start of the nearest later record with a correct unit, or the end of the log if there is none
        nearby."""
        for later in range(number + 1, min(queue.max_offset, number + NEIGHBOURS)):
            unit = queue.unit(later)
            if unit is not None and self._is_at(later, unit):
                return unit[0]
        return self._log.whole_end(self._log.end)

    def _is_at(self, number: int, unit: tuple[int, int, int]) -> bool:
        record = self._log.record(unit[0], unit[1])
        return record is not None and QUEUE_OFFSET.unpack_from(record)[0] == number

    def _heads(self, low: int, high: int) -> Iterator[tuple[int, memoryview]]:
        """Yields the log offset and bytes of everything between two record boundaries that may be a record."""
        log = self._log
        while low < high:
            start = low - low % log.segment_bytes
            view = log.segments.view(start)
            if view is None:
                low = start + log.segment_bytes
                continue
            position, end = low - start, min(high - start, log.segment_bytes)
            while position < end:
                packed, following = record_starts(view, position, min(position + _PIECE_BYTES, end))
                starts = array("q", packed)
                for begin, stop in pairwise((*starts, following)):
                    yield start + begin, view[begin:stop]
                position = (
                    self._next_head(view, following, end, start) if following == position else following
                )
            low = start + log.segment_bytes

    @staticmethod
    def _next_head(view: memoryview, position: int, end: int, base: int) -> int:
        """Returns the position of the next record, at or after ``position``, that contains its own offset; ``end`` if
        there is none."""
        if position + BLANK_BYTES <= end and BLANK.unpack_from(view, position)[1] == MAGIC_BLANK:
            return end
        while position + RECORD_BYTES_MIN <= end:
            content = bytes(view[position : position + _PIECE_BYTES])
            at = 4
            while found := [place for magic in _MAGICS if (place := content.find(magic, at)) >= 0]:
                candidate = position + min(found) - 4
                if candidate + RECORD_BYTES_MIN <= end:
                    size, _, log_offset = IDENTITY.unpack_from(view, candidate)
                    if log_offset == base + candidate and RECORD_BYTES_MIN <= size <= end - candidate:
                        return candidate
                at = min(found) + 1
            position += max(1, len(content) - 7)
        return end
