"""What the broker knows about topics, groups, clients and itself: 28, 202-204, 208, 300, 303, 305, 308, 315, 317,
328, 343, 345.

Answers to Apache's AdminBrokerProcessor, the part that only looks. Nothing here changes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.figures.stats import BrokerStats, StatsWindow
from orbitmq.broker.tables.clients import ClientChannel, ConsumerTable, ProducerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import RequestCode
from orbitmq.errors import ConsumerNotOnline, ServerError, TopicNotFound
from orbitmq.model.route import MessageQueue
from orbitmq.model.topic import TopicConfig
from orbitmq.runtime.clock import Clock
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import bodies, javajson
from orbitmq.wire.headers import (
    Empty,
    GetBrokerConsumeStatsRequest,
    GetConsumerConnectionListRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
    GetTopicStatsInfoRequest,
    QueryConsumeTimeSpanRequest,
    QueryCorrectionOffsetRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
    ViewBrokerStatsDataRequest,
)
from orbitmq.wire.javajson import ObjectMap

__all__ = ["ClientInspection", "GroupInspection", "Lags", "StatsInspection", "TopicInspection"]

_NEVER: Final = 2**63 - 1
"""Offset that means "correct nothing"."""
_ANSWER_BYTES_MAX: Final = 15 << 20
"""A frame has 16 MiB."""
_QUEUES_AT_ONCE: Final = 1_000
"""Queues looked at before others get their turn: about 10 ms."""


class ClientInspection:
    """Who is connected and who reads what."""

    def __init__(
        self,
        *,
        consumers: ConsumerTable,
        producers: ProducerTable,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        address: str,
    ) -> None:
        """``address`` is this broker's own, as clients know it."""
        self._consumers = consumers
        self._producers = producers
        self._offsets = offsets
        self._topics = topics
        self._address = address

    def routes(self) -> list[Route]:
        return [
            Route(
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                self.consumer_connections,
                GetConsumerConnectionListRequest,
            ),
            Route(
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                self.producer_connections,
                GetProducerConnectionListRequest,
            ),
            Route(RequestCode.GET_ALL_PRODUCER_INFO, self.all_producers, Empty),
            Route(
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic, QueryTopicConsumeByWhoRequest
            ),
            Route(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group, QueryTopicsByConsumerRequest),
            Route(
                RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
                self.subscription,
                QuerySubscriptionByConsumerRequest,
            ),
            Route(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, Empty),
        ]

    def consumer_connections(self, call: Call[GetConsumerConnectionListRequest]) -> Reply:
        group = self._consumers.group(call.header.consumer_group)
        if group is None:
            raise ConsumerNotOnline(f"no consumer of group {call.header.consumer_group} is online")
        return Reply(
            body=bodies.ConsumerConnection(
                connection_set=_connections(group.members.values()),
                consume_from_where=group.from_where or None,
                consume_type=group.consume_type,
                message_model=group.message_model,
                subscription_table=group.subscriptions,
            ).encode()
        )

    def producer_connections(self, call: Call[GetProducerConnectionListRequest]) -> Reply:
        channels = self._producers.groups.get(call.header.producer_group)
        if channels is None:
            raise ServerError(f"no producer of group {call.header.producer_group} is online")
        return Reply(body=bodies.ProducerConnection(connection_set=_connections(channels.values())).encode())

    def all_producers(self, _call: Call[Empty]) -> Reply:
        table: dict[str, list[bodies.ProducerInfo]] = {}
        for group, channel in self._producers.channels():
            table.setdefault(group, []).append(
                bodies.ProducerInfo(
                    client_id=channel.client_id,
                    language=channel.language,
                    last_update_timestamp=channel.last_update_ms,
                    # With the slash Java puts before an address that has no name.
                    remote_ip=f"/{channel.connection.remote_text}",
                    version=channel.version,
                )
            )
        return Reply(body=bodies.ProducerTable(data=table).encode())

    def groups_of_topic(self, call: Call[QueryTopicConsumeByWhoRequest]) -> Reply:
        """Groups that read a topic now, and those that did."""
        topic = call.header.topic
        groups = {*self._consumers.groups_of_topic(topic), *self._offsets.groups_of(topic)}
        return Reply(body=bodies.GroupList(group_list=sorted(groups)).encode())

    def topics_of_group(self, call: Call[QueryTopicsByConsumerRequest]) -> Reply:
        topics = self._offsets.topics_of(call.header.group)
        return Reply(body=bodies.TopicList(broker_addr=self._address, topic_list=topics).encode())

    def subscription(self, call: Call[QuerySubscriptionByConsumerRequest]) -> Reply:
        group, topic = call.header.group, call.header.topic
        found = self._consumers.known_subscription(group, topic) if topic is not None else None
        return Reply(
            body=bodies.QuerySubscriptionResponse(group=group, topic=topic, subscription_data=found).encode()
        )

    def system_topics(self, _call: Call[Empty]) -> Reply:
        return Reply(body=bodies.TopicList(topic_list=sorted(self._topics.system_topics)).encode())


def _connections(channels: Iterable[ClientChannel]) -> list[bodies.ClientConnection]:
    return [
        bodies.ClientConnection(
            client_addr=channel.connection.remote_text,
            client_id=channel.client_id,
            language=channel.language,
            version=channel.version,
        )
        for channel in channels
    ]


class Lags:
    """How far a group is behind in a topic."""

    def __init__(
        self, *, broker_name: str, offsets: ConsumerOffsets, consumers: ConsumerTable, store: MessageStore
    ) -> None:
        self._broker_name = broker_name
        self._offsets = offsets
        self._consumers = consumers
        self._store = store

    def wanted(self, group: str, topic: str) -> bool:
        """Whether the group still reads the topic, as far as can be told: an offline group may come back."""
        if self._consumers.known_subscription(group, topic) is not None:
            return True
        online = self._consumers.group(group)
        return online is None or not online.subscriptions

    def of(self, group: str, topic: str, queue_count: int) -> ObjectMap[MessageQueue, bodies.OffsetWrapper]:
        store, offsets = self._store, self._offsets
        table: ObjectMap[MessageQueue, bodies.OffsetWrapper] = ObjectMap()
        for queue_id in range(queue_count):
            consumed = max(0, offsets.query(group, topic, queue_id))
            last_ms = store.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else 0
            queue = MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=topic)
            table[queue] = bodies.OffsetWrapper(
                broker_offset=store.max_offset(topic, queue_id),
                consumer_offset=consumed,
                pull_offset=max(consumed, offsets.pull_offset(group, topic, queue_id)),
                last_timestamp=max(0, last_ms),
            )
        return table


class GroupInspection:
    """How far groups have got."""

    def __init__(
        self,
        *,
        address: str,
        lags: Lags,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
    ) -> None:
        self._address = address
        self._lags = lags
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._stats = stats

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.GET_CONSUME_STATS, self.consume_stats, GetConsumeStatsRequest),
            Route(
                RequestCode.GET_BROKER_CONSUME_STATS, self.broker_consume_stats, GetBrokerConsumeStatsRequest
            ),
        ]

    def consume_stats(self, call: Call[GetConsumeStatsRequest]) -> Reply:
        """The lag of a group: in the topics listed, or in the one named, or in all it has offsets for."""
        header = call.header
        group = header.consumer_group
        topics = [topic for topic in (header.topic_list or "").split(";") if topic]
        if not topics:
            named = header.topic if header.topic and header.topic.strip() else None
            candidates = self._offsets.topics_of(group) if named is None else [named]
            topics = [topic for topic in candidates if self._lags.wanted(group, topic)]
        table: ObjectMap[MessageQueue, bodies.OffsetWrapper] = ObjectMap()
        tps = 0.0
        for topic in topics:
            config = self._topics.find(topic)
            if config is not None:
                table.update(self._lags.of(group, topic, config.read_queue_nums))
                tps += self._stats.group_get_tps(group, topic)
        return Reply(body=bodies.ConsumeStats(consume_tps=tps, offset_table=table).encode())

    async def broker_consume_stats(self, call: Call[GetBrokerConsumeStatsRequest]) -> Reply:
        """The lag of every group in every topic.

        Thousands of groups take a second to go through, so the loop gets its turn in between and the answer is
        put together from the texts of the groups. Raises ``ServerError`` when it would not fit a frame.
        """
        pieces: list[bytes] = []
        behind = inflight = size = queues = 0
        topics_of = self._topics_by_group()
        for group in list(self._groups.configs):
            texts: list[bytes] = []
            for topic in topics_of.get(group, ()):
                config = self._topics.find(topic)
                if config is None or (call.header.is_order and not config.order):
                    continue
                if not self._lags.wanted(group, topic):
                    continue
                lags = self._lags.of(group, topic, config.write_queue_nums)
                tps = self._stats.group_get_tps(group, topic)
                texts.append(bodies.ConsumeStats(consume_tps=tps, offset_table=lags).encode())
                behind += sum(lag.broker_offset - lag.consumer_offset for lag in lags.values())
                inflight += sum((lag.pull_offset or 0) - lag.consumer_offset for lag in lags.values())
                queues += config.write_queue_nums
            pieces.append(b"{%b:[%b]}" % (javajson.encode(group), b",".join(texts)))
            size += len(pieces[-1])
            if size > _ANSWER_BYTES_MAX:
                raise ServerError("there are too many groups for one answer; ask for one group at a time")
            if queues >= _QUEUES_AT_ONCE:
                queues = 0
                await asyncio.sleep(0)
        # The members in the order of the other bodies, the list in the middle.
        whole = bodies.ConsumeStatsList(
            broker_addr=self._address, total_diff=behind, total_inflight_diff=inflight
        ).encode()
        return Reply(body=whole.replace(b"[]", b"[%b]" % b",".join(pieces), 1))

    def _topics_by_group(self) -> Mapping[str, list[str]]:
        # One walk over all offsets instead of one for every group: there may be tens of thousands of both.
        table: dict[str, list[str]] = {}
        for key in sorted(self._offsets.committed):
            topic, _, group = key.partition("@")
            table.setdefault(group, []).append(topic)
        return table


class TopicInspection:
    """What the queues of a topic hold."""

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
        """First and last message of every queue."""
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
        """When the first, the last and the last consumed message of each queue were stored."""
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
        """For each queue the least offset of all groups but the filtered ones, unless the compared group is
        further back. Apache also deletes the offsets of the filtered groups on the way; we do not."""
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


class StatsInspection:
    """How fast, and in what state."""

    def __init__(
        self, *, config: BrokerConfig, stats: BrokerStats, runtime_info: Callable[[], Mapping[str, str]]
    ) -> None:
        self._config = config
        self._stats = stats
        self._runtime_info = runtime_info

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info, Empty),
            Route(RequestCode.VIEW_BROKER_STATS_DATA, self.stats_data, ViewBrokerStatsDataRequest),
        ]

    def runtime_info(self, _call: Call[Empty]) -> Reply:
        return Reply(body=bodies.KvTable(table=dict(self._runtime_info())).encode())

    def stats_data(self, call: Call[ViewBrokerStatsDataRequest]) -> Reply:
        header = call.header
        windows = self._stats.windows(header.stats_name, header.stats_key)
        hidden = header.stats_name.startswith("QUEUE_") and not self._config.detail_stats_enabled
        if windows is None or hidden:
            raise ServerError(f"nothing was counted yet as {header.stats_name} of {header.stats_key}")
        return Reply(
            body=bodies.BrokerStatsData(
                stats_minute=_item(windows.minute),
                stats_hour=_item(windows.hour),
                stats_day=_item(windows.day),
            ).encode()
        )


def _item(window: StatsWindow) -> bodies.BrokerStatsItem:
    return bodies.BrokerStatsItem(sum=window.sum, tps=window.tps, avgpt=window.average)
