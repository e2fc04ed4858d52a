"""Converts half messages to and from the log format of transactions (Apache: TransactionalMessageBridge).

A half message is stored in RMQ_SYS_TRANS_HALF_TOPIC, queue 0, with its real topic and queue in its properties. The
end of its transaction is marked by a message with tag ``d`` in RMQ_SYS_TRANS_OP_HALF_TOPIC. The body of that message
lists half queue offsets, each followed by a comma. Names, bodies and properties are Apache 5.5.0's, so either broker
can finish the other's transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orbitmq.broker.delivery.parking import HALF_QUEUE, own_place, unparked
from orbitmq.codes import TRANSACTION_MASK, Property, SysFlag
from orbitmq.model.names import HALF_OP_TOPIC, HALF_TOPIC
from orbitmq.record.codec import Record, encode_record
from orbitmq.record.properties import remove_property, set_property
from orbitmq.store.types import Appended, NewMessage

__all__ = [
    "again",
    "as_committed",
    "check_body",
    "mark_offsets",
    "moved_to",
    "number",
    "op_message",
]

_TYPE_BITS: Final = int(TRANSACTION_MASK)
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = Property.REAL_QUEUE_ID.encode()
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d\x02"
_OP_TAG: Final = b"d"
_TAGS: Final = Property.TAGS.encode()


def as_committed(half: Record) -> NewMessage:
    """Returns the message to deliver to consumers. Raises ``RecordError`` if the half message lacks its real topic
    and queue."""
    return unparked(half)._replace(
        properties=remove_property(remove_property(half.properties, _REAL_TOPIC), _REAL_QUEUE_ID),
        sys_flag=half.sys_flag & ~_TYPE_BITS | _COMMIT,
        prepared_offset=half.log_offset,
    )


def again(half: Record, *changes: tuple[Property, int]) -> NewMessage:
    """Returns the half message to append to its queue again, with the given numeric properties changed."""
    properties = half.properties
    for name, value in changes:
        properties = set_property(properties, name.encode(), b"%d" % value)
    return moved_to(half, HALF_TOPIC, HALF_QUEUE, properties)


def moved_to(half: Record, topic: str, queue_id: int, properties: bytes) -> NewMessage:
    """Returns the half message as a message of another topic and queue, with the given properties."""
    return NewMessage(
        topic,
        queue_id,
        half.body,
        properties,
        half.born_timestamp_ms,
        half.born_host,
        half.flag,
        half.sys_flag,
        half.reconsume_times,
    )


def number(record: Record, name: Property) -> int | None:
    """Returns the value of a numeric property, or None if it is missing or not a number."""
    text = record.find(name.encode())
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def check_body(half: NewMessage, where: Appended, store_host: bytes) -> bytes:
    """Returns the record of a half message to send to its producer. It has the real topic and queue, but the offsets
    of the half message. Raises ``RecordError``."""
    topic, queue_id = own_place(half.properties)
    shown = NewMessage(
        topic,
        queue_id,
        half.body,
        half.properties,
        half.born_timestamp_ms,
        half.born_host,
        half.flag,
        half.sys_flag,
        half.reconsume_times,
    )
    return encode_record(shown, where.queue_offset, where.log_offset, where.store_timestamp_ms, store_host)


def op_message(half_offsets: Iterable[int], now_ms: int, host: bytes) -> NewMessage:
    """Returns the message that marks half messages as ended."""
    body = b"".join([b"%d," % offset for offset in half_offsets])
    return NewMessage(HALF_OP_TOPIC, HALF_QUEUE, body, _OP_PROPERTIES, now_ms, host)


def mark_offsets(op: Record) -> list[int]:
    """Returns the half queue offsets in a mark, without unreadable ones. Before Apache 5.0, a mark contained a single
    offset without a comma."""
    if op.find(_TAGS) != _OP_TAG:
        return []
    return [int(part) for part in op.body.split(b",") if part.isdigit()]
