"""Requests that the broker forwards to consumers: 222, 223, 307 and 309 (Apache: Broker2Client and its callers).

An offset reset is either stored in the broker and returned with the next pull (``useServerSideResetOffset``, the
default of 5.x), or sent to the online consumers, which is the older method.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from orbitmq.auth.signature import without_signature
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.clients import ClientChannel, ConsumerGroup, ConsumerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import LanguageCode, ResponseCode, Version, version_name
from orbitmq.errors import (
    BodyError,
    ConnectionLostError,
    ConsumeMsgTimeout,
    ConsumerNotOnline,
    RecordError,
    RequestTimeoutError,
    ServerError,
    SubscriptionGroupNotExist,
    TopicNotFound,
)
from orbitmq.model.route import MessageQueue
from orbitmq.model.topic import TopicConfig
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import Request, RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import bodies
from orbitmq.wire.headers import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    ResetOffsetRequest,
)
from orbitmq.wire.javajson import ObjectMap

__all__ = ["ConsumerCallHandlers", "ResetHandlers"]

logger = logging.getLogger(__name__)

_CALL_S: Final = 10.0
_STATUS_S: Final = 5.0
_ALL_QUEUES: Final = -1
_NO_OFFSET: Final = -1
_CPP: Final = int(LanguageCode.CPP)


class ResetHandlers:
    """Resets offsets for an admin."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        store: MessageStore,
        readable: Callable[[str, int], None],
    ) -> None:
        """``readable`` is called for each queue, so that waiting requests see the reset immediately."""
        self._config = config
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._readable = readable

    def routes(self) -> list[Route]:
        return [Route(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset, ResetOffsetRequest)]

    def reset(self, call: Call[ResetOffsetRequest]) -> Reply:
        header = call.header
        config = self._topics.find(header.topic)
        if config is None:
            raise TopicNotFound(f"topic {header.topic} does not exist on this broker")
        logger.info(
            "offset reset requested caller=%s topic=%s group=%s timestamp=%d force=%s",
            call.peer.remote_text,
            header.topic,
            header.group,
            header.timestamp,
            header.is_force,
        )
        if self._config.server_side_reset:
            table = self._reset_here(header, config)
        else:
            table = self._reset_in_clients(header, config, for_cpp=call.frame.language == _CPP)
        return Reply(body=bodies.ResetOffset(offset_table=table).encode())

    # -- in the broker ---------------------------------------------------------------------------------

    def _reset_here(self, header: ResetOffsetRequest, config: TopicConfig) -> ObjectMap[MessageQueue, int]:
        topic, group = header.topic, header.group
        if self._config.is_slave:
            raise ServerError("offsets are reset on the master, this broker is a slave")
        if group not in self._groups.configs:
            raise SubscriptionGroupNotExist(f"group {group} does not exist on this broker")
        queue_id = _ALL_QUEUES if header.queue_id is None else header.queue_id
        if queue_id >= config.read_queue_nums:
            raise ServerError(
                f"queueId {queue_id} is not one of the {config.read_queue_nums} of topic {topic}"
            )
        if queue_id < 0:
            chosen = {
                index: self._by_time(topic, index, header.timestamp)
                for index in range(config.read_queue_nums)
            }
        elif header.offset is not None and header.offset != _NO_OFFSET:
            chosen = {queue_id: self._within(topic, queue_id, header.offset)}
        else:
            chosen = {queue_id: self._by_time(topic, queue_id, header.timestamp)}
        if not chosen:
            raise ServerError(f"topic {topic} has no queues to reset")
        for index, offset in chosen.items():
            self._offsets.assign_reset(group, topic, index, offset)
            self._readable(topic, index)
        logger.info("offset reset topic=%s group=%s offsets=%s", topic, group, chosen)
        return ObjectMap((self._queue(topic, index), offset) for index, offset in chosen.items())

    def _by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the offset of a time in epoch milliseconds. A negative time stands for the end of the queue."""
        if timestamp_ms < 0:
            return self._store.max_offset(topic, queue_id)
        return max(0, self._store.offset_by_time(topic, queue_id, timestamp_ms))

    def _within(self, topic: str, queue_id: int, offset: int) -> int:
        low = max(0, self._store.min_offset(topic, queue_id))
        high = self._store.max_offset(topic, queue_id)
        # One past the end is allowed, as in Apache.
        if not low <= offset <= high + 1:
            raise ServerError(f"offset {offset} is not within {low} to {high} of queue {queue_id}")
        return offset

    # -- through the clients ---------------------------------------------------------------------------

    def _reset_in_clients(
        self, header: ResetOffsetRequest, config: TopicConfig, *, for_cpp: bool
    ) -> ObjectMap[MessageQueue, int]:
        """Send the reset to the online consumers and return the new offsets. Without ``isForce``, offsets are only
        moved back."""
        topic, group = header.topic, header.group
        table: ObjectMap[MessageQueue, int] = ObjectMap()
        for queue_id in range(config.write_queue_nums):
            committed = self._offsets.query(group, topic, queue_id)
            if committed < 0:
                raise ServerError(f"group {group} has consumed nothing of queue {queue_id} of topic {topic}")
            wanted = self._by_time(topic, queue_id, header.timestamp)
            table[self._queue(topic, queue_id)] = wanted if header.is_force else min(wanted, committed)
        online = self._consumers.group(group)
        if online is None:
            raise ConsumerNotOnline(f"no consumer of group {group} is online, so its offsets cannot be reset")
        notice = ResetOffsetRequest(
            topic=topic, group=group, timestamp=header.timestamp, is_force=header.is_force
        )
        body = _cpp_body(table) if for_cpp else bodies.ResetOffset(offset_table=table).encode()
        _check_version(online, Version.V3_0_7_SNAPSHOT)
        for channel in online.members.values():
            if not channel.connection.closed:
                channel.connection.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, notice, body)
        return table

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._config.broker_name, queue_id=queue_id, topic=topic)


def _cpp_body(table: ObjectMap[MessageQueue, int]) -> bytes:
    entries = [
        bodies.MessageQueueOffset(
            broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic
        )
        for queue, offset in table.items()
    ]
    return bodies.ResetOffsetForCpp(offset_table=entries).encode()


def _check_version(group: ConsumerGroup, least: int) -> None:
    for channel in group.members.values():
        if channel.version < least:
            raise ServerError(
                f"client {channel.client_id} of version {version_name(channel.version)} is too old for this"
            )


class ConsumerCallHandlers:
    """Forwards requests to consumers."""

    def __init__(
        self,
        *,
        broker_name: str,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        store: MessageStore,
    ) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._store = store

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, GetConsumerRunningInfoRequest),
            Route(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly, ConsumeMessageDirectlyRequest),
            Route(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                self.consumer_status,
                GetConsumerStatusRequest,
            ),
        ]

    async def running_info(self, call: Call[GetConsumerRunningInfoRequest]) -> Reply:
        header = call.header
        return await self._ask(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            (header.consumer_group, header.client_id),
            without_signature(call.frame.ext_fields),
            call.body,
        )

    async def consume_directly(self, call: Call[ConsumeMessageDirectlyRequest]) -> Reply:
        """Deliver one stored message to one consumer, regardless of the consumer's offsets."""
        header = call.header
        try:
            log_offset = parse_offset_message_id(header.msg_id or "").log_offset
        except RecordError as error:
            raise ServerError(f"msgId {header.msg_id!r} is not an offset message id: {error}") from None
        record = self._store.record_at(log_offset) if log_offset >= 0 else None
        if record is None:
            raise ServerError(f"no message starts at offset {log_offset} of the log")
        fields = {**without_signature(call.frame.ext_fields), "brokerName": self._broker_name}
        topic = self._topics.find(header.topic) if header.topic else None
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._groups.configs.get(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        return await self._ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            (header.consumer_group, header.client_id),
            fields,
            bytes(record),
        )

    async def _ask(
        self, code: Request, client: tuple[str, str | None], fields: dict[str, str], body: bytes
    ) -> Reply:
        """Forward a request to a client and return its answer. ``client`` is the group and the client id. Raises
        ``ServerError`` if the client is offline or too old, and ``ConsumeMsgTimeout``."""
        group, client_id = client
        channel = self._consumers.channel_of(group, client_id or "")
        if channel is None:
            raise ServerError(f"consumer {client_id} of group {group} is not online")
        if channel.version < Version.V3_1_8_SNAPSHOT:
            raise ServerError(
                f"consumer {client_id} of version {version_name(channel.version)} is too old for this"
            )
        try:
            answer = await channel.connection.call(code, body=body, ext=fields, timeout_s=_CALL_S)
        except RequestTimeoutError as error:
            raise ConsumeMsgTimeout(f"consumer {client_id} of group {group}: {error}") from None
        except ConnectionLostError as error:
            raise ServerError(f"consumer {client_id} of group {group}: {error}") from None
        return Reply(answer.code, answer.remark, ext=dict(answer.ext_fields), body=answer.body)

    async def consumer_status(self, call: Call[GetConsumerStatusRequest]) -> Reply:
        """Returns the offsets that each consumer has in memory. Consumers that do not answer are left out."""
        header = call.header
        group = self._consumers.group(header.group)
        if group is None:
            raise ServerError(f"no consumer of group {header.group} is online")
        _check_version(group, Version.V3_0_7_SNAPSHOT)
        wanted = (header.client_addr or "").strip()
        asked = [channel for channel in group.members.values() if not wanted or channel.client_id == wanted]
        question = GetConsumerStatusRequest(topic=header.topic, group=header.group)
        answers = await asyncio.gather(*(_status(channel, question) for channel in asked))
        table = {
            channel.client_id: offsets
            for channel, offsets in zip(asked, answers, strict=True)
            if offsets is not None
        }
        return Reply(body=bodies.ConsumerStatus(consumer_table=table).encode())


async def _status(
    channel: ClientChannel, question: GetConsumerStatusRequest
) -> ObjectMap[MessageQueue, int] | None:
    try:
        answer = await channel.connection.call(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question, timeout_s=_STATUS_S
        )
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        return bodies.ConsumerStatus.decode(answer.body).message_queue_table
    except (RequestTimeoutError, ConnectionLostError, BodyError) as error:
        logger.warning("consumer status not received client=%s error=%s", channel.client_id, error)
        return None
