"""The log's files: consecutive segments of one size, each named by its first log offset (Apache:
``MappedFileQueue``).

Segments are written with ``pwrite``, never through a map, so that a full disk is an error and not a signal. They are
read through read-only maps, which Linux keeps coherent with ``pwrite``. A map is dropped, never closed: slices in use
keep it alive until the last one is released, so a segment may be removed while its bytes are still being sent.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from orbitmq.errors import CorruptionError
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.layout import PAGE_BYTES, file_name, offset_of_name
from orbitmq.store.types import SegmentInfo

__all__ = ["SegmentList", "zero_range"]

logger = logging.getLogger(__name__)

ZERO_CHUNK_BYTES: Final = 1 << 20


class SegmentList:
    """Segments in order and without gaps. Manages their files and maps; the end of the log is kept elsewhere."""

    def __init__(
        self, fs: FileSystem, directories: Sequence[str], segment_bytes: int, *, maps_max: int, warm_up: bool
    ) -> None:
        self._fs = fs
        self._directories = list(directories)
        self.segment_bytes = segment_bytes
        self._warm_up = warm_up
        self._maps_max = maps_max
        self.starts: list[int] = []
        self._paths: dict[int, str] = {}
        self._made_ahead: set[int] = set()
        self._handles: dict[int, int] = {}
        self._maps: OrderedDict[int, memoryview] = OrderedDict()

    def load(self) -> None:
        """Find the files. Raises ``CorruptionError`` for a file of the wrong length or a missing segment in the
        middle."""
        fs, size = self._fs, self.segment_bytes
        found: dict[int, str] = {}
        for directory in self._directories:
            fs.make_directories(directory)
            for name in fs.names(directory):
                path = posixpath.join(directory, name)
                start = offset_of_name(name)
                if start is None:
                    logger.warning("unknown file in the log directory ignored path=%s", path)
                    continue
                stat = fs.stat(path)
                if stat is not None and not stat.is_directory:
                    found[start] = path
        starts = sorted(found)
        while starts and self._is_unused(found, starts):
            # Created ahead by a process that died before it used the file, or before it gave the file its size.
            logger.warning("unused segment removed path=%s", found[starts[-1]])
            fs.remove(found.pop(starts.pop()))
        for index, start in enumerate(starts):
            stat = fs.stat(found[start])
            if stat is None or stat.size_bytes != size or start % size:
                raise CorruptionError(
                    f"log segment {found[start]} has {stat.size_bytes if stat else 0} bytes, {size} expected; "
                    "open the store with the mappedFileSizeCommitLog it was written with"
                )
            if index and start != starts[index - 1] + size:
                raise CorruptionError(
                    f"the log segment at offset {starts[index - 1] + size} is missing; restore it, or move the "
                    f"segments before it away to open what follows from {start}"
                )
        self.starts = starts
        self._paths = found

    def _is_unused(self, found: dict[int, str], starts: list[int]) -> bool:
        """Whether the last file never contained a record and must be removed, because it is empty or follows a
        gap."""
        path = found[starts[-1]]
        stat = self._fs.stat(path)
        if stat is None or stat.size_bytes == 0:
            return True
        if len(starts) == 1 or starts[-2] + self.segment_bytes == starts[-1]:
            return False
        handle = self._fs.open(path)
        try:
            return not any(self._fs.pread(handle, PAGE_BYTES, 0))
        finally:
            self._fs.close(handle)

    @property
    def end(self) -> int:
        """The log offset after the last segment; 0 if there are no segments."""
        return self.starts[-1] + self.segment_bytes if self.starts else 0

    def __contains__(self, start: object) -> bool:
        return start in self._paths

    def infos(self) -> list[SegmentInfo]:
        """Returns the segments in the form retention uses."""
        infos: list[SegmentInfo] = []
        for start in self.starts:
            stat = self._fs.stat(self._paths[start])
            modified_ms = stat.modified_ms if stat is not None else 0
            infos.append(SegmentInfo(start, self.segment_bytes, self._paths[start], modified_ms))
        return infos

    def handle(self, start: int) -> int:
        """Returns a descriptor for writing or syncing the segment that starts at ``start``. The descriptor is owned
        by this list."""
        handle = self._handles.get(start)
        if handle is None:
            handle = self._handles[start] = self._fs.open(self._paths[start], write=True)
        return handle

    def view(self, start: int) -> memoryview | None:
        """Returns the whole segment that starts at ``start``, mapped read-only; None if it does not exist."""
        view = self._maps.get(start)
        if view is not None:
            self._maps.move_to_end(start)
            return view
        path = self._paths.get(start)
        if path is None:
            return None
        handle = self._fs.open(path)
        try:
            view = self._fs.map(handle, self.segment_bytes)
        finally:
            self._fs.close(handle)
        self._maps[start] = view
        if len(self._maps) > self._maps_max:
            self._maps.popitem(last=False)
        return view

    def release_maps(self) -> None:
        """Drop all maps. Mapping a segment again on demand takes microseconds.

        Every page read through a map counts as this process's memory while the map exists, although the kernel could
        reclaim it. Regular calls limit the reported memory to pages read recently.
        """
        self._maps.clear()

    def path_for(self, start: int) -> str:
        """Returns the path of the segment that starts at ``start``, which need not exist. New segments are spread
        over all log directories."""
        known = self._paths.get(start)
        if known is not None:
            return known
        directory = self._directories[start // self.segment_bytes % len(self._directories)]
        return posixpath.join(directory, file_name(start))

    def make_file(self, start: int) -> None:
        """Create a future segment's file, zero-filled at full size. May run on any thread. Harmless if the file
        already exists."""
        fs, path = self._fs, self.path_for(start)
        handle = fs.open(path, write=True, create=True)
        try:
            if fs.file_size(handle) != self.segment_bytes:
                fs.truncate(handle, self.segment_bytes)
            if self._warm_up:
                fs.allocate(handle, 0, self.segment_bytes)
            fs.sync_data(handle)
        finally:
            fs.close(handle)
        fs.sync_directory(posixpath.dirname(path))
        self._made_ahead.add(start)

    def drop_made_ahead(self) -> None:
        """Remove files created for segments that the log has not reached. No other thread may be creating one."""
        for start in sorted(self._made_ahead, reverse=True):
            # The log may have reached the segment while the other thread created it.
            if start not in self._paths:
                self._fs.remove(self.path_for(start))
        self._made_ahead.clear()

    def add(self, start: int) -> None:
        """Add the next segment to the list. Its file must exist."""
        assert not self.starts or start == self.end, (start, self.end)
        self._paths[start] = self.path_for(start)
        self._made_ahead.discard(start)
        self.starts.append(start)

    def remove(self, start: int) -> None:
        """Remove the first or the last segment and its file."""
        self._fs.remove(self._paths[start])  # first, so that a file that cannot be removed stays in the list
        self.detach(start)

    def detach(self, start: int) -> str:
        """Remove the first or the last segment from the list. Returns the path of its file, which the caller must
        remove.

        Removing a one-gigabyte file takes tens of milliseconds, so the caller can do it on another thread.
        """
        assert start in (self.starts[0], self.starts[-1]), (start, self.starts)
        self.starts.remove(start)
        self._maps.pop(start, None)
        handle = self._handles.pop(start, None)
        if handle is not None:
            self._fs.close(handle)
        return self._paths.pop(start)

    def zero_from(self, log_offset: int) -> None:
        """Durably zero the rest of a segment, so that no stale bytes follow the log's end."""
        # Overwritten rather than truncated and extended: a crash between the two would leave a file of the wrong
        # length, and a reader of a slice still in use would get a signal.
        start = log_offset - log_offset % self.segment_bytes
        handle = self.handle(start)
        zero_range(self._fs, handle, log_offset - start, self.segment_bytes)
        self._fs.sync_data(handle)

    def release_handles(self, before: int) -> None:
        """Close descriptors of segments that start before that log offset, because they are no longer written."""
        for start in [start for start in self._handles if start < before]:
            self._fs.close(self._handles.pop(start))

    def close(self) -> None:
        """Close descriptors and drop maps. Slices still in use stay readable."""
        self._maps.clear()
        for handle in self._handles.values():
            self._fs.close(handle)
        self._handles.clear()


def zero_range(fs: FileSystem, handle: int, start: int, end: int) -> None:
    """Zero part of a file. Holes and ranges that are already zero are not written."""
    position = fs.next_data(handle, start)
    while position is not None and position < end:
        size = min(ZERO_CHUNK_BYTES, end - position)
        if fs.pread(handle, size, position).strip(b"\0"):
            written = 0
            while written < size:
                count = fs.pwrite(handle, bytes(size - written), position + written)
                if count <= 0:
                    raise OSError(errno.EIO, "the disk accepts no more bytes")
                written += count
        position = fs.next_data(handle, position + size)
