"""The part of a queue that a consumer holds in memory (Apache: ``ProcessQueue``).

Offsets arrive in ascending order, so a deque of them with a table next to it serves as the sorted map: the oldest
unfinished offset is found by dropping finished ones from the left, once each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from orbitmq.client.message import ReceivedMessage
from orbitmq.model.route import MessageQueue

__all__ = ["LOCK_EXPIRY_MS", "PULL_EXPIRY_MS", "ProcessQueue"]

LOCK_EXPIRY_MS: Final = 30_000
PULL_EXPIRY_MS: Final = 120_000


class ProcessQueue:
    """Messages of a queue that were pulled and are not finished, and the queue's offsets. Owned by one event loop."""

    __slots__ = (
        "_order",
        "_room",
        "answered",
        "bytes_max",
        "consuming",
        "count_max",
        "dropped",
        "ending",
        "last_consume_ms",
        "last_lock_ms",
        "last_pull_ms",
        "locked",
        "max_offset",
        "messages",
        "next_offset",
        "offset_is_set",
        "paused",
        "queue",
        "restarting",
        "runner_active",
        "size",
        "span_max",
        "suspended_until",
        "waiting",
    )

    def __init__(
        self, queue: MessageQueue, next_offset: int, *, count_max: int, bytes_max: int, span_max: int = 0
    ) -> None:
        self.queue = queue
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.offset_is_set = True
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.span_max = span_max
        self.dropped = False
        """No longer ours: nothing of it may be committed."""
        self.ending = False
        """Being released: no handler is started, but running handlers may still commit."""
        self.answered = False
        """A pull of it has succeeded."""
        self.restarting = False
        """Its topic was deleted: the rebalance reads the queue again from its beginning."""
        self.paused = False
        self.waiting = False
        """Deliberately not pulled: the cache is full, or the queue is paused."""
        self.suspended_until = 0.0
        """Orderly and iterated: when the failed message at its front is due again."""
        self.locked = False
        self.last_lock_ms = 0
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self.messages: dict[int, ReceivedMessage] = {}
        self.consuming: dict[int, ReceivedMessage] = {}
        """Orderly: messages taken and not yet committed."""
        self.max_offset = -1
        self.size = 0
        self.runner_active = False
        """Orderly: a handler is running."""
        self._order: deque[int] = deque()
        self._room: asyncio.Future[None] | None = None

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        """Add pulled messages, in the order of their offsets."""
        table, order = self.messages, self._order
        size = 0
        for message in messages:
            record = message.record
            offset = record.queue_offset
            if offset not in table:
                order.append(offset)
                size += len(record.body)
            table[offset] = message
            self.max_offset = offset
        self.size += size

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        """Finish messages. Returns the offset up to which all messages are finished, or -1 if there were none."""
        table = self.messages
        if not table:
            return -1
        for message in messages:
            record = message.record
            if table.pop(record.queue_offset, None) is not None:
                self.size -= len(record.body)
        if self._room is not None and not self.full:
            self._wake()
        return self.first_offset()

    def first_offset(self) -> int:
        """Returns the oldest unfinished offset, or the one after the newest message if all are finished."""
        order, table = self._order, self.messages
        while order and order[0] not in table:
            order.popleft()
        return order[0] if order else self.max_offset + 1

    def first(self) -> ReceivedMessage | None:
        """Returns the oldest unfinished message; None if all are finished."""
        self.first_offset()
        return self.messages[self._order[0]] if self._order else None

    def holds(self, message: ReceivedMessage) -> bool:
        return self.messages.get(message.queue_offset) is message

    @property
    def count(self) -> int:
        return len(self.messages) + len(self.consuming)

    @property
    def span(self) -> int:
        return self.max_offset - self.first_offset() if self.messages else 0

    @property
    def full(self) -> bool:
        """Whether too much is cached to pull more: too many messages or bytes, or too wide a span of offsets."""
        return (
            len(self.messages) + len(self.consuming) > self.count_max
            or self.size > self.bytes_max
            or (self.span_max > 0 and self.span > self.span_max)
        )

    async def wait_for_room(self) -> None:
        """Wait until enough messages are finished. Returns immediately if the queue is dropped."""
        if self.dropped or self.ending or not self.full:
            return
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        self.waiting = True
        try:
            await self._room
        finally:
            self.waiting = False

    def end(self) -> None:
        """Start no more handlers, and wake the loop that waits for room."""
        self.ending = True
        self._wake()

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def drop(self) -> None:
        """Mark the queue as no longer ours, and wake the loop that waits for room."""
        self.dropped = True
        self.end()

    def restart(self) -> None:
        """Drop the queue because its topic was deleted. Its offsets have no meaning in a new topic of the same
        name."""
        self.restarting = True
        self.drop()

    def clear(self) -> None:
        """Discard all messages."""
        self.messages.clear()
        self.consuming.clear()
        self._order.clear()
        self.size = 0
        self._wake()

    # -- one at a time, in order -----------------------------------------------------------------------

    def take(self, count: int) -> list[ReceivedMessage]:
        """Returns the next messages to consume. They stay in memory until ``commit`` or ``put_back``."""
        taken: list[ReceivedMessage] = []
        while len(taken) < count and self.messages:
            offset = self.first_offset()
            self._order.popleft()
            message = self.messages.pop(offset)
            self.consuming[offset] = message
            taken.append(message)
        return taken

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        """Put messages back, as the next ones to consume."""
        for message in reversed(messages):
            offset = message.queue_offset
            self.consuming.pop(offset, None)
            if offset not in self.messages:
                self._order.appendleft(offset)
            self.messages[offset] = message

    def commit(self) -> int:
        """Finish the messages that were taken. Returns the next offset to consume, or -1 if none were taken."""
        if not self.consuming:
            return -1
        last = max(self.consuming)
        for message in self.consuming.values():
            self.size -= len(message.record.body)
        self.consuming.clear()
        if self._room is not None and not self.full:
            self._wake()
        return last + 1

    def lock_valid(self, now_ms: int) -> bool:
        """Whether the broker still holds our lock of the queue."""
        return self.locked and now_ms - self.last_lock_ms <= LOCK_EXPIRY_MS
