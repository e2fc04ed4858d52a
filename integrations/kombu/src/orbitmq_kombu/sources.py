"""The sources of messages: a queue shared by a group, or an exchange that every reader reads in full.

Both live on the loop's thread. Received messages wait in ``ready``, from which kombu's thread takes them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from typing import Any, Final

from orbitmq import LitePullConsumer, OrbitError, PoppedMessage, ReceivedMessage, SimpleConsumer
from orbitmq.sync import LoopThread

__all__ = ["Arrivals", "Broadcast", "SharedQueue"]

logger = logging.getLogger(__name__)

_RECEIVE_S: Final = 15.0
_AFTER_ERROR_S: Final = 1.0
_COUNT_MAX: Final = 16
_BROADCAST_MAX: Final = 10_000


class Arrivals:
    """Set by the loop's thread when something arrives. kombu's thread waits for it, or a hub watches its
    descriptor.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._pipe: tuple[int, int] | None = None

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when something arrives."""
        if self._pipe is None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
        return self._pipe[0]

    def set(self) -> None:
        self._event.set()
        if self._pipe is not None:
            try:
                os.write(self._pipe[1], b"1")
            except BlockingIOError:  # full: it is readable anyway
                pass

    def clear(self) -> None:
        self._event.clear()
        if self._pipe is not None:
            try:
                while os.read(self._pipe[0], 4096):
                    pass
            except BlockingIOError:  # empty
                pass

    def wait(self, timeout_s: float) -> None:
        self._event.wait(timeout_s)

    def close(self) -> None:
        """Call it after the loop's thread has ended."""
        pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)


class SharedQueue:
    """A topic whose messages the readers share. A received message is leased, and the lease is renewed until the
    message is finished, so it is redelivered only if this process dies.
    """

    def __init__(
        self, loop: LoopThread, topic: str, consumer: SimpleConsumer, lease_s: float, arrived: Arrivals
    ) -> None:
        self._loop = loop
        self._topic = topic
        consumer.subscribe(topic)
        self._consumer = consumer
        self._lease_s = lease_s
        self._arrived = arrived
        self.ready: deque[PoppedMessage] = deque()
        self._held: dict[str, PoppedMessage] = {}
        self._receiving: Any = None
        loop.run(consumer.start())
        self._renewing = loop.submit(self._renew())

    def ask(self, count: int) -> None:
        """Receives up to ``count`` messages in the background, unless a receive is already in progress."""
        if self._receiving is None or self._receiving.done():
            self._receiving = self._loop.submit(self._receive(max(1, min(count, _COUNT_MAX)), _RECEIVE_S))
            # Not inside the coroutine: a reader woken there would find a receive in progress, not ask for more, and
            # sleep.
            self._receiving.add_done_callback(lambda _: self._arrived.set())

    def receive_now(self, count: int) -> None:
        """Receives the available messages, without waiting for more."""
        self._loop.run(self._receive(max(1, min(count, _COUNT_MAX)), 0.0))

    async def _receive(self, count: int, wait_s: float) -> None:
        try:
            messages = await self._consumer.receive(count, invisible_s=self._lease_s, wait_s=wait_s)
        except OrbitError as error:
            logger.warning("receive failed error=%s", error)
            await asyncio.sleep(min(wait_s, _AFTER_ERROR_S))
            return
        for message in messages:
            self._held[message.message_id] = message
            self.ready.append(message)
        self._arrived.set()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            for key, message in list(self._held.items()):
                if self._held.get(key) is message:
                    try:
                        await self._consumer.change_invisible(message, self._lease_s)
                    except OrbitError as error:
                        logger.warning("lease not renewed id=%s error=%s", key, error)

    def acknowledge(self, message: PoppedMessage) -> None:
        """Marks a message as finished."""
        self._held.pop(message.message_id, None)
        self._loop.run(self._consumer.ack(message))

    def give_back(self, message: PoppedMessage) -> None:
        """Releases a message, so that another reader can receive it immediately."""
        self._held.pop(message.message_id, None)
        self._loop.run(self._consumer.change_invisible(message, 0))

    def size(self) -> int:
        """Returns the number of unfinished messages."""
        return self._loop.run(self._size())

    async def _size(self) -> int:
        consumer, total = self._consumer, 0
        for queue in await consumer.fetch_queues(self._topic):
            first = max(await consumer.committed(queue), await consumer.min_offset(queue))
            total += max(0, await consumer.max_offset(queue) - first)
        return total

    def close(self) -> None:
        """Releases the messages that were not taken."""
        for future in (self._receiving, self._renewing):
            if future is not None:
                future.cancel()
        while self.ready:
            self.give_back(self.ready.popleft())
        self._loop.run(self._consumer.stop())


class Broadcast:
    """A topic read in full, starting at its end; nothing is acknowledged."""

    def __init__(self, loop: LoopThread, topic: str, consumer: LitePullConsumer, arrived: Arrivals) -> None:
        self._loop = loop
        self._topic = topic
        self._consumer = consumer
        self._arrived = arrived
        self.ready: deque[ReceivedMessage] = deque()
        loop.run(self._start())
        self._reading = loop.submit(self._read())

    async def _start(self) -> None:
        await self._consumer.start()
        queues = await self._consumer.fetch_queues(self._topic)
        await self._consumer.assign(queues)
        for queue in queues:
            await self._consumer.seek_to_end(queue)

    async def _read(self) -> None:
        while True:
            for message in await self._consumer.poll(_RECEIVE_S):
                if len(self.ready) >= _BROADCAST_MAX:  # no reader: drop the oldest
                    self.ready.popleft()
                self.ready.append(message)
            self._arrived.set()

    def close(self) -> None:
        self._reading.cancel()
        self._loop.run(self._consumer.stop())
