"""Broker metrics under the names of RocketMQ 5's exporter (Apache: BrokerMetricsManager, ConsumerLagCalculator,
DefaultStoreMetricsManager).

Metrics are computed from existing counters and tables when they are scraped, so they add no cost per message. The one
exception is the histogram of message sizes: once a second the sizes of new messages are read from the consume queues,
at 0.09 us each.

The help text of each family and docs/reference/metrics.md list the differences from Apache's exporter.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.delivery.transactions import Transactions
from orbitmq.broker.pop.service import PopService
from orbitmq.broker.roles import RoleSwitch
from orbitmq.broker.statistics.stats import FINISH_BOUNDS_S, BrokerStats, Traffic
from orbitmq.broker.statistics.unfinished import UnfinishedCounter
from orbitmq.broker.tables.clients import ClientChannel, ConsumerTable, ProducerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.limits import Bound
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Perm, version_name
from orbitmq.metrics.endpoint import parse_labels
from orbitmq.metrics.families import Declared, Families, Family, Histogram, Kind
from orbitmq.metrics.process import ProcessMetrics
from orbitmq.metrics.requests import RPC_LATENCY, RequestTimes
from orbitmq.model.names import (
    HALF_OP_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_retry_topic,
    is_system_group,
)
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.layout import BLANK_UNIT_SIZE, UNIT_BYTES
from orbitmq.store.message_store import MessageStore
from orbitmq.wire.bodies import ConsumeType

__all__ = ["BROKER_FAMILIES", "SIZES_S", "BrokerMetrics", "MessageSizes"]

SIZES_S: Final = 1.0
"""Interval at which the sizes of new messages are read."""
_UNITS_AT_ONCE: Final = 8_192
_QUEUES_AT_ONCE: Final = 200
"""The number of queues inspected before other tasks may run. They take about 2 ms."""
_HALF_MESSAGES_MAX: Final = 1_000
_MODES: Final = {ConsumeType.ACTIVELY: "pull", ConsumeType.PASSIVELY: "push", ConsumeType.POP: "pop"}
_MESSAGE_TYPES: Final = frozenset({"normal", "fifo", "delay", "transaction"})
_POOLS: Final = (
    "ack",
    "admin",
    "async_put",
    "client_manager",
    "consumer_manager",
    "heartbeat",
    "lite_pull",
    "pull",
    "query_message",
    "reply",
    "send",
    "transaction",
)


def _counter(name: str, doc: str, *labels: str) -> Declared:
    return Declared(name, Kind.COUNTER, doc, labels)


def _gauge(name: str, doc: str, *labels: str) -> Declared:
    return Declared(name, Kind.GAUGE, doc, labels)


_IN: Final = ("is_system", "message_type", "topic")
_OUT: Final = ("consumer_group", "is_system", "topic")
_LAG: Final = ("consumer_group", "is_retry", "is_system", "topic")
_DISK: Final = ("storage_medium", "storage_type")

MESSAGES_IN: Final = _counter(
    "rocketmq_messages_in_total",
    "Messages stored. The type is the one the topic declares (+message.type), delay for what a delay ended with, "
    "transaction for what was committed.",
    *_IN,
)
THROUGHPUT_IN: Final = _counter("rocketmq_throughput_in_total", "Bytes of the messages stored.", *_IN)
MESSAGES_OUT: Final = _counter("rocketmq_messages_out_total", "Messages handed to consumers.", *_OUT)
THROUGHPUT_OUT: Final = _counter("rocketmq_throughput_out_total", "Bytes handed to consumers.", *_OUT)
MESSAGE_SIZE: Final = Declared(
    "rocketmq_message_size",
    Kind.HISTOGRAM,
    "Sizes of stored messages in bytes, as records of the log, since the broker started.",
    _IN,
    (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20),
)
UNFINISHED: Final = _gauge(
    "orbitmq_consumer_lag_messages",
    "Stored messages a group has not finished, also before it commits its first offset; with retry topics.",
    *_LAG,
)
UNFINISHED_AGE: Final = _gauge(
    "orbitmq_consumer_lag_latency_milliseconds", "Age of the oldest message a group has not finished.", *_LAG
)
LAG_MESSAGES: Final = _gauge(
    "rocketmq_consumer_lag_messages",
    "Messages a group has not consumed since its last committed offset: 0 for a queue without one, as Apache counts. "
    "Groups without a member are included, by their offsets.",
    *_LAG,
)
LAG_LATENCY: Final = _gauge(
    "rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest message not consumed.", *_LAG
)
INFLIGHT: Final = _gauge("rocketmq_consumer_inflight_messages", "Messages pulled and not committed.", *_LAG)
QUEUEING: Final = _gauge(
    "rocketmq_consumer_queueing_latency_milliseconds", "Age of the oldest message not pulled.", *_LAG
)
READY: Final = _gauge("rocketmq_consumer_ready_messages", "Messages not pulled yet.", *_LAG)
TO_DLQ: Final = _counter(
    "rocketmq_send_to_dlq_messages_total", "Messages moved to a group's dead letters.", *_OUT
)
COMMITS: Final = _counter("rocketmq_commit_messages_total", "Transactions committed.", "topic")
ROLLBACKS: Final = _counter("rocketmq_rollback_messages_total", "Transactions rolled back.", "topic")
HALF: Final = _gauge(
    "rocketmq_half_messages", f"Transactions open; of the first {_HALF_MESSAGES_MAX} in line.", "topic"
)
FINISH: Final = Declared(
    "rocketmq_finish_message_latency_milliseconds",
    Kind.HISTOGRAM,
    "Time from a message's birth to its commit, in whole SECONDS in spite of the name, as Apache exports it.",
    ("topic",),
    FINISH_BOUNDS_S,
)
PRODUCERS: Final = _gauge(
    "rocketmq_producer_connections", "Connected producers.", "language", "protocol_type", "version"
)
CONSUMERS: Final = _gauge(
    "rocketmq_consumer_connections",
    "Connected consumers.",
    "consume_mode",
    "consumer_group",
    "is_system",
    "language",
    "protocol_type",
    "version",
)
PERMISSION: Final = _gauge("rocketmq_broker_permission", "2 write, 4 read, 6 both.")
TOPICS: Final = _gauge("rocketmq_topic_number", "Topics, with those of the system.")
GROUPS: Final = _gauge("rocketmq_consumer_group_number", "Consumer groups, with those of the system.")
WATERMARK: Final = _gauge(
    "rocketmq_processor_watermark",
    "Requests waiting for a thread: always 0, a request is served in the turn of the loop that reads it.",
    "processor",
)
STORAGE_SIZE: Final = _gauge("rocketmq_storage_size_bytes", "Used bytes of the disk of the store.", *_DISK)
FLUSH_BEHIND: Final = _gauge("rocketmq_storage_flush_behind_bytes", "Log bytes not yet synced.", *_DISK)
DISPATCH_BEHIND: Final = _gauge(
    "rocketmq_storage_dispatch_behind_bytes", "Log bytes not yet in a queue: always 0 here.", *_DISK
)
RESERVE_TIME: Final = _gauge(
    "rocketmq_storage_message_reserve_time_milliseconds", "Age of the oldest message in the log.", *_DISK
)
TIMER_ENQUEUE_LAG: Final = _gauge(
    "rocketmq_timer_enqueue_lag", "Timer messages sent and not on the wheel yet.", *_DISK
)
TIMER_ENQUEUE_LATENCY: Final = _gauge(
    "rocketmq_timer_enqueue_latency_milliseconds", "Age of the oldest timer message not on the wheel.", *_DISK
)
TIMER_DEQUEUE_LAG: Final = _gauge("rocketmq_timer_dequeue_lag", "Timer messages on the wheel.", *_DISK)
TIMER_DEQUEUE_LATENCY: Final = _gauge(
    "rocketmq_timer_dequeue_latency_milliseconds", "How late the next due timer message is.", *_DISK
)
CONNECTIONS: Final = _gauge("orbitmq_connections", "Open connections of clients.")
PULLS: Final = _counter("orbitmq_pulls_total", "Pulls by what they found.", "result")
PULLS_WAITING: Final = _gauge("orbitmq_pulls_waiting", "Pulls waiting for a message (long polling).")
ACKS_WAITING: Final = _gauge(
    "orbitmq_acks_waiting", "Sends stored and waiting for the disk or a slave before they are answered."
)
PUT_FAILURES: Final = _counter("orbitmq_put_failures_total", "Sends the store refused.")
DAMAGED: Final = _counter(
    "orbitmq_damaged_messages_total",
    "Messages that readers skipped because the log holds no whole record of them.",
)
RECORDS_REPAIRED: Final = _counter(
    "orbitmq_repaired_records_total",
    "Damaged records that were replaced by those of another broker of the group.",
)
RECORDS_UNREPAIRED: Final = _gauge(
    "orbitmq_unrepaired_records", "Damaged records that no other broker of the group could replace."
)
SCRUBBED: Final = _counter("orbitmq_scrubbed_bytes_total", "Bytes of the log verified in the background.")
SCRUB_PASSES: Final = _counter("orbitmq_scrub_passes_total", "Times that the whole log was verified.")
SCRUB_DAMAGE: Final = _counter(
    "orbitmq_scrub_damage_total", "Damaged records and queue units found in the background."
)
UNITS_REPAIRED: Final = _counter(
    "orbitmq_repaired_queue_units_total", "Damaged queue units that were written again from their records."
)
TRANSFERS_REFUSED: Final = _counter(
    "orbitmq_refused_transfers_total", "Transfers of the master refused because of a damaged record in them."
)
TABLE_SIZE: Final = _gauge(
    "orbitmq_table_size", "How much a table that clients can grow has; bytes for consumer offsets.", "table"
)
TABLE_LIMIT: Final = _gauge("orbitmq_table_limit", "How much it may have (maxTopics and others).", "table")
TABLE_REFUSALS: Final = _counter(
    "orbitmq_table_refusals_total", "Requests refused because the table was full.", "table"
)
SLAVE_BEHIND: Final = _gauge("orbitmq_slave_behind_bytes", "How far a connected slave is behind.", "slave")
DELAY_BEHIND: Final = _gauge("orbitmq_delay_level_messages", "Messages waiting on a delay level.", "level")
POP_CHECKPOINTS: Final = _gauge(
    "rocketmq_pop_checkpoint_buffer_size", "Pops with messages neither acknowledged nor redelivered."
)
POP_RETRIES: Final = _counter(
    "rocketmq_pop_revive_retry_messages_total", "Popped messages that were redelivered."
)
POP_IN_FLIGHT: Final = _gauge(
    "orbitmq_pop_in_flight_messages", "Popped messages not acknowledged yet.", "topic", "consumer_group"
)

BROKER_FAMILIES: Final = (
    MESSAGES_IN,
    THROUGHPUT_IN,
    MESSAGES_OUT,
    THROUGHPUT_OUT,
    MESSAGE_SIZE,
    LAG_MESSAGES,
    LAG_LATENCY,
    INFLIGHT,
    QUEUEING,
    READY,
    UNFINISHED,
    UNFINISHED_AGE,
    TO_DLQ,
    COMMITS,
    ROLLBACKS,
    HALF,
    FINISH,
    PRODUCERS,
    CONSUMERS,
    PERMISSION,
    TOPICS,
    GROUPS,
    WATERMARK,
    STORAGE_SIZE,
    FLUSH_BEHIND,
    DISPATCH_BEHIND,
    RESERVE_TIME,
    TIMER_ENQUEUE_LAG,
    TIMER_ENQUEUE_LATENCY,
    TIMER_DEQUEUE_LAG,
    TIMER_DEQUEUE_LATENCY,
    RPC_LATENCY,
    CONNECTIONS,
    PULLS,
    PULLS_WAITING,
    ACKS_WAITING,
    PUT_FAILURES,
    DAMAGED,
    RECORDS_REPAIRED,
    RECORDS_UNREPAIRED,
    SCRUBBED,
    SCRUB_PASSES,
    SCRUB_DAMAGE,
    UNITS_REPAIRED,
    TRANSFERS_REFUSED,
    TABLE_SIZE,
    TABLE_LIMIT,
    TABLE_REFUSALS,
    SLAVE_BEHIND,
    DELAY_BEHIND,
    POP_CHECKPOINTS,
    POP_RETRIES,
    POP_IN_FLIGHT,
)
"""Every family, for the reference page."""


class MessageSizes:
    """Histograms of message sizes by topic. The sizes are read from the consume queues after the messages were
    stored."""

    def __init__(self, store: MessageStore, stats: BrokerStats) -> None:
        self._store = store
        self._stats = stats
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        """Maps each queue to the number of its messages counted, and the offset of the next one."""
        self._start = {
            (topic, queue_id): store.max_offset(topic, queue_id)
            for topic in store.topics()
            for queue_id in store.queues(topic)
        }
        self.by_topic: dict[str, Histogram] = {}

    def look(self) -> None:
        """Count the messages stored since the last call. A queue without new messages costs 0.1 us."""
        for key, traffic in self._stats.puts.items():
            count, queue_offset = self._seen.get(key, (0, -1))
            if traffic.count == count:
                continue
            if queue_offset < 0:
                queue_offset = self._start.pop(key, 0)
            self._seen[key] = (traffic.count, self._read(key, queue_offset))
        if len(self._seen) > len(self._stats.puts):
            self._forget_deleted()

    def _read(self, key: tuple[str, int], queue_offset: int) -> int:
        topic, queue_id = key
        end = self._store.max_offset(topic, queue_id)
        # Messages may have been deleted before they were counted, or the topic was recreated.
        queue_offset = max(min(queue_offset, end), self._store.min_offset(topic, queue_id))
        histogram = self.by_topic.get(topic)
        if histogram is None:
            histogram = self.by_topic[topic] = Histogram(MESSAGE_SIZE.bounds)
        while queue_offset < end:
            units = self._store.unit_bytes(topic, queue_id, queue_offset, _UNITS_AT_ONCE)
            if not units:
                break
            # A unit is five words of four bytes; the third is the size. The raw words are counted first, so that only
            # the few distinct sizes need their byte order swapped.
            words = array("I")
            words.frombytes(units)
            for raw, count in Counter(words[2::5]).items():
                size = int.from_bytes(raw.to_bytes(4, sys.byteorder), "big")
                if size < BLANK_UNIT_SIZE:
                    histogram.add(size, count)
            queue_offset += len(units) // UNIT_BYTES
        return queue_offset

    def _forget_deleted(self) -> None:
        for key in [key for key in self._seen if key not in self._stats.puts]:
            del self._seen[key]
        topics = {topic for topic, _ in self._seen}
        for topic in [topic for topic in self.by_topic if topic not in topics]:
            del self.by_topic[topic]


@dataclass(kw_only=True, eq=False)
class BrokerMetrics:
    """Builds the metrics page."""

    config: BrokerConfig
    store: MessageStore
    stats: BrokerStats
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    consumers: ConsumerTable
    producers: ProducerTable
    transactions: Transactions
    timers: Timers
    schedule: Schedule
    pop: PopService
    roles: RoleSwitch
    gate: AckGate
    requests: RequestTimes
    clock: Clock
    fs: FileSystem
    bounds: Sequence[Bound]
    """Limits of additional tables."""
    connection_count: Callable[[], int]
    waiting_pulls: Callable[[], int]
    sizes: MessageSizes = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = MessageSizes(self.store, self.stats)
        self._bounds = (
            self.topics.bound,
            self.groups.bound,
            self.groups.forbidden_bound,
            self.offsets.bound,
            self.consumers.bound,
            self.consumers.subscription_bound,
            self.producers.bound,
            *self.bounds,
        )
        self._process = ProcessMetrics()
        self._common = {
            **parse_labels(self.config.metrics_labels),
            "cluster": self.config.cluster_name,
            "node_id": self.config.broker_name,
            "node_type": "broker",
        }

    async def families(self) -> Families:
        """Returns all current values. Yields to other tasks meanwhile."""
        families = Families(self._common, self.config.metrics_series_max)
        self._traffic(families)
        self._sizes(families)
        await asyncio.sleep(0)
        await self._lags(families)
        await self._unfinished(families)
        self._dead_letters(families)
        self._transactions(families)
        await asyncio.sleep(0)
        self._clients(families)
        self._state(families)
        self._storage(families)
        self._own(families)
        self.requests.report(families)
        await asyncio.sleep(0)
        self._process.report(families)
        return families

    def _kind(self, topic: str) -> str:
        """Returns the message type of a topic, as shown in the metrics."""
        if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return "delay"
        if topic in (HALF_TOPIC, HALF_OP_TOPIC):
            return "transaction"
        config = self.topics.configs.get(topic)
        declared = config.attributes.get("message.type", "").lower() if config is not None else ""
        return declared if declared in _MESSAGE_TYPES else "normal"

    def _system(self, topic: str, group: str = "") -> str:
        return _flag(self.topics.is_system(topic) or (bool(group) and is_system_group(group)))

    def _traffic(self, families: Families) -> None:
        stats = self.stats
        puts: dict[tuple[str, str], tuple[int, int]] = {}
        for (topic, _), traffic in stats.puts.items():
            _add(puts, (topic, self._kind(topic)), traffic, 1)
        for (topic, kind), traffic in stats.kinds.items():
            own = self._kind(topic)
            if kind != own and (topic, own) in puts:
                _add(puts, (topic, own), traffic, -1)
                _add(puts, (topic, kind), traffic, 1)
        gets: dict[tuple[str, str], tuple[int, int]] = {}
        for (topic, _, group), traffic in stats.gets.items():
            _add(gets, (topic, group), traffic, 1)
        messages, size = families.start(MESSAGES_IN), families.start(THROUGHPUT_IN)
        for (topic, kind), (count, byte_count) in puts.items():
            if count:
                messages.add(count, self._system(topic), kind, topic)
                size.add(byte_count, self._system(topic), kind, topic)
        messages, size = families.start(MESSAGES_OUT), families.start(THROUGHPUT_OUT)
        for (topic, group), (count, byte_count) in gets.items():
            messages.add(count, group, self._system(topic, group), topic)
            size.add(byte_count, group, self._system(topic, group), topic)

    def _sizes(self, families: Families) -> None:
        self.sizes.look()
        family = families.start(MESSAGE_SIZE)
        for topic, histogram in self.sizes.by_topic.items():
            family.add_histogram(histogram, self._system(topic), self._kind(topic), topic)

    # -- groups ------------------------------------------------------------------------------------------

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yields (group, topic) for the subscriptions of online groups and for the committed offsets of other
        groups."""
        online = self.consumers.groups
        for name, group in list(online.items()):
            for topic in list(group.subscriptions):
                if not is_retry_topic(topic) and topic in self.topics.configs:
                    yield name, topic
        for key in list(self.offsets.committed):
            topic, _, name = key.partition("@")
            if name in online or is_retry_topic(topic) or topic not in self.topics.configs:
                continue
            if not is_system_group(name):
                yield name, topic

    async def _lags(self, families: Families) -> None:
        lag, latency = families.start(LAG_MESSAGES), families.start(LAG_LATENCY)
        inflight, queueing = families.start(INFLIGHT), families.start(QUEUEING)
        ready = families.start(READY)
        looked = 0
        for pairs, (group, topic) in enumerate(self._pairs(), 1):
            config = self.topics.configs.get(topic)
            if config is None:
                continue
            labels = (group, "false", self._system(topic, group), topic)
            if pairs > self.config.metrics_series_max:
                # Nothing is shown beyond the limit of series, so nothing is computed.
                for family in (lag, latency, inflight, queueing, ready):
                    family.left_out += 1
                continue
            self._add_lag((lag, latency, inflight, queueing, ready), labels, config.write_queue_nums)
            looked += config.write_queue_nums
            if looked >= _QUEUES_AT_ONCE:
                looked = 0
                await asyncio.sleep(0)

    def _add_lag(self, families: tuple[Family, ...], labels: tuple[str, ...], queue_count: int) -> None:
        group, topic = labels[0], labels[3]
        store, offsets = self.store, self.offsets
        behind = pulled_count = unpulled = 0
        oldest = oldest_unpulled = 0
        for queue_id in range(queue_count):
            end = max(0, store.max_offset(topic, queue_id))
            consumed = offsets.query(group, topic, queue_id)
            pulled = offsets.pull_offset(group, topic, queue_id)
            behind += max(0, end - (consumed if consumed >= 0 else end))
            unpulled += max(0, end - (pulled if pulled >= 0 else end))
            pulled_count += max(0, max(0, pulled) - (consumed if consumed >= 0 else max(0, pulled)))
            if 0 <= consumed < end:
                oldest = _older(oldest, store.store_time_at(topic, queue_id, consumed))
            if 0 <= pulled < end:
                oldest_unpulled = _older(oldest_unpulled, store.store_time_at(topic, queue_id, pulled))
        now_ms = self.clock.now_ms()
        values = (
            behind,
            max(0, now_ms - oldest) if oldest else 0,
            pulled_count,
            max(0, now_ms - oldest_unpulled) if oldest_unpulled else 0,
            unpulled,
        )
        for family, value in zip(families, values, strict=True):
            family.add(value, *labels)

    async def _unfinished(self, families: Families) -> None:
        messages, age = families.start(UNFINISHED), families.start(UNFINISHED_AGE)
        counter = UnfinishedCounter(
            offsets=self.offsets,
            consumers=self.consumers,
            store=self.store,
            popped=self.pop.log.table.in_flight,
        )
        looked = pairs = 0
        for group, topic in counter.pairs():
            config = self.topics.configs.get(topic)
            if config is None or is_system_group(group):
                continue
            pairs += 1
            if pairs > self.config.metrics_series_max:
                messages.left_out += 1
                age.left_out += 1
                continue
            lags = [counter.of(group, topic, queue_id) for queue_id in range(config.write_queue_nums)]
            labels = (group, _flag(is_retry_topic(topic)), self._system(topic, group), topic)
            oldest = min((lag.oldest_ms for lag in lags if lag.oldest_ms), default=0)
            messages.add(sum(lag.count for lag in lags), *labels)
            age.add(max(0, self.clock.now_ms() - oldest) if oldest else 0, *labels)
            looked += config.write_queue_nums
            if looked >= _QUEUES_AT_ONCE:
                looked = 0
                await asyncio.sleep(0)

    def _dead_letters(self, families: Families) -> None:
        family = families.start(TO_DLQ)
        for (name, key), traffic in self.stats.others.items():
            if name == "DEAD_LETTERS":
                topic, _, group = key.partition("@")
                family.add(traffic.count, group, self._system(topic, group), topic)

    def _transactions(self, families: Families) -> None:
        commits, rollbacks = families.start(COMMITS), families.start(ROLLBACKS)
        finish, half = families.start(FINISH), families.start(HALF)
        for topic, counts in self.stats.transactions.items():
            if counts.commits:
                commits.add(counts.commits, topic)
                finish.add_histogram(counts.finish_s, topic)
            if counts.rollbacks:
                rollbacks.add(counts.rollbacks, topic)
        open_halves = self.transactions.open_by_topic(_HALF_MESSAGES_MAX)
        for topic in {**dict.fromkeys(self.stats.transactions, 0), **open_halves}:
            half.add(open_halves.get(topic, 0), topic)

    # -- the rest ----------------------------------------------------------------------------------------

    def _clients(self, families: Families) -> None:
        producers: Counter[tuple[str, str]] = Counter()
        for _, channel in self.producers.channels():
            producers[_software(channel)] += 1
        family = families.start(PRODUCERS)
        for (language, version), count in producers.items():
            family.add(count, language, "remoting", version)
        consumers: Counter[tuple[str, str, str, str]] = Counter()
        for name, group in self.consumers.groups.items():
            mode = _MODES.get(ConsumeType(group.consume_type), "push") if group.consume_type else "push"
            for channel in group.members.values():
                consumers[mode, name, *_software(channel)] += 1
        family = families.start(CONSUMERS)
        for (mode, name, language, version), count in consumers.items():
            family.add(count, mode, name, _flag(is_system_group(name)), language, "remoting", version)

    def _state(self, families: Families) -> None:
        families.gauge(PERMISSION, self.config.permission & int(Perm.READ | Perm.WRITE))
        families.gauge(TOPICS, len(self.topics.configs))
        families.gauge(GROUPS, len(self.groups.configs))
        watermark = families.start(WATERMARK)
        for pool in _POOLS:
            watermark.add(0, pool)

    def _storage(self, families: Families) -> None:
        store = self.store
        disk = ("disk", "local")
        try:
            families.gauge(STORAGE_SIZE, self.fs.disk_usage(store.config.root).used_bytes, *disk)
        except OSError:
            pass
        families.gauge(FLUSH_BEHIND, max(0, store.max_log_offset - store.flushed_offset), *disk)
        families.gauge(DISPATCH_BEHIND, 0, *disk)
        now_ms, earliest_ms = self.clock.now_ms(), store.earliest_log_time()
        if earliest_ms > 0:
            families.gauge(RESERVE_TIME, max(0, now_ms - earliest_ms), *disk)
        timers = self.timers
        families.gauge(TIMER_ENQUEUE_LAG, timers.unread_count, *disk)
        families.gauge(TIMER_ENQUEUE_LATENCY, self._unread_age_ms(now_ms), *disk)
        families.gauge(TIMER_DEQUEUE_LAG, timers.waiting_count, *disk)
        families.gauge(TIMER_DEQUEUE_LATENCY, timers.late_ms, *disk)

    def _unread_age_ms(self, now_ms: int) -> int:
        unread = self.timers.unread_count
        if not unread:
            return 0
        first = self.store.max_offset(TIMER_TOPIC, 0) - unread
        stored_ms = self.store.store_time_at(TIMER_TOPIC, 0, first)
        return max(0, now_ms - stored_ms) if stored_ms > 0 else 0

    def _own(self, families: Families) -> None:
        families.gauge(CONNECTIONS, self.connection_count())
        pulls = families.start(PULLS)
        pulls.add(self.stats.hits, "found")
        pulls.add(self.stats.misses, "not_found")
        families.gauge(PULLS_WAITING, self.waiting_pulls())
        families.gauge(ACKS_WAITING, self.gate.waiting_count)
        families.gauge(PUT_FAILURES, self.stats.put_failures)
        families.gauge(DAMAGED, self.store.integrity.damaged_count)
        families.gauge(RECORDS_REPAIRED, self.roles.repair.repaired_count)
        families.gauge(RECORDS_UNREPAIRED, self.roles.repair.failed_count)
        families.gauge(SCRUBBED, self.store.scrubber.verified_bytes)
        families.gauge(SCRUB_PASSES, self.store.scrubber.pass_count)
        families.gauge(SCRUB_DAMAGE, self.store.scrubber.damage_count)
        families.gauge(UNITS_REPAIRED, self.store.integrity.repaired_count)
        families.gauge(TRANSFERS_REFUSED, self.store.integrity.refused_count)
        for family, values in (
            (TABLE_SIZE, [bound.size for bound in self._bounds]),
            (TABLE_LIMIT, [bound.limit for bound in self._bounds]),
            (TABLE_REFUSALS, [bound.refused for bound in self._bounds]),
        ):
            tables = families.start(family)
            for bound, value in zip(self._bounds, values, strict=True):
                tables.add(value, bound.table)
        slaves = families.start(SLAVE_BEHIND)
        for link in self.roles.status().ha_connection_info or ():
            slaves.add(link.diff, link.addr or "")
        families.gauge(POP_CHECKPOINTS, len(self.pop.log.table))
        families.gauge(POP_RETRIES, self.pop.redelivery.count)
        hidden = families.start(POP_IN_FLIGHT)
        for (topic, group), count in self.pop.log.table.in_flight_of_groups().items():
            hidden.add(count, topic, group)
        levels = families.start(DELAY_BEHIND)
        for level, (offset, end) in self.schedule.progress().items():
            levels.add(max(0, end - offset), str(level))


def _add(
    table: dict[tuple[str, str], tuple[int, int]], key: tuple[str, str], traffic: Traffic, sign: int
) -> None:
    count, byte_count = table.get(key, (0, 0))
    table[key] = (count + sign * traffic.count, byte_count + sign * traffic.bytes)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _older(oldest_ms: int, stored_ms: int) -> int:
    if stored_ms <= 0:
        return oldest_ms
    return min(oldest_ms, stored_ms) if oldest_ms else stored_ms


def _software(channel: ClientChannel) -> tuple[str, str]:
    return channel.language.lower(), version_name(channel.version).lower()
