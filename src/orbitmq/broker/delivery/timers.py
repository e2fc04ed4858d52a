"""Messages delivered at a time the sender chooses (Apache: TimerMessageStore).

A timer message waits in rmq_sys_wheel_timer, queue 0, with its second in TIMER_OUT_MS. The timer reads that queue and
enters each message into the wheel under its second (``timer_files``), so only the numbers of the seconds in use and
the messages of the current second are in memory. When a second begins, its messages are read, and each is delivered
at its own millisecond. Apache delivers all of them at the end of the second.

Invariants
1. A message is in the wheel before the queue offset passes it. It leaves the wheel only when its second is over,
   which requires every message of that second to be in the log again or never to be. So a kill loses nothing.
2. The checkpoint (next second to process, queue offset, end of the timer log) is saved every second, after the files
   it refers to, and a clean stop finishes the current second. So a clean restart repeats nothing, and a kill repeats
   at most the deliveries since the last checkpoint.
3. Without the files (a promoted slave, a deposed master, a damaged disk) the wheel is rebuilt from the queue.
   Messages before the last known checkpoint, in queue offset and in time, count as delivered.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import posixpath
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.parking import TIMER_QUEUE, asked_ms, unparked
from orbitmq.broker.delivery.put import WritePath, is_safe
from orbitmq.broker.delivery.timer_files import (
    DELETE,
    PLAIN,
    ROLL,
    CheckPointFile,
    Slot,
    TimerLog,
    TimerUnit,
    TimerWheel,
)
from orbitmq.broker.events import BrokerEvents
from orbitmq.codes import Property
from orbitmq.errors import CorruptionError, RecordError
from orbitmq.model.names import TIMER_TOPIC
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.hashing import java_hash
from orbitmq.record.properties import set_properties
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.errors import StoreError, StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage
from orbitmq.wire.bodies import TimerCheckPoint

__all__ = ["Timers"]

logger = logging.getLogger(__name__)

_PORTION: Final = 64
_RETRY_MS: Final = 100
_AFTER_ERROR_MS: Final = 10_000
_SLEEP_MS_MAX: Final = 60_000
_EXPIRE_S: Final = 30.0
_FINISH_S: Final = 5.0
_FINISH_STEP_MS: Final = 20
_OUT: Final = Property.TIMER_OUT_MS.encode()
_DELETES: Final = Property.TIMER_DEL_UNIQKEY.encode()
_ENQUEUED: Final = Property.TIMER_ENQUEUE_MS.encode()
_DEQUEUED: Final = Property.TIMER_DEQUEUE_MS.encode()
_ROLLED: Final = Property.TIMER_ROLL_TIMES.encode()
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = Property.REAL_QUEUE_ID.encode()
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()


class _Near(NamedTuple):
    """A message of the current second."""

    due_ms: int
    unit: TimerUnit


@dataclass(kw_only=True, eq=False)
class Timers:
    """The timer of one broker. It delivers only while the broker is master."""

    config: BrokerConfig
    store: MessageStore
    puts: WritePath
    fs: FileSystem
    clock: Clock
    events: BrokerEvents

    def __post_init__(self) -> None:
        self.events.readable.of_topic[TIMER_TOPIC] = self._arrived
        path = self.store.config.path
        self._wheel = TimerWheel(self.fs, path("timerwheel"))
        self._log = TimerLog(self.fs, path("timerlog"), self.config.timer_log_file_bytes)
        self._check_point = CheckPointFile(self.fs, posixpath.join(path("config"), "timercheck"))
        self._saved = TimerCheckPoint()
        self._saving = threading.Lock()
        self._is_open = False
        self._tasks: TaskOwner | None = None
        self._counted = (0.0, 0, 0)
        self._entered_count = self._delivered_count = 0
        self._wake = asyncio.Event()
        self._look_at_ms = 0
        self._forget()

    def _forget(self) -> None:
        self._queue_offset = 0
        """Queue offset of the next message to enter."""
        self._known_offset = 0
        """When the wheel is rebuilt, the checkpoint determines which messages before this queue offset were
        delivered."""
        self._second = 0
        """Every second before this one is over."""
        self._seconds: list[int] = []
        """A heap of the seconds in use, except the current one."""
        self._running = False
        """Whether the messages of ``_second`` are in ``_near``."""
        self._loading = -1
        """Position of the next unit of the current second to load; -1 when all are in ``_near``."""
        self._near: list[_Near] = []
        self._deleted: set[tuple[bytes, bytes]] = set()
        """The (topic, key) of messages that are cancelled by messages of the current second."""
        self._waiting = 0

    # -- start and stop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start delivering. Called on a master or a promoted slave. Raises ``OSError``."""
        if self._tasks is not None or not self.config.timer_wheel_enabled:
            return
        self._forget()
        self._saved = point = self._check_point.load()
        self._known_offset = point.timer_queue_offset
        self._second = point.last_read_time_ms // 1000
        if self._wheel.exists and self._log.exists:
            self._open_files(point)
        else:
            self._start_over()
        self._look_at_ms = 0
        self._tasks = TaskOwner("timers", watched=True)
        self._tasks.start(every(0.0, self._wait_and_work, first_s=0.0), "deliver")
        self._tasks.start(every(self.config.timer_flush_interval_ms / 1000, self._save), "save")
        self._tasks.start(every(_EXPIRE_S, self._expire), "expiry")

    async def stop(self) -> None:
        """Deliver the rest of the current second, then stop."""
        if self._tasks is None:
            return
        tasks, self._tasks = self._tasks, None
        await tasks.close()
        if self._is_open:
            if self._running:
                await self._finish_second()
            self._log.write()
            point = self._point()
            if await self.puts.stays():
                self._sync_and_save(point)
                self._close()
            else:
                # The end of the log may be truncated, so the files are rebuilt from the rest of the queue.
                self._close()
                self._wheel.remove()
                self._log.remove()

    async def _finish_second(self) -> None:
        """Deliver the rest of the current second, because the checkpoint counts only whole seconds."""
        try:
            async with asyncio.timeout(_FINISH_S):
                while (self._near or self._loading >= 0) and not self.puts.gate.closed:
                    wait_ms = self._deliver_portion() - self.clock.now_ms()
                    await asyncio.sleep(min(max(0, wait_ms), _FINISH_STEP_MS) / 1000)
        except TimeoutError:
            logger.warning("a second of timer messages will be redelivered second=%d", self._second)
        if self._running and not self._near and self._loading < 0:
            # Messages sent later for the same second are delivered at its end, as in Apache.
            self._running = False
            self._second += 1
        self._near.clear()

    def _open_files(self, point: TimerCheckPoint) -> None:
        """Open the existing files. Inconsistent ones are discarded and rebuilt."""
        try:
            self._wheel.open()
            self._is_open = True
            self._log.open(point.timer_log_flush_offset)
            self._queue_offset = point.timer_queue_offset
            for unit in self._log.units_from(self._log.end):
                record = self._record(unit.log_offset, unit.size)
                if record is None or record.topic != TIMER_TOPIC:
                    self._log.end_at(unit.place)
                    break
                self._queue_offset = max(self._queue_offset, record.queue_offset + 1)
                slot = self._wheel.slot(unit.second)
                if slot is None or slot.last < unit.place:
                    first, count = (unit.place, 0) if slot is None else (slot.first, slot.units)
                    self._wheel.put(unit.second, Slot(first, unit.place, count + 1))
            for second, slot in self._wheel.waiting(self._second):
                if not 0 <= slot.last < self._log.end:
                    raise CorruptionError(f"second {second} ends at {slot.last}, the log at {self._log.end}")
                self._seconds.append(second)
                self._waiting += max(1, slot.units)
            heapq.heapify(self._seconds)
        except CorruptionError as error:
            logger.error("timer files are inconsistent, rebuilt from the queue reason=%s", error)
            self._close()
            self._start_over()

    def _start_over(self) -> None:
        self._wheel.remove()
        self._log.remove()
        self._seconds.clear()
        self._waiting = 0
        self._queue_offset = max(0, self.store.min_offset(TIMER_TOPIC, TIMER_QUEUE))

    def _open_new(self) -> None:
        """Create the files. Called when the first message needs them."""
        if not self._is_open:
            self._wheel.open()
            self._is_open = True
            self._log.open(0)

    def _close(self) -> None:
        self._wheel.close()
        self._log.close()
        self._is_open = False

    def _point(self) -> TimerCheckPoint:
        version = self._saved.data_version
        read_ms, offset = self._second * 1000, self._queue_offset
        if (read_ms, offset) != (self._saved.last_read_time_ms, self._saved.timer_queue_offset):
            version = version.next(self.clock.now_ms())
        return TimerCheckPoint(
            last_read_time_ms=read_ms,
            timer_log_flush_offset=self._log.end,
            timer_queue_offset=offset,
            master_timer_queue_offset=offset,
            data_version=version,
        )

    async def _save(self) -> None:
        """Sync the files, then save the checkpoint that refers to them."""
        point = self._point()
        if self._is_open and point != self._saved and not self._remaking:
            self._log.write()
            # The checkpoint marks everything before it as delivered, so the deliveries must be safe first.
            if is_safe(await self.puts.safe()):
                await asyncio.to_thread(self._sync_and_save, point)

    @property
    def _remaking(self) -> bool:
        return self._queue_offset < self._known_offset

    def _sync_and_save(self, point: TimerCheckPoint) -> None:
        # The final save at stop may run while a background save is still in progress.
        with self._saving:
            self._log.sync()
            self._wheel.sync()
            self._check_point.save(point)
            self._saved = point

    def _expire(self) -> None:
        if self._is_open:
            self._log.expire(self.store.min_log_offset)

    # -- for slaves and tools --------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Returns the timer's progress in the form in which slaves request it (GET_TIMER_CHECK_POINT)."""
        return (self._saved if self._tasks is None else self._point()).encode()

    def take(self, content: bytes) -> None:
        """Replace a slave's state with its master's. If the slave is promoted, it rebuilds its wheel from that state.

        Raises ``BodyError`` and ``OSError``.
        """
        point = TimerCheckPoint.decode(content)
        if self._tasks is None and point != self._saved:
            self._wheel.remove()
            self._log.remove()
            self._check_point.save(
                TimerCheckPoint(
                    last_read_time_ms=point.last_read_time_ms,
                    timer_queue_offset=point.timer_queue_offset,
                    master_timer_queue_offset=point.timer_queue_offset,
                    data_version=point.data_version,
                )
            )
            self._saved = point

    @property
    def late_ms(self) -> int:
        """How many milliseconds the next message has been overdue; 0 if none is."""
        if not self._seconds and not self._near:
            return 0
        next_ms = self._near[0].due_ms if self._near else self._seconds[0] * 1000
        return max(0, self.clock.now_ms() - next_ms)

    @property
    def waiting_count(self) -> int:
        """The number of messages in the wheel."""
        return self._waiting

    @property
    def unread_count(self) -> int:
        """The number of messages in the queue that are not in the wheel yet."""
        if self._tasks is None:
            return 0
        return max(0, self.store.max_offset(TIMER_TOPIC, TIMER_QUEUE) - self._queue_offset)

    def facts(self) -> Mapping[str, str]:
        """Returns the timer's entries of the runtime info. The rates in them are averages since the last call."""
        since, entered, delivered = self._counted
        self._counted = (self.clock.monotonic(), self._entered_count, self._delivered_count)
        elapsed = max(0.001, self._counted[0] - since)
        return {
            "timerReadBehind": str(self.late_ms // 1000),
            "timerOffsetBehind": str(self.unread_count),
            "timerCongestNum": str(self._waiting),
            "timerEnqueueTps": f"{(self._entered_count - entered) / elapsed:.1f}",
            "timerDequeueTps": f"{(self._delivered_count - delivered) / elapsed:.1f}",
        }

    # -- work ------------------------------------------------------------------------------------------

    def _arrived(self, _queue_id: int) -> None:
        self._wake.set()

    def look_again(self) -> None:
        """Check again after the clock was changed, because another message may now be due next."""
        self._wake.set()

    async def _wait_and_work(self) -> None:
        wait_ms = min(self._look_at_ms - self.clock.now_ms(), _SLEEP_MS_MAX)
        if wait_ms > 0:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()
        self._look_at_ms = self.clock.now_ms() + _AFTER_ERROR_MS
        self._look_at_ms = await self.work()

    async def work(self) -> int:
        """Enter new messages and deliver due ones. Returns the epoch milliseconds at which to check again."""
        while True:
            entered = self._enter_portion()
            next_ms = 0 if self._remaking else self._deliver_portion()
            if not entered and next_ms:
                return next_ms
            await asyncio.sleep(0)

    def _enter_portion(self) -> int:
        """Enter a batch of messages from the queue into the wheel. Returns how many messages were processed."""
        low = self.store.min_offset(TIMER_TOPIC, TIMER_QUEUE)
        if self._queue_offset < low:
            logger.warning("timer messages expired from=%d to=%d", self._queue_offset, low)
            self._queue_offset = low
        units = self.store.units(TIMER_TOPIC, TIMER_QUEUE, self._queue_offset, _PORTION)
        if not units:
            self._known_offset = min(self._known_offset, self._queue_offset)
            return 0
        self._open_new()
        if not self._second:
            self._second = self.clock.now_ms() // 1000
        for log_offset, size, _ in units:
            record = self._record(log_offset, size)
            if record is not None:
                self._enter(record, size)
            self._queue_offset += 1
        self._entered_count += len(units)
        self._log.write()
        return len(units)

    def _enter(self, record: Record, size: int) -> None:
        text = record.find(_OUT)
        if text is None or not text.isdigit():
            logger.error("timer message without a time skipped log_offset=%d", record.log_offset)
            return
        known = self._queue_offset < self._known_offset
        # A rebuilt wheel must put each message under the same second as before.
        written_ms = (record.store_timestamp_ms if known else self.clock.now_ms()) // 1000 * 1000
        slot_ms, kind = self._slot_ms(int(text), written_ms)
        if record.find(_DELETES) is not None:
            kind |= DELETE
        second = slot_ms // 1000
        if second < self._second:
            if known:
                return  # delivered before the checkpoint was written
            second = self._second
        self._add(second, kind, written_ms, (record.log_offset, size, _topic_hash(record)))

    def _slot_ms(self, wanted_ms: int, written_ms: int) -> tuple[int, int]:
        window_ms = self.config.timer_roll_window_s * 1000
        if wanted_ms - written_ms < window_ms:
            return wanted_ms, PLAIN
        # As in Apache, wait half the window if a whole one would leave only a short rest.
        if wanted_ms - written_ms - window_ms < window_ms // 3:
            return written_ms + window_ms // 2 // 1000 * 1000, PLAIN | ROLL
        return written_ms + window_ms, PLAIN | ROLL

    def _add(self, second: int, kind: int, written_ms: int, record: tuple[int, int, int]) -> None:
        slot = self._wheel.slot(second)
        before = -1 if slot is None else slot.last
        place = self._log.append(before, kind, (written_ms, second * 1000), record)
        if slot is None:
            self._wheel.put(second, Slot(place, place, 1))
            if not (self._running and second == self._second):
                heapq.heappush(self._seconds, second)
        else:
            self._wheel.put(second, Slot(slot.first, place, slot.units + 1))
        self._waiting += 1
        if self._running and second == self._second:
            self._bring_near(
                TimerUnit(place, before, kind, written_ms, second * 1000 - written_ms, *record[:2])
            )

    # -- delivery --------------------------------------------------------------------------------------

    def _deliver_portion(self) -> int:
        """Deliver a batch of due messages. Returns 0 if more may be due, otherwise the time at which to check
        again."""
        now_ms = self.clock.now_ms()
        if not self._running:
            if not self._seconds or self._seconds[0] * 1000 > now_ms:
                self._pass_idle_seconds(now_ms // 1000)
                return self._seconds[0] * 1000 if self._seconds else now_ms + _SLEEP_MS_MAX
            self._begin_second(heapq.heappop(self._seconds))
        if self._loading >= 0:
            self._load_portion()
            return 0
        due: list[_Near] = []
        while self._near and self._near[0].due_ms <= now_ms and len(due) < _PORTION:
            due.append(heapq.heappop(self._near))
        if due:
            done = self._deliver(due, now_ms)
            self._waiting -= done
            for near in due[done:]:
                heapq.heappush(self._near, near)
            return 0 if done == len(due) else now_ms + _RETRY_MS
        second_end_ms = (self._second + 1) * 1000
        if self._near:
            return self._near[0].due_ms
        if now_ms < second_end_ms:
            return second_end_ms
        self._running = False
        self._deleted.clear()
        self._second += 1
        return 0

    def _pass_idle_seconds(self, now_s: int) -> None:
        if self._second:
            self._second = max(self._second, min(now_s, self._seconds[0]) if self._seconds else now_s)

    def _begin_second(self, second: int) -> None:
        self._second = second
        self._running = True
        slot = self._wheel.slot(second)
        self._loading = -1 if slot is None else slot.last

    def _load_portion(self) -> None:
        """Load a batch of the current second's messages, newest entry first. Deliveries start only when all are
        loaded, because any of them may be due first or may cancel another one."""
        for _ in range(_PORTION):
            place = self._loading
            unit = self._log.unit(place)
            if unit is None or unit.before >= place:
                logger.error("timer log chain broken second=%d place=%d", self._second, place)
                self._loading = -1
            else:
                self._bring_near(unit)
                self._loading = unit.before
            if self._loading < 0:
                heapq.heapify(self._near)
                return

    def _bring_near(self, unit: TimerUnit) -> None:
        record = self._record(unit.log_offset, unit.size)
        if record is None:
            self._waiting -= 1
            return
        if unit.kind & DELETE and not unit.kind & ROLL:
            key = record.find(_DELETES)
            if key is not None:
                self._deleted.add((record.find(_REAL_TOPIC) or b"", key))
            self._waiting -= 1
            return
        begin_ms = self._second * 1000
        due_ms = begin_ms
        if not unit.kind & ROLL and _number(record, _OUT) == begin_ms:
            # The properties give the millisecond; otherwise (a rolled message) it is due at the end of the second.
            try:
                wanted_ms = asked_ms(record.properties, record.store_timestamp_ms) or 0
            except ValueError:
                wanted_ms = 0
            due_ms = wanted_ms if begin_ms < wanted_ms <= begin_ms + 1000 else begin_ms + 1000
        if self._loading >= 0:
            self._near.append(_Near(due_ms, unit))  # sorted when all are loaded
        else:
            heapq.heappush(self._near, _Near(due_ms, unit))

    def _deliver(self, due: list[_Near], now_ms: int) -> int:
        """Store messages in order. Returns how many are finished."""
        messages: list[NewMessage] = []
        places: list[int] = []
        for place, near in enumerate(due):
            message = self._restored(near.unit, now_ms)
            if message is not None:
                messages.append(message)
                places.append(place)
        done = self._put(messages)
        return places[done] if done < len(messages) else len(due)

    def _put(self, messages: list[NewMessage]) -> int:
        try:
            self.puts.deliver(messages, "delay")
        except StoreUnavailable as error:
            logger.warning(
                "timer messages wait for the store count=%d reason=%s", len(messages), error.remark
            )
            return 0
        except StoreError as error:
            if len(messages) > 1:
                for done, message in enumerate(messages):
                    if not self._put([message]):
                        return done
                return len(messages)
            logger.error("timer message cannot be stored topic=%s reason=%s", messages[0].topic, error.remark)
            return 1
        self._delivered_count += len(messages)
        return len(messages)

    def _restored(self, unit: TimerUnit, now_ms: int) -> NewMessage | None:
        """Returns the message to store, or None if it was cancelled or can never be delivered."""
        record = self._record(unit.log_offset, unit.size)
        if record is None:
            return None
        pairs = [(_ENQUEUED, b"%d" % unit.written_ms), (_DEQUEUED, b"%d" % now_ms)]
        if unit.kind & ROLL:
            pairs.append((_ROLLED, b"%d" % (_number(record, _ROLLED) + 1)))
        elif self._is_deleted(record):
            return None
        try:
            message = unparked(record)
        except RecordError as error:
            logger.error("timer message skipped log_offset=%d reason=%s", record.log_offset, error)
            return None
        if unit.kind & ROLL:
            message = message._replace(topic=TIMER_TOPIC, queue_id=TIMER_QUEUE)
        return message._replace(properties=set_properties(message.properties, pairs))

    def _is_deleted(self, record: Record) -> bool:
        """Whether another message of the same topic cancelled this one. The other message names its key in either of
        Apache's two forms."""
        key = record.find(_UNIQUE_KEY)
        if not self._deleted or key is None:
            return False
        topic = record.find(_REAL_TOPIC) or b""
        return not self._deleted.isdisjoint(((topic, key), (topic, topic + b"+" + key)))

    def _record(self, log_offset: int, size: int) -> Record | None:
        raw = self.store.record_at(log_offset, size)
        try:
            if raw is None:
                raise RecordError("it was deleted")
            return decode_record(raw)
        except RecordError as error:
            logger.error("timer message cannot be read log_offset=%d reason=%s", log_offset, error)
            return None


def _number(record: Record, name: bytes) -> int:
    text = record.find(name)
    return int(text) if text is not None and text.isdigit() else 0


def _topic_hash(record: Record) -> int:
    return java_hash((record.find(_REAL_TOPIC) or b"").decode("utf-8", "replace"))
