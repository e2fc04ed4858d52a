"""Rewrites consume queue units from the log of a stopped broker.

Every whole record of the log contains its queue and its queue offset, so the log determines each unit. Units that
differ are overwritten; queues whose files are missing or have a wrong length are rebuilt. The log is read twice,
because the offsets of a topic that was deleted and recreated start at 0 again, and only its last incarnation counts.

No checksum covers a record's header, so a queue offset is accepted only if it continues its queue: it is the next
one, or the damaged bytes since then can have held the messages in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from orbitmq.codes import TRANSACTION_MASK, Property
from orbitmq.kernel.layout import RECORD_BYTES_MIN
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.record.hashing import tags_code
from orbitmq.record.properties import find_property
from orbitmq.record.scan import EndKind, ScannedRecord
from orbitmq.store.errors import BadQueueName
from orbitmq.store.layout import BLANK_UNIT_SIZE, SCHEDULE_TOPIC
from orbitmq.store.queues.consume_queue import TAIL_BYTES_MAX, ConsumeQueue
from orbitmq.store.queues.queue_ext import is_ext_address
from orbitmq.store.queues.queue_table import DeletedTopics, QueueTable
from orbitmq.store.tools.offline import OfflineStore
from orbitmq.store.tools.verify import next_record
from orbitmq.store.write.dispatch import NO_UNIT, due_or_tag_code

__all__ = ["RepairedQueue", "repair_queues"]

_TAGS: Final = Property.TAGS.encode()
_TRANSACTION_MASK: Final = int(TRANSACTION_MASK)


class RepairedQueue(msgspec.Struct):
    """A queue with units that did not match the log."""

    topic: str
    queue_id: int
    unit_count: int
    """Number of units rewritten."""


class _State:
    """The state of one queue while the log is read."""

    __slots__ = ("is_broken", "lost_bytes", "next_offset", "queue", "repaired", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """Log offset of the first record that counts."""
        self.queue: ConsumeQueue | None = None
        self.is_broken = False
        """Whether the files cannot form a queue."""
        self.next_offset = -1
        self.lost_bytes = 0
        self.repaired = 0


def repair_queues(store: OfflineStore, *, dry_run: bool) -> list[RepairedQueue]:
    """Make every unit match the log. Returns the queues that had to be changed, in order. The caller must hold the
    store's lock.

    Raises ``OSError`` and ``CorruptionError``. Units written before the error are correct.
    """
    return _Repair(store, dry_run=dry_run).run()


class _Repair:
    def __init__(self, store: OfflineStore, *, dry_run: bool) -> None:
        self._store = store
        self._dry_run = dry_run
        self._table = QueueTable(store.fs, store.config)
        self._levels = DelayLevels(store.config.delay_levels)
        self._deleted = DeletedTopics(store.fs, store.config.path("deletedTopics.json"))
        self._states: dict[tuple[bytes, int], _State] = {}
        self._lost_bytes = 0
        """Log bytes without a valid record, up to the current position."""

    def run(self) -> list[RepairedQueue]:
        self._deleted.load()
        try:
            for record in self._records():
                self._note_start(record)
            self._lost_bytes = 0
            for record in self._records():
                self._take(record)
            if not self._dry_run:
                self._table.write_tails()
                self._sync()
        finally:
            self._table.close()
        found = [
            RepairedQueue(state.queue.topic, state.queue.queue_id, state.repaired)
            for state in self._states.values()
            if state.queue is not None and state.repaired
        ]
        return sorted(found, key=lambda one: (one.topic, one.queue_id))

    def _records(self) -> Iterator[ScannedRecord]:
        """Yields every whole record that belongs in a queue, in log order, skipping damage."""
        ends = {
            topic.encode("utf-8", "surrogateescape"): end for topic, end in self._deleted.log_ends.items()
        }
        for segment in self._store.segments():
            position: int | None = 0
            while position is not None:
                scanned = self._store.scan(segment, position)
                for record in scanned:
                    if record.sys_flag & _TRANSACTION_MASK not in NO_UNIT and record.log_offset >= ends.get(
                        record.topic, 0
                    ):
                        yield record
                end = scanned.end
                assert end is not None
                if end.kind in (EndKind.BLANK, EndKind.LIMIT) and not end.reason:
                    break
                position = next_record(self._store, segment, end.position + 1)
                if position is not None:
                    self._lost_bytes += position - end.position

    def _note_start(self, record: ScannedRecord) -> None:
        key = record.topic, record.queue_id
        if record.queue_offset == 0 or key not in self._states:
            self._states[key] = _State(record.log_offset)

    def _take(self, record: ScannedRecord) -> None:
        state = self._states[record.topic, record.queue_id]
        if record.log_offset < state.start:
            return
        number = record.queue_offset
        lost_max = (self._lost_bytes - state.lost_bytes) // RECORD_BYTES_MIN
        if state.next_offset >= 0 and not 0 <= number - state.next_offset <= lost_max:
            self._lost_bytes += record.size
            return
        queue = state.queue or self._open(state, record)
        if queue is None:
            return
        if state.is_broken and self._dry_run:
            state.repaired += 1
        else:
            for lost in range(number if state.next_offset < 0 else state.next_offset, number):
                self._blank(state, queue, lost, record.log_offset)
            self._compare(state, queue, record)
        state.next_offset, state.lost_bytes = number + 1, self._lost_bytes

    def _open(self, state: _State, record: ScannedRecord) -> ConsumeQueue | None:
        """Returns the queue of a record; None if its name is invalid."""
        try:
            queue = self._table.create(record.topic.decode(), record.queue_id)
        except (UnicodeDecodeError, BadQueueName):
            return None
        state.queue = queue
        state.is_broken = not queue.load()
        if state.is_broken and not self._dry_run:
            queue.clear()
        return queue

    def _blank(self, state: _State, queue: ConsumeQueue, number: int, log_offset: int) -> None:
        """Write a blank unit for a lost message that has no unit, because units must have no gaps."""
        unit = queue.unit(number) if number < queue.max_offset else None
        if unit is None or unit[1] <= 0:
            self._write(state, queue, number, (log_offset, BLANK_UNIT_SIZE, 0))

    def _compare(self, state: _State, queue: ConsumeQueue, record: ScannedRecord) -> None:
        number = record.queue_offset
        unit = queue.unit(number) if number < queue.max_offset else None
        if queue.topic == SCHEDULE_TOPIC:
            code = due_or_tag_code(record.properties, record.store_timestamp_ms, self._levels)
        else:
            code = tags_code(find_property(record.properties, _TAGS))
        right = (record.log_offset, record.size, code)
        # Not compared: due times depend on the broker's levels, and an extension address replaces the code.
        has_own_code = queue.topic == SCHEDULE_TOPIC or (unit is not None and is_ext_address(unit[2]))
        if unit is None or unit[: 2 if has_own_code else 3] != right[: 2 if has_own_code else 3]:
            self._write(state, queue, number, right)

    def _write(self, state: _State, queue: ConsumeQueue, number: int, unit: tuple[int, int, int]) -> None:
        state.repaired += 1
        if self._dry_run:
            return
        if number < queue.max_offset:
            queue.replace(number, *unit)
            return
        if number > queue.max_offset:  # only for the first record: the files end before the log begins
            queue.clear()
            queue.start_at(number)
        queue.append(*unit)
        if len(queue.tail) >= TAIL_BYTES_MAX:
            queue.write_tail()

    def _sync(self) -> None:
        fs = self._store.fs
        for path in self._table.take_unsynced():
            handle = fs.open(path)
            try:
                fs.sync_data(handle)
            finally:
                fs.close(handle)
            fs.sync_directory(path.rpartition("/")[0])
