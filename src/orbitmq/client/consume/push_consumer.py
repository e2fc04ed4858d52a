"""The push consumer: messages come to handlers (Apache: ``DefaultMQPushConsumer``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from orbitmq.client.bodies import Decode
from orbitmq.client.callables import HANDLING, UserCalls
from orbitmq.client.consume.class_filter import ClassFilter, ClassUploads
from orbitmq.client.consume.consume_concurrent import ConcurrentService
from orbitmq.client.consume.consume_orderly import OrderlyHooks, OrderlyService
from orbitmq.client.consume.consumer_base import ConsumerBase
from orbitmq.client.consume.consumer_calls import ConsumerCalls
from orbitmq.client.consume.cursor import Cursor, Inbox
from orbitmq.client.consume.handlers import SUCCESS, ConsumeHook, Handler, Listener, Outcome, name_of
from orbitmq.client.consume.observed import Observed
from orbitmq.client.consume.pop_mode import PopMode, PopQueue
from orbitmq.client.consume.popper import PoppedMessage, Popper
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.puller import PullResult, PullStatus
from orbitmq.client.consume.send_back import SendBack
from orbitmq.client.errors import BodyMismatch, ClientStateError, RetryLater
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import PushOptions, build_options
from orbitmq.client.settings import PushSettings
from orbitmq.codes import PullFlag
from orbitmq.errors import FlowControl, OrbitError
from orbitmq.model.names import RETRY_PREFIX, retry_topic, unwrap_namespace, wrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import subscribe_by_tags
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.router import RawRoute, Route

if TYPE_CHECKING:
    from orbitmq.client.trace import TraceDispatcher

__all__ = ["PushConsumer"]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
_LOCK_S: Final = 20.0
_LOCAL_RETRY_S: Final = 5.0
_PAUSED_S: Final = 0.2
_FLOW_CONTROL_S: Final = 0.02
_EXPIRED_PER_ROUND: Final = 16
_EXPIRED_LEVEL: Final = 3


class PushConsumer(ConsumerBase):
    """Calls handlers with messages. Handlers are coroutines, or plain functions that run on ``workers`` threads.

    ::

        consumer = PushConsumer("group", "127.0.0.1:9876")

        @consumer.listen("orders", "paid || shipped")
        async def handle(message: ReceivedMessage) -> None: ...

        async with consumer:
            await asyncio.Event().wait()

    A handler that returns has consumed the message; one that raises gets it again later (``RetryLater`` says when),
    at most 16 times. Without handlers the consumer is iterated: ``async for message in consumer``; asking for the
    next message acknowledges the one before.
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
        self.options = build_options(PushOptions, options, dict(settings))
        super().__init__(group, name_servers, self.options, clock)
        self.orderly = self.options.orderly
        self._handlers: dict[str, Handler] = {}
        self._default_handler: Handler | None = None
        self._hooks: list[ConsumeHook] = []
        self._calls = UserCalls(self.options.workers, f"orbitmq-{self.group}")
        reconsume_max = self.options.reconsume_max
        self._send_back = SendBack(self._instance, self.group, self.options, reconsume_max)
        self._concurrent: ConcurrentService | None = None
        self._orderly: OrderlyService | None = None
        self._suspended = False
        self.abandoned = 0
        """Handlers that did not end within ``close_wait_s`` and could not be cancelled."""
        self._inbox: Inbox | None = None
        self._observed = Observed(self.group, self._hooks, clock.now_ms)
        self._life = TaskOwner("consumer")
        self._stopping: asyncio.Task[None] | None = None
        self._tracer: TraceDispatcher | None = None
        self._remote_calls = ConsumerCalls(self)
        self._uploads = ClassUploads(self._instance, self.group)
        self._pops = PopMode(
            instance=self._instance,
            group=self.group,
            options=self.options,
            clock=clock,
            popper=Popper(self._instance, self.group, self.options, clock, self._reader),
            subscription_of=self._subscriptions.get,
            consume=self._consume_popped,
            is_paused=lambda: self._suspended,
            give_up=lambda message, reason: self._send_back.send_back(message, Outcome(0, -1, reason=reason)),
        )

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
        """Consume a topic: all of it, some tags (``"A || B"``), by an SQL92 expression over properties, or what a
        class selects that a filter server runs.

        ``handler`` gets one message, or a list of up to ``batch_size`` if that is given; with ``type`` the JSON body
        as a value of that type, with ``decode`` what that function makes of the body. A second parameter gets a
        ``HandlerContext``. Also possible while running; all members of a group must subscribe alike.
        """
        checked = None if handler is None else self._handler(handler, batch_size, type, decode)
        if isinstance(expression, ClassFilter):
            wire_topic = self._add_class_subscription(topic, expression.class_name)
            self._uploads.add(wire_topic, expression)
        else:
            wire_topic = self._add_subscription(topic, expression, sql)
            self._uploads.remove(wire_topic)
        if checked is not None:
            self._handlers[unwrap_namespace(wire_topic, self.options.namespace)] = checked
        if self._instance.running:
            self._instance.tasks.start(self._subscribe_late(wire_topic), "subscribe")

    def _handler(
        self, function: Listener, batch_size: int | None, kind: Any = None, decode: Decode | None = None
    ) -> Handler:
        return Handler(function, batch_size, group=self.group, kind=kind, decode=decode)

    async def _subscribe_late(self, topic: str) -> None:
        await self._refresh_missing()
        await self._instance.heartbeat()
        await self._uploads.upload()
        if topic in self._subscriptions:
            self._announced[topic] = self._subscriptions[topic]
        self.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are released at the next rebalance."""
        wire_topic = wrap_namespace(self.options.namespace, topic)
        self._subscriptions.pop(wire_topic, None)
        self._announced.pop(wire_topic, None)
        self._uploads.remove(wire_topic)
        self._handlers.pop(topic, None)
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
        """Decorator: subscribe and call this function with the messages of the topic."""
        if callable(topic):
            raise TypeError(f'listen takes a topic: write @consumer.listen("topic") above {name_of(topic)}')

        def decorate(function: F) -> F:
            self.subscribe(
                topic, expression, function, sql=sql, batch_size=batch_size, type=type, decode=decode
            )
            return function

        return decorate

    def on_message(self, handler: Listener, *, batch_size: int | None = None) -> None:
        """The handler of every topic that has none of its own."""
        self._default_handler = self._handler(handler, batch_size)

    def add_hook(self, hook: ConsumeHook) -> None:
        """Have ``hook`` called around each call of a handler. Before the start."""
        if self._instance.running:
            raise ClientStateError("hooks are added before the start")
        self._hooks.append(hook)

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group. Returns when the first queues are taken."""
        if not self._subscriptions:
            raise ClientStateError("subscribe to a topic before the start")
        without = [topic for topic in self._subscriptions if self._handler_of(topic) is None]
        if without:
            if self._handlers:
                raise ClientStateError(f"no handler for topic {', '.join(without)}")
            self._inbox = Inbox(
                take=self._observed.begin,
                acknowledge=self._acknowledge,
                give_back=self._give_back,
                orderly=self.orderly,
                relock=self._relock if self.orderly and not self.broadcasting else None,
                now=self._clock.monotonic,
                now_ms=self._steady.now_ms,
            )
        if not self.broadcasting:
            topic = retry_topic(self.group)
            self._subscriptions[topic] = subscribe_by_tags(topic, "*", self._versions.now_ms())
        if self.options.trace:
            from orbitmq.client.trace import start_consume_tracer

            self._tracer = await start_consume_tracer(self.group, self._instance, self.options)
            self._hooks.append(self._tracer)
        self._build_services()
        await self._join()
        if not self._instance.running:
            return
        await self._uploads.upload()
        start = self._instance.tasks.start
        if self.orderly and not self.broadcasting:
            start(every(_LOCK_S, self._relock_all, first_s=1.0), "locks")
        elif not self.orderly:
            start(every(self.options.consume_timeout_s, self._send_back_expired), "expired-messages")

    def _build_services(self) -> None:
        options = self.options
        wrap = self._observed.call if self._hooks else None
        if self.orderly:
            hooks = OrderlyHooks(
                handler_for=self._handler_for,
                commit=lambda held, offset: self._offsets.update(held.queue, offset, increase_only=False),
                give_up=self._give_up,
                failed=self._log_failure,
                answer=self._answer,
                relock=self._relock,
                needs_lock=not self.broadcasting,
                wrap=wrap,
            )
            self._orderly = OrderlyService(
                tasks=self._instance.tasks,
                calls=self._calls,
                clock=self._steady,
                workers=options.workers,
                suspend_s=options.suspend_queue_s,
                reconsume_max=options.reconsume_max,
                hooks=hooks,
            )
        else:
            self._concurrent = ConcurrentService(
                tasks=self._instance.tasks,
                calls=self._calls,
                clock=self._steady,
                workers=options.workers,
                finish=self._finish,
                finish_other=self._finish_other,
                wrap=wrap,
            )

    async def stop(self) -> None:
        """Pull no more, let handlers end (``close_wait_s`` at most), store the offsets, leave the group.

        Called by a handler it returns at once, and the rest happens when the handler is done.
        """
        if not self._instance.running and self._stopping is None:
            return
        self._suspended = True
        if self._stopping is None:
            self._instance.begin_stop()
            service = self._concurrent or self._orderly
            if service is not None:
                service.begin_stop()
            self._stopping = self._life.start(self._stop(), "stop")
        if not self._instance.tasks.owns(asyncio.current_task()):
            await asyncio.shield(self._stopping)

    @property
    def handles_here(self) -> bool:
        """Whether a handler of this consumer runs on the thread or task that asks."""
        service = self._concurrent or self._orderly
        return service is not None and HANDLING.get() is service

    async def _stop(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
        self._pops.drop_all()
        service = self._concurrent or self._orderly
        if service is not None:
            await service.stop(self.options.close_wait_s)
        await self._pops.settled(self.options.close_wait_s)
        await self._call_back(self.options.on_revoked, self.queues, self.options.close_wait_s)
        for held in self._held.values():
            held.drop()
        await self._persist_at_end()
        if self.orderly and not self.broadcasting:
            # A queue whose handler still runs keeps its lock until it expires: nobody else may run beside it.
            await self._unlock([queue for queue, held in self._held.items() if not held.consuming], wait=True)
        await self._instance.stop()  # cancels coroutines that are left
        if service is not None:
            self.abandoned = service.running
        if self._tracer is not None:
            await self._tracer.stop()
        self._calls.close()

    def suspend(self) -> None:
        """Pull nothing until ``resume``; messages already here are still handled."""
        self._suspended = True

    def resume(self) -> None:
        """Go on pulling."""
        self._suspended = False

    def messages(self, *, auto_ack: bool = True) -> Cursor:
        """Iterate over what comes: ``async for message in consumer.messages()``. Without handlers only.

        Asking for the next message finishes the one before, unless ``message.ack()``, ``retry()`` or
        ``dead_letter()`` did; with ``auto_ack=False`` only those do. The iteration ends when the consumer stops.
        """
        if self._inbox is None:
            raise ClientStateError("a consumer with handlers, or one not started, cannot be iterated")
        return Cursor(self._inbox, auto_ack)

    def __aiter__(self) -> Cursor:
        return self.messages()

    def _acknowledge_left(self) -> None:
        if self._inbox is not None:
            self._inbox.acknowledge_left(at_end=True)

    def _acknowledge(self, held: ProcessQueue, message: ReceivedMessage) -> None:
        """An iterated message is done."""
        self._observed.end([message], SUCCESS)
        if self._orderly is None:
            self._finish(held, [message])
            return
        offset = held.commit()
        if offset >= 0 and not held.dropped:
            self._offsets.update(held.queue, offset, increase_only=False)

    async def _give_back(
        self, held: ProcessQueue, message: ReceivedMessage, delay_level: int, reason: str
    ) -> None:
        """An iterated message comes again."""
        outcome = Outcome(0, delay_level, RetryLater(reason, delay_level=delay_level), reason)
        self._observed.end([message], outcome)
        if self._orderly is None:
            await self._finish_other(held, [message], outcome)
            return
        pause_s = await self._orderly.again(held, [message], outcome)
        held.suspended_until = self._clock.monotonic() + pause_s
        assert self._inbox is not None
        self._inbox.wake()

    # -- pulling ---------------------------------------------------------------------------------------

    def _new_process_queue(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        options = self.options
        return ProcessQueue(
            queue,
            offset,
            count_max=options.cached_count_max,
            bytes_max=options.cached_bytes_max,
            span_max=0 if options.orderly else options.span_max,
        )

    def _begin(self, held: ProcessQueue) -> None:
        self._instance.tasks.start(self._pull_forever(held), f"pull-{held.queue.topic}-{held.queue.queue_id}")

    async def _pull_forever(self, held: ProcessQueue) -> None:
        while not held.ending:
            try:
                await self._pull_once(held)
            except Exception:  # a queue must not stand still for a bug in what reads its messages
                logger.exception("pull failed queue=%s offset=%d", held.queue, held.next_offset)
                await asyncio.sleep(self.options.pull_error_pause_s)

    async def _pull_once(self, held: ProcessQueue) -> None:
        options = self.options
        held.last_pull_ms = self._steady.now_ms()
        if self._suspended or held.paused:
            await asyncio.sleep(_PAUSED_S)
            return
        if held.full:
            self._log_full(held)
            await held.wait_for_room()
            held.last_pull_ms = self._steady.now_ms()
            return
        topic = held.queue.topic
        subscription = self._announced.get(topic) or self._subscriptions.get(topic)
        if subscription is None:
            await asyncio.sleep(options.pull_error_pause_s)
            return
        flags = PullFlag.SUSPEND
        committed = 0
        if not self.broadcasting:
            committed = self._offsets.offsets.get(held.queue, 0)
            if committed > 0:
                flags |= PullFlag.COMMIT_OFFSET
        if options.post_subscription and not subscription.class_filter_mode:
            flags |= PullFlag.SUBSCRIPTION
        try:
            result = await self._puller.pull(
                held.queue, held.next_offset, subscription, flags=flags, commit_offset=committed
            )
        except FlowControl:
            await asyncio.sleep(_FLOW_CONTROL_S)
            return
        except OrbitError as error:
            if subscription.class_filter_mode and not held.ending:
                await self._find_filter_servers(topic)
            await self._pull_failed(held, error)
            return
        if not held.ending:
            await self._pulled(held, result)
            if options.pull_interval_s:
                await asyncio.sleep(options.pull_interval_s)

    def _log_full(self, held: ProcessQueue) -> None:
        self._instance.log_limits.log(
            logger,
            logging.INFO,
            ("full", held.queue.topic),
            "cache full, pulling pauses queue=%s count=%d bytes=%d first=%d last=%d",
            held.queue,
            held.count,
            held.size,
            held.first_offset(),
            held.max_offset,
        )

    async def _find_filter_servers(self, topic: str) -> None:
        """One is new, or was restarted and does not have our class."""
        try:
            await self._instance.book.refresh(topic)
        except OrbitError as error:
            logger.debug("route not refreshed topic=%s error=%s", topic, error)
        await self._uploads.upload()

    async def _pulled(self, held: ProcessQueue, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_MOVED:
            logger.warning(
                "offset moved queue=%s from=%d to=%d", held.queue, held.next_offset, result.next_offset
            )
            self._offsets.update(held.queue, result.next_offset, increase_only=False)
            self._offsets.freeze(held.queue)
            await self._release(held)
            self.rebalance_soon()
            return
        held.next_offset = result.next_offset
        messages = result.messages
        if not messages:
            if not held.count:
                self._offsets.update(held.queue, result.next_offset)
            return
        held.put(messages)
        if self._inbox is not None:
            self._inbox.put(held, messages)
            return
        if self._orderly is not None:
            self._orderly.submit(held)
            return
        self._consume(held, messages)

    def _consume_popped(self, held: PopQueue, messages: list[PoppedMessage]) -> None:
        self._consume(held, list[ReceivedMessage](messages))

    def _consume(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        if self._inbox is not None:
            self._inbox.put(held, messages)
            return
        assert self._concurrent is not None
        start = 0
        handler = self._handler_for(messages[0])
        if not held.queue.topic.startswith(RETRY_PREFIX):
            self._concurrent.submit(held, handler, messages)
            return
        # Messages of a retry topic may be of any topic.
        for index, message in enumerate(messages):
            other = self._handler_for(message)
            if other is not handler:
                self._concurrent.submit(held, handler, messages[start:index])
                start, handler = index, other
        self._concurrent.submit(held, handler, messages[start:])

    def _handler_of(self, topic: str) -> Handler | None:
        name = unwrap_namespace(topic, self.options.namespace)
        return self._handlers.get(name) or self._default_handler

    def _handler_for(self, message: ReceivedMessage) -> Handler:
        handler = self._handlers.get(message.topic) or self._default_handler
        if handler is None:
            return _NO_HANDLER  # of a topic no longer subscribed: comes again, to a member that is
        return handler

    # -- after the handler -----------------------------------------------------------------------------

    def _finish(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        offset = held.remove(messages)
        if isinstance(held, PopQueue):
            self._pops.done(messages)
            return
        if offset >= 0 and not held.dropped:
            self._offsets.update(held.queue, offset)

    async def _finish_other(
        self, held: ProcessQueue, messages: list[ReceivedMessage], outcome: Outcome
    ) -> None:
        """After a handler that did not simply succeed."""
        if outcome.reply is not None:
            await self._answer(messages, outcome)
        finished = list(messages if outcome.done < 0 else messages[: outcome.done])
        again: list[ReceivedMessage] = []
        failed = messages[len(finished) :]
        if failed:
            self._log_failure(failed, outcome)
        if isinstance(held, PopQueue):
            self._finish(held, finished)
            held.remove(messages)
            self._pops.failed(failed, outcome)
            return
        for message in failed:
            if self.broadcasting:
                self._log_event("failed message dropped, broadcasting has no retry", message, outcome)
                finished.append(message)
            elif not held.holds(message) or await self._send_again(message, outcome):
                finished.append(message)
            else:
                message.reconsume_times += 1
                again.append(message)
        self._finish(held, finished)
        if again and not held.ending:
            self._instance.tasks.start(self._consume_again(held, again), "consume-again")

    async def _send_again(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Give a failed message to the broker for another try, or for the dead letters."""
        if self._send_back.is_last(message, outcome):
            self._log_event("dead letter", message, outcome)
        return await self._send_back.send_back(message, outcome)

    async def _give_up(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Orderly: out of the way of the others, to the dead letters."""
        self._log_event("dead letter", message, outcome)
        return await self._send_back.send_copy(message, self.options.reconsume_max, outcome)

    async def _answer(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """Send what the handler of a request returned. A reply that cannot be sent is the asker's time-out."""
        try:
            await self._send_back.reply(messages[0], outcome.reply)
        except (OrbitError, TypeError, ValueError) as error:
            logger.warning("reply not sent id=%s error=%s", messages[0].message_id, error)

    def _log_event(self, event: str, message: ReceivedMessage, outcome: Outcome) -> None:
        logger.warning(
            "%s group=%s topic=%s id=%s keys=%s attempt=%d reason=%s",
            event,
            self.group,
            message.topic,
            message.message_id,
            ",".join(message.keys),
            message.attempt,
            outcome.reason or "asked for",
        )

    def _log_failure(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """One line, with a traceback where there is one, for each kind of failure and while."""
        if isinstance(outcome.error, RetryLater):
            return  # asked for, not an accident
        message, error = messages[0], outcome.error
        handler = self._handler_of(message.topic)
        # The traceback of a body that does not fit shows code of ours only.
        misfit = isinstance(error, BodyMismatch)
        self._instance.log_limits.log_error(
            logger,
            ("handler", message.topic, type(error)),
            "handler failed, message comes again handler=%s topic=%s id=%s keys=%s attempt=%d"
            + (" reason=%s" if misfit else ""),
            "" if handler is None else name_of(handler.function),
            message.topic,
            message.message_id,
            ",".join(message.keys),
            message.attempt,
            *([error] if misfit else []),
            error=None if misfit else error,
        )

    async def _consume_again(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        await asyncio.sleep(_LOCAL_RETRY_S)
        if self._inbox is not None and not held.ending:
            self._inbox.put(held, messages)
        elif not held.ending and self._concurrent is not None:
            for message in messages:
                self._concurrent.submit(held, self._handler_for(message), [message])

    async def _send_back_expired(self) -> None:
        """Messages whose handler takes too long get another try elsewhere."""
        limit_ms = self.options.consume_timeout_s * 1000
        reason = f"the handler ran for more than {self.options.consume_timeout_s:g} s (consume_timeout_s)"
        expired = Outcome(0, _EXPIRED_LEVEL, reason=reason)
        for held in list(self._held.values()):
            for _ in range(_EXPIRED_PER_ROUND):
                first = held.first()
                if first is None or not first.consume_started_ms or held.ending:
                    break
                if self._steady.now_ms() - first.consume_started_ms <= limit_ms:
                    break
                logger.warning(
                    "handler takes too long, sending back id=%s queue=%s", first.message_id, held.queue
                )
                if self.broadcasting or not await self._send_back.send_back(first, expired):
                    break
                if held.first() is first:
                    self._finish(held, [first])

    # -- assignment by the broker ----------------------------------------------------------------------

    @property
    def _asks_broker(self) -> bool:
        return self.options.server_rebalance and not self.orderly

    async def _take_assignment(self, topic: str, queues: list[MessageQueue]) -> bool | None:
        assignment = await self._pops.ask(topic)
        if assignment is None:
            return None
        pulled, popped = assignment
        balanced = await self._apply(topic, queues, pulled)
        self._pops.apply(topic, popped)
        return balanced

    # -- locks -----------------------------------------------------------------------------------------

    async def _relock_all(self) -> None:
        queues = list(self._held)
        locked = await self._lock(queues)
        now_ms = self._steady.now_ms()
        for queue in queues:
            held = self._held.get(queue)
            if held is not None:
                held.locked = queue in locked
                if held.locked:
                    held.last_lock_ms = now_ms

    async def _relock(self, held: ProcessQueue) -> bool:
        held.locked = held.queue in await self._lock([held.queue])
        if held.locked:
            held.last_lock_ms = self._steady.now_ms()
        return held.locked

    async def _before_release(self, held: ProcessQueue) -> bool:
        """Orderly: the handler at work must end first, or the next owner would run beside it. The rebalance waits a
        moment and comes back; the lock stays ours meanwhile."""
        if self._orderly is None:
            return True
        for _ in range(50):
            if not held.consuming and not held.runner_active:
                return True
            await asyncio.sleep(0.01)
        return False

    def _queues_changed(self, topic: str, queues: list[MessageQueue], mine: list[MessageQueue]) -> None:
        options = self.options
        if mine:
            for queue in mine:
                held = self._held[queue]
                if options.cached_count_max_per_topic:
                    held.count_max = max(1, options.cached_count_max_per_topic // len(mine))
                if options.cached_bytes_max_per_topic:
                    held.bytes_max = max(1, options.cached_bytes_max_per_topic // len(mine))
        if options.on_queues_changed is not None:
            _guard(options.on_queues_changed, topic, queues, mine)

    # -- calls of brokers ------------------------------------------------------------------------------

    def routes(self) -> list[Route | RawRoute]:
        return [*super().routes(), *self._remote_calls.routes()]


def _no_handler(message: ReceivedMessage) -> None:
    raise LookupError(f"no handler for topic {message.topic}")


_NO_HANDLER: Final = Handler(_no_handler, None)


def _guard(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:  # code of the user's that only watches
        logger.exception("callback failed callback=%s", getattr(function, "__qualname__", function))
