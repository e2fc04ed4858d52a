"""Connected clients and their state: 203, 204, 307, 309, 328.

Corresponds to Apache's ConsumerConnection, ProducerConnection, ProducerTableInfo, ConsumerRunningInfo,
ConsumeMessageDirectlyResult.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SubscriptionData
from orbitmq.wire.bodies.base import Body, always
from orbitmq.wire.header import Int32, Int64
from orbitmq.wire.javajson import ObjectMap

__all__ = [
    "ClientConnection",
    "ConsumeMessageDirectlyResult",
    "ConsumeStatus",
    "ConsumerConnection",
    "ConsumerRunningInfo",
    "DirectConsumeResult",
    "PopProcessQueueInfo",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerInfo",
    "ProducerTable",
]


class ClientConnection(Body, frozen=True, kw_only=True):
    """One connected client (Apache: ``Connection``)."""

    client_addr: str | None = None
    client_id: str | None = None
    language: str | None = None
    version: Int32 = always(int)


class ConsumerConnection(Body, frozen=True, kw_only=True):
    """Answer to GET_CONSUMER_CONNECTION_LIST (203)."""

    connection_set: list[ClientConnection] = always(list)
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = always(dict)


class ProducerConnection(Body, frozen=True, kw_only=True):
    """Answer to GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: list[ClientConnection] = always(list)


class ProducerInfo(Body, frozen=True, kw_only=True):
    client_id: str | None = None
    language: str | None = None
    last_update_timestamp: Int64 = always(int)
    remote_ip: str | None = field(name="remoteIP", default=None)
    version: Int32 = always(int)


class ProducerTable(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_PRODUCER_INFO (328): producers by group."""

    data: dict[str, list[ProducerInfo]] = always(dict)


class ProcessQueueInfo(Body, frozen=True, kw_only=True):
    """The state of a queue that a consumer holds in memory."""

    cached_msg_count: Int32 = always(int)
    cached_msg_max_offset: Int64 = always(int)
    cached_msg_min_offset: Int64 = always(int)
    cached_msg_size_in_mib: Int32 = always(int, name="cachedMsgSizeInMiB")
    commit_offset: Int64 = always(int)
    dropped: bool = always(bool, name="droped")  # sic
    last_consume_timestamp: Int64 = always(int)
    last_lock_timestamp: Int64 = always(int)
    last_pull_timestamp: Int64 = always(int)
    locked: bool = always(bool)
    transaction_msg_count: Int32 = always(int)
    transaction_msg_max_offset: Int64 = always(int)
    transaction_msg_min_offset: Int64 = always(int)
    try_unlock_times: Int64 = always(int)


class PopProcessQueueInfo(Body, frozen=True, kw_only=True):
    """The state of a queue that a POP consumer pops."""

    dropped: bool = always(bool, name="droped")  # sic
    last_pop_timestamp: Int64 = always(int)
    wait_ack_count: Int32 = always(int)


class ConsumeStatus(Body, frozen=True, kw_only=True):
    """The throughput of one topic in a consumer."""

    consume_failed_msgs: Int64 = always(int)
    consume_failed_tps: float = always(float, name="consumeFailedTPS")
    consume_ok_tps: float = always(float, name="consumeOKTPS")
    consume_rt: float = always(float, name="consumeRT")
    pull_rt: float = always(float, name="pullRT")
    pull_tps: float = always(float, name="pullTPS")


class ConsumerRunningInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_CONSUMER_RUNNING_INFO (307)."""

    jstack: str | None = None
    mq_pop_table: ObjectMap[MessageQueue, PopProcessQueueInfo] | None = None
    """Since 5.0."""
    mq_table: ObjectMap[MessageQueue, ProcessQueueInfo] = always(ObjectMap)
    properties: dict[str, str | int | float | bool] = always(dict)
    status_table: dict[str, ConsumeStatus] = always(dict)
    subscription_set: list[SubscriptionData] = always(list)
    user_consumer_info: dict[str, str] | None = None
    """Since 5.0."""


class DirectConsumeResult(StrEnum):
    """The outcome of a message consumed on demand (Apache: ``CMResult``)."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(Body, frozen=True, kw_only=True):
    """Answer to CONSUME_MESSAGE_DIRECTLY (309)."""

    auto_commit: bool = always(lambda: True)
    consume_result: str | None = None
    order: bool = always(bool)
    remark: str | None = None
    spent_time_mills: Int64 = always(int)  # sic
