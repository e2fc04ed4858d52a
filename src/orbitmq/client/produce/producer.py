"""The producer (Apache: ``DefaultMQProducer``, ``TransactionMQProducer``)."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

import msgspec

from orbitmq.client.callables import UserCalls
from orbitmq.client.checks import check_type, shown
from orbitmq.client.errors import ClientStateError, SendTimeoutError
from orbitmq.client.message import Message, ReceivedMessage, SendResult
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ProducerOptions, build_options
from orbitmq.client.produce.accumulator import Accumulator
from orbitmq.client.produce.queue_picker import select_by_hash
from orbitmq.client.produce.request_reply import Requests
from orbitmq.client.produce.sender import Outgoing, Selector, SendContext, Sender, SendHook
from orbitmq.client.produce.transactions import (
    LocalTransaction,
    TransactionBlock,
    TransactionCheck,
    Transactions,
)
from orbitmq.client.settings import ProducerSettings
from orbitmq.codes import ClientErrorCode, Property
from orbitmq.errors import MessageIllegal
from orbitmq.model.names import PRODUCER_GROUP_RESERVED, check_group, is_retry_topic, wrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.record.batch import encode_batch
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.transport.router import RawRoute, Route
from orbitmq.wire.bodies import ConsumerData, ProducerData
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    CheckTransactionStateRequest,
    PushReplyMessageToClientRequest,
    RecallMessageRequest,
    RecallMessageResponse,
)

if TYPE_CHECKING:
    from orbitmq.client.trace import TraceDispatcher

__all__ = ["Producer", "QueueSelector", "per_message", "selector_of"]

logger = logging.getLogger(__name__)

QueueSelector = (
    Callable[[list[MessageQueue]], MessageQueue] | Callable[[list[MessageQueue], Message, Any], MessageQueue]
)
T = TypeVar("T")
_BATCH_ENTRY_OVERHEAD: Final = 22


class Producer:
    """Sends messages. ``async with Producer("group", "127.0.0.1:9876") as producer: await producer.send(...)``.

    ``name_servers`` is ``host:port``, several joined by ``;``. If it is empty, the variable NAMESRV_ADDR is used.
    Settings are those of ``ProducerOptions``, as an object or as keyword arguments. ``check`` decides the outcome of
    unfinished transactions when a broker checks back.
    """

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        options: ProducerOptions | None = None,
        *,
        check: TransactionCheck | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.options = build_options(ProducerOptions, options, dict(settings))
        check_type("group", group, str)
        self.group = wrap_namespace(self.options.namespace, group)
        check_group(self.group)
        if group == PRODUCER_GROUP_RESERVED:
            raise ClientStateError(f"group {group} is reserved; choose a name of your own")
        self._clock = clock
        self._instance = ClientInstance(self, name_servers, self.options, clock=clock)
        self._sender = Sender(self._instance, self.group, self.options)
        self._calls = UserCalls(self.options.check_threads, f"orbitmq-{self.group}")
        self._workers = UserCalls(2, f"orbitmq-{self.group}-compress")
        self._transactions = Transactions(self._instance, self._sender, check, self._calls)
        self._requests = Requests(self._instance, self._sender)
        self._hooks: list[SendHook] = []
        self._accumulator: Accumulator | None = None
        self._tracer: TraceDispatcher | None = None

    # -- life ------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    async def start(self) -> None:
        """Accept sends. Brokers are contacted when the first topic is used."""
        self._instance.start(self._routes())
        if self.options.batch_linger_s > 0:
            self._accumulator = Accumulator(
                self.options, self._instance.tasks, self._send_accumulated, self._sender.entry
            )
        if self.options.trace:
            from orbitmq.client.trace import start_send_tracer

            self._tracer = await start_send_tracer(self, self._instance, self.options)
            self._hooks.append(self._tracer)
            tracer = self._tracer
            self._transactions.on_end = lambda message, result, state: tracer.end_transaction(
                message, result, state, from_check=False
            )

    async def stop(self) -> None:
        """Wait for the sends in flight and leave the brokers."""
        if self._accumulator is not None:
            await self._accumulator.drain(self.options.close_wait_s)
        await self._finish_sends()
        if self._tracer is not None:
            await self._tracer.stop()
        await self._instance.stop()
        self._calls.close()
        self._workers.close()

    async def _finish_sends(self) -> None:
        """Wait for the sends of other tasks. Each has a timeout, and ``close_wait_s`` limits them all."""
        in_flight = self._sender.in_flight
        in_flight.closed = True
        try:
            async with asyncio.timeout(self.options.close_wait_s):
                await in_flight.drained()
        except TimeoutError:
            logger.warning("sends unfinished at shutdown count=%d", in_flight.count + in_flight.waiting)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def add_hook(self, hook: SendHook) -> None:
        """Add a hook, which is called around each send."""
        self._hooks.append(hook)

    # -- sending ---------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        argument: Any = None,
        timeout_s: float | None = None,
        message_id: str = "",
    ) -> SendResult:
        """Store one message. Start many sends concurrently (``asyncio.gather``) for throughput.

        The message goes to ``queue``, or to the queue that ``select`` chooses, or to the queue of
        ``message.shard_key``. Without these the queues take turns, and a failed attempt is retried on another broker.
        ``select`` is called with the queues, or with the queues, the message and ``argument``. Raises ``SendFailed``,
        ``NoRouteError``, ``NameServerError``, or the ``BrokerError`` of a refusal.

        ``message_id`` is the message's unique key, for idempotent producers: if a message is already stored under
        this key, for example by a send that timed out, it is not stored again. By default each send gets a new key.
        """
        check_send(message, timeout_s)
        chosen = None if select is None else selector_of(select, message, argument)
        if message_id:
            if not self.options.idempotent:
                raise ClientStateError("message_id needs a producer with idempotent=True")
        elif (
            self._accumulator is not None and queue is None and chosen is None and Accumulator.takes(message)
        ):
            return await self._accumulator.send(message, timeout_s)
        elif not self._hooks:
            # Hot path.
            sender = self._sender
            outgoing = await self._prepare(message) if sender.is_costly(message) else sender.prepare(message)
            return await sender.send(
                outgoing, queue=queue, shard_key=message.shard_key, select=chosen, timeout_s=timeout_s
            )

        async def send(messages: list[Message], context: SendContext | None) -> SendResult:
            [changed] = messages
            extra = {Property.UNIQUE_KEY.value: message_id} if message_id else None
            outgoing = await self._prepare(changed, extra, context)
            return await self._sender.send(
                outgoing,
                queue=queue,
                shard_key=changed.shard_key,
                select=chosen,
                timeout_s=timeout_s,
                context=context,
            )

        return await self._observed("send", [message], send)

    async def _prepare(
        self, message: Message, extra: dict[str, str] | None = None, context: SendContext | None = None
    ) -> Outgoing:
        """Returns the message prepared by ``Sender.prepare``. A large body is compressed on a thread, so that it does
        not block the loop."""
        if self._sender.is_costly(message):
            outgoing: Outgoing = await self._workers.in_thread(self._sender.prepare, message, extra)
        else:
            outgoing = self._sender.prepare(message, extra)
        if context is not None:
            context.unique_key = outgoing.unique_key
        return outgoing

    async def _observed(
        self,
        mode: str,
        messages: list[Message],
        send: Callable[[list[Message], SendContext | None], Awaitable[T]],
    ) -> T:
        """Call the hooks around a send. All sends with hooks pass through here. Hooks may add properties before the
        send and see its result afterwards."""
        if not self._hooks:
            return await send(messages, None)
        copies = [msgspec.structs.replace(m, properties=dict(m.properties)) for m in messages]
        context = SendContext(self.group, copies, started_ms=self._clock.now_ms(), mode=mode)
        self._run_hooks("before_send", context)
        try:
            result = await send(copies, context)
            if isinstance(result, SendResult):
                context.result = result
        except BaseException as error:
            context.error = error
            raise
        finally:
            self._run_hooks("after_send", context)
        return result

    def _run_hooks(self, moment: str, context: SendContext) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, moment)(context)
            except Exception:  # a hook watches; it must not break what it watches
                logger.exception("send hook failed hook=%r", hook)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        """Send without waiting for a response. This is the fastest way, but messages are lost silently if anything
        goes wrong."""
        check_send(message)
        chosen = None if select is None else selector_of(select, message, argument)

        async def send(messages: list[Message], context: SendContext | None) -> None:
            [changed] = messages
            outgoing = await self._prepare(changed, context=context)
            queues = await self._sender.pick(outgoing.topic)
            target = queue
            if target is None and chosen is not None:
                target = chosen(queues)
            if target is None and changed.shard_key:
                target = select_by_hash(queues, changed.shard_key)
            target = target or self._sender.picker.pick(queues, None)
            if context is not None:
                context.queue = target
            await self._sender.attempt_oneway(outgoing, target)

        await self._observed("oneway", [message], send)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Store several messages of one topic in as few requests as their size allows. Returns one result per
        message, in their order.

        Each request is stored as a whole or not at all. If a request fails, the messages of earlier requests stay
        stored.
        """
        results: list[SendResult] = []
        check_time_left(timeout_s)

        async def send(changed: list[Message], context: SendContext | None) -> None:
            for _, keys, outgoing in self._batches(changed):
                if context is not None:
                    context.unique_key = outgoing.unique_key
                result = await self._sender.send(outgoing, queue=queue, timeout_s=timeout_s, context=context)
                if context is not None:
                    context.result = result
                results.extend(per_message(result, keys))

        await self._observed("batch", list(messages), send)
        return results

    async def _send_accumulated(self, messages: list[Message]) -> list[SendResult]:
        if len(messages) == 1 and not self._hooks:
            return [await self._sender.send(self._sender.prepare(messages[0]))]
        return await self.send_batch(messages)

    async def flush(self) -> None:
        """Wait until everything that was passed to the producer so far is stored or has failed."""
        if self._accumulator is not None:
            await self._accumulator.drain(None)
        await self._sender.in_flight.drained()

    @property
    def in_flight(self) -> int:
        """The number of sends that wait for a slot or a response."""
        return self._sender.in_flight.count + self._sender.in_flight.waiting

    @property
    def held_messages(self) -> dict[str, int]:
        """The number of sends that wait for a response, and of those that wait for a slot (``metrics.py``)."""
        return {"in flight": self._sender.in_flight.count, "waiting": self._sender.in_flight.waiting}

    async def wait_ready(self, *topics: str, timeout_s: float = 10.0) -> None:
        """Wait until a name server answers, and a master of each topic does. Raises ``TimeoutError`` with the last
        failure as its cause."""
        wire_topics = [self._sender.wire_topic(topic) for topic in topics]
        await self._instance.wait_ready(wire_topics, timeout_s, self.options.auto_create_queue_count)

    def _batches(self, messages: Sequence[Message]) -> Iterable[tuple[list[Message], list[str], Outgoing]]:
        if not messages:
            raise MessageIllegal("a batch needs at least one message")
        first = messages[0]
        check_type("a message of a batch", first, Message)
        name, wait_stored = first.topic, first.wait_stored
        for message in messages:
            if message.topic != name or message.wait_stored is not wait_stored:
                raise MessageIllegal("the messages of a batch must have one topic and one wait_stored")
            # Written out: a property per message would be a tenth of the cost of a message in a batch.
            if message.delay_level or message.delay_ms or message.deliver_at_ms:
                raise MessageIllegal("messages of a batch cannot be delayed")
        topic = self._sender.wire_topic(name)
        if is_retry_topic(topic):
            raise MessageIllegal("a batch cannot go to a retry topic")
        limit = self.options.message_bytes_max
        wait = f"WAIT\x01{'true' if wait_stored else 'false'}\x02"
        if self.options.idempotent:
            wait += f"{Property.IDEMPOTENT}\x01true\x02"
        new_entry = self._sender.entry
        piece: list[Message] = []
        keys: list[str] = []
        entries: list[tuple[int, bytes, bytes]] = []
        size = 0
        for message in messages:
            key, entry = new_entry(message)
            entry_size = _BATCH_ENTRY_OVERHEAD + len(entry[1]) + len(entry[2])
            if entries and size + entry_size > limit:
                yield piece, keys, _batch(topic, entries, keys, wait)
                piece, keys, entries, size = [], [], [], 0
            piece.append(message)
            keys.append(key)
            entries.append(entry)
            size += entry_size
        yield piece, keys, _batch(topic, entries, keys, wait)

    async def send_in_transaction(
        self, message: Message, local: LocalTransaction, *, timeout_s: float | None = None
    ) -> SendResult:
        """Send a message that consumers see only if ``local`` commits; see ``Transactions.send``."""
        check_send(message, timeout_s)

        async def send(messages: list[Message], context: SendContext | None) -> SendResult:
            return await self._transactions.send(messages[0], local, timeout_s=timeout_s, context=context)

        return await self._observed("transaction", [message], send)

    def transaction(self, message: Message, *, timeout_s: float | None = None) -> TransactionBlock:
        """Returns a block for ``async with producer.transaction(message) as transaction``.

        The message is stored, but invisible to consumers while the block runs. Consumers get it when the block ends,
        and never if the block raises an exception.
        """
        check_send(message, timeout_s)
        return TransactionBlock(self._transactions, message, timeout_s)

    async def request(self, message: Message, *, timeout_s: float = 3.0) -> ReceivedMessage:
        """Send a request and wait for the reply, which is the result of the consumer's handler or a message it sends
        with ``message.reply``. Raises ``ReplyTimeoutError``."""
        check_send(message)
        reply: list[ReceivedMessage] = []

        async def send(messages: list[Message], context: SendContext | None) -> None:
            answer = await self._requests.request(messages[0], timeout_s=timeout_s, context=context)
            reply.append(answer)

        await self._observed("request", [message], send)
        return reply[0]

    async def recall(self, topic: str, handle: str) -> str:
        """Cancel a timer message by the ``recall_handle`` of its result. Returns the message's id. Needs a broker of
        version 5.3.2 or later."""
        topic = self._sender.wire_topic(topic)
        queues = await self._sender.pick(topic)
        broker_name = _broker_of(handle) or queues[0].broker_name
        header = RecallMessageRequest(
            topic=topic, recall_handle=handle, producer_group=self.group, broker_name=broker_name
        )
        answer = await self._instance.ask(
            self._instance.master(broker_name), RequestCode.RECALL_MESSAGE, header
        )
        return decode_header(RecallMessageResponse, answer).msg_id

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the queues to which messages of a topic can be sent."""
        queues = await self._sender.pick(self._sender.wire_topic(topic))
        if not self.options.namespace:
            return list(queues)
        return [msgspec.structs.replace(queue, topic=topic) for queue in queues]

    # -- what the instance asks (Member) ---------------------------------------------------------------

    def topics(self) -> set[str]:
        return set()

    def producer_data(self) -> ProducerData | None:
        return ProducerData(group_name=self.group)

    def consumer_data(self) -> ConsumerData | None:
        return None

    def _routes(self) -> list[Route | RawRoute]:
        return [
            Route(
                RequestCode.CHECK_TRANSACTION_STATE, self._transactions.asked, CheckTransactionStateRequest
            ),
            Route(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                self._requests.answered,
                PushReplyMessageToClientRequest,
            ),
        ]


def check_send(message: Message, timeout_s: float | None = None) -> None:
    """Check the arguments of a send. Raises ``TypeError``, and ``SendTimeoutError`` if no time is left."""
    if not isinstance(message, Message):
        raise TypeError(f"a Message is sent, not {shown(message)}")
    if timeout_s is not None:
        check_time_left(timeout_s)


def check_time_left(timeout_s: float | None) -> None:
    """Raise ``SendTimeoutError`` if the timeout had passed before the send began."""
    if timeout_s is not None and not timeout_s > 0:
        raise SendTimeoutError(
            f"nothing was sent: timeout_s is {timeout_s:g}",
            code=int(ClientErrorCode.ACCESS_BROKER_TIMEOUT),
            attempts=0,
        )


def selector_of(select: QueueSelector, message: Message, argument: Any) -> Selector:
    """Returns the selector in the form the sender calls, with the queues as the only argument."""
    call: Any = select
    takes_all = _takes_all(select)

    def chosen(queues: list[MessageQueue]) -> MessageQueue:
        queue = call(queues, message, argument) if takes_all else call(queues)
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"select returned {shown(queue)}; one of the queues it got is accepted")
        return queue

    return chosen


@lru_cache(maxsize=256)
def _takes_all(select: Callable[..., MessageQueue]) -> bool:
    """Whether a selector also accepts the message and the argument."""
    try:
        parameters = signature(select).parameters.values()
    except (TypeError, ValueError):  # of C: it says nothing about itself
        return False
    kinds = (*(p.kind for p in parameters if p.default is p.empty),)
    return sum(1 for kind in kinds if kind.name.startswith("POSITIONAL")) == 3


def _batch(topic: str, entries: list[tuple[int, bytes, bytes]], keys: list[str], wait: str) -> Outgoing:
    return Outgoing(
        topic,
        encode_batch(entries),
        wait.encode(),
        ",".join(keys),
        code=int(RequestCode.SEND_BATCH_MESSAGE),
        batch=True,
    )


def per_message(result: SendResult, keys: list[str]) -> list[SendResult]:
    """Split the result of a batch into one result per message."""
    ids = result.offset_message_id.split(",")
    if len(ids) != len(keys):  # a topic of batch queues keeps the batch as one record
        ids = [result.offset_message_id] * len(keys)
    status, queue, first = result.status, result.queue, result.queue_offset
    rest = (result.transaction_id, result.region_id, result.trace_on, result.recall_handle)
    return [
        SendResult(status, key, queue, first + index, ids[index], *rest) for index, key in enumerate(keys)
    ]


def _broker_of(handle: str) -> str:
    """Returns the name of the broker in a recall handle; empty if the handle cannot be parsed."""
    try:
        parts = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except ValueError:
        return ""
    return parts[2] if len(parts) >= 5 else ""
