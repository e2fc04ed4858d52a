"""Long polling of POP: parks requests that found nothing (Apache: PopLongPollingService).

A parked request is woken by anything that may have changed its answer: a message in its topic or in the group's pop
retry topic, the end of an order lock, or another pop that left messages. Requests are not checked periodically; one
timer of the event loop is set to the earliest deadline.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from orbitmq.broker.delivery.revocation import Revocation
from orbitmq.transport.connection import Connection
from orbitmq.wire.frame import Frame

__all__ = ["ANY_QUEUE", "PopWaiters", "Waiting"]

ANY_QUEUE: Final = -1
_HEAP_SLACK: Final = 1_024

Place = tuple[str, str, int]
"""Topic, group, queue id (``ANY_QUEUE`` for all of the broker's queues)."""


class Waiting(msgspec.Struct, eq=False):
    """A parked request."""

    frame: Frame
    connection: Connection
    place: Place
    deadline_s: float
    """Time of the event loop at which the request is answered, even without messages."""
    done: bool = False
    granted: int = 0
    """Version of the users and policies under which the request was permitted."""


Retry = Callable[[Waiting, bool], bool]
"""Tries to answer a request; the flag says whether it has reached its deadline. Returns whether it was answered."""


class PopWaiters:
    """Parked requests by topic, group and queue."""

    def __init__(
        self, retry: Retry, revocation: Revocation, *, limit: int, limit_of_place: Callable[[], int]
    ) -> None:
        self._retry = retry
        self._revocation = revocation
        self._limit = limit
        self._limit_of_place = limit_of_place
        self._by_place: dict[Place, deque[Waiting]] = {}
        self._groups: dict[str, dict[str, set[Place]]] = {}
        """Topic -> group -> places with parked requests."""
        self._retry_topics: dict[str, tuple[str, str]] = {}
        """Pop retry topic -> topic and group, for those with parked requests."""
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._sequence = itertools.count()
        self._woken: set[Place] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0

    def park(self, waiting: Waiting, retry_topics: Iterable[str]) -> bool:
        """Park a request. Returns False if too many are already parked."""
        queue = self._by_place.get(waiting.place)
        # Admits one more than the limit, like Apache.
        if self.count >= self._limit or (queue is not None and len(queue) > self._limit_of_place()):
            return False
        if queue is None:
            queue = self._by_place[waiting.place] = deque()
        waiting.granted = self._revocation.version
        queue.append(waiting)
        topic, group, _ = waiting.place
        places = self._groups.setdefault(topic, {}).setdefault(group, set())
        if not places:
            for name in retry_topics:
                self._retry_topics[name] = (topic, group)
        places.add(waiting.place)
        heapq.heappush(self._deadlines, (waiting.deadline_s, next(self._sequence), waiting))
        self.count += 1
        self._set_timer()
        return True

    def waiting_count(self, place: Place) -> int:
        """Returns the number of requests parked under exactly this key."""
        return sum(not one.connection.closed for one in self._by_place.get(place, ()))

    # -- waking ----------------------------------------------------------------------------------------

    def arrived(self, topic: str, queue_id: int) -> None:
        """Called by the store when a queue receives messages. Only marks the waiters, because it runs for every bulk
        append."""
        groups = self._groups.get(topic)
        if groups is not None:
            for group in groups:
                self.wake(topic, group, queue_id)
        if self._retry_topics and topic in self._retry_topics:
            # A request for any queue of the topic may be answered from the retry topic.
            for_topic, group = self._retry_topics[topic]
            for place in self._groups.get(for_topic, {}).get(group, ()):
                self._note(place)

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Retry the requests that wait for this queue or for any queue."""
        self._note((topic, group, ANY_QUEUE))
        if queue_id != ANY_QUEUE:
            self._note((topic, group, queue_id))

    def _note(self, place: Place) -> None:
        if place in self._by_place:
            if not self._woken:
                asyncio.get_running_loop().call_soon(self._serve)
            self._woken.add(place)

    def _serve(self) -> None:
        woken, self._woken = self._woken, set()
        for place in woken:
            queue = self._by_place.get(place)
            # Requests of one place are equivalent unless their filter or attempt differs; one failure stands for all
            # equal ones.
            failed: set[bytes] = set()
            for waiting in list(queue) if queue is not None else ():
                if waiting.done:
                    continue
                if waiting.connection.closed:
                    self._finish(waiting)
                    continue
                question = _question(waiting.frame)
                if question in failed:
                    continue
                if self._try(waiting, False):
                    self._finish(waiting)
                else:
                    failed.add(question)
                    if len(failed) > 8:
                        break

    def _try(self, waiting: Waiting, expired: bool) -> bool:
        if waiting.granted != self._revocation.version:
            waiting.granted = self._revocation.version
            if self._revocation.refuses(waiting.frame, waiting.connection):
                return True
        return self._retry(waiting, expired)

    def _finish(self, waiting: Waiting) -> None:
        if waiting.done:
            return
        waiting.done = True
        self.count -= 1
        queue = self._by_place.get(waiting.place)
        if queue is not None:
            if queue[0] is waiting:
                queue.popleft()
            else:
                queue.remove(waiting)
            if not queue:
                del self._by_place[waiting.place]
                self._place_gone(waiting.place)

    def _place_gone(self, place: Place) -> None:
        topic, group, _ = place
        groups = self._groups[topic]
        groups[group].discard(place)
        if not groups[group]:
            del groups[group]
            for name in [name for name, owner in self._retry_topics.items() if owner == (topic, group)]:
                del self._retry_topics[name]
            if not groups:
                del self._groups[topic]

    # -- deadlines -------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        deadlines = self._deadlines
        if len(deadlines) > _HEAP_SLACK + 2 * self.count:
            deadlines[:] = [entry for entry in deadlines if not entry[2].done]
            heapq.heapify(deadlines)
        while deadlines and deadlines[0][2].done:
            heapq.heappop(deadlines)
        if not deadlines:
            return
        first = deadlines[0][0]
        if self._timer is not None:
            if self._timer.when() <= first:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(first, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now + 0.001:
            waiting = heapq.heappop(deadlines)[2]
            if not waiting.done:
                self._finish(waiting)
                if not waiting.connection.closed:
                    self._try(waiting, True)
        self._set_timer()

    def release_all(self) -> None:
        """Answer every request now, as if its deadline had passed. Called before a stop or a change of role."""
        for queue in list(self._by_place.values()):
            for waiting in list(queue):
                self._finish(waiting)
                if not waiting.connection.closed:
                    self._try(waiting, True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadlines.clear()


def _question(frame: Frame) -> bytes:
    """Returns a key that distinguishes the requests of one place by filter and attempt, but not by creation time."""
    fields = frame.ext_fields
    return "\0".join(
        (fields.get("expType") or "", fields.get("exp") or "", fields.get("attemptId") or "")
    ).encode()
