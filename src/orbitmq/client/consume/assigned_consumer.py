"""The base class of push and lite pull consumers, which hold queues."""

from __future__ import annotations

import asyncio

from orbitmq.client.consume.assignment import Assignment
from orbitmq.client.consume.consumer_base import ConsumerBase
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.tasks import every

__all__ = ["AssignedConsumer"]


class AssignedConsumer(ConsumerBase):
    """A consumer that holds queues, which the group shares or the caller assigns."""

    _assignment: Assignment

    async def _take_queues(self) -> None:
        balanced = await self._assignment.rebalance()
        if not self._instance.running:
            return  # a handler of the first messages stopped the consumer
        start = self._instance.tasks.start
        start(self._assignment.run(balanced), "rebalance")
        start(every(self._membership.options.offset_persist_s, self.persist_offsets), "persist-offsets")

    async def _ready(self) -> None:
        await self._assignment.wait_balanced()

    def rebalance_soon(self) -> None:
        """Request a rebalance soon, without waiting for the next periodic one."""
        self._membership.rebalance_wanted.set()

    async def persist_offsets(self, *, wait: bool = False) -> None:
        """Store the offsets now. With ``wait`` this returns after the offsets have been stored."""
        await self._assignment.persist(wait=wait)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer holds now, sorted."""
        return sorted(self._assignment.held)

    async def lag(self) -> dict[MessageQueue, int]:
        """Returns the number of stored messages that are not consumed yet, for each queue this consumer holds."""
        queues = self.queues
        ends = await asyncio.gather(*(self.max_offset(queue) for queue in queues))
        lags: dict[MessageQueue, int] = {}
        for queue, end in zip(queues, ends, strict=True):
            held = self._assignment.held.get(queue)
            if held is not None:
                lags[queue] = max(0, end - self._consumed_until(held))
        return lags

    def _consumed_until(self, held: ProcessQueue) -> int:
        """Returns the first offset of a queue that is not consumed yet."""
        done = self._offsets.store.offsets.get(held.queue)
        if done is None:
            done = held.first_offset() if held.messages else held.next_offset
        return done

    @property
    def held_messages(self) -> dict[str, int]:
        return {"received": sum(held.count for held in list(self._assignment.held.values()))}
