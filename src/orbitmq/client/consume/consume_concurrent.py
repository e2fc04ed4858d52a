"""Many handlers at once (Apache: ``ConsumeMessageConcurrentlyService``).

Chunks wait in one line; up to ``workers`` tasks take them. A coroutine handler that waits for nothing costs no
switch: the worker goes on with the next chunk and lets the loop breathe every few of them. A plain function runs on a
thread; quick ones are handed over several at a time, because each hand-over costs more than such a function.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from orbitmq.client.callables import HANDLING, UserCalls
from orbitmq.client.consume.handlers import SUCCESS, Handler, Outcome
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.message import ReceivedMessage
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["ConcurrentService"]

logger = logging.getLogger(__name__)

_BREATHE_EVERY: Final = 64
_GROUP_MAX: Final = 32
_GROUP_S: Final = 0.005
"""Plain functions are handed to a thread in groups expected to take this long together."""

Chunk = tuple[ProcessQueue, Handler, list[ReceivedMessage]]
Finish = Callable[[ProcessQueue, list[ReceivedMessage]], None]
FinishOther = Callable[[ProcessQueue, list[ReceivedMessage], Outcome], Awaitable[None]]
Wrap = Callable[[list[ReceivedMessage], Callable[[], Awaitable[Outcome]]], Awaitable[Outcome]]


class ConcurrentService:
    """Runs the handlers of one consumer. ``finish`` is told of every chunk exactly once."""

    def __init__(
        self,
        *,
        tasks: TaskOwner,
        calls: UserCalls,
        clock: Clock,
        workers: int,
        finish: Finish,
        finish_other: FinishOther,
        wrap: Wrap | None = None,
    ) -> None:
        self._tasks = tasks
        self._calls = calls
        self._clock = clock
        self._workers = workers
        self._finish = finish
        self._finish_other = finish_other
        self._wrap = wrap
        self._ready: deque[Chunk] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._started = 0
        self._running = 0
        self._stopping = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._finished: list[tuple[ProcessQueue, list[ReceivedMessage]]] = []
        self._settle_planned = False
        self._call_s = _GROUP_S  # expected time of one plain call; starts pessimistic

    @property
    def running(self) -> int:
        """Workers that have something to do."""
        return self._running

    def submit(self, held: ProcessQueue, handler: Handler, messages: list[ReceivedMessage]) -> None:
        """Have messages consumed, in chunks of the handler's batch size."""
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
        if not self._ready:
            return
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        if self._started < self._workers and not self._stopping:
            self._started += 1
            self._tasks.start(self._work(), f"worker-{self._started}")

    async def _work(self) -> None:
        HANDLING.set(self)
        loop = asyncio.get_running_loop()
        ready = self._ready
        while not self._stopping:
            if not ready:
                waiting: asyncio.Future[None] = loop.create_future()
                self._idle.append(waiting)
                await waiting
                continue
            self._running += 1
            self._quiet.clear()
            try:
                await self._work_through(loop)
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
                await self._finish_other(held, messages, outcome)
            turn += 1
            if turn % _BREATHE_EVERY == 0:
                await asyncio.sleep(0)

    def _between(self) -> None:
        """Runs as soon as a handler waits for something or the line is empty: acknowledge, wake another worker."""
        self._settle_planned = False
        self._settle()
        self._wake()

    def _settle(self) -> None:
        """Finish what succeeded, neighbours of one queue together."""
        finished, self._finished = self._finished, []
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

    async def _run_on_thread(
        self, held: ProcessQueue, handler: Handler, messages: list[ReceivedMessage]
    ) -> None:
        group: list[Chunk] = [(held, handler, messages)]
        ready = self._ready
        if self._wrap is None:
            # No more than a fair share, so that slow functions still run side by side.
            share = len(ready) // self._workers
            count = min(_GROUP_MAX - 1, share, int(_GROUP_S / self._call_s))
            while count > 0 and ready and ready[0][1] is handler:
                chunk = ready.popleft()
                if not chunk[0].ending:
                    group.append(chunk)
                    count -= 1
        now_ms = self._clock.now_ms()
        for chunk in group:
            chunk[0].last_consume_ms = now_ms
            for message in chunk[2]:
                message.consume_started_ms = now_ms
        started = self._clock.monotonic()
        if self._wrap is None:
            outcomes = await self._calls.in_thread(_run_group, group)
        else:
            call = partial(self._calls.in_thread, handler.run_blocking, messages)
            outcomes = [await self._wrap(messages, call)]
        took_s = (self._clock.monotonic() - started) / len(group)
        self._call_s = max(1e-6, self._call_s * 0.8 + took_s * 0.2)
        for (queue, _, chunk_messages), outcome in zip(group, outcomes, strict=True):
            if outcome is SUCCESS:
                self._finished.append((queue, chunk_messages))
            else:
                await self._finish_other(queue, chunk_messages, outcome)
        self._settle()

    def begin_stop(self) -> None:
        """Start no more handlers."""
        self._stopping = True
        self._ready.clear()

    async def stop(self, wait_s: float) -> None:
        """Start no more handlers and wait for those at work."""
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
            logger.warning("handlers still run after the stop running=%d", self._running)


def _run_group(group: list[Chunk]) -> list[Outcome]:
    return [handler.run_blocking(messages) for _, handler, messages in group]
