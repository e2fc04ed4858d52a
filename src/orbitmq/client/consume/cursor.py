"""``async for message in consumer``: holds messages until readers take them, and finishes them.

Invariants
1. Queues take turns, so none starves however full another one is.
2. A message is finished once: by ``ack``, ``retry``, ``dead_letter``, or because its reader moved on. A reader moves
   on when it asks for the next message, when an iteration starts after it left its loop, or when the consumer's
   ``async with`` block ends without an exception.
3. At most one message of an orderly queue is with a reader, and none without the lock.
4. Nothing waits inside a worker: a reader that never comes back holds only its own message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.message import ReceivedMessage

__all__ = ["Cursor", "Inbox"]

Take = Callable[[ProcessQueue, ReceivedMessage], None]
Acknowledge = Callable[[ProcessQueue, ReceivedMessage], None]
GiveBack = Callable[[ProcessQueue, ReceivedMessage, int, str], Awaitable[None]]
Relock = Callable[[ProcessQueue], Awaitable[bool]]


class _Out:
    """A message that was given to a reader."""

    __slots__ = ("auto", "held", "inbox", "left", "message")

    def __init__(self, inbox: Inbox, held: ProcessQueue, message: ReceivedMessage) -> None:
        self.inbox = inbox
        self.held = held
        self.message: ReceivedMessage | None = message
        self.auto = False
        """Finished when its reader moves on."""
        self.left = False
        """Its reader left without finishing it."""

    def acknowledge_now(self) -> None:
        message, self.message = self.message, None
        if message is not None:
            message._delivery = None
            self.inbox.finished(self)
            self.inbox.acknowledge(self.held, message)

    async def acknowledge(self, message: ReceivedMessage) -> None:
        self.acknowledge_now()

    async def give_back(self, message: ReceivedMessage, delay_level: int, reason: str) -> None:
        self.message, message._delivery = None, None
        self.inbox.finished(self)
        await self.inbox.give_back(self.held, message, delay_level, reason)


class Inbox:
    """Messages of one consumer that wait for readers. Owned by the consumer's event loop."""

    def __init__(
        self,
        *,
        take: Take,
        acknowledge: Acknowledge,
        give_back: GiveBack,
        orderly: bool,
        relock: Relock | None,
        now: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        """Pass ``relock`` for an orderly consumer that needs locks."""
        self._orderly = orderly
        self._take = take
        self.acknowledge = acknowledge
        self.give_back = give_back
        self._relock = relock
        self._now = now
        self._now_ms = now_ms
        self._lines: deque[tuple[ProcessQueue, deque[ReceivedMessage]]] = deque()
        self._out: set[_Out] = set()
        self._changed = asyncio.Event()
        self.closed = False

    def put(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Add messages. Messages of an orderly queue stay in the process queue until a reader takes one."""
        for other, line in self._lines:
            if other is held:
                line.extend(messages)
                break
        else:
            self._lines.append((held, deque(messages)))
        self._changed.set()

    def wake(self) -> None:
        """Wake waiting readers, because something changed."""
        self._changed.set()

    def finished(self, out: _Out) -> None:
        self._out.discard(out)
        self._changed.set()

    def acknowledge_left(self, *, at_end: bool = False) -> None:
        """Finish the messages of readers that left their loops, or those of all readers if the consumer's block ended
        without an exception."""
        for out in [out for out in self._out if out.left or (at_end and out.auto)]:
            out.acknowledge_now()

    def close(self) -> None:
        """Accept no more messages, and end the waiting readers."""
        self.closed = True
        self._lines.clear()
        self._changed.set()

    async def next(self) -> _Out | None:
        """Wait for the next message. Returns None when the consumer has stopped."""
        while not self.closed:
            out, wait_s = self._pop()
            if out is not None:
                return out
            if await self._lock_some():
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return None

    def _pop(self) -> tuple[_Out | None, float | None]:
        """Returns the next message in turn. If there is none, returns how many seconds to wait at most for a
        suspended queue."""
        wait_s: float | None = None
        lines = self._lines
        for _ in range(len(lines)):
            held, line = lines.popleft()
            if held.dropped:
                continue
            if held.ending:
                lines.append((held, line))
                continue
            if self._orderly:
                message, wait_s = self._pop_orderly(held, line, wait_s)
            else:
                message = line.popleft() if line else None
            if line or held.messages:
                lines.append((held, line))
            if message is not None:
                out = _Out(self, held, message)
                message._delivery = out
                message.consume_started_ms = held.last_consume_ms = self._now_ms()
                self._out.add(out)
                self._take(held, message)
                return out, None
        return None, wait_s

    def _pop_orderly(
        self, held: ProcessQueue, line: deque[ReceivedMessage], wait_s: float | None
    ) -> tuple[ReceivedMessage | None, float | None]:
        line.clear()  # the process queue has them, in order
        if held.consuming:
            return None, wait_s
        left_s = held.suspended_until - self._now()
        if left_s > 0:
            return None, left_s if wait_s is None else min(wait_s, left_s)
        if self._relock is not None and not held.lock_valid(self._now_ms()):
            return None, min(0.1, wait_s or 0.1)
        taken = held.take(1)
        return (taken[0] if taken else None), wait_s

    async def _lock_some(self) -> bool:
        """Lock the queues that wait for their lock. Returns whether any is locked now."""
        if self._relock is None:
            return False
        got = False
        for held, _ in list(self._lines):
            if held.messages and not held.ending and not held.lock_valid(self._now_ms()):
                got |= await self._relock(held)
        return got


class Cursor:
    """An asynchronous iterator over the messages of a consumer.

    With ``auto_ack``, requesting the next message finishes the previous one, unless the caller has already finished
    it.
    """

    def __init__(self, inbox: Inbox, auto_ack: bool) -> None:
        self._inbox = inbox
        self._auto_ack = auto_ack
        self._current: _Out | None = None
        inbox.acknowledge_left()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._current is not None:
            self._current.acknowledge_now()
            self._current = None
        out = await self._inbox.next()
        if out is None:
            raise StopAsyncIteration
        if self._auto_ack:
            self._current = out
            out.auto = True
        assert out.message is not None
        return out.message

    async def aclose(self) -> None:
        """Leave the loop. Its last message is finished by the next iteration or at the end of the block."""
        self._leave()

    def _leave(self) -> None:
        if self._current is not None:
            self._current.left = True
            self._current = None

    def __del__(self) -> None:
        self._leave()
