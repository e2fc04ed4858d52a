"""Delay levels: delivers messages that wait in SCHEDULE_TOPIC_XXXX (Apache: ScheduleMessageService).

Queue ``level - 1`` of the topic holds the messages of a level. All of them wait equally long, so they are in order of
due time. Their queue units contain the due time instead of a tag code. One cursor per level walks the queue. The
service sleeps until the earliest head is due or a message arrives at an empty level, never for a fixed interval.

Invariants
1. A cursor passes a message only when the message is in the log again or can never be. A failed put is retried.
2. Cursors are saved every ten seconds and at a clean stop, so a clean restart delivers nothing twice, and a kill
   repeats at most the deliveries since the last save.
3. A delivered record keeps the properties it waited with, including DELAY, REAL_TOPIC and REAL_QID, as in Apache.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.parking import unparked
from orbitmq.broker.delivery.put import WritePath, is_safe
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.errors import RecordError
from orbitmq.model.data_version import DataVersion
from orbitmq.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from orbitmq.record.codec import decode_record
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.errors import StoreError, StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage
from orbitmq.wire.bodies.offsets import DelayOffsets
from orbitmq.wire.javajson import encode_pretty

__all__ = ["SCHEDULE_GROUP", "Schedule"]

logger = logging.getLogger(__name__)

SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"
"""The group under which deliveries are counted."""
_PORTION: Final = 32
_RETRY_MS: Final = 100
_AFTER_ERROR_MS: Final = 10_000
_SLEEP_MS_MAX: Final = 60_000
"""The longest sleep. It is limited because the wall clock may be set."""


class Schedule:
    """Delivers the messages of all levels while this broker is master, and keeps the cursors."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        puts: WritePath,
        stats: BrokerStats,
        file: SafeFile,
        clock: Clock,
        events: BrokerEvents,
    ) -> None:
        self._config = config
        self._store = store
        self._levels = puts.parking.levels
        self._puts = puts
        self._stats = stats
        self._file = file
        self._clock = clock
        self._steps = puts.parking.steps
        self._began = clock.monotonic()
        self._cursors: dict[int, int] = {}
        self._version = DataVersion(timestamp_ms=clock.now_ms())
        self._moves = 0
        self._saved_cursors: dict[int, int] | None = None
        self._saving = threading.Lock()
        self._wake = asyncio.Event()
        self._look_at_ms = 0
        self._heads: set[int] = set()
        """Queues whose next message is known and not due yet. Messages that arrive later are due even later."""
        self._tasks: TaskOwner | None = None
        events.readable.of_topic[SCHEDULE_TOPIC] = self._arrived

    # -- start and stop --------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the cursors and correct those that lie outside their queue. The store must be open."""
        saved = self._file.load(DelayOffsets.decode)
        if saved is not None:
            self._cursors = dict(saved.offset_table)
            self._saved_cursors = dict(saved.offset_table)
            self._version = saved.data_version or self._version
        for level, cursor in self._cursors.items():
            self._cursors[level] = self._corrected(level, cursor)

    def _corrected(self, level: int, cursor: int) -> int:
        low = max(0, self._store.min_offset(SCHEDULE_TOPIC, level - 1))
        high = max(low, self._store.max_offset(SCHEDULE_TOPIC, level - 1))
        if low <= cursor <= high:
            return cursor
        corrected = low if cursor < low else high
        logger.error(
            "delay cursor outside its queue level=%d cursor=%d corrected=%d", level, cursor, corrected
        )
        return corrected

    def start(self) -> None:
        """Start delivering. Called on a master or a promoted slave."""
        if self._tasks is None:
            self._heads.clear()
            self._look_at_ms = 0
            self._began = self._clock.monotonic()
            self._tasks = TaskOwner("schedule", watched=True)
            self._tasks.start(every(0.0, self._wait_and_deliver, first_s=0.0), "deliver")
            self._tasks.start(every(self._config.delay_offset_flush_interval_ms / 1000, self._save), "save")

    async def stop(self) -> None:
        """Stop delivering and save the cursors. If messages they have passed may be truncated, revert to the last
        saved cursors instead."""
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            await tasks.close()
            if await self._puts.stays():
                self.persist()
            else:
                self._cursors = dict(self._saved_cursors or {})

    def persist(self) -> None:
        """Save the cursors. Raises ``OSError``."""
        self._write(dict(self._cursors), encode_pretty(self._saved()))

    async def _save(self) -> None:
        """Like ``persist``, but writes on another thread, and only when a cursor has moved. First waits until the
        deliveries that the cursors passed are safe, because a saved cursor marks them as delivered."""
        if self._cursors != self._saved_cursors:
            cursors, content = dict(self._cursors), encode_pretty(self._saved())
            if is_safe(await self._puts.safe()):
                await asyncio.to_thread(self._write, cursors, content)

    def _write(self, cursors: dict[int, int], content: bytes) -> None:
        # The final save at stop may run while a background save is still in progress.
        with self._saving:
            self._file.save(content)
            self._saved_cursors = cursors

    def encode(self) -> bytes:
        """Returns the cursors in the form in which slaves request them."""
        return self._saved().encode()

    def take(self, content: bytes) -> None:
        """Replace a slave's cursors with its master's."""
        offsets = DelayOffsets.decode(content)
        self._cursors = dict(offsets.offset_table)
        self._version = offsets.data_version or self._version
        self._file.save(content)
        self._saved_cursors = dict(offsets.offset_table)

    def _saved(self) -> DelayOffsets:
        return DelayOffsets(data_version=self._version, offset_table=dict(sorted(self._cursors.items())))

    def progress(self) -> dict[int, tuple[int, int]]:
        """Returns the cursor and the end of the queue for each level. Used by the runtime info."""
        return {
            level: (cursor, self._store.max_offset(SCHEDULE_TOPIC, level - 1))
            for level, cursor in sorted(self._cursors.items())
        }

    # -- delivery --------------------------------------------------------------------------------------

    def _arrived(self, queue_id: int) -> None:
        if queue_id not in self._heads:
            self._wake.set()

    def look_again(self, passed_ms: int) -> None:
        """Check again after a test has advanced the clock by ``passed_ms``, because another message may now be due
        next."""
        self._steps.passed(passed_ms)
        self._wake.set()

    async def _wait_and_deliver(self) -> None:
        wait_ms = min(self._look_at_ms - self._clock.now_ms(), _SLEEP_MS_MAX)
        if wait_ms > 0:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()
        # Applies if the delivery fails: the error is logged and the levels are checked again later.
        self._look_at_ms = self._clock.now_ms() + _AFTER_ERROR_MS
        next_ms = await self.deliver_due()
        self._look_at_ms = self._clock.now_ms() + _SLEEP_MS_MAX if next_ms is None else next_ms

    async def deliver_due(self) -> int | None:
        """Deliver everything that is due. Returns the next due time in epoch milliseconds, or None if nothing
        waits."""
        next_ms: int | None = None
        levels = list(range(1, self._levels.max_level + 1))
        while levels:
            # One batch of each level in turn, so that a long one does not hold up the others.
            more: list[int] = []
            for level in levels:
                due_ms = self._deliver_portion(level)
                if due_ms == 0:
                    more.append(level)
                    # A full batch was delivered: serve requests before the next one.
                    await asyncio.sleep(0)
                elif due_ms is not None and (next_ms is None or due_ms < next_ms):
                    next_ms = due_ms
            levels = more
        return next_ms

    def _deliver_portion(self, level: int) -> int | None:
        """Deliver a batch of due messages of one level.

        Returns 0 if more messages may be due, otherwise the due time of the level's next message, or None if it has
        none.
        """
        self._heads.discard(level - 1)
        cursor = self._corrected(level, self._cursors.get(level, 0))
        units = self._store.units_with_codes(SCHEDULE_TOPIC, level - 1, cursor, _PORTION)
        if not units:
            if level in self._cursors or cursor:
                self._cursors[level] = cursor
            return None
        self._steps.look()
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._levels.delay_ms(level)
        # For a message stored earlier by a clock that was ahead: wait the whole delay, counted from the start.
        whole_ms = int((self._began - self._clock.monotonic()) * 1000) + latest_ms
        due: list[NewMessage] = []
        places: list[int] = []
        waits_until: int | None = None
        end = cursor
        for log_offset, size, due_ms in units:
            if due_ms < 0:
                # This is the address of a deleted extension unit, so derive the due time from the store time.
                due_ms = self._due_ms(level, log_offset, size)
            due_ms += self._steps.shift_ms(log_offset)
            if due_ms > latest_ms:
                due_ms = whole_ms
            if now_ms < due_ms:
                waits_until = due_ms
                break
            message = self._restored(level, log_offset, size)
            if message is not None:
                due.append(message)
                places.append(end)
            end += 1
        done = self._put(level, due)
        if done < len(due):
            self._moved(level, cursor, places[done])
            return now_ms + _RETRY_MS
        self._moved(level, cursor, end)
        if waits_until is None:
            return 0
        self._heads.add(level - 1)
        return waits_until

    def _due_ms(self, level: int, log_offset: int, size: int) -> int:
        raw = self._store.record_at(log_offset, size)
        try:
            return 0 if raw is None else decode_record(raw).store_timestamp_ms + self._levels.delay_ms(level)
        except RecordError:
            return 0  # skipped, with an error in the log

    def _put(self, level: int, messages: list[NewMessage]) -> int:
        """Store messages in order. Returns how many are finished; the others must be retried."""
        try:
            appended = self._puts.deliver(messages, "delay", counted=self._config.schedule_stats_enabled)
        except StoreUnavailable as error:
            logger.warning("delayed messages wait for the store level=%d reason=%s", level, error.remark)
            return 0
        except StoreError as error:
            if len(messages) > 1:
                return self._put_one_by_one(level, messages)
            # Permanently refused (a limit was lowered, or no store accepts the topic), so a retry would not help.
            logger.error(
                "delayed message cannot be stored level=%d topic=%s reason=%s",
                level,
                messages[0].topic,
                error.remark,
            )
            return 1
        if not self._config.schedule_stats_enabled:
            return len(messages)
        for where in appended:
            self._stats.get(SCHEDULE_GROUP, SCHEDULE_TOPIC, level - 1, 1, where.size)
        return len(messages)

    def _put_one_by_one(self, level: int, messages: list[NewMessage]) -> int:
        for done, message in enumerate(messages):
            if not self._put(level, [message]):
                return done
        return len(messages)

    def _moved(self, level: int, cursor: int, end: int) -> None:
        self._cursors[level] = end
        self._moves += end - cursor
        if self._moves >= self._config.delay_offset_version_step:
            self._moves = 0
            self._version = self._version.next(self._clock.now_ms())

    def _restored(self, level: int, log_offset: int, size: int) -> NewMessage | None:
        """Returns the original message, or None if it can never be delivered."""
        raw = self._store.record_at(log_offset, size)
        if raw is None:
            logger.error("delayed message is gone level=%d log_offset=%d", level, log_offset)
            return None
        try:
            message = unparked(decode_record(raw))
            if message.topic == HALF_TOPIC:
                raise RecordError(f"its topic is {HALF_TOPIC}")
            return message
        except RecordError as error:
            logger.error(
                "delayed message cannot be delivered level=%d log_offset=%d reason=%s",
                level,
                log_offset,
                error,
            )
            return None
