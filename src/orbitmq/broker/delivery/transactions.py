"""Ends transactions and checks open ones (Apache: TransactionalMessageService).

A producer's half message waits in the half queue. END_TRANSACTION stores the real message (commit) or nothing
(rollback), and marks the half message as ended; marks are stored in batches. A transaction that stays open for a
while is checked: the half message is appended to the half queue again with its check count incremented, and a live
producer of its group is queried for the outcome. The cursor over the half queue can therefore always advance.

Invariants
1. No consumer reads the half queue, and a message reaches its topic only through ``commit``.
2. The half cursor passes a half message only when it has ended, was abandoned (it is then in
   TRANS_CHECK_MAX_TIME_TOPIC) or was appended again. So every check lost by a kill is repeated.
3. The op cursor passes a mark only when the half cursor is past everything it marks.
4. The message is stored before its mark, so a kill in between repeats a commit but never loses one.
5. A cursor is committed when the records that let it advance are safe: the half message appended again, or the
   committed message. Failover may truncate these records but not the cursor, which is not in the log.
6. While the broker runs, a transaction is committed once, however often producers end it and whichever of its
   offsets they name: the first one, or any they were sent in a check.

The cursors are the offsets of group CID_RMQ_SYS_TRANS, as in Apache, so each broker continues where the other
stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.half_messages import (
    again,
    as_committed,
    check_body,
    mark_offsets,
    moved_to,
    number,
    op_message,
)
from orbitmq.broker.delivery.parking import HALF_QUEUE
from orbitmq.broker.delivery.put import WritePath, is_safe
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.clients import ClientChannel, ProducerTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Property
from orbitmq.errors import RecordError, SystemBusy
from orbitmq.model.names import (
    HALF_OP_TOPIC,
    HALF_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
)
from orbitmq.model.topic import PERM_READ_WRITE
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, NewMessage
from orbitmq.wire.headers import CheckTransactionStateRequest

__all__ = ["Transactions"]

logger = logging.getLogger(__name__)

V = TypeVar("V")
_PORTION: Final = 32
_ROUND_S_MAX: Final = 60.0
"""The maximum duration of a check round. The next round continues where it ended."""
_MARKS_MAX: Final = 200_000
"""The maximum number of marks that could not be stored. Beyond it, ends of transactions are refused until the store
accepts the marks."""
_RECENT_MAX: Final = 20_000
_HOUR_MS: Final = 3_600_000
_GROUP: Final = Property.PRODUCER_GROUP.encode()
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode()
_IMMUNITY: Final = Property.CHECK_IMMUNITY_TIME_IN_SECONDS


@dataclass(kw_only=True, eq=False)
class Transactions:
    """Processes the half queue of a broker while it is master."""

    config: BrokerConfig
    store: MessageStore
    store_host: bytes
    topics: TopicTable
    offsets: ConsumerOffsets
    producers: ProducerTable
    puts: WritePath
    stats: BrokerStats
    clock: Clock
    may_check: Callable[[ClientChannel, str], bool] = lambda _producer, _topic: True
    """Whether a producer may see the half messages of a topic."""

    def __post_init__(self) -> None:
        self._forget()
        self._tasks: TaskOwner | None = None

    def _forget(self) -> None:
        self._cursor = 0
        self._op_cursor = 0
        self._op_read = 0
        self._ended: set[int] = set()
        """Ended half messages at or after the cursor."""
        self._passed_from = 0
        """The position of the cursor when this broker started to advance it."""
        self._recent: dict[int, None] = {}
        """Half messages anywhere in the queue that ended recently. They are kept because a producer may end a
        transaction twice, on its own and in reply to a check."""
        self._given_up: dict[int, list[int]] = {}
        """Half messages abandoned recently, in the form of ``_places``. They are kept because a late reply may still
        end them."""
        self._marks: list[int] = []
        """Ended half messages whose marks are not stored yet."""
        self._marks_bytes = 0
        self._ops: deque[tuple[int, int]] = deque()
        """The marks already read, each as the offset after the mark and the last half message that it ends."""
        self._places: dict[int, list[int]] = {}
        """The open half messages that were appended again. Maps every offset that producers know, and the newest
        offset, to the list of all these offsets, newest last."""

    # -- start and stop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the cursors and start checking. Called on a master or a promoted slave."""
        if self._tasks is not None:
            return
        self._forget()
        self._cursor = self._passed_from = self._stored_cursor(HALF_TOPIC)
        self._op_cursor = self._op_read = self._stored_cursor(HALF_OP_TOPIC)
        self._tasks = TaskOwner("transactions", watched=True)
        self._tasks.start(every(0.0, self._wait_and_check, first_s=0.0), "check")
        self._tasks.start(every(0.0, self._wait_and_flush, first_s=0.0), "marks")

    async def stop(self) -> None:
        """Stop checking, and store the marks and the cursors."""
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            await tasks.close()
            self.flush_marks()
            cursors = self._cursors()
            if await self.puts.stays():
                self._commit(cursors)

    def _stored_cursor(self, topic: str) -> int:
        low = max(0, self.store.min_offset(topic, HALF_QUEUE))
        high = max(low, self.store.max_offset(topic, HALF_QUEUE))
        stored = self.offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE)
        if stored >= 0 and not low <= stored <= high:
            logger.error(
                "transaction cursor outside its queue topic=%s cursor=%d corrected=%d",
                topic,
                stored,
                low if stored < low else high,
            )
        return min(max(stored, low), high)

    async def _wait_and_check(self) -> None:
        await asyncio.sleep(self.config.transaction_check_interval_ms / 1000)
        await self.check()

    async def _wait_and_flush(self) -> None:
        await asyncio.sleep(self.config.transaction_op_interval_ms / 1000)
        self.flush_marks()

    def _cursors(self) -> dict[str, int]:
        return {HALF_TOPIC: self._cursor, HALF_OP_TOPIC: self._op_cursor}

    def _commit(self, cursors: dict[str, int]) -> None:
        for topic, cursor in cursors.items():
            if self.offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE) != cursor:
                self.offsets.commit("broker", TRANSACTION_GROUP, topic, HALF_QUEUE, cursor, own=True)

    @property
    def behind_count(self) -> int:
        """The number of half messages that the cursor has not passed yet."""
        return max(0, self.store.max_offset(HALF_TOPIC, HALF_QUEUE) - self._cursor)

    # -- begin and end ---------------------------------------------------------------------------------

    def to_commit(self, half: Record) -> NewMessage | None:
        """Returns the message to store for a commit, or None if the transaction has already ended.

        Raises ``BrokerError`` and ``RecordError``.
        """
        if self._over(half.queue_offset):
            logger.warning("transaction already ended half_offset=%d", half.queue_offset)
            return None
        self._check_room()
        return self.puts.admit(as_committed(half))

    def commit(self, halves: Sequence[Record], messages: Sequence[NewMessage]) -> None:
        """Deliver the messages of several transactions to their topics, all or none, and end the transactions. Raises
        ``StoreError``."""
        self.puts.deliver(messages, "transaction")
        for half in halves:
            self._count_end(half, committed=True)
            self._end(half.queue_offset)

    def places(self, half: Record) -> Sequence[int]:
        """Returns every queue offset by which producers may know the half message."""
        offset = half.queue_offset
        return self._places.get(offset) or self._given_up.get(offset) or (offset,)

    def roll_back(self, half: Record) -> None:
        """End a transaction without delivering its message. Does nothing if the transaction has already ended."""
        if not self._over(half.queue_offset):
            self._check_room()
            self._count_end(half, committed=False)
            self._end(half.queue_offset)

    def _count_end(self, half: Record, *, committed: bool) -> None:
        topic = (half.find(_REAL_TOPIC) or b"").decode("utf-8", "replace")
        age_ms = self.clock.now_ms() - half.born_timestamp_ms
        self.stats.transaction_ended(topic, committed=committed, age_ms=age_ms)

    def open_by_topic(self, count_max: int) -> dict[str, int]:
        """Returns the number of open half messages by real topic. Inspects at most ``count_max`` half messages."""
        counts: dict[str, int] = {}
        end = self.store.max_offset(HALF_TOPIC, HALF_QUEUE)
        for half_offset in range(self._cursor, min(end, self._cursor + count_max)):
            if half_offset in self._ended:
                continue
            half = self._record(HALF_TOPIC, half_offset)
            if half is not None and half is not _UNREADABLE:
                topic = (half.find(_REAL_TOPIC) or b"").decode("utf-8", "replace")
                counts[topic] = counts.get(topic, 0) + 1
        return counts

    def resume(self, record: Record) -> int:
        """Restart the checks of an abandoned message. Returns the end of the log after the append. Raises
        ``StoreError``."""
        self.puts.deliver((again(record, (Property.TRANSACTION_CHECK_TIMES, 0)),))
        return self.store.max_log_offset

    def _check_room(self) -> None:
        if len(self._marks) >= _MARKS_MAX:
            raise SystemBusy(f"{len(self._marks)} transaction outcomes wait for the store")

    def _over(self, half_offset: int) -> bool:
        if half_offset in self._ended or half_offset in self._recent:
            return True
        return (
            self._passed_from <= half_offset < self._cursor
            and half_offset not in self._places
            and half_offset not in self._given_up
        )

    def _end(self, half_offset: int) -> None:
        """Record the end of a half message and of all its copies, if it was appended to the half queue again
        meanwhile.

        Apache marks only the offset that the producer names, so a transaction that ends during a check is checked
        once more and committed twice.
        """
        places = self._places.get(half_offset) or self._given_up.get(half_offset) or [half_offset]
        for offset in places:
            self._places.pop(offset, None)
            self._given_up.pop(offset, None)
            _remember(self._recent, offset, None)
            if offset >= self._cursor:
                self._ended.add(offset)
        for offset in {half_offset, places[-1]}:
            self._marks.append(offset)
            self._marks_bytes += len(str(offset)) + 1
        if self._marks_bytes > self.config.transaction_op_bytes_max:
            self.flush_marks()

    def flush_marks(self) -> None:
        """Store the marks of ended half messages. If the store refuses, they are kept for a later call."""
        limit = self.config.transaction_op_bytes_max
        while self._marks:
            size = count = 0
            while count < len(self._marks) and size < limit:
                size += len(str(self._marks[count])) + 1
                count += 1
            message = op_message(self._marks[:count], self.clock.now_ms(), self.store_host)
            try:
                self.puts.deliver((message,))
            except StoreError as error:
                logger.warning(
                    "transaction outcomes wait for the store count=%d reason=%s",
                    len(self._marks),
                    error.remark,
                )
                return
            del self._marks[:count]
            self._marks_bytes -= size
        while self._cursor in self._ended:
            self._pass(self._cursor)
        self._pass_marks()

    # -- the check round -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Process the open half messages: pass those that have ended, check old ones, and abandon those that were
        checked too often."""
        self.flush_marks()
        await self._read_marks()
        started_ms = self.clock.now_ms()
        deadline = self.clock.monotonic() + _ROUND_S_MAX
        low = self.store.min_offset(HALF_TOPIC, HALF_QUEUE)
        if self._cursor < low:
            logger.warning("half messages expired from=%d to=%d", self._cursor, low)
            self._cursor = low
            self._ended = {offset for offset in self._ended if offset >= low}
        looked = 0
        while self.clock.monotonic() < deadline:
            if self._cursor in self._ended:
                self._pass(self._cursor)
                continue
            half = self._record(HALF_TOPIC, self._cursor)
            if half is None or not (half is _UNREADABLE or self._look_at(half, started_ms)):
                break
            self._pass(self._cursor)
            looked += 1
            if looked % _PORTION == 0:
                # Transactions may end meanwhile, so every decision is made per message.
                await asyncio.sleep(0)
        self._pass_marks()
        cursors = self._cursors()
        if is_safe(await self.puts.safe()):
            self._commit(cursors)

    def _pass(self, half_offset: int) -> None:
        self._ended.discard(half_offset)
        self._cursor = half_offset + 1

    def _pass_marks(self) -> None:
        while self._ops and self._ops[0][1] < self._cursor:
            self._op_cursor = self._ops.popleft()[0]

    async def _read_marks(self) -> None:
        portions = 0
        low = self.store.min_offset(HALF_OP_TOPIC, HALF_QUEUE)
        if self._op_read < low:
            self._op_read = self._op_cursor = low
            self._ops.clear()
        while (op := self._record(HALF_OP_TOPIC, self._op_read)) is not None:
            offsets = [] if op is _UNREADABLE else mark_offsets(op)
            self._op_read += 1
            self._ended.update(offset for offset in offsets if offset >= self._cursor)
            self._ops.append((self._op_read, max(offsets, default=-1)))
            portions += 1
            if portions % _PORTION == 0:
                await asyncio.sleep(0)

    def _record(self, topic: str, queue_offset: int) -> Record | None:
        """Returns a message of a queue, or None at the end of the queue, or ``_UNREADABLE`` if the message is deleted
        or damaged."""
        units = self.store.units(topic, HALF_QUEUE, queue_offset, 1)
        if not units:
            return None
        log_offset, size, _ = units[0]
        raw = self.store.record_at(log_offset, size)
        try:
            if raw is None:
                raise RecordError("it was deleted")
            return decode_record(raw)
        except RecordError as error:
            logger.error(
                "transaction message skipped topic=%s queue_offset=%d log_offset=%d reason=%s",
                topic,
                queue_offset,
                log_offset,
                error,
            )
            return _UNREADABLE

    def _look_at(self, half: Record, started_ms: int) -> bool:
        """Process one open half message. Returns False if the round ends at this message."""
        if half.store_timestamp_ms >= started_ms:
            return False
        now_ms = self.clock.now_ms()
        age_ms = now_ms - half.born_timestamp_ms
        times = number(half, Property.TRANSACTION_CHECK_TIMES) or 0
        if (
            times >= self.config.transaction_check_count_max
            or age_ms > self.store.config.retention_hours * _HOUR_MS
        ):
            return self._give_up(half, times)
        immunity_s = number(half, _IMMUNITY)
        if immunity_s is None or immunity_s == -1:
            if 0 <= age_ms <= self.config.transaction_timeout_ms:
                return False
        elif age_ms <= immunity_s * 1000:
            return self._put_aside(half)
        return self._ask(half, times + 1)

    def _put_aside(self, half: Record) -> bool:
        """Requeue a half message whose own immunity period has not ended, so that it does not block others. Returns
        False if that failed."""
        first = number(half, Property.TRANSACTION_PREPARED_QUEUE_OFFSET)
        place = half.queue_offset if first is None else first
        copy = again(half, (Property.TRANSACTION_PREPARED_QUEUE_OFFSET, place))
        return self._store_again(half, copy) is not None

    @property
    def asked_places(self) -> int:
        """The number of offsets kept for open half messages that were appended again."""
        return len(self._places)

    def _ask(self, half: Record, times: int) -> bool:
        copy = again(half, (Property.TRANSACTION_CHECK_TIMES, times))
        where = self._store_again(half, copy)
        if where is None:
            return False
        group = (half.find(_GROUP) or b"").decode("utf-8", "replace")
        topic = (half.find(_REAL_TOPIC) or b"").decode("utf-8", "replace")
        connection = self.producers.pick(group, lambda producer: self.may_check(producer, topic))
        if connection is None:
            logger.warning(
                "transaction not checked, no producer online group=%s half_offset=%d",
                group,
                where.queue_offset,
            )
            return True
        key = half.find(_UNIQUE_KEY)
        transaction_id = None if key is None else key.decode("utf-8", "replace")
        header = CheckTransactionStateRequest(
            tran_state_table_offset=where.queue_offset,
            commit_log_offset=where.log_offset,
            msg_id=transaction_id,
            transaction_id=transaction_id,
            offset_msg_id=offset_message_id(self.store_host, where.log_offset),
            topic=HALF_TOPIC,
            broker_name=self.config.broker_name,
        )
        try:
            body = check_body(copy, where, self.store_host)
        except RecordError as error:
            logger.error("transaction cannot be checked half_offset=%d reason=%s", where.queue_offset, error)
            return True
        connection.notify(RequestCode.CHECK_TRANSACTION_STATE, header, body)
        return True

    def _store_again(self, half: Record, copy: NewMessage) -> Appended | None:
        where = self._append(copy)
        if where is not None:
            places = self._places.setdefault(half.queue_offset, [half.queue_offset])
            if len(places) > 1 and number(half, Property.TRANSACTION_CHECK_TIMES) is None:
                del self._places[places.pop()]  # requeued, and not sent in a check yet
            places.append(where.queue_offset)
            self._places[where.queue_offset] = places
        return where

    def _give_up(self, half: Record, times: int) -> bool:
        topic = self.topics.create_own(TRANSACTION_CHECK_MAX_TIME_TOPIC, 1, PERM_READ_WRITE)
        if self._append(moved_to(half, topic.topic_name, 0, half.properties)) is None:
            return False
        places = self._places.get(half.queue_offset, [half.queue_offset])
        for offset in places:
            self._places.pop(offset, None)
            _remember(self._given_up, offset, places)
        logger.warning(
            "transaction abandoned key=%s half_offset=%d checks=%d", half.unique_key, half.queue_offset, times
        )
        return True

    def _append(self, message: NewMessage) -> Appended | None:
        try:
            return self.puts.deliver((message,))[0]
        except StoreError as error:
            logger.warning("transaction checks wait for the store reason=%s", error.remark)
            return None


def _remember(known: dict[int, V], offset: int, value: V) -> None:
    """Add an entry. If there are too many, evict the oldest one."""
    known[offset] = value
    if len(known) > _RECENT_MAX:
        del known[next(iter(known))]


_UNREADABLE: Final = Record("", 0, b"", b"", 0, b"", 0, 0, 0, 0, 0, 0, 0, b"", 0, 0, 0)
"""Represents an unreadable message, which is skipped."""
