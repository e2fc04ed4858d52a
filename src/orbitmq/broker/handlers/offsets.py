"""Consumer offsets and the bounds of queues: requests 14, 15, 29, 30, 31 and 32.

Follows Apache's ConsumerManageProcessor and the offset part of AdminBrokerProcessor.
"""

from __future__ import annotations

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.statistics.unfinished import starts_in_memory
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import InvalidParameter, QueryNotFound, SubscriptionGroupNotExist, TopicNotFound
from orbitmq.model.topic import NO_LITE_TOPICS
from orbitmq.requests import RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.header import Int32, Int64
from orbitmq.wire.headers import (
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    SearchOffsetByTimestampRequest,
    TopicRpcRequest,
)

__all__ = ["OffsetHandlers"]


class _UpdateRequest(TopicRpcRequest, kw_only=True):
    """The header of UPDATE_CONSUMER_OFFSET (15). Both numbers are optional here, because a missing one has its own
    response code."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class OffsetHandlers:
    """Serves group offsets and queue bounds."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        store: MessageStore,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._store = store

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.QUERY_CONSUMER_OFFSET, self.query, QueryConsumerOffsetRequest),
            Route(RequestCode.UPDATE_CONSUMER_OFFSET, self.update, _UpdateRequest),
            Route(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search, SearchOffsetByTimestampRequest),
            Route(RequestCode.GET_MAX_OFFSET, self.max_offset, GetMaxOffsetRequest),
            Route(RequestCode.GET_MIN_OFFSET, self.min_offset, GetMinOffsetRequest),
            Route(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest_time, GetEarliestMsgStoretimeRequest),
        ]

    def query(self, call: Call[QueryConsumerOffsetRequest]) -> Reply:
        """Returns the committed offset. A group without one starts at 0 if ``starts_in_memory`` holds for the queue.
        Otherwise raises ``QueryNotFound``, and the client decides where to start."""
        header = call.header
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset >= 0:
            return Reply(header=OffsetResponse(offset=offset))
        if header.set_zero_if_not_found is not False and starts_in_memory(
            self._store, header.topic, header.queue_id
        ):
            return Reply(header=OffsetResponse(offset=0))
        raise QueryNotFound(
            f"group {header.consumer_group} has no offset for queue {header.queue_id} of topic {header.topic}"
        )

    def update(self, call: Call[_UpdateRequest]) -> Reply:
        header = call.header
        group = header.consumer_group
        if group not in self._groups.configs:
            raise SubscriptionGroupNotExist(f"group {group} does not exist on this broker")
        topic = self._topics.configs.get(header.topic)
        if topic is None:
            raise TopicNotFound(f"topic {header.topic} does not exist on this broker")
        queue_id = _not_negative("queueId", header.queue_id)
        offset = _not_negative("commitOffset", header.commit_offset)
        # Apache accepts any number. Queues beyond the topic's cannot be pulled (code 29 too), but a member that has
        # not noticed yet that the topic shrank may still update its existing offset.
        if queue_id >= topic.read_queue_nums and queue_id not in self._offsets.queues_of(group, header.topic):
            raise InvalidParameter(
                f"queueId {queue_id} is not one of the {topic.read_queue_nums} read queues of topic {header.topic}"
            )
        if self._config.server_side_reset and self._offsets.reset_pending(group, header.topic, queue_id):
            return Reply(remark="ignored: the offset was reset and the consumer has not seen it yet")
        self._offsets.commit(call.peer.remote_text, group, header.topic, queue_id, offset)
        return Reply()

    def search(self, call: Call[SearchOffsetByTimestampRequest]) -> Reply:
        header = call.header
        if header.lite_topic:
            raise InvalidParameter(f"liteTopic is {header.lite_topic!r}, and {NO_LITE_TOPICS} by this broker")
        offset = self._store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, upper=header.boundary_type == "UPPER"
        )
        return Reply(header=OffsetResponse(offset=max(0, offset)))

    def max_offset(self, call: Call[GetMaxOffsetRequest]) -> Reply:
        return Reply(
            header=OffsetResponse(offset=self._store.max_offset(call.header.topic, call.header.queue_id))
        )

    def min_offset(self, call: Call[GetMinOffsetRequest]) -> Reply:
        # A queue without writes starts at 0, like an empty one.
        offset = self._store.min_offset(call.header.topic, call.header.queue_id)
        return Reply(header=OffsetResponse(offset=max(0, offset)))

    def earliest_time(self, call: Call[GetEarliestMsgStoretimeRequest]) -> Reply:
        timestamp = self._store.earliest_store_time(call.header.topic, call.header.queue_id)
        return Reply(header=GetEarliestMsgStoretimeResponse(timestamp=timestamp))


def _not_negative(name: str, value: int | None) -> int:
    if value is None or value < 0:
        raise InvalidParameter(f"{name} is {'missing' if value is None else value}; it must be 0 or more")
    return value
