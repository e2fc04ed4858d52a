"""A store on an in-memory disk, and messages for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orbitmq.record.codec import Record, decode_record
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore, StoreOwner
from orbitmq.store.queues.extensions import Bitmap
from orbitmq.store.types import Arrival, NewMessage, ReadStatus
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

ROOT = "/store"
HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
HOST_V6 = bytes(range(16)) + b"\x00\x00\x30\x39"
START_MS = 1_700_000_000_000
SEGMENT_BYTES = 4096
FILE_UNITS = 8


def config(**changes: Any) -> StoreConfig:
    """Returns tiny file sizes, so that a few messages cross every boundary."""
    sizes: dict[str, Any] = {
        "root": ROOT,
        "segment_bytes": SEGMENT_BYTES,
        "queue_file_bytes": 20 * FILE_UNITS,
        "index_slots": 16,
        "index_entries": 50,
        "message_bytes_max": 2000,
        "flush_pages_min": 0,
    }
    return StoreConfig(**sizes | changes)


def open_store(
    fs: FaultyFileSystem,
    clock: ManualClock | None = None,
    *,
    store_host: bytes = HOST,
    arrived: Sequence[Arrival] = (),
    filter_bitmap: Bitmap | None = None,
    **changes: Any,
) -> MessageStore:
    """Opens a store without a worker thread."""
    store = MessageStore(
        config(**changes),
        fs=fs,
        clock=clock or ManualClock(START_MS),
        store_host=store_host,
        owner=StoreOwner(arrived, filter_bitmap),
    )
    store.open()
    return store


def message(
    number: int = 0, *, topic: str = "TopicA", queue_id: int = 0, body: bytes | None = None, **fields: Any
) -> NewMessage:
    """Returns a message whose body contains its number."""
    return NewMessage(
        topic=topic,
        queue_id=queue_id,
        body=b"body %d" % number if body is None else body,
        properties=fields.pop("properties", b"UNIQ_KEY\x01%032X\x02TAGS\x01tag%d\x02" % (number, number % 3)),
        born_timestamp_ms=START_MS + number,
        born_host=fields.pop("born_host", HOST),
        **fields,
    )


def decoded(slices: list[memoryview]) -> list[Record]:
    """Returns the records of a read."""
    data = b"".join(slices)
    records: list[Record] = []
    position = 0
    while position < len(data):
        record = decode_record(data, position)
        records.append(record)
        position += record.size
    return records


def bodies(store: MessageStore, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
    """Returns every readable body of a queue, in order, read like a consumer."""
    found: list[bytes] = []
    offset = max(0, store.min_offset(topic, queue_id))
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 32)
        assert result.next_offset > offset
        if result.status is ReadStatus.FOUND:
            found += [record.body for record in decoded(result.slices)]
        offset = result.next_offset
    return found
