"""Counting what passes through the broker (Apache: BrokerStatsManager, StatsItem, BrokerStats, StoreStatsService).

Counting must cost nothing that can be measured: the send and pull paths touch one dictionary entry and add to plain
integers. Sums per topic and group, and the windows of a minute, an hour and a day, are worked out from snapshots that
``sample`` takes every ten seconds, and only for what is asked.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

__all__ = ["BrokerStats", "StatsWindow", "Traffic", "Windows"]

SAMPLE_S: Final = 10
_MINUTE_SAMPLES: Final = 7
_HOUR_SAMPLES: Final = 7
_DAY_SAMPLES: Final = 25
_TEN_MINUTES: Final = 600 // SAMPLE_S
_ONE_HOUR: Final = 3600 // SAMPLE_S
_TOTAL_SAMPLES: Final = 600 // SAMPLE_S + 1


class Traffic:
    """Messages, bytes, and in how many portions they came."""

    __slots__ = ("bytes", "count", "times")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.times = 0


class StatsWindow(NamedTuple):
    """What happened in a window of time."""

    sum: int
    tps: float
    average: float
    """Per portion (Apache: avgpt)."""


class Windows(NamedTuple):
    """The three windows of one item."""

    minute: StatsWindow
    hour: StatsWindow
    day: StatsWindow


class Rates(NamedTuple):
    """Messages per second over the last 10, 60 and 600 seconds."""

    ten_s: float
    one_minute: float
    ten_minutes: float


_Item = tuple[str, str]
_Snapshot = tuple[int, dict[_Item, tuple[int, int]]]
_EMPTY: Final = StatsWindow(0, 0.0, 0.0)


class BrokerStats:
    """Counters since the broker started, and how they moved."""

    def __init__(self, cluster: str = "DefaultCluster", now_ms: int = 0) -> None:
        self._cluster = cluster
        self.puts: dict[tuple[str, int], Traffic] = {}
        """By topic and queue id."""
        self.gets: dict[tuple[str, int, str], Traffic] = {}
        """By topic, queue id and group."""
        self.others: dict[_Item, Traffic] = {}
        """By Apache's statistics name and key, for everything that is rare."""
        self._minute: deque[_Snapshot] = deque(maxlen=_MINUTE_SAMPLES)
        self._hour: deque[_Snapshot] = deque(maxlen=_HOUR_SAMPLES)
        self._day: deque[_Snapshot] = deque(maxlen=_DAY_SAMPLES)
        self._totals: deque[tuple[int, int, int]] = deque([(now_ms, 0, 0)], maxlen=_TOTAL_SAMPLES)
        """Time, messages put, messages delivered."""
        self._samples = 0
        self.puts_before_today = 0
        self.puts_before_yesterday = 0
        self.gets_before_today = 0
        self.gets_before_yesterday = 0

    # -- hot -------------------------------------------------------------------------------------------

    def put(self, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        """Messages were stored."""
        try:
            traffic = self.puts[topic, queue_id]
        except KeyError:
            traffic = self.puts[topic, queue_id] = Traffic()
        traffic.count += count
        traffic.bytes += size_bytes
        traffic.times += 1

    def get(self, group: str, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        """Messages were delivered."""
        try:
            traffic = self.gets[topic, queue_id, group]
        except KeyError:
            traffic = self.gets[topic, queue_id, group] = Traffic()
        traffic.count += count
        traffic.bytes += size_bytes
        traffic.times += 1

    def add(self, name: str, key: str, count: int = 1) -> None:
        """Count something under one of Apache's other statistics names, such as SNDBCK_PUT_NUMS."""
        traffic = self.others.get((name, key))
        if traffic is None:
            traffic = self.others[name, key] = Traffic()
        traffic.count += count
        traffic.times += 1

    # -- periodic --------------------------------------------------------------------------------------

    def sample(self, now_ms: int) -> None:
        """Take a snapshot; every ``SAMPLE_S`` seconds."""
        snapshot = (now_ms, self._items())
        self._minute.append(snapshot)
        if self._samples % _TEN_MINUTES == 0:
            self._hour.append(snapshot)
        if self._samples % _ONE_HOUR == 0:
            self._day.append(snapshot)
        self._totals.append((now_ms, self.put_count, self.get_count))
        self._samples += 1

    def start_day(self) -> None:
        """Midnight: what was counted until now belongs to the past."""
        self.puts_before_yesterday = self.puts_before_today
        self.gets_before_yesterday = self.gets_before_today
        self.puts_before_today = self.put_count
        self.gets_before_today = self.get_count

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self.puts = {key: value for key, value in self.puts.items() if key[0] != topic}
        self.gets = {key: value for key, value in self.gets.items() if key[0] != topic}

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        self.gets = {key: value for key, value in self.gets.items() if key[2] != group}

    # -- asked -----------------------------------------------------------------------------------------

    @property
    def put_count(self) -> int:
        return sum(traffic.count for traffic in self.puts.values())

    @property
    def put_bytes(self) -> int:
        return sum(traffic.bytes for traffic in self.puts.values())

    @property
    def get_count(self) -> int:
        return sum(traffic.count for traffic in self.gets.values())

    def put_rates(self, now_ms: int) -> Rates:
        return self._rates(now_ms, self.put_count, 1)

    def get_rates(self, now_ms: int) -> Rates:
        return self._rates(now_ms, self.get_count, 2)

    def _rates(self, now_ms: int, current: int, column: int) -> Rates:
        def rate(seconds: int) -> float:
            then = next(
                (total for total in self._totals if total[0] >= now_ms - seconds * 1000), self._totals[-1]
            )
            elapsed_ms = now_ms - then[0]
            return (current - then[column]) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0

        return Rates(rate(10), rate(60), rate(600))

    def windows(self, name: str, key: str) -> Windows | None:
        """The windows of an item; None when nothing was ever counted under it."""
        item = (name, key)
        if not self._minute or item not in self._minute[-1][1]:
            if item not in self._items():
                return None
            return Windows(_EMPTY, _EMPTY, _EMPTY)
        return Windows(*(_window(ring, item) for ring in (self._minute, self._hour, self._day)))

    def _items(self) -> dict[_Item, tuple[int, int]]:
        """Every item with its sum and its number of portions, under Apache's names and keys."""
        items: dict[_Item, tuple[int, int]] = {}

        def count(name: str, key: str, value: int, times: int) -> None:
            before = items.get((name, key), (0, 0))
            items[name, key] = (before[0] + value, before[1] + times)

        for (topic, queue_id), traffic in self.puts.items():
            count("TOPIC_PUT_NUMS", topic, traffic.count, traffic.times)
            count("TOPIC_PUT_SIZE", topic, traffic.bytes, traffic.times)
            count("QUEUE_PUT_NUMS", f"{topic}@{queue_id}", traffic.count, traffic.times)
            count("QUEUE_PUT_SIZE", f"{topic}@{queue_id}", traffic.bytes, traffic.times)
            count("BROKER_PUT_NUMS", self._cluster, traffic.count, traffic.times)
        for (topic, queue_id, group), traffic in self.gets.items():
            count("GROUP_GET_NUMS", f"{topic}@{group}", traffic.count, traffic.times)
            count("GROUP_GET_SIZE", f"{topic}@{group}", traffic.bytes, traffic.times)
            count("QUEUE_GET_NUMS", f"{topic}@{queue_id}@{group}", traffic.count, traffic.times)
            count("QUEUE_GET_SIZE", f"{topic}@{queue_id}@{group}", traffic.bytes, traffic.times)
            count("BROKER_GET_NUMS", self._cluster, traffic.count, traffic.times)
        for (name, key), traffic in self.others.items():
            count(name, key, traffic.count, traffic.times)
        return items


def _window(ring: deque[_Snapshot], item: _Item) -> StatsWindow:
    if len(ring) < 2:
        return _EMPTY
    first_ms, first = ring[0]
    last_ms, last = ring[-1]
    total, times = last.get(item, (0, 0))
    total_before, times_before = first.get(item, (0, 0))
    change = total - total_before
    portions = times - times_before
    span_ms = last_ms - first_ms
    return StatsWindow(
        change,
        change * 1000 / span_ms if span_ms > 0 else 0.0,
        change / portions if portions > 0 else 0.0,
    )
