"""Headers for POP consuming (200050-200055). The request codes do not fit the binary header, so these requests are
sent as JSON only.

Corresponds to Apache's PopMessageRequestHeader, AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader and others.
"""

from __future__ import annotations

from orbitmq.wire.header import Header, Int32, Int64
from orbitmq.wire.headers.base import TopicRpcRequest

__all__ = [
    "AckMessageRequest",
    "ChangeMessageInvisibletimeRequest",
    "ChangeMessageInvisibletimeResponse",
    "NotificationRequest",
    "NotificationResponse",
    "PeekMessageRequest",
    "PollingInfoRequest",
    "PollingInfoResponse",
    "PopMessageRequest",
    "PopMessageResponse",
]


class PopMessageRequest(TopicRpcRequest, kw_only=True):
    """POP_MESSAGE (200050)."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0
    """-1 means any queue. Like the other numbers it is 0 if missing, like in Apache.
    """
    max_msg_nums: Int32 = 0
    invisible_time: Int64 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    """When the client sent it; 0 means now."""
    init_mode: Int32 = 0
    """Where a new group begins: 0 at the oldest message, 1 at the newest."""
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponse(Header, kw_only=True):
    """Answer to 200050 and PEEK_MESSAGE (200052)."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequest(TopicRpcRequest, kw_only=True):
    """ACK_MESSAGE (200051). ``extra_info`` is the receipt handle."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class ChangeMessageInvisibletimeRequest(TopicRpcRequest, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool | None = None


class ChangeMessageInvisibletimeResponse(Header, kw_only=True):
    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekMessageRequest(TopicRpcRequest, kw_only=True):
    """PEEK_MESSAGE (200052)."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class NotificationRequest(TopicRpcRequest, kw_only=True):
    """NOTIFICATION (200054): wait until there are messages to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponse(Header, kw_only=True):
    has_msg: bool
    polling_full: bool | None = None


class PollingInfoRequest(TopicRpcRequest, kw_only=True):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponse(Header, kw_only=True):
    polling_num: Int32
