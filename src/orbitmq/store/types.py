"""The values that cross the store's border."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from orbitmq.kernel import Message as NewMessage
from orbitmq.kernel.layout import SLICE

__all__ = [
    "Appended",
    "AppendedSend",
    "FlushMode",
    "IndexUpdate",
    "NewMessage",
    "ReadResult",
    "ReadStatus",
    "SegmentInfo",
]


class FlushMode(enum.Enum):
    """When an append counts as done; values are Apache's ``flushDiskType``."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class Appended(msgspec.Struct, gc=False):
    """Where a message landed."""

    log_offset: int
    size: int
    queue_offset: int
    store_timestamp_ms: int


class AppendedSend(msgspec.Struct, gc=False):
    """Where the message of a send landed, or the messages of a batch: neighbours in the log and in their queue."""

    log_offsets: list[int]
    end: int
    """Log offset after the last one."""
    queue_offset: int
    """Of the first one."""
    store_timestamp_ms: int


Arrival = Callable[[str, int], None]
"""Told the topic and the id of a queue that has got messages."""


class ReadStatus(enum.Enum):
    """How a read of a queue ended; the names are Apache's."""

    __hash__ = object.__hash__  # looked up for every pull; that of Enum is a Python function

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class ReadResult(msgspec.Struct, gc=False):
    """Answer of ``MessageStore.read``."""

    status: ReadStatus
    next_offset: int
    """Where the next read of this queue should start."""
    min_offset: int
    max_offset: int
    pieces: list[tuple[memoryview, bytes]] = []
    """Parts of the log, and where slices of whole records begin and end in each (a row of ``SLICE``); neighbours
    share a slice."""
    count: int = 0
    size_bytes: int = 0
    from_disk: bool = False
    """The consumer lags so far that another replica should serve it (Apache: suggest pulling from slave)."""

    @property
    def slices(self) -> list[memoryview]:
        """Whole records in queue order, ready to send."""
        return [
            window[start:end] for window, bounds in self.pieces for start, end in SLICE.iter_unpack(bounds)
        ]


class IndexUpdate(NamedTuple):
    """How far the key index has got."""

    timestamp_ms: int
    log_offset: int


class SegmentInfo(NamedTuple):
    """One log segment as retention sees it."""

    start: int
    """First log offset."""
    size_bytes: int
    path: str
    modified_ms: int
