"""Passes messages to handlers, or to readers that iterate over the consumer."""

from __future__ import annotations

import asyncio

from orbitmq.client.callables import HANDLING, UserCalls
from orbitmq.client.consume.consume_concurrent import LOCAL_RETRY_S, ConcurrentService
from orbitmq.client.consume.consume_orderly import OrderlyService
from orbitmq.client.consume.cursor import Inbox
from orbitmq.client.consume.handler_table import HandlerTable
from orbitmq.client.consume.handlers import SUCCESS, HandlerPool, Outcome
from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.observed import Observed
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.queue_locks import QueueLocks
from orbitmq.client.consume.settling import Settling
from orbitmq.client.errors import RetryLater
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import PushOptions
from orbitmq.model.names import RETRY_PREFIX

__all__ = ["Delivery"]


class Delivery:
    """Delivers fetched messages to the user. Nothing is delivered before ``start``."""

    def __init__(
        self,
        membership: Membership,
        options: PushOptions,
        handlers: HandlerTable,
        settling: Settling,
        observed: Observed,
        locks: QueueLocks | None,
    ) -> None:
        """Pass ``locks`` for an orderly consumer that shares its queues with other members."""
        self._membership = membership
        self._options = options
        self._handlers = handlers
        self._settling = settling
        self._observed = observed
        self._locks = locks
        self._calls = UserCalls(options.workers, f"orbitmq-{membership.group}")
        self._concurrent: ConcurrentService | None = None
        self._orderly: OrderlyService | None = None
        self.inbox: Inbox | None = None
        """Messages for readers that iterate; None if there are handlers."""

    # -- life ------------------------------------------------------------------------------------------

    def start(self, *, iterated: bool) -> None:
        """Accept messages, either for handlers or, if ``iterated``, for readers."""
        steady = self._membership.steady
        pool = HandlerPool(self._membership.instance.tasks, self._calls, steady, self._observed.wrap)
        if self._options.orderly:
            self._orderly = OrderlyService(pool, self._settling, self._handlers, self._options, self._locks)
        else:
            self._concurrent = ConcurrentService(pool, self._settling, self._options.workers)
        if iterated:
            self.inbox = Inbox(
                take=self._observed.begin,
                acknowledge=self._acknowledge,
                give_back=self._give_back,
                orderly=self._options.orderly,
                relock=None if self._locks is None else self._locks.renew,
                now=steady.monotonic,
                now_ms=steady.now_ms,
            )

    def begin_stop(self) -> None:
        """Start no more handlers."""
        service = self._concurrent or self._orderly
        if service is not None:
            service.begin_stop()

    async def stop(self, wait_s: float) -> None:
        """End the iterations, and wait up to ``wait_s`` for running handlers."""
        if self.inbox is not None:
            self.inbox.close()
        service = self._concurrent or self._orderly
        if service is not None:
            await service.stop(wait_s)

    def close(self) -> None:
        """Release the threads of handlers."""
        self._calls.close()

    @property
    def running(self) -> int:
        """The number of handlers that are running."""
        service = self._concurrent or self._orderly
        return 0 if service is None else service.running

    @property
    def stalled_s(self) -> float:
        """Seconds since a handler last finished, while handlers run; otherwise 0."""
        service = self._concurrent or self._orderly
        if service is None or not service.running:
            return 0.0
        return self._membership.steady.monotonic() - service.progressed

    @property
    def handles_here(self) -> bool:
        """Whether the calling thread or task is a handler of this consumer."""
        service = self._concurrent or self._orderly
        return service is not None and HANDLING.get() is service

    # -- messages --------------------------------------------------------------------------------------

    def deliver(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Deliver messages that have been added to a queue."""
        if self.inbox is not None:
            self.inbox.put(held, messages)
        elif self._orderly is not None:
            self._orderly.submit(held)
        elif self._concurrent is not None:
            self._submit(self._concurrent, held, messages)

    def _submit(
        self, service: ConcurrentService, held: ProcessQueue, messages: list[ReceivedMessage]
    ) -> None:
        start = 0
        handler_of = self._handlers.of_message
        handler = handler_of(messages[0])
        if held.queue.topic.startswith(RETRY_PREFIX):
            # A retry topic holds messages of any topic.
            for index, message in enumerate(messages):
                other = handler_of(message)
                if other is not handler:
                    service.submit(held, handler, messages[start:index])
                    start, handler = index, other
        service.submit(held, handler, messages[start:])

    async def handle_directly(self, message: ReceivedMessage) -> Outcome:
        """Call the handler with a message that a broker sends outside any queue."""
        handler = self._handlers.of_message(message)
        if handler.is_async:
            return await handler.run([message], self._membership.instance.tasks)
        outcome: Outcome = await self._calls.in_thread(handler.run_blocking, [message])
        return outcome

    # -- iteration (Inbox) -----------------------------------------------------------------------------

    def _acknowledge(self, held: ProcessQueue, message: ReceivedMessage) -> None:
        self._observed.end([message], SUCCESS)
        if self._orderly is None:
            self._settling.finish(held, [message])
        else:
            self._settling.commit(held)

    async def _give_back(
        self, held: ProcessQueue, message: ReceivedMessage, delay_level: int, reason: str
    ) -> None:
        """Have an iterated message redelivered, or dead-lettered if ``delay_level`` is -1."""
        outcome = Outcome(0, delay_level, RetryLater(reason, delay_level=delay_level), reason)
        self._observed.end([message], outcome)
        assert self.inbox is not None
        if self._concurrent is not None:
            again = await self._settling.finish_other(held, [message], outcome)
            if again and not held.ending:
                self._membership.instance.tasks.start(self._put_again(held, again), "consume-again")
        elif self._orderly is not None:
            pause_s = await self._orderly.again(held, [message], outcome)
            held.suspended_until = self._membership.steady.monotonic() + pause_s
            self.inbox.wake()

    async def _put_again(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        await asyncio.sleep(LOCAL_RETRY_S)
        if self.inbox is not None and not held.ending:
            self.inbox.put(held, messages)
