"""Stores checkpoints in the log, in the revive topic (Apache: the reading half of PopReviveService).

Every checkpoint is stored as a record of the topic ``rmq_sys_REVIVE_LOG_<cluster>`` before its messages leave the
broker. So it is as durable as the messages themselves: it survives a kill, and slaves receive it with the log.
Acknowledgements are buffered briefly and written together, one record per checkpoint. If a kill loses some of them,
their messages are delivered once more. The committed offset of ``CID_RMQ_SYS_REVIVE_GROUP`` is the first record of a
revive queue that is still needed. Reading from there rebuilds the whole table when a broker starts, when a slave
becomes master, and in a store from an Apache broker.

The window of a revive queue is bounded: a checkpoint that stays open for an hour, or while many newer records
accumulate after it, is rewritten at the end.

Apache writes checkpoints to the topic through the timer, shortly before they are due, and acknowledgements when they
are due. Such records may arrive while this broker runs, so records that it did not write itself are read as they
arrive. The checkpoints in them wait a little longer for their acknowledgements.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.pop.checkpoints import Checkpoint, CheckpointTable
from orbitmq.broker.pop.revive_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    decode_acks,
    decode_checkpoint,
)
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.codes import Property
from orbitmq.errors import BodyError, RecordError
from orbitmq.kernel import ack_bodies, checkpoint_bodies
from orbitmq.record.codec import Record, decode_record
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage

__all__ = ["REVIVE_GROUP", "CheckpointLog", "revive_topic"]

logger = logging.getLogger(__name__)

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_TAGS: Final = Property.TAGS.encode()
_PROPERTIES: Final = {
    tag: b"%b\x01%b\x02" % (_TAGS, tag.encode()) for tag in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG)
}
_TIMER_OUT: Final = b"TIMER_OUT_MS"
_GRACE_MS: Final = 3_000
"""How long an Apache checkpoint waits past its due time for acknowledgements that arrive through the timer."""
_PORTION: Final = 256
_WINDOW_MIN: Final = 1_000
_WINDOW_FACTOR: Final = 8
_AGE_MAX_MS: Final = 3_600_000
_REWRITES_MAX: Final = 64


def revive_topic(cluster_name: str) -> str:
    """Returns the topic that stores the checkpoints of a cluster's brokers."""
    return f"rmq_sys_REVIVE_LOG_{cluster_name}"


class CheckpointLog:
    """Writes the table to the revive topic and reads it back."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        store_host: bytes,
        puts: WritePath,
        offsets: ConsumerOffsets,
        clock: Clock,
        on_taken: Callable[[Checkpoint], None],
    ) -> None:
        """``on_taken`` is called with each checkpoint that is read from the log while running. The callee must check
        when the checkpoint is due."""
        self._config = config
        self._store = store
        self._host = store_host
        self._puts = puts
        self._offsets = offsets
        self._clock = clock
        self._next_read: dict[int, int] = {}
        self._own: dict[int, set[int]] = {}
        """By revive queue, the offsets of our own records after the next offset to read. They need not be read
        back."""
        self._writing = False
        self.running = False
        self._on_taken = on_taken
        self.table = CheckpointTable()
        self.topic = revive_topic(config.cluster_name)

    @property
    def queue_count(self) -> int:
        return self._config.revive_queue_count

    def _queue_ids(self) -> list[int]:
        return sorted({*range(self.queue_count), *self._store.queues(self.topic)})

    # -- lifecycle -------------------------------------------------------------------------------------

    def start(self) -> dict[tuple[str, str, int], tuple[int, int]]:
        """Build the table from the log. Returns the end and the time of the newest pop of each (topic, group, queue
        id)."""
        self.table.clear()
        self._own.clear()
        self._next_read.clear()
        self.running = True
        ends: dict[tuple[str, str, int], tuple[int, int]] = {}
        for queue_id in self._queue_ids():
            low = max(0, self._store.min_offset(self.topic, queue_id))
            committed = self._offsets.query(REVIVE_GROUP, self.topic, queue_id)
            self._next_read[queue_id] = max(low, min(committed, self._end(queue_id)))
            self._read_on(queue_id, ends)
        if len(self.table):
            logger.info("checkpoints read topic=%s open=%d", self.topic, len(self.table))
        return ends

    def stop(self) -> None:
        """Write pending acknowledgements and clear the table, because another broker may become master."""
        if not self.running:
            return
        self.flush()
        self.commit_floors()
        self.running = False
        self.table.clear()

    def _end(self, queue_id: int) -> int:
        return self._store.max_offset(self.topic, queue_id)

    # -- reading ---------------------------------------------------------------------------------------

    def arrived(self, queue_id: int) -> None:
        """Called by the store when a revive queue receives records. Records that this broker is writing itself are
        ignored."""
        if self.running and not self._writing:
            self._read_on(queue_id, {})

    def _read_on(self, queue_id: int, ends: dict[tuple[str, str, int], tuple[int, int]]) -> None:
        own = self._own.get(queue_id, set())
        offset = self._next_read.get(queue_id, 0)
        while offset < self._end(queue_id):
            units = self._store.units(self.topic, queue_id, offset, _PORTION)
            if not units:
                break
            for log_offset, size, _ in units:
                if offset in own:
                    own.discard(offset)
                else:
                    self._take(queue_id, offset, log_offset, size, ends)
                offset += 1
        self._next_read[queue_id] = max(offset, self._next_read.get(queue_id, 0))

    def _take(
        self,
        queue_id: int,
        offset: int,
        log_offset: int,
        size: int,
        ends: dict[tuple[str, str, int], tuple[int, int]],
    ) -> None:
        raw = self._store.record_at(log_offset, size)
        if raw is None:
            logger.error("revive record was deleted queue_id=%d offset=%d", queue_id, offset)
            return
        try:
            record = decode_record(raw)
            tag = (record.find(_TAGS) or b"").decode("ascii", "replace")
            if tag == CHECKPOINT_TAG:
                self._take_checkpoint(record, queue_id, offset, ends)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                key, acked = decode_acks(record.body)
                checkpoint = self.table.find(key)
                for one in acked:
                    self.table.ack(key, one)
                if checkpoint is not None:
                    self.table.written(checkpoint)
        except (RecordError, BodyError) as error:
            logger.error("revive record ignored queue_id=%d offset=%d reason=%s", queue_id, offset, error)

    def _take_checkpoint(
        self,
        record: Record,
        queue_id: int,
        offset: int,
        ends: dict[tuple[str, str, int], tuple[int, int]],
    ) -> None:
        checkpoint = decode_checkpoint(record.body, queue_id, offset)
        checkpoint.written_ms = record.store_timestamp_ms
        if record.find(_TIMER_OUT) is not None:
            checkpoint.grace_ms = _GRACE_MS
        if not checkpoint.offsets:
            return
        place = (checkpoint.topic, checkpoint.group, checkpoint.queue_id)
        end = (checkpoint.offsets[-1] + 1, checkpoint.pop_time_ms)
        if end > ends.get(place, (-1, 0)):
            ends[place] = end
        if not checkpoint.done:
            self.table.add(checkpoint)
            self._on_taken(checkpoint)

    # -- writing ---------------------------------------------------------------------------------------

    def _checkpoint_messages(self, checkpoints: Sequence[Checkpoint], now_ms: int) -> list[NewMessage]:
        # Apache redelivers nothing from a revive queue until it has read a record with this property.
        properties = b"%bTIMER_DELIVER_MS\x01%d\x02" % (_PROPERTIES[CHECKPOINT_TAG], now_ms)
        topic, host = self.topic, self._host
        bodies = checkpoint_bodies(checkpoints, self._config.broker_name)
        return [
            NewMessage(topic, one.revive_queue_id, body, properties, now_ms, host)
            for one, body in zip(checkpoints, bodies, strict=True)
        ]

    def _ack_messages(self, done: Sequence[tuple[Checkpoint, int]], now_ms: int) -> list[NewMessage]:
        """Returns one record for each checkpoint and the bit set of its acknowledged messages. Empty bit sets get no
        record."""
        bodies = ack_bodies(done, self._config.broker_name)
        single, several = _PROPERTIES[ACK_TAG], _PROPERTIES[BATCH_ACK_TAG]
        topic, host = self.topic, self._host
        return [
            NewMessage(topic, one.revive_queue_id, body, single if count == 1 else several, now_ms, host)
            for (one, _), (count, body) in zip(done, bodies, strict=True)
            if count
        ]

    def write(self, checkpoints: Sequence[Checkpoint], now_ms: int) -> None:
        """Store new checkpoints. Raises ``StoreError`` with nothing stored and the table unchanged."""
        places = self._append(self._checkpoint_messages(checkpoints, now_ms))
        for one, place in zip(checkpoints, places, strict=True):
            one.revive_offset, one.written_ms = place, now_ms
            self.table.add(one)

    def put_and_finish(self, messages: Sequence[NewMessage], checkpoint: Checkpoint) -> None:
        """Store redelivered messages together with a record that ends their checkpoint, atomically. Raises
        ``StoreError``."""
        ended = checkpoint.all_bits & ~checkpoint.written
        self._append([*messages, *self._ack_messages([(checkpoint, ended)], self._clock.now_ms())])
        self.table.finish(checkpoint)
        self.table.written(checkpoint)

    def flush(self) -> None:
        """Write the buffered acknowledgements. They stay buffered if the store refuses them."""
        waiting = self.table.take_unwritten()
        if not waiting:
            return
        try:
            self._append(self._ack_messages([(one, one.unwritten) for one in waiting], self._clock.now_ms()))
        except StoreError as error:
            self.table.put_back(waiting)
            logger.warning("acknowledgements wait for the store count=%d reason=%s", len(waiting), error)
            return
        for one in waiting:
            self.table.written(one)

    def _append(self, messages: Sequence[NewMessage]) -> list[int]:
        """Store records and redelivered messages. Returns their queue offsets."""
        if not messages:
            return []
        self._writing = True
        try:
            places = [appended.queue_offset for appended in self._puts.deliver(messages)]
        finally:
            self._writing = False
        for message, place in zip(messages, places, strict=True):
            if message.topic == self.topic:
                queue_id = message.queue_id
                if self._next_read.get(queue_id, 0) == place:
                    self._next_read[queue_id] = place + 1
                else:
                    self._own.setdefault(queue_id, set()).add(place)
        return places

    # -- maintenance -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Rewrite old checkpoints so that windows stay short. Called every second."""
        if not self.running:
            return
        now_ms = self._clock.now_ms()
        for queue_id in self._queue_ids():
            if self._next_read.get(queue_id, 0) < self._end(queue_id):
                self._read_on(queue_id, {})
            floor = self.table.floor(queue_id)
            if floor is not None and self._is_long(queue_id, floor, now_ms):
                self._rewrite(queue_id, now_ms)
        self.commit_floors()

    def _is_long(self, queue_id: int, floor: int, now_ms: int) -> bool:
        window = self._end(queue_id) - floor
        if window > max(_WINDOW_MIN, _WINDOW_FACTOR * self.table.open_count(queue_id)):
            return True
        return now_ms - self.table.oldest(queue_id, 1)[0].written_ms > _AGE_MAX_MS

    def _rewrite(self, queue_id: int, now_ms: int) -> None:
        old = [one for one in self.table.oldest(queue_id, _REWRITES_MAX) if not one.done]
        try:
            places = self._append(self._checkpoint_messages(old, now_ms))
        except StoreError as error:
            logger.warning("old checkpoints not rewritten queue_id=%d reason=%s", queue_id, error)
            return
        for one, place in zip(old, places, strict=True):
            self.table.rewritten(one, place, now_ms)

    def commit_floors(self) -> None:
        """Commit, for each revive queue, the offset of the first record that is still needed."""
        for queue_id in self._queue_ids():
            floor = self.table.floor(queue_id)
            needed = self._next_read.get(queue_id, 0) if floor is None else floor
            # Commit nothing before the first pop, because admin tools would list an unused group.
            if needed > max(0, self._offsets.query(REVIVE_GROUP, self.topic, queue_id)):
                self._offsets.commit("pop", REVIVE_GROUP, self.topic, queue_id, needed, own=True)
