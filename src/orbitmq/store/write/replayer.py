"""Queue units and index keys of replicated records, read from the bytes they came in.

A slave does this for every message of its master, in bulk (``orbitmq.kernel``). What is not that simple (a queue met
for the first time, numbers that jump, units that hold something else than tag codes) is left to ``Dispatcher``.
"""

from __future__ import annotations

from orbitmq.kernel import NO_KEYS, dispatch_records
from orbitmq.store.components import StoreParts
from orbitmq.store.queues.consume_queue import TAIL_BYTES_MAX, ConsumeQueue

__all__ = ["Replayer"]


class Replayer:
    """Feeds the queues and the index of one store."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._with_keys = NO_KEYS if parts.index is None else parts.index.with_keys

    def replay(
        self, data: bytes | memoryview, log_offset: int, arrived: dict[ConsumeQueue, None]
    ) -> tuple[int, list[ConsumeQueue]]:
        """Take in the leading records of ``data``, which lies at ``log_offset`` in the log: all of them or none.

        Gives the log offset after them, and the queues whose tails have got long, for the caller to write.
        """
        parts = self._parts
        data = bytes(data)
        found = dispatch_records(data, 0, len(data), False, log_offset, self._with_keys, len(data))
        if found is None:
            return log_offset, []
        groups, _, newest_ms, position, keys = found
        by_key = parts.queues.by_key
        queues: list[ConsumeQueue] = []
        for topic, queue_id, first, _ in groups:
            queue = by_key.get((topic.decode("utf-8", "replace"), queue_id))
            if queue is None or queue.max_offset != first or queue.has_own_codes:
                return log_offset, []
            queues.append(queue)
        for queue, (_, _, _, units) in zip(queues, groups, strict=True):
            queue.extend(units)
            arrived[queue] = None
        if parts.index is not None:
            parts.index.put_keys(keys)
        parts.log.last_store_ms = max(parts.log.last_store_ms, newest_ms)
        return log_offset + position, [queue for queue in queues if len(queue.tail) >= TAIL_BYTES_MAX]
