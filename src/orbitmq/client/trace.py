"""Message trace: records in the trace topic who sent and who consumed a message (Apache: ``AsyncTraceDispatcher``).

Records end with 0x02, fields are separated by 0x01. The dispatcher has its own producer. Records that do not fit its
bounded queue are dropped and counted, because tracing must never slow down what it traces.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.client.consume.handlers import ConsumeContext
from orbitmq.client.message import Message, SendResult, TransactionState
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions, ProducerOptions
from orbitmq.client.produce.sender import SendContext
from orbitmq.codes import Property
from orbitmq.errors import OrbitError
from orbitmq.model.names import unwrap_namespace
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner, every

if TYPE_CHECKING:
    from orbitmq.client.produce.producer import Producer

__all__ = [
    "TraceDispatcher",
    "consume_after_record",
    "consume_before_record",
    "end_transaction_record",
    "send_record",
    "start_consume_tracer",
    "start_send_tracer",
]

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 2048
BODY_BYTES_MAX: Final = 128_000
FLUSH_S: Final = 0.5
BATCH_MAX: Final = 100
_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",  # sic
}
_NORMAL, _HALF, _COMMIT, _DELAY, _ORDER = range(5)
_serial: Final = itertools.count(1)


class TraceRecord(msgspec.Struct, frozen=True):
    """One record of the trace, and the keys by which it is indexed."""

    text: str
    keys: frozenset[str]


def _joined(*fields: object) -> str:
    return "\x01".join("null" if field is None else str(field) for field in fields) + "\x02"


def _lower(value: bool) -> str:
    return "true" if value else "false"


def send_record(
    group: str, message: Message, result: SendResult, *, address: str, now_ms: int, cost_ms: int
) -> TraceRecord:
    """Returns the ``Pub`` record of a send."""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    kind = _DELAY if message.is_delayed else _ORDER if message.shard_key else _NORMAL
    text = _joined(
        "Pub",
        now_ms,
        result.region_id,
        group,
        message.topic,
        result.message_id,
        message.tags or None,
        keys or None,
        address,
        len(message.body_bytes()),
        cost_ms,
        kind,
        result.offset_message_id,
        "true",
    )
    return TraceRecord(text, frozenset([*result.message_id.split(","), *keys.split()]))


def end_transaction_record(
    group: str,
    message: Message,
    result: SendResult,
    state: TransactionState,
    *,
    address: str,
    now_ms: int,
    from_check: bool,
) -> TraceRecord:
    """Returns the ``EndTransaction`` record of a transaction's outcome."""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    text = _joined(
        "EndTransaction",
        now_ms,
        result.region_id or "",
        group,
        message.topic,
        result.message_id,
        message.tags or None,
        keys or None,
        address,
        _COMMIT,
        result.transaction_id or result.message_id,
        _STATES[state],
        _lower(from_check),
    )
    return TraceRecord(text, frozenset([result.message_id, *keys.split()]))


def consume_before_record(context: ConsumeContext, group: str, request_id: str) -> TraceRecord:
    """Returns the ``SubBefore`` record of a handler call, with an entry for each message."""
    keys: set[str] = set()
    parts: list[str] = []
    for message in context.messages:
        joined = " ".join(message.keys)
        keys.update((message.message_id, *message.keys))
        region = message.get(Property.MSG_REGION)
        parts.append(
            _joined(
                "SubBefore",
                context.started_ms,
                region,
                group,
                request_id,
                message.message_id,
                message.reconsume_times,
                joined or None,
            )
        )
    return TraceRecord("".join(parts), frozenset(keys))


def consume_after_record(context: ConsumeContext, group: str, request_id: str, *, now_ms: int) -> TraceRecord:
    """Returns the ``SubAfter`` record of a handler call, with an entry for each message."""
    code = 0 if context.success else 2 if context.error is not None else 4
    cost_ms = (now_ms - context.started_ms) // max(1, len(context.messages))
    keys: set[str] = set()
    parts: list[str] = []
    for message in context.messages:
        joined = " ".join(message.keys)
        keys.update((message.message_id, *message.keys))
        parts.append(
            _joined(
                "SubAfter",
                request_id,
                message.message_id,
                cost_ms,
                _lower(context.success),
                joined or None,
                code,
                now_ms,
                group,
            )
        )
    return TraceRecord("".join(parts), frozenset(keys))


class TraceDispatcher:
    """Collects records and sends them in batches. A hook for producers and consumers."""

    def __init__(
        self, group: str, namespace: str, trace_topic: str, clock: Clock, instance: ClientInstance
    ) -> None:
        self._group = unwrap_namespace(group, namespace)
        self._trace_topic = trace_topic
        self._clock = clock
        self._instance = instance
        self._waiting: deque[TraceRecord] = deque()
        self._tasks = TaskOwner("trace")
        self._producer: Producer | None = None
        self.dropped = 0
        """Records lost because too many were waiting or could not be sent."""

    async def start(self, producer: Producer) -> None:
        """Start sending with ``producer``, which the dispatcher owns from now on."""
        self._producer = producer
        await producer.start()
        self._tasks.start(every(FLUSH_S, self.flush), "flush")

    async def stop(self) -> None:
        """Send the waiting records and stop."""
        await self.flush()
        await self._tasks.close()
        if self._producer is not None:
            await self._producer.stop()
        if self.dropped:
            logger.warning("trace records were dropped count=%d", self.dropped)

    def add(self, record: TraceRecord) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
        else:
            self._waiting.append(record)

    async def flush(self) -> None:
        """Send all waiting records."""
        while self._waiting:
            batch: list[TraceRecord] = []
            size = 0
            while self._waiting and len(batch) < BATCH_MAX:
                size += len(self._waiting[0].text)
                if batch and size > BODY_BYTES_MAX:
                    break
                batch.append(self._waiting.popleft())
            keys = sorted({key for record in batch for key in record.keys})
            message = Message(self._trace_topic, "".join(record.text for record in batch), keys=keys)
            try:
                assert self._producer is not None
                await self._producer.send(message)
            except OrbitError as error:
                self.dropped += len(batch)
                logger.info("trace not sent count=%d error=%s", len(batch), error)

    # -- hooks -----------------------------------------------------------------------------------------

    def before_send(self, context: SendContext) -> None:
        """Do nothing, because records are created after the send."""

    def after_send(self, context: SendContext) -> None:
        result = context.result
        if result is None or not result.region_id or not result.trace_on or not context.messages:
            return
        message = context.messages[0]
        if message.topic == self._trace_topic:
            return
        if len(context.messages) > 1:
            body = b"".join(part.body_bytes() for part in context.messages)
            message = msgspec.structs.replace(message, body=body)
        now_ms = self._clock.now_ms()
        cost_ms = (now_ms - context.started_ms) // len(context.messages)
        self.add(
            send_record(
                self._group,
                message,
                result,
                address=context.broker_address,
                now_ms=context.started_ms,
                cost_ms=cost_ms,
            )
        )

    def end_transaction(
        self, message: Message, result: SendResult, state: TransactionState, *, from_check: bool
    ) -> None:
        """Record the outcome of a transaction."""
        address = self._instance.book.master_address(result.queue.broker_name) or ""
        self.add(
            end_transaction_record(
                self._group,
                message,
                result,
                state,
                address=address,
                now_ms=self._clock.now_ms(),
                from_check=from_check,
            )
        )

    def before_consume(self, context: ConsumeContext) -> None:
        traced = [m for m in context.messages if m.get(Property.TRACE_ON) != "false"]
        if not traced:
            return
        request_id = self._instance.unique_keys.next()
        context.extra["trace"] = request_id
        part = msgspec.structs.replace(context, messages=traced)
        self.add(consume_before_record(part, self._group, request_id))

    def after_consume(self, context: ConsumeContext) -> None:
        request_id = context.extra.get("trace")
        if request_id is None:
            return
        traced = [m for m in context.messages if m.get(Property.TRACE_ON) != "false"]
        part = msgspec.structs.replace(context, messages=traced)
        self.add(consume_after_record(part, self._group, request_id, now_ms=self._clock.now_ms()))


async def _start(
    group: str, kind: str, instance: ClientInstance, options: ProducerOptions | ConsumerOptions
) -> TraceDispatcher:
    from orbitmq.client.produce.producer import Producer

    dispatcher = TraceDispatcher(group, options.namespace, options.trace_topic, instance.clock, instance)
    name = unwrap_namespace(group, options.namespace)
    producer = Producer(
        f"_INNER_TRACE_PRODUCER-{name}-{kind}-{next(_serial)}",
        ";".join(instance.name_servers),
        ProducerOptions(
            credentials=options.credentials,
            tls=options.tls_context,
            serialize=options.serialize,
            client_ip=options.client_ip,
            send_timeout_s=5.0,
            message_bytes_max=BODY_BYTES_MAX * 2,
        ),
        clock=instance.clock,
    )
    await dispatcher.start(producer)
    return dispatcher


async def start_send_tracer(
    producer: Producer, instance: ClientInstance, options: ProducerOptions
) -> TraceDispatcher:
    """Returns a started dispatcher for the sends of ``producer``."""
    return await _start(producer.group, "PRODUCE", instance, options)


async def start_consume_tracer(
    group: str, instance: ClientInstance, options: ConsumerOptions
) -> TraceDispatcher:
    """Returns a started dispatcher for the messages that a group consumes."""
    return await _start(group, "CONSUME", instance, options)
