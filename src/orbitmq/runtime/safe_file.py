"""Replaces small files as a whole, such as ``config/topics.json`` and ``kvConfig.json`` (Apache: its safe-write
helper).

After a crash at any time a reader finds either the new content or the previous one, never a mix. Writing takes four
steps: write and sync ``<name>.tmp``, rename the current file to ``<name>.bak``, rename ``.tmp`` to ``<name>``, and
sync the directory. Between the two renames only ``.bak`` exists; an Apache broker reads it in that case too.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from collections.abc import Callable
from typing import Final, TypeVar

from orbitmq.errors import CorruptionError, OrbitError
from orbitmq.runtime.filesystem import FileSystem

__all__ = ["SafeFile"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

CONTENT_BYTES_MAX: Final = 256 << 20
"""More than any table a server holds in memory; a larger file is not ours."""


class SafeFile:
    """A file and its backup."""

    def __init__(self, fs: FileSystem, path: str, *, private: bool = False) -> None:
        """With ``private``, only the owner may read the file, because it contains secrets."""
        self.fs = fs
        self._private = private
        self.path = path
        self.backup_path = path + ".bak"
        self._temporary_path = path + ".tmp"

    def save(self, content: bytes) -> None:
        """Replace the content.

        Raises ``OSError`` if the disk fails, or if the content is larger than ``load`` would read. A readable file
        remains in both cases.
        """
        if len(content) > CONTENT_BYTES_MAX:
            raise OSError(
                errno.EFBIG,
                f"the content is {len(content):,} bytes; the limit is {CONTENT_BYTES_MAX:,}",
                self.path,
            )
        fs = self.fs
        directory = posixpath.dirname(self.path)
        fs.make_directories(directory)
        if self._private:
            fs.remove(self._temporary_path)  # a left-over one may be readable for others
        try:
            self._write_temporary(content)
        except OSError:
            fs.remove(self._temporary_path)
            raise
        current = fs.stat(self.path)
        if current is not None and current.size_bytes > 0:
            # An empty current file was left by a crash of another program; its backup is worth more.
            fs.replace(self.path, self.backup_path)
            fs.sync_directory(directory)
        fs.replace(self._temporary_path, self.path)
        fs.sync_directory(directory)

    def modified_ms(self) -> int:
        """Returns when the content was last replaced, in milliseconds since the epoch; 0 if there is none."""
        found = self.fs.stat(self.path) or self.fs.stat(self.backup_path)
        return 0 if found is None else found.modified_ms

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """Returns the parsed content of the file or of its backup; None if neither exists or both are empty.

        ``parse`` raises ``ValueError`` (or an ``OrbitError``) for invalid content. Raises ``CorruptionError`` if
        there is content but none of it can be parsed, because continuing would overwrite it.
        """
        failures: list[str] = []
        for path in (self.path, self.backup_path):
            content = self._read(path)
            if not content or not content.strip(b" \t\r\n\0"):
                continue
            try:
                return parse(content)
            except (ValueError, OrbitError) as error:
                logger.warning("file unreadable path=%s error=%s", path, error)
                failures.append(f"{path}: {error}")
        if failures:
            raise CorruptionError(
                f"no readable copy of {'; '.join(failures)}. Repair the file, or remove both to start empty"
            )
        return None

    def _write_temporary(self, content: bytes) -> None:
        fs = self.fs
        handle = fs.open(self._temporary_path, write=True, create=True, private=self._private)
        try:
            fs.truncate(handle, 0)
            written = 0
            view = memoryview(content)
            while written < len(content):
                count = fs.pwrite(handle, view[written:], written)
                if count <= 0:
                    raise OSError(f"{self._temporary_path}: the disk took {written} of {len(content)} bytes")
                written += count
            fs.sync_data(handle)
        finally:
            fs.close(handle)

    def _read(self, path: str) -> bytes | None:
        found = self.fs.stat(path)
        if found is None or found.is_directory:
            return None
        if found.size_bytes > CONTENT_BYTES_MAX:
            raise CorruptionError(
                f"{path} has {found.size_bytes} bytes, which is more than the limit for such files"
            )
        handle = self.fs.open(path)
        try:
            return self.fs.pread(handle, found.size_bytes, 0)
        finally:
            self.fs.close(handle)
