"""Chooses the queue of the next message (Apache: ``TopicPublishInfo``, ``MQFaultStrategy``, the queue selectors)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from orbitmq.model.route import MessageQueue
from orbitmq.record.hashing import java_hash

__all__ = ["QueuePicker", "select_by_hash"]

LATENCY_STEPS_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15000)
ISOLATION_MS: Final = (0, 0, 2000, 5000, 6000, 10000, 30000)
"""How long a broker is avoided that took at least the matching latency. The tables of Apache's 5.x clients."""
FAILURE_MS: Final = 10_000
"""The latency that a failed attempt counts as."""


def select_by_hash(queues: Sequence[MessageQueue], key: str | int) -> MessageQueue:
    """Returns the queue for all messages with this key. Every official client chooses the same one."""
    value = key if isinstance(key, int) else java_hash(key)
    # Java's remainder has the sign of the dividend, and Apache's selector takes its absolute value.
    return queues[abs(value) % len(queues)]


class QueuePicker:
    """Chooses queues in turn, from a random start. With ``avoid_slow_brokers``, brokers that fail or answer slowly
    are skipped."""

    def __init__(self, now_ms: Callable[[], int], *, avoid_slow: bool) -> None:
        self._now_ms = now_ms
        self._avoid_slow = avoid_slow
        self._next = random.randrange(1 << 16)
        self._isolated_until_ms: dict[str, int] = {}

    def pick(self, queues: Sequence[MessageQueue], failed_broker: str | None) -> MessageQueue:
        """Choose a queue. Queues of brokers other than ``failed_broker``, which failed at the last attempt, are
        preferred."""
        count = len(queues)
        if failed_broker is None and not self._isolated_until_ms:
            self._next = index = self._next + 1
            return queues[index % count]
        now_ms = self._now_ms()
        fallback: MessageQueue | None = None
        for _ in range(count):
            self._next += 1
            queue = queues[self._next % count]
            if queue.broker_name == failed_broker:
                continue
            if self._isolated_until_ms.get(queue.broker_name, 0) <= now_ms:
                return queue
            fallback = fallback or queue
        self._next += 1
        return fallback or queues[self._next % count]

    def report(self, broker_name: str, latency_ms: float, *, failed: bool = False) -> None:
        """Record the latency of an attempt, or its failure."""
        if not self._avoid_slow:
            return
        counted = FAILURE_MS if failed else latency_ms
        pause_ms = 0
        for step, isolation in zip(LATENCY_STEPS_MS, ISOLATION_MS, strict=True):
            if counted >= step:
                pause_ms = isolation
        now_ms = self._now_ms()
        until = self._isolated_until_ms.get(broker_name, 0)
        if pause_ms:
            self._isolated_until_ms[broker_name] = max(until, now_ms + pause_ms)
        elif until and until <= now_ms:
            del self._isolated_until_ms[broker_name]

    def isolated(self) -> set[str]:
        """Returns the names of the brokers that are avoided now."""
        now_ms = self._now_ms()
        return {name for name, until in self._isolated_until_ms.items() if until > now_ms}
