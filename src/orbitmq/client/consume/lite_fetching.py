"""Fetches messages for a lite pull consumer and keeps them until the caller requests them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.puller import Puller
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import LitePullOptions
from orbitmq.codes import PullFlag
from orbitmq.errors import FlowControl, OrbitError
from orbitmq.model.route import MessageQueue

__all__ = ["LiteFetching"]

_PAUSED_S: Final = 0.1
_FLOW_CONTROL_S: Final = 0.02
_FLAGS: Final = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION | PullFlag.LITE_PULL


class LiteFetching:
    """The ``QueueReader`` of a lite pull consumer."""

    pulls = False

    def __init__(
        self,
        membership: Membership,
        options: LitePullOptions,
        puller: Puller,
        released: Callable[[ProcessQueue], None],
    ) -> None:
        """``released`` is called before a queue is assigned to another member."""
        self._membership = membership
        self._options = options
        self._puller = puller
        self._released = released
        self._open: set[ProcessQueue] = set()
        self._ready: deque[tuple[ProcessQueue, list[ReceivedMessage]]] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.stopping = False

    def stop(self) -> None:
        """Stop fetching. Callers that are waiting for messages get none."""
        self.stopping = True
        self._arrived.set()
        self._room.set()

    # -- what an assignment asks (QueueReader) ---------------------------------------------------------

    def open(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        options = self._options
        return ProcessQueue(
            queue, offset, count_max=options.cached_count_max, bytes_max=options.cached_bytes_max
        )

    def begin(self, held: ProcessQueue) -> None:
        name = f"fetch-{held.queue.queue_id}"
        self._membership.instance.tasks.start(self._pull_forever(held), name)

    async def release(self, held: ProcessQueue) -> bool:
        self._room.set()  # what it has here is not given out any more: other queues may fetch
        self._released(held)
        self._puller.forget(held.queue)
        return True

    def resize(self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[ProcessQueue]) -> None:
        """Does nothing: the limit covers all queues together."""

    # -- giving out ------------------------------------------------------------------------------------

    async def next(self, size: int, timeout_s: float) -> tuple[ProcessQueue, list[ReceivedMessage]] | None:
        """Returns up to ``size`` messages of one queue; None if no messages arrived in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            while self._ready:
                held, messages = self._ready.popleft()
                if not held.ending:
                    if len(messages) > size:
                        self._ready.append((held, messages[size:]))  # at the end: queues take turns
                    held.remove(messages[:size])
                    self._room.set()
                    return held, messages[:size]
            self._arrived.clear()
            left_s = deadline - loop.time()
            if left_s <= 0 or self.stopping:
                return None
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                return None

    def make_room(self) -> None:
        """Let other queues fetch. Called when messages have been discarded."""
        self._room.set()

    # -- fetching --------------------------------------------------------------------------------------

    async def _pull_forever(self, held: ProcessQueue) -> None:
        self._open.add(held)
        try:
            while not held.ending and not self.stopping:
                await self._pull_once(held)
        finally:
            self._open.discard(held)

    async def _pull_once(self, held: ProcessQueue) -> None:
        options = self._options
        held.last_pull_ms = self._membership.steady.now_ms()
        if held.paused:
            await asyncio.sleep(_PAUSED_S)
            return
        if held.full:
            await held.wait_for_room()
            return
        if sum(other.count for other in self._open if not other.ending) > options.cached_count_max_all:
            self._room.clear()
            await self._room.wait()
            return
        subscription = self._membership.subscriptions.for_pull(held.queue.topic)
        if subscription is None:
            await asyncio.sleep(options.pull_error_pause_s)
            return
        try:
            result = await self._puller.pull(held.queue, held.next_offset, subscription, flags=_FLAGS)
        except FlowControl:
            await asyncio.sleep(_FLOW_CONTROL_S)
            return
        except OrbitError as error:
            if held.answered and not held.ending and self._puller.is_deleted(held.queue, error):
                held.restart()
                self._membership.rebalance_wanted.set()
            elif not held.ending:
                await self._puller.failed(held.queue, held.next_offset, error)
            return
        if held.ending or self.stopping:
            return
        held.answered = True
        held.next_offset = result.next_offset
        if result.messages:
            held.put(result.messages)
            self._put(held, result.messages)
            self._arrived.set()

    def _put(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        for other, line in self._ready:
            if other is held:
                line += messages
                return
        self._ready.append((held, list(messages)))
