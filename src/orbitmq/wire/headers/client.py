"""Headers between a client and its broker that do not concern messages: requests 34 and 35, and the broker's calls
40, 220, 221, 307 and 309.

Corresponds to Apache's UnregisterClientRequestHeader, NotifyConsumerIdsChangedRequestHeader and related headers.
"""

from __future__ import annotations

from msgspec import field

from orbitmq.wire.header import Header, Int32, Int64
from orbitmq.wire.headers.base import RpcRequest, TopicRpcRequest

__all__ = [
    "ConsumeMessageDirectlyRequest",
    "GetConsumerRunningInfoRequest",
    "GetConsumerStatusRequest",
    "HeartBeatRequest",
    "HeartBeatResponse",
    "NotifyConsumerIdsChangedRequest",
    "ResetOffsetRequest",
    "UnregisterClientRequest",
]


class HeartBeatRequest(RpcRequest, kw_only=True):
    """HEART_BEAT (34): all data is in the body."""


class HeartBeatResponse(Header, kw_only=True):
    """Answer to HEART_BEAT (34). Brokers before 5.1.3 send no fields."""

    supports_heart_beat_v2: bool | None = field(name="IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = field(name="IS_SUB_CHANGE", default=None)


class UnregisterClientRequest(RpcRequest, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class NotifyConsumerIdsChangedRequest(RpcRequest, kw_only=True):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), oneway to every member of a group."""

    consumer_group: str


class ResetOffsetRequest(TopicRpcRequest, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) to a broker, RESET_CONSUMER_CLIENT_OFFSET (220) to a client."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    """-1 or absent: all queues."""
    offset: Int64 | None = None
    """-1 or absent: decided by ``timestamp``."""


class GetConsumerStatusRequest(TopicRpcRequest, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) to a broker, GET_CONSUMER_STATUS_FROM_CLIENT (221) to a client."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequest(RpcRequest, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307), from a tool to the broker and on to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectlyRequest(TopicRpcRequest, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309), from a tool to the broker and on to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    message_broker_name: str | None = field(name="brokerName", default=None)
    """The broker that holds the message; ``broker_name`` is the base field ``bname``."""
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
