"""Compiled expressions of consumer groups (Apache: ConsumerFilterManager, file ``consumerFilter.json``).

A group's expression arrives with its heartbeats and is compiled once. It outlives the group's last member by a day
(``filterDataCleanTimeSpan``), so that bits computed at write time stay valid while the group is offline. The next
heartbeats restore everything in the file, so an unreadable file does not keep the broker from starting.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.limits import Bound
from orbitmq.codes import Property
from orbitmq.errors import (
    BodyError,
    CorruptionError,
    FilterDataNotExist,
    FilterDataNotLatest,
    SubscriptionParseFailed,
)
from orbitmq.filter import Expression, compile_expression, encode_program
from orbitmq.filter.tree import And, Constant, Equal, In, Logic, Or, depth
from orbitmq.filter.tree import Property as PropertyNode
from orbitmq.kernel import Filter
from orbitmq.kernel.java_numbers import Kind
from orbitmq.model.names import RETRY_PREFIX
from orbitmq.model.subscription import SQL92, SubscriptionData
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import CONTENT_BYTES_MAX, SafeFile
from orbitmq.store.queues.bloom import BloomFilter
from orbitmq.wire import javajson

__all__ = ["BloomData", "ConsumerFilters", "FilterData", "compile_subscription"]

logger = logging.getLogger(__name__)

_LOADED_DEAD_MS: Final = 30_000
"""How long filters loaded at start are counted as dead already, because their groups are assumed to be offline."""
_NEW_CHARS_MAX: Final = 8192
"""The maximum number of characters of new expressions accepted from one heartbeat, in addition to the first
expression, because parsing more would delay all other requests. Later heartbeats register the rest."""
_NULL: Final = Constant(None, Kind.NULL)
_RETRY_TOPIC: Final = PropertyNode(str(Property.RETRY_TOPIC))


class BloomData(msgspec.Struct, frozen=True, rename="camel"):
    """The Bloom filter bits of one group and topic."""

    bit_num: int = 0
    bit_pos: list[int] = []


class FilterData(msgspec.Struct, rename="camel", kw_only=True):
    """The filter expression of one group and topic. This is also its JSON form, with the members in Apache's
    order."""

    bloom_filter_data: BloomData | None = None
    born_time: int = 0
    """When the expression was first seen; messages stored earlier have no bits for it."""
    client_version: int = 0
    consumer_group: str
    dead: bool = False
    dead_time: int = 0
    """When the group's last member left; 0 while the group is online."""
    expression: str
    expression_type: str = SQL92
    topic: str

    def mark_dead(self, now_ms: int) -> None:
        self.dead_time = max(now_ms, self.born_time)
        self.dead = True

    def mark_alive(self) -> None:
        self.dead_time = 0
        self.dead = False


class _Entry(msgspec.Struct):
    data: FilterData
    expression: Expression
    bits: int
    """Its bits in the bitmap, lowest bit first."""


def compile_subscription(expression_type: str, expression: str) -> Expression:
    """Returns the compiled expression. Raises ``SubscriptionParseFailed`` if it is invalid or its type is unknown."""
    if expression_type != SQL92:
        raise SubscriptionParseFailed(
            f"{expression_type!r} is not a filter type; TAG and {SQL92} are supported"
        )
    return compile_expression(expression)


def _retry_filter(entries: dict[str, Expression]) -> Filter:
    """Returns the filter for retried messages. It applies the expression of a message's original topic, and selects
    the message if that topic has no expression.

    It is equivalent to ``topic IS NULL OR topic NOT IN (...) OR topic = 'A' AND ... OR topic = 'B' AND ...``.
    """
    terms: list[Logic] = [
        Equal(_RETRY_TOPIC, _NULL, 2),
        In(_RETRY_TOPIC.name, frozenset(entries), negated=True),
    ]
    for topic, expression in entries.items():
        is_topic = Equal(_RETRY_TOPIC, Constant(topic, Kind.TEXT), 2)
        terms.append(And((is_topic, expression.tree), 1 + max(2, depth(expression.tree))))
    return Filter(None, encode_program(Or(tuple(terms), 1 + max(map(depth, terms)))))


class ConsumerFilters:
    """The filter expressions of consumers, by topic and group."""

    def __init__(self, config: BrokerConfig, clock: Clock, file: SafeFile, events: BrokerEvents) -> None:
        events.subscribed.append(self.subscribed)
        events.group_gone.append(self.group_gone)
        self._config = config
        self._clock = clock
        self._file = file
        self._by_topic: dict[str, dict[str, _Entry]] = {}
        self._count = 0
        self.bound = Bound("filters", "maxFilters", lambda: self._count, lambda: config.filters_max)
        self._retry_filters: dict[str, Filter] = {}
        """Retry filters by group. They are built on demand, and dropped when any of the group's expressions
        changes."""
        self._dirty = False
        self.bloom = BloomFilter.sized(config.filter_error_percent, config.filter_consumers_expected)

    # -- filters of pulls ------------------------------------------------------------------------------

    def filter_for(self, group: str, subscription: SubscriptionData, *, from_request: bool) -> Filter:
        """Returns the filter of a subscription that does not select by tags. Raises ``FilterDataNotExist``,
        ``FilterDataNotLatest`` or ``SubscriptionParseFailed``."""
        if self._config.filter_retries and subscription.topic.startswith(RETRY_PREFIX):
            return self._retry_filter(group)
        if from_request:
            return compile_subscription(subscription.expression_type, subscription.sub_string).filter
        entry = self._by_topic.get(subscription.topic, {}).get(group)
        if entry is None:
            raise FilterDataNotExist(
                f"no filter of group {group} for topic {subscription.topic} is known here; is the expression right?"
            )
        if entry.data.client_version < subscription.sub_version:
            raise FilterDataNotLatest(
                f"the filter of group {group} for topic {subscription.topic} is older than the subscription"
            )
        return entry.expression.filter

    def _retry_filter(self, group: str) -> Filter:
        found = self._retry_filters.get(group)
        if found is None:
            entries = {
                topic: groups[group].expression for topic, groups in self._by_topic.items() if group in groups
            }
            found = self._retry_filters[group] = _retry_filter(entries)
        return found

    def bitmap(self, topic: str, properties: bytes) -> bytes:
        """Returns the Bloom filter bits of every group whose expression selects the message. The result is empty if
        no group has an expression for the topic.

        The bits are stored next to queue units (``enableConsumeQueueExt``, ``enableCalcFilterBitMap``) for an Apache
        broker that opens the store, which skips messages whose bits are not set. This broker does not use them,
        because reading them from their file would cost as much as evaluating the record, which is mapped into memory.
        """
        groups = self._by_topic.get(topic)
        if not groups or not self._config.filter_bitmap_enabled:
            return b""
        bits = 0
        for entry in groups.values():
            if entry.expression.filter.matches_properties(properties):
                bits |= entry.bits
        return bits.to_bytes(self.bloom.byte_count, "little")

    # -- changes by heartbeats -------------------------------------------------------------------------

    def subscribed(self, group: str, subscriptions: Collection[SubscriptionData]) -> None:
        """Register the expressions of a heartbeat, and mark the expressions of topics that it omits as dead. Raises
        ``InvalidParameter`` if there are too many."""
        new_chars = 0
        for subscription in subscriptions:
            if subscription.is_tag_type or not subscription.sub_string:
                continue
            if not self._is_known(group, subscription):
                new_chars += len(subscription.sub_string)
                if _NEW_CHARS_MAX < new_chars != len(subscription.sub_string):
                    continue
            self._register(group, subscription)
        topics = {subscription.topic for subscription in subscriptions}
        for entry in self._of_group(group):
            if entry.data.topic not in topics and not entry.data.dead:
                self._bury(entry)

    def _is_known(self, group: str, subscription: SubscriptionData) -> bool:
        known = self._by_topic.get(subscription.topic, {}).get(group)
        return known is not None and known.data.expression == subscription.sub_string

    def group_gone(self, group: str) -> None:
        """Mark a group's expressions as dead. Called after its last member has left."""
        for entry in self._of_group(group):
            if not entry.data.dead:
                self._bury(entry)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, expression = subscription.topic, subscription.sub_string
        groups = self._by_topic.get(topic, {})
        known = groups.get(group)
        if known is not None:
            data = known.data
            same = (data.expression, data.expression_type) == (expression, subscription.expression_type)
            if subscription.sub_version < data.client_version or (
                subscription.sub_version == data.client_version and not same
            ):
                return  # from a member without the newer expression
            if same:
                if data.dead or data.client_version != subscription.sub_version:
                    self._dirty = True
                data.client_version = subscription.sub_version
                data.mark_alive()
                return
        try:
            compiled = compile_subscription(subscription.expression_type, expression)
        except SubscriptionParseFailed as error:
            # From now on the group's pulls are refused, so its members see the error.
            logger.warning("filter refused group=%s topic=%s error=%s", group, topic, error)
            if groups.pop(group, None) is not None:
                self._count -= 1
                self._retry_filters.clear()
                self._dirty = True
            return
        if known is None:
            self.bound.check(f"the expression of group {group} for topic {topic} is not stored")
        data = FilterData(
            bloom_filter_data=BloomData(self.bloom.bit_count, self.bloom.positions(f"{group}#{topic}")),
            born_time=self._clock.now_ms(),
            client_version=subscription.sub_version,
            consumer_group=group,
            expression=expression,
            expression_type=subscription.expression_type,
            topic=topic,
        )
        self._put(data, compiled)
        self._dirty = True
        logger.info("filter registered group=%s topic=%s expression=%r", group, topic, expression)
        if compiled.ignored_from is not None:
            logger.warning(
                "text after a filter expression ignored group=%s topic=%s column=%d ignored=%r",
                group,
                topic,
                compiled.ignored_from + 1,
                expression[compiled.ignored_from :],
            )

    def _put(self, data: FilterData, expression: Expression) -> None:
        assert data.bloom_filter_data is not None
        bits = 0
        for position in data.bloom_filter_data.bit_pos:
            bits |= 1 << position
        groups = self._by_topic.setdefault(data.topic, {})
        self._count += data.consumer_group not in groups
        groups[data.consumer_group] = _Entry(data, expression, bits)
        self._retry_filters.clear()

    def _of_group(self, group: str) -> Iterator[_Entry]:
        for groups in self._by_topic.values():
            if group in groups:
                yield groups[group]

    def _bury(self, entry: _Entry) -> None:
        entry.data.mark_dead(self._clock.now_ms())
        self._dirty = True

    # -- the file --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the file. The loaded filters stay dead until their groups send heartbeats."""
        try:
            loaded = self._file.load(_parse)
        except CorruptionError as error:
            logger.warning("filters not loaded error=%s", error)
            return
        if loaded is None:
            return
        bits = self.bloom.bit_count
        if not all(_fits(data.bloom_filter_data, bits) for data in loaded):
            logger.info("filters not loaded: the size of the bitmap has changed to %d bits", bits)
            return
        for data in loaded:
            try:
                compiled = compile_subscription(data.expression_type, data.expression)
            except SubscriptionParseFailed as error:
                logger.warning(
                    "filter not loaded group=%s topic=%s error=%s", data.consumer_group, data.topic, error
                )
                continue
            if data.dead_time == 0:
                data.mark_dead(self._clock.now_ms() - _LOADED_DEAD_MS)
            data.dead = True
            self._put(data, compiled)

    def persist(self) -> None:
        """Delete filters that have been dead too long, and write the file if anything changed."""
        self._expire()
        if not self._dirty:
            return
        try:
            self._file.save(self.encode())
            self._dirty = False
        except OSError as error:
            logger.warning("filters not saved path=%s error=%s", self._file.path, error)

    def encode(self) -> bytes:
        """Returns the content to write to the file."""
        topics = {
            topic: {"groupFilterData": {group: entry.data for group, entry in groups.items()}, "topic": topic}
            for topic, groups in self._by_topic.items()
        }
        return javajson.encode_pretty({"filterDataByTopic": topics})

    def _expire(self) -> None:
        horizon_ms = self._clock.now_ms() - self._config.filter_data_kept_ms
        for topic, groups in list(self._by_topic.items()):
            for group, entry in list(groups.items()):
                if entry.data.dead and entry.data.dead_time <= horizon_ms:
                    del groups[group]
                    self._count -= 1
                    self._retry_filters.clear()
                    self._dirty = True
                    logger.info("filter expired group=%s topic=%s", group, topic)
            if not groups:
                del self._by_topic[topic]


def _fits(bloom: BloomData | None, bits: int) -> bool:
    return bloom is not None and bloom.bit_num == bits and all(0 <= bit < bits for bit in bloom.bit_pos)


def _parse(content: bytes) -> list[FilterData]:
    raw: Any = javajson.loads(content, bytes_max=CONTENT_BYTES_MAX)
    try:
        tables = raw["filterDataByTopic"] or {}
        return [
            msgspec.convert(data, FilterData, strict=False)
            for table in tables.values()
            if table
            for data in (table.get("groupFilterData") or {}).values()
            if data
        ]
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise BodyError(f"not a table of filters: {error}") from None
