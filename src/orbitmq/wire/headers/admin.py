"""Headers from admin tools to a broker: topics, groups, config (17, 26, 207, 215, 314, 323, 351-353) and inspection
(202-204, 208, 300, 303, 308, 315, 317, 321, 343, 345).

Corresponds to Apache's CreateTopicRequestHeader, GetConsumeStatsRequestHeader and related headers.
"""

from __future__ import annotations

from orbitmq.wire.header import Header, Int32, Int64
from orbitmq.wire.headers.base import RpcRequest, TopicRpcRequest

__all__ = [
    "CloneGroupOffsetRequest",
    "DeleteSubscriptiongroupRequest",
    "DeleteTopicInBrokerRequest",
    "GetBrokerConfigResponse",
    "GetBrokerConsumeStatsRequest",
    "GetConsumeStatsRequest",
    "GetConsumerConnectionListRequest",
    "GetProducerConnectionListRequest",
    "GetSubscriptiongroupConfigRequest",
    "GetTopicConfigRequest",
    "GetTopicStatsInfoRequest",
    "QueryConsumeQueueRequest",
    "QueryConsumeTimeSpanRequest",
    "QueryCorrectionOffsetRequest",
    "QuerySubscriptionByConsumerRequest",
    "QueryTopicConsumeByWhoRequest",
    "QueryTopicsByConsumerRequest",
    "ResumeCheckHalfMessageRequest",
    "UpdateAndCreateTopicListRequest",
    "UpdateAndCreateTopicRequest",
    "UpdateAndGetGroupForbiddenRequest",
    "ViewBrokerStatsDataRequest",
]


class UpdateAndCreateTopicRequest(TopicRpcRequest, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str | None = None
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str | None = None
    topic_sys_flag: Int32 | None = None
    order: bool | None = None
    attributes: str | None = None
    """Changes as ``+key=value,-key``."""
    force: bool | None = None


class UpdateAndCreateTopicListRequest(RpcRequest, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST (18): all data is in the body."""


class DeleteTopicInBrokerRequest(TopicRpcRequest, kw_only=True):
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


class GetTopicConfigRequest(TopicRpcRequest, kw_only=True):
    """GET_TOPIC_CONFIG (351)."""

    topic: str


class GetSubscriptiongroupConfigRequest(RpcRequest, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class DeleteSubscriptiongroupRequest(RpcRequest, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207). 4.9 calls the flag ``removeOffset``, 5.x ``cleanOffset``."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None

    @property
    def drops_offsets(self) -> bool:
        return bool(self.clean_offset or self.remove_offset)


class UpdateAndGetGroupForbiddenRequest(TopicRpcRequest, kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). Without ``readable`` it only queries."""

    group: str
    topic: str
    readable: bool | None = None


class GetBrokerConfigResponse(Header, kw_only=True):
    """Answer to GET_BROKER_CONFIG (26). ``version`` is a data version as JSON."""

    version: str | None = None


class CloneGroupOffsetRequest(RpcRequest, kw_only=True):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class ResumeCheckHalfMessageRequest(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    msg_id: str | None = None
    topic: str | None = None


class GetTopicStatsInfoRequest(TopicRpcRequest, kw_only=True):
    """GET_TOPIC_STATS_INFO (202)."""

    topic: str


class GetConsumeStatsRequest(TopicRpcRequest, kw_only=True):
    """GET_CONSUME_STATS (208). Without a topic it returns all topics of the group."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    """5.4: topics joined by ``;``."""
    unfinished: bool | None = None
    """Our extension: include subscribed topics without an offset, and the unfinished messages of every
    queue."""


class GetBrokerConsumeStatsRequest(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool
    unfinished: bool | None = None
    """Our extension: as in ``GetConsumeStatsRequest``."""


class GetConsumerConnectionListRequest(RpcRequest, kw_only=True):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class GetProducerConnectionListRequest(RpcRequest, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class QueryTopicConsumeByWhoRequest(TopicRpcRequest, kw_only=True):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


class QueryTopicsByConsumerRequest(RpcRequest, kw_only=True):
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class QuerySubscriptionByConsumerRequest(TopicRpcRequest, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


class QueryConsumeTimeSpanRequest(TopicRpcRequest, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class QueryCorrectionOffsetRequest(TopicRpcRequest, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308). ``filter_groups`` is a comma-separated list."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class ViewBrokerStatsDataRequest(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class QueryConsumeQueueRequest(TopicRpcRequest, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None
