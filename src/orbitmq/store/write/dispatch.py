"""Dispatches a stored record to its queue and the index (Apache: ``ReputMessageService`` and its dispatchers).

On a master every append dispatches itself, inline. This module does the same for replicated records and for records
found by recovery. ``Dispatcher.settle`` alone decides what to do with a record whose offset does not continue its
queue.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from orbitmq.codes import TRANSACTION_MASK, Property, SysFlag
from orbitmq.model.delay_levels import DelayLevels, parse_delay_level
from orbitmq.record.hashing import tags_code
from orbitmq.record.properties import find_property
from orbitmq.record.scan import ScannedRecord
from orbitmq.store.errors import BadQueueName
from orbitmq.store.index.index_service import IndexService
from orbitmq.store.layout import SCHEDULE_TOPIC
from orbitmq.store.queues.consume_queue import ConsumeQueue
from orbitmq.store.queues.extensions import Extensions
from orbitmq.store.queues.queue_table import QueueTable

__all__ = ["NO_UNIT", "Dispatcher", "due_or_tag_code"]

logger = logging.getLogger(__name__)

NO_UNIT: Final = (int(SysFlag.TRANSACTION_PREPARED), int(SysFlag.TRANSACTION_ROLLBACK))
"""Transaction types that are in the log but not in any queue."""
_TRANSACTION_MASK: Final = int(TRANSACTION_MASK)
_DELAY: Final = Property.DELAY.encode()
_TAGS: Final = Property.TAGS.encode()

GAP_UNITS_MAX: Final = 100_000
"""A larger jump in a queue's offsets means a corrupt offset, not lost messages. Filling it would fill the disk."""


FIRST_NUMBER_MAX: Final = 1 << 48
"""No queue gets this far: it takes a million messages a second for nine years."""


def due_or_tag_code(properties: bytes, store_ms: int, levels: DelayLevels) -> int:
    """Returns the third field of a schedule topic's unit: the message's due time, or its tag code if it has no delay
    level."""
    text = find_property(properties, _DELAY)
    if text is not None:
        with contextlib.suppress(ValueError):
            if (level := parse_delay_level(text)) > 0:
                return levels.due_ms(level, store_ms)
    return tags_code(find_property(properties, _TAGS))


class Dispatcher:
    """Adds records to the queues and the index."""

    def __init__(
        self,
        queues: QueueTable,
        index: IndexService | None,
        levels: DelayLevels,
        extensions: Extensions | None,
    ) -> None:
        self._queues = queues
        self._index = index
        self._levels = levels
        self._extensions = extensions

    def dispatch(self, record: ScannedRecord) -> ConsumeQueue | None:
        """Dispatch a replicated record. Returns the queue it was added to; None if it was added to none."""
        topic = record.topic.decode("utf-8", "replace")
        if self._index is not None:
            self.feed_index(topic, record)
        if record.sys_flag & _TRANSACTION_MASK in NO_UNIT:
            return None
        try:
            queue = self._queues.create(topic, record.queue_id)
        except BadQueueName as error:
            logger.error("record not dispatched log_offset=%d reason=%s", record.log_offset, error)
            return None
        if record.log_offset < queue.log_end:
            return None
        if record.queue_offset != queue.max_offset:
            # A replica adopts what its master wrote: a jump in the offsets is logged, not refused.
            reason = self.settle(queue, record.queue_offset, record.log_offset, strict=False)
            if reason:
                logger.error("record not dispatched log_offset=%d reason=%s", record.log_offset, reason)
                return None
        code = self.code(queue, record.properties, record.store_timestamp_ms)
        queue.append(record.log_offset, record.size, code)
        return queue

    def code(self, queue: ConsumeQueue, properties: bytes, store_ms: int) -> int:
        """Returns the third field of a queue's unit: a tag code, due time or extension address."""
        if queue.topic == SCHEDULE_TOPIC:
            code = due_or_tag_code(properties, store_ms, self._levels)
        else:
            code = tags_code(find_property(properties, _TAGS))
        if self._extensions is not None:
            code = self._extensions.code(queue, code, store_ms, properties)
        return code

    def feed_index(self, topic: str, record: ScannedRecord) -> None:
        """Add a record's keys to the index."""
        index = self._index
        assert index is not None
        index.put_record(
            (topic, record.properties, record.sys_flag, record.log_offset, record.store_timestamp_ms)
        )

    def settle(self, queue: ConsumeQueue, queue_offset: int, log_offset: int, *, strict: bool) -> str:
        """Make ``queue_offset`` the next offset of a queue that expects another one, if the difference can be
        explained. Returns the reason if it cannot, otherwise an empty text.

        ``strict`` means that this store's own writer numbered the queue and recorded every deletion. Then only a
        queue whose beginning has expired may start above 0, and no other jump is valid.
        """
        expected = queue.max_offset
        if queue_offset == 0 and not strict:
            logger.warning(
                "topic was deleted and recreated topic=%s queue_id=%d", queue.topic, queue.queue_id
            )
            queue.clear()
            return ""
        gap = queue_offset - expected
        if expected == 0 and gap <= FIRST_NUMBER_MAX:
            queue.start_at(queue_offset)
            return ""
        if strict or not 0 < gap <= GAP_UNITS_MAX:
            return f"queue offset {queue_offset} where {expected} was expected"
        logger.error(
            "messages missing topic=%s queue_id=%d from=%d to=%d",
            queue.topic,
            queue.queue_id,
            expected,
            queue_offset,
        )
        queue.skip_to(queue_offset, log_offset)
        return ""
