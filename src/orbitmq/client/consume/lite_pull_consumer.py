"""The lite pull consumer: the caller requests messages (Apache: ``DefaultLitePullConsumer``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Unpack

from orbitmq.client.consume.assigned_consumer import AssignedConsumer
from orbitmq.client.consume.assignment import Assignment
from orbitmq.client.consume.lite_fetching import LiteFetching
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.puller import Puller
from orbitmq.client.errors import ClientStateError, OffsetOutOfRangeError
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import LitePullOptions, build_options
from orbitmq.client.settings import LitePullSettings
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.wire.bodies import ConsumeType

__all__ = ["LitePullConsumer"]


class LitePullConsumer(AssignedConsumer):
    """Returns messages when the caller requests them. ``subscribe`` shares a topic's queues with the group,
    ``assign`` takes the given queues; then call ``poll`` or iterate.

    Messages returned by ``poll`` or the iteration count as consumed when the next ones are requested, at ``commit``,
    and when the ``async with`` block ends without an exception. With ``auto_commit`` their offsets are stored every
    few seconds, otherwise only by ``commit``. There is no retry topic: to retry a message, seek back to it.
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
        puller = Puller(self._instance, self.group, self.options, self._reader)
        self._fetching = LiteFetching(self._membership, self.options, puller, self._released)
        self._assignment = Assignment(self._membership, self._offsets, self._fetching)
        self._positions: dict[MessageQueue, int] = {}
        """The offset up to which each queue is consumed."""
        self._given: dict[MessageQueue, tuple[ProcessQueue, int, int]] = {}
        """The first and the end offset of the messages that the caller has."""
        self._last_commit = 0.0
        self._life = TaskOwner("consumer")
        self._ending: asyncio.Task[None] | None = None

    # -- what to consume -------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        """Share the queues of a topic with the other members of the group. Cannot be combined with ``assign``."""
        if self._assignment.is_given:
            raise ClientStateError("subscribe and assign exclude each other")
        wire_topic = self._subscriptions.add(topic, expression, sql=sql)
        if self._instance.running:
            self._instance.tasks.start(self._membership.announce(wire_topic), "subscribe")

    def unsubscribe(self, topic: str) -> None:
        """Release the queues of a topic at the next rebalance."""
        self._subscriptions.remove(topic)
        self.rebalance_soon()

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Consume exactly these queues, whatever other members consume. Cannot be combined with ``subscribe``."""
        if self._subscriptions.wanted:
            raise ClientStateError("subscribe and assign exclude each other")
        given = list(dict.fromkeys(queues))
        self._subscriptions.assign({queue.topic for queue in given}, expression)
        self._assignment.give(given)
        if self._instance.running:
            await self._assignment.take_given()

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and start fetching."""
        await self._join()
        if self._assignment.is_given:
            try:
                await self._assignment.take_given()
            except BaseException:
                await self.stop()  # ``async with`` does not, after a start that failed
                raise

    async def stop(self) -> None:
        """Store the offsets (with ``auto_commit``) and leave the group. The stop completes even if the caller is
        cancelled."""
        if self._ending is None:
            if not self._instance.running:
                return
            self._fetching.stop()
            self._instance.begin_stop()
            self._ending = self._life.start(self._stop(), "stop")
        await asyncio.shield(self._ending)

    async def _stop(self) -> None:
        await self._assignment.revoke_all(self.options.close_wait_s)
        if self.options.auto_commit:
            self._commit_positions()
        await self._assignment.close()
        await self._instance.stop()

    # -- consuming -------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        """Returns messages of one queue; an empty list if none arrived in time."""
        return await self._next(self.options.poll_batch_size, timeout_s)

    async def _next(self, size: int, timeout_s: float) -> list[ReceivedMessage]:
        if not self._instance.running:
            raise ClientStateError("start the consumer before polling")
        self._went_on()
        now = asyncio.get_running_loop().time()
        if self.options.auto_commit and now - self._last_commit >= self.options.auto_commit_s:
            self._last_commit = now
            self._commit_positions()
        batch = await self._fetching.next(size, timeout_s)
        if batch is None:
            return []
        held, messages = batch
        self._given[held.queue] = (held, messages[0].queue_offset, messages[-1].queue_offset + 1)
        return messages

    def _went_on(self) -> None:
        """Mark the messages returned last as consumed."""
        for queue, (held, _, offset) in self._given.items():
            if not held.dropped and self._assignment.held.get(queue) is held:
                self._positions[queue] = offset
        self._given.clear()

    def _acknowledge_left(self) -> None:
        self._went_on()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer stops. Each message counts as consumed when the next one is
        requested."""
        while not self._fetching.stopping:
            for message in await self._next(1, 1.0):
                yield message

    # -- positions -------------------------------------------------------------------------------------

    def position(self, queue: MessageQueue) -> int | None:
        """Returns the offset of the next message to be returned; None before the first message or ``seek`` of the
        queue."""
        given = self._given.get(queue)
        return self._positions.get(queue) if given is None else given[2]

    def fetched_until(self, queue: MessageQueue) -> int:
        """Returns the offset where the next fetch of the queue begins, or -1 if the queue is not assigned to this
        consumer. Messages before that offset that were not returned were filtered out."""
        held = self._assignment.held.get(queue)
        return -1 if held is None else held.next_offset

    def _consumed_until(self, held: ProcessQueue) -> int:
        given = self._given.get(held.queue)
        position = self._positions.get(held.queue) if given is None else given[1]
        return super()._consumed_until(held) if position is None else position

    def _commit_positions(self) -> None:
        for queue, offset in self._positions.items():
            if queue in self._assignment.held:
                self._offsets.store.update(queue, offset, increase_only=False)

    async def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Store the offsets of all returned messages, or the given offsets, immediately."""
        if offsets is None:
            self._went_on()
            self._commit_positions()
            await self.persist_offsets(wait=True)
            return
        for queue, offset in offsets.items():
            self._offsets.store.update(queue, offset, increase_only=False)
        await self._offsets.store.persist(list(offsets), wait=True)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this offset. Raises ``OffsetOutOfRangeError`` if it is outside the queue's range."""
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        if not low <= offset <= high:
            raise OffsetOutOfRangeError(f"{queue} holds offsets {low} to {high}, {offset} is outside")
        held = self._assignment.held.get(queue)
        if held is None:
            raise ClientStateError(f"{queue} is not assigned to this consumer")
        held.drop()
        self._given.pop(queue, None)
        self._positions[queue] = offset
        self._assignment.take(queue, offset).paused = held.paused
        self._fetching.make_room()

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message that the broker has."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the end of the queue, to consume only messages that arrive from now on."""
        await self.seek(queue, await self.max_offset(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop fetching from these queues. Fetched messages are still returned."""
        for queue in queues:
            held = self._assignment.held.get(queue)
            if held is not None:
                held.paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch from these queues again."""
        for queue in queues:
            held = self._assignment.held.get(queue)
            if held is not None:
                held.paused = False

    def _released(self, held: ProcessQueue) -> None:
        """Keep the position of a queue before it is assigned to another member."""
        position = self._positions.pop(held.queue, None)
        if position is not None and self.options.auto_commit:
            self._offsets.store.update(held.queue, position, increase_only=False)
