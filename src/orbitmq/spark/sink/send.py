"""Sends encoded rows with many requests in flight, retries until a deadline, and counts rows per queue.

Rows that belong to a queue, through a sharding key or a queue number, keep their order, because each queue has only
one request in flight. All other rows are spread over the queues. A request without an answer is sent again, perhaps
to another queue. Rows stored twice that way have the same unique key.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from orbitmq.client.errors import NameServerError, NoRouteError, add_hint, is_retriable
from orbitmq.client.message import SendResult, SendStatus
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ProducerOptions
from orbitmq.client.produce.sender import Outgoing, Sender
from orbitmq.client.sync import LoopThread
from orbitmq.codes import Property, SysFlag
from orbitmq.errors import BrokerError, ConnectionLostError, NoPermission, OrbitError, RequestTimeoutError
from orbitmq.model.route import MessageQueue
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.runtime.machine import process_id
from orbitmq.spark.options import Access
from orbitmq.spark.sink.bulk import Ask, ask_brokers
from orbitmq.spark.sink.prepared import Half
from orbitmq.transport.router import RawRoute, Route
from orbitmq.wire.bodies import ConsumerData, ProducerData

__all__ = ["HalfRow", "QueueTally", "SendSession", "SinkClient", "sink_client"]

logger = logging.getLogger(__name__)

CLIENTS_MAX: Final = 8
_BATCH_PROPERTIES: Final = f"{Property.WAIT}\x01true\x02".encode()
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_WAIT_SLICE_S: Final = 1.0
_WHOLE: Final = 32
"""Number of small requests that take the room of one large one."""
_WHOLE_BYTES: Final = 256 * 1024


class HalfRow(NamedTuple):
    """A row to be stored as a half message."""

    number: int
    body: bytes
    properties: bytes
    key: str


@dataclass(slots=True)
class QueueTally:
    """The totals of one queue."""

    rows: int = 0
    body_bytes: int = 0
    first_offset: int = -1
    last_offset: int = -1
    not_safe_rows: int = 0
    """Stored, but not flushed or replicated within the broker's timeout."""

    def add(self, other: QueueTally) -> None:
        self.rows += other.rows
        self.body_bytes += other.body_bytes
        self.not_safe_rows += other.not_safe_rows
        if other.first_offset >= 0:
            known = self.first_offset >= 0
            self.first_offset = min(self.first_offset, other.first_offset) if known else other.first_offset
            self.last_offset = max(self.last_offset, other.last_offset)


class SinkClient:
    """A producer's connections on their own loop. It lives as long as the worker process."""

    def __init__(self, group: str, access: Access, options: ProducerOptions, *, member: bool = True) -> None:
        self.group = group
        self.access = access
        self._member = member
        """Whether brokers see it as a member of its group. They check half messages with any member."""
        self.options = options
        self.loop = LoopThread()
        self.loop.run(self._open())

    async def _open(self) -> None:
        self.instance = ClientInstance(self, self.access.name_servers, self.options, clock=SYSTEM_CLOCK)
        self.sender = Sender(self.instance, self.group, self.options)
        self.instance.start(self._routes())

    def close(self) -> None:
        """Unregisters from the brokers and stops the loop."""
        try:
            self.loop.run(self.instance.stop())
        finally:
            self.loop.close()

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Returns the writable queues of a topic. Raises ``NoRouteError`` or ``NameServerError``."""
        return self.loop.run(self.sender.pick(topic))

    # Interface required by the instance (Member).
    def topics(self) -> set[str]:
        return set()

    def producer_data(self) -> ProducerData | None:
        return ProducerData(group_name=self.group) if self._member else None

    def consumer_data(self) -> ConsumerData | None:
        return None

    def _routes(self) -> list[Route | RawRoute]:
        """Returns handlers for requests from brokers. There are none here."""
        return []


_clients: Final[OrderedDict[tuple[object, ...], SinkClient]] = OrderedDict()
_clients_lock: Final = threading.Lock()


def sink_client(key: tuple[object, ...], make: Callable[[], SinkClient]) -> SinkClient:
    """Returns this process's client for these settings. Shared, because a worker process serves many tasks, and most
    are short."""
    key = (process_id(), *key)
    with _clients_lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = make()
        _clients.move_to_end(key)
        dropped = []
        while len(_clients) > CLIENTS_MAX:
            old, old_client = _clients.popitem(last=False)
            if old[0] == process_id():  # after a fork, the parent's client has no loop here
                dropped.append(old_client)
    for old_client in dropped:
        old_client.close()
    return client


@dataclass(slots=True)
class SendSession:
    """The sends of one task attempt. ``batch`` and ``single`` may wait for room. ``finish`` waits for all sends."""

    client: SinkClient
    timeout_s: float
    in_flight_max: int
    tallies: dict[tuple[str, str, int], QueueTally] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _in_flight: int = 0
    _failure: BaseException | None = None
    _lanes: dict[MessageQueue, asyncio.Lock] = field(default_factory=dict)
    partition: int = 0
    halves: list[Half] = field(default_factory=list)
    """Stored half messages."""
    _turn: int = 0

    def batch(
        self, topic: str, entries: bytes, rows: int, body_bytes: int, queue: MessageQueue | None
    ) -> None:
        """Sends consecutive batch entries. They keep their order if ``queue`` is set."""
        outgoing = Outgoing(
            topic, entries, _BATCH_PROPERTIES, "", code=int(RequestCode.SEND_BATCH_MESSAGE), batch=True
        )
        self._start(outgoing, rows, body_bytes, queue)

    def single(self, topic: str, body: bytes, properties: bytes, queue: MessageQueue | None) -> None:
        """Sends one message that is delayed or too large for a batch."""
        outgoing = Outgoing(topic, body, properties + _BATCH_PROPERTIES, "")
        self._start(outgoing, 1, len(body), queue)

    def store_halves(self, rows: Sequence[HalfRow], topic: str, queue: MessageQueue | None) -> None:
        """Stores rows as half messages, which consumers do not see. The order of half messages does not matter,
        because rows of one queue are ordered when they are committed.

        The first attempt is made here, for all rows together. Rows that fail are retried one by one on the loop.
        """
        with self._changed:
            self._wait_until(lambda: True)  # raises an earlier failure
        sender, master = self.client.sender, self.client.instance.master
        queues = self.client.queues(topic)
        self._turn += 1
        sent: list[tuple[HalfRow, Outgoing, MessageQueue]] = []
        asks: list[Ask] = []
        for number, row in enumerate(rows, self._turn):
            outgoing = _half_message(row, topic)
            target = queue or queues[number % len(queues)]
            try:
                address = master(target.broker_name)
            except OrbitError:  # the retry finds a queue whose broker has a master
                self._retry_half(outgoing, row, queue)
                continue
            sent.append((row, outgoing, target))
            asks.append(Ask(address, outgoing.code, sender.binary_fields(outgoing, target), row.body))
        outcomes = ask_brokers(asks, self.client.access, self.client.options.send_timeout_s)
        for (row, outgoing, target), outcome in zip(sent, outcomes, strict=True):
            try:
                if isinstance(outcome, OrbitError):
                    raise outcome
                self._note_half(row, sender.result(outgoing, target, outcome), placed=queue is not None)
            except OrbitError:
                self._retry_half(outgoing, row, queue)

    def _retry_half(self, outgoing: Outgoing, row: HalfRow, queue: MessageQueue | None) -> None:
        self._begin(len(row.body), lambda weight: self._send_half(outgoing, row, queue, weight))

    def _note_half(self, row: HalfRow, result: SendResult, *, placed: bool) -> None:
        place = result.queue
        log_offset = parse_offset_message_id(result.offset_message_id).log_offset
        half = Half(
            place.topic,
            place.broker_name,
            place.queue_id,
            result.queue_offset,
            log_offset,
            row.key,
            placed,
            self.partition,
            row.number,
        )
        with self._changed:
            self.halves.append(half)
            self._count(msgspec.structs.replace(result, queue_offset=-1), 1, len(row.body))

    def _start(self, outgoing: Outgoing, rows: int, body_bytes: int, queue: MessageQueue | None) -> None:
        size = _WHOLE_BYTES if outgoing.batch else len(outgoing.body)
        self._begin(size, lambda weight: self._send(outgoing, rows, body_bytes, queue, weight))

    def _begin(self, size: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Starts a request as soon as fewer than ``in_flight_max`` batches, or up to 32 times as many single rows,
        are in flight."""
        weight = min(_WHOLE, 1 + size * _WHOLE // _WHOLE_BYTES)
        with self._changed:
            self._wait_until(lambda: self._in_flight + weight <= self.in_flight_max * _WHOLE)
            self._in_flight += weight
        try:
            self.client.loop.submit(work(weight))
        except BaseException:
            self._done(None, weight)
            raise

    def finish(self) -> None:
        """Waits until all rows are stored. Raises the first failure."""
        with self._changed:
            self._wait_until(lambda: self._in_flight == 0)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition, with the lock held. After a failure, waits until nothing is in flight and raises
        it, so that the report of a failed attempt is complete."""
        # Every send has a deadline, so this terminates. Waiting in slices lets a worker be interrupted.
        while not (condition() if self._failure is None else self._in_flight == 0):
            self._changed.wait(_WAIT_SLICE_S)
        if self._failure is not None:
            raise self._failure

    def _done(self, failure: BaseException | None, weight: int) -> None:
        with self._changed:
            self._in_flight -= weight
            self._failure = self._failure or failure
            self._changed.notify_all()

    async def _send_half(
        self, outgoing: Outgoing, row: HalfRow, queue: MessageQueue | None, weight: int
    ) -> None:
        failure: BaseException | None = None
        try:
            result = await self._until_stored(outgoing, queue)
            if result is not None:
                self._note_half(row, result, placed=queue is not None)
        except BaseException as error:
            failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._done(failure, weight)

    async def _send(
        self, outgoing: Outgoing, rows: int, body_bytes: int, queue: MessageQueue | None, weight: int
    ) -> None:
        failure: BaseException | None = None
        try:
            if queue is None:
                result = await self._until_stored(outgoing, None)
            else:
                lane = self._lanes.setdefault(queue, asyncio.Lock())
                async with lane:
                    result = await self._until_stored(outgoing, queue)
            if result is not None:
                self._count(result, rows, body_bytes)
        except BaseException as error:
            failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._done(failure, weight)

    async def _until_stored(self, outgoing: Outgoing, queue: MessageQueue | None) -> SendResult | None:
        """Sends until stored, at most until the deadline. Returns None if another request has failed meanwhile,
        because this one is then pointless."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        sender, book = self.client.sender, self.client.instance.book
        pause_s, failed_broker = _FIRST_PAUSE_S, None
        refused: set[str] = set()
        while self._failure is None:
            target = queue
            queues: Sequence[MessageQueue] = ()
            try:
                queues = await sender.pick(outgoing.topic)
                target = queue or sender.picker.pick(queues, failed_broker)
                left_s = min(deadline - loop.time(), self.client.options.send_timeout_s)
                return await sender.attempt(outgoing, target, max(left_s, 0.001))
            except (BrokerError, ConnectionLostError, RequestTimeoutError, NameServerError) as error:
                if isinstance(error, NoPermission) and target is not None:
                    # Another broker may allow it. The same one will not within the deadline.
                    refused.add(target.broker_name)
                lasting = queue is not None or refused.issuperset(one.broker_name for one in queues)
                if (refused and lasting) or not _worth_another_try(error):
                    if isinstance(error, BrokerError):
                        add_hint(error)
                    raise
                if loop.time() + pause_s >= deadline:
                    raise RequestTimeoutError(
                        f"rows for topic {outgoing.topic} were not stored within {self.timeout_s:g} s "
                        f"(sendTimeoutMs): {error}"
                    ) from error
                failed_broker = None if target is None else target.broker_name
                logger.info("send failed topic=%s broker=%s error=%s", outgoing.topic, failed_broker, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await book.refresh(outgoing.topic)
            except OrbitError as error:
                logger.info("route not refreshed topic=%s error=%s", outgoing.topic, error)
        return None

    def _count(self, result: SendResult, rows: int, body_bytes: int) -> None:
        """Adds stored rows to the totals of their queue. Call it only on the loop, or for half messages only with the
        lock held."""
        queue, first = result.queue, result.queue_offset
        key = (queue.topic, queue.broker_name, queue.queue_id)
        tally = self.tallies.setdefault(key, QueueTally())
        not_safe = 0 if result.status is SendStatus.OK else rows
        last = first + rows - 1 if first >= 0 else -1
        tally.add(QueueTally(rows, body_bytes, first, last, not_safe))


def _half_message(row: HalfRow, topic: str) -> Outgoing:
    properties = row.properties + _BATCH_PROPERTIES
    return Outgoing(topic, row.body, properties, row.key, sys_flag=int(SysFlag.TRANSACTION_PREPARED))


def _worth_another_try(error: OrbitError) -> bool:
    return is_retriable(error) and not isinstance(error, NoRouteError)
