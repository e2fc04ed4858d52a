"""Long polling: holds pulls that found no message (Apache: PullRequestHoldService).

An append to a queue wakes the queue's pulls, so nothing is polled. Appends made in one turn of the event loop are
collected and served together. A periodic tick checks a heap of timeouts. A pull whose filter matched none of the new
messages stays on hold and keeps the offset up to which it has searched.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from orbitmq.broker.delivery.revocation import Revocation
from orbitmq.broker.events import BrokerEvents
from orbitmq.kernel import Filter
from orbitmq.runtime.clock import Clock
from orbitmq.transport.connection import Connection
from orbitmq.wire.frame import Frame
from orbitmq.wire.pulls import PullFields

__all__ = ["PullWaiters", "WaitingPull"]

logger = logging.getLogger(__name__)

TICK_S: Final = 0.1
_PURGE_TICKS: Final = 100
_HEAP_SLACK: Final = 64
"""How many answered pulls may stay in the heap, in addition to the number of pulls on hold."""


class WaitingPull(msgspec.Struct):
    """A pull request on hold."""

    frame: Frame
    connection: Connection
    request: PullFields
    wanted: Filter | None
    deadline_s: float
    """Deadline for the response, on the monotonic clock."""
    looked_until: int
    """The queue offset up to which no message matched the filter."""
    done: bool = False
    granted: int = 0
    """The version of users and policies under which the pull was granted."""


Retry = Callable[[WaitingPull, bool], bool]
"""Tries to answer a waiting pull. The flag is True if the pull has timed out. Returns True if it was answered."""


class PullWaiters:
    """The pulls on hold, by queue."""

    def __init__(
        self, retry: Retry, clock: Clock, events: BrokerEvents, revocation: Revocation, *, limit: int
    ) -> None:
        self._retry = retry
        self._revocation = revocation
        events.readable.of_any.append(self.arrived)
        events.topic_deleted.append(self.topic_deleted)
        self._clock = clock
        self._limit = limit
        self._by_queue: dict[tuple[str, int], list[WaitingPull]] = {}
        self._deadlines: list[tuple[float, int, WaitingPull]] = []
        self._sequence = itertools.count()
        self._arrived: set[tuple[str, int]] = set()
        self._ticks = 0
        self.count = 0

    def park(self, waiting: WaitingPull) -> bool:
        """Hold a pull. Returns False if too many are already on hold."""
        if self.count >= self._limit:
            return False
        key = (waiting.request.topic, waiting.request.queue_id)
        waiting.granted = self._revocation.version
        self._by_queue.setdefault(key, []).append(waiting)
        if len(self._deadlines) > _HEAP_SLACK + 2 * self.count:
            # Under load a pull is answered long before its deadline. Hundreds per second, each kept with its frame
            # until the next purge, used 7 MiB, which the allocator did not release.
            self._forget_answered()
        heapq.heappush(self._deadlines, (waiting.deadline_s, next(self._sequence), waiting))
        self.count += 1
        return True

    def arrived(self, topic: str, queue_id: int) -> None:
        """Note that a queue has new messages. The store calls this for every bulk append, so it does nothing else."""
        key = (topic, queue_id)
        if key in self._by_queue:
            if not self._arrived:
                asyncio.get_running_loop().call_soon(self._wake)
            self._arrived.add(key)

    def topic_deleted(self, topic: str) -> None:
        """Wake the pulls of a deleted topic so that they are refused. Otherwise they would keep waiting at an offset
        of the old queues, and miss the messages before that offset when the topic is recreated."""
        for name, queue_id in list(self._by_queue):
            if name == topic:
                self.arrived(name, queue_id)

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, set()
        for key in arrived:
            waiting = self._by_queue.pop(key, None)
            if waiting is None:
                continue
            kept = [one for one in waiting if not one.done and not self._finish(one, expired=False)]
            if kept:
                # A retry may have parked new pulls for this queue meanwhile.
                self._by_queue.setdefault(key, []).extend(kept)

    def _finish(self, waiting: WaitingPull, *, expired: bool) -> bool:
        if waiting.connection.closed or self._is_revoked(waiting) or self._retry(waiting, expired):
            waiting.done = True
            self.count -= 1
            return True
        return False

    def _is_revoked(self, waiting: WaitingPull) -> bool:
        if waiting.granted == self._revocation.version:
            return False
        waiting.granted = self._revocation.version
        return self._revocation.refuses(waiting.frame, waiting.connection)

    def tick(self) -> None:
        """Answer the pulls that have timed out. Called every ``TICK_S`` seconds."""
        now = self._clock.monotonic()
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            waiting = heapq.heappop(deadlines)[2]
            if not waiting.done:
                self._remove(waiting)
                self._finish(waiting, expired=True)
        self._ticks += 1
        if self._ticks % _PURGE_TICKS == 0:
            self._purge()

    def _remove(self, waiting: WaitingPull) -> None:
        key = (waiting.request.topic, waiting.request.queue_id)
        queue = self._by_queue.get(key)
        if queue is not None:
            # Compare by identity, because comparing structs would compare whole frames.
            queue[:] = [one for one in queue if one is not waiting]
            if not queue:
                del self._by_queue[key]

    def _purge(self) -> None:
        """Remove pulls of closed connections, and heap entries of answered pulls."""
        for key, queue in list(self._by_queue.items()):
            alive = [one for one in queue if not one.connection.closed]
            for one in queue:
                if one.connection.closed and not one.done:
                    one.done = True
                    self.count -= 1
            if alive:
                self._by_queue[key] = alive
            else:
                del self._by_queue[key]
        self._forget_answered()

    def _forget_answered(self) -> None:
        self._deadlines[:] = [entry for entry in self._deadlines if not entry[2].done]
        heapq.heapify(self._deadlines)

    def release_all(self) -> None:
        """Answer every pull immediately, as if it had timed out. Called before a stop or a change of role."""
        for queue in list(self._by_queue.values()):
            for waiting in list(queue):
                if not waiting.done:
                    self._finish(waiting, expired=True)
        self._by_queue.clear()
        self._deadlines.clear()
