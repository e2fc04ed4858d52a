"""Counting what passes through the broker (Apache: BrokerStatsManager).

Counting must cost nothing that can be measured: the send and pull paths touch one dictionary entry and add to plain
integers. Everything else (sums per topic, per group, windows of a minute, an hour, a day) is worked out when
``sample`` runs or somebody asks.
"""

from __future__ import annotations

__all__ = ["BrokerStats", "Traffic"]


class Traffic:
    """Messages, bytes, and in how many portions they came."""

    __slots__ = ("bytes", "count", "times")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.times = 0


class BrokerStats:
    """Counters since the broker started."""

    def __init__(self) -> None:
        self.puts: dict[tuple[str, int], Traffic] = {}
        """By topic and queue id."""
        self.gets: dict[tuple[str, int, str], Traffic] = {}
        """By topic, queue id and group."""
        self.others: dict[tuple[str, str], Traffic] = {}
        """By Apache's statistics name and key, for everything that is rare."""

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
