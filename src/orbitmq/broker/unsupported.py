"""Request codes this broker does not serve, each with the reason in its answer (code 3).

Together with the routes this covers every ``RequestCode``: a test holds that, so a new code cannot be forgotten and a
code that gets a route leaves this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from orbitmq.codes import RequestCode

__all__ = ["UNSUPPORTED", "unserved"]

_NAME_SERVER: Final = "this is for a name server, not for a broker"
_CONTROLLER: Final = "this is for a controller, not for a broker"
_CLIENT: Final = "brokers send this to clients, not the other way round"
_CONTAINER: Final = "this is for a broker container; each broker here is a process of its own"
_RETIRED: Final = "no release of RocketMQ in use serves this"
_LITE: Final = "lite topics of 5.5 are not served"
_ACL_FILES: Final = "access lists of 4.x are not in force; aclEnable=true switches them on"
_COLD: Final = "reads of old messages are not throttled by group here"
_CONTROLLED: Final = "roles are given by configuration here, not by a controller"

UNSUPPORTED: Final[Mapping[int, str]] = {
    # Elsewhere.
    **dict.fromkeys(
        (
            RequestCode.PUT_KV_CONFIG,
            RequestCode.GET_KV_CONFIG,
            RequestCode.DELETE_KV_CONFIG,
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.GET_BROKER_CLUSTER_INFO,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            RequestCode.GET_TOPICS_BY_CLUSTER,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            RequestCode.UPDATE_NAMESRV_CONFIG,
            RequestCode.GET_NAMESRV_CONFIG,
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.GET_BROKER_MEMBER_GROUP,
            RequestCode.BROKER_HEARTBEAT,
        ),
        _NAME_SERVER,
    ),
    **dict.fromkeys(
        (
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            RequestCode.CONTROLLER_GET_METADATA_INFO,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            RequestCode.UPDATE_CONTROLLER_CONFIG,
            RequestCode.GET_CONTROLLER_CONFIG,
            RequestCode.CLEAN_BROKER_DATA,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            RequestCode.BROKER_CLOSE_CHANNEL_REQUEST,
            RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST,
            RequestCode.GET_BROKER_LIVE_INFO_REQUEST,
            RequestCode.GET_SYNC_STATE_DATA_REQUEST,
            RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        ),
        _CONTROLLER,
    ),
    **dict.fromkeys(
        (
            RequestCode.CHECK_TRANSACTION_STATE,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
        ),
        _CLIENT,
    ),
    RequestCode.ADD_BROKER: _CONTAINER,
    RequestCode.REMOVE_BROKER: _CONTAINER,
    # Nowhere.
    **dict.fromkeys(
        (
            RequestCode.QUERY_BROKER_OFFSET,
            RequestCode.GET_TOPIC_CONFIG_LIST,
            RequestCode.GET_TOPIC_NAME_LIST,
            RequestCode.TRIGGER_DELETE_FILES,
            RequestCode.GET_CLIENT_CONFIG,
            RequestCode.SUSPEND_CONSUMER,
            RequestCode.RESUME_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
            RequestCode.ADJUST_CONSUMER_THREAD_POOL,
            RequestCode.WHO_CONSUME_THE_MESSAGE,
            RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
        ),
        _RETIRED,
    ),
    # Not here.
    **dict.fromkeys(
        (
            RequestCode.POP_LITE_MESSAGE,
            RequestCode.LITE_SUBSCRIPTION_CTL,
            RequestCode.ACK_LITE_MESSAGE,
            RequestCode.GET_BROKER_LITE_INFO,
            RequestCode.GET_PARENT_TOPIC_INFO,
            RequestCode.GET_LITE_TOPIC_INFO,
            RequestCode.GET_LITE_CLIENT_INFO,
            RequestCode.GET_LITE_GROUP_INFO,
            RequestCode.TRIGGER_LITE_DISPATCH,
        ),
        _LITE,
    ),
    **dict.fromkeys(
        (
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            RequestCode.DELETE_ACL_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        ),
        _ACL_FILES,
    ),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    RequestCode.SET_COMMITLOG_READ_MODE: "reading ahead in the log is left to the operating system",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: "queues are plain files here; there is no RocksDB to compare with",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "topics, groups and offsets are kept as JSON files already",
    RequestCode.SWITCH_TIMER_ENGINE: "there is one way to keep timed messages here",
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "static topics are not served: queues do not move between brokers",
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _CONTROLLED,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CONTROLLED,
    RequestCode.GET_BROKER_EPOCH_CACHE: _CONTROLLED,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: "a slave learns its master's flushed offset from replication itself",
}


def unserved(routed: Iterable[int]) -> dict[int, str]:
    """The reasons for all codes but those that have a route."""
    served = frozenset(routed)
    return {code: reason for code, reason in UNSUPPORTED.items() if code not in served}
