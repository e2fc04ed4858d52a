"""The same clients for code without asyncio: same names, same arguments, calls that block.

Each client runs on an event loop in a thread of its own, or shares one that is given as ``loop``. Plain functions as
handlers run on worker threads, as they do under asyncio; coroutines run on the loop's thread. Sends that have nothing
to wait for but their answer do not take the way over that thread (``blocking.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from orbitmq.client.bodies import Decode
from orbitmq.client.consume import lite_pull_consumer as async_lite
from orbitmq.client.consume import pull_consumer as async_pull
from orbitmq.client.consume import push_consumer as async_push
from orbitmq.client.consume import simple_consumer as async_simple
from orbitmq.client.consume.class_filter import ClassFilter
from orbitmq.client.consume.consumer_base import ConsumerBase
from orbitmq.client.consume.handlers import ConsumeHook, Listener
from orbitmq.client.consume.popper import PoppedMessage
from orbitmq.client.consume.puller import PullResult
from orbitmq.client.errors import ClientStateError, ForkedError
from orbitmq.client.message import Message, ReceivedMessage, SendResult
from orbitmq.client.produce import producer as async_producer
from orbitmq.client.produce.blocking import IDLE_S, BlockingSends
from orbitmq.client.produce.producer import QueueSelector
from orbitmq.client.produce.sender import SendHook
from orbitmq.client.produce.transactions import LocalTransaction, TransactionBlock, TransactionCheck
from orbitmq.client.settings import (
    ConsumerSettings,
    LitePullSettings,
    ProducerSettings,
    PushSettings,
    SimpleSettings,
)
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.loops import new_event_loop
from orbitmq.runtime.machine import process_id
from orbitmq.runtime.tasks import TaskOwner, every

__all__ = ["LitePullConsumer", "LoopThread", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class LoopThread:
    """An event loop on a thread. Share one among many clients to save threads."""

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._process_id = process_id()
        self._tasks = TaskOwner("orbitmq-loop")
        self._waiting: deque[tuple[Coroutine[Any, Any, Any], Future[Any]]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name="orbitmq-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        await self._tasks.close()
        await self._loop.shutdown_asyncgens()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        future: Future[T] = Future()
        try:
            self._check_caller()
            self._waiting.append((work, future))
            # Waking the loop is a system call: one serves all that was handed over until the loop reads. The flag is
            # cleared before the loop reads, so what comes later wakes it again.
            if not self._woken:
                self._woken = True
                self._loop.call_soon_threadsafe(self._start_waiting)
        except ClientStateError:
            work.close()
            raise
        except RuntimeError:
            self._refuse_waiting()  # closed since we asked; the future says so
        return future

    def _start_waiting(self) -> None:
        self._woken = False
        while self._waiting:
            work, future = self._waiting.popleft()
            if future.cancelled():
                work.close()
                continue
            task = self._tasks.start(_settle(work, future), "call")
            task.add_done_callback(partial(_ended, work, future))
            future.add_done_callback(partial(self._cancel_too, task))

    def _cancel_too(self, task: asyncio.Task[None], future: Future[Any]) -> None:
        if future.cancelled() and not task.done():
            try:
                self._loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # the loop has ended, and the task with it

    def _refuse_waiting(self) -> None:
        while self._waiting:
            work, future = self._waiting.popleft()
            work.close()
            if future.set_running_or_notify_cancel():
                future.set_exception(ClientStateError("the loop of this client is closed"))

    def check_thread(self) -> None:
        """Raises ``ClientStateError`` on the loop's own thread."""
        if threading.get_ident() == self._thread.ident:
            raise ClientStateError(
                "a blocking call on the loop's own thread would wait for itself: use the asyncio client there"
            )

    def _check_caller(self) -> None:
        """Raises ``ClientStateError`` where a call could never end."""
        self.check_thread()
        if self._process_id != process_id():
            raise ForkedError(f"the loop of this client runs in process {self._process_id}")
        if not self._thread.is_alive():
            raise ClientStateError("the loop of this client is closed")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close_soon(self) -> None:
        """Stop the loop without waiting for its end, for callers it waits for itself."""
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            pass  # it has ended

    def close(self) -> None:
        """Stop the loop; what runs on it is cancelled."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)
        self._refuse_waiting()


async def _settle(work: Coroutine[Any, Any, T], future: Future[T]) -> None:
    """Run a coroutine for a future of another thread."""
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - whatever it raises is for who waits
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)


def _ended(work: Coroutine[Any, Any, Any], future: Future[Any], _task: asyncio.Task[None]) -> None:
    """Nobody waits for ever: a task that was cancelled, perhaps before its first step, cancels its future."""
    work.close()
    future.cancel()


async def _make(function: Callable[..., T], *arguments: Any, **settings: Any) -> T:
    """Build on the loop: asyncio's own objects belong to the loop they are made on."""
    return function(*arguments, **settings)


class _Facade:
    _client: Any

    def __init__(
        self, kind: Callable[..., Any], loop: LoopThread | None, *arguments: Any, **settings: Any
    ) -> None:
        self._owns_loop = loop is None
        self._stopped = False
        self._loop = loop or LoopThread()
        try:
            self._client = self._loop.run(_make(kind, *arguments, **settings))
        except BaseException:
            self._close_loop()
            raise

    def _close_loop(self) -> None:
        if self._owns_loop:
            self._loop.close()

    def __del__(self) -> None:
        if getattr(self, "_stopped", True) or not hasattr(self, "_client"):
            return
        if self._client._instance.running:
            text = f"client {self.client_id} was not stopped: `with` does it, or `client.stop()`"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            self._client._instance.forget()
        if self._owns_loop:
            self._loop.close_soon()

    @property
    def client_id(self) -> str:
        client_id: str = self._client.client_id
        return client_id

    @property
    def group(self) -> str:
        group: str = self._client.group
        return group

    @property
    def held_messages(self) -> dict[str, int]:
        held: dict[str, int] = self._client.held_messages
        return held

    @property
    def damaged_messages(self) -> int:
        damaged: int = getattr(self._client, "damaged_messages", 0)
        return damaged

    def start(self) -> None:
        """See the asyncio client."""
        self._loop.run(self._client.start())

    def stop(self) -> None:
        """See the asyncio client. A loop of its own ends with it. A second stop does nothing."""
        if self._stopped:
            return
        if getattr(self._client, "handles_here", False):
            # A handler: the stop waits for it to return, so it cannot wait for the stop.
            stopping = self._loop.submit(self._client.stop())
            self._stopped = True
            if self._owns_loop:
                stopping.add_done_callback(lambda _: self._loop.close_soon())
            return
        self._stopped = True
        try:
            self._loop.run(self._client.stop())
        finally:
            self._close_loop()

    async def _leave(self, kind: type[BaseException] | None) -> None:
        """What ``async with`` does at its end, but for the stop."""
        if kind is None and isinstance(self._client, ConsumerBase) and self._client._instance.running:
            self._client._acknowledge_left()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._close_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stopped:
            self._loop.run(self._leave(kind))
        self.stop()


class Producer(_Facade):
    """``orbitmq.Producer`` with blocking calls. May be used by many threads at once."""

    _client: async_producer.Producer

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

    def add_hook(self, hook: SendHook) -> None:
        self._client.add_hook(hook)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        argument: Any = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        self._loop.check_thread()
        return self._sends.send(message, queue=queue, select=select, argument=argument, timeout_s=timeout_s)

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

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        self._loop.run(self._client.send_oneway(message, queue=queue, select=select, argument=argument))

    def flush(self) -> None:
        self._loop.run(self._client.flush())

    def wait_ready(self, *topics: str, timeout_s: float = 10.0) -> None:
        self._loop.run(self._client.wait_ready(*topics, timeout_s=timeout_s))

    @property
    def in_flight(self) -> int:
        return self._client.in_flight

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

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        self._loop.check_thread()
        return self._sends.send_batch(messages, queue=queue, timeout_s=timeout_s)

    def send_in_transaction(
        self, message: Message, local: LocalTransaction, *, timeout_s: float | None = None
    ) -> SendResult:
        return self._loop.run(self._client.send_in_transaction(message, local, timeout_s=timeout_s))

    def request(self, message: Message, *, timeout_s: float = 3.0) -> ReceivedMessage:
        return self._loop.run(self._client.request(message, timeout_s=timeout_s))

    def recall(self, topic: str, handle: str) -> str:
        return self._loop.run(self._client.recall(topic, handle))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._loop.run(self._client.queues(topic))


class _Consumer(_Facade):
    """What every consumer has."""

    _client: ConsumerBase

    @property
    def broadcasting(self) -> bool:
        return self._client.broadcasting

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        return self._loop.run(self._client.fetch_queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        return self._loop.run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._loop.run(self._client.max_offset(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._loop.run(self._client.offset_at(queue, timestamp_ms))

    def committed(self, queue: MessageQueue) -> int:
        return self._loop.run(self._client.committed(queue))

    def wait_ready(self, timeout_s: float = 10.0) -> None:
        self._loop.run(self._client.wait_ready(timeout_s))


class _AssignedConsumer(_Consumer):
    """What holds queues and can be iterated."""

    _client: async_push.PushConsumer | async_lite.LitePullConsumer

    @property
    def queues(self) -> list[MessageQueue]:
        return self._client.queues

    def persist_offsets(self, *, wait: bool = False) -> None:
        self._loop.run(self._client.persist_offsets(wait=wait))

    def lag(self) -> dict[MessageQueue, int]:
        return self._loop.run(self._client.lag())

    def rebalance_soon(self) -> None:
        self._loop.run(_make(self._client.rebalance_soon))

    def unsubscribe(self, topic: str) -> None:
        self._loop.run(_make(self._client.unsubscribe, topic))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self._iterate(aiter, self._client)

    def _iterate(
        self, begin: Callable[..., Any], *arguments: Any, **settings: Any
    ) -> Iterator[ReceivedMessage]:
        messages = self._loop.run(_make(begin, *arguments, **settings))
        try:
            while not self._stopped and (message := self._loop.run(_next(messages))) is not None:
                yield message
        finally:
            if not self._stopped:
                self._loop.run(_end(messages))


class PushConsumer(_AssignedConsumer):
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

    def subscribe(
        self,
        topic: str,
        expression: str | ClassFilter = "*",
        handler: Listener | None = None,
        *,
        sql: bool = False,
        batch_size: int | None = None,
        type: Any = None,  # noqa: A002 - as in the asyncio client
        decode: Decode | None = None,
    ) -> None:
        settings = {"sql": sql, "batch_size": batch_size, "type": type, "decode": decode}
        self._loop.run(_make(self._client.subscribe, topic, expression, handler, **settings))

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
        def decorate(function: F) -> F:
            self.subscribe(
                topic, expression, function, sql=sql, batch_size=batch_size, type=type, decode=decode
            )
            return function

        return decorate

    def on_message(self, handler: Listener, *, batch_size: int | None = None) -> None:
        self._client.on_message(handler, batch_size=batch_size)

    def add_hook(self, hook: ConsumeHook) -> None:
        self._client.add_hook(hook)

    def messages(self, *, auto_ack: bool = True) -> Iterator[ReceivedMessage]:
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

    def suspend(self) -> None:
        self._client.suspend()

    def resume(self) -> None:
        self._client.resume()


class LitePullConsumer(_AssignedConsumer):
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

    def subscribe(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        self._loop.run(_make(self._client.subscribe, topic, expression, sql=sql))

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        self._loop.run(self._client.assign(queues, expression))

    def poll(self, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        return self._loop.run(self._client.poll(timeout_s))

    def position(self, queue: MessageQueue) -> int | None:
        return self._client.position(queue)

    def fetched_until(self, queue: MessageQueue) -> int:
        return self._client.fetched_until(queue)

    def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        self._loop.run(self._client.commit(offsets))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._loop.run(self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._loop.run(self._client.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._loop.run(self._client.seek_to_end(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self._client.pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._client.resume(queues)


class PullConsumer(_Consumer):
    """``orbitmq.PullConsumer`` with blocking calls."""

    _client: async_pull.PullConsumer

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        *,
        loop: LoopThread | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        super().__init__(async_pull.PullConsumer, loop, group, name_servers, **settings)

    def register(self, topic: str) -> None:
        self._loop.run(self._client.register(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        expression: str = "*",
        sql: bool = False,
        block: bool = False,
    ) -> PullResult:
        return self._loop.run(
            self._client.pull(queue, offset, max_count, expression=expression, sql=sql, block=block)
        )

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        self._loop.run(self._client.update_offset(queue, offset))

    def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        return self._loop.run(self._client.send_back(message, delay_level))


class SimpleConsumer(_Consumer):
    """``orbitmq.SimpleConsumer`` with blocking calls."""

    _client: async_simple.SimpleConsumer

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        *,
        loop: LoopThread | None = None,
        **settings: Unpack[SimpleSettings],
    ) -> None:
        super().__init__(async_simple.SimpleConsumer, loop, group, name_servers, **settings)

    def subscribe(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        self._loop.run(_make(self._client.subscribe, topic, expression, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        self._loop.run(_make(self._client.unsubscribe, topic))

    def receive(
        self, max_count: int = 16, *, invisible_s: float | None = None, wait_s: float | None = None
    ) -> list[PoppedMessage]:
        return self._loop.run(self._client.receive(max_count, invisible_s=invisible_s, wait_s=wait_s))

    def ack(self, message: PoppedMessage) -> None:
        self._loop.run(self._client.ack(message))

    def ack_all(self, messages: Iterable[PoppedMessage]) -> None:
        self._loop.run(self._client.ack_all(messages))

    def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        self._loop.run(self._client.change_invisible(message, invisible_s))


async def _next(messages: Any) -> ReceivedMessage | None:
    message: ReceivedMessage | None = await anext(messages, None)
    return message


async def _end(messages: Any) -> None:
    await messages.aclose()
