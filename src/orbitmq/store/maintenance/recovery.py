"""Opens a store after any kind of stop (Apache: ``CommitLog.recoverNormally`` and ``recoverAbnormally``).

Theory of operation
1. Choose a segment before which log, queues and index are known to agree. After a clean stop it is the newest one
   that the queues reach, after a crash the newest one that the checkpoint covers.
2. Rewind the queues to that segment (in memory), scan the log record by record from there, and dispatch every record
   whose unit is missing.
3. The scan stops at the first position without a whole record. Segments are preallocated, so the bytes there cannot
   tell a torn write from corruption, but the checkpoint can. Everything it records as flushed was once completely on
   disk: a hole before that point is a ``CorruptionError`` that names the offset, and only an explicit option makes
   recovery continue after the damage. So is a hole after that point if the machine has not restarted since and the
   bytes show that the hole was not left by an incomplete write (``store/log/torn_end.py``). Any other hole is the
   torn tail of a crash and is cut off.
4. The checkpoint advances during the scan (``RecoveryProgress``). After a crash the scan resumes after everything an
   earlier recovery has read and made durable, which may be in the middle of a segment.
5. Everything after the end is zeroed: log, queue files, index. A later crash must not find stale data there.

The offsets in a queue have no gaps, and this store's writer records every deleted topic. So a jump in the offsets is
damage too: it shows that bytes of a record's header are wrong, which no checksum of the format covers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from orbitmq.errors import CorruptionError
from orbitmq.kernel import NO_KEYS, dispatch_records
from orbitmq.kernel.layout import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from orbitmq.record.property_crc import first_wrong
from orbitmq.record.scan import EndKind, Scan, ScanEnd, ScannedRecord, scan
from orbitmq.store.components import StoreParts
from orbitmq.store.errors import StoreError
from orbitmq.store.index.index_keys import index_keys
from orbitmq.store.layout import RECORD_EXTRA_BYTES, UNIT
from orbitmq.store.log.torn_end import complete_size, written_end
from orbitmq.store.maintenance.progress import RecoveryProgress
from orbitmq.store.queues.consume_queue import TAIL_BYTES_MAX, ConsumeQueue

__all__ = ["Recovery", "RecoveryReport"]

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 8 << 20
"""The log is read in chunks of this size. That is fast, and an unreadable sector is an ``OSError``, not a signal."""
SAMPLE_BYTES: Final = 64 << 10
TAILS_BYTES_MAX: Final = 64 << 20
"""Limit on queue units kept in memory when the disk is full; beyond it the store does not open."""
EVERYTHING: Final = 1 << 62
_LOST: Final = -1
"""Cursor of a queue that will be rebuilt: it matches no queue offset."""
BULK_RECORDS: Final = 4096
"""Records dispatched together. If the kernel cannot handle one of them, this many are dispatched one by one."""
_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))


@dataclass(slots=True)
class RecoveryReport:
    """The result of opening a store."""

    clean: bool
    start: int = 0
    """Log offset where the scan began."""
    end: int = 0
    record_count: int = 0
    dispatched_count: int = 0
    cut_reason: str = ""
    """Why the log was cut at ``end``; empty when only zeros follow."""
    damaged: list[tuple[int, int]] = field(default_factory=list)
    rebuilt_queues: list[tuple[str, int]] = field(default_factory=list)
    queue_fault: str = ""
    """Why queue units could not be written; they are kept in memory."""
    queue_sync_failed: bool = False
    """Whether some written queue units may be missing on disk, which no later sync can reveal."""


class Recovery:
    """One recovery of one store. It either makes log, queues and index agree, or raises an error and cuts nothing."""

    def __init__(self, parts: StoreParts, *, clean: bool, cache_survived: bool = False) -> None:
        """``cache_survived`` means that the page cache has everything that was written before the unclean stop."""
        self._parts = parts
        self._cache_survived = cache_survived
        self._log = parts.log
        self._segments = parts.log.segments
        self._config = parts.config
        self._clean = clean
        self._report = RecoveryReport(clean)
        self._known: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._broken: set[ConsumeQueue] = set()
        """Queues that lost units before the scan's start; rebuilt from the whole log afterwards."""
        self._claimed_end = 0
        """Every record before this offset was once completely on disk."""
        self._by_time = False
        """Whether store times are compared instead, because the checkpoint is Apache's and has no such
        offset."""
        self._strict = False
        self._damage_aware = False
        self._walk_start = 0
        self._progress = RecoveryProgress(parts, 0)
        self._only: set[ConsumeQueue] | None = None
        """During a rebuild, the only queues to dispatch to."""
        self._refused = ""
        """Why the current record is invalid."""
        self._deleted_ends: dict[bytes, int] = {}
        self._last_store_ms = 0
        self._chunk_bytes = max(CHUNK_BYTES, parts.config.message_bytes_max + RECORD_EXTRA_BYTES)

    def run(self) -> RecoveryReport:
        """Recover the store. Raises ``CorruptionError`` or ``OSError``."""
        parts, report, checkpoint = self._parts, self._report, self._parts.checkpoint
        cleared = parts.queues.load()
        cleared += self._clear_beheaded()
        for queue in parts.queues:
            queue.rewind(EVERYTHING)
        self._claimed_end = checkpoint.confirm_offset
        self._by_time = checkpoint.confirm_offset == 0 and not self._clean
        if self._clean and not self._claimed_end:
            # Apache's checkpoint has no offset, so use the end of its queues, limited to the existing segments.
            self._claimed_end = min(parts.queues.log_end(), self._segments.end)
        # Queue offsets are certain to be dense only if nothing was lost and every deletion was recorded.
        self._damage_aware = self._config.recover_past_corruption or bool(parts.damage.ranges)
        self._strict = checkpoint.confirm_offset > 0 and not self._damage_aware
        if parts.index is not None:
            parts.index.load(clean=self._clean, trusted_ms=checkpoint.index_ms)
            parts.index.drop_behind_gap(self._log.start, self._next_keyed)
        dropped = self._drop_deleted_topics()

        missing_count = checkpoint.verified_queues - parts.queues.filled_count - len({*cleared, *dropped})
        report.start = self._walk_start = self._resume_at(self._choose_start(missing_count))
        self._progress = RecoveryProgress(parts, report.start)
        if missing_count > 0:
            self._progress.withdraw(report.start)
        if report.start > self._log.start:
            self._broken.update(cleared, dropped)
        self._place_queues()
        self._catch_up_index(report.start)
        report.end = self._walk(report.start, EVERYTHING)
        self._rebuild_broken()
        self._finish()
        return report

    def _clear_beheaded(self) -> list[ConsumeQueue]:
        """Clear the queues whose first file is missing although no part of the log has expired. Returns these
        queues."""
        if self._segments.starts[:1] != [0]:
            return []
        beheaded = [queue for queue in self._parts.queues if queue.first_file > 0]
        for queue in beheaded:
            logger.warning(
                "consume queue incomplete, rebuilt topic=%s queue_id=%d", queue.topic, queue.queue_id
            )
            queue.clear()
        return beheaded

    def _next_keyed(self, log_offset: int, inclusive: bool) -> int | None:
        """Returns the log offset of the first record with keys at (``inclusive``) or after ``log_offset``; None if
        the next few records do not show one."""
        scanned = self._scan(log_offset, SAMPLE_BYTES)
        for record in scanned:
            if (inclusive or record.log_offset > log_offset) and index_keys(
                "", record.properties, record.sys_flag
            ):
                return record.log_offset
        following = log_offset - log_offset % self._log.segment_bytes + self._log.segment_bytes
        if scanned.end is not None and scanned.end.kind is EndKind.BLANK and following in self._segments:
            return self._next_keyed(following, True)
        return None

    # Starting point.
    def _choose_start(self, missing_count: int) -> int:
        """Returns the newest segment before which nothing needs to be scanned."""
        starts = self._segments.starts
        checkpoint = self._parts.checkpoint
        if missing_count > 0:
            # Only a scan of the whole log finds a queue that has no records in its newest segments.
            found = self._parts.queues.filled_count
            logger.warning("consume queues missing or half rebuilt, the whole log is scanned found=%d", found)
            return starts[0] if starts else 0
        by_offset = self._clean or checkpoint.queues_log_offset > 0
        reached = self._parts.queues.log_end() if self._clean else checkpoint.queues_log_offset
        safe_ms = checkpoint.index_safe_ms if self._config.index_safe else checkpoint.safe_ms
        for start in reversed(starts):
            first = self._record_at(start)
            if first is None:
                continue
            if start <= reached if by_offset else 0 < first.store_timestamp_ms <= safe_ms:
                return start
        return starts[0] if starts else 0

    def _resume_at(self, segment: int) -> int:
        """Returns the start offset in the chosen segment. If an earlier recovery has read the segment in part, and
        that part is intact, the offset is after that part."""
        checkpoint, queues = self._parts.checkpoint, self._parts.queues
        offset = min(checkpoint.verified_offset, checkpoint.queues_log_offset)
        if self._clean or not self._strict or not segment < offset <= segment + self._log.segment_bytes:
            return segment
        if offset > checkpoint.confirm_offset or queues.filled_count < checkpoint.verified_queues:
            return segment
        if not self._is_start(offset) and queues.log_end() != offset:
            return segment
        # Correct if no record follows: then the checkpoint claims nothing after the offset either.
        self._last_store_ms = checkpoint.log_ms
        return offset

    def _place_queues(self) -> None:
        """Drop units that cannot be trusted, and set every queue's cursor for the start of the scan."""
        start, checkpoint = self._walk_start, self._parts.checkpoint
        trusted = EVERYTHING
        if not self._clean:
            # Our own checkpoints are exact; from another writer's only the segment is used.
            trusted = max(start, checkpoint.queues_log_offset) if checkpoint.confirm_offset else start
        for queue in self._parts.queues:
            queue.rewind(trusted)
            queue.cursor = _LOST if queue in self._broken else queue.count_below(start)

    def _drop_deleted_topics(self) -> list[ConsumeQueue]:
        """Finish deletions that were interrupted by a crash or undone by a power cut: they are recorded, but the
        files still exist.

        Returns the queues that were cleared. Records that their topics received after the deletion are dispatched
        again.
        """
        queues, dropped = self._parts.queues, []
        for topic, log_end in self._parts.deleted.log_ends.items():
            self._deleted_ends[topic.encode()] = log_end
            found = [queues.create(topic, queue_id) for queue_id in queues.ids(topic)]
            # A recreated topic starts at 0, and its files cannot have expired before the deletion's record has.
            stale = [queue for queue in found if queue.first_file or 0 <= queue.first_log_offset < log_end]
            if found and len(stale) == len(found):
                queues.delete_topic(topic)
            else:
                for queue in stale:
                    queue.clear()
                dropped += stale
        return dropped

    def _catch_up_index(self, until: int) -> None:
        """Index the records between the index's end and the start of the scan, because the index needs records in log
        order."""
        index, log = self._parts.index, self._log
        if index is None or index.rebuild_from >= until:
            return
        offset = max(index.rebuild_from, log.start)
        if self._record_at(offset) is None:
            offset -= offset % log.segment_bytes
        while offset < until:
            stop = min(until, offset - offset % log.segment_bytes + log.segment_bytes)
            if self._has_keys(offset):
                self._feed_index(offset, stop)
            offset = stop
        index.build()

    def _has_keys(self, log_offset: int) -> bool:
        """Whether any of the next few records would be indexed. A store without an index usually never had one."""
        return any(
            b"UNIQ_KEY\x01" in record.properties or b"KEYS\x01" in record.properties
            for record in self._scan(log_offset, SAMPLE_BYTES)
        )

    def _feed_index(self, offset: int, stop: int) -> None:
        """Index the whole records of one segment."""
        while offset < stop:
            scanned = self._scan(offset, min(self._chunk_bytes, stop - offset))
            for record in scanned:
                self._parts.dispatcher.feed_index(record.topic.decode("utf-8", "replace"), record)
            assert scanned.end is not None
            offset += scanned.end.position
            if scanned.end.position == 0 or scanned.end.kind is EndKind.BLANK:
                return

    # Scan.
    def _walk(self, offset: int, until: int, only: set[ConsumeQueue] | None = None) -> int:
        """Dispatch every record from ``offset`` on; with ``only``, to these queues alone. Returns the end of the
        log."""
        segment_bytes = self._log.segment_bytes
        self._only = only
        while offset < until:
            if only is None and self._progress.is_due(offset) and self._may_claim:
                self._progress.save(offset, self._last_store_ms)
            segment_end = offset - offset % segment_bytes + segment_bytes
            if segment_end - segment_bytes not in self._segments:
                reason, is_empty = "the log has no segment here", True
            else:
                data = self._read(offset, self._chunk_bytes)
                end = self._take(data, offset)
                chunk_end = offset + len(data)
                offset += end.position
                if end.kind is EndKind.BLANK:
                    offset = segment_end
                    continue
                if offset == segment_end or (end.position and chunk_end < segment_end and not self._refused):
                    continue  # the chunk ended inside a record: read on from its start
                reason, is_empty = end.reason, end.kind is EndKind.ZEROES
            following = self._judge(offset, reason, is_empty=is_empty)
            if following is None:
                return offset
            offset = following
        return until

    @property
    def _may_claim(self) -> bool:
        """Whether a later recovery could resume at the current position without missing anything."""
        return self._strict and not self._clean and not self._broken and not self._report.queue_fault

    def _take(self, data: bytes, base: int) -> ScanEnd:
        """Dispatch the records of a chunk that starts at log offset ``base``. Returns where and why the records
        end."""
        wrong = first_wrong(data, 0, len(data)) if self._config.property_crc_enabled else -1
        if wrong < 0:
            return self._take_records(data, base)
        end = self._take_records(data[:wrong], base)
        if end.position < wrong:
            return end
        self._refused = "the record does not match its property __CRC32#"
        return ScanEnd(EndKind.BAD, wrong, self._refused)

    def _take_records(self, data: bytes, base: int) -> ScanEnd:
        self._refused = ""
        position = 0
        while True:
            following = self._take_bulk(data, position, base)
            if following > position:
                position = following
                continue
            # A special case, or the end of the records: dispatch one bulk's worth record by record.
            scanned = scan(
                data, position, len(data), check_crc=self._config.check_crc_on_recover, log_base=base
            )
            for number, record in enumerate(scanned, 1):
                self._report.record_count += self._only is None
                self._last_store_ms = record.store_timestamp_ms
                self._refused = self._place(record)
                if self._refused:
                    return ScanEnd(EndKind.BAD, record.position, self._refused)
                position = record.position + record.size
                if number == BULK_RECORDS:
                    break
            else:
                assert scanned.end is not None
                return scanned.end

    def _take_bulk(self, data: bytes, position: int, base: int) -> int:
        """Dispatch the next records together. Returns the position after them.

        Dispatches none of them if one needs more than the units that the kernel builds: its offset is not the one its
        queue expects, its unit contains something other than a tag code, or its topic was deleted or is invalid.
        """
        index = self._parts.index if self._only is None else None
        with_keys = NO_KEYS if index is None else index.with_keys
        check_crc = self._config.check_crc_on_recover
        found = dispatch_records(data, position, len(data), check_crc, base, with_keys, BULK_RECORDS)
        if found is None or not found[1]:
            return position
        groups, count, newest_ms, end, keys = found
        simple: list[tuple[ConsumeQueue, int, bytes]] = []
        for topic, queue_id, first, units in groups:
            if UNIT.unpack_from(units)[0] < self._deleted_ends.get(topic, 0):
                return position
            queue = self._known.get((topic, queue_id)) or self._learn(topic, queue_id)
            if queue is None:
                return position
            if queue in self._broken or (self._only is not None and queue not in self._only):
                continue
            if queue.has_own_codes or not queue.cursor == first <= queue.max_offset:
                return position
            simple.append((queue, first, units))
        for queue, first, units in simple:
            queue.cursor = first + len(units) // UNIT.size
            missing = units[(queue.max_offset - first) * UNIT.size :]
            queue.extend(missing)
            self._report.dispatched_count += len(missing) // UNIT.size
            if len(queue.tail) >= TAIL_BYTES_MAX:
                self._write_tail(queue)
        if index is not None:
            index.put_keys(keys)
            index.build()
        self._last_store_ms = newest_ms
        self._report.record_count += count if self._only is None else 0
        return end

    def _place(self, record: ScannedRecord) -> str:
        """Dispatch a single record. Returns why it is invalid; empty if it is valid."""
        queue = self._known.get((record.topic, record.queue_id))
        only, index = self._only, self._parts.index
        if only is None and index is not None and record.log_offset >= index.rebuild_from:
            self._parts.dispatcher.feed_index(record.topic.decode("utf-8", "replace"), record)
        if record.log_offset < self._deleted_ends.get(record.topic, 0):
            return ""
        if queue is None:
            queue = self._learn(record.topic, record.queue_id)
            if queue is None:
                return f"topic {record.topic!r} or queue id {record.queue_id} is impossible"
        if record.sys_flag & 4 or (only is not None and queue not in only):
            return ""
        if record.queue_offset != queue.cursor:
            reason = self._settle(queue, record.queue_offset, record.log_offset)
            if reason or record.queue_offset != queue.cursor:
                return reason
        queue.cursor += 1
        if record.queue_offset == queue.max_offset:
            code = self._parts.dispatcher.code(queue, record.properties, record.store_timestamp_ms)
            queue.append(record.log_offset, record.size, code)
            self._report.dispatched_count += 1
            if len(queue.tail) >= TAIL_BYTES_MAX:
                self._write_tail(queue)
        return ""

    def _write_tail(self, queue: ConsumeQueue) -> None:
        """Write a queue's tail. If that fails, for example on a full disk, the units stay in memory, so that the
        store opens and can be cleaned up."""
        try:
            queue.write_tail()
        except OSError as error:
            self._report.queue_fault = str(error)
            if sum(len(each.tail) for each in self._parts.queues) > TAILS_BYTES_MAX:
                raise

    def _learn(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue of a record whose queue was not seen before; None if its name is invalid."""
        try:
            queue = self._parts.queues.create(topic.decode(), queue_id)
        except (UnicodeDecodeError, StoreError):
            return None
        self._known[topic, queue_id] = queue
        return queue

    def _settle(self, queue: ConsumeQueue, queue_offset: int, log_offset: int) -> str:
        """Handle a queue offset that differs from the one its queue expects. Returns the reason to stop; empty if the
        difference can be explained.

        If the expected offset matches afterwards, the record belongs in the queue; otherwise it is skipped.
        """
        if queue in self._broken:
            return ""
        if queue_offset < queue.max_offset:
            unit = queue.unit(queue_offset)
            if unit is not None and unit[0] == log_offset:
                queue.cursor = queue_offset  # the offsets before it were lost to damage
                return ""
        if not self._strict and log_offset < queue.log_end:
            return ""  # its unit has another offset, or its topic was deleted and recreated
        met_before = queue.log_end > self._walk_start
        if self._walk_start > self._log.start and not met_before and queue_offset > queue.cursor:
            # Units before the scan's start are missing, so rebuild the queue from the whole log.
            self._broken.add(queue)
            queue.cursor = _LOST
            return ""
        if self._strict and (queue.max_offset or self._walk_start == 0):
            return f"queue offset {queue_offset} where {queue.cursor} was expected"
        if self._damage_aware and queue_offset - queue.max_offset > self._lost_records_max(queue.log_end):
            return f"queue offset {queue_offset} where {queue.cursor} was expected"
        reason = self._parts.dispatcher.settle(queue, queue_offset, log_offset, strict=self._strict)
        queue.cursor = queue.max_offset
        return reason

    def _lost_records_max(self, log_offset: int) -> int:
        """Returns the maximum number of records that the damage after a log offset can have contained."""
        damaged = {*self._report.damaged, *self._parts.damage.ranges}
        lost_bytes = sum(stop - max(start, log_offset) for start, stop in damaged if stop > log_offset)
        return lost_bytes // RECORD_BYTES_MIN

    def _rebuild_broken(self) -> None:
        broken, self._broken = self._broken, set()
        if not broken:
            return
        self._progress.withdraw(self._report.start)
        for queue in broken:
            logger.warning("rebuilding consume queue topic=%s queue_id=%d", queue.topic, queue.queue_id)
            queue.clear()
            self._report.rebuilt_queues.append((queue.topic, queue.queue_id))
        last_store_ms = self._last_store_ms
        self._walk_start = self._log.start
        self._walk(self._log.start, self._report.end, only=broken)
        self._last_store_ms = last_store_ms

    # Damage.
    def _judge(self, offset: int, reason: str, *, is_empty: bool) -> int | None:
        """Decide how to continue at an ``offset`` where no record is. Returns None if the log ends here, or the
        offset after the damage.

        Raises ``CorruptionError`` if records had been flushed here and the configuration does not skip damage.
        """
        noted = self._parts.damage.stop_of(offset)
        if noted is not None and self._is_start(noted):
            return noted  # an operator has already chosen to continue without this part
        checkpoint, by_time = self._parts.checkpoint, self._by_time
        if offset < self._claimed_end:
            proof = f"it was flushed up to {self._claimed_end}"
        elif by_time and self._last_store_ms < checkpoint.log_ms:
            proof = f"it was flushed up to store time {checkpoint.log_ms}"
        elif self._cache_survived and self._was_written(offset):
            proof = "the machine has not restarted since the bytes there were written"
        else:
            if not is_empty:
                self._report.cut_reason = reason or "no whole record"
                logger.warning("torn end of the log truncated log_offset=%d reason=%s", offset, reason)
            return None
        reason = reason or "zeros"
        if not self._config.recover_past_corruption:
            raise CorruptionError(
                f"the log is damaged at offset {offset} ({reason}) although {proof}; "
                "fetch the bytes from another broker of the group (orbitmq store repair --from), restore a backup, "
                "or start with recoverPastCorruption=true to serve what can still be read"
            )
        following = self._find_record(offset)
        logger.error(
            "damaged log range skipped from=%d to=%s reason=%s",
            offset,
            following or "the end of the log",
            reason,
        )
        self._report.damaged.append((offset, following or self._segments.end))
        if following is None:
            self._report.cut_reason = reason
        return following

    def _was_written(self, offset: int) -> bool:
        """Whether a whole record was once written at an offset, or any record after that offset."""
        segment_bytes = self._log.segment_bytes
        position = offset % segment_bytes
        if offset - position in self._segments:
            handle = self._segments.handle(offset - position)
            end = written_end(self._parts.fs, handle, position)
            if complete_size(self._parts.fs.pread(handle, min(end - position, self._chunk_bytes), position)):
                return True
            if end == position and offset - position + segment_bytes not in self._segments:
                return False
        return self._find_record(offset) is not None

    def _find_record(self, offset: int) -> int | None:
        """Returns the next offset after ``offset`` with a whole record or an end-of-segment marker."""
        segment_bytes = self._log.segment_bytes
        segment_end = offset - offset % segment_bytes + segment_bytes
        candidate = offset + 1
        while candidate < segment_end and segment_end - segment_bytes in self._segments:
            position = candidate % segment_bytes
            count = min(CHUNK_BYTES, segment_bytes - position)
            data = self._parts.fs.pread(self._segments.handle(candidate - position), count, position)
            found = [at for magic in _MAGICS if (at := data.find(magic, 4)) >= 0]
            if not found:
                candidate += max(1, len(data) - 7)
                if candidate >= segment_end - 8:
                    break
                continue
            candidate += min(found) - 4
            if self._is_start(candidate):
                return candidate
            candidate += 1
        start = segment_end
        while start in self._segments:
            if self._record_at(start) is not None:
                return start
            start += segment_bytes
        return None

    def _is_start(self, offset: int) -> bool:
        """Whether a whole record, or an end-of-segment marker, starts at ``offset``."""
        position = offset % self._log.segment_bytes
        room = self._log.segment_bytes - position
        if offset - position not in self._segments or room < BLANK.size:
            return False
        head = self._parts.fs.pread(self._segments.handle(offset - position), BLANK.size, position)
        size, magic = BLANK.unpack(head)
        if magic == MAGIC_BLANK:
            return bool(size == room)
        return 0 < size <= room and self._record_at(offset, size) is not None

    def _record_at(self, log_offset: int, size: int = SAMPLE_BYTES) -> ScannedRecord | None:
        if log_offset - log_offset % self._log.segment_bytes not in self._segments:
            return None
        record = next(iter(self._scan(log_offset, size)), None)
        if record is None and size < self._chunk_bytes:
            record = next(iter(self._scan(log_offset, self._chunk_bytes)), None)
        return record

    def _read(self, log_offset: int, size: int) -> bytes:
        """Returns up to ``size`` bytes from an offset to the end of its segment."""
        position = log_offset % self._log.segment_bytes
        count = min(size, self._log.segment_bytes - position)
        return self._parts.fs.pread(self._segments.handle(log_offset - position), count, position)

    def _scan(self, log_offset: int, size: int) -> Scan:
        """Scan the records in ``size`` bytes from an offset on, within its segment."""
        data = self._read(log_offset, size)
        check = self._config.check_crc_on_recover
        return scan(data, 0, len(data), check_crc=check, log_base=log_offset)

    # End of recovery.
    def _finish(self) -> None:
        """Cut everything to the end of the log and make it durable enough for appends."""
        parts, report, log = self._parts, self._report, self._log
        end = report.end
        segments = self._segments
        while segments.starts and segments.starts[-1] > end:
            segments.remove(segments.starts[-1])
        if end - end % log.segment_bytes in segments and (report.cut_reason or not self._clean):
            segments.zero_from(end)
        found = {*parts.damage.ranges, *report.damaged}
        log.damaged = sorted(
            (start, min(stop, end)) for start, stop in found if log.start < stop and start < end
        )
        parts.damage.keep(log.damaged)
        log.last_store_ms = self._last_store_ms or parts.checkpoint.log_ms
        log.move_to(end)
        if not segments.starts:
            parts.queues.clear()
            if parts.index is not None:
                parts.index.destroy()
        if not self._clean:
            # A killed process leaves its log only in the page cache, but ``flushed`` promises it is on disk.
            log.sync(report.start, end)
        log.flushed = end
        self._finish_derived(end)
        checkpoint = parts.checkpoint
        checkpoint.confirm_offset = end
        # Zero (nothing scanned) only makes the next recovery slower; a time after the last record would be wrong.
        checkpoint.log_ms = self._last_store_ms
        checkpoint.queues_ms = min(checkpoint.queues_ms, checkpoint.log_ms)
        checkpoint.queues_log_offset = min(
            checkpoint.queues_log_offset, self._progress.claimed if not self._clean else end
        )
        whole = not (report.rebuilt_queues or log.damaged)
        checkpoint.verified_offset = end if whole else 0
        checkpoint.verified_queues = parts.queues.filled_count if whole else 0
        report.queue_sync_failed = self._progress.sync_failed

    def _finish_derived(self, end: int) -> None:
        parts = self._parts
        for queue in parts.queues:
            if queue.log_end > end:
                logger.warning(
                    "queue units beyond the end of the log dropped topic=%s queue_id=%d log_end=%d",
                    queue.topic,
                    queue.queue_id,
                    end,
                )
                parts.queues.truncate(queue, end)
        for queue in parts.queues:
            self._write_tail(queue)
            if not self._clean:
                queue.cut_files()
            queue.correct_min(self._log.start)
        if parts.index is not None:
            parts.index.build()
            if parts.index.rebuild_from >= end:
                parts.index.truncate(end)
        parts.deleted.expire(self._log.start)
        parts.deleted.cut(end)
