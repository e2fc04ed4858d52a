"""Headers for sending (10, 36, 37, 310, 320, 324, 325, 326, 370), and for the transaction check (39).

Corresponds to Apache's SendMessageRequestHeader(V2), ConsumerSendMsgBackRequestHeader, EndTransactionRequestHeader
and related headers.
"""

from __future__ import annotations

from msgspec import field

from orbitmq.codes import KernelRequest
from orbitmq.kernel import Frame, SendFields, SendOrigin, SendTarget
from orbitmq.wire.header import Header, Int32, Int64, decode_header
from orbitmq.wire.headers.base import RpcRequest, TopicRpcRequest

__all__ = [
    "CheckTransactionStateRequest",
    "ConsumerSendMsgBackRequest",
    "EndTransactionRequest",
    "PushReplyMessageToClientRequest",
    "RecallMessageRequest",
    "RecallMessageResponse",
    "SendMessageRequest",
    "SendMessageRequestV2",
    "SendMessageResponse",
    "send_ext",
    "send_fields",
]


class SendMessageRequest(TopicRpcRequest, kw_only=True):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324). Apache accepts a send without group and default topic.

    V2 has the same values under one-letter names, which Apache introduced to shorten the JSON. A handler of sends
    accepts both.
    """

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 0
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None


class SendMessageRequestV2(SendMessageRequest, kw_only=True):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325).

    It has the values of ``SendMessageRequest`` under one-letter names.
    """

    producer_group: str = field(name="a", default="")
    topic: str = field(name="b")
    default_topic: str = field(name="c", default="")
    default_topic_queue_nums: Int32 = field(name="d", default=0)
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(name="i", default=None)
    reconsume_times: Int32 | None = field(name="j", default=None)
    unit_mode: bool | None = field(name="k", default=None)
    max_reconsume_times: Int32 | None = field(name="l", default=None)
    batch: bool | None = field(name="m", default=None)
    broker_name: str | None = field(name="n", default=None)


def send_fields(frame: Frame) -> SendFields:
    """Parses the fields of a send frame that the kernel left unparsed. Raises ``HeaderFieldError`` naming the bad
    field."""
    long_names = frame.code == KernelRequest.SEND_MESSAGE
    header = decode_header(SendMessageRequest if long_names else SendMessageRequestV2, frame)
    return SendFields(
        header.producer_group,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        header.properties.encode() if header.properties else b"",
        header.reconsume_times or 0,
        header.max_reconsume_times,
        bool(header.batch),
    )


def send_ext(
    origin: SendOrigin,
    target: SendTarget,
    properties: str,
    born_ms: int,
    sys_flag: int,
    flag: int,
    batch: bool,
) -> dict[str, str]:
    """Returns the fields of a send as texts, for headers that are signed or written as JSON. The binary form is
    written by the kernel's ``encode_send_fields``."""
    return {
        "a": origin.group,
        "b": target.topic,
        "c": origin.default_topic,
        "d": str(origin.default_queue_count),
        "e": str(target.queue_id),
        "f": str(sys_flag),
        "g": str(born_ms),
        "h": str(flag),
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
        "n": target.broker_name,
    }


class SendMessageResponse(Header, kw_only=True):
    """Answer to every kind of send. If the send is refused, only the region and trace fields are set."""

    msg_id: str | None = None
    """Offset id; for a batch the ids of all messages, joined by commas."""
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region_id: str | None = field(name="MSG_REGION", default=None)
    trace_on: bool | None = field(name="TRACE_ON", default=None)


class ConsumerSendMsgBackRequest(RpcRequest, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36). ``offset`` is a commit log offset."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    retry_reason: str | None = None
    """Our extension: why the message is sent back. Our broker stores it as the property RETRY_REASON and
    confirms that."""


class ConsumerSendMsgBackResponse(Header, kw_only=True):
    """Answer to CONSUMER_SEND_MSG_BACK (36) if the request has a reason. An extension of this project."""

    reason_stored: bool = False


class EndTransactionRequest(RpcRequest, kw_only=True):
    """END_TRANSACTION (37). ``commit_or_rollback`` is 0 (unknown), 8 (commit) or 12 (roll back)."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str | None = None
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionStateRequest(RpcRequest, kw_only=True):
    """CHECK_TRANSACTION_STATE (39), from the broker to a producer."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


class PushReplyMessageToClientRequest(TopicRpcRequest, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), from the broker to the client that sent the request."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: Int64


class RecallMessageRequest(TopicRpcRequest, kw_only=True):
    """RECALL_MESSAGE (370): cancel a timer message."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponse(Header, kw_only=True):
    msg_id: str
