"""The filter extensions of all queues (``enableConsumeQueueExt``), which units refer to in place of a tag code.

Extensions are off by default, like in Apache. When they are on, every new unit gets an extension with its tag code,
store time and the filter bitmap that the broker computes. If an extension cannot be written, the unit keeps a plain
tag code, which every reader accepts too.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from typing import Final

from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.layout import UNIT, UNIT_BYTES
from orbitmq.store.queues.consume_queue import ConsumeQueue
from orbitmq.store.queues.queue_ext import ExtUnit, QueueExt, is_ext_address

__all__ = ["Bitmap", "Extensions"]

logger = logging.getLogger(__name__)

UNITS_PER_STEP: Final = 4096

Bitmap = Callable[[str, bytes], bytes]
"""Computes a message's filter bitmap from its topic and property text."""


class Extensions:
    """The extensions of each queue, opened when first needed."""

    def __init__(self, fs: FileSystem, config: StoreConfig, bitmap: Bitmap | None = None) -> None:
        self._fs = fs
        self._root = config.path("consumequeue_ext")
        self._file_bytes = config.queue_ext_file_bytes
        self._handles_max = config.open_queue_files_max
        self._opened: dict[ConsumeQueue, QueueExt] = {}
        self._bitmap = bitmap

    def code(self, queue: ConsumeQueue, tag_code: int, store_ms: int, properties: bytes) -> int:
        """Returns the code for a queue's next unit: the address of a new extension, or the tag code if writing it
        failed."""
        bitmap = b"" if self._bitmap is None else self._bitmap(queue.topic, properties)
        try:
            return self._of(queue).append(ExtUnit(tag_code, store_ms, bitmap))
        except (OSError, ValueError) as error:
            logger.warning(
                "no filter extension written topic=%s queue_id=%d error=%s",
                queue.topic,
                queue.queue_id,
                error,
            )
            return tag_code

    def with_tag_codes(self, queue: ConsumeQueue, units: bytes) -> bytes:
        """Returns the same units with extension addresses replaced by tag codes, where the extension still exists."""
        resolved = bytearray(units)
        for index, (log_offset, size, code) in enumerate(UNIT.iter_unpack(units)):
            extension = self._of(queue).read(code) if is_ext_address(code) else None
            if extension is not None:
                UNIT.pack_into(resolved, index * UNIT_BYTES, log_offset, size, extension.tag_code)
        return bytes(resolved)

    def cut(self, queue: ConsumeQueue) -> None:
        """Drop the extensions of units that were cut off the end of the queue."""
        self._of(queue).resume_after(last_address(queue))

    def expire(self, queue: ConsumeQueue) -> None:
        """Drop the extensions of units that expired at the start of the queue."""
        unit = queue.unit(queue.min_offset) if queue.min_offset < queue.max_offset else None
        if unit is not None and is_ext_address(unit[2]):
            self._of(queue).drop_before(unit[2])

    def delete_topic(self, topic: str) -> None:
        for queue in [queue for queue in self._opened if queue.topic == topic]:
            self._opened.pop(queue).close()
        self._fs.remove_tree(posixpath.join(self._root, topic))

    def flush(self) -> None:
        """Sync all open extensions to disk."""
        for extension in self._opened.values():
            extension.flush()

    def close(self) -> None:
        for extension in self._opened.values():
            extension.close()
        self._opened.clear()

    def _of(self, queue: ConsumeQueue) -> QueueExt:
        extension = self._opened.get(queue)
        if extension is None:
            if len(self._opened) >= self._handles_max:
                self.flush()
                self.close()
            directory = posixpath.join(self._root, queue.topic, str(queue.queue_id))
            extension = QueueExt(self._fs, directory, self._file_bytes)
            extension.load(last_address(queue))
            self._opened[queue] = extension
        return extension


def last_address(queue: ConsumeQueue) -> int | None:
    """Returns the extension address in the newest unit that has one; None if no unit has one.

    Scans every unit if necessary, because an address assigned twice would make one message appear with another's tag.
    """
    end = queue.max_offset
    while end > queue.min_offset:
        start = max(queue.min_offset, end - UNITS_PER_STEP)
        at = start
        found: int | None = None
        while at < end and (data := queue.units(at, end - at)):
            for _, _, code in UNIT.iter_unpack(data):
                at += 1
                if is_ext_address(code):
                    found = code
        if found is not None:
            return found
        end = start
    return None
