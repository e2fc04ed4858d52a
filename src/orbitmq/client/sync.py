"""The same clients for code without asyncio: same names, same arguments, calls that block.

Each client runs on an event loop in a thread of its own, or shares one that is given as ``loop``. Plain functions as
handlers run on worker threads, as they do under asyncio; coroutines run on the loop's thread. Sends that have nothing
to wait for but their answer bypass that thread (``produce/blocking.py``).

Calls that only pass on to the asyncio clients are generated (``sync_calls.py``). Those below do more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar, Unpack

from orbitmq.client.bodies import Decode
from orbitmq.client.consume import lite_pull_consumer as async_lite
from orbitmq.client.consume import pull_consumer as async_pull
from orbitmq.client.consume import push_consumer as async_push
from orbitmq.client.consume import simple_consumer as async_simple
from orbitmq.client.consume.class_filter import ClassFilter
from orbitmq.client.facade import make
from orbitmq.client.loop_thread import LoopThread
from orbitmq.client.message import Message, ReceivedMessage, SendResult
from orbitmq.client.produce import producer as async_producer
from orbitmq.client.produce.blocking import IDLE_S, BlockingSends
from orbitmq.client.produce.producer import QueueSelector
from orbitmq.client.produce.transactions import TransactionBlock, TransactionCheck
from orbitmq.client.settings import (
    ConsumerSettings,
    LitePullSettings,
    ProducerSettings,
    PushSettings,
    SimpleSettings,
)
from orbitmq.client.sync_calls import (
    AssignedCalls,
    LitePullCalls,
    ProducerCalls,
    PullCalls,
    PushCalls,
    SimpleCalls,
)
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.tasks import every

__all__ = ["LitePullConsumer", "LoopThread", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer"]

F = TypeVar("F", bound=Callable[..., Any])


class Producer(ProducerCalls):
    """``orbitmq.Producer`` with blocking calls. May be used by many threads at once."""

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        *,
        check: TransactionCheck | None = None,
        loop: LoopThread | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        super().__init__(async_producer.Producer, loop, group, name_servers, check=check, **settings)
        self._sends = BlockingSends(self._client, self._loop.run)

    def start(self) -> None:
        self._loop.run(self._start())

    async def _start(self) -> None:
        await self._client.start()
        self._client._instance.tasks.start(every(IDLE_S / 4, self._sends.close_idle), "idle-connections")

    def stop(self) -> None:
        self._sends.close()
        super().stop()

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        argument: Any = None,
        timeout_s: float | None = None,
        message_id: str = "",
    ) -> SendResult:
        self._loop.check_thread()
        return self._sends.send(
            message,
            queue=queue,
            select=select,
            argument=argument,
            timeout_s=timeout_s,
            message_id=message_id,
        )

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        argument: Any = None,
        timeout_s: float | None = None,
    ) -> Future[SendResult]:
        """Start a send; the future resolves to its result. Callbacks of the future run on the loop's thread."""
        return self._loop.submit(
            self._client.send(message, queue=queue, select=select, argument=argument, timeout_s=timeout_s)
        )

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        self._loop.check_thread()
        return self._sends.send_batch(messages, queue=queue, timeout_s=timeout_s)

    @contextlib.contextmanager
    def transaction(self, message: Message, *, timeout_s: float | None = None) -> Iterator[TransactionBlock]:
        """``with producer.transaction(message) as transaction``; see the asyncio client."""
        block = self._client.transaction(message, timeout_s=timeout_s)
        self._loop.run(block.__aenter__())
        try:
            yield block
        except BaseException as error:
            self._loop.run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop.run(block.__aexit__(None, None, None))


class _Iterated(AssignedCalls):
    """Iteration over a consumer that holds queues."""

    _client: async_push.PushConsumer | async_lite.LitePullConsumer

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self._iterate(aiter, self._client)

    def _iterate(
        self, begin: Callable[..., Any], *arguments: Any, **settings: Any
    ) -> Iterator[ReceivedMessage]:
        messages = self._loop.run(make(begin, *arguments, **settings))
        try:
            while not self._stopped and (message := self._loop.run(_next(messages))) is not None:
                yield message
        finally:
            if not self._stopped:
                self._loop.run(_end(messages))


class PushConsumer(PushCalls, _Iterated):
    """``orbitmq.PushConsumer`` with blocking calls; ``for message in consumer`` when it has no handlers."""

    _client: async_push.PushConsumer

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        *,
        loop: LoopThread | None = None,
        **settings: Unpack[PushSettings],
    ) -> None:
        super().__init__(async_push.PushConsumer, loop, group, name_servers, **settings)

    def listen(
        self,
        topic: str,
        expression: str | ClassFilter = "*",
        *,
        sql: bool = False,
        batch_size: int | None = None,
        type: Any = None,  # noqa: A002 - as in the asyncio client
        decode: Decode | None = None,
    ) -> Callable[[F], F]:
        """Decorator: subscribe and call this function with the messages of the topic."""

        def decorate(function: F) -> F:
            self.subscribe(
                topic, expression, function, sql=sql, batch_size=batch_size, type=type, decode=decode
            )
            return function

        return decorate

    def messages(self, *, auto_ack: bool = True) -> Iterator[ReceivedMessage]:
        """Iterate over what comes; see the asyncio client."""
        return self._iterate(self._client.messages, auto_ack=auto_ack)

    def ack(self, message: ReceivedMessage) -> None:
        """``await message.ack()`` for code without asyncio."""
        self._loop.run(message.ack())

    def retry(self, message: ReceivedMessage, delay: timedelta | float | None = None) -> None:
        """``await message.retry()``."""
        self._loop.run(message.retry(delay))

    def dead_letter(self, message: ReceivedMessage, reason: str = "") -> None:
        """``await message.dead_letter()``."""
        self._loop.run(message.dead_letter(reason))


class LitePullConsumer(LitePullCalls, _Iterated):
    """``orbitmq.LitePullConsumer`` with blocking calls."""

    _client: async_lite.LitePullConsumer

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        *,
        loop: LoopThread | None = None,
        **settings: Unpack[LitePullSettings],
    ) -> None:
        super().__init__(async_lite.LitePullConsumer, loop, group, name_servers, **settings)


class PullConsumer(PullCalls):
    """``orbitmq.PullConsumer`` with blocking calls."""

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        *,
        loop: LoopThread | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        super().__init__(async_pull.PullConsumer, loop, group, name_servers, **settings)


class SimpleConsumer(SimpleCalls):
    """``orbitmq.SimpleConsumer`` with blocking calls."""

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        *,
        loop: LoopThread | None = None,
        **settings: Unpack[SimpleSettings],
    ) -> None:
        super().__init__(async_simple.SimpleConsumer, loop, group, name_servers, **settings)


async def _next(messages: Any) -> ReceivedMessage | None:
    message: ReceivedMessage | None = await anext(messages, None)
    return message


async def _end(messages: Any) -> None:
    await messages.aclose()
