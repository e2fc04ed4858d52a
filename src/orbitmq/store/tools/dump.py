"""Reads the contents of a store's files as plain values, without changing them. The command line does the printing.

Every function yields one struct per item, in file order, without holding more than one in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from orbitmq.errors import CorruptionError, RecordError
from orbitmq.record.codec import decode_record
from orbitmq.record.hosts import host_text
from orbitmq.record.scan import EndKind, ScannedRecord
from orbitmq.store.maintenance.checkpoint import Checkpoint
from orbitmq.store.tools.offline import OfflineQueue, OfflineStore

__all__ = [
    "CheckpointRow",
    "EntryRow",
    "IndexRow",
    "QueueRow",
    "RecordRow",
    "SegmentRow",
    "UnitRow",
    "checkpoint_row",
    "entry_rows",
    "index_rows",
    "queue_rows",
    "record_rows",
    "segment_rows",
    "unit_rows",
]


class SegmentRow(msgspec.Struct, rename="camel"):
    """One log segment."""

    log_offset: int
    path: str
    size_bytes: int
    record_count: int = 0
    used_bytes: int = 0
    first_store_ms: int = 0
    last_store_ms: int = 0
    end: str = ""
    """How the segment ends: ``blank`` (full), ``limit`` (full to the byte), ``zeroes`` (the log ends here),
    ``bad``."""
    reason: str = ""


class RecordRow(msgspec.Struct, rename="camel"):
    """One message record, or the reason why it is missing."""

    log_offset: int
    size: int = 0
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    message_id: str = ""
    born_ms: int = 0
    born_host: str = ""
    store_ms: int = 0
    store_host: str = ""
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    body_bytes: int = 0
    body_crc: int = 0
    properties: dict[str, str] = {}
    body: bytes | None = None
    error: str = ""


class QueueRow(msgspec.Struct, rename="camel"):
    """One consume queue."""

    topic: str
    queue_id: int
    file_count: int
    min_offset: int = 0
    max_offset: int = 0
    first_log_offset: int = -1
    last_log_offset: int = -1


class UnitRow(msgspec.Struct, rename="camel"):
    """One unit of a consume queue."""

    queue_offset: int
    log_offset: int
    size: int
    tag_code: int


class IndexRow(msgspec.Struct, rename="camel"):
    """One index file."""

    path: str
    begin_ms: int = 0
    end_ms: int = 0
    begin_log_offset: int = 0
    end_log_offset: int = 0
    used_slots: int = 0
    slot_count: int = 0
    entry_count: int = 0
    synced_count: int = 0
    """Number of entries that the file's writer knew to be on disk; 0 if it left no mark."""
    error: str = ""


class EntryRow(msgspec.Struct, rename="camel"):
    """One index entry."""

    number: int
    key_hash: int
    log_offset: int
    seconds: int
    previous: int


class CheckpointRow(msgspec.Struct, rename="camel"):
    """The checkpoint, with Apache's names."""

    physic_msg_timestamp: int
    logics_msg_timestamp: int
    index_msg_timestamp: int
    master_flushed_offset: int
    confirm_phy_offset: int
    logics_phy_offset: int
    abort: bool
    """Whether the abort file exists, because the last broker did not shut down cleanly or is still
    running."""


def segment_rows(store: OfflineStore) -> Iterator[SegmentRow]:
    """Yields every log segment, scanned to its end."""
    for segment in store.segments():
        row = SegmentRow(segment.start, segment.path, segment.size_bytes)
        scanned = store.scan(segment, check_crc=False)
        for record in scanned:
            row.record_count += 1
            row.first_store_ms = row.first_store_ms or record.store_timestamp_ms
            row.last_store_ms = record.store_timestamp_ms
        assert scanned.end is not None
        row.used_bytes = scanned.end.position
        row.end, row.reason = scanned.end.kind.value, scanned.end.reason
        yield row


def record_rows(store: OfflineStore, start: int = 0, *, with_body: bool = False) -> Iterator[RecordRow]:
    """Yields records from a log offset on. If the offset is not a record boundary, starts at the beginning of its
    segment."""
    for segment in store.segments():
        if segment.start + segment.size_bytes <= start:
            continue
        position = max(0, start - segment.start)
        if position and store.record_at(start) is None:
            yield RecordRow(start, error="no record starts here; its segment is shown from the beginning")
            position = 0
        scanned = store.scan(segment, position)
        for record in scanned:
            yield _record_row(store, record, with_body=with_body)
        assert scanned.end is not None
        if scanned.end.kind is EndKind.BAD:
            yield RecordRow(segment.start + scanned.end.position, error=scanned.end.reason)


def _record_row(store: OfflineStore, scanned: ScannedRecord, *, with_body: bool) -> RecordRow:
    try:
        record = decode_record(store.record_bytes(scanned))
    except RecordError as error:
        return RecordRow(scanned.log_offset, size=scanned.size, error=str(error))
    return RecordRow(
        log_offset=record.log_offset,
        size=scanned.size,
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        message_id=record.offset_message_id,
        born_ms=record.born_timestamp_ms,
        born_host=host_text(record.born_host),
        store_ms=record.store_timestamp_ms,
        store_host=host_text(record.store_host),
        sys_flag=record.sys_flag,
        flag=record.flag,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
        body_bytes=len(record.body),
        body_crc=scanned.body_crc,
        properties=record.property_map(),
        body=bytes(record.body) if with_body else None,
    )


def queue_rows(
    store: OfflineStore, topic: str | None = None, queue_id: int | None = None
) -> Iterator[QueueRow]:
    """Yields every consume queue, optionally only those of one topic or with one queue id."""
    for queue in store.queues():
        if topic in (None, queue.topic) and queue_id in (None, queue.queue_id):
            yield _queue_row(store, queue)


def _queue_row(store: OfflineStore, queue: OfflineQueue) -> QueueRow:
    row = QueueRow(queue.topic, queue.queue_id, len(queue.files))
    for number, (queue_offset, log_offset, _, _) in enumerate(store.units(queue)):
        if number == 0:
            row.min_offset, row.first_log_offset = queue_offset, log_offset
        row.max_offset, row.last_log_offset = queue_offset + 1, log_offset
    return row


def unit_rows(store: OfflineStore, topic: str, queue_id: int, first: int = 0) -> Iterator[UnitRow]:
    """Yields the units of one queue from a queue offset on."""
    for queue in store.queues():
        if (queue.topic, queue.queue_id) == (topic, queue_id):
            for queue_offset, log_offset, size, code in store.units(queue, first):
                yield UnitRow(queue_offset, log_offset, size, code)


def index_rows(store: OfflineStore) -> Iterator[IndexRow]:
    """Yields every index file."""
    for path in store.index_paths():
        try:
            file = store.index_file(path)
        except CorruptionError as error:
            yield IndexRow(path, error=str(error))
            continue
        mark = file.mark()
        yield IndexRow(
            path=path,
            begin_ms=file.begin_ms,
            end_ms=file.end_ms,
            begin_log_offset=file.begin_log_offset,
            end_log_offset=file.end_log_offset,
            used_slots=file.used_slots,
            slot_count=file.slot_count,
            entry_count=file.count - 1,
            synced_count=mark.end - 1 if mark is not None else 0,
        )


def entry_rows(store: OfflineStore, path: str) -> Iterator[EntryRow]:
    """Yields the entries of one index file. Raises ``CorruptionError``."""
    for number, entry in store.index_file(path).entries():
        yield EntryRow(number, entry.key_hash, entry.log_offset, entry.seconds, entry.previous)


def checkpoint_row(store: OfflineStore) -> CheckpointRow:
    """Returns the checkpoint; all values are zero if it is missing."""
    checkpoint = Checkpoint(store.fs, store.config.path("checkpoint"))
    checkpoint.load()
    return CheckpointRow(*checkpoint.values, abort=store.fs.stat(store.config.path("abort")) is not None)
