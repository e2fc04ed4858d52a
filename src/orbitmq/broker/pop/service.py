"""Hands messages out, acknowledges and redelivers them (Apache: PopMessageProcessor, AckMessageProcessor,
ChangeInvisibleTimeProcessor, PopReviveService).

Invariants
1. Messages leave the broker only after their checkpoint is in the log; then the group's offset moves past them.
2. A message whose invisible time has expired is stored in the pop retry topic in one append with the end of its
   checkpoint: after a kill either both or neither exist.
3. Ordered pops have no checkpoint: their messages stay where they are until they are acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.pop.checkpoint_log import CheckpointLog
from orbitmq.broker.pop.checkpoints import Checkpoint, CheckpointKey, CheckpointTuple
from orbitmq.broker.pop.order_locks import OrderLocks
from orbitmq.broker.pop.receipts import ORDERED_QUEUE_ID, Receipt
from orbitmq.broker.pop.redelivery import Redelivery
from orbitmq.broker.pop.round import PopQuestion
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import BrokerError, CorruptionError, MessageIllegal, RecordError
from orbitmq.model.names import RETRY_PREFIX
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore

__all__ = ["PopService"]

logger = logging.getLogger(__name__)

_ACK_WAIT_S: Final = 0.1
"""Longest time that an acknowledgement exists only in memory."""
_ACKS_MAX: Final = 4_096
"""Maximum number of checkpoints with acknowledgements that exist only in memory."""
_SLEEP_MAX_S: Final = 60.0


@dataclass(kw_only=True, eq=False)
class PopService:
    """State and rules of POP; the request handlers are in ``handlers.pop``."""

    config: BrokerConfig
    store: MessageStore
    store_host: bytes
    puts: WritePath
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    stats: BrokerStats
    order_file: SafeFile
    clock: Clock
    events: BrokerEvents
    is_pulled: Callable[[str, str], bool]
    """Whether a group was switched to pulling a topic."""

    def __post_init__(self) -> None:
        self._revive_turn = 0
        self._tasks: TaskOwner | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._free_timers: dict[tuple[str, str, int], asyncio.TimerHandle] = {}
        """One timer for each order lock that requests wait for."""
        self._wake = asyncio.Event()
        self._sleeps_until_ms = 0
        self.log = CheckpointLog(
            config=self.config,
            store=self.store,
            store_host=self.store_host,
            puts=self.puts,
            offsets=self.offsets,
            clock=self.clock,
            on_taken=lambda checkpoint: self._note_due((checkpoint,)),
        )
        self.locks = OrderLocks()
        self.events.readable.of_topic[self.log.topic] = self.log.arrived
        self._guards_offsets = False
        """Whether offsets may be saved only after their checkpoints are safe."""
        self.redelivery = Redelivery(
            config=self.config,
            store=self.store,
            store_host=self.store_host,
            puts=self.puts,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            log=self.log,
            clock=self.clock,
            is_pulled=self.is_pulled,
        )

    # -- lifecycle -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the order locks. An unreadable file does not prevent a start, but the messages locked in it are
        delivered again."""
        try:
            content = self.order_file.load(bytes)
            if content is not None:
                self.locks.take(content)
        except (CorruptionError, RecordError, BrokerError) as error:
            logger.warning("order locks not loaded error=%s", error)

    def start(self, offsets_saved_ms: int = 0) -> None:
        """Start redelivery as a master. ``offsets_saved_ms`` is the time when the offsets file was saved. Offsets
        moved by later pops are missing from that file and are restored from the checkpoints."""
        if self._tasks is not None:
            return
        for (topic, group, queue_id), (end, pop_time_ms) in self.log.start().items():
            if pop_time_ms > offsets_saved_ms and end > self.offsets.query(group, topic, queue_id):
                self.offsets.commit("pop", group, topic, queue_id, end, own=True)
        self._guards_offsets = True
        self._tasks = TaskOwner("pop", watched=True)
        self._tasks.start(every(0.0, self._wait_and_redeliver, first_s=0.0), "redeliver")
        self._tasks.start(every(1.0, self.log.tick), "checkpoint-windows")
        self._tasks.start(every(10.0, self.save_locks), "order-locks")

    async def stop(self) -> None:
        """Stop redelivery and save all state."""
        if self._tasks is None:
            return
        tasks, self._tasks = self._tasks, None
        await tasks.close()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        for timer in self._free_timers.values():
            timer.cancel()
        self._free_timers.clear()
        self.log.stop()
        self.save_locks()
        if not await self.puts.stays():
            self.offsets.go_back()
        self._guards_offsets = False

    async def save_offsets(self) -> None:
        """Save the committed offsets if they have changed, once the log they depend on is safe."""
        await self.offsets.persist_aside(self._log_stays if self._guards_offsets else None)

    async def _log_stays(self) -> bool:
        """Wait until the log is flushed and, with failover, replicated. Returns whether that succeeded. Offsets moved
        by pops may be saved only then, because their checkpoints must be equally durable. Otherwise, after a power
        failure or a change of master, a message could be before the committed offset without a checkpoint, and would
        be lost."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(flushed: bool) -> None:
            if not done.done():
                done.set_result(flushed)

        self.store.when_flushed(self.store.max_log_offset, settle)
        return await done and await self.puts.stays()

    @property
    def running(self) -> bool:
        return self._tasks is not None

    def save_locks(self) -> None:
        """Write the order locks if they have changed."""
        self.locks.expire(
            self.clock.now_ms(),
            lambda topic, group: topic in self.topics.configs and group in self.groups.configs,
        )
        if self.locks.dirty:
            try:
                self.order_file.save(self.locks.encode())
                self.locks.saved()
            except OSError as error:
                logger.warning("order locks not saved error=%s", error)

    # -- handing out -----------------------------------------------------------------------------------

    def next_revive_queue(self, *, ordered: bool) -> int:
        if ordered:
            return ORDERED_QUEUE_ID
        turn = self._revive_turn
        self._revive_turn = turn + 1
        return turn % self.config.revive_queue_count

    def note_handed_out(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Schedule the redelivery of the new checkpoints, and count them."""
        self._note_due(checkpoints)
        counts: dict[tuple[str, str], int] = {}
        for one in checkpoints:
            place = one.topic, one.group
            counts[place] = counts.get(place, 0) + 1
        for (topic, group), count in counts.items():
            self.stats.add("GROUP_CK_NUMS", f"{topic}@{group}", count)
        self.stats.add("BROKER_CK_NUMS", self.config.cluster_name, len(checkpoints))

    def is_over_threshold(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a group holds too many messages of a queue to receive more of them."""
        return (
            self.config.pop_threshold_enabled
            and self.log.table.in_flight(topic, group, queue_id) > self.config.pop_threshold
        )

    def blocks(self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int) -> bool:
        """Whether an ordered pop must not read a queue yet. If so, the requests waiting for the queue are woken when
        it is free."""
        if not self.locks.blocks(topic, group, queue_id, attempt_id, now_ms):
            return False
        self._wake_when_free(topic, group, queue_id, now_ms)
        return True

    # -- positions -------------------------------------------------------------------------------------

    def position(self, group: str, topic: str, queue_id: int, *, from_newest: bool) -> int:
        """Returns the queue offset where the next pop of a queue starts. For a new group, chooses the offset and
        commits it."""
        reset = self.offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self._move(group, topic, queue_id, reset)
            return reset
        offset = self.offsets.query(group, topic, queue_id)
        if offset >= 0:
            return offset
        low = max(0, self.store.min_offset(topic, queue_id))
        offset = low
        if from_newest and not topic.startswith(RETRY_PREFIX) and not self._is_young(topic, queue_id, low):
            offset = max(0, self.store.max_offset(topic, queue_id) - 1)
        self.offsets.commit("pop", group, topic, queue_id, offset)
        return offset

    def peek_position(self, group: str, topic: str, queue_id: int) -> int:
        """Like ``position``, but commits nothing."""
        offset = self.offsets.query(group, topic, queue_id)
        return offset if offset >= 0 else max(0, self.store.min_offset(topic, queue_id))

    def _is_young(self, topic: str, queue_id: int, low: int) -> bool:
        if not self.config.pop_young_queue_from_start or low > 0:
            return False
        return not self.store.read(topic, queue_id, 0, 1).from_disk

    def _move(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group to the offset that an operator reset it to, and drop the messages it holds."""
        self.offsets.commit("pop", group, topic, queue_id, offset)
        self.locks.clear(topic, group, queue_id)
        for checkpoint in self.log.table.of_queue(topic, group, queue_id):
            self.log.table.finish(checkpoint)
        self.log.flush()
        try:
            # Save immediately: after a crash, pops older than the file do not move offsets (see ``start``).
            self.offsets.persist()
        except OSError as error:
            logger.warning("offsets not saved error=%s", error)

    # -- acknowledging ---------------------------------------------------------------------------------

    def ack(self, group: str, topic: str, queue_id: int, queue_offset: int, receipt: Receipt) -> None:
        """Acknowledge a message. Raises ``MessageIllegal`` if the receipt is from an ordered pop that did not hand it
        out."""
        if receipt.revive_queue_id == ORDERED_QUEUE_ID:
            self._ack_ordered(group, topic, queue_id, queue_offset, receipt.pop_time_ms)
            return
        key = CheckpointKey(topic, group, queue_id, receipt.start_offset, receipt.pop_time_ms)
        self.ack_all([(key, queue_offset)])

    def ack_all(self, acks: Sequence[tuple[CheckpointTuple, int]]) -> None:
        """Acknowledge messages of unordered pops. Each is given as the key of its checkpoint and its queue offset.
        Unknown ones are ignored."""
        ack, known = self.log.table.ack, 0
        counts: dict[tuple[str, str], int] = {}
        for key, queue_offset in acks:
            known += ack(key, queue_offset)
            place = key[:2]
            counts[place] = counts.get(place, 0) + 1
        if known:
            self._note_acks()
        for place, count in counts.items():
            self.stats.add("GROUP_ACK_NUMS", f"{place[0]}@{place[1]}", count)
        self.stats.add("BROKER_ACK_NUMS", self.config.cluster_name, len(acks))

    def _ack_ordered(
        self, group: str, topic: str, queue_id: int, queue_offset: int, pop_time_ms: int
    ) -> None:
        committed = self.offsets.query(group, topic, queue_id)
        if queue_offset < committed:
            return
        result = self.locks.ack(topic, group, queue_id, queue_offset, pop_time_ms, self.clock.now_ms())
        if not result.known:
            raise MessageIllegal(
                f"the message was not handed out, topic: {topic}, queue: {queue_id}, offset: {queue_offset}"
            )
        if result.commit > committed and not self.offsets.reset_pending(group, topic, queue_id):
            self.offsets.commit("pop", group, topic, queue_id, result.commit)
        if result.free:
            self.events.uncovered(topic, group, queue_id)

    def change_invisible(
        self,
        place: tuple[str, str, int],
        queue_offset: int,
        receipt: Receipt,
        invisible_ms: int,
        *,
        suspended: bool = False,
    ) -> Receipt:
        """Hide a message of (topic, group, queue) for another ``invisible_ms``. Returns the receipt that replaces its
        old one. Raises ``BrokerError`` when the store refuses."""
        now_ms = self.clock.now_ms()
        topic, group, queue_id = place
        if receipt.revive_queue_id == ORDERED_QUEUE_ID:
            return self._change_ordered(place, queue_offset, receipt, now_ms + invisible_ms)
        table = self.log.table
        revive_queue_id = receipt.revive_queue_id % self.config.revive_queue_count
        pop_time_ms = now_ms
        while CheckpointKey(topic, group, queue_id, queue_offset, pop_time_ms) in table:
            pop_time_ms += 1
        checkpoint = Checkpoint(
            topic,
            group,
            queue_id,
            queue_offset,
            pop_time_ms,
            invisible_ms,
            revive_queue_id,
            range(queue_offset, queue_offset + 1),
            suspended=suspended,
        )
        old = table.find(CheckpointKey(topic, group, queue_id, receipt.start_offset, receipt.pop_time_ms))
        try:
            self.log.write([checkpoint], now_ms)
        except StoreError as error:
            raise BrokerError(error.remark, code=error.code) from None
        if old is not None and table.ack(old.key, queue_offset):
            self._note_acks()
        self._note_due([checkpoint])
        return Receipt(queue_offset, pop_time_ms, invisible_ms, revive_queue_id, receipt.kind)

    def _change_ordered(
        self, place: tuple[str, str, int], queue_offset: int, receipt: Receipt, visible_ms: int
    ) -> Receipt:
        topic, group, queue_id = place
        if queue_offset < self.offsets.query(group, topic, queue_id):
            return Receipt(queue_offset, 0, 0, 0, receipt.kind)
        if self.locks.change_visible(place, queue_offset, receipt.pop_time_ms, visible_ms):
            self._wake_when_free(topic, group, queue_id, self.clock.now_ms())
        return Receipt(
            queue_offset,
            receipt.pop_time_ms,
            visible_ms - receipt.pop_time_ms,
            ORDERED_QUEUE_ID,
            receipt.kind,
        )

    def _wake_when_free(self, topic: str, group: str, queue_id: int, now_ms: int) -> None:
        if not self.config.pop_order_wake_enabled:
            return
        lock = self.locks.find(topic, group, queue_id)
        until_ms = None if lock is None else lock.blocked_until(now_ms)
        if until_ms is None:
            return
        place = (topic, group, queue_id)
        loop = asyncio.get_running_loop()
        at_s = loop.time() + min((until_ms - now_ms) / 1000 + 0.001, _SLEEP_MAX_S * 60)
        timer = self._free_timers.get(place)
        if timer is not None:
            if timer.when() <= at_s:
                return
            timer.cancel()
        self._free_timers[place] = loop.call_at(at_s, self._is_free, place)

    def _is_free(self, place: tuple[str, str, int]) -> None:
        self._free_timers.pop(place, None)
        self.events.uncovered(*place)

    def _note_acks(self) -> None:
        if self.log.table.unwritten_count >= _ACKS_MAX:
            self.flush()
        elif self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(_ACK_WAIT_S, self.flush)

    def flush(self) -> None:
        """Write the acknowledgements that are only in memory to the log."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self.log.running:
            self.log.flush()

    # -- redelivery ------------------------------------------------------------------------------------

    def _note_due(self, checkpoints: Sequence[Checkpoint]) -> None:
        if min(one.due_ms for one in checkpoints) < self._sleeps_until_ms:
            self._wake.set()

    async def _wait_and_redeliver(self) -> None:
        now_ms = self.clock.now_ms()
        due_ms = self.log.table.next_due_ms()
        self._sleeps_until_ms = now_ms + int(_SLEEP_MAX_S * 1000)
        if due_ms is not None:
            self._sleeps_until_ms = min(due_ms, self._sleeps_until_ms)
        wait_s = (self._sleeps_until_ms - now_ms) / 1000
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()
        self._sleeps_until_ms = 0
        # One batch per round, so that requests are served in between.
        self.redelivery.redeliver_due()

    # -- queries ---------------------------------------------------------------------------------------

    def move_retries(self, topic: str, group: str) -> int:
        """See ``Redelivery.move_retries``. Does nothing while this broker is not the master."""
        return self.redelivery.move_retries(topic, group) if self.running else 0

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """Returns the pop retry topics of a group and topic, the one in use first. They may not exist."""
        return self.redelivery.retry_topics(topic, group)

    def has_messages(
        self,
        question: PopQuestion,
        *,
        matches: Callable[[str, int, int, int], bool] | None = None,
    ) -> bool:
        """Whether a pop would find messages. ``matches`` may reject the waiting messages of a queue; it is called
        with topic, queue id, first queue offset and count."""
        now_ms = self.clock.now_ms()
        topic, group = question.topic, question.group
        for queue_id in question.queue_ids:
            if question.ordered and self.blocks(topic, group, queue_id, question.attempt_id, now_ms):
                continue
            start = self.peek_position(group, topic, queue_id)
            waiting = self.store.max_offset(topic, queue_id) - start
            if waiting > 0 and (matches is None or matches(topic, queue_id, start, waiting)):
                return True
        for name in question.retry_topics:
            config = self.topics.configs.get(name)
            for queue_id in range(config.read_queue_nums) if config is not None else ():
                if self.store.max_offset(name, queue_id) > self.peek_position(group, name, queue_id):
                    return True
        return False

    @staticmethod
    def dice() -> int:
        """Returns a random number from 0 to 99. It decides where a pop starts and whether redelivered messages come
        first."""
        return random.randrange(100)
