"""Consumer group progress: requests 208 and 317 (Apache: part of AdminBrokerProcessor)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.statistics.unfinished import UnfinishedCounter
from orbitmq.broker.tables.clients import ConsumerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import InvalidParameter, ServerError
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import bodies, javajson
from orbitmq.wire.headers import (
    GetBrokerConsumeStatsRequest,
    GetConsumeStatsRequest,
)
from orbitmq.wire.javajson import ObjectMap

__all__ = ["GroupInspection", "Lags"]

_ANSWER_BYTES_MAX: Final = 15 << 20
"""Largest answer; the limit of a frame is 16 MiB."""
_TOPICS_MAX: Final = 2_000
"""Maximum number of topics in a request."""
_QUEUES_AT_ONCE: Final = 1_000
"""The number of queues examined before the event loop serves other work. They take about 10 ms."""


class Lags:
    """Computes a group's lag in a topic."""

    def __init__(
        self,
        *,
        broker_name: str,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        store: MessageStore,
        popped: Callable[[str, str, int], int] = lambda _topic, _group, _queue_id: 0,
    ) -> None:
        """``popped`` returns how many messages of a queue a group has popped and not acknowledged."""
        self._broker_name = broker_name
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._popped = popped
        self.unfinished = UnfinishedCounter(offsets=offsets, consumers=consumers, store=store, popped=popped)

    def wanted(self, group: str, topic: str) -> bool:
        """Whether the group may still read the topic. An offline group counts because it may come back."""
        if self._consumers.known_subscription(group, topic) is not None:
            return True
        online = self._consumers.group(group)
        return online is None or not online.subscriptions

    def of(
        self, group: str, topic: str, queue_count: int, *, unfinished: bool = False
    ) -> ObjectMap[MessageQueue, bodies.OffsetWrapper]:
        """Returns the offsets of every queue. With ``unfinished``, they include our own fields, and a queue without a
        committed offset has the offset at which its unfinished messages start."""
        store, offsets = self._store, self._offsets
        table: ObjectMap[MessageQueue, bodies.OffsetWrapper] = ObjectMap()
        for queue_id in range(queue_count):
            committed = offsets.query(group, topic, queue_id)
            consumed = max(0, committed)
            lag = self.unfinished.of(group, topic, queue_id) if unfinished else None
            if lag is not None and committed < 0:
                consumed = lag.start
            last_ms = store.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else 0
            queue = MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=topic)
            # Popped messages are already before the committed offset. Tools show the difference of the two offsets.
            in_hand = consumed + self._popped(topic, group, queue_id)
            table[queue] = bodies.OffsetWrapper(
                broker_offset=store.max_offset(topic, queue_id),
                consumer_offset=consumed,
                pull_offset=max(in_hand, offsets.pull_offset(group, topic, queue_id)),
                last_timestamp=max(0, last_ms),
                unfinished=lag.count if lag is not None else None,
                oldest_unfinished=lag.oldest_ms if lag is not None else None,
            )
        return table


class GroupInspection:
    """Serves the requests for group progress."""

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
        """Returns the lag of a group in the listed topics, in the named topic, or in all topics with offsets of the
        group."""
        header = call.header
        group = header.consumer_group
        topics = list(dict.fromkeys(topic for topic in (header.topic_list or "").split(";") if topic))
        if len(topics) > _TOPICS_MAX:
            raise InvalidParameter(f"topicList has {len(topics):,} topics; the limit is {_TOPICS_MAX:,}")
        if not topics:
            named = header.topic if header.topic and header.topic.strip() else None
            candidates = self._offsets.topics_of(group) if named is None else [named]
            if header.unfinished and named is None:
                subscribed = (topic for name, topic in self._lags.unfinished.pairs() if name == group)
                candidates = sorted({*candidates, *subscribed})
            topics = [topic for topic in candidates if self._lags.wanted(group, topic)]
        table: ObjectMap[MessageQueue, bodies.OffsetWrapper] = ObjectMap()
        tps = 0.0
        for topic in topics:
            config = self._topics.find(topic)
            if config is not None:
                table.update(
                    self._lags.of(group, topic, config.read_queue_nums, unfinished=bool(header.unfinished))
                )
                tps += self._stats.group_get_tps(group, topic)
        return Reply(body=bodies.ConsumeStats(consume_tps=tps, offset_table=table).encode())

    async def broker_consume_stats(self, call: Call[GetBrokerConsumeStatsRequest]) -> Reply:
        """Returns the lag of every group in every topic.

        With thousands of groups this takes a second, so the coroutine yields to the event loop in between, and the
        answer is joined from the encoded groups. Raises ``ServerError`` if it would not fit in a frame.
        """
        pieces: list[bytes] = []
        behind = inflight = size = queues = 0
        unfinished = bool(call.header.unfinished)
        topics_of = self._topics_by_group(subscribed=unfinished)
        for group in list(self._groups.configs):
            texts: list[bytes] = []
            for topic in topics_of.get(group, ()):
                config = self._topics.find(topic)
                if config is None or (call.header.is_order and not config.order):
                    continue
                if not self._lags.wanted(group, topic):
                    continue
                lags = self._lags.of(group, topic, config.write_queue_nums, unfinished=unfinished)
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
        # The fields are in the same order as in other bodies, so the list is inserted in the middle.
        whole = bodies.ConsumeStatsList(
            broker_addr=self._address, total_diff=behind, total_inflight_diff=inflight
        ).encode()
        return Reply(body=whole.replace(b"[]", b"[%b]" % b",".join(pieces), 1))

    def _topics_by_group(self, *, subscribed: bool) -> Mapping[str, list[str]]:
        # One pass over all offsets instead of one per group, because there may be tens of thousands of both.
        table: dict[str, list[str]] = {}
        for key in sorted(self._offsets.committed):
            topic, _, group = key.partition("@")
            table.setdefault(group, []).append(topic)
        if subscribed:
            for group, topic in self._lags.unfinished.pairs():
                if topic not in (topics := table.setdefault(group, [])):
                    topics.append(topic)
        return table
