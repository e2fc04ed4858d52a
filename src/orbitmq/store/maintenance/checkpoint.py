"""Records how much of the store is on disk (Apache: StoreCheckpoint). The file has 4,096 bytes: six longs, followed
by zeros in Apache's file.

The file may lag behind the actual state but never run ahead of it, so a crash only costs recovery time. Six bare
longs cannot reveal a flipped bit, so this store also writes a checksummed copy of them to the part of the page that
Apache neither reads nor writes. A reader takes the smaller value of each pair. The two are equal unless Apache has
written the file since, and then the older value is safe too.

After the copy come two values that only this store's recovery uses: how far the last recovery got, and how many
queues there are. They are valid only if no other writer has changed the page since.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import Final
from zlib import crc32

from orbitmq.runtime.filesystem import FileSystem

__all__ = ["CHECKPOINT_BYTES", "Checkpoint"]

logger = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 4096
LONGS: Final = Struct(">6q")
assert LONGS.size == 48, "persisted: every store directory has one"
COPY: Final = Struct(">8s6qI")
COPY_AT: Final = 2048
COPY_MAGIC: Final = b"orbitck1"
VERIFIED: Final = Struct(">8s2qI")
VERIFIED_AT: Final = COPY_AT + COPY.size
VERIFIED_MAGIC: Final = b"orbitrv1"
assert LONGS.size <= COPY_AT
assert VERIFIED_AT + VERIFIED.size <= CHECKPOINT_BYTES

MORE_THAN_EXIST: Final = 1 << 40
"""A number of queues that makes the next start scan the whole log."""
RECOVERY_MARGIN_MS: Final = 3000
"""Apache starts this much earlier, because a timestamp is taken before its record is on disk."""


class Checkpoint:
    """The contents of the checkpoint file: how much of the log, queues and index is known to be on disk. Assign the
    attributes; ``flush`` writes them if they changed. Owned by the store's thread.

    A missing, short or implausible file reads as zeros, which means "nothing is known to be flushed".
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._written: tuple[int, ...] | None = None
        self.log_ms = 0
        """Store time of the last log record on disk (physicMsgTimestamp)."""
        self.queues_ms = 0
        """Store time up to which the consume queues are on disk (logicsMsgTimestamp)."""
        self.index_ms = 0
        """Store time of the last entry of the last full index file on disk (indexMsgTimestamp)."""
        self.master_flushed_offset = 0
        self.confirm_offset = 0
        self.queues_log_offset = 0
        """Log offset up to which the consume queues are on disk; 0 when unknown (5.5 and later)."""
        self.verified_offset = 0
        """A recovery has read every record of its segment up to this record boundary; 0 when unknown."""
        self.verified_queues = 0
        """How many queues pointed into the log when ``queues_log_offset`` was set. If fewer do at the next start,
        some were lost. 0 when unknown."""

    def load(self) -> None:
        """Read the file. Implausible values become zeros."""
        found = self._fs.stat(self._path)
        if found is None or found.is_directory:
            return
        handle = self._fs.open(self._path)
        try:
            page = self._fs.pread(handle, CHECKPOINT_BYTES, 0)
        finally:
            self._fs.close(handle)
        self._assign(believable(page))
        self.verified_offset, self.verified_queues = verified(page)

    def flush(self, *, sync: bool = True) -> None:
        """Write the values if they changed since the last call. With ``sync``, wait until they are on disk."""
        values = self.values
        extra = (self.verified_offset, self.verified_queues)
        if (*values, *extra) == self._written:
            return
        page = bytearray(CHECKPOINT_BYTES)
        LONGS.pack_into(page, 0, *values)
        copied = page[: LONGS.size]
        COPY.pack_into(page, COPY_AT, COPY_MAGIC, *values, crc32(copied))
        VERIFIED.pack_into(page, VERIFIED_AT, VERIFIED_MAGIC, *extra, verified_checksum(values, extra))
        handle = self._fs.open(self._path, write=True, create=True)
        try:
            written = self._fs.pwrite(handle, page, 0)
            if written != CHECKPOINT_BYTES:
                raise OSError(f"checkpoint {self._path}: wrote {written} of {CHECKPOINT_BYTES} bytes")
            if sync:
                self._fs.sync_data(handle)
        finally:
            self._fs.close(handle)
        self._written = (*values, *extra)

    @property
    def values(self) -> tuple[int, int, int, int, int, int]:
        """The six values in file order."""
        return (
            self.log_ms,
            self.queues_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_log_offset,
        )

    @property
    def safe_ms(self) -> int:
        """Every record stored before this time is on disk, in the log and in its queue (Apache: getMinTimestamp)."""
        return max(0, min(self.log_ms, self.queues_ms) - RECOVERY_MARGIN_MS)

    @property
    def index_safe_ms(self) -> int:
        """Like ``safe_ms``, but also covers the index. Used with ``messageIndexSafe``."""
        return min(self.safe_ms, self.index_ms)

    def _assign(self, values: tuple[int, ...]) -> None:
        (
            self.log_ms,
            self.queues_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_log_offset,
        ) = values


def believable(page: bytes) -> tuple[int, ...]:
    """Returns the six values of a checkpoint page, with invalid ones as zero. All are zero if the page contains
    anything that neither we nor Apache write."""
    if len(page) < LONGS.size or page[LONGS.size : COPY_AT].strip(b"\0"):
        return (0,) * 6
    values: tuple[int, ...] = LONGS.unpack_from(page)
    if len(page) >= COPY_AT + COPY.size:
        magic, *copied, checksum = COPY.unpack_from(page, COPY_AT)
        if magic == COPY_MAGIC and checksum == crc32(LONGS.pack(*copied)):
            if tuple(copied) != values:
                logger.warning("checkpoint differs from its copy, using the smaller values values=%s", values)
            values = tuple(map(min, values, copied))
    return tuple(max(0, value) for value in values)


def verified(page: bytes) -> tuple[int, int]:
    """Returns how far a recovery got, as a log offset, and the number of queues at that time. Both are zero if
    another writer has changed the page."""
    if len(page) < VERIFIED_AT + VERIFIED.size:
        return 0, 0
    magic, log_offset, queue_count, checksum = VERIFIED.unpack_from(page, VERIFIED_AT)
    if magic != VERIFIED_MAGIC or min(log_offset, queue_count) < 0:
        return 0, 0
    if checksum != verified_checksum(LONGS.unpack_from(page), (log_offset, queue_count)):
        return 0, 0
    return log_offset, queue_count


def verified_checksum(values: tuple[int, ...], extra: tuple[int, int]) -> int:
    """Returns a checksum of the extra values that also covers the six values, because another writer that changes one
    of those may have cut the log."""
    return crc32(Struct(">8q").pack(*values, *extra))
