"""Serves the state of a topic's queues: requests 202, 303 and 308 (Apache: part of AdminBrokerProcessor)."""

from __future__ import annotations

from typing import Final

from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import TopicNotFound
from orbitmq.model.route import MessageQueue
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import bodies
from orbitmq.wire.headers import (
    GetTopicStatsInfoRequest,
    QueryConsumeTimeSpanRequest,
    QueryCorrectionOffsetRequest,
)
from orbitmq.wire.javajson import ObjectMap

__all__ = ["TopicInspection"]

_NEVER: Final = 2**63 - 1
"""The offset that tells the client to correct nothing."""


class TopicInspection:
    """Serves the state of a topic's queues."""

    def __init__(
        self,
        *,
        broker_name: str,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        store: MessageStore,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._stats = stats
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.GET_TOPIC_STATS_INFO, self.topic_stats, GetTopicStatsInfoRequest),
            Route(RequestCode.QUERY_CONSUME_TIME_SPAN, self.time_spans, QueryConsumeTimeSpanRequest),
            Route(RequestCode.QUERY_CORRECTION_OFFSET, self.correction_offsets, QueryCorrectionOffsetRequest),
        ]

    def topic_stats(self, call: Call[GetTopicStatsInfoRequest]) -> Reply:
        """Returns the bounds of each queue, and when its last message was stored."""
        config = self._config(call.header.topic)
        store, topic = self._store, config.topic_name
        table: ObjectMap[MessageQueue, bodies.TopicOffset] = ObjectMap()
        for queue_id in range(max(config.write_queue_nums, config.read_queue_nums)):
            high = store.max_offset(topic, queue_id)
            table[self._queue(topic, queue_id)] = bodies.TopicOffset(
                min_offset=max(0, store.min_offset(topic, queue_id)),
                max_offset=high,
                last_update_timestamp=store.store_time_at(topic, queue_id, high - 1) if high > 0 else 0,
            )
        stats = bodies.TopicStats(offset_table=table, topic_put_tps=self._stats.topic_put_tps(topic))
        return Reply(body=stats.encode())

    def time_spans(self, call: Call[QueryConsumeTimeSpanRequest]) -> Reply:
        """Returns the store times of each queue's first, last and last consumed message."""
        config = self._config(call.header.topic)
        store, topic = self._store, config.topic_name
        spans: list[bodies.QueueTimeSpan] = []
        for queue_id in range(config.write_queue_nums):
            first_ms = store.earliest_store_time(topic, queue_id)
            high = store.max_offset(topic, queue_id)
            consumed = self._offsets.query(call.header.group, topic, queue_id)
            consumed_ms = first_ms
            if consumed > 0:
                consumed_ms = store.store_time_at(topic, queue_id, consumed - 1)
            delay_ms = 0
            if consumed < high:
                waiting = max(consumed, store.min_offset(topic, queue_id))
                delay_ms = self._clock.now_ms() - store.store_time_at(topic, queue_id, waiting)
            spans.append(
                bodies.QueueTimeSpan(
                    message_queue=self._queue(topic, queue_id),
                    min_time_stamp=first_ms,
                    max_time_stamp=store.store_time_at(topic, queue_id, high - 1),
                    consume_time_stamp=consumed_ms,
                    delay_time=delay_ms,
                )
            )
        return Reply(body=bodies.QueueTimeSpans(consume_time_span_set=spans).encode())

    def correction_offsets(self, call: Call[QueryCorrectionOffsetRequest]) -> Reply:
        """Returns, for each queue, the lowest offset of all groups that are not filtered out, or the largest possible
        number if the compared group is further behind. Apache also deletes the offsets of the filtered groups; this
        broker does not."""
        header = call.header
        filtered = {group for group in (header.filter_groups or "").split(",") if group}
        smallest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group in filtered:
                continue
            for queue_id, offset in self._offsets.queues_of(group, header.topic).items():
                if offset >= self._store.min_offset(header.topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        for queue_id, offset in self._offsets.queues_of(header.compare_group, header.topic).items():
            if smallest.get(queue_id, _NEVER) > offset:
                smallest[queue_id] = _NEVER
        return Reply(body=bodies.CorrectionOffsets(correction_offsets=smallest).encode())

    def _config(self, topic: str) -> TopicConfig:
        config = self._topics.find(topic)
        if config is None:
            raise TopicNotFound(f"topic {topic} does not exist on this broker")
        return config

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=topic)
