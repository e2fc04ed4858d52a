"""Options of POP consuming; a part of ``BrokerConfig``.

Keys for Apache's other ways of storing checkpoints (a buffer in memory, RocksDB, thread pools) are accepted without
effect; see ``runtime.apache_options``.
"""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.runtime.options import option

__all__ = ["PopOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PopOptions:
    """All options of POP except the revive queues and the retry topic version."""

    pop_polling_per_key: int = option(
        1_024, apache="popPollingSize", low=1, reload=True, doc="Pops of one group and queue that may wait."
    )
    pop_polling_max: int = option(
        100_000, apache="maxPopPollingSize", low=1, doc="Pops that may wait, of all groups together."
    )
    pop_checkpoints_max: int = option(
        200_000,
        apache="popCkMaxBufferSize",
        low=1,
        reload=True,
        doc="Open checkpoints (one for each pop and queue) the broker keeps; pops beyond are answered 209.",
    )
    pop_retry_percent: int = option(
        20,
        apache="popFromRetryProbability",
        low=0,
        high=100,
        reload=True,
        doc="Percent of the pops that look for redelivered messages first; the others do so last.",
    )
    pop_retry_percent_ranked: int = option(
        0,
        apache="popFromRetryProbabilityForPriority",
        low=0,
        high=100,
        reload=True,
        doc="As popFromRetryProbability, for topics of the type PRIORITY.",
    )
    pop_priority_ascending: bool = option(
        True,
        apache="priorityOrderAsc",
        reload=True,
        doc="In topics of the type PRIORITY the greater number is popped first; false: the smaller one.",
    )
    pop_young_queue_from_start: bool = option(
        True,
        apache="initPopOffsetByCheckMsgInMem",
        reload=True,
        doc="A new group reads a queue from its beginning while its first message is in memory.",
    )
    pop_retry_topic_v1_read: bool = option(
        True,
        apache="retrieveMessageFromPopRetryTopicV1",
        reload=True,
        doc="With enableRetryTopicV2: also read the retry topics of version 1.",
    )
    pop_separate_retry_queues: bool = option(
        False,
        apache="useSeparateRetryQueue",
        reload=True,
        doc="A pop retry topic has as many queues as its topic; messages keep their queue.",
    )
    pop_actual_retry_topic: bool = option(
        False,
        apache="popResponseReturnActualRetryTopic",
        reload=True,
        doc="Redelivered messages show the retry topic instead of their own.",
    )
    pop_threshold_enabled: bool = option(
        False,
        apache="enablePopMessageThreshold",
        reload=True,
        doc="A queue with too many unacknowledged messages of a group is not popped.",
    )
    pop_threshold: int = option(
        10_000,
        apache="popInflightMessageThreshold",
        low=1,
        reload=True,
        doc="How many are too many, with enablePopMessageThreshold.",
    )
    pop_order_wake_enabled: bool = option(
        True,
        apache="enableNotifyAfterPopOrderLockRelease",
        reload=True,
        doc="An ordered pop that waits is looked at again when the messages before it become visible.",
    )
    pop_notification_filtered: bool = option(
        True,
        apache="useMessageFilterForNotification",
        reload=True,
        doc="NOTIFICATION filters waiting messages by tag.",
    )
    pop_notification_filter_count: int = option(
        64,
        apache="maxMessageFilterNumForNotification",
        low=0,
        reload=True,
        doc="It does so while fewer messages than this wait.",
    )
    server_assignment_enabled: bool = option(
        True,
        apache="serverLoadBalancerEnable",
        reload=True,
        doc="QUERY_ASSIGNMENT shares queues out; else every client is given all of them.",
    )
    assignment_refresh_ms: int = option(
        30_000,
        apache="loadBalancePollNameServerInterval",
        low=1,
        reload=True,
        doc="How old the routes QUERY_ASSIGNMENT uses may be.",
    )
    default_request_mode: str = option(
        "PULL",
        apache="defaultMessageRequestMode",
        choices=("PULL", "POP"),
        reload=True,
        doc="How groups ask for messages when SET_MESSAGE_REQUEST_MODE did not say it.",
    )
    default_share_count: int = option(
        -1, apache="defaultPopShareQueueNum", reload=True, doc="popShareQueueNum of such groups."
    )
    pop_revive_interval_ms: int = option(
        1_000,
        apache="reviveInterval",
        low=1,
        reload=True,
        doc="Longest a redelivery the store refused waits until it is tried again.",
    )
