"""Passes the file system as a parameter. The store never calls ``os.*``, so that tests control the disk.

The interface is deliberately thin: handles are plain integers, and ``pwrite`` and ``pread`` of the local file system
*are* ``os.pwrite`` and ``os.pread``. The store calls them once per append, and a wrapper would cost more than the
rest of its bookkeeping. Every failure is an ``OSError`` with ``errno``.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import struct
import sys
from typing import Final, NamedTuple, Protocol

from orbitmq.runtime.machine import boot_id

__all__ = [
    "LOCAL_FILE_SYSTEM",
    "DiskUsage",
    "FileStat",
    "FileSystem",
    "LocalFileSystem",
    "PortableFileSystem",
]

_ZEROS_BYTES: Final = 1 << 20


class FileStat(NamedTuple):
    """The attributes of a file that the store uses."""

    size_bytes: int
    modified_ms: int
    is_directory: bool


class DiskUsage(NamedTuple):
    """The disk space on the partition of a path."""

    total_bytes: int
    used_bytes: int
    available_bytes: int
    """Bytes that this process may still write; less than total - used where blocks are reserved."""


class FileSystem(Protocol):
    """A file system as the store uses it. Paths are plain text; a handle is valid until ``close``."""

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> int:
        """Open a file, and return its handle. Without ``create`` a missing file raises ``FileNotFoundError``."""

    def close(self, handle: int, /) -> None: ...

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int, /) -> int:
        """Write at a position. Returns the number of bytes written, which may be less than the number given."""

    def pread(self, handle: int, size: int, offset: int, /) -> bytes:
        """Read at most ``size`` bytes. Returns fewer at the end of the file."""

    def truncate(self, handle: int, size: int, /) -> None:
        """Cut the file to a size, or extend it with (sparse) zeros."""

    def allocate(self, handle: int, offset: int, size: int, /) -> None:
        """Reserve blocks for the range, so that later writes to it cannot fail for lack of space."""

    def file_size(self, handle: int, /) -> int: ...

    def next_data(self, handle: int, offset: int, /) -> int | None:
        """Returns the first position at or after ``offset`` that is not in a hole; None if only holes follow."""

    def sync_data(self, handle: int, /) -> None:
        """Return once the content and the size are on the disk (``fdatasync``). Called from worker threads."""

    def map(self, handle: int, size: int, *, write: bool = False) -> memoryview:
        """Map the first ``size`` bytes, shared with all writers. They are unmapped when the last slice is
        released."""

    def lock(self, handle: int, start: int, size: int, /) -> bool:
        """Take an exclusive POSIX record lock. Returns False if another handle or process holds it."""

    def unlock(self, handle: int, start: int, size: int, /) -> None: ...

    def stat(self, path: str) -> FileStat | None:
        """Returns the attributes of a file; None if nothing exists at ``path``."""

    def names(self, directory: str) -> list[str]:
        """Returns the names in a directory, sorted; empty if the directory does not exist."""

    def make_directories(self, path: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file. Does nothing if it does not exist."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything below it. Does nothing if it does not exist."""

    def replace(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target`` atomically, replacing an existing file."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def disk_usage(self, path: str) -> DiskUsage: ...

    def cache_id(self) -> str:
        """Returns an id of the page cache, which changes if unsynced writes may have been lost; empty if it is
        unknown."""


class LocalFileSystem:
    """The local disk, accessed with Linux calls."""

    # The functions themselves, not wrappers: `fs.pwrite` is `os.pwrite` (0.74 us for 300 bytes; a Python method
    # around it adds 0.1 us).
    pwrite = staticmethod(os.pwrite)
    pread = staticmethod(os.pread)
    close = staticmethod(os.close)
    truncate = staticmethod(os.ftruncate)
    sync_data = staticmethod(getattr(os, "fdatasync", os.fsync))
    cache_id = staticmethod(boot_id)

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> int:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        return os.open(path, flags, 0o600 if private else 0o644)

    def allocate(self, handle: int, offset: int, size: int, /) -> None:
        os.posix_fallocate(handle, offset, size)

    def file_size(self, handle: int, /) -> int:
        return os.fstat(handle).st_size

    def next_data(self, handle: int, offset: int, /) -> int | None:
        try:
            return os.lseek(handle, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def map(self, handle: int, size: int, *, write: bool = False) -> memoryview:
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        return memoryview(mmap.mmap(handle, size, access=access))

    def lock(self, handle: int, start: int, size: int, /) -> bool:
        try:
            _set_lock(handle, fcntl.F_WRLCK, start, size)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def unlock(self, handle: int, start: int, size: int, /) -> None:
        _set_lock(handle, fcntl.F_UNLCK, start, size)

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(found.st_size, found.st_mtime_ns // 1_000_000, (found.st_mode & 0o170000) == 0o040000)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        try:
            os.remove(path)
        except FileNotFoundError:
            pass

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def sync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def disk_usage(self, path: str) -> DiskUsage:
        found = os.statvfs(path)
        total = found.f_blocks * found.f_frsize
        return DiskUsage(total, total - found.f_bfree * found.f_frsize, found.f_bavail * found.f_frsize)


def _set_lock(handle: int, kind: int, start: int, size: int) -> None:
    """Set an open-file-description lock of Linux.

    Like a record lock, it conflicts with the locks of other processes (such as an Apache broker). Unlike a record
    lock, it also conflicts with a second handle of this process, and closing another handle does not release it.
    """
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, size, 0))


class PortableFileSystem(LocalFileSystem):
    """The local disk, accessed only with calls that macOS has too."""

    def __init__(self) -> None:
        self._locked: dict[tuple[int, int, int], int] = {}
        """Handles by device, inode and start of the range they lock."""

    def sync_data(self, handle: int, /) -> None:  # type: ignore[override]  # a function there, for speed
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:  # macOS: fsync leaves the data in the cache of the disk
            try:
                fcntl.fcntl(handle, full)
                return
            except OSError:  # not every file system has it
                pass
        os.fsync(handle)

    def allocate(self, handle: int, offset: int, size: int, /) -> None:
        """Write zeros after the end of the file. Holes before the end remain."""
        position, end = os.fstat(handle).st_size, offset + size
        while position < end:
            position += os.pwrite(handle, bytes(min(_ZEROS_BYTES, end - position)), position)

    def next_data(self, handle: int, offset: int, /) -> int | None:
        if hasattr(os, "SEEK_DATA"):
            return super().next_data(handle, offset)
        return offset if offset < os.fstat(handle).st_size else None

    def lock(self, handle: int, start: int, size: int, /) -> bool:
        """Take a record lock, which excludes other processes, and note it, which excludes other handles of this
        process. Closing any handle of the file releases the record lock."""
        key = _lock_key(handle, start)
        other = self._locked.get(key)
        if other is not None and other != handle and _is_open_as(other, key):
            return False
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, size, start)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        self._locked[key] = handle
        return True

    def unlock(self, handle: int, start: int, size: int, /) -> None:
        fcntl.lockf(handle, fcntl.LOCK_UN, size, start)
        self._locked.pop(_lock_key(handle, start), None)


def _lock_key(handle: int, start: int) -> tuple[int, int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, start


def _is_open_as(handle: int, key: tuple[int, int, int]) -> bool:
    """Whether a handle still belongs to the file. It may have been closed without being unlocked."""
    try:
        return _lock_key(handle, key[2]) == key
    except OSError:
        return False


_ON_LINUX: Final = all(
    (hasattr(os, "fdatasync"), hasattr(os, "posix_fallocate"), hasattr(fcntl, "F_OFD_SETLK"))
) and sys.platform.startswith("linux")

LOCAL_FILE_SYSTEM: Final[LocalFileSystem] = LocalFileSystem() if _ON_LINUX else PortableFileSystem()
