"""The queues that one consumer holds: computing its share, taking and releasing queues.

Corresponds to Apache's RebalanceImpl and RebalanceService. There is no coordinator: each member computes its share
from the sorted queues and the sorted client ids (``model/rebalance.py``), unless the broker assigns queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from inspect import isawaitable
from typing import Final, Protocol

from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.process_queue import PULL_EXPIRY_MS, ProcessQueue
from orbitmq.client.consume.queue_locks import QueueLocks
from orbitmq.client.consume.queue_offsets import QueueOffsets
from orbitmq.client.options import QueuesCallback
from orbitmq.errors import OrbitError, TopicNotFound
from orbitmq.model.rebalance import sorted_clients
from orbitmq.model.route import MessageQueue

__all__ = ["Assignment", "BrokerShares", "QueueReader"]

logger = logging.getLogger(__name__)

_UNBALANCED_S: Final = 1.0


class QueueReader(Protocol):
    """Reads the queues of an assignment."""

    pulls: bool
    """Whether it pulls continuously, so that a queue that is not pulled is stuck."""

    def open(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        """Create the in-memory state of a queue that will be read from ``offset``."""

    def begin(self, held: ProcessQueue) -> None:
        """Start reading a queue."""

    async def release(self, held: ProcessQueue) -> bool:
        """Stop reading a queue. Returns False if a handler is still working on it, and the queue must be kept until
        that handler ends."""

    def resize(self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[ProcessQueue]) -> None:
        """Adapt to a changed share of a topic: ``mine`` of ``queues``."""


class BrokerShares(Protocol):
    """Queues that the broker assigns. Some of them may be popped instead of pulled."""

    async def ask(self, topic: str) -> tuple[list[MessageQueue], list[MessageQueue]] | None:
        """Returns the queues to pull and the queues to pop; None if the broker does not assign queues."""

    def apply(self, topic: str, wanted: Sequence[MessageQueue]) -> None:
        """Pop exactly these queues of a topic, and no others."""


class Assignment:
    """The queues that one consumer holds."""

    def __init__(
        self,
        membership: Membership,
        offsets: QueueOffsets,
        reader: QueueReader,
        *,
        locks: QueueLocks | None = None,
        shares: BrokerShares | None = None,
    ) -> None:
        """Pass ``locks`` for consumers that must lock their queues, and ``shares`` if the broker may assign
        queues."""
        self._membership = membership
        self._instance = membership.instance
        self._options = membership.options
        self._offsets = offsets
        self._reader = reader
        self._locks = locks
        self._shares = shares
        self._held: dict[MessageQueue, ProcessQueue] = {}
        self._given: list[MessageQueue] | None = None
        self._changing = asyncio.Lock()
        self._balanced = asyncio.Event()

    @property
    def held(self) -> Mapping[MessageQueue, ProcessQueue]:
        """The queues held now."""
        return self._held

    async def wait_balanced(self) -> None:
        """Wait until every subscribed topic has been found and its queues have been assigned."""
        await self._balanced.wait()

    # -- rebalance -------------------------------------------------------------------------------------

    async def run(self, balanced: bool) -> None:
        """Rebalance on request and every ``rebalance_s``, or earlier if the last rebalance was incomplete. Never
        returns."""
        options, wanted = self._options, self._membership.rebalance_wanted
        while True:
            wait_s = options.rebalance_s if balanced else min(_UNBALANCED_S, options.rebalance_s)
            try:
                async with asyncio.timeout(wait_s):
                    await wanted.wait()
            except TimeoutError:
                pass
            wanted.clear()
            try:
                balanced = await self.rebalance()
            except Exception:  # the loop must go on
                logger.exception("rebalance failed group=%s", self._membership.group)
                balanced = False
            await asyncio.sleep(options.rebalance_spacing_s)

    async def rebalance(self) -> bool:
        """Take and release queues. Returns False if the rebalance is incomplete and should be repeated soon."""
        async with self._changing:
            if self._instance.leaving:
                return True
            restarting = [held for held in self._held.values() if held.restarting]
            restarted = [await self._restart(held) for held in restarting]
            balanced = await (self._rebalance_topics() if self._given is None else self._take_given())
            balanced &= all(restarted)
            if balanced:
                self._balanced.set()
            return balanced

    async def _restart(self, held: ProcessQueue) -> bool:
        """Restart a queue of a deleted topic at offset 0. Returns False if that must be tried again soon.

        At the old offset the consumer would miss messages if the topic is recreated and filled beyond that offset. A
        broker deletes a topic's offsets with the topic. If it still has the group's offset, it has only lost the
        topic's config, and consuming continues there.
        """
        queue, store = held.queue, self._offsets.store
        if not await self._reader.release(held):
            return False
        store.forget(queue)
        offset = 0
        try:
            if not self._membership.broadcasting:
                offset = max(0, await store.stored(queue, or_zero=False))
        except OrbitError as error:
            self._warn(("restart", queue.broker_name), "queue not restarted queue=%s error=%s", queue, error)
            return False
        if self._locks is not None and not await self._locks.lock([queue]):
            return False
        text = "broker does not have the topic any more, queue restarts group=%s queue=%s from=%d to=%d"
        logger.warning(text, self._membership.group, queue, held.next_offset, offset)
        self.take(queue, offset).paused = held.paused
        return True

    async def _rebalance_topics(self) -> bool:
        balanced = True
        wanted = self._membership.subscriptions.wanted
        for topic in list(wanted):
            try:
                balanced &= await self._rebalance_topic(topic)
            except OrbitError as error:
                text = "rebalance failed group=%s topic=%s error=%s"
                self._warn(("rebalance", topic), text, self._membership.group, topic, error)
                balanced = False
        for queue, held in list(self._held.items()):
            if queue.topic not in wanted:
                balanced &= await self._release(held)
        return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        queues = self._instance.book.subscribe.get(topic)
        if not queues:
            # Queried every second, so a topic created after the start is found long before the route timer.
            try:
                await self._instance.book.refresh(topic)
            except TopicNotFound:
                self._membership.subscriptions.missing.add(topic)
                return False
            await self._instance.heartbeat()
            queues = self._instance.book.subscribe.get(topic)
            if not queues:
                return False
        if self._membership.broadcasting:
            return await self._apply(topic, queues, queues)
        if self._shares is not None:
            assigned = await self._shares.ask(topic)
            if assigned is not None:
                pulled, popped = assigned
                balanced = await self._apply(topic, queues, pulled)
                self._shares.apply(topic, popped)
                return balanced
        mine = await self._share(topic, queues)
        return mine is not None and await self._apply(topic, queues, mine)

    async def _share(self, topic: str, queues: Sequence[MessageQueue]) -> list[MessageQueue] | None:
        """Returns our queues according to the strategy. Returns None if they cannot be determined; the assignment
        then stays unchanged."""
        members = await self._membership.members(topic)
        if not members:
            return None
        try:
            chosen = set(self._options.strategy(queues, sorted_clients(members), self._instance.client_id))
        except Exception as error:  # noqa: BLE001 - code of the user's; what is held stays, other topics go on
            text = "strategy failed, assignment unchanged group=%s topic=%s error=%r"
            self._warn(("strategy", topic), text, self._membership.group, topic, error)
            return None
        return [queue for queue in queues if queue in chosen]

    async def _apply(self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]) -> bool:
        if self._instance.leaving:
            return False
        changed, balanced = await self._release_others(topic, set(mine))
        missing = [queue for queue in mine if queue not in self._held]
        if missing and self._locks is not None:
            locked = await self._locks.lock(missing)
            balanced &= len(locked) == len(missing)
            missing = [queue for queue in missing if queue in locked]
        starts = await self._starts(missing)
        balanced &= len(starts) == len(missing)
        await self._call_back(self._options.on_assigned, list(starts))
        if not self._instance.running or self._instance.leaving:
            return False  # stopped meanwhile
        for queue, offset in starts.items():
            self.take(queue, offset)
        if changed or starts:
            logger.info(
                "assignment changed group=%s topic=%s client=%s queues=%d of %d mine=%s",
                self._membership.group,
                topic,
                self._instance.client_id,
                len(mine),
                len(queues),
                [f"{queue.broker_name}:{queue.queue_id}" for queue in mine],
            )
            await self._announce(topic, queues)
        return balanced

    async def _release_others(self, topic: str, mine: AbstractSet[MessageQueue]) -> tuple[bool, bool]:
        """Release the queues of a topic that are not ours, are stuck, or are ending. Returns whether any was
        released, and whether all of them were."""
        changed, all_released = False, True
        for queue, held in list(self._held.items()):
            if queue.topic != topic:
                continue
            stuck = self._is_stuck(held)
            if queue not in mine or stuck or (held.ending and not held.restarting):
                if stuck and queue in mine:
                    logger.error("queue not pulled for two minutes, restarting it queue=%s", queue)
                released = await self._release(held)
                changed |= released
                all_released &= released
        return changed, all_released

    async def _starts(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """Returns the offset to begin at, for each queue whose offset can be determined."""
        starts: dict[MessageQueue, int] = {}
        for queue in queues:
            try:
                self._offsets.store.forget(queue)
                starts[queue] = await self._offsets.start(queue)
            except OrbitError as error:
                key, text = ("start", queue.broker_name), "start offset unknown queue=%s error=%s"
                self._warn(key, text, queue, error)
        return starts

    async def _announce(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Tell the reader and the brokers about a changed share."""
        subscriptions = self._membership.subscriptions
        renewed = subscriptions.renew(topic)
        self._reader.resize(
            topic, queues, [self._held[queue] for queue in sorted(self._held) if queue.topic == topic]
        )
        await self._instance.heartbeat()
        if renewed is not None:
            subscriptions.announced(topic)

    def _is_stuck(self, held: ProcessQueue) -> bool:
        """Whether nothing pulls from a queue although something should, because of a bug here or in the user's event
        loop."""
        if not self._reader.pulls or held.waiting or not held.last_pull_ms:
            return False
        limit_ms = max(PULL_EXPIRY_MS, 2000 * (self._options.pull_timeout_s + self._options.suspend_s))
        return self._membership.steady.now_ms() - held.last_pull_ms > limit_ms

    # -- taking and releasing --------------------------------------------------------------------------

    def take(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        """Start reading a queue assigned to us, from ``offset``."""
        held = self._reader.open(queue, offset)
        if self._locks is not None:
            self._locks.mark(held, locked=True)
        self._held[queue] = held
        logger.info("queue assigned group=%s queue=%s offset=%d", self._membership.group, queue, offset)
        self._reader.begin(held)
        return held

    async def _release(self, held: ProcessQueue) -> bool:
        """Release a queue. Returns False if it must be kept for now because an orderly handler is working on it."""
        held.end()
        queue = held.queue
        if not await self._reader.release(held):
            return False
        await self._call_back(self._options.on_revoked, [queue])
        await self._offsets.store.persist([queue])
        held.drop()
        self._offsets.store.forget(queue)
        if self._held.get(queue) is held:
            del self._held[queue]
        if self._locks is not None:
            await self._locks.unlock([queue])
        logger.info("queue released group=%s queue=%s", self._membership.group, queue)
        return True

    def give(self, queues: Sequence[MessageQueue]) -> None:
        """Hold exactly these queues from now on, whatever other members do. The queues are taken by
        ``take_given``."""
        self._given = list(queues)

    @property
    def is_given(self) -> bool:
        """Whether the queues were set by ``give`` and subscriptions do not count."""
        return self._given is not None

    async def take_given(self) -> None:
        """Take the queues set by ``give`` now, and release all others. Raises the ``OrbitError`` of the first
        failure."""
        async with self._changing:
            await self._apply_given()

    async def _take_given(self) -> bool:
        """Take those queues set by ``give`` that could not be taken before. Returns False if that failed."""
        try:
            await self._apply_given()
        except OrbitError as error:
            group = self._membership.group
            self._warn(("assign", group), "assignment not taken group=%s error=%s", group, error)
            return False
        return True

    async def _apply_given(self) -> None:
        given = self._given or []
        for queue, held in list(self._held.items()):
            if queue not in given:
                await self._release(held)
        for queue in given:
            if queue not in self._held:
                if self._instance.book.broker(queue.broker_name) is None:
                    await self._instance.book.refresh(queue.topic)
                self.take(queue, await self._offsets.start(queue))

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Restart those queues of a topic that are held, at the given offsets."""
        async with self._changing:
            for queue, offset in offsets.items():
                held = self._held.get(queue)
                if held is None or queue.topic != topic:
                    continue
                # A handler still running cannot commit over the new offset, because a dropped queue accepts no
                # offsets.
                held.drop()
                held.clear()
                self._offsets.store.update(queue, offset, increase_only=False)
                await self._release(held)
                logger.info("offset reset queue=%s offset=%d", queue, offset)
        self._membership.rebalance_wanted.set()

    # -- offsets and the end ---------------------------------------------------------------------------

    async def persist(self, *, wait: bool = False) -> None:
        """Store the offsets of the queues held. With ``wait`` this returns after they have been stored."""
        await self._offsets.store.persist(list(self._held), wait=wait)

    async def revoke_all(self, wait_s: float) -> None:
        """Call ``on_revoked`` with all queues before the consumer stops. An asynchronous callback is cancelled after
        ``wait_s`` seconds."""
        await self._call_back(self._options.on_revoked, sorted(self._held), wait_s)

    async def close(self) -> None:
        """Drop all queues and store their offsets. Failures are logged."""
        for held in self._held.values():
            held.drop()
        try:
            await self.persist(wait=True)
        except OrbitError as error:
            logger.warning("offsets not stored at shutdown, messages will be redelivered error=%s", error)
        if self._locks is not None:
            # A queue whose handler still runs keeps its lock until it expires, so no other member handles it
            # meanwhile.
            done = [queue for queue, held in self._held.items() if not held.consuming]
            await self._locks.unlock(done, wait=True)

    async def _call_back(
        self, function: QueuesCallback | None, queues: list[MessageQueue], wait_s: float | None = None
    ) -> None:
        """Call a user callback. An asynchronous one is cancelled after ``wait_s`` seconds. That and exceptions are
        logged."""
        if function is None or not queues:
            return
        name = getattr(function, "__qualname__", function)
        limit = asyncio.timeout(wait_s)
        try:
            result = function(queues)
            if isawaitable(result):
                async with limit:
                    await result
        except Exception as error:  # code of the user's that watches
            if isinstance(error, TimeoutError) and limit.when() is not None and limit.expired():
                logger.warning("callback did not return in time callback=%s wait_s=%g", name, wait_s)
            else:
                logger.exception("callback failed callback=%s", name)

    def _warn(self, key: tuple[object, ...], text: str, *values: object) -> None:
        self._instance.log_limits.warning(logger, key, text, *values)
