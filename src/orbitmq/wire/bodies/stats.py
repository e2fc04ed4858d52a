"""Statistics of a broker: 202, 208, 315, 317, 321, 907.

Corresponds to Apache's TopicStatsTable, ConsumeStats, ConsumeStatsList, BrokerStatsData,
QueryConsumeQueueResponseBody, HARuntimeInfo.
"""

from __future__ import annotations

from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SubscriptionData
from orbitmq.wire.bodies.base import Body, always
from orbitmq.wire.header import Int32, Int64
from orbitmq.wire.javajson import ObjectMap

__all__ = [
    "BrokerStatsData",
    "BrokerStatsItem",
    "ConsumeQueueData",
    "ConsumeStats",
    "ConsumeStatsList",
    "HaClientRuntimeInfo",
    "HaConnectionRuntimeInfo",
    "HaRuntimeInfo",
    "OffsetWrapper",
    "QueryConsumeQueueResponse",
    "TopicOffset",
    "TopicStats",
]


class TopicOffset(Body, frozen=True, kw_only=True):
    last_update_timestamp: Int64 = always(int)
    max_offset: Int64 = always(int)
    min_offset: Int64 = always(int)


class TopicStats(Body, frozen=True, kw_only=True):
    """Answer to GET_TOPIC_STATS_INFO (202)."""

    offset_table: ObjectMap[MessageQueue, TopicOffset] = always(ObjectMap)
    topic_put_tps: float | None = None
    """Since 5.0."""


class OffsetWrapper(Body, frozen=True, kw_only=True):
    broker_offset: Int64 = always(int)
    consumer_offset: Int64 = always(int)
    last_timestamp: Int64 = always(int)
    pull_offset: Int64 | None = None
    """Since 5.0."""
    unfinished: Int64 | None = None
    """Our extension, on request: stored messages that the group has not finished."""
    oldest_unfinished: Int64 | None = None
    """Our extension, on request: when the oldest of them was stored, in milliseconds; 0 if none or unknown."""


class ConsumeStats(Body, frozen=True, kw_only=True):
    """Answer to GET_CONSUME_STATS (208)."""

    consume_tps: float = always(float)
    offset_table: ObjectMap[MessageQueue, OffsetWrapper] = always(ObjectMap)


class ConsumeStatsList(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_CONSUME_STATS (317): a list of maps, each from one group to its statistics."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = always(list)
    total_diff: Int64 = always(int)
    total_inflight_diff: Int64 | None = None
    """Since 5.0."""


class BrokerStatsItem(Body, frozen=True, kw_only=True):
    avgpt: float = always(float)
    sum: Int64 = always(int)
    tps: float = always(float)


class BrokerStatsData(Body, frozen=True, kw_only=True):
    """Answer to VIEW_BROKER_STATS_DATA (315)."""

    stats_day: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_minute: BrokerStatsItem | None = None


class ConsumeQueueData(Body, frozen=True, kw_only=True):
    bit_map: str | None = None
    eval: bool = always(bool)
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Int64 = always(int)
    physic_size: Int32 = always(int)
    tags_code: Int64 = always(int)


class QueryConsumeQueueResponse(Body, frozen=True, kw_only=True):
    """Answer to QUERY_CONSUME_QUEUE (321)."""

    filter_data: str | None = None
    max_queue_index: Int64 = always(int)
    min_queue_index: Int64 = always(int)
    queue_data: list[ConsumeQueueData] | None = None
    subscription_data: SubscriptionData | None = None


class HaConnectionRuntimeInfo(Body, frozen=True, kw_only=True):
    """The state of one slave, as its master sees it."""

    addr: str | None = None
    diff: Int64 = always(int)
    in_sync: bool = always(bool)
    slave_ack_offset: Int64 = always(int)
    transfer_from_where: Int64 = always(int)
    transferred_byte_in_second: Int64 = always(int)


class HaClientRuntimeInfo(Body, frozen=True, kw_only=True):
    """The state of the master, as a slave sees it."""

    activated: bool | None = None
    last_read_timestamp: Int64 = always(int)
    last_write_timestamp: Int64 = always(int)
    master_addr: str | None = None
    master_flush_offset: Int64 = always(int)
    max_offset: Int64 = always(int)
    transferred_byte_in_second: Int64 = always(int)


class HaRuntimeInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_HA_STATUS (907)."""

    ha_client_runtime_info: HaClientRuntimeInfo | None = None
    ha_connection_info: list[HaConnectionRuntimeInfo] = always(list)
    in_sync_slave_nums: Int32 = always(int)
    master: bool = always(bool)
    master_commit_log_max_offset: Int64 = always(int)
