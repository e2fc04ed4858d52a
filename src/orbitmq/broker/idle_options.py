"""Declares Apache options that the broker shows to tools but does not act on. They are a part of ``BrokerConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orbitmq.broker.pop.config import PopOptions
from orbitmq.runtime.options import option

__all__ = ["IdleOptions"]

_NO_QUEUE: Final = "requests are served as they are read; there is no queue in front of a pool of threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOptions(PopOptions):
    """The options without effect. Each one states the reason."""

    async_send_enabled: bool = option(
        True,
        apache="asyncSendEnable",
        doc="Send without a thread that waits.",
        without_effect="sends never block here",
    )
    pull_wait_max_ms: int = option(
        5_000,
        apache="waitTimeMillsInPullQueue",
        low=1,
        reload=True,
        doc="Longest a pull may wait for a thread.",
        without_effect=_NO_QUEUE,
    )
    lite_pull_wait_max_ms: int = option(
        5_000,
        apache="waitTimeMillsInLitePullQueue",
        low=1,
        reload=True,
        doc="Longest a lite pull may wait for a thread.",
        without_effect=_NO_QUEUE,
    )
    heartbeat_wait_max_ms: int = option(
        31_000,
        apache="waitTimeMillsInHeartbeatQueue",
        low=1,
        reload=True,
        doc="Longest a heartbeat may wait for a thread.",
        without_effect=_NO_QUEUE,
    )
    transaction_wait_max_ms: int = option(
        3_000,
        apache="waitTimeMillsInTransactionQueue",
        low=1,
        reload=True,
        doc="Longest the end of a transaction may wait for a thread.",
        without_effect=_NO_QUEUE,
    )
    ack_wait_max_ms: int = option(
        3_000,
        apache="waitTimeMillsInAckQueue",
        low=1,
        reload=True,
        doc="Longest an acknowledgement may wait for a thread.",
        without_effect=_NO_QUEUE,
    )
    admin_wait_max_ms: int = option(
        5_000,
        apache="waitTimeMillsInAdminBrokerQueue",
        low=1,
        reload=True,
        doc="Longest an admin request may wait for a thread.",
        without_effect=_NO_QUEUE,
    )
    send_queue_capacity: int = option(
        10_000,
        apache="sendThreadPoolQueueCapacity",
        low=1,
        doc="Sends that may wait for a thread; shown in the runtime information.",
        without_effect=_NO_QUEUE,
    )
    lite_pull_queue_capacity: int = option(
        100_000,
        apache="litePullThreadPoolQueueCapacity",
        low=1,
        doc="Lite pulls that may wait for a thread; shown in the runtime information.",
        without_effect=_NO_QUEUE,
    )
    query_queue_capacity: int = option(
        20_000,
        apache="queryThreadPoolQueueCapacity",
        low=1,
        doc="Queries that may wait for a thread; shown in the runtime information.",
        without_effect=_NO_QUEUE,
    )
    ack_queue_capacity: int = option(
        100_000,
        apache="ackThreadPoolQueueCapacity",
        low=1,
        doc="Acknowledgements that may wait for a thread; shown in the runtime information.",
        without_effect=_NO_QUEUE,
    )
    transaction_queue_capacity: int = option(
        100_000,
        apache="endTransactionPoolQueueCapacity",
        low=1,
        doc="Ends of transactions that may wait for a thread; shown in the runtime information.",
        without_effect=_NO_QUEUE,
    )
    broadcast_offsets_stored: bool = option(
        True,
        apache="enableBroadcastOffsetStore",
        doc="Keep offsets of broadcasting clients that come through a proxy.",
        without_effect="the proxy serves no broadcasting clients",
    )
    transaction_metrics_interval_ms: int = option(
        10_000,
        apache="transactionMetricFlushInterval",
        low=1,
        doc="Half message counts are saved this often.",
        without_effect="half messages are counted in their queue when they are asked for",
    )
