"""The lite pull consumer: the caller asks for messages (Apache: ``DefaultLitePullConsumer``)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final, Unpack

from orbitmq.client.consume.consumer_base import ConsumerBase
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.errors import ClientStateError, OffsetOutOfRangeError
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import LitePullOptions, build_options
from orbitmq.client.settings import LitePullSettings
from orbitmq.codes import PullFlag
from orbitmq.errors import FlowControl, OrbitError
from orbitmq.model.names import wrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SubscriptionData, subscribe_by_tags
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.wire.bodies import ConsumeType

__all__ = ["LitePullConsumer"]

logger = logging.getLogger(__name__)

_PAUSED_S: Final = 0.1
_FLOW_CONTROL_S: Final = 0.02
_FLAGS: Final = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION | PullFlag.LITE_PULL


class LitePullConsumer(ConsumerBase):
    """``subscribe`` shares queues with the group, ``assign`` takes given ones; then ``poll`` or ``async for``.

    What ``poll`` or the iteration gave counts as consumed when the next is asked for, at ``commit``, and when the
    ``async with`` block ends without an exception; ``auto_commit`` stores it every few seconds, else ``commit`` does.
    There is no retry topic: what must be tried again is sought again.
    """

    consume_type = ConsumeType.ACTIVELY

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        options: LitePullOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[LitePullSettings],
    ) -> None:
        self.options = build_options(LitePullOptions, options, dict(settings))
        super().__init__(group, name_servers, self.options, clock)
        self._assigned: dict[MessageQueue, str] | None = None
        self._expressions: dict[str, SubscriptionData] = {}
        self._ready: deque[tuple[ProcessQueue, list[ReceivedMessage]]] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._positions: dict[MessageQueue, int] = {}
        """Up to where is consumed."""
        self._given: dict[MessageQueue, tuple[ProcessQueue, int, int]] = {}
        """From where and up to where was given out and not gone beyond yet."""
        self._last_commit = 0.0
        self._stopping = False
        self._life = TaskOwner("consumer")
        self._ending: asyncio.Task[None] | None = None

    # -- what to consume -------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        """Share the queues of a topic with the other members of the group. Not together with ``assign``."""
        if self._assigned is not None:
            raise ClientStateError("subscribe and assign exclude each other")
        self._add_subscription(topic, expression, sql)
        if self._instance.running:
            self._instance.tasks.start(self._subscribe_late(), "subscribe")

    async def _subscribe_late(self) -> None:
        await self._refresh_missing()
        await self._instance.heartbeat()
        self.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        """Give the queues of a topic back at the next rebalance."""
        topic = wrap_namespace(self.options.namespace, topic)
        self._subscriptions.pop(topic, None)
        self._announced.pop(topic, None)
        self.rebalance_soon()

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Consume exactly these queues, whoever else does. Not together with ``subscribe``."""
        if self._subscriptions:
            raise ClientStateError("subscribe and assign exclude each other")
        self._assigned = dict.fromkeys(queues, expression)
        if self._instance.running:
            await self._apply_assignment()

    async def _apply_assignment(self) -> None:
        assert self._assigned is not None
        for queue, expression in self._assigned.items():
            self._expressions[queue.topic] = subscribe_by_tags(queue.topic, expression)
        async with self._rebalancing:
            for queue, held in list(self._held.items()):
                if queue not in self._assigned:
                    await self._release(held)
            for queue in self._assigned:
                if queue not in self._held:
                    if self._instance.book.broker(queue.broker_name) is None:
                        await self._instance.book.refresh(queue.topic)
                    self._take(queue, await self._start_offset(queue))

    async def _rebalance_once(self) -> bool:
        """With ``assign`` nothing is shared out: what was assigned stays, and is taken where that failed before."""
        if self._assigned is None:
            return await super()._rebalance_once()
        if self._instance.leaving:
            return True
        try:
            await self._apply_assignment()
        except OrbitError as error:
            key, text = ("assign", self.group), "assignment not taken group=%s error=%s"
            self._instance.log_limits.warning(logger, key, text, self.group, error)
            return False
        self._balanced.set()
        return True

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and begin to fetch."""
        await self._join()
        if self._assigned is not None:
            try:
                await self._apply_assignment()
            except BaseException:
                await self.stop()  # ``async with`` does not, after a start that failed
                raise

    async def stop(self) -> None:
        """Store the offsets (with ``auto_commit``) and leave the group. Goes on when its caller is cancelled."""
        if self._ending is None:
            if not self._instance.running:
                return
            self._stopping = True
            self._instance.begin_stop()
            self._arrived.set()
            self._room.set()
            self._ending = self._life.start(self._stop(), "stop")
        await asyncio.shield(self._ending)

    async def _stop(self) -> None:
        await self._call_back(self.options.on_revoked, self.queues, self.options.close_wait_s)
        if self.options.auto_commit:
            self._commit_positions()
        for held in self._held.values():
            held.drop()
        await self._leave()

    # -- consuming -------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        """Some messages of one queue; an empty list when none came in time."""
        batch = await self._next_batch(timeout_s, self.options.poll_batch_size)
        if batch is None:
            return []
        held, messages = batch
        held.remove(messages)
        self._room.set()
        self._given[held.queue] = (held, messages[0].queue_offset, messages[-1].queue_offset + 1)
        return messages

    async def _next_batch(
        self, timeout_s: float, size: int
    ) -> tuple[ProcessQueue, list[ReceivedMessage]] | None:
        if not self._instance.running:
            raise ClientStateError("start the consumer before polling")
        self._went_on()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if self.options.auto_commit and loop.time() - self._last_commit >= self.options.auto_commit_s:
            self._last_commit = loop.time()
            self._commit_positions()
        while True:
            while self._ready:
                held, messages = self._ready.popleft()
                if not held.ending:
                    if len(messages) > size:
                        self._ready.append((held, messages[size:]))  # at the end: queues take turns
                    return held, messages[:size]
            self._arrived.clear()
            left_s = deadline - loop.time()
            if left_s <= 0 or self._stopping:
                return None
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                return None

    def _went_on(self) -> None:
        """What was given out last is consumed."""
        for queue, (held, _, offset) in self._given.items():
            if not held.dropped and self._held.get(queue) is held:
                self._positions[queue] = offset
        self._given.clear()

    def _acknowledge_left(self) -> None:
        self._went_on()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Messages one by one, until the consumer is stopped; each counts as consumed when the next is asked for."""
        while not self._stopping:
            batch = await self._next_batch(1.0, 1)
            if batch is None:
                continue
            held, [message] = batch
            held.remove([message])
            self._room.set()
            self._given[held.queue] = (held, message.queue_offset, message.queue_offset + 1)
            yield message

    # -- positions -------------------------------------------------------------------------------------

    def position(self, queue: MessageQueue) -> int | None:
        """The next offset to be given out, if something was."""
        given = self._given.get(queue)
        return self._positions.get(queue) if given is None else given[2]

    def fetched_until(self, queue: MessageQueue) -> int:
        """The offset the next fetch of the queue begins at: what lies before it and did not come was filtered out.
        -1 when the queue is not assigned to this consumer."""
        held = self._held.get(queue)
        return -1 if held is None else held.next_offset

    def _consumed_until(self, held: ProcessQueue) -> int:
        given = self._given.get(held.queue)
        position = self._positions.get(held.queue) if given is None else given[1]
        return super()._consumed_until(held) if position is None else position

    def _commit_positions(self) -> None:
        for queue, offset in self._positions.items():
            if queue in self._held:
                self._offsets.update(queue, offset, increase_only=False)

    async def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Store all that was given out, or the given offsets, at once."""
        if offsets is None:
            self._went_on()
            self._commit_positions()
            await self.persist_offsets(wait=True)
            return
        for queue, offset in offsets.items():
            self._offsets.update(queue, offset, increase_only=False)
        await self._offsets.persist(list(offsets), wait=True)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from this offset. Raises ``OffsetOutOfRangeError`` when the queue does not reach there."""
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        if not low <= offset <= high:
            raise OffsetOutOfRangeError(f"{queue} holds offsets {low} to {high}, {offset} is outside")
        held = self._held.get(queue)
        if held is None:
            raise ClientStateError(f"{queue} is not assigned to this consumer")
        held.drop()
        self._given.pop(queue, None)
        self._positions[queue] = offset
        self._take(queue, offset)
        self._held[queue].paused = held.paused
        self._room.set()

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Consume all the broker still has."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Consume only what comes from now on."""
        await self.seek(queue, await self.max_offset(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch no more from these queues. What is here already is still given out."""
        for queue in queues:
            if queue in self._held:
                self._held[queue].paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch from them again."""
        for queue in queues:
            if queue in self._held:
                self._held[queue].paused = False

    # -- fetching --------------------------------------------------------------------------------------

    def _begin(self, held: ProcessQueue) -> None:
        self._instance.tasks.start(self._pull_forever(held), f"fetch-{held.queue.queue_id}")

    async def _pull_forever(self, held: ProcessQueue) -> None:
        options = self.options
        queue = held.queue
        while not self._over(held):
            held.last_pull_ms = self._steady.now_ms()
            if held.paused:
                await asyncio.sleep(_PAUSED_S)
                continue
            if held.full:
                await held.wait_for_room()
                continue
            cached = sum(other.count for other in self._held.values() if not other.ending)
            if cached > options.cached_count_max_all:
                self._room.clear()
                await self._room.wait()
                continue
            subscription = (
                self._announced.get(queue.topic)
                or self._subscriptions.get(queue.topic)
                or self._expressions.get(queue.topic)
            )
            if subscription is None:
                await asyncio.sleep(options.pull_error_pause_s)
                continue
            try:
                result = await self._puller.pull(queue, held.next_offset, subscription, flags=_FLAGS)
            except FlowControl:
                await asyncio.sleep(_FLOW_CONTROL_S)
                continue
            except OrbitError as error:
                await self._pull_failed(held, error)
                continue
            if self._over(held):
                return
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

    def _over(self, held: ProcessQueue) -> bool:
        return held.ending or self._stopping

    def topics(self) -> set[str]:
        return super().topics() | {queue.topic for queue in self._assigned or ()}

    async def _before_release(self, held: ProcessQueue) -> bool:
        """A queue that goes to another member takes along what was consumed of it."""
        self._room.set()  # what it has here is not given out any more: other queues may fetch
        position = self._positions.pop(held.queue, None)
        if position is not None and self.options.auto_commit:
            self._offsets.update(held.queue, position, increase_only=False)
        return True
