"""CONSUMER_SEND_MSG_BACK: a consumer failed to process a message and requests redelivery.

The message is stored again. Its topic is the group's retry topic, which it reaches after a delay level, or the
group's dead letter topic once it exceeds the retry limit. Follows Apache's
AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import random
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.handlers.send_checks import FAQ
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Perm, Property, TopicSysFlag, Version
from orbitmq.errors import (
    BrokerError,
    NoPermission,
    RecordError,
    ServerError,
    SubscriptionGroupNotExist,
    SystemBusy,
)
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import dlq_topic, retry_topic
from orbitmq.model.topic import PERM_READ_WRITE, TopicConfig
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.properties import remove_property, set_properties, set_property
from orbitmq.record.reasons import REASON, reason_bytes
from orbitmq.requests import RequestCode
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage
from orbitmq.transport.router import Answer, Call, Reply, Route
from orbitmq.wire.headers.send import ConsumerSendMsgBackRequest, ConsumerSendMsgBackResponse

__all__ = ["SendBackHandlers"]

_FIRST_RETRY_LEVEL: Final = 3
_DLQ_QUEUES: Final = 1
_RETRY_TOPIC: Final = Property.RETRY_TOPIC.encode()
_ORIGIN_MESSAGE_ID: Final = Property.ORIGIN_MESSAGE_ID.encode()
_DELAY: Final = Property.DELAY.encode()
_WAIT: Final = Property.WAIT.encode()
_REASON: Final = REASON.encode()


class SendBackHandlers:
    """Accepts messages that consumers send back."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        puts: WritePath,
        stats: BrokerStats,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._puts = puts
        self._stats = stats

    def routes(self) -> list[Route]:
        return [Route(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back, ConsumerSendMsgBackRequest)]

    def send_back(self, call: Call[ConsumerSendMsgBackRequest]) -> Answer:
        """Serve CONSUMER_SEND_MSG_BACK (36)."""
        request = call.header
        if self._config.is_slave:
            raise SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")
        group = self._groups.find(request.group)
        if group is None:
            raise SubscriptionGroupNotExist(f"subscription group not exist, {request.group} {FAQ}")
        if not self._config.writable:
            raise NoPermission(f"the broker[{self._config.public_host}] sending message is forbidden")
        if group.retry_queue_nums <= 0:
            return Reply()
        record = self._record(request.offset)
        limit = group.retry_max_times
        if call.frame.version >= Version.V3_4_9 and request.max_reconsume_times is not None:
            limit = request.max_reconsume_times
        if record.reconsume_times >= limit or request.delay_level < 0:
            topic, queue_id, level = self._dead_letters(group), 0, 0
            self._stats.add("SNDBCK2DLQ_TIMES", f"{topic.topic_name}@{request.group}")
        else:
            topic = self._retries(group, unit=bool(request.unit_mode))
            queue_id = random.randrange(group.retry_queue_nums)
            level = request.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
        try:
            stored = self._puts.put(_again(record, topic, queue_id, level, request.retry_reason))
        except StoreError as error:
            raise BrokerError(error.remark, code=error.code) from None
        origin = record.find(_RETRY_TOPIC)
        name = origin.decode("utf-8", "replace") if origin is not None else record.topic
        self._stats.add("SNDBCK_PUT_NUMS", f"{name}@{request.group}")
        if level == 0:
            self._stats.add("DEAD_LETTERS", f"{name}@{request.group}")
        header = ConsumerSendMsgBackResponse(reason_stored=True) if request.retry_reason else None
        return self._puts.answer(call, stored.end, Reply(header=header))

    def _record(self, log_offset: int) -> Record:
        raw = self._store.record_at(log_offset)
        if raw is None:
            raise ServerError(f"look message by offset failed, {log_offset}")
        try:
            return decode_record(raw)
        except RecordError as error:
            raise ServerError(f"look message by offset failed, {log_offset}: {error}") from None

    def _retries(self, group: SubscriptionGroupConfig, *, unit: bool) -> TopicConfig:
        flag = int(TopicSysFlag.UNIT_SUB) if unit else 0
        topic = self._topics.create_in_send_back(
            retry_topic(group.group_name), group.retry_queue_nums, PERM_READ_WRITE, flag
        )
        if not topic.perm & Perm.WRITE:
            raise NoPermission(f"the topic[{topic.topic_name}] sending message is forbidden")
        return topic

    def _dead_letters(self, group: SubscriptionGroupConfig) -> TopicConfig:
        return self._topics.create_in_send_back(dlq_topic(group.group_name), _DLQ_QUEUES, PERM_READ_WRITE)


def _again(record: Record, topic: TopicConfig, queue_id: int, level: int, reason: str | None) -> NewMessage:
    """Returns the message to store again. Its properties name its first topic and its first message id."""
    first_topic = record.find(_RETRY_TOPIC) or record.topic.encode()
    first_id = record.find(_ORIGIN_MESSAGE_ID) or record.offset_message_id.encode()
    properties = set_properties(
        record.properties,
        (
            (_RETRY_TOPIC, first_topic),
            (_ORIGIN_MESSAGE_ID, first_id),
            (_DELAY, b"%d" % level),
            (_WAIT, b"false"),
        ),
    )
    if reason:
        without = remove_property(properties, _REASON)
        properties = set_property(without, _REASON, reason_bytes(reason, len(without)))
    return NewMessage(
        topic.topic_name,
        queue_id,
        record.body,
        properties,
        record.born_timestamp_ms,
        record.born_host,
        record.flag,
        record.sys_flag,
        record.reconsume_times + 1,
    )
