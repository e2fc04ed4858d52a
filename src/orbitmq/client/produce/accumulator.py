"""Lets single sends share a request: each message waits briefly for others of its kind (Apache:
``ProduceAccumulator``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from orbitmq.client.errors import SendTimeoutError, TooManyInFlightError
from orbitmq.client.message import Message, SendResult
from orbitmq.client.options import ProducerOptions
from orbitmq.codes import ClientErrorCode
from orbitmq.errors import BrokerError, OrbitError
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["Accumulator"]

logger = logging.getLogger(__name__)

SendBatch = Callable[[list[Message]], Awaitable[list[SendResult]]]


class _Pile:
    __slots__ = ("futures", "messages", "size", "timer")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None


class Accumulator:
    """Collects messages by topic and kind, until a batch is large enough or its oldest message has waited long
    enough."""

    def __init__(
        self,
        options: ProducerOptions,
        tasks: TaskOwner,
        send_batch: SendBatch,
        check: Callable[[Message], object],
    ) -> None:
        """``check`` raises an error for a message that cannot be sent, so that it does not make the rest of its batch
        fail."""
        self._check = check
        self._options = options
        self._tasks = tasks
        self._send_batch = send_batch
        self._piles: dict[tuple[str, bool], _Pile] = {}
        self._held_bytes = 0
        self._sending = 0
        self._waiting = 0
        """Sends that wait for room."""
        self._freed = asyncio.Event()
        self._drains = 0
        self._idle = asyncio.Event()

    @staticmethod
    def takes(message: Message) -> bool:
        """Whether a message may be sent in a batch."""
        return not (message.is_delayed or message.shard_key or message.topic.startswith("%RETRY%"))

    async def send(self, message: Message, timeout_s: float | None) -> SendResult:
        """Send the message in a batch. Returns when the batch is stored.

        With ``timeout_s`` it raises ``TooManyInFlightError`` if there was no room for the message in time, and
        ``SendTimeoutError`` if its batch was not answered in time.
        """
        self._check(message)
        if timeout_s is None:
            if not self._has_room(message):
                await self._room(message)
            return await self._add(message)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._room(message)
        except TimeoutError:
            raise TooManyInFlightError(
                f"{self._held_bytes} bytes wait to be sent, none left within {timeout_s:g} s"
            ) from None
        try:
            async with asyncio.timeout_at(deadline):
                return await self._add(message)
        except OrbitError:  # some of them are a TimeoutError too
            raise
        except TimeoutError:
            raise SendTimeoutError(
                f"the batch of the message was not answered within {timeout_s:g} s",
                code=int(ClientErrorCode.ACCESS_BROKER_TIMEOUT),
                attempts=1,
            ) from None

    def _has_room(self, message: Message) -> bool:
        """Whether there is room for the message. If nothing else is held there is room for any message, even one
        above the limit."""
        held = self._held_bytes
        return not held or held + len(message.body) <= self._options.batch_total_bytes

    async def _room(self, message: Message) -> None:
        self._waiting += 1
        try:
            while not self._has_room(message):
                self._freed.clear()
                await self._freed.wait()
        finally:
            self._waiting -= 1
            if not self._busy:  # or a message that has room now makes it so at once
                self._idle.set()

    def _add(self, message: Message) -> asyncio.Future[SendResult]:
        size = len(message.body)
        self._held_bytes += size
        key = (message.topic, message.wait_stored)
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = _Pile()
            loop = asyncio.get_running_loop()
            pile.timer = loop.call_later(self._options.batch_linger_s, self._flush, key)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        pile.messages.append(message)
        pile.futures.append(future)
        pile.size += size
        if pile.size >= self._options.batch_bytes or self._drains:
            self._flush(key)
        return future

    def _flush(self, key: tuple[str, bool]) -> None:
        pile = self._piles.pop(key, None)
        if pile is None:
            return
        if pile.timer is not None:
            pile.timer.cancel()
        self._sending += 1
        self._tasks.start(self._send(pile), "accumulated-batch")

    async def _send(self, pile: _Pile) -> None:
        try:
            # Skip messages whose callers gave up before the batch was sent.
            wanted = [
                (message, future)
                for message, future in zip(pile.messages, pile.futures, strict=True)
                if not future.done()
            ]
            if wanted:
                await self._send_wanted(wanted)
        finally:
            for future in pile.futures:  # of a task that was cancelled, at the end of the client
                if not future.done():
                    future.cancel()
            self._held_bytes -= pile.size
            self._sending -= 1
            self._freed.set()
            if not self._busy:
                self._idle.set()

    @property
    def _busy(self) -> bool:
        return bool(self._sending or self._piles or self._waiting)

    async def _send_wanted(self, wanted: list[tuple[Message, asyncio.Future[SendResult]]]) -> None:
        try:
            results = await self._send_batch([message for message, _ in wanted])
        except BrokerError as error:
            if error.retriable or len(wanted) == 1:
                _fail(wanted, error)
                return
            # A broker that refuses a batch because of one message accepts the others on their own.
            for pair in wanted:
                await self._send_wanted([pair])
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            _fail(wanted, error)
        else:
            for (_, future), result in zip(wanted, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def drain(self, wait_s: float | None) -> None:
        """Send the messages that are waiting now, without waiting for more, and wait for the responses."""
        self._drains += 1
        for key in list(self._piles):
            self._flush(key)
        try:
            async with asyncio.timeout(wait_s):
                while self._busy:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            logger.warning("batches unsent at shutdown bytes=%d", self._held_bytes)
        finally:
            self._drains -= 1


def _fail(wanted: list[tuple[Message, asyncio.Future[SendResult]]], error: Exception) -> None:
    for _, future in wanted:
        if not future.done():
            future.set_exception(error)
            future.exception()  # read here: a caller that went away must not cause a warning
