"""Queries the offsets of queues, and determines where consuming a queue begins."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.offset_store import OffsetStore
from orbitmq.model.names import is_retry_topic
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import ConsumeFromWhere
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    OffsetResponse,
    SearchOffsetByTimestampRequest,
)

__all__ = ["QueueOffsets"]

_HALF_AN_HOUR_MS: Final = 30 * 60 * 1000


class QueueOffsets:
    """The offsets of queues, for one consumer. Every method raises ``BrokerError`` if a broker refuses, and
    connection errors."""

    def __init__(self, membership: Membership, store: OffsetStore) -> None:
        self._membership = membership
        self.store = store
        """The group's offsets."""
        self._new_to: dict[str, frozenset[MessageQueue]] = {}
        """By topic: queues of which the group had no offset when it began with the topic."""

    async def lowest(self, queue: MessageQueue) -> int:
        """Returns the oldest offset that the broker still has."""
        header = GetMinOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)

    async def end(self, queue: MessageQueue) -> int:
        """Returns the offset that the next message of the queue will get."""
        header = GetMaxOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)

    async def at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the offset of the first message stored at or after ``timestamp_ms`` (milliseconds since the
        epoch)."""
        header = SearchOffsetByTimestampRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, broker_name=queue.broker_name
        )
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _ask(self, queue: MessageQueue, code: int, header: Any) -> int:
        instance = self._membership.instance
        address = await instance.address_for(queue.broker_name, queue.topic)
        return decode_header(OffsetResponse, await instance.ask(address, code, header)).offset

    async def start(self, queue: MessageQueue) -> int:
        """Returns the offset where consuming a queue begins: the group's offset or, if there is none, the one that
        the options select."""
        options = self._membership.options
        where = options.from_where
        retry = is_retry_topic(queue.topic)
        stored = -1
        if options.start is not None and not retry:
            stored = await self.store.stored(queue, or_zero=False)
        is_new_to = await self._is_new_to(queue) if stored < 0 else False
        if stored < 0 and not is_new_to:
            stored = await self.store.stored(queue)
        if stored >= 0:
            return stored
        if where is ConsumeFromWhere.FIRST_OFFSET or (where is ConsumeFromWhere.LAST_OFFSET and retry):
            return 0
        if where is ConsumeFromWhere.LAST_OFFSET or retry:
            end = await self.end(queue)
            # Asked again, because the first message may have arrived after the broker answered that it has no offset.
            stored = await self.store.stored(queue) if end > 0 and not is_new_to else -1
            return stored if stored >= 0 else end
        return await self.at(
            queue, options.from_timestamp_ms or self._membership.started_ms - _HALF_AN_HOUR_MS
        )

    async def _is_new_to(self, queue: MessageQueue) -> bool:
        """Whether the option ``start`` is set and applies, because the group has no offset of any queue of the topic.

        If the group has offsets of other queues, a queue without an offset was created later. Then the broker's
        answer makes sure that the group misses none of its messages.
        """
        membership = self._membership
        if membership.options.start is None or is_retry_topic(queue.topic):
            return False
        known = self._new_to.get(queue.topic)
        if known is None:
            queues: list[MessageQueue] = []
            if queue.topic not in membership.subscriptions.missing:
                queues = list(membership.instance.book.subscribe.get(queue.topic) or [queue])
            asked = (self.store.stored(other, or_zero=False) for other in queues)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            found = any(isinstance(answer, int) and answer >= 0 for answer in answers)
            known = self._new_to[queue.topic] = frozenset(() if found else queues)
        return queue in known
