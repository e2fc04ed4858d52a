"""The broker's interface to the store (Apache: ``DefaultMessageStore``).

Synchronous and single-writer: every method is called from one thread, the broker's event loop. Only syncs, checkpoint
writes, and the creation and removal of files run on the store's own worker thread, which reports through ``post``.
See README.md in this folder for the order of writes and the ownership of objects.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from orbitmq.codes import Property
from orbitmq.errors import CorruptionError
from orbitmq.kernel import Sends
from orbitmq.record.scan import EndKind, scan
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.runtime.machine import physical_memory_bytes, process_id
from orbitmq.store.components import StoreParts
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import (
    BadAppend,
    StoreUnavailable,
)
from orbitmq.store.index.catch_up import IndexCatchUp
from orbitmq.store.layout import UNIT, UNIT_BYTES
from orbitmq.store.maintenance.flush import Flusher, Post
from orbitmq.store.maintenance.lock_files import AbortFile, StoreLock
from orbitmq.store.maintenance.recovery import Recovery, RecoveryReport
from orbitmq.store.maintenance.retention import Retention
from orbitmq.store.maintenance.scrub import Scrubber
from orbitmq.store.maintenance.write_fault import WriteFault
from orbitmq.store.queues.consume_queue import TAIL_BYTES_MAX, ConsumeQueue
from orbitmq.store.queues.extensions import Bitmap
from orbitmq.store.read.reader import QueueReader
from orbitmq.store.types import Appended, Arrival, FlushMode, IndexUpdate, NewMessage, PutSends
from orbitmq.store.write.appender import Appender
from orbitmq.store.write.replayer import Replayer

__all__ = ["MessageStore", "StoreOwner"]

logger = logging.getLogger(__name__)

_TAGS: Final = Property.TAGS.encode()
_NOT_OPEN: Final = "the store is not open"
FIRST_CLEAN_S: Final = 60.0
"""Delay of the first retention run after a start, as in Apache."""


@dataclass(frozen=True, slots=True)
class _PendingCut:
    """A cut of the log that was interrupted by a full disk."""

    log_offset: int
    queues: list[ConsumeQueue]


@dataclass(frozen=True, slots=True)
class StoreOwner:
    """The callbacks into the broker that owns the store."""

    arrived: Sequence[Arrival] = ()
    """Called once per queue that received messages, after an append or a replicated append."""
    filter_bitmap: Bitmap | None = None
    """Computes the bitmap of a message (topic, property text) that is stored with ``enableConsumeQueueExt``."""


_NO_OWNER: Final = StoreOwner()


class MessageStore:
    """One store directory, open for writing in this process only."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
        fs: FileSystem = LOCAL_FILE_SYSTEM,
        clock: Clock = SYSTEM_CLOCK,
        post: Post | None = None,
        memory_bytes: int | None = None,
        owner: StoreOwner = _NO_OWNER,
    ) -> None:
        """``store_host`` is the broker's own address (8 or 20 bytes), written into every record.

        ``post`` runs a function on the caller's thread (``loop.call_soon_threadsafe``). Without it there is no worker
        thread and the caller must call ``flush``, which suits tools and deterministic tests.
        """
        self.config = config
        self.host: Final = store_host
        self.recovery: RecoveryReport | None = None
        """The result of the last ``open``."""
        self._fs = fs
        self._clock = clock
        self._post = post
        self._parts = parts = StoreParts.build(fs, config, clock, owner.filter_bitmap)
        self._log = parts.log
        self._queues = parts.queues
        self._by_key = parts.queues.by_key
        self._index = parts.index
        self._index_feeder = IndexCatchUp(parts.log, parts.index) if parts.index is not None else None
        self._now_ms = clock.now_ms
        self._replayer = Replayer(parts)
        self._reader = QueueReader(parts, physical_memory_bytes() if memory_bytes is None else memory_bytes)
        self.integrity: Final = self._reader.integrity
        """Finds and repairs damaged messages, and counts them."""
        self.scrubber: Final = Scrubber(parts, self.integrity)
        """Verifies the log in the background; the broker drives it."""
        self._flusher = Flusher(parts, clock, post)
        self._retention = Retention(config)
        self._clean_at = 0.0
        self._lock = StoreLock(fs, config.path("lock"))
        self._abort = AbortFile(fs, config.path("abort"))
        self._is_open = False
        self._queue_fault = ""
        self._pending_cut: _PendingCut | None = None
        self._fault = WriteFault(clock.monotonic)
        self._appender = Appender(
            parts,
            clock,
            store_host,
            prepare_segment=self._prepare_segment,
            write_failed=self._write_failed,
            cut_back=self.truncate,
            arrived=owner.arrived,
        )
        self._appender.refuse(_NOT_OPEN)
        # Bound methods, because a wrapper method would cost 0.1 us per message.
        self.append: Callable[[NewMessage], Appended] = self._appender.append
        """Store one message, immediately visible to readers. If it raises ``StoreError``, nothing was stored."""
        self.append_batch: Callable[[Sequence[NewMessage]], list[Appended]] = self._appender.append_batch
        """Store all messages or none, in order, with one write. Raises like ``append``."""
        self.append_sends: Callable[[Sequence[Sends]], PutSends] = self._appender.append_sends
        """Store all sends or none, in order, with one write. Each value notes where its sends are.

        Raises like ``append``, and ``RecordError`` for a lone batch that is malformed.
        """
        self.read: Final = self._reader.read
        """Read a queue; see ``QueueReader.read``."""

    @property
    def reader(self) -> QueueReader:
        """Queues, limits and windows of the log, for callers that select records themselves."""
        return self._reader

    # Lifecycle.
    def open(self) -> RecoveryReport:
        """Lock the store, load it and recover. Raises ``StoreLocked``, ``CorruptionError`` or ``OSError`` with
        nothing left open."""
        assert not self._is_open, "the store is open already"
        parts = self._parts
        self._fs.make_directories(self.config.root)
        self._lock.acquire()
        try:
            clean = not self._abort.exists
            parts.log.segments.load()
            parts.checkpoint.load()
            parts.deleted.load()
            parts.damage.load()
            self.recovery = Recovery(parts, clean=clean, cache_survived=self._abort.cache_survived).run()
            parts.checkpoint.flush()
            self._abort.create(process_id())
        except BaseException:
            self._release()
            raise
        self._is_open = True
        self._reader.written_from(self._log.end)
        if self.recovery.queue_fault:
            self._queue_fault = f"queue units cannot be written: {self.recovery.queue_fault}"
        self._retention.guard.observe(*self._disks_used())  # reports a full disk immediately
        self._renew_refusal()
        if self.recovery.queue_sync_failed:
            self._flusher.freeze_queue_claims()
        self._flusher.start()
        self._clean_at = self._clock.monotonic() + FIRST_CLEAN_S
        logger.info(
            "store open root=%s clean=%s log_start=%d log_end=%d walked_from=%d records=%d dispatched=%d queues=%d",
            self.config.root,
            clean,
            self._log.start,
            self._log.end,
            self.recovery.start,
            self.recovery.record_count,
            self.recovery.dispatched_count,
            len(self._queues),
        )
        return self.recovery

    def close(self) -> None:
        """Flush everything, write the checkpoint, remove the abort file and unlock the store. Safe to call twice.

        If the disk refuses, raises ``OSError`` and keeps the abort file, so that the next start recovers thoroughly.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._renew_refusal()
        try:
            self._flusher.stop()
            if not (self._log.failed or self._flusher.failed):
                self._flusher.flush()
                self._abort.remove()
        finally:
            self._release()

    def _release(self) -> None:
        if self._index is not None:
            self._index.release()
        self._queues.close()
        self._log.segments.close()
        self._lock.release()

    def tick(self) -> None:
        """Run the periodic work that is due: flush, queue tails, checkpoint, retention. Call it about every 100
        ms."""
        if not self._is_open:
            return
        try:
            self._flusher.tick()
            if self._queue_fault:
                self._queues.write_tails()
                self._queue_fault = ""
        except OSError as error:
            self._write_failed(error)
        if self._pending_cut is not None:
            with suppress(StoreUnavailable):  # still full
                self.truncate(self._pending_cut.log_offset)
        self._fault.look(self._log.end, self._available_bytes)
        if self._index_feeder is not None and self._pending_cut is None:
            self._index_feeder.step()
        now = self._clock.monotonic()
        if now >= self._clean_at:
            self._clean_at = now + self.config.clean_interval_ms / 1000
            self._log.segments.release_maps()
            self.clean_expired()
        self._renew_refusal()

    def _renew_refusal(self) -> None:
        if not self._is_open:
            reason = _NOT_OPEN
        elif self._retention.guard.writes_forbidden:
            reason = "the disk usage is above the limit, so no writes are accepted"
        elif self._log.partial_start >= 0:
            reason = "the log ends inside a replicated record"
        else:
            reason = self._log.failed or self._flusher.failed or self._queue_fault
        self._appender.refuse(reason)

    def _write_failed(self, error: OSError | StoreUnavailable) -> None:
        """Handle a refused write. If it was to the log, nothing was stored. If it was to a queue, the units stay in
        memory, and further appends are refused until they can be written."""
        if isinstance(error, StoreUnavailable):
            self._fault.refused(error.remark, self._log.end)
        else:
            if not self._queue_fault:
                logger.error("queue units cannot be written error=%s", error)
            self._queue_fault = f"queue units cannot be written: {error}"
        self._renew_refusal()

    # Writes. `append`, `append_batch` and `append_sends` are set in __init__.
    def append_raw(self, log_offset: int, data: bytes | memoryview) -> None:
        """Append replicated bytes exactly at the end of the log, then dispatch the records that are now complete.

        Raises ``BadAppend`` if they do not continue the log. Raises ``CorruptionError`` if they contain a damaged
        record, which includes a wrong checksum. The log then keeps the bytes before that record. If a part of the
        damaged record had arrived earlier, the log must be cut to ``whole_log_offset``.
        """
        log = self._log
        if self._appender.refusal and log.partial_start < 0:
            raise StoreUnavailable(self._appender.refusal)
        if not log.segments.starts and log_offset % log.segment_bytes == 0:
            log.move_to(log_offset)
            log.flushed = log_offset
            self._flusher.restart_at(log_offset)
        if log_offset != log.end:
            raise BadAppend(
                f"bytes for log offset {log_offset} do not continue the log, which ends at {log.end}"
            )
        undispatched = log.end if log.partial_start < 0 else log.partial_start
        if undispatched < log_offset:
            begun = log.slice(undispatched, log_offset - undispatched)
            data = b"" if begun is None else b"".join((begun, data))
        replica = self._replayer.check(bytes(data), undispatched)
        self._write_raw(memoryview(data)[log_offset - undispatched : replica.size])
        arrived: dict[ConsumeQueue, None] = {}
        dispatched, long_queues = self._replayer.replay(replica, arrived)
        for queue in long_queues:
            self._appender.write_tail(queue)
        if dispatched < undispatched + replica.whole_size:
            dispatched = self._dispatch_from(dispatched, arrived)
        log.partial_start = dispatched if dispatched < log.end else -1
        self._appender.announce(arrived)
        if log.end > log.prepare_at:
            self._prepare_segment()
        self._renew_refusal()
        if replica.fault:
            self.integrity.refused()
            raise CorruptionError(
                f"replicated bytes at log offset {undispatched + replica.size}: {replica.fault}"
            )

    def _write_raw(self, data: memoryview) -> None:
        log, position = self._log, 0
        while position < len(data):
            if log.handle < 0:
                log.roll()
            count = min(len(data) - position, log.segment_start + log.segment_bytes - log.end)
            log.write(data[position : position + count])
            position += count
            if log.end == log.segment_start + log.segment_bytes:
                log.move_to(log.end)

    def _dispatch_from(self, log_offset: int, arrived: dict[ConsumeQueue, None]) -> int:
        """Dispatch replicated records of any kind. Returns the log offset where the first incomplete one starts."""
        log = self._log
        while log_offset < log.end:
            start = log_offset - log_offset % log.segment_bytes
            limit = min(log.end - start, log.segment_bytes)
            view = log.segments.view(start)
            assert view is not None, start
            scanned = scan(view, log_offset - start, limit, check_crc=False, log_base=start)
            for record in scanned:
                queue = self._parts.dispatcher.dispatch(record)
                log.last_store_ms = max(log.last_store_ms, record.store_timestamp_ms)
                if queue is not None:
                    arrived[queue] = None
                    if len(queue.tail) >= TAIL_BYTES_MAX:
                        self._appender.write_tail(queue)
            assert scanned.end is not None
            log_offset = start + scanned.end.position
            if scanned.end.kind is EndKind.BLANK and limit == log.segment_bytes:
                log_offset = start + log.segment_bytes
            elif scanned.end.kind is not EndKind.LIMIT:
                break
        return log_offset

    def end_replication(self) -> None:
        """Drop a partly received record, so that the log ends with a whole record."""
        if self._log.partial_start >= 0:
            self.truncate(self._log.partial_start)

    def truncate(self, log_offset: int) -> None:
        """Cut the log and all derived files back to a record boundary. Durable when this returns.

        If the disk refuses, raises ``StoreUnavailable``, and the store accepts no more writes. If the disk is too
        full for the cut, every ``tick`` retries it.
        """
        log, pending = self._log, self._pending_cut
        if pending is not None:
            log_offset = min(log_offset, pending.log_offset)
        elif log_offset >= log.end:
            return
        self._flusher.drain()
        log_offset = max(log_offset, log.start)
        queues = [
            queue
            for queue in self._queues
            if queue.log_end > log_offset or (pending is not None and queue in pending.queues)
        ]
        try:
            self._cut(log_offset, queues)
            if self._index is not None:
                self._index.truncate(log_offset)
            self._parts.deleted.cut(log_offset)
        except OSError as error:
            # Bytes of the removed part may still be on disk; nothing may be written across the cut.
            log.failed = f"the log could not be cut at {log_offset}: {error}"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._pending_cut = _PendingCut(log_offset, queues) if full else None
            raise StoreUnavailable(log.failed) from error
        else:
            if pending is not None:
                logger.warning(
                    "disk space available again, unwritten end of the log truncated log_end=%d", log_offset
                )
                self._pending_cut = None
                log.failed = ""
        finally:
            self._renew_refusal()

    def _cut(self, log_offset: int, queues: list[ConsumeQueue]) -> None:
        """Perform the cut. After an ``OSError`` every step may be repeated."""
        log = self._log
        # The checkpoint comes first: it must not claim what is about to be removed.
        checkpoint = self._parts.checkpoint
        checkpoint.confirm_offset = min(checkpoint.confirm_offset, log_offset)
        checkpoint.queues_log_offset = min(checkpoint.queues_log_offset, log_offset)
        checkpoint.verified_offset = min(checkpoint.verified_offset, log_offset)
        checkpoint.verified_queues = 0  # some may become empty
        checkpoint.log_ms = checkpoint.queues_ms = 0  # store times before the cut are unknown
        checkpoint.flush()
        # Then all state in memory, then the files.
        log.partial_start = -1
        log.move_to(log_offset)
        log.flushed = min(log.flushed, log_offset)
        self._flusher.cut(log_offset)
        for queue in queues:
            queue.rewind(log_offset)
        log.segments.drop_made_ahead()
        while log.segments.starts and log.segments.starts[-1] > log_offset:
            log.segments.remove(log.segments.starts[-1])
        log.segments.zero_from(log_offset)
        for queue in queues:
            self._queues.truncate(queue, log_offset)

    def reset(self, log_offset: int) -> None:
        """Discard everything and start an empty log at ``log_offset``, a segment boundary. Used for a replica that is
        too far behind."""
        if log_offset % self._log.segment_bytes:
            raise BadAppend(f"{log_offset} is not the start of a segment")
        log = self._log
        self._parts.checkpoint.verified_offset = 0
        self.truncate(log.start)
        for start in list(log.segments.starts):
            log.segments.remove(start)
        self._queues.clear()
        if self._index is not None:
            self._index.destroy()
        log.move_to(log_offset)
        log.flushed = log_offset
        self._flusher.restart_at(log_offset)

    def _prepare_segment(self) -> None:
        self._log.prepare_at = 1 << 62
        self._flusher.make_segment(self._log.segment_start + self._log.segment_bytes)

    # Reads. `read` is set in __init__.
    def record_at(self, log_offset: int, size: int | None = None) -> memoryview | None:
        """Returns the whole record that starts at ``log_offset``; None if there is none or its body does not match
        its checksum."""
        record = self._log.record(log_offset, size)
        if record is None or not self.integrity.is_whole(record, log_offset):
            return None
        return record

    def log_range(self, log_offset: int, max_bytes: int) -> memoryview:
        """Returns raw log bytes from an offset on, within one segment and without copying; empty at the end of the
        log."""
        log = self._log
        room = log.segment_bytes - log_offset % log.segment_bytes
        found = log.slice(log_offset, max(0, min(max_bytes, room, log.end - log_offset)))
        return memoryview(b"") if found is None else found

    def scan(self, start: int, end: int | None = None) -> Iterator[memoryview]:
        """Yields every message record from a record boundary on, in log order. Raises ``CorruptionError``."""
        log = self._log
        until = log.end if end is None else min(end, log.end)
        while start < until:
            segment_start = start - start % log.segment_bytes
            view = log.segments.view(segment_start)
            if view is None:
                raise CorruptionError(f"log offset {start} is not in the log")
            limit = min(log.end - segment_start, log.segment_bytes)
            scanned = scan(view, start - segment_start, limit, check_crc=False, log_base=segment_start)
            for record in scanned:
                if record.log_offset >= until:
                    return
                if log.damaged and log.in_damage(record.log_offset):
                    continue
                yield view[record.position : record.position + record.size]
            assert scanned.end is not None
            start = segment_start + scanned.end.position
            if scanned.end.kind is EndKind.BLANK:
                start = segment_start + log.segment_bytes
            elif scanned.end.kind is not EndKind.LIMIT:
                skipped = next((stop for begin, stop in log.damaged if begin <= start < stop), None)
                if skipped is None:
                    if start >= log.whole_end(log.end):
                        return
                    raise CorruptionError(f"log offset {start}: {scanned.end.reason or 'zeros'}")
                start = skipped

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> tuple[list[memoryview], IndexUpdate]:
        """Returns the newest records whose key hash matches, in log order, and the key index's last update."""
        if self._index is None:
            return [], IndexUpdate(0, 0)
        count = min(max_count, self.config.query_count_max)
        found = self._index.query(topic, key, begin_ms, end_ms, count)
        records = [record for log_offset in found if (record := self.record_at(log_offset)) is not None]
        return records, self._index.last_update

    # State.
    def min_offset(self, topic: str, queue_id: int) -> int:
        """Returns the first readable queue offset; -1 for an unknown queue."""
        queue = self._by_key.get((topic, queue_id))
        return -1 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Returns the next queue offset to be assigned; 0 for an unknown queue."""
        queue = self._by_key.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Returns the store time of the first readable message; -1 if there is none."""
        queue = self._by_key.get((topic, queue_id))
        return -1 if queue is None else self._reader.store_time(queue, queue.min_offset)

    def earliest_log_time(self) -> int:
        """Returns the store time of the log's first record; -1 if the log is empty."""
        return self._log.store_time(self._log.start)

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Returns the store time of a message; -1 if it does not exist."""
        queue = self._by_key.get((topic, queue_id))
        return -1 if queue is None else self._reader.store_time(queue, queue_offset)

    def log_offset_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Returns the log offset of a message; -1 if it does not exist."""
        queue = self._by_key.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        unit = queue.unit(queue_offset)
        return -1 if unit is None else unit[0]

    def units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[tuple[int, int, int]]:
        """Returns (log offset, record size, tag code) of up to ``count`` messages as stored in the queue. With
        ``enableConsumeQueueExt`` the last value may be an extension address; see ``units_with_codes``."""
        return list(UNIT.iter_unpack(self.unit_bytes(topic, queue_id, queue_offset, count)))

    def units_with_codes(
        self, topic: str, queue_id: int, queue_offset: int, count: int
    ) -> list[tuple[int, int, int]]:
        """Like ``units``, but extension addresses are replaced by the stored tag code or due time, if the extension
        still exists."""
        data = self.unit_bytes(topic, queue_id, queue_offset, count)
        if data and self._queues.extensions is not None:
            data = self._queues.extensions.with_tag_codes(self._by_key[topic, queue_id], data)
        return list(UNIT.iter_unpack(data))

    def unit_bytes(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Returns up to ``count`` whole units from a queue offset on, as bytes."""
        queue = self._by_key.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return b""
        data = queue.units(queue_offset, min(count, queue.max_offset - queue_offset))
        return data[: len(data) // UNIT_BYTES * UNIT_BYTES]

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Returns the queue offset of the first message stored at or after a time; with ``upper``, of the last one
        stored at or before it."""
        queue = self._by_key.get((topic, queue_id))
        return 0 if queue is None else self._reader.offset_by_time(queue, timestamp_ms, upper=upper)

    def topics(self) -> list[str]:
        """Returns the topics that have (or had) messages, sorted."""
        return self._queues.topics()

    def queues(self, topic: str) -> list[int]:
        """Returns the ids of a topic's queues that have (or had) messages, sorted."""
        return self._queues.ids(topic)

    @property
    def min_log_offset(self) -> int:
        """The first log offset available."""
        return self._log.start

    @property
    def max_log_offset(self) -> int:
        """The end of the log."""
        return self._log.end

    @property
    def whole_log_offset(self) -> int:
        """The end of the last whole record; less than the end of the log while a replica has a partial record."""
        return self._log.whole_end(self._log.end)

    @property
    def flushed_offset(self) -> int:
        """The log offset up to which the log is on disk."""
        return self._log.flushed

    @property
    def last_store_ms(self) -> int:
        """The store time of the newest record; 0 for an empty log."""
        return self._log.last_store_ms

    @property
    def confirm_offset(self) -> int:
        """The log offset up to which consumers may read: the end of the log, unless replication sets a lower one."""
        held_back = self._reader.confirm_offset
        return self._log.end if held_back is None else held_back

    def limit_reads(self, log_offset: int | None) -> None:
        """Let consumers read up to ``log_offset``; None lifts the limit."""
        self._reader.limit(log_offset)

    def correct_offsets(self, corrects: bool) -> None:
        """Set whether a read outside a queue returns the correct offset. On a slave it returns the requested one."""
        self._reader.correct_offsets(corrects)

    @property
    def flush_mode(self) -> FlushMode:
        return self.config.flush_mode

    @property
    def writable(self) -> bool:
        """Whether appends are currently accepted (see ``unwritable_reason``)."""
        return not self.unwritable_reason

    @property
    def unwritable_reason(self) -> str:
        """Why appends are currently refused; empty when they are not."""
        return self._appender.refusal or self._fault.reason

    @property
    def index_last_update(self) -> IndexUpdate:
        """The time and log offset of the key index's newest entry."""
        return IndexUpdate(0, 0) if self._index is None else self._index.last_update

    @property
    def index_gap(self) -> str:
        """Why a key query may miss records; empty if it cannot."""
        if self._index is None:
            return "messageIndexEnable is false"
        return "the key index is catching up after a disk error" if self._index.paused else ""

    # Flush.
    def when_flushed(self, log_end: int, callback: Callable[[bool], None]) -> None:
        """Call ``callback`` through ``post`` with True once the log is on disk up to ``log_end``, or with False after
        the timeout or a failed flush. Calls it immediately, inline, if the log is already on disk that far."""
        self._flusher.when_flushed(log_end, callback)

    def request_flush(self) -> None:
        """Request a sync of the log, in any flush mode. Without a worker thread it runs immediately."""
        self._flusher.request()

    def flush(self) -> None:
        """Sync everything to disk now, on this thread. Raises ``OSError``."""
        self._flusher.flush()
        self._renew_refusal()

    # Maintenance.
    def delete_topic(self, topic: str) -> int:
        """Drop the queues of a topic. Returns their number. The log keeps the records until they expire."""
        if not self._queues.ids(topic):
            return 0
        # Recorded first, so that after a crash in between recovery finishes the deletion instead of recreating the
        # topic.
        self._parts.deleted.add(topic, self._log.end)
        deleted = self._queues.delete_topic(topic)
        checkpoint = self._parts.checkpoint
        checkpoint.verified_queues = max(0, checkpoint.verified_queues - deleted)
        return deleted

    def keep_topics(self, topics: Iterable[str]) -> list[str]:
        """Drop the queues of all topics that are not in ``topics`` (Apache: cleanUnusedTopic). Returns the dropped
        topics."""
        kept = frozenset(topics)
        dropped = [topic for topic in self._queues.topics() if topic not in kept]
        for topic in dropped:
            self.delete_topic(topic)
        return dropped

    def clean_expired(self, now_ms: int | None = None, *, force: bool = False) -> int:
        """Run retention now. Returns the number of log segments removed. ``force`` ignores the hour."""
        if force:
            self._retention.trigger()
        segments = self._log.segments
        chosen = self._retention.decide(
            segments.infos(), self._now_ms() if now_ms is None else now_ms, *self._disks_used()
        )
        removed: list[str] = []
        for info in chosen:
            if info.start + info.size_bytes > self._log.flushed:
                break
            logger.info("log segment expired path=%s", info.path)
            removed.append(segments.detach(info.start))
        if removed:
            self._flusher.remove_files(removed)
            start = self._log.start
            self._queues.expire(start)
            if self._index is not None:
                self._index.expire(start)
            self._parts.deleted.expire(start)
        self._renew_refusal()
        return len(removed)

    def _disks_used(self) -> tuple[list[float], float]:
        """Returns the used fractions of the log's disks and of the disk with everything else."""
        return [self._used(directory) for directory in self.config.log_directories], self._used(
            self.config.root
        )

    def _used(self, path: str) -> float:
        """Returns the used fraction of a disk as Apache computes it; -1 if it is unavailable."""
        try:
            usage = self._fs.disk_usage(path)
        except OSError:
            return -1.0
        whole = usage.used_bytes + usage.available_bytes
        return usage.used_bytes / whole if whole > 0 else -1.0

    def _available_bytes(self) -> int:
        """Returns the free bytes of the disk that has the fewest; 0 if they are unavailable."""
        try:
            paths = (*self.config.log_directories, self.config.root)
            return min(self._fs.disk_usage(path).available_bytes for path in paths)
        except OSError:
            return 0
