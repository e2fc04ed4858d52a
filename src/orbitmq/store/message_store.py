"""The store as the broker sees it (Apache: ``DefaultMessageStore``).

Synchronous and single-writer: every method is called from one thread, the broker's event loop. Only fsync and
the creation of the next segment run on the store's own worker thread; what they report arrives through ``post``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.types import Appended, FlushMode, IndexUpdate, NewMessage, ReadResult

__all__ = ["MessageStore"]

Post = Callable[[Callable[[], None]], object]


class MessageStore:
    """One store directory, opened for writing by this process alone."""

    on_arrival: Callable[[str, int], None] | None = None
    """Called once per touched queue after an append or a replicated append, with (topic, queue id)."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
        fs: FileSystem = LOCAL_FILE_SYSTEM,
        clock: Clock = SYSTEM_CLOCK,
        post: Post | None = None,
        memory_bytes: int = 8 << 30,
    ) -> None:
        """``post`` runs a function on the caller's thread (``loop.call_soon_threadsafe``). Without it there is
        no worker thread: ``flush`` is the caller's to call, which is what tools and deterministic tests want."""
        raise NotImplementedError

    # Life.
    def open(self) -> None:
        """Lock, load and recover. Raises ``StoreLocked``, ``CorruptionError``, ``OSError``."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush everything, write the checkpoint, remove the abort file, unlock. Safe to call twice."""
        raise NotImplementedError

    def tick(self) -> None:
        """Periodic work that is due by the clock: flush, queue tails, checkpoint, retention. Call every ~100 ms."""
        raise NotImplementedError

    # Write.
    def append(self, message: NewMessage) -> Appended:
        """Store one message; visible to readers at once. Raises ``StoreError``; then nothing was stored."""
        raise NotImplementedError

    def append_batch(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Store all or none, in order, with one write per segment touched."""
        raise NotImplementedError

    def append_raw(self, log_offset: int, data: bytes | memoryview) -> None:
        """Replication: add bytes exactly at the end of the log, then dispatch whole records."""
        raise NotImplementedError

    def truncate(self, log_offset: int) -> None:
        """Cut the log (and all derived files) back to a record boundary."""
        raise NotImplementedError

    # Read.
    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        tag_codes: frozenset[int] | None = None,
        predicate: Callable[[memoryview], bool] | None = None,
    ) -> ReadResult:
        """Records of a queue from ``offset``, whole and in order. Never raises for any offset."""
        raise NotImplementedError

    def record_at(self, log_offset: int, size: int | None = None) -> memoryview | None:
        """One whole record, or None when none starts there."""
        raise NotImplementedError

    def log_range(self, log_offset: int, max_bytes: int) -> memoryview:
        """Raw log bytes from an offset, within one segment; empty at the end of the log. Zero copy."""
        raise NotImplementedError

    def scan(self, start: int, end: int | None = None) -> Iterator[memoryview]:
        """Every message record from a record boundary on, in log order."""
        raise NotImplementedError

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> tuple[list[memoryview], IndexUpdate]:
        """Records whose key hash matches, oldest first, and how far the index has got."""
        raise NotImplementedError

    # Facts.
    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset still readable; -1 when there is no such queue."""
        raise NotImplementedError

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Next queue offset to be assigned; 0 when there is no such queue."""
        raise NotImplementedError

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of the first readable message; -1 when there is none."""
        raise NotImplementedError

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of a message; -1 when it is not there."""
        raise NotImplementedError

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Queue offset of the first message stored at or after a time (``upper``: the last one at or before)."""
        raise NotImplementedError

    def topics(self) -> list[str]:
        raise NotImplementedError

    def queues(self, topic: str) -> list[int]:
        """Queue ids of a topic that have (or had) messages, sorted."""
        raise NotImplementedError

    @property
    def min_log_offset(self) -> int:
        raise NotImplementedError

    @property
    def max_log_offset(self) -> int:
        raise NotImplementedError

    @property
    def flushed_offset(self) -> int:
        """The log is on the disk up to here."""
        raise NotImplementedError

    @property
    def confirm_offset(self) -> int:
        """Up to here the log may be read by consumers; replication may hold it back. Settable."""
        raise NotImplementedError

    @property
    def flush_mode(self) -> FlushMode:
        raise NotImplementedError

    @property
    def writable(self) -> bool:
        """False when appends would be refused now (see ``unwritable_reason``)."""
        raise NotImplementedError

    @property
    def unwritable_reason(self) -> str:
        raise NotImplementedError

    # Flush.
    def when_flushed(self, log_end: int, callback: Callable[[bool], None]) -> None:
        """Call back, through ``post``, once the log is on disk up to ``log_end``: True; False after the time-out
        or a failed flush. Called at once, inline, when it is on disk already."""
        raise NotImplementedError

    def flush(self) -> None:
        """Put everything on disk now, on this thread."""
        raise NotImplementedError

    # Upkeep.
    def delete_topic(self, topic: str) -> int:
        """Drop the queues of a topic; gives how many. The log keeps its records until they expire."""
        raise NotImplementedError

    def clean_expired(self, now_ms: int | None = None, *, force: bool = False) -> int:
        """Run retention now; gives the number of log segments removed."""
        raise NotImplementedError
