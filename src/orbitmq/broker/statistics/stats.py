"""Counts the broker's traffic (Apache: BrokerStatsManager, StatsItem, BrokerStats, StoreStatsService).

Counting must have no measurable cost: the send and pull paths touch one dictionary entry and add to plain integers.
Everything else happens every ten seconds or on request.

The minute, hour and day windows are rings of marks. A mark holds only the changes since the previous mark, so queues
without writes cost nothing, however many there are. As in Apache, an item that appears between two marks counts from
the earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from orbitmq.metrics.families import Histogram
from orbitmq.model.names import is_system_topic
from orbitmq.runtime.clock import day_end_ms
from orbitmq.store.types import PutSends

__all__ = [
    "FINISH_BOUNDS_S",
    "SAMPLE_S",
    "BrokerStats",
    "PutTimes",
    "Rates",
    "StatsWindow",
    "Traffic",
    "TransactionCounts",
    "Windows",
]

SAMPLE_S: Final = 10
_ONE_MINUTE: Final = 60 // SAMPLE_S
_TEN_MINUTES: Final = 600 // SAMPLE_S
_ONE_HOUR: Final = 3600 // SAMPLE_S
_MARKS: Final = (7, 7, 25)
_SAMPLES: Final = (1, _TEN_MINUTES, _ONE_HOUR)
"""``_MARKS``: marks in the minute, hour and day rings. ``_SAMPLES``: samples per mark of each ring."""
_TOTAL_SAMPLES: Final = _TEN_MINUTES + 1
FINISH_BOUNDS_S: Final = (5, 60, 600, 3_600, 43_200, 86_400)


class Traffic:
    """The number of messages, bytes and batches counted so far."""

    __slots__ = ("bytes", "count", "marked", "since_ms", "times", "topic")

    def __init__(self, topic: str = "") -> None:
        self.topic = topic
        self.count = 0
        self.bytes = 0
        self.times = 0
        self.since_ms = -1
        """Time of the last sample before this item appeared."""
        self.marked = [_NO_CHANGE] * len(_MARKS)
        """The counters at the last mark of each ring."""

    def take_change(self, ring: int) -> _Change:
        """Returns the increase since the last call for the same ring."""
        now = _Change(self.count, self.bytes, self.times)
        before, self.marked[ring] = self.marked[ring], now
        return _Change(now.messages - before.messages, now.bytes - before.bytes, now.times - before.times)


class _Change(NamedTuple):
    messages: int
    bytes: int
    times: int


_NO_CHANGE: Final = _Change(0, 0, 0)


class StatsWindow(NamedTuple):
    """The traffic within a time window."""

    sum: int
    tps: float
    average: float
    """Average per batch (Apache: avgpt)."""


class Windows(NamedTuple):
    """The minute, hour and day window of one item."""

    minute: StatsWindow
    hour: StatsWindow
    day: StatsWindow


class Rates(NamedTuple):
    """Rates per second, averaged over the last 10, 60 and 600 seconds."""

    ten_s: float
    one_minute: float
    ten_minutes: float


class Totals(NamedTuple):
    """The values of the counters at one point in time."""

    time_ms: int
    puts: int
    gets: int
    hits: int
    """Reads that found messages."""
    misses: int


class _Mark(NamedTuple):
    time_ms: int
    puts: Mapping[Traffic, _Change]
    gets: Mapping[Traffic, _Change]
    others: Mapping[Traffic, _Change]


K = TypeVar("K")
_Item = tuple[str, str]
_EMPTY: Final = StatsWindow(0, 0.0, 0.0)


class PutTimes:
    """Latencies of appends. Nearly all take less than a millisecond, so only slower ones are reported to it. The
    number of the others is derived from the number of messages."""

    LABELS: Final = (
        "<=0ms",
        "0~10ms",
        "10~50ms",
        "50~100ms",
        "100~200ms",
        "200~500ms",
        "500ms~1s",
        "1~2s",
        "2~3s",
        "3~4s",
        "4~5s",
        "5~10s",
        "10s~",
    )
    """The labels as Apache prints them."""
    _LIMITS_MS: Final = (10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)

    def __init__(self) -> None:
        self.max_ms = 0
        self._slow: dict[int, int] = {}
        self._slow_last: dict[int, int] = {}
        self._count_before = 0
        self._count_last = 0

    def slow(self, elapsed_ms: float, count: int) -> None:
        """Record that the append of ``count`` messages took a millisecond or more."""
        whole_ms = int(elapsed_ms)
        self.max_ms = max(self.max_ms, whole_ms)
        self._slow[whole_ms] = self._slow.get(whole_ms, 0) + count

    def start_minute(self, put_count: int) -> None:
        """End the current minute. From now on, ``distribution`` and ``percentile_ms`` describe that minute."""
        self._slow_last, self._slow = self._slow, {}
        self._count_last = put_count - self._count_before
        self._count_before = put_count

    def _fast_count(self) -> int:
        return max(0, self._count_last - sum(self._slow_last.values()))

    def distribution(self) -> list[int]:
        """Returns the number of messages of the last whole minute for each label in ``LABELS``."""
        counts = [0] * len(self.LABELS)
        counts[0] = self._fast_count()
        for elapsed_ms, count in self._slow_last.items():
            index = sum(1 for limit in self._LIMITS_MS if elapsed_ms >= limit)
            counts[1 + index] += count
        return counts

    def percentile_ms(self, part: float) -> float:
        """Returns the milliseconds within which the fraction ``part`` of the last whole minute's messages was stored,
        or 0 if there were no messages.

        The result is interpolated as in Apache, within a millisecond below 20 ms and more coarsely above. Without
        slow appends, the 99th percentile is therefore 0.99 ms.
        """
        counts = dict.fromkeys(_LATENCY_BOUNDS_MS, 0)
        counts[_LATENCY_BOUNDS_MS[0]] = self._fast_count()
        for elapsed_ms, count in self._slow_last.items():
            bound = next((b for b in _LATENCY_BOUNDS_MS if b >= elapsed_ms), _LATENCY_BOUNDS_MS[-1])
            counts[bound] += count
        rank = int(sum(counts.values()) * part)
        if rank == 0:
            return 0.0
        low = passed = 0
        for bound, count in counts.items():
            if rank <= passed + count:
                return low + (bound - low) * (rank - passed) / count if count else float(low)
            passed += count
            low = bound
        return float(low)


def _latency_bounds() -> list[int]:
    bounds: list[int] = []
    last = 0
    for step, count in ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9)):
        for _ in range(count):
            last += step
            bounds.append(last)
    return bounds


_LATENCY_BOUNDS_MS: Final = _latency_bounds()


class TransactionCounts:
    """The outcomes of a topic's transactions."""

    __slots__ = ("commits", "finish_s", "rollbacks")

    def __init__(self) -> None:
        self.commits = 0
        self.rollbacks = 0
        self.finish_s = Histogram(FINISH_BOUNDS_S)
        """Whole seconds from creation to commit."""


class BrokerStats:
    """The counters since the broker started, and their recent history."""

    def __init__(
        self,
        cluster: str = "DefaultCluster",
        now_ms: int = 0,
        *,
        is_system: Callable[[str], bool] = is_system_topic,
    ) -> None:
        """``is_system`` selects the topics that the daily totals exclude."""
        self._cluster = cluster
        self.started_ms = now_ms
        self.puts: dict[tuple[str, int], Traffic] = {}
        """By topic and queue id."""
        self.gets: dict[tuple[str, int, str], Traffic] = {}
        """By topic, queue id and group."""
        self.others: dict[_Item, Traffic] = {}
        """By Apache's statistics name and key, for all rare events."""
        self._puts_of: dict[str, list[Traffic]] = {}
        self._gets_of: dict[tuple[str, str], list[Traffic]] = {}
        self.misses = 0
        """Reads that found no messages; the pull path updates it directly."""
        self.get_time_max_s = 0.0
        """Longest read of a queue; the pull path updates it directly."""
        self.put_failures = 0
        self.put_times = PutTimes()
        self._is_system = is_system
        self._rings = [deque([_Mark(now_ms, {}, {}, {})], maxlen=count) for count in _MARKS]
        self._totals: deque[Totals] = deque([Totals(now_ms, 0, 0, 0, 0)], maxlen=_TOTAL_SAMPLES)
        self._samples = 0
        self._day_end_ms = day_end_ms(now_ms)
        self.kinds: dict[tuple[str, str], Traffic] = {}
        """By topic and message kind, for messages whose kind differs from their topic's, such as delivered delays and
        committed transactions. They are counted in ``puts`` as well."""
        self.transactions: dict[str, TransactionCounts] = {}
        """By topic."""
        self._gone_puts = Traffic()
        self._gone_gets = Traffic()
        """Counts of topics and groups deleted since the start."""
        self.puts_before_today = 0
        self.puts_before_yesterday = 0
        self.gets_before_today = 0
        self.gets_before_yesterday = 0

    # -- the hot path ----------------------------------------------------------------------------------

    def put(self, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        """Count messages stored in a queue, from one append."""
        try:
            traffic = self.puts[topic, queue_id]
        except KeyError:
            traffic = self.puts[topic, queue_id] = Traffic(topic)
            self._puts_of.setdefault(topic, []).append(traffic)
        traffic.count += count
        traffic.bytes += size_bytes
        traffic.times += 1

    def put_sends(self, stored: PutSends) -> None:
        """Count the sends that an append has stored."""
        puts = self.puts
        for place, (count, size_bytes, times) in stored:
            traffic = puts.get(place)
            if traffic is None:
                self.put(*place, 0, 0)
                traffic = puts[place]
                times -= 1
            traffic.count += count
            traffic.bytes += size_bytes
            traffic.times += times

    def get(self, group: str, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        """Count messages of a queue delivered to a group, from one read."""
        try:
            traffic = self.gets[topic, queue_id, group]
        except KeyError:
            traffic = self.gets[topic, queue_id, group] = Traffic(topic)
            self._gets_of.setdefault((topic, group), []).append(traffic)
        traffic.count += count
        traffic.bytes += size_bytes
        traffic.times += 1

    def add(self, name: str, key: str, count: int = 1) -> None:
        """Count an event under another of Apache's statistics names, such as SNDBCK_PUT_NUMS."""
        traffic = self.others.get((name, key))
        if traffic is None:
            traffic = self.others[name, key] = Traffic()
        traffic.count += count
        traffic.times += 1

    def note_kind(self, topic: str, kind: str, size_bytes: int) -> None:
        """Count a stored message of a kind other than its topic's."""
        traffic = self.kinds.get((topic, kind))
        if traffic is None:
            traffic = self.kinds[topic, kind] = Traffic(topic)
        traffic.count += 1
        traffic.bytes += size_bytes

    def transaction_ended(self, topic: str, *, committed: bool, age_ms: int) -> None:
        """Count a commit or rollback by a producer. ``topic`` is the real topic of the message."""
        counts = self.transactions.get(topic)
        if counts is None:
            counts = self.transactions[topic] = TransactionCounts()
        if committed:
            counts.commits += 1
            counts.finish_s.add(max(0, age_ms) // 1000)
        else:
            counts.rollbacks += 1

    # -- periodic --------------------------------------------------------------------------------------

    def sample(self, now_ms: int) -> None:
        """Take a sample of all counters, from which windows and rates are computed. Called every ``SAMPLE_S``
        seconds. An unchanged counter costs 0.1 us."""
        self._samples += 1
        before_ms = self._rings[0][-1].time_ms
        for ring, period in enumerate(_SAMPLES):
            if self._samples % period == 0:
                marked = [_changes(table.values(), ring) for table in (self.puts, self.gets, self.others)]
                self._rings[ring].append(_Mark(now_ms, *marked))
                if ring == 0:
                    for changes in marked:
                        for traffic in changes:
                            if traffic.since_ms < 0:
                                traffic.since_ms = before_ms
        self._add_totals(now_ms)
        if self._samples % _ONE_MINUTE == 0:
            self.put_times.start_minute(self._totals[-1].puts)
        if now_ms >= self._day_end_ms:
            self._day_end_ms = day_end_ms(now_ms)
            self.start_day()

    def _add_totals(self, now_ms: int) -> None:
        mark, before = self._rings[0][-1], self._totals[-1]
        gone_puts, gone_gets = self._gone_puts.take_change(0), self._gone_gets.take_change(0)
        self._totals.append(
            Totals(
                now_ms,
                before.puts + gone_puts.messages + sum(change.messages for change in mark.puts.values()),
                before.gets + gone_gets.messages + sum(change.messages for change in mark.gets.values()),
                before.hits + gone_gets.times + sum(change.times for change in mark.gets.values()),
                self.misses,
            )
        )

    def start_day(self) -> None:
        """Start a new day at midnight. The current totals become the previous day's totals."""
        self.puts_before_yesterday = self.puts_before_today
        self.gets_before_yesterday = self.gets_before_today
        self.puts_before_today = self.user_put_count
        self.gets_before_today = self.user_get_count

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic. The broker's totals keep its counts."""
        self._puts_of.pop(topic, None)
        self.transactions.pop(topic, None)
        for key in [key for key in self.kinds if key[0] == topic]:
            del self.kinds[key]
        _remove(self.puts, lambda key: key[0] == topic, self._gone_puts)
        self._forget_gets(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        self._forget_gets(lambda key: key[2] == group)

    def _forget_gets(self, gone: Callable[[tuple[str, int, str]], bool]) -> None:
        for topic, queue_id, group in self.gets:
            if gone((topic, queue_id, group)):
                self._gets_of.pop((topic, group), None)
        _remove(self.gets, gone, self._gone_gets)

    # -- queries ---------------------------------------------------------------------------------------

    @property
    def put_count(self) -> int:
        return sum(traffic.count for traffic in self.puts.values()) + self._gone_puts.count

    @property
    def put_bytes(self) -> int:
        return sum(traffic.bytes for traffic in self.puts.values()) + self._gone_puts.bytes

    @property
    def get_count(self) -> int:
        return sum(traffic.count for traffic in self.gets.values()) + self._gone_gets.count

    @property
    def hits(self) -> int:
        """The number of reads that found messages."""
        return sum(traffic.times for traffic in self.gets.values()) + self._gone_gets.times

    @property
    def user_put_count(self) -> int:
        """The number of messages stored, without those of system topics."""
        return self._user_count(self.puts.values()) + self._gone_puts.count

    @property
    def user_get_count(self) -> int:
        return self._user_count(self.gets.values()) + self._gone_gets.count

    def _user_count(self, traffics: Iterable[Traffic]) -> int:
        return sum(traffic.count for traffic in traffics if not self._is_system(traffic.topic))

    def _now(self, now_ms: int) -> Totals:
        return Totals(now_ms, self.put_count, self.get_count, self.hits, self.misses)

    def put_rates(self, now_ms: int) -> Rates:
        """Returns the rates of stored messages."""
        return self._rates(now_ms, lambda totals: totals.puts)

    def get_rates(self, now_ms: int) -> Rates:
        """Returns the rates of delivered messages."""
        return self._rates(now_ms, lambda totals: totals.gets)

    def hit_rates(self, now_ms: int) -> Rates:
        return self._rates(now_ms, lambda totals: totals.hits)

    def miss_rates(self, now_ms: int) -> Rates:
        return self._rates(now_ms, lambda totals: totals.misses)

    def _rates(self, now_ms: int, of: Callable[[Totals], int]) -> Rates:
        now = self._now(now_ms)

        def rate(seconds: int) -> float:
            # Use the newest sample that is old enough, so that a rate is never computed over a very short time.
            horizon_ms = now_ms - seconds * 1000
            then = next((t for t in reversed(self._totals) if t.time_ms <= horizon_ms), self._totals[0])
            elapsed_ms = now_ms - then.time_ms
            return (of(now) - of(then)) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0

        return Rates(rate(10), rate(60), rate(600))

    def topic_put_tps(self, topic: str) -> float:
        """Returns the messages stored in a topic per second, over the last minute."""
        windows = self.windows("TOPIC_PUT_NUMS", topic)
        return 0.0 if windows is None else windows.minute.tps

    def group_get_tps(self, group: str, topic: str) -> float:
        """Returns the messages of a topic delivered to a group per second, over the last minute."""
        windows = self.windows("GROUP_GET_NUMS", f"{topic}@{group}")
        return 0.0 if windows is None else windows.minute.tps

    def windows(self, name: str, key: str) -> Windows | None:
        """Returns the windows of an item by Apache's name and key, or None if nothing was ever counted under them."""
        column = 1 if name.endswith("_SIZE") else 0
        if name.startswith("BROKER_") and (name, key) not in self.others:
            return self._broker_windows(name, key)
        traffics = self._find(name, key)
        if not traffics:
            return None
        which = 1 if name.startswith(("GROUP_GET_", "QUEUE_GET_")) else 2
        if name.startswith(("TOPIC_PUT_", "QUEUE_PUT_")):
            which = 0
        since_ms = min(traffic.since_ms for traffic in traffics)
        rings = (_window(ring, which, traffics, column, since_ms) for ring in self._rings)
        return Windows(*rings)

    def _find(self, name: str, key: str) -> list[Traffic]:
        one: Traffic | None
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
                return self._puts_of.get(key, [])
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
                topic, _, group = key.partition("@")
                return self._gets_of.get((topic, group), [])
            case "QUEUE_PUT_NUMS" | "QUEUE_PUT_SIZE":
                topic, _, queue_id = key.partition("@")
                one = self.puts.get((topic, _number(queue_id)))
            case "QUEUE_GET_NUMS" | "QUEUE_GET_SIZE":
                topic, _, rest = key.partition("@")
                queue_id, _, group = rest.partition("@")
                one = self.gets.get((topic, _number(queue_id), group))
            case _:
                one = self.others.get((name, key))
        return [] if one is None else [one]

    def _broker_windows(self, name: str, key: str) -> Windows | None:
        """Returns the sums over all topics; the key is the cluster name. They have no average because Apache counts
        no batches here."""
        which = {"BROKER_PUT_NUMS": 0, "BROKER_GET_NUMS": 1}.get(name.removesuffix("_WITHOUT_SYSTEM_TOPIC"))
        counted = (self.put_count, self.get_count)
        if which is None or key != self._cluster or not counted[which]:
            return None
        users_only = name.endswith("_WITHOUT_SYSTEM_TOPIC")
        windows: list[StatsWindow] = []
        for ring in self._rings:
            tables: list[Mapping[Traffic, _Change]] = [
                mark.puts if which == 0 else mark.gets for mark in list(ring)[1:]
            ]
            total = sum(
                change.messages
                for table in tables
                for traffic, change in table.items()
                if not users_only or not self._is_system(traffic.topic)
            )
            span_ms = ring[-1].time_ms - ring[0].time_ms
            windows.append(StatsWindow(total, total * 1000 / span_ms if span_ms > 0 else 0.0, 0.0))
        return Windows(*windows)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1


def _changes(traffics: Iterable[Traffic], ring: int) -> dict[Traffic, _Change]:
    return {
        traffic: traffic.take_change(ring)
        for traffic in traffics
        if traffic.times != traffic.marked[ring].times
    }


def _remove(table: dict[K, Traffic], gone: Callable[[K], bool], into: Traffic) -> None:
    for key in [key for key in table if gone(key)]:
        traffic = table.pop(key)
        into.count += traffic.count
        into.bytes += traffic.bytes
        into.times += traffic.times
        # Changes that are not in a sample yet are left for the next sample.
        seen, marked = traffic.marked[0], into.marked[0]
        into.marked[0] = _Change(
            marked.messages + seen.messages, marked.bytes + seen.bytes, marked.times + seen.times
        )


def _window(
    ring: deque[_Mark], which: int, traffics: list[Traffic], column: int, since_ms: int
) -> StatsWindow:
    """Returns the window that starts at the oldest mark, or at the last mark before the item appeared."""
    if len(ring) < 2 or since_ms < 0:
        return _EMPTY
    begin = next((mark for mark in reversed(ring) if mark.time_ms <= since_ms), ring[0])
    total = portions = 0
    for mark in ring:
        if mark.time_ms <= begin.time_ms:
            continue
        changes = (mark.puts, mark.gets, mark.others)[which]
        for traffic in traffics:
            change = changes.get(traffic)
            if change is not None:
                total += change[column]
                portions += change.times
    span_ms = ring[-1].time_ms - begin.time_ms
    return StatsWindow(
        total,
        total * 1000 / span_ms if span_ms > 0 else 0.0,
        total / portions if portions > 0 else 0.0,
    )
