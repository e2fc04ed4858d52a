"""Declares the requests for consumer groups and their progress."""

from __future__ import annotations

from orbitmq.requests.declare import RETIRED, Request
from orbitmq.wire.headers import admin

__all__ = ["Groups"]


class Groups:
    """Requests for consumer groups and their progress."""

    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = Request(200, admin=("updateSubGroup",))
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = Request(225, admin=("updateSubGroupList",))
    DELETE_SUBSCRIPTIONGROUP = Request(207, admin.DeleteSubscriptiongroupRequest, admin=("deleteSubGroup",))
    GET_SUBSCRIPTIONGROUP_CONFIG = Request(
        352, admin.GetSubscriptiongroupConfigRequest, admin=("getConsumerConfig",)
    )
    UPDATE_AND_GET_GROUP_FORBIDDEN = Request(353, admin.UpdateAndGetGroupForbiddenRequest)
    GET_CONSUME_STATS = Request(
        208,
        admin.GetConsumeStatsRequest,
        admin=(
            "consumerProgress",
            "startMonitoring",
        ),
    )
    CLONE_GROUP_OFFSET = Request(314, admin.CloneGroupOffsetRequest)
    GET_BROKER_CONSUME_STATS = Request(317, admin.GetBrokerConsumeStatsRequest, admin=("brokerConsumeStats",))
    QUERY_TOPICS_BY_CONSUMER = Request(343, admin.QueryTopicsByConsumerRequest)
    QUERY_SUBSCRIPTION_BY_CONSUMER = Request(345, admin.QuerySubscriptionByConsumerRequest)
    SUSPEND_CONSUMER = Request(209, served_by=(), unless=RETIRED)
    RESUME_CONSUMER = Request(210, served_by=(), unless=RETIRED)
    RESET_CONSUMER_OFFSET_IN_CONSUMER = Request(211, served_by=(), unless=RETIRED)
    RESET_CONSUMER_OFFSET_IN_BROKER = Request(212, served_by=(), unless=RETIRED)
    ADJUST_CONSUMER_THREAD_POOL = Request(213, served_by=(), unless=RETIRED)
    WHO_CONSUME_THE_MESSAGE = Request(214, served_by=(), unless=RETIRED)
