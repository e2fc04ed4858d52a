"""A disk in memory that fails on request, so that crash tests are ordinary tests.

Like a real disk, it distinguishes

* *cached* content, where every write shows immediately, also through maps, from *durable* content, which is the
  content at the last ``sync_data``;
* the names that a directory shows from the names that survive a crash. Creations, renames and removals become
  durable with ``sync_directory``.

``kill`` returns the disk after the death of the process, with everything that was cached. ``power_cut`` returns the
disk after the death of the machine: everything durable and, page by page, whatever else ``survives`` selects. Both
return a new disk and leave the old one unchanged, so one history can be cut in a thousand ways. Changes are found by
comparing pages, so writes through maps are included.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from orbitmq.runtime.filesystem import DiskUsage, FileStat

__all__ = ["FaultyFileSystem", "SimulatedCrash"]

PAGE: Final = 4096

Survives = Callable[[str, int], bool | int]
"""Called with a path and a page number, or with -1 for a directory's next unsynced change and -2 for a file's size. A
number of bytes means that a page was written up to there: a torn write."""


class SimulatedCrash(BaseException):
    """Simulates the end of the process. Not an ``Exception``, so that no ``except Exception`` swallows it."""


@dataclass(slots=True)
class _File:
    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    blocks: set[int] = field(default_factory=set)
    """Pages that have disk space; the others are holes."""
    lost: dict[int, bytes] = field(default_factory=dict)
    """Pages that a failed sync gave up: the kernel considers them clean and never writes them again."""
    modified_ms: int = 0

    def dirty_pages(self) -> list[int]:
        pages = []
        for start in range(0, len(self.cached), PAGE):
            cached, durable = self.cached[start : start + PAGE], self.durable[start : start + PAGE]
            if cached != durable and cached != durable.ljust(len(cached), b"\0"):
                pages.append(start // PAGE)
        return pages

    def copy(self) -> _File:
        content = bytearray(self.cached)
        return _File(content, bytearray(content), set(self.blocks), {}, self.modified_ms)


@dataclass(slots=True)
class _Change:
    """A directory change that is not durable yet: a name that now refers to a file, or to nothing."""

    names: dict[str, _File | None]


@dataclass(slots=True)
class _Open:
    path: str
    file: _File
    writable: bool


class FaultyFileSystem:
    """An implementation of ``runtime.filesystem.FileSystem`` in memory. Paths are used as given, and directories need
    not be created."""

    def __init__(self, *, capacity_bytes: int = 1 << 40, clock: Callable[[], int] = lambda: 0) -> None:
        self.capacity_bytes = capacity_bytes
        self._clock = clock
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._changes: dict[str, list[_Change]] = {}
        self._directories: set[str] = {"/"}
        self.boot = 1
        """Counts power cuts of the machine."""
        self._open: dict[int, _Open] = {}
        self._next_handle = 1000
        self._locks: dict[str, int] = {}
        self.on_operation: Callable[[str, str], None] | None = None
        """Called with name and path before every operation that changes something. May raise anything."""
        self.operation_count = 0
        """The number of executed operations that change something."""
        self._fail_at: int | None = None
        self._fail_error = errno.ENOSPC
        self._tear_at: tuple[int, int] | None = None
        self._write_count = 0
        self.sync_error: int | None = None
        """If set, every ``sync_data`` fails with this error and gives up the content that was not durable yet."""

    # Faults.
    @property
    def write_count(self) -> int:
        """The number of writes, allocations and new files so far."""
        return self._write_count

    def fail_writes(self, after: int = 0, error: int = errno.ENOSPC) -> None:
        """Make writes, allocations and new files fail with ``error`` after ``after`` more of them, until ``heal``."""
        self._fail_at = self._write_count + after
        self._fail_error = error

    def tear_write(self, after: int, keep_bytes: int) -> None:
        """Tear one write after ``after`` more writes: it stores only ``keep_bytes`` bytes and the process dies."""
        self._tear_at = (self._write_count + after, keep_bytes)

    def heal(self) -> None:
        """End all faults."""
        self._fail_at = self._tear_at = self.sync_error = None

    def flip(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Invert the bits of one byte that are set in ``mask``, in both the cached and the durable content."""
        file = self._names[path]
        file.cached[position] ^= mask
        if position < len(file.durable):
            file.durable[position] ^= mask

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes without the writer's knowledge, in both the cached and the durable content."""
        file = self._names[path]
        file.cached[position : position + len(data)] = data
        file.durable[position : position + len(data)] = data

    def resize(self, path: str, size: int) -> None:
        """Cut or extend the file without the writer's knowledge, in both the cached and the durable content."""
        file = self._names[path]
        for content in (file.cached, file.durable):
            del content[size:]
            content.extend(bytes(size - len(content)))

    # What is left.
    def kill(self) -> FaultyFileSystem:
        """Returns the disk after the process was killed, with everything written, but without locks and handles."""
        self.check_holes()
        left = self._new()
        for path, file in self._names.items():
            left._put(path, file.copy())
        return left

    def power_cut(self, survives: Survives | None = None) -> FaultyFileSystem:
        """Returns the disk after a power cut. Without ``survives``, all unsynced data is lost."""
        self.check_holes()
        keep = survives or (lambda path, page: False)
        names = dict(self._durable_names)
        for directory, changes in self._changes.items():
            for change in changes:
                # Changes of one directory reach the disk in order.
                if not keep(directory, -1):
                    break
                for path, file in change.names.items():
                    if file is None:
                        names.pop(path, None)
                    else:
                        names[path] = file
        left = self._new()
        left.boot += 1
        for path, file in names.items():
            left._put(path, self._survivor(path, file, keep))
        return left

    def paths(self, prefix: str = "") -> list[str]:
        """Returns the paths that start with a prefix, sorted."""
        return sorted(path for path in self._names if path.startswith(prefix))

    def content(self, path: str) -> bytes:
        """Returns a file's content as readers see it, including writes that are not durable yet."""
        return bytes(self._names[path].cached)

    @property
    def used_bytes(self) -> int:
        return PAGE * sum(len(file.blocks) for file in self._names.values())

    @property
    def open_paths(self) -> list[str]:
        """The paths of the handles that are still open."""
        return [opened.path for opened in self._open.values()]

    def check_holes(self) -> None:
        """Raises ``AssertionError`` if a map was written where the file has no disk space; on a full disk that is
        SIGBUS."""
        for path, file in self._names.items():
            for page in range(-(-len(file.cached) // PAGE)):
                if page not in file.blocks and file.cached[page * PAGE : (page + 1) * PAGE].strip(b"\0"):
                    raise AssertionError(f"{path}: page {page} was written through a map into a hole")

    # FileSystem.
    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> int:
        file = self._names.get(path)
        if file is None:
            if path in self._directories:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if posixpath.dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._changing("create", path)
            self._count_write()
            file = _File(modified_ms=self._clock())
            self._names[path] = file
            self._note(path, {path: file})
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._open[handle] = _Open(path, file, write or create)
        return handle

    def close(self, handle: int, /) -> None:
        opened = self._opened(handle)
        if self._locks.get(opened.path) == handle:
            del self._locks[opened.path]
        del self._open[handle]

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int, /) -> int:
        opened = self._opened(handle, write=True)
        self._changing("pwrite", opened.path)
        data = bytes(data)
        torn = self._tear_at is not None and self._tear_at[0] == self._write_count
        if torn:
            assert self._tear_at is not None
            data = data[: self._tear_at[1]]
        self._count_write()
        file = opened.file
        end = self._take_blocks(file, offset, offset + len(data))
        if end <= offset < offset + len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), opened.path)
        if end > len(file.cached):
            file.cached.extend(bytes(end - len(file.cached)))
        file.cached[offset:end] = data[: end - offset]
        file.modified_ms = self._clock()
        if torn:
            raise SimulatedCrash(f"write {self._write_count} of {opened.path} torn after {len(data)} bytes")
        return end - offset

    def pread(self, handle: int, size: int, offset: int, /) -> bytes:
        return bytes(self._opened(handle).file.cached[offset : offset + size])

    def truncate(self, handle: int, size: int, /) -> None:
        opened = self._opened(handle, write=True)
        self._changing("truncate", opened.path)
        file = opened.file
        if size < len(file.cached):
            del file.cached[size:]
            file.blocks = {page for page in file.blocks if page * PAGE < size}
        else:
            file.cached.extend(bytes(size - len(file.cached)))
        file.modified_ms = self._clock()

    def allocate(self, handle: int, offset: int, size: int, /) -> None:
        opened = self._opened(handle, write=True)
        self._changing("allocate", opened.path)
        self._count_write()
        file = opened.file
        if self._take_blocks(file, offset, offset + size) < offset + size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), opened.path)
        if offset + size > len(file.cached):
            file.cached.extend(bytes(offset + size - len(file.cached)))

    def file_size(self, handle: int, /) -> int:
        return len(self._opened(handle).file.cached)

    def next_data(self, handle: int, offset: int, /) -> int | None:
        file = self._opened(handle).file
        pages = [page for page in file.blocks if (page + 1) * PAGE > offset]
        found = max(offset, min(pages) * PAGE) if pages else len(file.cached)
        return found if found < len(file.cached) else None

    def sync_data(self, handle: int, /) -> None:
        opened = self._opened(handle)
        self._changing("sync", opened.path)
        file = opened.file
        if self.sync_error is not None:
            for page in file.dirty_pages():
                file.lost[page] = bytes(file.cached[page * PAGE : (page + 1) * PAGE])
            raise OSError(self.sync_error, os.strerror(self.sync_error), opened.path)
        kept = {page: bytes(file.durable[page * PAGE : (page + 1) * PAGE]) for page in self._still_lost(file)}
        file.durable = bytearray(file.cached)
        for page, content in kept.items():
            size = len(file.durable[page * PAGE : (page + 1) * PAGE])
            file.durable[page * PAGE : page * PAGE + size] = content[:size].ljust(size, b"\0")

    def map(self, handle: int, size: int, *, write: bool = False) -> memoryview:
        opened = self._opened(handle, write=write)
        if not 0 < size <= len(opened.file.cached):
            raise ValueError("mmap length is greater than file size")
        view = memoryview(opened.file.cached)[:size]
        return view if write else view.toreadonly()

    def lock(self, handle: int, start: int, size: int, /) -> bool:
        path = self._opened(handle, write=True).path
        return self._locks.setdefault(path, handle) == handle

    def unlock(self, handle: int, start: int, size: int, /) -> None:
        path = self._opened(handle).path
        if self._locks.get(path) == handle:
            del self._locks[path]

    def stat(self, path: str) -> FileStat | None:
        file = self._names.get(path)
        if file is not None:
            return FileStat(len(file.cached), file.modified_ms, False)
        return FileStat(0, 0, True) if path in self._directories else None

    def names(self, directory: str) -> list[str]:
        start = directory.rstrip("/") + "/"
        below = {
            path[len(start) :].split("/", 1)[0]
            for path in (*self._names, *self._directories)
            if path.startswith(start) and path != start
        }
        return sorted(below)

    def make_directories(self, path: str) -> None:
        while path not in self._directories and path not in ("", "/"):
            self._directories.add(path)
            path = posixpath.dirname(path)

    def remove(self, path: str) -> None:
        if path in self._names:
            self._changing("remove", path)
            del self._names[path]
            self._note(path, {path: None})

    def remove_tree(self, path: str) -> None:
        for inner in self.paths(path.rstrip("/") + "/"):
            self.remove(inner)
        start = path.rstrip("/") + "/"
        self._directories = {d for d in self._directories if d != path and not d.startswith(start)}

    def replace(self, source: str, target: str) -> None:
        self._changing("replace", target)
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        file = self._names.pop(source)
        self._names[target] = file
        self._note(target, {source: None, target: file})

    def sync_directory(self, path: str) -> None:
        self._changing("sync_directory", path)
        for change in self._changes.pop(path, []):
            for name, file in change.names.items():
                if file is None:
                    self._durable_names.pop(name, None)
                else:
                    self._durable_names[name] = file

    def disk_usage(self, path: str) -> DiskUsage:
        used = self.used_bytes
        return DiskUsage(self.capacity_bytes, used, max(0, self.capacity_bytes - used))

    # Inside.
    def cache_id(self) -> str:
        return f"boot-{self.boot}"

    def _opened(self, handle: int, *, write: bool = False) -> _Open:
        opened = self._open.get(handle)
        if opened is None or (write and not opened.writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened

    def _changing(self, operation: str, path: str) -> None:
        self.operation_count += 1
        if self.on_operation is not None:
            self.on_operation(operation, path)

    def _count_write(self) -> None:
        number, self._write_count = self._write_count, self._write_count + 1
        if self._fail_at is not None and number >= self._fail_at:
            raise OSError(self._fail_error, os.strerror(self._fail_error))

    def _take_blocks(self, file: _File, start: int, end: int) -> int:
        """Allocate pages for a range. Returns its end, or where the space on the disk ends."""
        wanted = [page for page in range(start // PAGE, -(-end // PAGE)) if page not in file.blocks]
        if wanted:
            free = (self.capacity_bytes - self.used_bytes) // PAGE
            file.blocks.update(wanted[: max(0, free)])
            if len(wanted) > free:
                return max(start, wanted[max(0, free)] * PAGE)
        return end

    def _note(self, path: str, names: dict[str, _File | None]) -> None:
        self._changes.setdefault(posixpath.dirname(path), []).append(_Change(names))

    def _new(self) -> FaultyFileSystem:
        left = FaultyFileSystem(capacity_bytes=self.capacity_bytes, clock=self._clock)
        left._directories = set(self._directories)
        left.boot = self.boot
        return left

    def _put(self, path: str, file: _File) -> None:
        self.make_directories(posixpath.dirname(path))
        self._names[path] = self._durable_names[path] = file

    @staticmethod
    def _still_lost(file: _File) -> list[int]:
        return [
            p for p, content in file.lost.items() if bytes(file.cached[p * PAGE : (p + 1) * PAGE]) == content
        ]

    def _survivor(self, path: str, file: _File, keep: Survives) -> _File:
        content = bytearray(file.durable)
        size = len(file.cached)
        lost = set(self._still_lost(file))
        pages = {page: kept for page in file.dirty_pages() if page not in lost and (kept := keep(path, page))}
        if size != len(content) and (pages or keep(path, -2)):
            del content[size:]
            content.extend(bytes(size - len(content)))
        for page, kept in pages.items():
            end = page * PAGE + (PAGE if kept is True else kept)
            content[page * PAGE : end] = file.cached[page * PAGE : end]
        return _File(content, bytearray(content), set(file.blocks), {}, file.modified_ms)
