"""Declares the requests between masters, slaves and Apache's controllers."""

from __future__ import annotations

from typing import Final

from orbitmq.requests.declare import Request
from orbitmq.wire.headers import replication

__all__ = ["Replication"]

_CONTROLLER: Final = "only a controller serves this; there is none here"
_CONTROLLED: Final = "roles come from the configuration here, not from a controller"


class Replication:
    """Requests between masters, slaves and Apache's controllers."""

    GET_ALL_TOPIC_CONFIG = Request(
        21,
        replication.GetAllTopicConfigRequest,
        replication.GetAllTopicConfigResponse,
        admin=("exportMetadata",),
    )
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Request(
        201,
        replication.GetAllSubscriptiongroupConfigRequest,
        replication.GetAllSubscriptiongroupConfigResponse,
        admin=("exportMetadata",),
    )
    GET_ALL_CONSUMER_OFFSET = Request(43)
    GET_ALL_DELAY_OFFSET = Request(45)
    GET_TIMER_CHECK_POINT = Request(60)
    GET_TIMER_METRICS = Request(61)
    EXCHANGE_BROKER_HA_INFO = Request(
        906, replication.ExchangeBrokerHaInfoRequest, replication.ExchangeBrokerHaInfoResponse
    )
    GET_BROKER_HA_STATUS = Request(907, admin=("haStatus",))
    RESET_MASTER_FLUSH_OFFSET = Request(
        908,
        served_by=(),
        unless="a slave learns its master's flushed offset from replication itself",
        admin=("resetMasterFlushOffset",),
    )
    CONTROLLER_ALTER_SYNC_STATE_SET = Request(1001, served_by=(), unless=_CONTROLLER)
    CONTROLLER_ELECT_MASTER = Request(1002, served_by=(), unless=_CONTROLLER, admin=("electMaster",))
    CONTROLLER_REGISTER_BROKER = Request(1003, served_by=(), unless=_CONTROLLER)
    CONTROLLER_GET_REPLICA_INFO = Request(1004, served_by=(), unless=_CONTROLLER)
    CONTROLLER_GET_METADATA_INFO = Request(
        1005, served_by=(), unless=_CONTROLLER, admin=("getControllerMetaData",)
    )
    CONTROLLER_GET_SYNC_STATE_DATA = Request(
        1006, served_by=(), unless=_CONTROLLER, admin=("getSyncStateSet",)
    )
    GET_BROKER_EPOCH_CACHE = Request(1007, served_by=(), unless=_CONTROLLED, admin=("getBrokerEpoch",))
    NOTIFY_BROKER_ROLE_CHANGED = Request(1008, served_by=(), unless=_CONTROLLED)
    UPDATE_CONTROLLER_CONFIG = Request(
        1009, served_by=(), unless=_CONTROLLER, admin=("updateControllerConfig",)
    )
    GET_CONTROLLER_CONFIG = Request(1010, served_by=(), unless=_CONTROLLER, admin=("getControllerConfig",))
    CLEAN_BROKER_DATA = Request(1011, served_by=(), unless=_CONTROLLER, admin=("cleanBrokerMetadata",))
    CONTROLLER_GET_NEXT_BROKER_ID = Request(1012, served_by=(), unless=_CONTROLLER)
    CONTROLLER_APPLY_BROKER_ID = Request(1013, served_by=(), unless=_CONTROLLER)
    BROKER_CLOSE_CHANNEL_REQUEST = Request(1014, served_by=(), unless=_CONTROLLER)
    CHECK_NOT_ACTIVE_BROKER_REQUEST = Request(1015, served_by=(), unless=_CONTROLLER)
    GET_BROKER_LIVE_INFO_REQUEST = Request(1016, served_by=(), unless=_CONTROLLER)
    GET_SYNC_STATE_DATA_REQUEST = Request(1017, served_by=(), unless=_CONTROLLER)
    RAFT_BROKER_HEART_BEAT_EVENT_REQUEST = Request(1018, served_by=(), unless=_CONTROLLER)
