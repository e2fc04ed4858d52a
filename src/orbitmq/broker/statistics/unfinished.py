"""Counts the stored messages that a group has not finished, with or without committed offsets.

Apache counts from committed offsets only, so a new group whose handlers hang has no lag. Requests and metrics with
Apache's names keep that behavior; this module's counts are published next to them under our own names.

The count of each queue starts

- at the committed offset, if there is one (popped messages that were not acknowledged are added);
- otherwise, for a group with members, at the start of its first pull;
- otherwise where Apache's client would start: at the first message if ``starts_in_memory`` holds for the queue, if
  the group requested CONSUME_FROM_FIRST_OFFSET, or in a retry topic; at the end in all other cases.

A group with neither members nor committed offsets is not counted because its start is unknown. Pull consumers without
committed offsets and broadcasting groups are not counted either because their members keep the offsets themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from orbitmq.broker.tables.clients import ConsumerGroup, ConsumerTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.model.names import is_retry_topic
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import ReadStatus
from orbitmq.wire.bodies import ConsumeType

__all__ = ["FIRST_OFFSET", "QueueLag", "UnfinishedCounter", "starts_in_memory"]

FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"


def starts_in_memory(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Whether a group without an offset starts at 0, because nothing has been deleted from the queue and its first
    message is cached."""
    if store.min_offset(topic, queue_id) > 0:
        return False
    first = store.read(topic, queue_id, 0, 1)
    return first.status is ReadStatus.FOUND and not first.from_disk


class QueueLag(msgspec.Struct, frozen=True):
    """The unfinished messages of a group in one queue."""

    start: int
    """The queue offset at which the count starts."""
    end: int
    count: int
    oldest_ms: int
    """When the oldest unfinished message was stored, in epoch milliseconds; 0 if there is none."""


class UnfinishedCounter:
    """Counts unfinished messages on request, from the tables and the store."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        store: MessageStore,
        popped: Callable[[str, str, int], int] = lambda _topic, _group, _queue_id: 0,
    ) -> None:
        """``popped`` returns how many messages of a queue the group has popped and not acknowledged."""
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._popped = popped

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yields every (group, topic) to count, once each, including retry topics."""
        online = self._consumers.groups
        for name, group in list(online.items()):
            if not group.broadcasting:
                for topic in list(group.subscriptions):
                    yield name, topic
        for key in list(self._offsets.committed):
            topic, _, name = key.partition("@")
            group_online = online.get(name)
            if group_online is None or (
                topic not in group_online.subscriptions
                and is_retry_topic(topic)
                and not group_online.broadcasting
            ):
                yield name, topic

    def of(self, group: str, topic: str, queue_id: int) -> QueueLag:
        """Returns the unfinished messages of a group in one queue."""
        store = self._store
        online = self._consumers.groups.get(group)
        end = max(0, store.max_offset(topic, queue_id))
        low = max(0, store.min_offset(topic, queue_id))
        committed = self._offsets.query(group, topic, queue_id)
        popped = 0
        if online is not None and online.broadcasting:
            start = end
        elif committed >= 0:
            popped = self._popped(topic, group, queue_id)
            start = committed
        else:
            start = self._start(online, group, topic, queue_id, low, end)
        start = min(max(start, low), end)
        # Popped messages are before the committed offset. Finding out which ones would require a walk over all
        # checkpoints, so the age of the last `popped` messages before the offset serves as a lower bound.
        oldest = max(start - popped, low)
        count = end - start + popped
        stored_ms = store.store_time_at(topic, queue_id, oldest) if count and oldest < end else 0
        return QueueLag(start, end, count, max(0, stored_ms))

    def _start(
        self, online: ConsumerGroup | None, group: str, topic: str, queue_id: int, low: int, end: int
    ) -> int:
        if online is None or online.consume_type == ConsumeType.ACTIVELY:
            return end
        first_pull = self._offsets.first_pull(group, topic, queue_id)
        if first_pull >= 0:
            return first_pull
        if online.from_where == FIRST_OFFSET or is_retry_topic(topic):
            return low
        return low if starts_in_memory(self._store, topic, queue_id) else end
