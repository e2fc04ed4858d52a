"""Messages as users see them, when sending and after receiving (Apache: ``Message``, ``MessageExt``,
``SendResult``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, ClassVar, Final, Protocol, TypeVar, overload

import msgspec

from orbitmq.client.bodies import json_bytes, json_value
from orbitmq.client.checks import check_type, shown
from orbitmq.client.delays import delay_level_for, delay_ms_for, moment_ms
from orbitmq.client.errors import BodyMismatch, ClientError, ClientStateError
from orbitmq.codes import Property, ResponseCode, SysFlag
from orbitmq.errors import RecordError
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import Record
from orbitmq.record.compression import decompress_body
from orbitmq.record.hosts import host_text
from orbitmq.record.properties import decode_properties, find_property

__all__ = ["Delivery", "Message", "ReceivedMessage", "SendResult", "SendStatus", "TransactionState"]

_RESERVED = frozenset(name.value for name in Property) - {
    Property.TRACE_CONTEXT.value,
    Property.INNER_MULTI_DISPATCH.value,
    Property.CHECK_IMMUNITY_TIME_IN_SECONDS.value,
}
_SYSTEM = frozenset(name.value for name in Property)

_PLAIN_CHARACTERS_MAX = 4096
_BODY_TYPES = (bytes, str, bytearray, memoryview)
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
T = TypeVar("T")


class SendStatus(Enum):
    """How durable a stored message is. A message with a status other than ``OK`` is stored, but a crash may still
    lose it."""

    OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


class TransactionState(Enum):
    """The outcome of a local transaction. The values are those of END_TRANSACTION."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class Message(msgspec.Struct, kw_only=False):
    """A message to send. The broker indexes it by ``keys``; ``tags`` and properties are used by filters.

    Only one delay may be set: ``delay_level`` (1 to 18) or, if the broker has the timer of 5.x, ``delay`` (a
    timedelta or seconds), ``deliver_at`` (a datetime with a zone), ``delay_ms`` or ``deliver_at_ms``. Messages with
    the same ``shard_key`` go to one queue and stay in order. Raises ``TypeError`` or ``ValueError`` for values that
    cannot be sent.
    """

    delay_level_max: ClassVar[int] = 18
    """Brokers with their own ``messageDelayLevel`` may have more levels; set it on the class."""

    topic: str
    body: bytes | str
    tags: str = ""
    keys: str | Sequence[str] = ()
    properties: dict[str, str] = {}
    shard_key: str = ""
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at_ms: int = 0
    wait_stored: bool = True
    """False: the broker may answer before the message is flushed or replicated."""
    flag: int = 0
    delay: timedelta | float | None = None
    """Converted to ``delay_ms``."""
    deliver_at: datetime | None = None
    """Converted to ``deliver_at_ms``."""

    @classmethod
    def json(cls, topic: str, value: Any, **settings: Any) -> Message:
        """Returns a message with a JSON body. ``value`` may consist of plain JSON values, msgspec structs,
        dataclasses and pydantic models."""
        return cls(topic, json_bytes(value), **settings)

    def __post_init__(self) -> None:
        # Hot path: most messages have a body, a topic, perhaps tags. Everything else is checked only if it is set.
        if (
            type(self.topic) is not str
            or type(self.tags) is not str
            or type(self.body) not in _BODY_TYPES
            or self.keys
            or self.properties
            or self.shard_key
            or self.delay_level
            or self.delay_ms
            or self.deliver_at_ms
            or self.delay is not None
            or self.deliver_at is not None
            or self.flag
            or type(self.wait_stored) is not bool
        ):
            self._check()

    def _check(self) -> None:
        for name in ("topic", "tags", "shard_key"):
            check_type(name, getattr(self, name), str)
        if type(self.body) not in _BODY_TYPES and not isinstance(self.body, _BODY_TYPES):
            raise TypeError(
                f"body is {shown(self.body)}; bytes or text can be sent, other values with Message.json"
            )
        if not isinstance(self.keys, str):
            if isinstance(self.keys, dict | bytes) or not isinstance(self.keys, Sequence):
                raise TypeError(f"keys is {shown(self.keys)}; a string or a list of strings is accepted")
            for key in self.keys:
                check_type("a key", key, str)
                if " " in key:
                    raise ValueError(f"key {key!r} has a space, which separates keys")
        check_type("properties", self.properties, dict)
        for name, value in self.properties.items():
            check_type("the name of a property", name, str)
            check_type(f"property {name!r}", value, str)
        check_type("wait_stored", self.wait_stored, bool)
        if type(self.flag) is not int:
            raise TypeError(f"flag is {shown(self.flag)}; a whole number is accepted")
        if not -(2**31) <= self.flag < 2**31:
            raise ValueError(f"flag is {self.flag}; it has 32 bits")
        self._check_delays()

    def _check_delays(self) -> None:
        if self.delay is not None:
            self.delay_ms, self.delay = delay_ms_for(self.delay) or self.delay_ms, None
        if self.deliver_at is not None:
            self.deliver_at_ms, self.deliver_at = moment_ms(self.deliver_at), None
        for name in ("delay_level", "delay_ms", "deliver_at_ms"):
            value = getattr(self, name)
            if type(value) is not int:
                raise TypeError(f"{name} is {shown(value)}; a whole number is accepted")
            if value < 0:
                raise ValueError(f"{name} is {value}; it cannot be negative")
        if self.delay_level > self.delay_level_max:
            raise ValueError(f"delay_level is {self.delay_level}; 1 to {self.delay_level_max} is accepted")
        if (self.delay_level > 0) + (self.delay_ms > 0) + (self.deliver_at_ms > 0) > 1:
            raise ValueError("a message has one delay: a level, a delay or a time of delivery")

    def body_bytes(self) -> bytes:
        """Returns the body as bytes. Text is encoded as UTF-8."""
        body = self.body
        return body.encode() if isinstance(body, str) else bytes(body) if type(body) is not bytes else body

    def property_pairs(self) -> dict[str, str]:
        """Returns all properties that this message sets. Raises ``RecordError`` for a reserved name."""
        pairs: dict[str, str] = {}
        if self.properties:
            for name, value in self.properties.items():
                if name in _RESERVED:
                    raise RecordError(f"property {name!r} is reserved; use the attribute or another name")
                pairs[name] = value
        if self.keys:
            pairs["KEYS"] = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        if self.tags:
            pairs["TAGS"] = self.tags
        if self.shard_key:
            pairs["__SHARDINGKEY"] = self.shard_key
        if self.delay_level:
            pairs["DELAY"] = str(self.delay_level)
        if self.delay_ms:
            pairs["TIMER_DELAY_MS"] = str(self.delay_ms)
        if self.deliver_at_ms:
            pairs["TIMER_DELIVER_MS"] = str(self.deliver_at_ms)
        pairs["WAIT"] = "true" if self.wait_stored else "false"
        return pairs

    def plain_properties(self, unique_key: str) -> bytes | None:
        """Returns the encoded properties of a message that has at most keys and tags; None if it has others.

        This is the common case, and costs a fifth of building a table of pairs.
        """
        if (
            type(self) is not Message  # a reply, or a class of the user's: it may have pairs of its own
            or self.properties
            or self.shard_key
            or self.delay_level
            or self.delay_ms
            or self.deliver_at_ms
            or not self.wait_stored
        ):
            return None
        keys, tags = self.keys, self.tags
        if not keys and not tags:
            return f"WAIT\x01true\x02UNIQ_KEY\x01{unique_key}\x02".encode()
        if not isinstance(keys, str):
            keys = " ".join(keys)
        # Characters that cannot be sent, or values near the limit, are left to the general encoder.
        if "\x02" in keys or "\x02" in tags or len(keys) + len(tags) > _PLAIN_CHARACTERS_MAX:
            return None
        head = f"KEYS\x01{keys}\x02" if keys else ""
        if tags:
            head = f"{head}TAGS\x01{tags}\x02"
        try:
            return f"{head}WAIT\x01true\x02UNIQ_KEY\x01{unique_key}\x02".encode()
        except UnicodeEncodeError:
            return None

    @property
    def is_delayed(self) -> bool:
        """Whether the broker delays the delivery of the message."""
        return bool(self.delay_level or self.delay_ms or self.deliver_at_ms)


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send whose message was stored."""

    status: SendStatus
    message_id: str
    """The unique key; for a batch the keys of all messages, joined by commas."""
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: bool = True
    recall_handle: str | None = None
    transaction_state: TransactionState | None = None
    """The outcome of the local transaction; only for ``send_in_transaction``."""


class Delivery(Protocol):
    """Finishes an iterated message, or has it redelivered."""

    async def acknowledge(self, message: ReceivedMessage) -> None:
        """Mark the message as finished."""

    async def give_back(self, message: ReceivedMessage, delay_level: int, reason: str) -> None:
        """Have the message redelivered. Level -1 dead-letters it."""


class ReceivedMessage:
    """A message as a consumer receives it. Properties are decoded on access, because most handlers need only a
    few."""

    __slots__ = (
        "_delivery",
        "_properties",
        "_topic",
        "consume_started_ms",
        "max_offset",
        "min_offset",
        "queue",
        "reconsume_times",
        "record",
    )

    def __init__(self, record: Record, queue: MessageQueue, min_offset: int = 0, max_offset: int = 0) -> None:
        self.record = record
        """Every field as it is stored."""
        self._topic: str | None = None
        self._delivery: Delivery | None = None
        self._properties: dict[str, str] | None = None
        self.queue = queue
        """The queue it was pulled from; for a redelivered message, a queue of the retry topic."""
        self.reconsume_times = record.reconsume_times
        """How often it was delivered before."""
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.consume_started_ms = 0

    @property
    def topic(self) -> str:
        """The topic the message was sent to, even if it was read from a retry topic."""
        topic = self._topic
        if topic is None:
            topic = self.record.topic
            if topic.startswith("%RETRY%"):
                original = find_property(self.record.properties, b"RETRY_TOPIC")
                topic = original.decode("utf-8", "replace") if original else topic
            self._topic = topic
        return topic

    def rename(self, topic: str) -> None:
        """Set the topic that ``topic`` returns, such as one without its namespace."""
        self._topic = topic

    @property
    def body(self) -> bytes:
        """The body as it was sent. Raises ``BodyMismatch`` if it is compressed and cannot be inflated. The stored
        bytes are in ``record.body``."""
        record = self.record
        if record.sys_flag & _COMPRESSED:  # else it was inflated when it came
            try:
                return decompress_body(record.body, record.sys_flag)
            except RecordError as error:
                raise BodyMismatch(str(error)) from None
        return record.body

    def text(self) -> str:
        """Returns the body, decoded as UTF-8."""
        return self.body.decode()

    @overload
    def json(self, kind: type[T]) -> T: ...

    @overload
    def json(self, kind: Any = ...) -> Any: ...

    def json(self, kind: Any = Any) -> Any:
        """Returns the value of the JSON body, checked against ``kind`` if it is given. Raises ``BodyMismatch``."""
        return json_value(self.body, kind)

    async def ack(self) -> None:
        """Finish the message. Only for simple consumers and for consumers that are iterated; a handler acknowledges
        by returning."""
        await self._delivered().acknowledge(self)

    async def retry(self, delay: timedelta | float | None = None) -> None:
        """Have the message redelivered after ``delay`` (rounded up to the broker's levels), or when the broker
        decides."""
        await self._delivered().give_back(self, 0 if delay is None else delay_level_for(delay), "")

    async def dead_letter(self, reason: str = "") -> None:
        """Move the message to the group's dead-letter topic. The reason is kept as its property ``RETRY_REASON``."""
        check_type("reason", reason, str)
        await self._delivered().give_back(self, -1, reason)

    def _delivered(self) -> Delivery:
        if self._delivery is None:
            raise ClientStateError(
                "only a message of an iterated or a simple consumer is acknowledged by hand, and once; handlers "
                "return or raise"
            )
        return self._delivery

    @property
    def attempt(self) -> int:
        """The number of this delivery, starting with 1."""
        return self.reconsume_times + 1

    @property
    def is_request(self) -> bool:
        """Whether the sender waits for a reply (``Producer.request``)."""
        return self.get(Property.REPLY_TO_CLIENT) is not None and self.get(Property.CLUSTER) is not None

    @property
    def tags(self) -> str:
        return self.get("TAGS") or ""

    @property
    def keys(self) -> list[str]:
        return (self.get("KEYS") or "").split()

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including those set by the system."""
        if self._properties is None:
            self._properties = decode_properties(self.record.properties)
        return self._properties

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the message's sender set."""
        return {name: value for name, value in self.properties.items() if name not in _SYSTEM}

    def get(self, name: str) -> str | None:
        """Returns one property, without decoding the others; None if the message does not have it."""
        if self._properties is not None:
            return self._properties.get(name)
        value = find_property(self.record.properties, name.encode())
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def message_id(self) -> str:
        """The unique key that the sender set or, without one, the offset message id of the stored record."""
        return self.get("UNIQ_KEY") or self.record.offset_message_id

    @property
    def offset_message_id(self) -> str:
        return self.record.offset_message_id

    @property
    def transaction_id(self) -> str | None:
        return self.get("__transactionId__") or self.get("UNIQ_KEY")

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset

    @property
    def log_offset(self) -> int:
        return self.record.log_offset

    @property
    def born_timestamp_ms(self) -> int:
        return self.record.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        return self.record.store_timestamp_ms

    @property
    def born_at(self) -> datetime:
        """The time when the message was sent, by its sender's clock."""
        return datetime.fromtimestamp(self.record.born_timestamp_ms / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """The time when the broker stored the message."""
        return datetime.fromtimestamp(self.record.store_timestamp_ms / 1000, UTC)

    @property
    def born_host(self) -> str:
        return host_text(self.record.born_host)

    @property
    def store_host(self) -> str:
        return host_text(self.record.store_host)

    @property
    def flag(self) -> int:
        return self.record.flag

    def reply(self, body: bytes | str) -> Message:
        """Returns the reply to a request (``Producer.request``). Any producer of the same cluster may send it."""
        cluster = self.get(Property.CLUSTER)
        if not cluster:
            raise ClientError("this message is not a request: it lacks the cluster it came through")
        copied = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)
        answer = Reply(f"{cluster}_REPLY_TOPIC", body)
        answer.fields = {name.value: self.get(name) or "" for name in copied}
        return answer

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage(topic={self.topic!r}, queue={self.queue.broker_name}/{self.queue_id}, "
            f"offset={self.queue_offset}, id={self.message_id}, body={self.record.body[:64]!r})"
        )


class Reply(Message):
    """A reply message, as ``ReceivedMessage.reply`` returns it."""

    fields: dict[str, str] = {}

    def property_pairs(self) -> dict[str, str]:
        return {**Message.property_pairs(self), **self.fields, Property.MESSAGE_TYPE.value: "reply"}
