"""Serves SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (Apache: SendMessageProcessor).

One turn of the event loop may bring dozens of sends, from one connection or from many. The kernel returns the plain
sends of a read as one value (``Sends``). ``accept`` checks the broker once and each queue once, and adds the value to
``_pending``. ``send`` handles every other send on its own, and creates a ``Sends`` for the message it stores. These
are sends with a delay, a transaction, a retry topic, a priority, a quota or a new topic, idempotent sends, and sends
to refuse. When all sockets of the turn have been read, ``append_pending`` appends all values with one write to the
log and answers each connection with one write. A read that fills ``_pending`` is appended immediately, so memory and
latency are bounded.

The checks, their order and their codes are Apache 5.5.0's (``send_checks.py``). A refused request stores nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.delivery.stored_sends import FoundSend, StoredSends
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.recall import recall_handle
from orbitmq.broker.handlers.send_checks import NOT_A_MASTER, SendChecks
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Property, ResponseCode, SysFlag, Version
from orbitmq.errors import (
    BrokerError,
    MessageIllegal,
    RecordError,
    ServerError,
    SubscriptionGroupNotExist,
)
from orbitmq.kernel import (
    SendFields,
    Sends,
    StoredProperties,
    encode_send_answers,
    sends_of,
    stored_properties,
)
from orbitmq.model.names import RETRY_PREFIX, TIMER_TOPIC, dlq_topic
from orbitmq.model.topic import PERM_READ_WRITE, TopicConfig, TopicFilterType
from orbitmq.record.batch import split_batch
from orbitmq.record.hosts import encode_host
from orbitmq.record.ids import UniqueKeys
from orbitmq.record.properties import encode_properties, find_property, remove_property, terminated
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.stalls import HOLD_S, STALLS
from orbitmq.store.errors import StoreError, StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute
from orbitmq.wire.frame import Frame, encode_response
from orbitmq.wire.headers.send import send_fields

__all__ = ["SEND_CODES", "SendHandlers"]

logger = logging.getLogger(__name__)

SEND_CODES: Final = frozenset(
    map(int, (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
)
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_PENDING_MAX: Final = 64
"""The number of pending sends that are appended without waiting for the end of the turn. A larger batch gains
little."""
_PENDING_BYTES_MAX: Final = 256 * 1024
_ONEWAY: Final = 2
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_TRANSACTION_BITS: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_PRIORITY: Final = b"_SYS_MSG_PRIORITY_"
_PRIORITY_DIGITS_MAX: Final = 10
_NOT_RANKED: Final = (
    b"TRAN_MSG",
    b"DELAY",
    b"TIMER_DELIVER_MS",
    b"TIMER_DELAY_SEC",
    b"TIMER_DELAY_MS",
    b"__SHARDINGKEY",
)
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()
_IDEMPOTENT: Final = Property.IDEMPOTENT.encode()
_MULTI_TAG: Final = TopicFilterType.MULTI_TAG


class _Answers(Protocol):
    """Where the answer to a send is written: the connection, or a wrapper that delays it."""

    def send(self, data: bytes) -> None: ...


class _RoutedAnswers:
    """Delays the answer to a send that created a topic until the name servers know the topic, because the sender may
    query its route next. Apache does the same."""

    __slots__ = ("_connection", "_when_routed")

    def __init__(self, connection: Connection, when_routed: Callable[[Callable[[], None]], None]) -> None:
        self._connection = connection
        self._when_routed = when_routed

    def send(self, data: bytes) -> None:
        self._when_routed(lambda: self._connection.send(data))


_Pending = tuple[_Answers, Sends]
"""Checked sends that wait for the append."""


@dataclass(kw_only=True, eq=False)
class SendHandlers:
    """Accepts all kinds of sends from producers."""

    config: BrokerConfig
    store: MessageStore
    store_host: bytes
    topics: TopicTable
    groups: GroupTable
    locks: QueueLocks
    stats: BrokerStats
    puts: WritePath
    checks: SendChecks
    unique_keys: UniqueKeys
    clock: Clock
    events: BrokerEvents
    when_routed: Callable[[Callable[[], None]], None]
    """Calls back once the name servers know the topics created so far, or after a second."""

    def __post_init__(self) -> None:
        self._pending: list[_Pending] = []
        self._pending_count = 0
        self._pending_bytes = 0
        """Total size of the pending bodies."""
        self._stored_sends = StoredSends(self.store, self.clock)
        self._turn_planned = False
        self._is_turn_end = False
        """Whether the append runs outside a socket read. A socket read is timed as a whole."""
        self._prepare()
        self.events.options_changed.append(lambda _keys: self._prepare())

    def _prepare(self) -> None:
        """Compute the values that depend on options."""
        config = self.config
        added: dict[str, str] = {
            Property.MSG_REGION: config.region_id,
            Property.TRACE_ON: "true" if config.trace_on else "false",
            Property.CLUSTER: config.cluster_name,
        }
        self._added = stored_properties(encode_properties(added), b"")[0]
        self._refusal_ext = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
        }

    def routes(self) -> list[RawRoute]:
        return [RawRoute(code, self.send) for code in sorted(SEND_CODES)]

    # -- the plain sends of a read ---------------------------------------------------------------------

    def accept(self, sends: Sends, connection: Connection) -> bool:
        """Check plain sends. Returns False if ``send`` must handle each of them on its own, because it needs more
        work or must be refused. Never raises."""
        checks = self.checks
        try:
            if checks.quotas is not None or self.store.config.property_crc_enabled:
                return False
            checks.broker(connection)
            if not checks.are_plain(sends.queues):
                return False
            host = encode_host(*connection.remote)
            if not sends.stamp(host, self._added, self.store.config.message_bytes_max):
                return False
        except (BrokerError, RecordError):
            return False
        except Exception:  # a bug here must not leave a read half served
            logger.exception("sends not checked together peer=%s", connection.remote_text)
            return False
        self._add(connection, sends)
        return True

    def _add(self, answers: _Answers, sends: Sends) -> None:
        self._pending.append((answers, sends))
        self._pending_count += len(sends)
        self._pending_bytes += sends.size_bytes

    # -- one send --------------------------------------------------------------------------------------

    def send(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320)."""
        try:
            self._accept(frame, connection)
        except BrokerError as error:
            code, remark = error.response_code, error.remark
        except StoreError as error:
            code, remark = error.code, error.remark
        except RecordError as error:
            code, remark = ResponseCode.MESSAGE_ILLEGAL, str(error)
        else:
            return None
        return self._refusal((frame.serialize_type, frame.opaque, frame.flag), code, remark)

    def _refusal(self, request: tuple[int, int, int], code: int, remark: str) -> bytes | None:
        form, opaque, flag = request
        if flag & _ONEWAY:
            return None
        return encode_response(code, opaque, self._refusal_ext, b"", remark, form)

    def _accept(self, frame: Frame, connection: Connection) -> None:
        fields = frame.send or send_fields(frame)
        self.checks.broker(connection)
        if not frame.body:
            raise ServerError("the message has no body")
        is_new = fields.topic not in self.topics.configs
        config = self.checks.topic(fields, connection.remote_text)
        if self.checks.quotas is not None:
            self.checks.quotas.take(
                connection, fields, frame.body, is_system=self.topics.is_system(fields.topic)
            )
        answers: _Answers = connection
        if is_new:
            answers = _RoutedAnswers(connection, self.when_routed)
        is_batch = fields.batch or frame.code == _BATCH
        properties, unique_key, waits, asks = (
            self._of_batch(config.topic_name, fields) if is_batch else self._of_single(fields)
        )
        queue_id = fields.queue_id if fields.queue_id >= 0 else _any_queue(config, fields.queue_id)
        message = NewMessage(
            config.topic_name,
            queue_id,
            frame.body,
            properties,
            fields.born_timestamp_ms,
            encode_host(*connection.remote),
            0 if is_batch else fields.flag,
            fields.sys_flag if config.topic_filter_type is not _MULTI_TAG else _multi_tag(fields),
            fields.reconsume_times,
        )
        request = (frame.serialize_type, frame.opaque, frame.flag)
        if is_batch:
            if len(frame.body) > self.store.config.message_bytes_max:
                self._check_size(sum(len(one.body) for one in _split(message)))
        else:
            message, queue_id = self._placed(message, fields, frame, asks)
        if asks and _IDEMPOTENT in fields.properties:
            if not is_batch:
                message = message._replace(properties=remove_property(message.properties, _IDEMPOTENT))
            parts = _split(message) if is_batch else [message]
            unique_key = find_property(parts[0].properties, _UNIQUE_KEY) or b""
            found = self._stored(parts, unique_key, fields.topic)
            if found is not None:
                handle = self._recall_handle(found.timer)
                stored = sends_of(message, is_batch, request, waits, found.queue_id, unique_key, handle)
                stored.stored_at(found.log_offsets, found.queue_offset)
                self._acknowledge([(answers, stored)], found.end)
                return
        handle = self._recall_handle(message if message.topic == TIMER_TOPIC else None)
        self._add(answers, sends_of(message, is_batch, request, waits, queue_id, unique_key, handle))

    def _recall_handle(self, timer: NewMessage | None) -> str:
        return "" if timer is None else recall_handle(timer, self.config.broker_name) or ""

    def _stored(self, parts: list[NewMessage], unique_key: bytes, topic: str) -> FoundSend | None:
        """Returns an idempotent send that is already stored, or None. It gets the same answer as the first time."""
        if any(sends.has_key(unique_key) for _, sends in self._pending):
            self.append_pending()
        return self._stored_sends.find(parts, topic)

    def _of_single(self, fields: SendFields) -> StoredProperties:
        found = stored_properties(fields.properties, self._added)
        if found[1]:
            return found
        unique_key = self.unique_keys.next().encode()
        raw = b"%bUNIQ_KEY\x01%b\x02" % (terminated(fields.properties), unique_key)
        return stored_properties(raw, self._added)

    def _placed(
        self, message: NewMessage, fields: SendFields, frame: Frame, asks: bool
    ) -> tuple[NewMessage, int]:
        """Returns a single message in the form to store (under its own topic, as a dead letter, or parked), and the
        queue id for the answer."""
        if _PRIORITY in message.properties:
            message = self._ranked(message)
        queue_id = message.queue_id
        if message.topic.startswith(RETRY_PREFIX):
            message = self._retry_or_dead_letter(message, fields, frame)
        if asks:
            message = self.puts.parking.of_producer(message)
        if len(message.body) > self.store.config.message_bytes_max:
            self._check_size(len(message.body))
        return message, queue_id

    def _ranked(self, message: NewMessage) -> NewMessage:
        """Move a message with a priority to the queue of that number, or to the last queue if there is none. The
        priority of messages with a delay, a transaction or a sharding key is dropped, as in Apache."""
        properties = message.properties
        text = find_property(properties, _PRIORITY) or b""
        if not text.isdigit() or len(text) > _PRIORITY_DIGITS_MAX:
            return message
        if any(find_property(properties, name) for name in _NOT_RANKED):
            return message._replace(properties=remove_property(properties, _PRIORITY))
        last = self.topics.configs[message.topic].write_queue_nums - 1
        return message._replace(queue_id=max(0, min(int(text), last)))

    @staticmethod
    def _of_batch(topic: str, fields: SendFields) -> StoredProperties:
        """Check a batch and return its common properties, which are empty because its messages keep exactly the
        properties set by their sender. Raises ``MessageIllegal``."""
        properties = fields.properties
        if topic.startswith(RETRY_PREFIX):
            raise MessageIllegal(f"batch request does not support retry group {topic}")
        if find_property(properties, b"DELAY"):
            raise MessageIllegal("batch request does not support delay level")
        if fields.sys_flag & _TRANSACTION_BITS:
            raise MessageIllegal("batch request does not support transaction")
        if len(topic.encode()) > 127:
            raise MessageIllegal(f"topic length {len(topic)} is over 127")
        unique_key = find_property(properties, _UNIQUE_KEY) or b""
        waits = find_property(properties, b"WAIT") != b"false"
        return StoredProperties(b"", unique_key, waits, _IDEMPOTENT in properties)

    def _check_size(self, body_bytes: int) -> None:
        limit = self.store.config.message_bytes_max
        if body_bytes > limit:
            raise MessageIllegal(f"the message is illegal, maybe msg body length over limit {limit} bytes")

    def _retry_or_dead_letter(self, message: NewMessage, fields: SendFields, frame: Frame) -> NewMessage:
        """Handle a message that a consumer returns by a plain send to its retry topic.

        An orderly consumer, whose group holds locks, does so only when its retries are used up. The retry count of
        4.x clients does not exceed the limit in this case, but the message is dead-lettered anyway, as in Apache.
        """
        group = message.topic.removeprefix(RETRY_PREFIX)
        config = self.groups.find(group)
        if config is None:
            raise SubscriptionGroupNotExist(f"subscription group not exist, {group}")
        limit = config.retry_max_times
        if frame.version >= Version.V3_4_9 and fields.max_reconsume_times is not None:
            limit = fields.max_reconsume_times
        if fields.reconsume_times > limit or self.locks.any_held(group):
            dead = self.topics.create_in_send_back(dlq_topic(group), 1, PERM_READ_WRITE)
            properties = remove_property(message.properties, b"DELAY")
            origin = find_property(properties, b"RETRY_TOPIC")
            name = message.topic if origin is None else origin.decode("utf-8", "replace")
            self.stats.add("DEAD_LETTERS", f"{name}@{group}")
            return message._replace(topic=dead.topic_name, queue_id=0, properties=properties)
        return message

    # -- end of a read, end of a turn ------------------------------------------------------------------

    def read_ended(self) -> None:
        """Schedule the append of the pending sends for the end of this turn, or append immediately if there are
        enough.

        A callback scheduled now runs after the other sockets of this turn and before those of the next.
        """
        pending = self._pending
        if not pending:
            return
        if self._pending_count >= _PENDING_MAX or self._pending_bytes >= _PENDING_BYTES_MAX:
            self.append_pending()
        elif not self._turn_planned:
            self._turn_planned = True
            asyncio.get_running_loop().call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        self._turn_planned = False
        self._is_turn_end = True
        self.append_pending()
        self._is_turn_end = False

    def append_pending(self) -> None:
        """Append and answer all pending sends."""
        pending = self._pending
        if not pending:
            return
        self._pending = []
        self._pending_count = self._pending_bytes = 0
        if self.config.is_slave:
            # The role has changed since they were checked. The log is now a copy of another broker's.
            self._refuse(pending, ResponseCode.SYSTEM_BUSY, NOT_A_MASTER)
            return
        try:
            stored = self._append(pending)
            if stored:
                self._acknowledge(stored, self.store.max_log_offset)
        except Exception as error:
            # Answer even after a bug: without an answer a sender would wait for seconds and not know why. Senders
            # that have already been answered ignore the second answer.
            logger.exception("sends not finished count=%d", sum(len(sends) for _, sends in pending))
            self._refuse(pending, ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}")

    def _append(self, pending: list[_Pending]) -> list[_Pending]:
        """Append all sends with one write. Returns those that were stored. If the write is refused, splits the sends
        until only the refused ones are left out."""
        started = self.clock.monotonic()
        try:
            stored = self.puts.append_sends([sends for _, sends in pending])
        except (RecordError, StoreError) as error:
            singles = [
                (answers, sends.part(at, at + 1)) for answers, sends in pending for at in range(len(sends))
            ]
            if len(singles) == 1:
                code = error.code if isinstance(error, StoreError) else ResponseCode.SYSTEM_ERROR
                self._refuse(pending, code, getattr(error, "remark", str(error)))
                return []
            # One send that cannot be stored costs the others of its turn a few more appends. On a full disk each one
            # is tried separately.
            size = 1 if isinstance(error, StoreUnavailable) else (len(singles) + 1) // 2
            parts = [singles[at : at + size] for at in range(0, len(singles), size)]
            return [landed for part in parts for landed in self._append(part)]
        elapsed_ms = (self.clock.monotonic() - started) * 1000
        if elapsed_ms >= 1.0:
            self._took(elapsed_ms, pending, sum(count for _, (count, _, _) in stored))
        return pending

    def _took(self, elapsed_ms: float, pending: list[_Pending], count: int) -> None:
        self.stats.put_times.slow(elapsed_ms, count)
        self.checks.appended_in(elapsed_ms, [answers for answers, _ in pending])
        if self._is_turn_end and elapsed_ms > HOLD_S * 1000:
            STALLS.note("append", elapsed_ms / 1000, f"sends={sum(len(sends) for _, sends in pending)}")

    def _refuse(self, pending: list[_Pending], code: int, remark: str) -> None:
        for answers, sends in pending:
            for request in sends.requests():
                self.stats.put_failures += 1
                encoded = self._refusal(request, code, remark)
                if encoded is not None:
                    answers.send(encoded)

    def _acknowledge(self, stored: list[_Pending], log_end: int) -> None:
        """Answer the sends that are already safe immediately, and the rest when the gate reports that they are
        safe."""
        if self.puts.gate.immediate:
            self._answer(stored, _SUCCESS, None)
            return
        self._answer(stored, _SUCCESS, False)
        late = [one for one in stored if one[1].waits]
        if late:
            self.puts.when_safe(log_end, lambda code: self._answer(late, code, True))

    def _answer(self, stored: list[_Pending], code: int, waiting: bool | None) -> None:
        """Answer stored sends: those that wait for the gate (True), those that do not (False), or all (None)."""
        config = self.config
        # One write per connection.
        by_peer: dict[_Answers, list[Sends]] = {}
        for answers, sends in stored:
            by_peer.setdefault(answers, []).append(sends)
        for answers, turn in by_peer.items():
            encoded = encode_send_answers(
                turn, code, waiting, self.store_host, config.region_id, config.trace_on
            )
            if encoded:
                answers.send(encoded)


def _any_queue(config: TopicConfig, asked: int) -> int:
    if config.write_queue_nums <= 0:
        raise ServerError(f"topic[{config.topic_name}] has no queue to write to, queueId is {asked}")
    return random.randrange(config.write_queue_nums)


def _multi_tag(fields: SendFields) -> int:
    return fields.sys_flag | SysFlag.MULTI_TAGS


def _split(template: NewMessage) -> list[NewMessage]:
    """Splits a batch into its messages. Raises ``ServerError`` for an invalid batch."""
    try:
        entries = split_batch(template.body)
    except RecordError as error:
        raise ServerError(str(error)) from None
    if not entries:
        raise ServerError("the batch has no messages")
    return [
        template._replace(body=body, properties=properties, flag=flag) for flag, body, properties in entries
    ]
