"""Headers between brokers: metadata in pages (21, 201) and replication addresses (906).

Corresponds to Apache's GetAllTopicConfigRequestHeader, GetAllSubscriptionGroupRequestHeader,
ExchangeHAInfoRequestHeader.
"""

from __future__ import annotations

from orbitmq.wire.header import Header, Int32, Int64

__all__ = [
    "ExchangeBrokerHaInfoRequest",
    "ExchangeBrokerHaInfoResponse",
    "GetAllSubscriptiongroupConfigRequest",
    "GetAllSubscriptiongroupConfigResponse",
    "GetAllTopicConfigRequest",
    "GetAllTopicConfigResponse",
]


class GetAllTopicConfigRequest(Header, kw_only=True):
    """GET_ALL_TOPIC_CONFIG (21). Before 5.4 the request has no fields, and the answer contains all topics."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    """The version of the previous pages, as JSON; empty for the first page."""
    max_topic_num: Int32 | None = None


class GetAllTopicConfigResponse(Header, kw_only=True):
    total_topic_num: Int32 | None = None


class GetAllSubscriptiongroupConfigRequest(Header, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), in pages like GET_ALL_TOPIC_CONFIG."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetAllSubscriptiongroupConfigResponse(Header, kw_only=True):
    total_group_num: Int32 | None = None


class ExchangeBrokerHaInfoRequest(Header, kw_only=True):
    """EXCHANGE_BROKER_HA_INFO (906). Without fields the request queries the master, with fields it notifies a
    slave."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeBrokerHaInfoResponse(Header, kw_only=True):
    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
