"""The assignment of queues to clients: locks (41, 42), members (38), assignments (400) and batch acknowledgements
(200151).

Corresponds to Apache's LockBatchRequestBody, GetConsumerListByGroupResponseBody, QueryAssignmentRequestBody,
BatchAck.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import field

from orbitmq.errors import BodyError
from orbitmq.model.route import MessageQueue
from orbitmq.wire import javajson
from orbitmq.wire.bodies.base import Body, always
from orbitmq.wire.header import Int32, Int64

__all__ = [
    "BatchAck",
    "BatchAckRequest",
    "ConsumerIdList",
    "LockBatchRequest",
    "LockBatchResponse",
    "MessageQueueAssignment",
    "QueryAssignmentRequest",
    "QueryAssignmentResponse",
    "read_batch_acks",
]

_ACK_BYTES_MAX: Final = 8 * 1024
"""One bit for each message of a pop, which has at most 32: far more than any peer needs."""
_BATCH_BYTES_MAX: Final = 4 << 20
_ACKS_MAX: Final = 16_384
_LONG_NAMES: Final = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


class LockBatchRequest(Body, frozen=True, kw_only=True):
    """Body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    client_id: str | None = None
    consumer_group: str | None = None
    mq_set: list[MessageQueue] = always(list)
    only_this_broker: bool | None = None
    """Since 5.0."""


class LockBatchResponse(Body, frozen=True, kw_only=True):
    lock_ok_mq_set: list[MessageQueue] = always(list, name="lockOKMQSet")


class ConsumerIdList(Body, frozen=True, kw_only=True):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: list[str] = always(list)


class QueryAssignmentRequest(Body, frozen=True, kw_only=True):
    """Body of QUERY_ASSIGNMENT (400)."""

    client_id: str | None = None
    consumer_group: str | None = None
    message_model: str | None = None
    strategy_name: str | None = None
    topic: str | None = None


class MessageQueueAssignment(Body, frozen=True, kw_only=True):
    attachments: dict[str, str] | None = None
    message_queue: MessageQueue | None = None
    mode: str = always(lambda: "PULL")


class QueryAssignmentResponse(Body, frozen=True, kw_only=True):
    """Answer to QUERY_ASSIGNMENT (400). ``None`` means that the broker has no assignment, and the client keeps its
    queues."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class BatchAck(Body, frozen=True, kw_only=True):
    """The finished messages of one pop. The wire names are Apache's abbreviations."""

    bits: str | None = field(name="b", default=None)
    """Base64 of a little-endian bit set; see ``indexes``."""
    consumer_group: str | None = field(name="c", default=None)
    invisible_time: Int64 = always(int, name="it")
    pop_time: Int64 = always(int, name="pt")
    queue_id: Int32 = always(int, name="q")
    retry: str | None = field(name="r", default=None)
    revive_queue_id: Int32 = always(int, name="rq")
    start_offset: Int64 = always(int, name="so")
    topic: str | None = field(name="t", default=None)

    def indexes(self) -> list[int]:
        """Returns the positions of the messages in the pop, counted from ``start_offset``. Raises ``BodyError``."""
        text = self.bits or ""
        if len(text) > _ACK_BYTES_MAX:
            raise BodyError(f"acknowledgement bits of {len(text)} bytes are longer than {_ACK_BYTES_MAX}")
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BodyError(f"acknowledgement bits cannot be read: {error}") from None
        bits = int.from_bytes(raw, "little")
        return [index for index in range(bits.bit_length()) if bits >> index & 1]

    def with_indexes(self, indexes: Iterable[int]) -> BatchAck:
        """Returns a copy of the acknowledgement with other positions."""
        bits = 0
        for index in indexes:
            bits |= 1 << index
        raw = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return msgspec.structs.replace(self, bits=base64.b64encode(raw).decode())


class BatchAckRequest(Body, frozen=True, kw_only=True):
    """Body of BATCH_ACK_MESSAGE (200151)."""

    acks: list[BatchAck] = always(list)
    broker_name: str | None = None


def read_batch_acks(body: bytes) -> list[BatchAck]:
    """Returns the entries of BATCH_ACK_MESSAGE. Raises ``BodyError``.

    It also accepts the long names of the fields, like Apache's readers. The permission check and the handler both use
    this function, because an entry may contain both names of one field with different values.
    """
    if not body:
        return []
    raw: Any = javajson.loads(body, bytes_max=_BATCH_BYTES_MAX)
    entries = raw.get("acks") if isinstance(raw, dict) else None
    if not isinstance(entries, list) or not entries:
        return []
    if len(entries) > _ACKS_MAX:
        raise BodyError(f"{len(entries)} acknowledgements in one request, at most {_ACKS_MAX} are allowed")
    try:
        return [
            msgspec.convert(
                {_LONG_NAMES.get(name, name): value for name, value in entry.items()}, BatchAck, strict=False
            )
            for entry in entries
        ]
    except (msgspec.ValidationError, AttributeError) as error:
        raise BodyError(f"acknowledgements cannot be read: {error}") from None
