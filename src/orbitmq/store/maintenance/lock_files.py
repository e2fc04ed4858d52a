"""A store's two marker files: ``lock`` while a process has it open, ``abort`` until it was shut down cleanly.

Our brokers and Apache's respect each other's files: byte 0 of ``lock`` has an exclusive POSIX record lock, and
``abort`` makes the next start recover thoroughly. ``abort`` contains the process id as text, and ours has a second
line with the id of the page cache.
"""

from __future__ import annotations

import posixpath
from typing import Final

from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.errors import StoreLocked

__all__ = ["AbortFile", "StoreLock", "is_locked"]

LOCK_CONTENT: Final = b"lock"
_CONTENT_BYTES: Final = 256


class StoreLock:
    """Keeps other processes out of a store directory."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    def acquire(self) -> None:
        """Acquire the lock. Raises ``StoreLocked`` immediately if another process holds it."""
        assert self._handle is None, "the lock is held already"
        fs = self._fs
        fs.make_directories(posixpath.dirname(self._path))
        handle = fs.open(self._path, write=True, create=True)
        try:
            if not fs.lock(handle, 0, 1):
                raise StoreLocked(
                    f"{self._path} is locked: another broker has this store open; stop it or use another directory"
                )
            if fs.pread(handle, len(LOCK_CONTENT), 0) != LOCK_CONTENT:
                fs.pwrite(handle, LOCK_CONTENT, 0)
        except BaseException:
            fs.close(handle)
            raise
        self._handle = handle

    def release(self) -> None:
        """Release the lock, if it is held. The file stays, like in Apache."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._fs.unlock(handle, 0, 1)
            self._fs.close(handle)


def is_locked(fs: FileSystem, path: str) -> bool:
    """Whether a broker, ours or Apache's, has the store open. Returns False if the file is not writable."""
    try:
        handle = fs.open(path, write=True)
    except OSError:
        return False
    try:
        if not fs.lock(handle, 0, 1):
            return True
        fs.unlock(handle, 0, 1)
        return False
    finally:
        fs.close(handle)


class AbortFile:
    """The ``abort`` file, which exists from the end of a start to the end of a clean shutdown."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    @property
    def exists(self) -> bool:
        """Whether the last process did not shut down cleanly."""
        return self._fs.stat(self._path) is not None

    @property
    def cache_survived(self) -> bool:
        """Whether the page cache still has everything that the last process wrote; False if that is unknown."""
        if not self.exists:
            return False
        handle = self._fs.open(self._path)
        try:
            _, _, cache_id = self._fs.pread(handle, _CONTENT_BYTES, 0).partition(b"\n")
        finally:
            self._fs.close(handle)
        return bool(cache_id) and cache_id == self._fs.cache_id().encode()

    def create(self, process_id: int) -> None:
        """Write the file and sync its directory entry, because the next start must see it after a power cut."""
        handle = self._fs.open(self._path, write=True, create=True)
        try:
            text = f"{process_id}\n{self._fs.cache_id()}".encode()
            self._fs.truncate(handle, 0)
            self._fs.pwrite(handle, text, 0)
            self._fs.sync_data(handle)
        finally:
            self._fs.close(handle)
        self._fs.sync_directory(posixpath.dirname(self._path))

    def remove(self) -> None:
        """Delete the file. Must be called last, when everything else is on disk."""
        self._fs.remove(self._path)
        self._fs.sync_directory(posixpath.dirname(self._path))
