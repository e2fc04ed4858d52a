"""Log ranges that recovery was configured to skip, persisted so that nothing in them is ever served."""

from __future__ import annotations

import msgspec

from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.config_files import ConfigFile

__all__ = ["DamagedRanges"]


class DamagedRanges:
    """The content of ``damagedRanges.json`` in the store's root: pairs of log offsets, each from the first damaged
    byte to the one after the last.

    Apache has no such file and needs none, because it stops at the first damaged record.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._file = ConfigFile(fs, path)
        self.ranges: list[tuple[int, int]] = []

    def load(self) -> None:
        """Read the file, if it exists. Raises ``CorruptionError`` if it cannot be decoded."""
        self.ranges = (
            self._file.load(lambda data: msgspec.json.decode(data, type=list[tuple[int, int]])) or []
        )

    def stop_of(self, log_offset: int) -> int | None:
        """Returns the log offset where the log resumes if damage begins exactly at ``log_offset``, otherwise None."""
        return next((stop for start, stop in self.ranges if start == log_offset), None)

    def keep(self, ranges: list[tuple[int, int]]) -> None:
        """Replace the ranges. They are on disk when this returns."""
        if ranges != self.ranges:
            self.ranges = ranges
            self._file.save(msgspec.json.encode(ranges))
