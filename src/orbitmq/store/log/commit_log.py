"""The log of all messages, the source of truth from which everything else is rebuilt (Apache: ``CommitLog``).

Invariants
1. ``end`` moves only after the bytes before it were written completely; a failed write leaves ``end`` unchanged and
   zeros after it.
2. A record never spans segments; eight bytes stay free after it for the end-of-segment marker.
3. ``flushed <= end``, and everything before ``flushed`` is on disk.
4. ``damaged`` holds the ranges a recovery was configured to skip; nothing in them is ever served.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from orbitmq.kernel.layout import (
    BLANK,
    BLANK_BYTES,
    BORN_V6,
    FLAG_AND_STORE_TIME,
    HOST_V6_MORE_BYTES,
    IDENTITY,
    LONG,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_TIME_AT,
    SYS_FLAG_AT,
)
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.log.segment import SegmentList

__all__ = ["CommitLog"]

logger = logging.getLogger(__name__)

_NEVER: Final = 1 << 62


class CommitLog:
    """Appends at ``end``, reads before it. The store's hot path reads the attributes directly."""

    __slots__ = (
        "_fs",
        "_pwrite",
        "damaged",
        "end",
        "failed",
        "flushed",
        "handle",
        "last_store_ms",
        "partial_start",
        "prepare_at",
        "room_end",
        "segment_bytes",
        "segment_start",
        "segments",
    )

    def __init__(self, fs: FileSystem, segments: SegmentList) -> None:
        self._fs = fs
        self._pwrite = fs.pwrite
        self.segments = segments
        self.segment_bytes = segments.segment_bytes
        self.end = 0
        self.flushed = 0
        self.last_store_ms = 0
        self.failed = ""
        """Why no more writes are possible; empty while the log is healthy."""
        self.damaged: list[tuple[int, int]] = []
        self.handle = -1
        self.segment_start = 0
        self.room_end = 0
        """A record must end at or before this offset to fit the current segment."""
        self.partial_start = -1
        """On a replica, the log offset of a record that has only partly arrived; -1 if the log ends at a record
        boundary."""
        self.prepare_at = _NEVER
        """Beyond this offset the next segment's file should be created, off the hot path."""

    @property
    def start(self) -> int:
        """The first log offset available."""
        starts = self.segments.starts
        return starts[0] if starts else self.end

    def move_to(self, end: int) -> None:
        """Set the end of the log. The segment that contains it, if it exists, becomes the current one."""
        self.end = end
        start = end - end % self.segment_bytes
        if start in self.segments:
            self.handle = self.segments.handle(start)
            self.segment_start = start
            self.room_end = start + self.segment_bytes - BLANK_BYTES
            self.prepare_at = start + self.segment_bytes // 2
        else:
            # At the very end of the last segment, or without segments: the next write creates one.
            self.handle = -1
            self.segment_start = start
            self.room_end = -1
            self.prepare_at = _NEVER

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes, all or nothing. The caller has checked that they fit the segment.

        Raises ``StoreUnavailable`` with the log unchanged; later writes may succeed.
        """
        size = len(data)
        try:
            written = self._pwrite(self.handle, data, self.end - self.segment_start)
            if written != size:
                self._write_rest(data, written)
        except OSError as error:
            self._erase(size)
            raise unavailable("append", error) from error
        self.end += size

    def _write_rest(self, data: bytes | bytearray | memoryview, written: int) -> None:
        with memoryview(data) as view:
            while written < len(view):
                count = self._pwrite(self.handle, view[written:], self.end - self.segment_start + written)
                if count <= 0:
                    raise OSError(errno.EIO, "the disk accepts no more bytes")
                written += count

    def _erase(self, size: int) -> None:
        """Zero what a failed write may have left, so that a restart cannot take it for a record."""
        position = self.end - self.segment_start
        for at in range(position, position + size, 65536):
            count = min(65536, position + size - at)
            try:
                # Blocks the failed write allocated are overwritten in place; where none were allocated there is
                # nothing to erase.
                if any(self._fs.pread(self.handle, count, at)):
                    self._pwrite(self.handle, bytes(count), at)
            except OSError as error:
                self.failed = f"a failed write at log offset {self.end} could not be undone: {error}"
                logger.error("store stopped accepting writes reason=%s", self.failed)
                return

    def roll(self) -> None:
        """End the current segment with a marker and continue in the next. Raises ``StoreUnavailable``."""
        next_start = self.segment_start + self.segment_bytes if self.handle >= 0 else self.segment_start
        try:
            if next_start not in self.segments:
                self.segments.make_file(next_start)
            room = next_start - self.end
            if room >= BLANK_BYTES and self.handle >= 0:
                position = self.end - self.segment_start
                if self._pwrite(self.handle, BLANK.pack(room, MAGIC_BLANK), position) != BLANK_BYTES:
                    raise OSError(errno.ENOSPC, "no space for the end-of-segment marker")
        except OSError as error:
            raise unavailable("start of a new segment", error) from error
        if next_start not in self.segments:
            self.segments.add(next_start)
        self.move_to(next_start)

    def slice(self, log_offset: int, size: int) -> memoryview | None:
        """Returns ``size`` bytes from a log offset on, within one segment; None if some of them are missing."""
        end = log_offset + size
        if log_offset < 0 or size < 0 or end > self.end:
            return None
        position = log_offset % self.segment_bytes
        if position + size > self.segment_bytes:
            return None
        view = self.segments.view(log_offset - position)
        return None if view is None else view[position : position + size]

    def record(self, log_offset: int, size: int | None = None) -> memoryview | None:
        """Returns the record that starts exactly at ``log_offset`` (and has that size); None if there is none.

        Offsets come from message ids, which are untrusted, so the record must contain its own offset to be accepted.
        """
        head = self.slice(log_offset, RECORD_BYTES_MIN)
        if head is None or self.in_damage(log_offset):
            return None
        own_size, magic, own_offset = IDENTITY.unpack_from(head)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or own_offset != log_offset:
            return None
        if own_size < RECORD_BYTES_MIN or (size is not None and own_size != size):
            return None
        return self.slice(log_offset, own_size)

    def store_time(self, log_offset: int) -> int:
        """Returns the store time of the record that starts at ``log_offset``; -1 if no record starts there."""
        head = self.slice(log_offset, RECORD_BYTES_MIN)
        if head is None:
            return -1
        sys_flag, store_ms = FLAG_AND_STORE_TIME.unpack_from(head, SYS_FLAG_AT)
        if sys_flag & BORN_V6:
            (store_ms,) = LONG.unpack_from(head, STORE_TIME_AT + HOST_V6_MORE_BYTES)
        return int(store_ms)

    def window(self, log_offset: int, limit: int | None = None) -> tuple[memoryview, int] | None:
        """Returns the intact part of the log around an offset, within one segment, and its first log offset.

        The part ends at the end of the log, or at ``limit``. Returns None if the offset is outside every intact part.
        """
        # Hot: runs once per pull, like `QueueReader.read`.
        end = self.end
        if limit is not None and limit < end:
            end = limit
        if not 0 <= log_offset < end:
            return None
        start = log_offset - log_offset % self.segment_bytes
        view = self.segments.view(start)
        if view is None:
            return None
        low, high = start, start + self.segment_bytes
        if high > end:
            high = end
        for damage_start, damage_end in self.damaged:
            if damage_start <= log_offset < damage_end:
                return None
            if damage_end <= log_offset:
                low = max(low, damage_end)
            else:
                high = min(high, damage_start)
        return view[low - start : high - start], low

    def in_damage(self, log_offset: int) -> bool:
        """Whether the offset is in a range that recovery skipped."""
        return any(start <= log_offset < end for start, end in self.damaged)

    def whole_end(self, log_offset: int) -> int:
        """Returns ``log_offset``, or the start of the partial record at the end of the log if that is earlier.
        ``log_offset`` must be a record boundary or the end of the log."""
        return log_offset if self.partial_start < 0 else min(log_offset, self.partial_start)

    def overwrite(self, log_offset: int, data: bytes) -> None:
        """Repair bytes before the end, within one segment. They are on disk when this returns. Raises ``OSError``."""
        start = log_offset - log_offset % self.segment_bytes
        handle, written = self.segments.handle(start), 0
        while written < len(data):
            count = self._pwrite(handle, memoryview(data)[written:], log_offset - start + written)
            if count <= 0:
                raise OSError(errno.EIO, "the disk accepts no more bytes")
            written += count
        self._fs.sync_data(handle)

    def sync(self, since: int, until: int) -> None:
        """Sync a range of the log to disk. May run on any thread; only the store's thread advances ``flushed``."""
        start = since - since % self.segment_bytes
        while start < until:
            if start in self.segments:
                self._fs.sync_data(self.segments.handle(start))
            start += self.segment_bytes


def unavailable(action: str, error: OSError) -> StoreUnavailable:
    """Returns the error to raise when the disk refused a write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(f"{action} refused: the disk is full")
    return StoreUnavailable(f"{action} failed: {error}")
