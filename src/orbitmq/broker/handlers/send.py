"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: the path every message takes (Apache: SendMessageProcessor).

Shape. One socket read may hold dozens of sends. Each is read, checked and put into ``_pending``; when the read
is over, ``finish_read`` appends them all with one write to the log and answers them all. No task, future or
coroutine is made per message. A message with nothing special about it takes the short way through
``_accept``; anything that must be rewritten (delay, transaction, retry, a property we own) takes ``_unusual``.

Order of the checks and their codes are Apache 5.5.0's. Nothing of a refused request is stored.
"""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

import msgspec

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.delivery.put import PENDING_ACKS_MAX, PutDoor
from orbitmq.broker.figures.stats import BrokerStats
from orbitmq.broker.handlers.recall import recall_handle
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Property, RequestCode, ResponseCode, SerializeType, SysFlag, Version
from orbitmq.errors import (
    BrokerError,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    RecordError,
    ServerError,
    SubscriptionGroupNotExist,
    SystemBusy,
    TopicNotFound,
)
from orbitmq.model.names import RETRY_PREFIX, TIMER_TOPIC, check_send_topic, dlq_topic
from orbitmq.model.topic import PERM_READ_WRITE, TopicConfig, TopicFilterType, perm_text
from orbitmq.record.batch import split_batch
from orbitmq.record.hosts import encode_host
from orbitmq.record.ids import UniqueKeys
from orbitmq.record.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
)
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, AppendedBatch, NewMessage
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute
from orbitmq.wire.frame import Frame, encode_response
from orbitmq.wire.send_fields import SendFields, read_send, read_send_v2

__all__ = ["SEND_CODES", "SendHandlers", "SendReplies"]

logger = logging.getLogger(__name__)

SEND_CODES: Final = frozenset(
    map(int, (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_ONEWAY: Final = 2
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_TRANSACTION_BITS: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_PROPERTIES_MAX: Final = 32_767
_STALL_MS: Final = 1_000
"""An append this slow means the disk cannot keep up (Apache: osPageCacheBusyTimeOutMills)."""
_SLAVE: Final = BrokerRole.SLAVE
_SHAPES_MAX: Final = 4096
_SHAPE_BYTES_MAX: Final = 512
_UNUSUAL_MARKS: Final = (
    b"DELAY\x01",
    b"TRAN_MSG\x01",
    b"TIMER_",
    b"POP_CK\x01",
    b"MSG_REGION\x01",
    b"TRACE_ON\x01",
    b"CLUSTER\x01",
    b"\x01\x02",
    b"\x00",
)
"""Any of these in the properties means that they are not stored as they are."""
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()
_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class _Answers(Protocol):
    """Where the answer to a send goes: its connection, or one that waits first."""

    def send(self, data: bytes) -> None: ...


class _RoutedAnswers:
    """Answers the send that made a topic only when the name servers know it, as Apache does: the next thing its
    sender does may be to ask them for the route."""

    __slots__ = ("_connection", "_when_routed")

    def __init__(self, connection: Connection, when_routed: Callable[[Callable[[], None]], None]) -> None:
        self._connection = connection
        self._when_routed = when_routed

    def send(self, data: bytes) -> None:
        self._when_routed(lambda: self._connection.send(data))


class _Pending(msgspec.Struct):
    """A checked send, waiting for the end of the read."""

    connection: _Answers
    frame: Frame
    messages: list[NewMessage]
    queue_id: int
    """What the reply names; a delayed message is stored under another queue."""
    unique_key: bytes
    waits: bool
    """False when the sender set WAIT=false: acknowledged as soon as stored."""
    batch: NewMessage | None = None
    """What the messages of a batch share; their row is its body. ``messages`` is empty then."""


class SendReplies:
    """Replies from prepared templates: one formatting operation each, in both header forms."""

    def __init__(self, store_host: bytes, region: str, *, trace_on: bool) -> None:
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper().encode()
        trace = b"true" if trace_on else b"false"
        raw_region = region.encode()
        self.ext = {"MSG_REGION": region, "TRACE_ON": trace.decode()}
        self._json = (
            b'{"code":%d,"extFields":{"queueId":"%d","transactionId":"%b","msgId":"%b","TRACE_ON":"'
            + trace
            + b'","MSG_REGION":"'
            + msgspec.json.encode(region)[1:-1].replace(b"%", b"%%")
            + b'","queueOffset":"%d"},"flag":1,"language":"PYTHON","opaque":%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":' + str(Version.OURS).encode() + b"}"
        )
        self._binary_tail = (
            b"\x00\x08TRACE_ON"
            + struct.pack(">i", len(trace))
            + trace
            + b"\x00\x0aMSG_REGION"
            + struct.pack(">i", len(raw_region))
            + raw_region
        )
        # length, header word, code, language, version, opaque, flag, remark length, region length,
        # then "msgId" with its length.
        self._binary_head = struct.Struct(">iihBhiiiih5si").pack

    def renewed(self, region: str, *, trace_on: bool) -> SendReplies:
        """The same broker's replies after a change of its options."""
        return SendReplies(self._store_host, region, trace_on=trace_on)

    def message_id(self, appended: Appended) -> str:
        return (b"%b%016X" % (self._id_prefix, appended.log_offset)).decode()

    def stored_row(
        self, frame: Frame, code: int, queue_id: int, appended: AppendedBatch, unique_key: bytes
    ) -> bytes:
        """The answer to a batch that was stored: one formatting operation for all its ids."""
        offsets = appended.log_offsets
        ids = b",".join([self._id_prefix + b"%016X"] * len(offsets)) % tuple(offsets)
        first = Appended(offsets[0], 0, appended.queue_offset, appended.store_timestamp_ms)
        return self.stored(frame, code, queue_id, (first,), unique_key, ids)

    def stored(
        self,
        frame: Frame,
        code: int,
        queue_id: int,
        appended: Sequence[Appended],
        unique_key: bytes,
        message_id: bytes = b"",
    ) -> bytes:
        """The answer to a send that was stored."""
        prefix = self._id_prefix
        first = appended[0]
        if message_id:
            pass
        elif len(appended) == 1:
            message_id = b"%b%016X" % (prefix, first.log_offset)
        else:
            message_id = b",".join([b"%b%016X" % (prefix, one.log_offset) for one in appended])
        if frame.serialize_type != _ROCKETMQ:
            if not unique_key.isalnum():  # it comes from the sender and may hold anything
                unique_key = msgspec.json.encode(unique_key.decode("utf-8", "replace"))[1:-1]
            header = self._json % (code, queue_id, unique_key, message_id, first.queue_offset, frame.opaque)
            size = len(header)
            return b"%b%b%b" % ((size + 4).to_bytes(4, "big"), size.to_bytes(4, "big"), header)
        queue_text = b"%d" % queue_id
        offset_text = b"%d" % first.queue_offset
        tail = b"\x00\x07queueId\x00\x00\x00%c%b\x00\x0bqueueOffset\x00\x00\x00%c%b%b%b" % (
            len(queue_text),
            queue_text,
            len(offset_text),
            offset_text,
            _binary_entry(b"transactionId", unique_key) if unique_key else b"",
            self._binary_tail,
        )
        id_size = len(message_id)
        region_size = 11 + id_size + len(tail)
        header_size = 21 + region_size
        return b"%b%b%b" % (
            self._binary_head(
                header_size + 4,
                0x01000000 | header_size,
                code,
                3,
                Version.OURS,
                frame.opaque,
                1,
                0,
                region_size,
                5,
                b"msgId",
                id_size,
            ),
            message_id,
            tail,
        )


def _split(template: NewMessage) -> list[NewMessage]:
    """The messages of a batch one by one. Raises ``ServerError`` for what is no batch."""
    try:
        entries = split_batch(template.body)
    except RecordError as error:
        raise ServerError(str(error)) from None
    topic, queue_id, _, _, born_ms, born_host, _, sys_flag, times, _ = msgspec.structs.astuple(template)
    return [
        NewMessage(topic, queue_id, body, properties, born_ms, born_host, flag, sys_flag, times)
        for flag, body, properties in entries
    ]


def _describe(config: TopicConfig) -> str:
    """A topic as Apache's remarks print it."""
    attributes = ", ".join(f"{name}={value}" for name, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type.value}, topicSysFlag={config.topic_sys_flag}, "
        f"order={'true' if config.order else 'false'}, attributes={{{attributes}}}]"
    )


def _binary_entry(key: bytes, value: bytes) -> bytes:
    return b"%b%b%b%b" % (len(key).to_bytes(2, "big"), key, len(value).to_bytes(4, "big"), value)


@dataclass(kw_only=True, eq=False)
class SendHandlers:
    """Takes sends, in any form, from producers."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    stats: BrokerStats
    puts: PutDoor
    replies: SendReplies
    unique_keys: UniqueKeys
    clock: Clock
    when_routed: Callable[[Callable[[], None]], None] | None = None
    """Calls back once the name servers know of the topics made so far, or after a second."""

    def __post_init__(self) -> None:
        self._pending: list[_Pending] = []
        self._batches_pending = False
        self._stalled = ""
        """Why sends are refused until ``_stalled_until``; empty when they are not."""
        self._stalled_until = 0.0
        self._shapes: dict[bytes, bool] = {}
        """Properties around the unique key that need nothing, and whether their sender waits for safety."""
        self._recalls: dict[int, str] = {}
        """Handles for the replies to timer messages, by the identity of their frames."""
        self._ordinary: dict[str, TopicConfig] = {}
        """Topics whose messages need no further look, by the config that was checked."""
        self.options_changed()

    def options_changed(self) -> None:
        """Prepare everything anew that depends on options, and check every topic again."""
        config = self.config
        self.replies = self.replies.renewed(config.region_id, trace_on=config.trace_on)
        self._added = encode_properties(
            {
                Property.MSG_REGION: config.region_id,
                Property.TRACE_ON: "true" if config.trace_on else "false",
                Property.CLUSTER: config.cluster_name,
            }
        )
        self._properties_max = _PROPERTIES_MAX - len(self._added)
        self._shapes.clear()
        self._ordinary.clear()

    def routes(self) -> list[RawRoute]:
        return [
            RawRoute(RequestCode.SEND_MESSAGE, self.send),
            RawRoute(RequestCode.SEND_MESSAGE_V2, self.send_v2),
            RawRoute(RequestCode.SEND_BATCH_MESSAGE, self.send_batch),
        ]

    # -- entry points ----------------------------------------------------------------------------------

    def send(self, frame: Frame, connection: Connection) -> bytes | None:
        """SEND_MESSAGE (10)."""
        return self._guarded(frame, connection, read_send)

    def send_v2(self, frame: Frame, connection: Connection) -> bytes | None:
        """SEND_MESSAGE_V2 (310)."""
        return self._guarded(frame, connection, read_send_v2)

    def send_batch(self, frame: Frame, connection: Connection) -> bytes | None:
        """SEND_BATCH_MESSAGE (320)."""
        return self._guarded(frame, connection, read_send_v2)

    def _guarded(
        self, frame: Frame, connection: Connection, read: Callable[[Frame], SendFields]
    ) -> bytes | None:
        try:
            self._accept(frame, connection, read(frame))
        except BrokerError as error:
            return self._refusal(frame, error.response_code, error.remark)
        except StoreError as error:
            return self._refusal(frame, error.code, error.remark)
        except RecordError as error:
            return self._refusal(frame, ResponseCode.MESSAGE_ILLEGAL, str(error))
        return None

    def _refusal(self, frame: Frame, code: int, remark: str) -> bytes | None:
        if frame.flag & _ONEWAY:
            return None
        return encode_response(code, frame.opaque, self.replies.ext, b"", remark, frame.serialize_type)

    # -- checks ----------------------------------------------------------------------------------------

    def _accept(self, frame: Frame, connection: Connection, fields: SendFields) -> None:
        topic = fields.topic
        config = self._ordinary.get(topic)
        raw = fields.properties
        # The short way: a topic that passed all checks before and has not changed since, a queue it has,
        # properties without anything special. Written out rather than called: each call costs a tenth of a
        # microsecond, and this runs for every message.
        at = raw.find(b"UNIQ_KEY\x01")
        unique_key = raw[at + 9 : at + 41]
        if (
            at < 0
            or config is None
            or config is not self.topics.configs.get(topic)
            or not 0 <= fields.queue_id < config.write_queue_nums
            or fields.batch
            or not 0 < len(frame.body) <= self.store.config.message_bytes_max
            or not unique_key.isalnum()
            or self.puts.gate.waiting_count >= PENDING_ACKS_MAX
            or self.config.role is _SLAVE
            or self._stalled
        ):
            self._unusual(frame, connection, fields)
            return
        # A producer's properties differ in nothing but the unique key, most of the time. What is around it is
        # looked up as a whole: eight searches for names that must not be there cost two microseconds.
        shape = b"\x00".join((raw[:at], raw[at + 41 :]))
        waits = self._shapes.get(shape)
        if waits is None:
            waits = self._learn_shape(shape, raw, at)
            if waits is None:
                self._unusual(frame, connection, fields)
                return
        host = connection.remote
        message = NewMessage(
            topic,
            fields.queue_id,
            frame.body,
            raw + self._added,
            fields.born_timestamp_ms,
            encode_host(host[0], host[1]),
            fields.flag,
            fields.sys_flag,
            fields.reconsume_times,
        )
        self._pending.append(_Pending(connection, frame, [message], fields.queue_id, unique_key, waits))

    def _learn_shape(self, shape: bytes, raw: bytes, at: int) -> bool | None:
        """Whether the sender waits for safety; None when the properties need more than being stored."""
        if (
            len(raw) > self._properties_max
            or raw[-1] != 2
            or raw[at + 41 : at + 42] != b"\x02"
            or (at and raw[at - 1] != 2)
            or any(mark in raw for mark in _UNUSUAL_MARKS)
        ):
            return None
        waits = b"WAIT\x01false" not in raw
        if len(shape) <= _SHAPE_BYTES_MAX:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[shape] = waits
        return waits

    def _unusual(self, frame: Frame, connection: Connection, fields: SendFields) -> None:
        """The same checks one by one, then whatever the message asks for."""
        self._check_broker()
        if not frame.body:
            raise ServerError("the message has no body")
        is_new = fields.topic not in self.topics.configs
        config = self._checked_topic(fields, connection)
        answers: _Answers = connection
        if is_new and self.when_routed is not None:
            answers = _RoutedAnswers(connection, self.when_routed)
        queue_id = fields.queue_id
        if queue_id < 0:
            if config.write_queue_nums <= 0:
                raise ServerError(
                    f"topic[{config.topic_name}] has no queue to write to, queueId is {queue_id}"
                )
            queue_id = random.randrange(config.write_queue_nums)
        sys_flag = fields.sys_flag
        if config.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= SysFlag.MULTI_TAGS
        born_host = encode_host(*connection.remote)
        if fields.batch or frame.code == RequestCode.SEND_BATCH_MESSAGE:
            self._accept_batch(frame, answers, fields, (queue_id, sys_flag, born_host))
            self._remember_topic(config)
            return
        properties = decode_properties(fields.properties)
        properties.pop(Property.POP_CK, None)
        if Property.UNIQUE_KEY not in properties:
            properties[Property.UNIQUE_KEY] = self.unique_keys.next()
        properties[Property.MSG_REGION] = self.config.region_id
        properties[Property.TRACE_ON] = "true" if self.config.trace_on else "false"
        properties[Property.CLUSTER] = self.config.cluster_name
        message = NewMessage(
            config.topic_name,
            queue_id,
            frame.body,
            encode_properties(properties),
            fields.born_timestamp_ms,
            born_host,
            fields.flag,
            sys_flag,
            fields.reconsume_times,
        )
        if config.topic_name.startswith(RETRY_PREFIX):
            self._retry_or_dead_letter(message, fields, frame)
        message = self.puts.parking.of_producer(message)
        messages = [message]
        unique_key = properties[Property.UNIQUE_KEY].encode()
        waits = properties.get(Property.WAIT) != "false"
        self._check_size(messages)
        self._remember_topic(config)
        if messages[0].topic == TIMER_TOPIC and not frame.flag & _ONEWAY:
            handle = recall_handle(messages[0], self.config.broker_name)
            if handle is not None:
                self._recalls[id(frame)] = handle
        self._pending.append(_Pending(answers, frame, messages, queue_id, unique_key, waits))

    def _remember_topic(self, config: TopicConfig) -> None:
        """Whether the next ordinary message of this topic may take the short way."""
        name = config.topic_name
        if config.topic_filter_type is TopicFilterType.SINGLE_TAG and not config.order and name[0] != "%":
            self._ordinary[name] = config

    def _check_broker(self) -> None:
        if self.config.is_slave:
            raise SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")
        if self.puts.gate.refusal:
            raise ServerError(self.puts.gate.refusal)
        if self.puts.gate.waiting_count >= PENDING_ACKS_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        if self._stalled:
            if self.clock.monotonic() < self._stalled_until:
                raise SystemBusy(f"[{self._stalled}]broker busy, start flow control for a while")
            self._stalled = ""
        accept_from = self.config.accept_sends_from_ms
        if accept_from and self.clock.now_ms() < accept_from:
            raise ServerError(f"broker unable to service, until, {accept_from}")

    def _checked_topic(self, fields: SendFields, connection: Connection) -> TopicConfig:
        topic = fields.topic
        config = self.topics.configs.get(topic)
        if not self.config.writable and config is not None and config.order:
            raise NoPermission(f"the broker[{self.config.broker_name}] sending message is forbidden")
        check_send_topic(topic)
        if config is None:
            config = self.topics.create_in_send(topic, fields.default_topic, fields.default_topic_queue_nums)
        if config is None and topic.startswith(RETRY_PREFIX):
            config = self.topics.create_in_send_back(topic, 1, PERM_READ_WRITE)
        if config is None:
            raise TopicNotFound(f"topic[{topic}] not exist, apply first please!\n{_FAQ}")
        if fields.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise InvalidParameter(
                f"request queueId[{fields.queue_id}] is illegal, {_describe(config)} "
                f"Producer: {connection.remote_text}"
            )
        return config

    def _check_size(self, messages: Sequence[NewMessage]) -> None:
        limit = self.store.config.message_bytes_max
        total = sum(len(message.body) for message in messages)
        if total > limit:
            raise MessageIllegal(f"the message is illegal, maybe msg body length over limit {limit} bytes")

    def _accept_batch(
        self, frame: Frame, answers: _Answers, fields: SendFields, place: tuple[int, int, bytes]
    ) -> None:
        """Each message of a batch keeps exactly the properties its sender gave it."""
        topic = fields.topic
        properties = fields.properties
        if topic.startswith(RETRY_PREFIX):
            raise MessageIllegal(f"batch request does not support retry group {topic}")
        if b"DELAY\x01" in properties and find_property(properties, b"DELAY"):
            raise MessageIllegal("batch request does not support delay level")
        if fields.sys_flag & _TRANSACTION_BITS:
            raise MessageIllegal("batch request does not support transaction")
        if len(topic.encode()) > 127:
            raise MessageIllegal(f"topic length {len(topic)} is over 127")
        queue_id, sys_flag, born_host = place
        template = NewMessage(
            topic,
            queue_id,
            frame.body,
            b"",
            fields.born_timestamp_ms,
            born_host,
            0,
            sys_flag,
            fields.reconsume_times,
        )
        if len(frame.body) > self.store.config.message_bytes_max:
            self._check_size(_split(template))
        self._batches_pending = True
        unique_key = find_property(properties, _UNIQUE_KEY) or b""
        waits = b"WAIT\x01false" not in properties
        self._pending.append(_Pending(answers, frame, [], queue_id, unique_key, waits, template))

    def _retry_or_dead_letter(self, message: NewMessage, fields: SendFields, frame: Frame) -> None:
        """A consumer sends a message back as a plain send to its retry topic."""
        group = message.topic.removeprefix(RETRY_PREFIX)
        config = self.groups.find(group)
        if config is None:
            raise SubscriptionGroupNotExist(f"subscription group not exist, {group}")
        limit = config.retry_max_times
        if frame.version >= Version.V3_4_9 and fields.max_reconsume_times is not None:
            limit = fields.max_reconsume_times
        if fields.reconsume_times > limit:
            dead = self.topics.create_in_send_back(dlq_topic(group), 1, PERM_READ_WRITE)
            message.topic = dead.topic_name
            message.queue_id = 0
            message.properties = remove_property(message.properties, b"DELAY")

    # -- end of a read ---------------------------------------------------------------------------------

    def finish_read(self) -> None:
        """Append everything the last socket read brought, and answer it."""
        pending = self._pending
        if not pending:
            return
        self._pending = []
        batches, self._batches_pending = self._batches_pending, False
        try:
            if batches:
                self._append_in_order(pending)
            else:
                self._append(pending)
        except Exception as error:
            # A bug becomes an answer: a sender left without one would wait for seconds and not know why. Who has got
            # an answer already ignores the second one.
            logger.exception("sends not finished count=%d", len(pending))
            for one in pending:
                self._send_refusal(one, ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}")

    def _append_in_order(self, pending: list[_Pending]) -> None:
        """Batches one by one, what is between them together: a producer's messages keep their order."""
        singles: list[_Pending] = []
        for one in pending:
            if one.batch is None:
                singles.append(one)
                continue
            if singles:
                self._append(singles)
                singles = []
            self._append_row(one, one.batch)
        if singles:
            self._append(singles)

    def _append_row(self, one: _Pending, template: NewMessage) -> None:
        """The messages of a batch, straight from the row they came in."""
        started = self.clock.monotonic()
        try:
            appended = self.puts.append_entries(template)
            if appended is None:
                one.messages = _split(template)
        except (RecordError, ServerError) as error:
            self._send_refusal(one, ResponseCode.SYSTEM_ERROR, getattr(error, "remark", str(error)))
            return
        except StoreError as error:
            self._send_refusal(one, error.code, error.remark)
            return
        if appended is None:
            self._append([one])
            return
        count = len(appended.log_offsets)
        elapsed_ms = (self.clock.monotonic() - started) * 1000
        if elapsed_ms >= 1.0:
            self.stats.put_times.slow(elapsed_ms, count)
            self._notice_stall(elapsed_ms)
        self.stats.put(template.topic, template.queue_id, count, appended.end - appended.log_offsets[0])
        if one.frame.flag & _ONEWAY:
            return
        stored = self.replies.stored_row
        if self.puts.gate.immediate or not one.waits:
            one.connection.send(stored(one.frame, _SUCCESS, one.queue_id, appended, one.unique_key))
        else:
            self.puts.gate.wait(
                appended.end,
                lambda code: one.connection.send(
                    stored(one.frame, code, one.queue_id, appended, one.unique_key)
                ),
            )

    def _append(self, pending: list[_Pending]) -> None:
        """Everything with one write, or, when that is refused, one after the other."""
        if len(pending) == 1:
            messages = pending[0].messages
        else:
            messages = [message for one in pending for message in one.messages]
        started = self.clock.monotonic()
        try:
            appended = self.puts.append(messages)
        except StoreError:
            # One refused message must not take the others of the read with it.
            self._append_one_by_one(pending)
            return
        elapsed_ms = (self.clock.monotonic() - started) * 1000
        if elapsed_ms >= 1.0:
            self.stats.put_times.slow(elapsed_ms, len(messages))
            self._notice_stall(elapsed_ms)
        self._answer(pending, appended)

    def _notice_stall(self, elapsed_ms: float) -> None:
        """What is queued behind a stalled disk waited too long already: refuse it for a moment, so that its senders
        turn to another broker, as Apache's cleaning of overdue requests does."""
        if not self.config.fast_failure_enabled or elapsed_ms <= self.config.send_wait_max_ms:
            return
        busy = elapsed_ms > _STALL_MS
        self._stalled = "PCBUSY_CLEAN_QUEUE" if busy else "TIMEOUT_CLEAN_QUEUE"
        self._stalled_until = self.clock.monotonic() + (0.1 if busy else 0.01)

    def _append_one_by_one(self, pending: list[_Pending]) -> None:
        for one in pending:
            try:
                appended = self.puts.append(one.messages)
            except StoreError as error:
                self._recalls.pop(id(one.frame), None)
                self._send_refusal(one, error.code, error.remark)
                continue
            self._answer([one], appended)

    def _send_refusal(self, one: _Pending, code: int, remark: str) -> None:
        self.stats.put_failures += len(one.messages) or 1
        encoded = self._refusal(one.frame, code, remark)
        if encoded is not None:
            one.connection.send(encoded)

    def _answer(self, pending: list[_Pending], appended: list[Appended]) -> None:
        """Reply now to what is safe enough already, and to the rest when the gate says so."""
        immediate = self.puts.gate.immediate
        put = self.stats.put
        stored = self._stored_timers if self._recalls else self.replies.stored
        late: list[tuple[_Pending, Sequence[Appended]]] = []
        position = 0
        for one in pending:
            messages = one.messages
            count = len(messages)
            where: Sequence[Appended]
            if count == 1:
                where = (appended[position],)
                put(messages[0].topic, messages[0].queue_id, 1, where[0].size)
            else:
                where = appended[position : position + count]
                put(messages[0].topic, messages[0].queue_id, count, sum(one.size for one in where))
            position += count
            if one.frame.flag & _ONEWAY:
                continue
            if immediate or not one.waits:
                one.connection.send(stored(one.frame, _SUCCESS, one.queue_id, where, one.unique_key))
            else:
                late.append((one, where))
        if late:
            last = appended[-1]
            self.puts.gate.wait(last.log_offset + last.size, lambda code: self._reply_late(late, code))

    def _reply_late(self, late: list[tuple[_Pending, Sequence[Appended]]], code: int) -> None:
        stored = self._stored_timers if self._recalls else self.replies.stored
        # Mostly of one connection, since they came in one read: one write for all saves 2 us each.
        for answers, sends in groupby(late, key=lambda send: send[0].connection):
            answers.send(
                b"".join(
                    [stored(one.frame, code, one.queue_id, where, one.unique_key) for one, where in sends]
                )
            )

    def _stored_timers(
        self, frame: Frame, code: int, queue_id: int, appended: Sequence[Appended], unique_key: bytes
    ) -> bytes:
        """The answer to a send that was stored, with the handle by which a timer message is taken back."""
        handle = self._recalls.pop(id(frame), None)
        if handle is None:
            return self.replies.stored(frame, code, queue_id, appended, unique_key)
        ext = {
            **self.replies.ext,
            "msgId": self.replies.message_id(appended[0]),
            "queueId": str(queue_id),
            "queueOffset": str(appended[0].queue_offset),
            "transactionId": unique_key.decode("utf-8", "replace"),
            "recallHandle": handle,
        }
        return encode_response(code, frame.opaque, ext, b"", None, frame.serialize_type)
