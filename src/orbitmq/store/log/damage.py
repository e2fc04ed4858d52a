"""Ranges of the log that a recovery was told to skip. Remembered, so that nothing in them is ever served."""

from __future__ import annotations

import msgspec

from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.config_files import ConfigFile

__all__ = ["DamageNotes"]


class DamageNotes:
    """``damagedRanges.json`` below the root: pairs of log offsets, first and after the last damaged byte.

    Apache has no such file and ignores it. It has to: it stops at the first damaged record.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._file = ConfigFile(fs, path)
        self.ranges: list[tuple[int, int]] = []

    def load(self) -> None:
        """Raises ``CorruptionError`` when the file is there but unreadable."""
        self.ranges = (
            self._file.load(lambda data: msgspec.json.decode(data, type=list[tuple[int, int]])) or []
        )

    def stop_of(self, log_offset: int) -> int | None:
        """Where the log goes on if damage begins exactly here."""
        return next((stop for start, stop in self.ranges if start == log_offset), None)

    def keep(self, ranges: list[tuple[int, int]]) -> None:
        """Replace the notes; on the disk when this returns."""
        if ranges != self.ranges:
            self.ranges = ranges
            self._file.save(msgspec.json.encode(ranges))
