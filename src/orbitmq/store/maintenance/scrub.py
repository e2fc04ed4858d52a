"""Verifies the whole commit log in the background, so that damage is found while a replica is intact.

Retention does not read messages and consumers read the newest ones, so a flipped bit in an old segment may go
unnoticed for weeks. The scrubber reads the log from its start to the flushed offset, verifies every record against
its checksum and its queue unit, and starts over. It reports damage to ``Integrity``, which rewrites queue units from
the log and repairs records from another broker. It is paced to read the log once per ``scrubIntervalHours``.

Each piece takes three steps: ``next_piece`` chooses it, ``read_piece`` reads it (on any thread, with its own
descriptor, because a segment may expire meanwhile), and ``check`` verifies it on the store's thread.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from orbitmq.kernel import walk_records
from orbitmq.kernel.layout import BLANK, BLANK_BYTES, MAGIC_BLANK
from orbitmq.record.scan import scan
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.components import StoreParts
from orbitmq.store.read.integrity import Integrity
from orbitmq.store.write.dispatch import NO_UNIT

__all__ = ["PIECE_BYTES", "Piece", "Scrubber"]

PIECE_BYTES: Final = 128 << 10
"""Size of a piece. It blocks the event loop for about 5 ms with records of 200 bytes."""
_PIECE_BYTES_MAX: Final = 64 << 20
"""Maximum size of a piece that is enlarged for a long record."""
_TRANSACTION_MASK: Final = 0xC


class Piece(NamedTuple):
    """A part of one segment. It begins with a record."""

    path: str
    log_offset: int
    position: int
    size: int
    is_last: bool
    """Whether the segment, or its flushed part, ends with the piece."""


class Scrubber:
    """The scrubber of one store. Its position survives restarts if the owner persists it."""

    def __init__(self, parts: StoreParts, integrity: Integrity) -> None:
        self._parts = parts
        self._log = parts.log
        self._integrity = integrity
        self._size = PIECE_BYTES
        self.position = 0
        """Log offset up to which this pass has verified the log."""
        self.verified_bytes = 0
        """Bytes verified since the broker started."""
        self.damage_count = 0
        """Damaged records and queue units found since the broker started."""
        self.pass_count = 0
        """Passes completed since the broker started."""

    @property
    def end(self) -> int:
        """The log offset where a pass ends. Later bytes may be only in the page cache."""
        return self._log.whole_end(self._log.flushed)

    def resume_at(self, log_offset: int) -> None:
        """Continue a pass of an earlier process at ``log_offset``."""
        self.position = log_offset

    def skip_segment(self) -> None:
        """Count the segment at the position as damaged because it cannot be read, and continue after it."""
        self.damage_count += 1
        self.position += self._log.segment_bytes - self.position % self._log.segment_bytes

    def next_piece(self) -> Piece | None:
        """Returns the next piece to read; None if a pass is complete. The call after that starts another pass."""
        log = self._log
        self.position = max(self.position, log.start)
        if self.position >= self.end:
            if self.end > log.start:
                self.pass_count += 1
            self.position = log.start
            return None
        at = self.position % log.segment_bytes
        start = self.position - at
        room = min(log.segment_bytes, self.end - start) - at
        size = min(self._size, room)
        return Piece(log.segments.path_for(start), self.position, at, size, size == room)

    @staticmethod
    def read_piece(fs: FileSystem, piece: Piece) -> bytes:
        """Returns the bytes of a piece. Raises ``OSError``."""
        handle = fs.open(piece.path)
        try:
            return fs.pread(handle, piece.size, piece.position)
        finally:
            fs.close(handle)

    def check(self, piece: Piece, data: bytes) -> None:
        """Verify a piece that was read, and advance."""
        log = self._log
        if self.position != piece.log_offset or piece.log_offset + piece.size > self.end:
            return  # the log was cut, or the segment has expired
        walked, end = walk_records(data, 0, len(data), True, piece.log_offset)
        for record in walked:
            if not self._integrity.matches_property_crc(data[record[0] : record[0] + record[1]]):
                self.damage_count += 1
                self._integrity.found(record[6], "it does not match its property __CRC32#")
            self._check_unit(record[11], record[4], record[5], record[7], (record[6], record[1]))
        self.verified_bytes += end
        self.position += end
        if end == len(data) == piece.size:
            self._size = PIECE_BYTES
            return
        self._after_records(piece, data, end, log.segment_bytes)

    def _after_records(self, piece: Piece, data: bytes, end: int, segment_bytes: int) -> None:
        """Continue after a piece's last whole record: with a larger piece, in the next segment, or past damage."""
        left = segment_bytes - self.position % segment_bytes
        if end + BLANK_BYTES <= len(data) and BLANK.unpack_from(data, end) == (left, MAGIC_BLANK):
            self.position += left
            return
        if not piece.is_last and end:
            return  # the next piece begins with the record that this piece cuts off
        if not piece.is_last and self._size < _PIECE_BYTES_MAX and self._may_be_long(data, end):
            self._size = min(self._size * 8, _PIECE_BYTES_MAX)
            return
        self._size = PIECE_BYTES
        skipped = next((stop for start, stop in self._log.damaged if start <= self.position < stop), None)
        if skipped is not None:
            self.position = skipped
            return
        self.damage_count += 1
        scanned = scan(data, end, len(data), log_base=piece.log_offset)
        reason = "" if any(scanned) or scanned.end is None else scanned.end.reason
        self._integrity.found(self.position, reason or "zeros")
        self.position = self._integrity.next_record(self.position)

    @staticmethod
    def _may_be_long(data: bytes, end: int) -> bool:
        """Whether the record that starts at ``end`` extends past the data, according to its size field."""
        if end + BLANK_BYTES > len(data):
            return True
        size, magic = BLANK.unpack_from(data, end)
        return bool(len(data) - end < size <= _PIECE_BYTES_MAX and magic != MAGIC_BLANK)

    def _check_unit(
        self, topic: bytes, queue_id: int, queue_offset: int, sys_flag: int, place: tuple[int, int]
    ) -> None:
        if sys_flag & _TRANSACTION_MASK in NO_UNIT:
            return
        queue = self._parts.queues.by_key.get((topic.decode("utf-8", "replace"), queue_id))
        # A deleted topic has no queue, and in a recreated topic's queue that offset belongs to a later record.
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return
        unit = queue.unit(queue_offset)
        if unit is None or unit[:2] == place or (unit[0] > place[0] and self._log.record(*unit[:2])):
            return
        self.damage_count += 1
        self._integrity.examine(queue, [queue_offset])
