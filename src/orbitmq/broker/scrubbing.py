"""Runs the store's scrubber at the pace of ``scrubIntervalHours`` and keeps its position across restarts."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.maintenance.scrub import PIECE_BYTES
from orbitmq.store.message_store import MessageStore

__all__ = ["Scrubbing"]

logger = logging.getLogger(__name__)

ROUND_S: Final = 1.0
BYTES_PER_ROUND_MAX: Final = 16 << 20
_KEEP_EVERY_S: Final = 300.0
_HOUR_S: Final = 3600.0


class _Kept(msgspec.Struct, frozen=True, rename="camel"):
    position: int
    passed_ms: int
    """When the last pass was completed; 0 before the first one."""


class Scrubbing:
    """Verifies stored data in rounds, one per second. Each round reads the bytes that have become due, in pieces, and
    yields to other work in between."""

    def __init__(self, store: MessageStore, fs: FileSystem, file: SafeFile, clock: Clock) -> None:
        """``file`` stores the position. Raises ``CorruptionError`` and ``OSError``."""
        self._store = store
        self._fs = fs
        self._file = file
        self._clock = clock
        kept = file.load(lambda content: msgspec.json.decode(content, type=_Kept)) or _Kept(0, 0)
        self.passed_ms = kept.passed_ms
        """When the last pass was completed; 0 before the first one."""
        store.scrubber.resume_at(kept.position)
        self._due_bytes = 0.0
        self._round_at = self._kept_at = clock.monotonic()

    async def round(self) -> None:
        """Verify the bytes that are due. Raises ``OSError`` if the position cannot be saved."""
        scrubber, now = self._store.scrubber, self._clock.monotonic()
        elapsed_s, self._round_at = now - self._round_at, now
        hours = self._store.config.scrub_interval_hours
        if not hours:
            return
        size = self._store.max_log_offset - self._store.min_log_offset
        self._due_bytes += elapsed_s * size / (hours * _HOUR_S)
        self._due_bytes = min(self._due_bytes, BYTES_PER_ROUND_MAX)
        while self._due_bytes >= min(PIECE_BYTES, size):
            piece = scrubber.next_piece()
            if piece is None:
                if size:
                    self.passed_ms = self._clock.now_ms()
                    self._kept_at = 0.0
                break
            before = scrubber.position
            try:
                data = await asyncio.to_thread(scrubber.read_piece, self._fs, piece)
            except OSError as error:
                await self._unreadable(piece.log_offset, piece.path, error)
                break
            scrubber.check(piece, data)
            self._due_bytes -= max(0, scrubber.position - before) or piece.size
        if now - self._kept_at >= _KEEP_EVERY_S:
            self._kept_at = now
            kept = _Kept(scrubber.position, self.passed_ms)
            await asyncio.to_thread(self._file.save, msgspec.json.encode(kept))

    async def _unreadable(self, log_offset: int, path: str, error: OSError) -> None:
        """Log and skip a segment that still exists but cannot be read because its disk is failing."""
        scrubber = self._store.scrubber
        if scrubber.position != log_offset or self._fs.stat(path) is None:
            return
        logger.error("log segment cannot be read path=%s log_offset=%d error=%s", path, log_offset, error)
        scrubber.skip_segment()
