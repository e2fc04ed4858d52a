"""The values in the store's public interface."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from orbitmq.kernel import Message as NewMessage
from orbitmq.kernel.layout import SLICE

__all__ = [
    "Appended",
    "FlushMode",
    "IndexUpdate",
    "NewMessage",
    "PutSends",
    "ReadResult",
    "ReadStatus",
    "SegmentInfo",
]


class FlushMode(enum.Enum):
    """When an append is complete; values are Apache's ``flushDiskType``."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class Appended(msgspec.Struct, gc=False):
    """The position of a stored message."""

    log_offset: int
    size: int
    queue_offset: int
    store_timestamp_ms: int


PutSends = list[tuple[tuple[str, int], tuple[int, int, int]]]
"""The result of an append of sends: for each (topic, queue id), the number of messages, their size in bytes and the
number of sends."""

Arrival = Callable[[str, int], object]
"""Called with the topic and id of a queue that has new messages."""


class ReadStatus(enum.Enum):
    """The outcome of a queue read; the names are Apache's."""

    __hash__ = object.__hash__  # called for every pull; Enum's is a Python function

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
    """The result of ``MessageStore.read``."""

    status: ReadStatus
    next_offset: int
    """The queue offset where the next read of this queue should start."""
    min_offset: int
    max_offset: int
    pieces: list[tuple[memoryview, bytes]] = []
    """Parts of the log, each with the bounds of its record slices (packed as ``SLICE``); adjacent records share
    one."""
    count: int = 0
    size_bytes: int = 0
    from_disk: bool = False
    """Whether the consumer lags so far behind that another replica should serve it (Apache: suggest pulling from
    slave)."""

    @property
    def slices(self) -> list[memoryview]:
        """Whole records in queue order, ready to send."""
        return [
            window[start:end] for window, bounds in self.pieces for start, end in SLICE.iter_unpack(bounds)
        ]


class IndexUpdate(NamedTuple):
    """The key index's last update: time and log offset of its newest entry."""

    timestamp_ms: int
    log_offset: int


class SegmentInfo(NamedTuple):
    """One log segment, for retention."""

    start: int
    """First log offset."""
    size_bytes: int
    path: str
    modified_ms: int
