"""Stores up to which log offset the group has acknowledged, in two places that survive a crash: each member's
``config/failover.json.safe``, and etcd.

Both are lower bounds. The file is written up to ten times a second without a sync, so it survives the death of the
process but not always a power failure. A member that restarts with a shorter log than its file says lacks
acknowledged bytes, and one that would have to truncate below it would lose them. The master writes the key in etcd,
immediately when messages arrive after a pause and twice a second while they keep arriving. The key lets a group
detect a member whose disk was replaced by an older copy.
"""

from __future__ import annotations

import logging
import posixpath
import zlib
from typing import Final

import msgspec

from orbitmq.broker.failover.etcd import Compare, EtcdClient, Put
from orbitmq.broker.failover.group_view import Seen
from orbitmq.broker.failover.state import Acknowledged
from orbitmq.errors import OrbitError
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.message_store import MessageStore

__all__ = ["LOOK_S", "SafeEnd"]

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1
NOTE_S: Final = 0.5
"""Shortest time between two writes to etcd."""
_FILE_BYTES: Final = 31
"""Twenty digits, a space, and their checksum in ten digits."""


class SafeEnd:
    """The acknowledged end as one member knows it."""

    def __init__(self, fs: FileSystem, path: str, store: MessageStore, etcd: EtcdClient, prefix: str) -> None:
        self._fs = fs
        self._path = path
        self._store = store
        self._etcd = etcd
        self._prefix = prefix
        self._note_at = 0.0
        self._is_failing = False
        self.noted = 0
        """The end stored in etcd."""
        self.kept = self._load()
        """The end stored in the file; 0 when it is missing or damaged."""

    def begin(self, noted: int, log_end: int) -> None:
        """Start as master. ``noted`` is the acknowledged end stored in etcd, ``log_end`` the end of our log."""
        self.noted = noted
        self.cut(log_end)

    def keep(self) -> None:
        """Write the safe end to the file, if it has increased."""
        if self._store.confirm_offset > self.kept:
            self._save(self._store.confirm_offset)

    def cut(self, log_end: int) -> None:
        """Lower the stored end after the log was truncated, or after an election with accepted loss."""
        if log_end < self.kept:
            self._save(log_end)

    async def note(self, seen: Seen, epoch: int, now: float) -> None:
        """Write the safe end to etcd as the master, if it is due."""
        end = self._store.confirm_offset
        if now < self._note_at or end <= self.noted or seen.master_key is None:
            return
        self._note_at = now + NOTE_S
        try:
            if await self._etcd.transact(
                (Compare(f"{self._prefix}master", seen.master_key.create_revision, created=True),),
                (Put(f"{self._prefix}acknowledged", msgspec.json.encode(Acknowledged(epoch, end))),),
            ):
                self.noted = end
        except OrbitError as error:  # the rounds log that etcd does not answer
            logger.debug("acknowledged end not saved error=%s", error)

    def _load(self) -> int:
        found = self._fs.stat(self._path)
        if found is None or found.is_directory:
            return 0
        handle = self._fs.open(self._path)
        try:
            data = self._fs.pread(handle, _FILE_BYTES, 0)
        finally:
            self._fs.close(handle)
        digits = data[:20]
        end = int(digits) if digits.isdigit() else 0
        return end if data == _file_content(end) else 0

    def _save(self, end: int) -> None:
        self.kept = end
        try:
            self._fs.make_directories(posixpath.dirname(self._path))
            handle = self._fs.open(self._path, write=True, create=True)
            try:
                self._fs.pwrite(handle, _file_content(end), 0)
            finally:
                self._fs.close(handle)
        except OSError as error:
            if not self._is_failing:
                logger.warning("safe end not saved path=%s error=%s", self._path, error)
            self._is_failing = True
        else:
            self._is_failing = False


def _file_content(end: int) -> bytes:
    digits = b"%020d" % end
    return b"%s %010d" % (digits, zlib.crc32(digits))
