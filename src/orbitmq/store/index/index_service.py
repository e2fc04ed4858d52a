"""The key index of a store: all its files, and the keys waiting to be added (Apache: IndexService).

An append only queues the keys of the records it stored (``put_keys``). Entries are built in batches: when enough keys
are queued, when the store's periodic work runs, and before a query. The log is the source of truth. Records missing
from the index are indexed again, starting at ``rebuild_from``; indexing a record twice has no effect.

Keys of a message, in this order: ``topic#UNIQ_KEY``, ``topic#key`` for every word of KEYS, ``topic#T#tag``.
"""

from __future__ import annotations

import logging
import posixpath
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from orbitmq.errors import CorruptionError
from orbitmq.kernel import KEYS, KEYS_AND_TAG, hash_keys
from orbitmq.kernel.layout import INDEX_KEY
from orbitmq.record.hashing import index_hash, java_hash
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.index.index_file import IndexFile, IndexMark, IndexProgress
from orbitmq.store.index.index_keys import IndexedRecord
from orbitmq.store.types import IndexUpdate

__all__ = ["BUILD_COUNT", "IndexService"]

logger = logging.getLogger(__name__)

BUILD_COUNT: Final = 512
"""Entries are built when this many keys are queued."""
NAME_DIGITS: Final = 17


class IndexService:
    """The index of one store. Owned by the store's thread; only the functions that ``sync_job`` and ``next_file_job``
    return may run on another thread.

    A full disk never raises an error in the caller: the index pauses and drops queued keys until ``IndexCatchUp`` has
    brought it up to date from ``rebuild_from``.
    """

    def __init__(
        self, fs: FileSystem, directory: str, config: StoreConfig, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._slot_count = config.index_slots
        self._entry_count_max = config.index_entries
        self._clock = clock
        self.with_keys = KEYS_AND_TAG if config.index_tags_enabled else KEYS
        """Selects which keys to index."""
        self._files: list[IndexFile] = []
        self._unsynced: list[IndexFile] = []
        self._sync_failed: deque[IndexFile] = deque()
        self._waiting = bytearray()
        """Keys queued to become entries, in log order (``INDEX_KEY``)."""
        self.paused = False
        """Whether the index is paused because the disk refused an entry. Appended keys are dropped until
        ``resume``."""
        self._cut_unfinished = False
        """Whether the disk refused a step of ``truncate``."""
        self.synced_ms = 0
        """End time of the last full file known to be on disk, for the checkpoint."""
        self._next_path = f"{directory}.next"
        self._next_asked = self._next_made = self._next_failed = False
        """These three flags are the state of the file after the last one, which a worker thread prepares: requested,
        ready, failed."""

    # Lifecycle.
    def load(self, *, clean: bool, trusted_ms: int = 0) -> None:
        """Open the files in the directory.

        After an unclean stop a file is trusted only if it is full and not newer than ``trusted_ms`` (the checkpoint's
        index time, Apache's rule). Otherwise it is trusted up to the mark that its writer left. The first untrusted
        file is removed together with all newer ones; they hold derived data, which is rebuilt from the log.
        """
        names = [
            name for name in self._fs.names(self._directory) if len(name) == NAME_DIGITS and name.isdecimal()
        ]
        distrust = ""
        for name in names:
            path = posixpath.join(self._directory, name)
            if not distrust:
                distrust = self._load_file(path, clean=clean, trusted_ms=trusted_ms)
            if distrust:
                logger.warning("index file removed, to be rebuilt path=%s reason=%s", path, distrust)
                self._fs.remove(path)
        full = [file.end_ms for file in self._files if file.is_full]
        self.synced_ms = full[-1] if full else 0
        self._fs.remove(self._next_path)  # left by a process that died

    def drop_behind_gap(self, log_start: int, next_keyed: Callable[[int, bool], int | None]) -> None:
        """Remove the files after the first missing one; they are rebuilt from the log.

        ``next_keyed`` returns the log offset of the first record with keys at (True) or after (False) the record at
        an offset, or None when it cannot tell.
        """
        for position, file in enumerate(self._files):
            begin, inclusive = log_start, True
            if position:
                begin, inclusive = max(log_start, self._files[position - 1].end_log_offset), False
            if begin >= file.begin_log_offset:
                continue
            expected = next_keyed(begin, inclusive)
            if expected is not None and expected < file.begin_log_offset:
                for gone in self._files[position:]:
                    logger.warning("index file removed, one before it is missing path=%s", gone.path)
                    gone.remove()
                del self._files[position:]
                break
        self.synced_ms = max((file.end_ms for file in self._files if file.is_full), default=0)

    def close(self) -> None:
        """Build and sync the waiting keys, then close all files."""
        self.flush()
        self.release()
        self._files.clear()

    def release(self) -> None:
        """Close all files. No other thread may be creating one."""
        for file in self._files:
            file.close()
        if self._next_made:
            self._next_made = self._next_asked = False
            self._fs.remove(self._next_path)

    def destroy(self) -> None:
        """Remove every file, because the log they pointed into was deleted."""
        for file in self._files:
            file.remove()
        self._files.clear()
        self._unsynced.clear()
        self._waiting.clear()
        self.synced_ms = 0

    # Write.
    def put_record(self, record: IndexedRecord) -> None:
        """Queue the keys of one record. Records must come in log order. Never raises for a full disk."""
        self.put_keys(hash_keys((record,), self.with_keys))

    def put_keys(self, keys: bytes) -> None:
        """Queue the keys of records (a sequence of ``INDEX_KEY``) in log order. Never raises for a full disk."""
        if self.paused or not keys:
            return
        self._waiting += keys if self._waiting else self._not_yet_there(keys)
        if len(self._waiting) >= BUILD_COUNT * INDEX_KEY.size:
            self.build()

    def build(self) -> None:
        """Turn queued keys into entries, immediately visible to queries."""
        if self._waiting:
            keys = bytes(self._waiting)
            self._waiting.clear()
            if not self.paused:
                self._store(keys)

    def catch_up(self, records: Sequence[IndexedRecord]) -> bool:
        """Index records read back from the log, in log order, while paused. Returns False if the disk still refuses
        them."""
        assert self.paused, "appends feed an index that is not paused"
        return self._store(self._not_yet_there(hash_keys(records, self.with_keys)))

    def _store(self, keys: bytes) -> bool:
        try:
            self._put(keys)
        except OSError as error:
            if not self.paused:
                logger.error("index paused error=%s rebuild_from=%d", error, self.rebuild_from)
            self.paused = True
            return False
        return True

    def resume(self) -> None:
        """Accept appended records again. ``catch_up`` must have indexed everything before them."""
        self.paused = False
        self._waiting.clear()

    def truncate(self, log_offset: int) -> None:
        """Durably remove the entries of every record at or after a log offset. Other records may soon occupy those
        offsets, and entries of the old ones must not reappear after a power cut.

        After an ``OSError``, call it again before anything is put, to finish the cut.
        """
        kept = [key for key in INDEX_KEY.iter_unpack(self._waiting) if key[1] < log_offset]
        del self._waiting[len(kept) * INDEX_KEY.size :]
        self.build()
        # It is unknown which steps of an earlier attempt are on disk.
        removed = again = self._cut_unfinished
        self._cut_unfinished = True
        while self._files:
            file = self._files[-1]
            if not file.is_empty and file.begin_log_offset < log_offset:
                if file.cut(log_offset) or again:
                    file.sync(file.progress)
                break
            file.remove()
            self._files.pop()
            self._unsynced = [other for other in self._unsynced if other is not file]
            removed = True
        if removed:
            self._fs.sync_directory(self._directory)
        self._cut_unfinished = False
        full = [file.end_ms for file in self._files if file.is_full]
        self.synced_ms = min(self.synced_ms, full[-1] if full else 0)

    def expire(self, min_log_offset: int) -> int:
        """Remove files whose entries all point below the log's start, but never the last file. Returns the number
        removed."""
        count = 0
        while len(self._files) > 1 and self._files[0].end_log_offset < min_log_offset:
            file = self._files.pop(0)
            self._unsynced = [other for other in self._unsynced if other is not file]
            file.remove()
            count += 1
        return count

    def next_file_job(self) -> Callable[[], None] | None:
        """Returns a function that creates the file after the last one, to be run on a worker thread; None if the file
        is not needed yet.

        Allocating tens of megabytes takes tens of milliseconds, and much longer on a busy disk.
        """
        last = self._files[-1] if self._files else None
        if self._next_asked or (last is not None and last.count < self._entry_count_max // 4 * 3):
            return None
        self._next_asked = True
        return self._make_next

    def _make_next(self) -> None:
        try:
            IndexFile.make(self._fs, self._next_path, self._slot_count, self._entry_count_max)
        except OSError as error:
            # The first key that needs the file tries again and reports the error.
            logger.warning("next index file not preallocated path=%s error=%s", self._next_path, error)
            self._next_failed = True
        else:
            self._next_made = True

    def flush(self) -> None:
        """Build queued keys and sync them to disk."""
        self.build()
        job = self.sync_job()
        if job is not None:
            job()

    def sync_job(self) -> Callable[[], None] | None:
        """Returns the sync step of ``flush``, to be run on a worker thread after ``build``; None if everything is on
        disk."""
        files, self._unsynced = self._unsynced, []
        while self._sync_failed:
            files.append(self._sync_failed.popleft())
        if not files:
            return None
        work = [(file, file.progress) for file in dict.fromkeys(files) if file in self._files]
        return lambda: self._sync(work)

    # Read.
    @property
    def rebuild_from(self) -> int:
        """All records below this log offset are indexed. Start here to index missing records; known ones are
        skipped."""
        return self._files[-1].end_log_offset if self._files else 0

    @property
    def last_update(self) -> IndexUpdate:
        """Time and log offset of the newest entry."""
        self.build()
        if not self._files:
            return IndexUpdate(0, 0)
        return IndexUpdate(self._files[-1].end_ms, self._files[-1].end_log_offset)

    @property
    def files(self) -> Sequence[IndexFile]:
        """The files, oldest first."""
        return self._files

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int) -> list[int]:
        """Returns the log offsets of the newest ``max_count`` records with that key in the time range, in log order.

        Only hashes are compared, and times only to the second, so the caller must check the record itself. Query a
        tag as ``T#tag``.
        """
        self.build()
        key_hash = index_hash(java_hash(f"{topic}#{key}"))
        found: list[int] = []
        for file in reversed(self._files):
            if file.meets(begin_ms, end_ms):
                found += file.find(key_hash, max_count - len(found), begin_ms, end_ms)
            if len(found) >= max_count or file.begin_ms < begin_ms:
                break
        return sorted(set(found))

    # Internals.
    def _load_file(self, path: str, *, clean: bool, trusted_ms: int) -> str:
        """Add one file. Returns why it is unusable; empty if it was added."""
        try:
            file = IndexFile.load(self._fs, path, self._slot_count, self._entry_count_max)
            if self._files and file.end_log_offset < self._files[-1].end_log_offset:
                return "it does not continue the file before it"
            if self._files and not self._files[-1].is_full:
                return "the file before it is not full"
            if not clean and not (file.is_full and file.end_ms <= trusted_ms):
                mark = file.mark()
                if mark is None:
                    return "the last stop was not clean and nothing says it is whole"
                self._restore(file, mark)
        except (CorruptionError, OSError) as error:
            return str(error)
        self._files.append(file)
        return ""

    def _restore(self, file: IndexFile, mark: IndexMark) -> None:
        try:
            file.restore(mark)
        except BaseException:
            file.close()
            raise
        if file.is_full:
            file.close()

    def _put(self, keys: bytes) -> None:
        while keys:
            file = self._writable()
            if file not in self._unsynced:
                self._unsynced.append(file)
            keys = keys[file.put(keys) * INDEX_KEY.size :]

    def _writable(self) -> IndexFile:
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            return last
        if last is None:
            self._fs.make_directories(self._directory)
        else:
            last.close()
        name = file_name(self._clock.now_ms(), posixpath.basename(last.path) if last else "")
        path = posixpath.join(self._directory, name)
        made = self._next_path if self._next_made else ""
        if self._next_made or self._next_failed:
            self._next_asked = self._next_made = self._next_failed = False
        file = IndexFile.create(
            self._fs, path, self._slot_count, self._entry_count_max, after=last, made=made
        )
        self._files.append(file)
        return file

    def _not_yet_there(self, keys: bytes) -> bytes:
        """Returns the keys that are not yet in the index. The last indexed record may lack some of its keys if a file
        filled up between them; keys always come in the same order, so a count is enough."""
        end = self.rebuild_from
        if not keys or INDEX_KEY.unpack_from(keys)[1] > end:
            return keys
        if INDEX_KEY.unpack_from(keys, len(keys) - INDEX_KEY.size)[1] < end:
            return b""
        there = 0
        for file in reversed(self._files):
            count = file.trailing_count(end)
            there += count
            if count < file.count - 1:
                break
        entries = list(INDEX_KEY.iter_unpack(keys))
        last = [entry for entry in entries if entry[1] == end]
        missing = last[there:] + [entry for entry in entries if entry[1] > end]
        return b"".join(INDEX_KEY.pack(*entry) for entry in missing)

    def _sync(self, work: list[tuple[IndexFile, IndexProgress]]) -> None:
        # Sync the directory first: a mark must not cover a file whose name a power cut removes.
        self._fs.sync_directory(self._directory)
        for position, (file, progress) in enumerate(work):
            try:
                file.sync(progress)
            except FileNotFoundError:
                continue  # expired or truncated meanwhile
            except OSError:
                self._sync_failed.extend(other for other, _ in work[position:])
                raise
            if progress.mark.end >= self._entry_count_max:
                self.synced_ms = max(self.synced_ms, progress.mark.end_ms)


def file_name(now_ms: int, last: str) -> str:
    """Returns a file name: local time in 17 digits, but always greater than ``last`` to keep the files in order."""
    seconds, milliseconds = divmod(now_ms, 1000)
    name = f"{datetime.fromtimestamp(seconds, UTC).astimezone():%Y%m%d%H%M%S}{milliseconds:03d}"
    if name > last:
        return name
    year, month, day = int(last[:4]), int(last[4:6]), int(last[6:8])
    hour, minute, second = int(last[8:10]), int(last[10:12]), int(last[12:14])
    following = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    following += timedelta(milliseconds=int(last[14:]) + 1)
    return f"{following:%Y%m%d%H%M%S}{following.microsecond // 1000:03d}"
