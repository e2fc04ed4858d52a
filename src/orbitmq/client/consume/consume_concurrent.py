"""Runs many handlers concurrently (Apache: ``ConsumeMessageConcurrentlyService``).

Chunks of messages wait in one queue, and up to ``workers`` tasks take them. A coroutine handler that never waits
causes no task switch: the worker continues with the next chunk and yields to the loop every few chunks.

A plain function runs on a thread. Quick functions run in groups (``grouping.py``): threads that only compute take
turns anyway, so a few threads get a group each. Slow functions run in parallel on all workers. If a group takes
longer than expected, the chunks that its thread has not begun return to the queue for other workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Final, Protocol

from orbitmq.client.callables import HANDLING
from orbitmq.client.consume.grouping import CUT_S, CallTime
from orbitmq.client.consume.handlers import SUCCESS, Handler, HandlerPool, Outcome
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.message import ReceivedMessage
from orbitmq.runtime.clock import Clock

__all__ = ["LOCAL_RETRY_S", "ConcurrentService"]

logger = logging.getLogger(__name__)

LOCAL_RETRY_S: Final = 5.0
"""Delay before a message is handled again that no broker took back."""
_BREATHE_EVERY: Final = 64
_QUICK_THREADS: Final = 2
"""So that the next group is ready when one ends. More threads would only wait for the interpreter lock."""

Chunk = tuple[ProcessQueue, Handler, list[ReceivedMessage]]


class Settler(Protocol):
    """Settles messages after their handler has run."""

    def finish(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Finish messages whose handler succeeded."""

    async def finish_other(
        self, held: ProcessQueue, messages: list[ReceivedMessage], outcome: Outcome
    ) -> list[ReceivedMessage]:
        """Settle messages whose handler did not succeed for all of them. Returns the messages that must be handled
        again here."""


class ConcurrentService:
    """Runs the handlers of one consumer. Every chunk is passed to the settler exactly once."""

    def __init__(self, pool: HandlerPool, settler: Settler, workers: int) -> None:
        self._tasks = pool.tasks
        self._calls = pool.threads
        self._clock = pool.clock
        self._wrap = pool.wrap
        self._finish = settler.finish
        self._settler = settler
        self._workers = workers
        self._ready: deque[Chunk] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._started = 0
        self._running = 0
        self._left_on_threads = 0
        self._stopping = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._finished: list[tuple[ProcessQueue, list[ReceivedMessage]]] = []
        self._settle_planned = False
        self._call_time = CallTime()
        self._groups = 0
        self.progressed = 0.0
        """When a handler last finished, or began while no other ran (monotonic seconds)."""

    @property
    def running(self) -> int:
        """The number of busy workers."""
        return self._running + self._left_on_threads

    def submit(self, held: ProcessQueue, handler: Handler, messages: list[ReceivedMessage]) -> None:
        """Queue messages for the handler, in chunks of the handler's batch size."""
        if self._stopping:
            return
        size = handler.batch_size
        ready = self._ready
        if size == 1:
            for message in messages:
                ready.append((held, handler, [message]))
        else:
            for start in range(0, len(messages), size):
                ready.append((held, handler, messages[start : start + size]))
        self._wake()

    def _wake(self) -> None:
        if not self._ready or self._threads_suffice:
            return
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        if self._started < self._workers and not self._stopping:
            self._started += 1
            self._tasks.start(self._work(), f"worker-{self._started}")

    @property
    def _threads_suffice(self) -> bool:
        """Whether to leave the next chunk to threads that are already busy."""
        return (
            self._groups >= _QUICK_THREADS
            and self._call_time.quick
            and bool(self._ready)
            and not self._ready[0][1].is_async
        )

    async def _work(self) -> None:
        HANDLING.set(self)
        loop = asyncio.get_running_loop()
        ready = self._ready
        while not self._stopping:
            if not ready or self._threads_suffice:
                waiting: asyncio.Future[None] = loop.create_future()
                self._idle.append(waiting)
                await waiting
                continue
            if not self._running:
                self.progressed = self._clock.monotonic()
            self._running += 1
            self._quiet.clear()
            try:
                await self._work_through(loop)
            except (
                Exception
            ):  # not of a handler, whose errors are outcomes: the message is sent back when it expires
                logger.exception("worker failed and continues")
            finally:
                self._running -= 1
                if not self._running:
                    self._settle()
                    self._quiet.set()

    async def _work_through(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take chunks until none is left. Hot path: one turn per message."""
        ready = self._ready
        now_ms = self._clock.now_ms
        turn = 0
        while ready and not self._stopping:
            held, handler, messages = ready.popleft()
            if held.ending:
                continue
            if not self._settle_planned:
                self._settle_planned = True
                loop.call_soon(self._between)
            if not handler.is_async:
                await self._run_on_thread(held, handler, messages)
                continue
            held.last_consume_ms = started_ms = now_ms()
            for message in messages:
                message.consume_started_ms = started_ms
            if self._wrap is None:
                outcome = await handler.run(messages, self._tasks)
            else:
                outcome = await self._wrap(messages, partial(handler.run, messages, self._tasks))
            if outcome is SUCCESS:
                self._finished.append((held, messages))
            else:
                await self._finish_other(held, handler, messages, outcome)
            turn += 1
            if turn % _BREATHE_EVERY == 0:
                await asyncio.sleep(0)

    def _between(self) -> None:
        """Acknowledge finished messages and wake another worker. Runs as soon as a handler waits or the queue is
        empty."""
        self._settle_planned = False
        self._settle()
        self._wake()

    def _settle(self) -> None:
        """Finish the successful messages. Adjacent messages of one queue are finished together."""
        finished, self._finished = self._finished, []
        if finished:
            self.progressed = self._clock.monotonic()
        last: ProcessQueue | None = None
        bucket: list[ReceivedMessage] = []
        for held, messages in finished:
            if held is not last:
                if last is not None:
                    self._finish(last, bucket)
                last, bucket = held, []
            bucket += messages
        if last is not None:
            self._finish(last, bucket)

    async def _finish_other(
        self, held: ProcessQueue, handler: Handler, messages: list[ReceivedMessage], outcome: Outcome
    ) -> None:
        self.progressed = self._clock.monotonic()
        again = await self._settler.finish_other(held, messages, outcome)
        if again and not held.ending:
            self._tasks.start(self._submit_again(held, handler, again), "consume-again")

    async def _submit_again(
        self, held: ProcessQueue, handler: Handler, messages: list[ReceivedMessage]
    ) -> None:
        await asyncio.sleep(LOCAL_RETRY_S)
        if not held.ending:
            for message in messages:
                self.submit(held, handler, [message])

    async def _run_on_thread(
        self, held: ProcessQueue, handler: Handler, messages: list[ReceivedMessage]
    ) -> None:
        try:
            await self._on_thread(held, handler, messages)
        except asyncio.CancelledError:
            self._left_on_threads += 1  # cancelled at the stop; the thread cannot be
            raise

    async def _on_thread(self, held: ProcessQueue, handler: Handler, messages: list[ReceivedMessage]) -> None:
        if self._wrap is not None:
            self._begin_chunk(held, messages, self._clock.now_ms())
            call = partial(self._calls.in_thread, handler.run_blocking, messages)
            outcome = await self._wrap(messages, call)
            if outcome is SUCCESS:
                self._finished.append((held, messages))
            else:
                await self._finish_other(held, handler, messages, outcome)
            self._settle()
            return
        group = self._gather((held, handler, messages))
        cut = asyncio.get_running_loop().call_later(CUT_S, self._cut, group)
        self._groups += 1
        try:
            await self._calls.in_thread(group.run)
        finally:
            self._groups -= 1
            cut.cancel()
        self._call_time.note(group.took_s, len(group.done))
        for (queue, called, chunk_messages), outcome in group.done:
            if outcome is SUCCESS:  # hot path: no coroutine for a message
                self._finished.append((queue, chunk_messages))
            else:
                await self._finish_other(queue, called, chunk_messages, outcome)
        self._settle()

    def _gather(self, first: Chunk) -> _Group:
        """Returns the group of chunks, beginning with ``first``, that one thread should handle."""
        ready, handler = self._ready, first[1]
        chunks = [first]
        count = self._call_time.group_size - 1
        if not self._call_time.quick:
            count = min(count, len(ready) // self._workers)  # a fair share: slow functions run side by side
        while count > 0 and ready and ready[0][1] is handler:
            chunk = ready.popleft()
            if not chunk[0].ending:
                chunks.append(chunk)
                count -= 1
        now_ms = self._clock.now_ms()
        for queue, _, messages in chunks:
            self._begin_chunk(queue, messages, now_ms)
        return _Group(chunks, self._clock)

    def _cut(self, group: _Group) -> None:
        """Return the chunks that a group has not begun to the queue, because one of its calls takes longer than
        expected."""
        rest = group.take_back()
        self._call_time.note_cut()
        if rest and not self._stopping:
            for _, _, messages in rest:
                for message in messages:
                    message.consume_started_ms = 0
            self._ready.extendleft(reversed(rest))
        self._wake()

    @staticmethod
    def _begin_chunk(held: ProcessQueue, messages: list[ReceivedMessage], now_ms: int) -> None:
        held.last_consume_ms = now_ms
        for message in messages:
            message.consume_started_ms = now_ms

    def begin_stop(self) -> None:
        """Start no more handlers."""
        self._stopping = True
        self._ready.clear()

    async def stop(self, wait_s: float) -> None:
        """Start no more handlers, and wait up to ``wait_s`` for running ones."""
        self.begin_stop()
        for waiting in self._idle:
            if not waiting.done():
                waiting.set_result(None)
        self._idle.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._quiet.wait()
        except TimeoutError:
            self._settle()
            logger.warning("handlers outlived the stop, coroutines are cancelled running=%d", self._running)


class _Group:
    """Chunks for one thread. The loop's thread calls ``take_back`` while the worker thread runs; both take from the
    same deque, which is thread-safe."""

    __slots__ = ("_clock", "_waiting", "done", "took_s")

    def __init__(self, chunks: list[Chunk], clock: Clock) -> None:
        self._waiting = deque(chunks)
        self._clock = clock
        self.done: list[tuple[Chunk, Outcome]] = []
        self.took_s = 0.0

    def run(self) -> None:
        """Call the handlers of the chunks, one after another."""
        started = self._clock.monotonic()
        take, note = self._waiting.popleft, self.done.append
        while True:
            try:
                chunk = take()
            except IndexError:
                break
            note((chunk, chunk[1].run_blocking(chunk[2])))
        self.took_s = self._clock.monotonic() - started

    def take_back(self) -> list[Chunk]:
        """Take back and return the chunks that the thread has not begun."""
        rest: list[Chunk] = []
        while self._waiting:
            try:
                rest.append(self._waiting.popleft())
            except IndexError:  # the thread was faster
                break
        return rest
