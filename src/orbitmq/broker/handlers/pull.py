"""Serves PULL_MESSAGE and LITE_PULL_MESSAGE (Apache: PullMessageProcessor).

Messages are sent as slices of the log. They are copied only once, when they are joined after the reply's header. A
pull that finds nothing and may wait is passed to ``PullWaiters``, and is answered when an append brings a message for
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.delivery.pull_waiters import PullWaiters, WaitingPull
from orbitmq.broker.delivery.revocation import Revocation
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.clients import ConsumerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Perm, PullFlag, ResponseCode, SerializeType
from orbitmq.errors import (
    InvalidParameter,
    NoPermission,
    ServerError,
    SubscriptionGroupNotExist,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SystemBusy,
    TopicNotFound,
)
from orbitmq.kernel import Filter, pull_answer
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.subscription import ALL_TAGS, SubscriptionData, parse_subscription
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import ReadResult, ReadStatus
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute
from orbitmq.wire.frame import Frame, encode_response
from orbitmq.wire.pulls import PullFields, read_pull

__all__ = ["MASTER_ID", "PullHandlers", "SqlFilters"]

_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_READ: Final = int(Perm.READ)  # an IntFlag costs two microseconds per operation
_SUSPEND: Final = int(PullFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_SUSPEND_MS_MAX: Final = 3_600_000
"""The longest wait that a client can request. A longer one would only hold a dead request longer."""
MASTER_ID: Final = 0

# Precomputed numbers and members, because an enum lookup costs a quarter of a microsecond.
_SLAVE: Final = BrokerRole.SLAVE
_NO_MATCH: Final = ReadStatus.NO_MATCHED_MESSAGE
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_CODE_OF: Final = {
    ReadStatus.FOUND: int(ResponseCode.SUCCESS),
    ReadStatus.NO_MATCHED_MESSAGE: _RETRY,
    ReadStatus.MESSAGE_WAS_REMOVING: _RETRY,
    ReadStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    ReadStatus.OFFSET_TOO_SMALL: _MOVED,
}
_REMARK_OF: Final = {status: status.value for status in ReadStatus}


class SqlFilters(Protocol):
    """Turns subscriptions that do not select by tag into filters."""

    def filter_for(self, group: str, subscription: SubscriptionData, *, from_request: bool) -> Filter:
        """Returns the filter of a subscription. Raises ``FilterDataNotExist``, ``FilterDataNotLatest`` or
        ``SubscriptionParseFailed``."""


@lru_cache(maxsize=4096)
def _parsed(topic: str, expression: str | None, kind: str | None) -> SubscriptionData:
    return parse_subscription(topic, expression, kind)


@lru_cache(maxsize=4096)
def _tag_filter(codes: frozenset[int]) -> Filter:
    return Filter(codes)


@dataclass(kw_only=True, eq=False)
class PullHandlers:
    """Serves pulls and holds those that wait."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    consumers: ConsumerTable
    stats: BrokerStats
    clock: Clock
    events: BrokerEvents
    revocation: Revocation
    sql_filters: SqlFilters

    def __post_init__(self) -> None:
        self.waiters = PullWaiters(
            self._retry, self.clock, self.events, self.revocation, limit=self.config.pull_queue_capacity
        )

    def routes(self) -> list[RawRoute]:
        return [
            RawRoute(RequestCode.PULL_MESSAGE, self.pull, fast_port=False),
            RawRoute(RequestCode.LITE_PULL_MESSAGE, self.lite_pull, fast_port=False),
        ]

    def lite_pull(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve LITE_PULL_MESSAGE (361), a pull that an operator can disable."""
        if not self.config.lite_pull_enabled:
            raise NoPermission(f"the broker[{self.config.public_host}] for lite pull consumer is forbidden")
        return self.pull(frame, connection)

    def pull(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve PULL_MESSAGE (11)."""
        request = frame.pull or read_pull(frame)
        topic, group = self.checked(request, connection)
        wanted = self.filter_of(request, group)
        flags = request.sys_flag
        if flags & _COMMIT and flags & _SUSPEND:
            self.offsets.commit(
                connection.remote_text,
                request.consumer_group,
                request.topic,
                request.queue_id,
                request.commit_offset,
            )
        reset = self.offsets.take_reset(request.consumer_group, request.topic, request.queue_id)
        if reset is not None:
            return self._reply_reset(frame, request, topic, group, reset)
        result, code = self._read(request, request.queue_offset, wanted)
        if code == _NOT_FOUND and flags & _SUSPEND and self._park(frame, connection, request, wanted, result):
            return None
        return self._reply(frame, request, topic, group, result, code)

    # -- checks ----------------------------------------------------------------------------------------

    def checked(
        self, request: PullFields, connection: Connection
    ) -> tuple[TopicConfig, SubscriptionGroupConfig]:
        """Returns the topic and the group of a pull. Raises ``BrokerError`` if the pull is invalid."""
        config = self.config
        if config.role is _SLAVE and not config.slave_read_enabled:
            raise SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")
        if not config.permission & _READ:
            raise NoPermission(f"the broker[{config.public_host}] pulling message is forbidden")
        groups = self.groups
        group = groups.configs.get(request.consumer_group) or groups.find(request.consumer_group)
        if group is None:
            raise SubscriptionGroupNotExist(
                f"subscription group [{request.consumer_group}] does not exist, {_FAQ}"
            )
        if not group.consume_enable:
            raise NoPermission(f"subscription group no permission, {request.consumer_group}")
        topic = self.topics.configs.get(request.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{request.topic}] not exist, apply first please!\n{_FAQ}")
        if not topic.perm & _READ:
            raise NoPermission(f"the topic[{request.topic}] pulling message is forbidden")
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{connection.remote_text}]"
            )
        return topic, group

    def filter_of(self, request: PullFields, group: SubscriptionGroupConfig) -> Filter | None:
        """Returns the filter of a pull, or None if it selects all messages. Raises ``BrokerError``."""
        from_request = bool(request.sys_flag & _SUBSCRIPTION)
        if from_request:
            subscription = _parsed(request.topic, request.subscription, request.expression_type)
        else:
            subscription = self._registered(request, group)
        if subscription.is_tag_type:
            if subscription.sub_string == ALL_TAGS or subscription.class_filter_mode:
                return None
            return _tag_filter(subscription.code_set)
        if not self.config.property_filter_enabled:
            raise ServerError(
                "The broker does not support consumer to filter message by " + subscription.expression_type
            )
        return self.sql_filters.filter_for(request.consumer_group, subscription, from_request=from_request)

    def _registered(self, request: PullFields, group: SubscriptionGroupConfig) -> SubscriptionData:
        members = self.consumers.groups.get(request.consumer_group)
        if members is None:
            raise SubscriptionNotExist(f"the consumer's group info not exist\n{_FAQ}")
        if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
            raise NoPermission(
                f"the consumer group[{request.consumer_group}] can not consume by broadcast way"
            )
        groups = self.groups
        if groups.forbidden_table and groups.forbidden(request.consumer_group, request.topic):
            raise NoPermission(
                f"the consumer group[{request.consumer_group}] is forbidden for topic[{request.topic}]"
            )
        subscription = members.subscriptions.get(request.topic)
        if subscription is None:
            raise SubscriptionNotExist(
                f"the consumer's subscription not exist, group: {request.consumer_group}, "
                f"topic: {request.topic}\n{_FAQ}"
            )
        if subscription.sub_version < request.sub_version:
            raise SubscriptionNotLatest("the consumer's subscription not latest")
        return subscription

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, request: PullFields, offset: int, wanted: Filter | None) -> tuple[ReadResult, int]:
        """Read the store from ``offset``. Returns the result and the response code."""
        monotonic, stats = self.clock.monotonic, self.stats
        started = monotonic()
        result = self.store.read(
            request.topic,
            request.queue_id,
            offset,
            request.max_msg_nums,
            max_bytes=request.max_msg_bytes,
            wanted=wanted,
        )
        elapsed_s = monotonic() - started
        if elapsed_s > stats.get_time_max_s:
            stats.get_time_max_s = elapsed_s
        if not result.count:
            stats.misses += 1
        code = _CODE_OF.get(result.status)
        if code is None:  # no such queue, or an empty one
            code = _NOT_FOUND if request.queue_offset == 0 else _MOVED
        return result, code

    def _park(
        self,
        frame: Frame,
        connection: Connection,
        request: PullFields,
        wanted: Filter | None,
        result: ReadResult,
    ) -> bool:
        if self.config.long_polling_enabled:
            wait_ms = min(request.suspend_timeout_millis, _SUSPEND_MS_MAX)
        else:
            wait_ms = self.config.short_polling_ms
        if wait_ms <= 0:
            return False
        deadline_s = self.clock.monotonic() + wait_ms / 1000
        return self.waiters.park(
            WaitingPull(frame, connection, request, wanted, deadline_s, result.next_offset)
        )

    def _retry(self, waiting: WaitingPull, expired: bool) -> bool:
        """Retry a waiting pull. It is not parked a second time."""
        request = waiting.request
        topic = self.topics.configs.get(request.topic)
        group = self.groups.configs.get(request.consumer_group)
        if topic is None or group is None:
            waiting.connection.send(
                encode_response(
                    ResponseCode.TOPIC_NOT_EXIST,
                    waiting.frame.opaque,
                    None,
                    b"",
                    f"topic[{request.topic}] not exist, apply first please!\n{_FAQ}",
                    waiting.frame.serialize_type,
                )
            )
            return True
        if not expired:
            reset = self.offsets.take_reset(request.consumer_group, request.topic, request.queue_id)
            if reset is not None:
                waiting.connection.send(self._reply_reset(waiting.frame, request, topic, group, reset))
                return True
        offset = request.queue_offset if expired else max(request.queue_offset, waiting.looked_until)
        result, code = self._read(request, offset, waiting.wanted)
        if not expired:
            if result.status is _NO_MATCH:
                waiting.looked_until = result.next_offset
                return False
            if code == _NOT_FOUND:
                return False
        waiting.connection.send(self._reply(waiting.frame, request, topic, group, result, code))
        return True

    # -- answers ---------------------------------------------------------------------------------------

    def _reply_reset(
        self,
        frame: Frame,
        request: PullFields,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        offset: int,
    ) -> bytes:
        store = self.store
        low = store.min_offset(request.topic, request.queue_id)
        high = store.max_offset(request.topic, request.queue_id)
        result = ReadResult(ReadStatus.OFFSET_TOO_SMALL, offset, low, high)
        return self._encode(frame, _MOVED, "OFFSET_RESET", result, topic, group, MASTER_ID)

    def _reply(
        self,
        frame: Frame,
        request: PullFields,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        result: ReadResult,
        code: int,
    ) -> bytes:
        if code == _MOVED and self.config.role is _SLAVE:
            code = _RETRY
        suggested = MASTER_ID
        if self.config.slave_read_enabled:
            suggested = self.suggested(group, from_disk=result.from_disk)
        if result.count:
            self.stats.get(
                request.consumer_group, request.topic, request.queue_id, result.count, result.size_bytes
            )
        self.offsets.note_pull(
            request.consumer_group, request.topic, request.queue_id, request.queue_offset, result.next_offset
        )
        return self._encode(frame, code, _REMARK_OF[result.status], result, topic, group, suggested)

    def suggested(self, group: SubscriptionGroupConfig, *, from_disk: bool) -> int:
        """Returns the id of the broker that the group should pull from next. After a read from disk, it is the one
        that the group's config names for slow consumers; otherwise it is the master if this broker is a slave, or the
        group's usual broker."""
        if from_disk:
            return group.which_broker_when_consume_slowly
        return MASTER_ID if self.config.role is _SLAVE else group.broker_id

    @staticmethod
    def _encode(
        frame: Frame,
        code: int,
        remark: str,
        result: ReadResult,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        suggested: int,
    ) -> bytes:
        numbers = (
            suggested,
            result.next_offset,
            result.min_offset,
            result.max_offset,
            topic.topic_sys_flag,
            group.group_sys_flag,
        )
        is_binary = frame.serialize_type == _ROCKETMQ
        return pull_answer(is_binary, frame.opaque, code, remark, numbers, result.pieces)
