"""Declares the requests for topics and their queues."""

from __future__ import annotations

from orbitmq.requests.declare import RETIRED, Request
from orbitmq.wire.headers import admin

__all__ = ["Topics"]


class Topics:
    """Requests for topics and their queues."""

    UPDATE_AND_CREATE_TOPIC = Request(
        17,
        admin.UpdateAndCreateTopicRequest,
        admin=(
            "updateTopic",
            "updateTopicPerm",
        ),
    )
    UPDATE_AND_CREATE_TOPIC_LIST = Request(
        18, admin.UpdateAndCreateTopicListRequest, admin=("updateTopicList",)
    )
    GET_TOPIC_CONFIG_LIST = Request(22, served_by=(), unless=RETIRED)
    GET_TOPIC_NAME_LIST = Request(23, served_by=(), unless=RETIRED)
    DELETE_TOPIC_IN_BROKER = Request(215, admin.DeleteTopicInBrokerRequest, admin=("deleteTopic",))
    GET_TOPIC_CONFIG = Request(351, admin.GetTopicConfigRequest)
    GET_TOPIC_STATS_INFO = Request(202, admin.GetTopicStatsInfoRequest, admin=("topicStatus",))
    QUERY_TOPIC_CONSUME_BY_WHO = Request(300, admin.QueryTopicConsumeByWhoRequest)
    QUERY_CONSUME_TIME_SPAN = Request(303, admin.QueryConsumeTimeSpanRequest)
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = Request(305)
    QUERY_CORRECTION_OFFSET = Request(308, admin.QueryCorrectionOffsetRequest)
    CLEAN_UNUSED_TOPIC = Request(316, admin=("cleanUnusedTopic",))
    QUERY_CONSUME_QUEUE = Request(321, admin.QueryConsumeQueueRequest, admin=("queryCq",))
    UPDATE_AND_CREATE_STATIC_TOPIC = Request(
        513, served_by=(), unless="static topics are not served: queues do not move between brokers"
    )
