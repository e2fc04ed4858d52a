"""Options of POP consuming; a part of ``BrokerConfig``.

Those marked as without effect belong to ways of keeping checkpoints that only Apache has (a buffer in memory,
RocksDB, pools of threads). They are accepted and shown, so that an Apache file can be taken over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from orbitmq.runtime.options import option

__all__ = ["PopOptions"]

_NO_EFFECT: Final = "Accepted for Apache's files; has no effect here."


def _unused(default: Any, key: str) -> Any:
    return option(default, apache=key, reload=True, doc=_NO_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopOptions:
    """Everything POP may be told, but the revive queues and the version of retry topics."""

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
        doc="NOTIFICATION looks at the tags of waiting messages.",
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

    pop_polling_map_count: int = _unused(100_000, "popPollingMapSize")
    pop_polling_map_expiry_s: int = _unused(600, "popPollingMapExpireTimeSeconds")
    pop_revive_slow_max: int = _unused(3, "reviveMaxSlow")
    pop_revive_scan_ms: int = _unused(10_000, "reviveScanTime")
    pop_skip_long_acks: bool = _unused(False, "enableSkipLongAwaitingAck")
    pop_ack_wait_ms: int = _unused(180_000, "reviveAckWaitMs")
    pop_log_enabled: bool = _unused(False, "enablePopLog")
    pop_buffer_merge: bool = _unused(False, "enablePopBufferMerge")
    pop_buffer_stay_ms: int = _unused(10_000, "popCkStayBufferTime")
    pop_buffer_stay_end_ms: int = _unused(3_000, "popCkStayBufferTimeOut")
    pop_buffer_offsets_max: int = _unused(20_000, "popCkOffsetMaxQueueSize")
    pop_batch_ack: bool = _unused(False, "enablePopBatchAck")
    pop_ack_async: bool = _unused(False, "appendAckAsync")
    pop_checkpoint_async: bool = _unused(False, "appendCkAsync")
    pop_force_wake_interval: int = _unused(800, "popLongPollingForceNotifyInterval")
    pop_wake_before_lag: bool = _unused(True, "enableNotifyBeforePopCalculateLag")
    pop_retry_percent_priority: int = _unused(0, "popFromRetryProbabilityForPriority")
    pop_priority_ascending: bool = _unused(True, "priorityOrderAsc")
    pop_fs_init: bool = _unused(True, "popConsumerFSServiceInit")
    pop_kv_init: bool = _unused(False, "popConsumerKVServiceInit")
    pop_kv_enabled: bool = _unused(False, "popConsumerKVServiceEnable")
    pop_kv_log: bool = _unused(False, "popConsumerKVServiceLog")
    pop_revive_read_count: int = _unused(16_384, "popReviveMaxReturnSizePerRead")
    pop_revive_concurrency: int = _unused(32, "popReviveConcurrency")
    pop_revive_attempts_max: int = _unused(16, "popReviveMaxAttemptTimes")
    pop_revive_skips_gone_groups: bool = _unused(True, "popReviveSkipIfGroupAbsent")
    pop_skip_after_rewrites: bool = _unused(False, "skipWhenCKRePutReachMaxTimes")
    pop_metrics_enabled: bool = _unused(True, "enablePopMetrics")
    ack_thread_count: int = _unused(16, "ackMessageThreadPoolNums")
    assignment_thread_count: int = _unused(32, "loadBalanceProcessorThreadPoolNums")
