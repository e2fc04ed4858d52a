"""Polls the cluster in rounds and caches the results, so that the cost of a page does not grow with the cluster.

Each round queries the clusters, the metrics of every broker, and the topics and groups of every master. The progress
of consumers is queried less often if its requests are slow.
Topic offsets need one request per topic, so each round queries only ``TOPICS_PER_ROUND`` of them, in rotation. An
unavailable value is None, never 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from orbitmq.admin import Admin
from orbitmq.admin.brokers import first_rate
from orbitmq.admin.census import (
    BrokerPlace,
    Lag,
    all_groups,
    all_lags,
    all_topics,
    broker_places,
    gather_bounded,
    runtime_or_reason,
)
from orbitmq.admin.groups import group_members
from orbitmq.admin.ha import HaStatus, ha_status
from orbitmq.admin.topics import topic_stats
from orbitmq.console.history import History
from orbitmq.errors import OrbitError
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import (
    PREDEFINED_GROUPS,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    reply_topic,
    without_prefix,
)
from orbitmq.model.topic import TopicConfig, kind_of_topic
from orbitmq.wire.bodies import TopicStats

__all__ = ["BrokerSample", "GroupSample", "Sampler", "Snapshot", "TopicSample"]

logger = logging.getLogger(__name__)

TOPICS_PER_ROUND: Final = 200
_HISTORY_TOPICS: Final = 200
_HISTORY_GROUPS: Final = 200
_STALLED_GROUPS: Final = 5
_STALLED_LINES: Final = 3
_LAG_SHARE: Final = 20
"""A request that took n seconds is repeated after 20 n seconds at the earliest, so that the console does not overload
a broker.
"""


@dataclass(slots=True)
class BrokerSample:
    place: BrokerPlace
    figures: dict[str, str] = field(default_factory=dict)
    error: str = ""
    replication: HaStatus | None = None

    def number(self, *names: str) -> float | None:
        """Returns the first number in the first of these metrics that the broker has, or None if it is unknown."""
        text = next((self.figures[name] for name in names if name in self.figures), None)
        if text is None:
            return None
        try:
            return float(text.split()[0])
        except (ValueError, IndexError):
            return None

    @property
    def version(self) -> str | None:
        return self.figures.get("brokerVersionDesc")

    @property
    def in_rate(self) -> float | None:
        return first_rate(self.figures["putTps"]) if "putTps" in self.figures else None

    @property
    def out_rate(self) -> float | None:
        return self.number("getTransferredTps", "getTransferedTps")  # sic

    @property
    def disk_ratio(self) -> float | None:
        found = self.number("commitLogDiskRatio")
        return found if found is not None and found >= 0 else None

    @property
    def oldest_ms(self) -> int | None:
        found = self.number("earliestMessageTimeStamp")
        return int(found) if found is not None and found > 0 else None

    @property
    def today(self) -> tuple[int, int] | None:
        marks = [self.number(f"msg{kind}Total{when}") for kind in ("Put", "Get") for when in _TODAY]
        if any(mark is None for mark in marks):
            return None
        put_now, put_before, got_now, got_before = (int(mark or 0) for mark in marks)
        return put_now - put_before, got_now - got_before

    @property
    def behind_bytes(self) -> int | None:
        """The lag of the slowest slave in bytes; None if it is unknown or there is no slave."""
        if self.replication is None or not self.replication.slaves:
            return None
        return max(slave.diff for slave in self.replication.slaves)


_TODAY: Final = ("TodayNow", "TodayMorning")


@dataclass(slots=True)
class TopicSample:
    name: str
    configs: dict[str, TopicConfig] = field(default_factory=dict)
    """Settings by broker name."""
    groups: set[str] = field(default_factory=set)
    lag: int | None = None
    message_count: int | None = None
    oldest_offset: int | None = None
    end_offset: int | None = None
    last_ms: int | None = None
    rate: float | None = None
    sampled_ms: int = 0
    of_server: bool = False
    """Whether the topic is named after a broker or a cluster. Every broker creates such topics itself."""

    @property
    def read_queues(self) -> int:
        return sum(config.read_queue_nums for config in self.configs.values())

    @property
    def write_queues(self) -> int:
        return sum(config.write_queue_nums for config in self.configs.values())

    @property
    def perm(self) -> int:
        return next((config.perm for config in self.configs.values()), 0)

    @property
    def kind(self) -> str:
        if self.of_server:
            return "system"
        return kind_of_topic(self.name, next(iter(self.configs.values()), None))


@dataclass(slots=True)
class GroupSample:
    name: str
    configs: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    lags: list[Lag] = field(default_factory=list)
    dead: int | None = None

    @property
    def lag(self) -> int | None:
        return sum(lag.diff for lag in self.lags) if self.lags else None

    @property
    def topics(self) -> list[str]:
        return sorted({lag.topic for lag in self.lags if not is_retry_topic(lag.topic)})

    def lag_ms(self, now_ms: int) -> int | None:
        """Returns the age in milliseconds of the last consumed message in the queue where it is oldest.

        Only queues with a lag count. Returns 0 if there are none, and None if the age is unknown.
        """
        if not self.lags:
            return None
        behind = [lag.last_timestamp for lag in self.lags if lag.diff]
        if not behind:
            return 0
        known = [stamp for stamp in behind if stamp > 0]
        return max(0, now_ms - min(known)) if known else None


@dataclass(slots=True)
class Snapshot:
    """The results of a round."""

    at_ms: int = 0
    brokers: list[BrokerSample] = field(default_factory=list)
    topics: dict[str, TopicSample] = field(default_factory=dict)
    groups: dict[str, GroupSample] = field(default_factory=dict)
    error: str = ""
    """Why there are no results; empty if there are some."""
    problems: list[str] = field(default_factory=list)
    """Which values could not be read, and why."""

    stalled: dict[str, list[str]] = field(default_factory=dict)
    """One line for each member that holds messages without finishing any, in the groups with the largest lag."""

    @property
    def known(self) -> bool:
        """Whether the cluster answered in this round."""
        return self.at_ms > 0 and not self.error

    @property
    def own_topics(self) -> list[TopicSample]:
        """Topics created by users."""
        hidden = ("system", "retry", "dead letters")
        return [topic for topic in self.topics.values() if topic.kind not in hidden]

    @property
    def own_groups(self) -> list[GroupSample]:
        return [group for group in self.groups.values() if group.name not in PREDEFINED_GROUPS]


class Sampler:
    """Runs the rounds and keeps the last snapshot."""

    def __init__(self, admin: Admin, history: History) -> None:
        self._admin = admin
        self._history = history
        self._turn = 0
        self._lags: dict[str, list[Lag]] = {}
        self._lags_due_ms: dict[str, int] = {}
        self._first = asyncio.Event()
        self.snapshot = Snapshot()

    async def ready(self, wait_s: float = 5.0) -> Snapshot:
        """Returns the last snapshot, waiting for the first one if necessary."""
        if not self._first.is_set():
            try:
                await asyncio.wait_for(self._first.wait(), wait_s)
            except TimeoutError:
                pass
        return self.snapshot

    async def round(self) -> None:
        """Run one round of queries."""
        admin = self._admin
        try:
            places = await broker_places(admin)
        except OrbitError as error:
            self.snapshot = Snapshot(at_ms=admin.clock.now_ms(), error=str(error))
            self._first.set()
            return
        fresh = Snapshot(at_ms=admin.clock.now_ms())
        samples = await gather_bounded(self._broker, places)
        fresh.brokers = [sample for sample in samples if isinstance(sample, BrokerSample)]
        masters = _one_of_each(fresh.brokers)
        await gather_bounded(lambda sample: self._tables(sample, fresh), masters)
        for sample in fresh.brokers:
            place = sample.place
            for name in (place.broker_name, place.cluster, reply_topic(place.cluster)):
                if name in fresh.topics:
                    fresh.topics[name].of_server = True
        self._add_lags(fresh)
        await self._add_offsets(fresh)
        await self._add_stalled(fresh)
        self.snapshot = fresh
        self._first.set()
        await asyncio.to_thread(self._history.add, fresh.at_ms, _figures(fresh))

    async def _broker(self, place: BrokerPlace) -> BrokerSample:
        sample = BrokerSample(place)
        found = await runtime_or_reason(self._admin, place.address)
        if isinstance(found, str):
            sample.error = found
            return sample
        sample.figures = found
        if place.is_master:
            try:
                statuses = await ha_status(self._admin, broker=place.address, cluster=None)
                sample.replication = statuses.brokers[0] if statuses.brokers else None
            except OrbitError:
                pass  # 4.x does not report it, so the page shows it as unknown
        return sample

    async def _tables(self, sample: BrokerSample, fresh: Snapshot) -> None:
        admin, place = self._admin, sample.place
        if sample.error:
            fresh.problems.append(f"{place.broker_name}: {sample.error}")
            return
        try:
            for name, topic in (await all_topics(admin, place.address)).items():
                fresh.topics.setdefault(name, TopicSample(name)).configs[place.broker_name] = topic
            for name, group in (await all_groups(admin, place.address)).items():
                if not is_system_group(name):
                    fresh.groups.setdefault(name, GroupSample(name)).configs[place.broker_name] = group
            begin_ms = admin.clock.now_ms()
            if begin_ms >= self._lags_due_ms.get(place.address, 0):
                self._lags[place.address] = await all_lags(admin, place.address)
                took_ms = admin.clock.now_ms() - begin_ms
                self._lags_due_ms[place.address] = begin_ms + _LAG_SHARE * took_ms
        except OrbitError as error:
            fresh.problems.append(f"{place.broker_name}: {error}")

    def _add_lags(self, fresh: Snapshot) -> None:
        alive = {sample.place.address for sample in fresh.brokers}
        self._lags = {address: lags for address, lags in self._lags.items() if address in alive}
        by_topic: dict[str, int] = defaultdict(int)
        for lags in self._lags.values():
            for lag in lags:
                if is_system_group(lag.group):
                    continue
                fresh.groups.setdefault(lag.group, GroupSample(lag.group)).lags.append(lag)
                topic = fresh.topics.get(lag.topic)
                if topic is not None:
                    topic.groups.add(lag.group)
                    by_topic[lag.topic] += lag.diff
        for name, lag_sum in by_topic.items():
            fresh.topics[name].lag = lag_sum

    async def _add_stalled(self, fresh: Snapshot) -> None:
        """Query the members of the groups with the largest lag."""
        behind = sorted(
            (group for group in fresh.groups.values() if group.lag), key=lambda one: -(one.lag or 0)
        )
        chosen = behind[:_STALLED_GROUPS]
        answers = await gather_bounded(lambda group: group_members(self._admin, group.name), chosen)
        for group, answer in zip(chosen, answers, strict=True):
            if not isinstance(answer, OrbitError) and answer.findings:
                fresh.stalled[group.name] = answer.findings[:_STALLED_LINES]

    async def _add_offsets(self, fresh: Snapshot) -> None:
        """Update the offsets of as many topics as a round may query. The other topics keep their previous values."""
        before = self.snapshot.topics
        names = sorted(fresh.topics)
        for name in names:
            old = before.get(name)
            if old is not None:
                now = fresh.topics[name]
                now.message_count, now.rate, now.last_ms = old.message_count, old.rate, old.last_ms
                now.oldest_offset, now.end_offset, now.sampled_ms = (
                    old.oldest_offset,
                    old.end_offset,
                    old.sampled_ms,
                )
        if not names:
            return
        # Dead letters first, because the home page shows their count.
        dead = [name for name in names if is_dlq_topic(name)][: TOPICS_PER_ROUND // 2]
        others = [name for name in names if name not in set(dead)]
        count = min(len(others), TOPICS_PER_ROUND - len(dead))
        start = self._turn % max(1, len(others))
        chosen = (others + others)[start : start + count]
        self._turn = start + count
        await self.sample_topics(dead + chosen, fresh)
        for name, topic in fresh.topics.items():
            if is_dlq_topic(name):
                group = fresh.groups.get(without_prefix(name))
                if group is not None:
                    group.dead = topic.message_count
        for group in fresh.groups.values():
            if group.dead is None and f"%DLQ%{group.name}" not in fresh.topics:
                group.dead = 0

    async def sample_topics(self, names: list[str], snapshot: Snapshot | None = None) -> None:
        """Query the offsets of these topics immediately, and put them into ``snapshot`` or the last one."""
        target = self.snapshot if snapshot is None else snapshot
        addresses = {
            sample.place.broker_name: sample.place.address
            for sample in _one_of_each(target.brokers)
            if not sample.error
        }

        async def one(name: str) -> None:
            topic = target.topics.get(name)
            if topic is None:
                return
            stats = [
                await topic_stats(self._admin, addresses[broker], name)
                for broker in topic.configs
                if broker in addresses
            ]
            _note_offsets(topic, stats, self._admin.clock.now_ms())

        await gather_bounded(one, names)


def _note_offsets(topic: TopicSample, stats: list[TopicStats], now_ms: int) -> None:
    offsets = [offset for one in stats for offset in one.offset_table.values()]
    end = sum(offset.max_offset for offset in offsets)
    if topic.end_offset is not None and now_ms > topic.sampled_ms:
        topic.rate = max(0.0, (end - topic.end_offset) * 1000 / (now_ms - topic.sampled_ms))
    elif any(one.topic_put_tps is not None for one in stats):
        topic.rate = sum(one.topic_put_tps or 0.0 for one in stats)
    topic.end_offset = end
    topic.oldest_offset = sum(offset.min_offset for offset in offsets)
    topic.message_count = end - topic.oldest_offset
    topic.last_ms = max((offset.last_update_timestamp for offset in offsets), default=0) or None
    topic.sampled_ms = now_ms


def _one_of_each(samples: list[BrokerSample]) -> list[BrokerSample]:
    """Returns the master of each broker name, or a slave if the master does not answer."""
    chosen: dict[str, BrokerSample] = {}
    for sample in samples:
        kept = chosen.get(sample.place.broker_name)
        if kept is None or (kept.error and not sample.error):
            chosen[sample.place.broker_name] = sample
    return list(chosen.values())


def _figures(snapshot: Snapshot) -> dict[str, float]:
    """Returns the values of this round for the history, by series."""
    found: dict[str, float] = {}
    for sample in snapshot.brokers:
        key = f"broker/{sample.place.broker_name}/{sample.place.broker_id}"
        for name, value in (
            ("in", sample.in_rate),
            ("out", sample.out_rate),
            ("disk", sample.disk_ratio),
            ("behind", sample.behind_bytes),
        ):
            if value is not None:
                found[f"{key}/{name}"] = float(value)
    masters = [sample for sample in snapshot.brokers if sample.place.is_master]
    for name, rates in (
        ("in", [sample.in_rate for sample in masters]),
        ("out", [sample.out_rate for sample in masters]),
    ):
        known = [rate for rate in rates if rate is not None]
        if known:
            found[f"all/{name}"] = sum(known)
    lags = {group.name: group.lag for group in snapshot.groups.values() if group.lag is not None}
    if snapshot.groups and not snapshot.problems:
        found["all/lag"] = float(sum(lags.values()))
    dead = [group.dead for group in snapshot.groups.values()]
    if dead and None not in dead:
        found["all/dead"] = float(sum(count or 0 for count in dead))
    largest = sorted(lags.items(), key=lambda item: -item[1])[:_HISTORY_GROUPS]
    found.update((f"group/{name}/lag", float(lag)) for name, lag in largest)
    busy = sorted(
        ((topic.name, topic.rate) for topic in snapshot.topics.values() if topic.rate is not None),
        key=lambda item: -item[1],
    )[:_HISTORY_TOPICS]
    found.update((f"topic/{name}/in", rate) for name, rate in busy)
    return found
