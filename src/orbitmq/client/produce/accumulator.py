"""Single sends that share requests: each waits a moment for others of its kind (Apache: ``ProduceAccumulator``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from orbitmq.client.errors import TooManyInFlightError
from orbitmq.client.message import Message, SendResult
from orbitmq.client.options import ProducerOptions
from orbitmq.errors import BrokerError
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
    """Collects messages by topic and kind until they are enough or the oldest waited long enough."""

    def __init__(
        self,
        options: ProducerOptions,
        tasks: TaskOwner,
        send_batch: SendBatch,
        check: Callable[[Message], object],
    ) -> None:
        """``check`` raises for a message that cannot be sent: it must not take others along."""
        self._check = check
        self._options = options
        self._tasks = tasks
        self._send_batch = send_batch
        self._piles: dict[tuple[str, bool], _Pile] = {}
        self._held_bytes = 0
        self._sending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @staticmethod
    def takes(message: Message) -> bool:
        """Whether a message may travel in a batch."""
        return not (message.is_delayed or message.shard_key or message.topic.startswith("%RETRY%"))

    def add(self, message: Message) -> asyncio.Future[SendResult]:
        """The result comes when its batch is stored. Raises ``TooManyInFlightError`` when too much waits."""
        self._check(message)
        size = len(message.body)
        if self._held_bytes + size > self._options.batch_total_bytes:
            raise TooManyInFlightError(f"{self._held_bytes} bytes wait to be sent")
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
        if pile.size >= self._options.batch_bytes:
            self._flush(key)
        return future

    def _flush(self, key: tuple[str, bool]) -> None:
        pile = self._piles.pop(key, None)
        if pile is None:
            return
        if pile.timer is not None:
            pile.timer.cancel()
        self._sending += 1
        self._idle.clear()
        self._tasks.start(self._send(pile), "accumulated-batch")

    async def _send(self, pile: _Pile) -> None:
        try:
            # Who gave up before the batch left is not sent for.
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
            if not self._sending and not self._piles:
                self._idle.set()

    async def _send_wanted(self, wanted: list[tuple[Message, asyncio.Future[SendResult]]]) -> None:
        try:
            results = await self._send_batch([message for message, _ in wanted])
        except BrokerError as error:
            if error.retriable or len(wanted) == 1:
                _fail(wanted, error)
                return
            # A broker that refuses a batch for one of its messages takes the others alone.
            for pair in wanted:
                await self._send_wanted([pair])
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            _fail(wanted, error)
        else:
            for (_, future), result in zip(wanted, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def drain(self, wait_s: float | None) -> None:
        """Send what waits now, and wait for the answers."""
        for key in list(self._piles):
            self._flush(key)
        try:
            async with asyncio.timeout(wait_s):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("batches left unsent at the end bytes=%d", self._held_bytes)


def _fail(wanted: list[tuple[Message, asyncio.Future[SendResult]]], error: Exception) -> None:
    for _, future in wanted:
        if not future.done():
            future.set_exception(error)
            future.exception()  # read here: a caller that went away must not cause a warning
