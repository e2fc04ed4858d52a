"""Headers for consuming: pulls, offsets, searches and queries (11, 12, 14, 15, 29-33, 38, 41, 42, 361).

Corresponds to Apache's PullMessageRequestHeader, QueryConsumerOffsetRequestHeader and related headers.
"""

from __future__ import annotations

from msgspec import field

from orbitmq.wire.header import Header, Int32, Int64
from orbitmq.wire.headers.base import RpcRequest, TopicRpcRequest

__all__ = [
    "GetConsumerListByGroupRequest",
    "GetEarliestMsgStoretimeRequest",
    "GetEarliestMsgStoretimeResponse",
    "GetMaxOffsetRequest",
    "GetMinOffsetRequest",
    "LockBatchMqRequest",
    "OffsetResponse",
    "PullMessageRequest",
    "PullMessageResponse",
    "QueryConsumerOffsetRequest",
    "QueryMessageRequest",
    "QueryMessageResponse",
    "SearchOffsetByTimestampRequest",
    "UnlockBatchMqRequest",
    "UpdateConsumerOffsetRequest",
    "ViewMessageByIdRequest",
]


class PullMessageRequest(TopicRpcRequest, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). Apache reads the last three fields only if a flag says so."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    sub_version: Int64 = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: str | None = field(name="proxyFrowardClientId", default=None)  # sic
    lite_topic: str | None = None


class PullMessageResponse(Header, kw_only=True):
    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class QueryConsumerOffsetRequest(TopicRpcRequest, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequest(TopicRpcRequest, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15), usually oneway."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class OffsetResponse(Header, kw_only=True):
    """Answer to 14, 29, 30 and 31."""

    offset: Int64


class GetConsumerListByGroupRequest(RpcRequest, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


class LockBatchMqRequest(RpcRequest, kw_only=True):
    """LOCK_BATCH_MQ (41): all data is in the body."""


class UnlockBatchMqRequest(RpcRequest, kw_only=True):
    """UNLOCK_BATCH_MQ (42): all data is in the body."""


class SearchOffsetByTimestampRequest(TopicRpcRequest, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    """``LOWER`` (also when absent) or ``UPPER``."""
    lite_topic: str | None = None


class GetMaxOffsetRequest(TopicRpcRequest, kw_only=True):
    """GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: Int32
    committed: bool | None = None
    """True when absent."""


class GetMinOffsetRequest(TopicRpcRequest, kw_only=True):
    """GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeRequest(TopicRpcRequest, kw_only=True):
    """GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponse(Header, kw_only=True):
    timestamp: Int64


class QueryMessageRequest(TopicRpcRequest, kw_only=True):
    """QUERY_MESSAGE (12)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)
    index_type: str | None = None
    """5.5: ``K`` keys, ``U`` unique key, ``T`` tag."""
    last_key: str | None = None


class QueryMessageResponse(Header, kw_only=True):
    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageByIdRequest(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33). ``offset`` is a commit log offset."""

    offset: Int64
    topic: str | None = None
