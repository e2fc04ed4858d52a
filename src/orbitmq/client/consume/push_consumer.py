"""The push consumer: calls handlers with messages (Apache: ``DefaultMQPushConsumer``).

The consumer is a facade for its parts: ``membership`` joins the group, ``assignment`` takes queues, ``fetching`` or
``pop_mode`` fetches their messages, ``delivery`` calls the handlers, ``settling`` commits messages or sends them
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from orbitmq.client.bodies import Decode
from orbitmq.client.consume.assigned_consumer import AssignedConsumer
from orbitmq.client.consume.assignment import Assignment
from orbitmq.client.consume.class_filter import ClassFilter, ClassUploads
from orbitmq.client.consume.consumer_calls import ConsumerCalls
from orbitmq.client.consume.cursor import Cursor
from orbitmq.client.consume.delivery import Delivery
from orbitmq.client.consume.fetching import Fetching
from orbitmq.client.consume.handler_table import HandlerTable
from orbitmq.client.consume.handlers import ConsumeHook, Handler, Listener, name_of
from orbitmq.client.consume.observed import Observed
from orbitmq.client.consume.pop_mode import PopMode
from orbitmq.client.consume.popper import Popper
from orbitmq.client.consume.puller import Puller
from orbitmq.client.consume.queue_locks import QueueLocks
from orbitmq.client.consume.send_back import SendBack
from orbitmq.client.consume.settling import Settling
from orbitmq.client.errors import ClientStateError
from orbitmq.client.options import PushOptions, build_options
from orbitmq.client.settings import PushSettings
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.runtime.words import counted

if TYPE_CHECKING:
    from orbitmq.client.trace import TraceDispatcher

__all__ = ["PushConsumer"]

F = TypeVar("F", bound=Callable[..., Any])
_LOCK_S: Final = 20.0


class PushConsumer(AssignedConsumer):
    """Calls handlers with messages. Handlers are coroutines, or plain functions that run on ``workers`` threads.

    ::

        consumer = PushConsumer("group", "127.0.0.1:9876")

        @consumer.listen("orders", "paid || shipped")
        async def handle(message: ReceivedMessage) -> None: ...

        async with consumer:
            await asyncio.Event().wait()

    When a handler returns, the message is consumed. When it raises an exception, the message is redelivered later, at
    most 16 times; ``RetryLater`` sets the delay. Without handlers the consumer is iterated: ``async for message in
    consumer``. Requesting the next message acknowledges the previous one.
    """

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        options: PushOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[PushSettings],
    ) -> None:
        self.options = options = build_options(PushOptions, options, dict(settings))
        super().__init__(group, name_servers, options, clock)
        membership, instance, store = self._membership, self._instance, self._offsets.store
        self._locks = QueueLocks(membership) if options.orderly and not self.broadcasting else None
        self._handlers = HandlerTable(options.namespace)
        self._hooks: list[ConsumeHook] = []
        self._uploads = ClassUploads(instance, self.group)
        send_back = SendBack(instance, self.group, options, options.reconsume_max)
        self._settling = Settling(membership, options, store, send_back, self._handlers)
        observed = Observed(self.group, self._hooks, clock.now_ms)
        self._delivery = Delivery(membership, options, self._handlers, self._settling, observed, self._locks)
        puller = Puller(instance, self.group, options, self._reader)
        self._fetching = Fetching(membership, options, store, puller, self._uploads, self._delivery)
        popper = Popper(instance, self.group, options, clock, self._reader)
        self._pops = PopMode(membership, options, popper, send_back, self._delivery.deliver)
        self._assignment = Assignment(
            membership,
            self._offsets,
            self._fetching,
            locks=self._locks,
            shares=self._pops if options.server_rebalance and not options.orderly else None,
        )
        self._calls = ConsumerCalls(membership, options, store, self._assignment, self._delivery)
        self._tracer: TraceDispatcher | None = None
        self._life = TaskOwner("consumer")
        self._stopping: asyncio.Task[None] | None = None
        self.abandoned = 0
        """Handlers that did not end within ``close_wait_s`` and could not be cancelled."""

    # -- subscriptions ---------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        expression: str | ClassFilter = "*",
        handler: Listener | None = None,
        *,
        sql: bool = False,
        batch_size: int | None = None,
        type: Any = None,  # noqa: A002 - what a reader of the call expects it to be named
        decode: Decode | None = None,
    ) -> None:
        """Subscribe to a topic. The expression is ``*``, tags (``"A || B"``), an SQL92 expression over properties, or
        a class that a filter server runs.

        ``handler`` gets one message, or a list of up to ``batch_size`` messages if that is set. With ``type`` it gets
        the JSON body as a value of that type, and with ``decode`` the value that this function returns for the body.
        A second parameter gets a ``HandlerContext``. Topics may also be subscribed while the consumer runs. All
        members of a group must have the same subscriptions.
        """
        checked = None
        if handler is not None:
            checked = Handler(handler, batch_size, group=self.group, kind=type, decode=decode)
        if isinstance(expression, ClassFilter):
            wire_topic = self._subscriptions.add_class(topic, expression.class_name)
            self._uploads.add(wire_topic, expression)
        else:
            wire_topic = self._subscriptions.add(topic, expression, sql=sql)
            self._uploads.remove(wire_topic)
        if checked is not None:
            self._handlers.set(wire_topic, checked)
        if self._instance.running:
            self._instance.tasks.start(self._subscribe_late(wire_topic), "subscribe")

    async def _subscribe_late(self, wire_topic: str) -> None:
        await self._membership.refresh_missing()
        await self._uploads.upload()
        await self._membership.announce(wire_topic)

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are released at the next rebalance."""
        wire_topic = self._subscriptions.remove(topic)
        self._uploads.remove(wire_topic)
        self._handlers.remove(wire_topic)
        self.rebalance_soon()

    def listen(
        self,
        topic: str,
        expression: str | ClassFilter = "*",
        *,
        sql: bool = False,
        batch_size: int | None = None,
        type: Any = None,  # noqa: A002 - as in ``subscribe``
        decode: Decode | None = None,
    ) -> Callable[[F], F]:
        """Returns a decorator that subscribes to a topic and calls the decorated function with its messages."""
        if callable(topic):
            raise TypeError(f'listen takes a topic: write @consumer.listen("topic") above {name_of(topic)}')

        def decorate(function: F) -> F:
            self.subscribe(
                topic, expression, function, sql=sql, batch_size=batch_size, type=type, decode=decode
            )
            return function

        return decorate

    def on_message(self, handler: Listener, *, batch_size: int | None = None) -> None:
        """Set the handler for all topics that have no handler of their own."""
        self._handlers.default = Handler(handler, batch_size, group=self.group)

    def add_hook(self, hook: ConsumeHook) -> None:
        """Add a hook, which is called around each call of a handler. Only allowed before the start."""
        if self._instance.running:
            raise ClientStateError("hooks are added before the start")
        self._hooks.append(hook)

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group. Returns when the first queues have been taken."""
        wanted = self._subscriptions.wanted
        if not wanted:
            raise ClientStateError("subscribe to a topic before the start")
        without = [topic for topic in wanted if self._handlers.of_topic(topic) is None]
        if without and self._handlers:
            raise ClientStateError(f"no handler for topic {', '.join(without)}")
        if not self.broadcasting:
            self._subscriptions.add_retries(self.group)
        if self.options.trace:
            from orbitmq.client.trace import start_consume_tracer

            self._tracer = await start_consume_tracer(self.group, self._instance, self.options)
            self._hooks.append(self._tracer)
        self._delivery.start(iterated=bool(without))
        await self._join(self._calls.routes())
        if not self._instance.running:
            return
        await self._uploads.upload()
        start, held = self._instance.tasks.start, self._assignment.held
        if self._locks is not None:
            locks = self._locks
            start(every(_LOCK_S, lambda: locks.renew_all(held), first_s=1.0), "locks")
        elif not self.options.orderly:
            period_s = self.options.consume_timeout_s
            start(every(period_s, lambda: self._settling.send_back_expired(held)), "expired-messages")

    async def stop(self) -> None:
        """Stop pulling, wait up to ``close_wait_s`` for handlers, store the offsets and leave the group.

        Called by a handler, it returns immediately, and the stop completes when the handler has returned.
        """
        if not self._instance.running and self._stopping is None:
            return
        self.suspend()
        if self._stopping is None:
            self._instance.begin_stop()
            self._delivery.begin_stop()
            self._stopping = self._life.start(self._stop(), "stop")
        if not self._instance.tasks.owns(asyncio.current_task()):
            await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        wait_s = self.options.close_wait_s
        self._pops.drop_all()
        await self._delivery.stop(wait_s)
        await self._pops.settled(wait_s)
        await self._assignment.revoke_all(wait_s)
        await self._assignment.close()
        await self._instance.stop()  # cancels coroutines that are left
        self.abandoned = self._delivery.running
        if self._tracer is not None:
            await self._tracer.stop()
        self._delivery.close()

    @property
    def fault(self) -> str:
        """The reason why nothing is consumed; empty if nothing is wrong. Either the consumer is stopped, or no broker
        answered its last heartbeat, or handlers are running and none has finished for ``consume_timeout_s``."""
        if not self._instance.running:
            return "the consumer is not running"
        if self._instance.leaving:
            return "the consumer is stopping"
        stalled_s = self._delivery.stalled_s
        if stalled_s > self.options.consume_timeout_s:
            return (
                f"{counted(self._delivery.running, 'handler')} running, and none has finished for "
                f"{stalled_s:.0f} s (consume_timeout_s is {self.options.consume_timeout_s:g})"
            )
        return self._instance.membership_fault

    @property
    def handles_here(self) -> bool:
        """Whether the calling thread or task is a handler of this consumer."""
        return self._delivery.handles_here

    def suspend(self) -> None:
        """Stop pulling until ``resume``. Messages that have already arrived are still handled."""
        self._fetching.suspended = self._pops.suspended = True

    def resume(self) -> None:
        """Continue pulling."""
        self._fetching.suspended = self._pops.suspended = False

    # -- iteration -------------------------------------------------------------------------------------

    def messages(self, *, auto_ack: bool = True) -> Cursor:
        """Iterate over incoming messages: ``async for message in consumer.messages()``. Only allowed without
        handlers.

        Requesting the next message finishes the previous one, unless ``message.ack()``, ``retry()`` or
        ``dead_letter()`` already did. With ``auto_ack=False`` only these calls finish messages. The iteration ends
        when the consumer stops.
        """
        if self._delivery.inbox is None:
            raise ClientStateError("a consumer with handlers, or one not started, cannot be iterated")
        return Cursor(self._delivery.inbox, auto_ack)

    def __aiter__(self) -> Cursor:
        return self.messages()

    def _acknowledge_left(self) -> None:
        if self._delivery.inbox is not None:
            self._delivery.inbox.acknowledge_left(at_end=True)
