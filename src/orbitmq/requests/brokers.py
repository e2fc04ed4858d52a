"""Declares the requests for the settings, state and maintenance of a broker."""

from __future__ import annotations

from typing import Final

from orbitmq.requests.declare import RETIRED, Request
from orbitmq.wire.headers import admin

__all__ = ["Brokers"]

_CONTAINER: Final = "broker containers are not supported; each broker is its own process"
_COLD: Final = "reads of old messages are not throttled by group here"


class Brokers:
    """Requests for the settings, state and maintenance of a broker."""

    QUERY_BROKER_OFFSET = Request(13, served_by=(), unless=RETIRED)
    UPDATE_BROKER_CONFIG = Request(
        25,
        admin=(
            "updateBrokerConfig",
            "changeRole",
        ),
    )
    GET_BROKER_CONFIG = Request(
        26,
        answer=admin.GetBrokerConfigResponse,
        admin=(
            "getBrokerConfig",
            "exportConfigs",
        ),
    )
    TRIGGER_DELETE_FILES = Request(27, served_by=(), unless=RETIRED)
    GET_BROKER_RUNTIME_INFO = Request(28, admin=("brokerStatus",))
    CLEAN_EXPIRED_CONSUMEQUEUE = Request(306, admin=("cleanExpiredCQ",))
    VIEW_BROKER_STATS_DATA = Request(
        315,
        admin.ViewBrokerStatsDataRequest,
        admin=(
            "statsAll",
            "exportMetrics",
        ),
    )
    DELETE_EXPIRED_COMMITLOG = Request(329, admin=("deleteExpiredCommitLog",))
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = Request(
        354, served_by=(), unless="queues are plain files here; there is no RocksDB to compare with"
    )
    EXPORT_ROCKSDB_CONFIG_TO_JSON = Request(
        355, served_by=(), unless="topics, groups and offsets are kept as JSON files already"
    )
    ADD_BROKER = Request(902, served_by=(), unless=_CONTAINER, admin=("addBroker",))
    REMOVE_BROKER = Request(903, served_by=(), unless=_CONTAINER, admin=("removeBroker",))
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = Request(
        2001, served_by=(), unless=_COLD, admin=("updateColdDataFlowCtrGroupConfig",)
    )
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = Request(
        2002, served_by=(), unless=_COLD, admin=("removeColdDataFlowCtrGroupConfig",)
    )
    GET_COLD_DATA_FLOW_CTR_INFO = Request(2003, served_by=(), unless=_COLD, admin=("getColdDataFlowCtrInfo",))
    SET_COMMITLOG_READ_MODE = Request(
        2004,
        served_by=(),
        unless="reading ahead in the log is left to the operating system",
        admin=("setCommitLogReadAheadMode",),
    )
    SWITCH_TIMER_ENGINE = Request(
        5001,
        served_by=(),
        unless="there is one way to keep timed messages here",
        admin=("switchTimerEngine",),
    )
