"""Runs one handler per queue at a time, in order (Apache: ``ConsumeMessageOrderlyService``).

Quick plain functions are called on a thread for several messages of a queue in a row (``grouping.py``). The thread
makes no further call after one that did not succeed, or when the queue is being released, the consumer stops, or the
group has taken too long. Messages that it has not begun return to the front of the queue. So order, locks and retries
are the same as with single calls, and offsets are committed at least every 20 ms between calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from orbitmq.client.callables import HANDLING
from orbitmq.client.consume.grouping import CUT_S, CallTime
from orbitmq.client.consume.handler_table import HandlerTable
from orbitmq.client.consume.handlers import SUCCESS, Handler, HandlerPool, Outcome
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.queue_locks import QueueLocks
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import PushOptions
from orbitmq.model.delay_levels import DelayLevels

__all__ = ["OrderlyService"]

logger = logging.getLogger(__name__)

LOCK_RETRY_S: Final = 0.1
LEVEL_LIMITS_S: Final = (0.01, 30.0)
_LEVELS: Final = DelayLevels()


class Settler(Protocol):
    """Settles messages after their handler has run."""

    def commit(self, held: ProcessQueue, offset: int | None = None) -> None:
        """Commit the messages taken from a queue. Messages from ``offset`` on are not committed."""

    async def give_up(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Dead-letter a message. Returns False if that failed."""

    def log_failure(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """Log the failure of a handler."""

    async def answer(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """Send the reply that a request handler returned."""


class OrderlyService:
    """Runs one handler per queue at a time, and at most ``workers`` handlers in total."""

    def __init__(
        self,
        pool: HandlerPool,
        settler: Settler,
        handlers: HandlerTable,
        options: PushOptions,
        locks: QueueLocks | None,
    ) -> None:
        """Pass ``locks`` if queues must be locked in their broker."""
        self._tasks = pool.tasks
        self._calls = pool.threads
        self._clock = pool.clock
        self._wrap = pool.wrap
        self._settler = settler
        self._handlers = handlers
        self._slots = asyncio.Semaphore(options.workers)
        self._suspend_s = options.suspend_queue_s
        self._reconsume_max = options.reconsume_max
        self._locks = locks
        self._call_time = CallTime()
        self._running = 0
        self._left_on_threads = 0
        self._stopping = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.progressed = 0.0
        """When a handler last finished, or began while no other ran (monotonic seconds)."""

    @property
    def running(self) -> int:
        """The number of handlers that are running."""
        return self._running + self._left_on_threads

    def submit(self, held: ProcessQueue) -> None:
        """Start consuming a queue that has messages, unless that is already running."""
        if not held.runner_active and not self._stopping and held.messages:
            held.runner_active = True
            self._tasks.start(self._run(held), f"orderly-{held.queue.queue_id}")

    async def _run(self, held: ProcessQueue) -> None:
        HANDLING.set(self)
        try:
            while held.messages and not held.ending and not self._stopping:
                if self._locks is not None and not held.lock_valid(self._clock.now_ms()):
                    if not await self._locks.renew(held):
                        await asyncio.sleep(LOCK_RETRY_S)
                    continue
                async with self._slots:
                    pause_s = await self._consume(held)
                if pause_s:
                    await asyncio.sleep(pause_s)
        finally:
            held.runner_active = False

    async def _consume(self, held: ProcessQueue) -> float:
        """Call the handler once, or for a group of messages. Returns how many seconds to pause before the next
        call."""
        first = held.first()
        if first is None or held.ending or self._stopping:
            return 0.0
        handler = self._handlers.of_message(first)
        if not self._running:
            self.progressed = self._clock.monotonic()
        self._running += 1
        self._quiet.clear()
        try:
            outcome: Outcome | None
            if handler.is_async or self._wrap is not None:
                messages, outcome = await self._call(held, handler)
            else:
                messages, outcome = await self._call_group(held, handler)
            self.progressed = self._clock.monotonic()
            if outcome is None:
                return 0.0
            if outcome.reply is not None:
                await self._settler.answer(messages, outcome)
            if outcome is SUCCESS or outcome.done < 0:
                self._settler.commit(held)
                return 0.0
            self._settler.log_failure(messages, outcome)
            return await self.again(held, messages, outcome)
        except asyncio.CancelledError:
            self._left_on_threads += not handler.is_async  # cancelled at the stop; a thread cannot be
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._quiet.set()

    async def _call(self, held: ProcessQueue, handler: Handler) -> tuple[list[ReceivedMessage], Outcome]:
        """Call the handler once, between its hooks."""
        messages = held.take(handler.batch_size)
        self._note_start(held, messages)
        call: Callable[[], Awaitable[Outcome]]
        if handler.is_async:
            call = partial(handler.run, messages, self._tasks)
        else:
            call = partial(self._calls.in_thread, handler.run_blocking, messages)
        return messages, await (call() if self._wrap is None else self._wrap(messages, call))

    async def _call_group(
        self, held: ProcessQueue, handler: Handler
    ) -> tuple[list[ReceivedMessage], Outcome | None]:
        """Call the handler several times in a row on one thread. Returns the messages and the outcome of the last
        call; all calls before it succeeded."""
        size, handler_of = self._call_time.group_size, self._handlers.of_message
        chunks = [held.take(handler.batch_size)]
        while len(chunks) < size and (following := held.first()) is not None:
            if handler_of(following) is not handler:
                break
            chunks.append(held.take(handler.batch_size))
        for messages in chunks:
            self._note_start(held, messages)
        row = _Row(self, held, handler, chunks)
        cut = asyncio.get_running_loop().call_later(CUT_S, self._cut, row)
        try:
            await self._calls.in_thread(row.run)
        finally:
            cut.cancel()
        self._call_time.note(row.took_s, row.done)
        rest = [message for messages in chunks[row.done :] for message in messages]
        for message in rest:
            message.consume_started_ms = 0
        # If a seek has cleared the queue meanwhile, its former messages are not put back.
        held.put_back([message for message in rest if message.queue_offset in held.consuming])
        return (chunks[row.done - 1], row.outcome) if row.done else ([], None)

    def _cut(self, row: _Row) -> None:
        row.cut = True
        self._call_time.note_cut()

    def _note_start(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        now_ms = self._clock.now_ms()
        held.last_consume_ms = now_ms
        for message in messages:
            message.consume_started_ms = now_ms

    async def again(self, held: ProcessQueue, messages: list[ReceivedMessage], outcome: Outcome) -> float:
        """Put failed messages back at the front of the queue, except those that reached the retry limit. Returns how
        many seconds to pause."""
        done = outcome.done
        kept: list[ReceivedMessage] = []
        for message in messages[done:]:
            given_up = False
            if message.reconsume_times >= self._reconsume_max >= 0 or outcome.delay_level < 0:
                given_up = await self._settler.give_up(message, outcome)
            if not given_up:
                message.reconsume_times += 1
                kept.append(message)
        if not kept:
            self._settler.commit(held)
            return 0.0
        if held.dropped:
            return 0.0
        held.put_back(kept)
        # Finished messages leave memory; the stored offset stops before the first one kept.
        self._settler.commit(held, kept[0].queue_offset)
        if outcome.delay_level > 0:
            return min(LEVEL_LIMITS_S[1], _LEVELS.delay_ms(outcome.delay_level) / 1000)
        return self._suspend_s

    def begin_stop(self) -> None:
        """Start no more handlers."""
        self._stopping = True

    async def stop(self, wait_s: float) -> None:
        """Start no more handlers, and wait up to ``wait_s`` for running ones."""
        self.begin_stop()
        try:
            async with asyncio.timeout(wait_s):
                await self._quiet.wait()
        except TimeoutError:
            logger.warning("handlers outlived the stop, coroutines are cancelled running=%d", self._running)


class _Row:
    """Consecutive messages of one queue, to be handled on one thread."""

    __slots__ = ("_chunks", "_handler", "_held", "_service", "cut", "done", "outcome", "took_s")

    def __init__(
        self,
        service: OrderlyService,
        held: ProcessQueue,
        handler: Handler,
        chunks: list[list[ReceivedMessage]],
    ) -> None:
        self._service = service
        self._held = held
        self._handler = handler
        self._chunks = chunks
        self.cut = False
        """Set by the loop: begin no further call."""
        self.done = 0
        """Calls that were made."""
        self.outcome: Outcome | None = None
        """Of the last call."""
        self.took_s = 0.0

    def run(self) -> None:
        """Call the handler for each chunk until one fails or the run is stopped."""
        service, held, run = self._service, self._held, self._handler.run_blocking
        clock = service._clock
        started = clock.monotonic()
        for messages in self._chunks:
            if self.cut or held.ending or service._stopping:
                break
            self.outcome = outcome = run(messages)
            self.done += 1
            if outcome is not SUCCESS:
                break
        self.took_s = clock.monotonic() - started
