"""A store on a failing disk, the data written to it, and the invariants that must hold afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orbitmq.record.codec import Record, decode_record
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, NewMessage, ReadStatus
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

ROOT = "/store"
LOG = f"{ROOT}/commitlog/"
HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
FOREVER = (0, 1 << 62)
START_MS = 1_700_000_000_000

SMALL: dict[str, Any] = {
    "root": ROOT,
    "segment_bytes": 8192,
    "queue_file_bytes": 20 * 16,
    "index_slots": 64,
    "index_entries": 40,
    "message_bytes_max": 4096,
    "flush_pages_min": 0,
}


def config(**changes: Any) -> StoreConfig:
    """Tiny files, so that every test crosses their boundaries."""
    return StoreConfig(**SMALL | changes)


def message(number: int, queue_count: int = 2, padding: int = 40) -> NewMessage:
    """Returns message ``number`` of a history; its body contains the number, and its properties carry a key and a
    tag.
    """
    return NewMessage(
        topic="TopicA" if number % 5 else "TopicB",
        queue_id=number % queue_count,
        body=b"%d:" % number + bytes(97 + (number + i) % 26 for i in range(padding)),
        properties=b"UNIQ_KEY\x017F0000010000764C12A3%012X\x02KEYS\x01k%d\x02TAGS\x01t%d\x02"
        % (number, number, number % 3),
        born_timestamp_ms=START_MS + number,
        born_host=HOST,
        flag=number,
    )


@dataclass
class History:
    """The results reported to a writer: which appends succeeded, where, and which of them are safe on the disk."""

    appended: list[tuple[int, Appended]] = field(default_factory=list)
    """Message numbers in log order."""
    safe: set[int] = field(default_factory=set)
    """Numbers of messages whose flush was confirmed."""
    refused: set[int] = field(default_factory=set)
    under_way: list[int] = field(default_factory=list)
    """Numbers of the append that a crash interrupted: it may have happened or not."""

    @property
    def log_end(self) -> int:
        return max((done.log_offset + done.size for _, done in self.appended), default=0)

    @property
    def safe_count(self) -> int:
        """Returns how many messages are safe: all up to the last safe one, since the log is written in order."""
        return max((i + 1 for i, (number, _) in enumerate(self.appended) if number in self.safe), default=0)


class Writer:
    """Drives one store with its own clock. No worker thread: every step happens when it is called."""

    def __init__(self, fs: FaultyFileSystem, history: History | None = None, **changes: Any) -> None:
        self.fs = fs
        self.clock = ManualClock(START_MS)
        self.history = History() if history is None else history
        self.store = MessageStore(config(**changes), store_host=HOST, fs=fs, clock=self.clock)
        self.report = self.store.open()

    def append(self, numbers: Iterable[int], **shape: int) -> None:
        """Appends messages one by one and records refusals."""
        for number in numbers:
            self.clock.advance(1)
            self.history.under_way = [number]
            try:
                done = self.store.append(message(number, **shape))
            except StoreError:
                self.history.refused.add(number)
            else:
                self._note(number, done)
            self.history.under_way = []

    def append_batch(self, numbers: Iterable[int], **shape: int) -> None:
        self.history.under_way = numbers = list(numbers)
        self.clock.advance(1)
        try:
            done = self.store.append_batch([message(number, **shape) for number in numbers])
        except StoreError:
            self.history.refused.update(numbers)
        else:
            for number, one in zip(numbers, done, strict=True):
                self._note(number, one)
        self.history.under_way = []

    def _note(self, number: int, done: Appended) -> None:
        self.history.appended.append((number, done))

        def flushed(ok: bool) -> None:
            if ok:
                self.history.safe.add(number)

        self.store.when_flushed(done.log_offset + done.size, flushed)

    def sync_log(self) -> None:
        """Syncs the log alone to the disk, which is what a synchronous send waits for."""
        self.clock.advance(self.store.config.flush_interval_ms + 1)
        self.store.tick()

    def flush_all(self) -> None:
        self.store.flush()


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """Returns every readable message of a queue, in order; checks that offsets are dense and slices are whole."""
    records: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    end = store.max_offset(topic, queue_id)
    while offset < end:
        found = store.read(topic, queue_id, offset, 32)
        assert found.status is ReadStatus.FOUND, (topic, queue_id, offset, found.status)
        for piece in found.slices:
            position = 0
            while position < len(piece):
                record = decode_record(piece, position)
                size = int.from_bytes(piece[position : position + 4], "big")
                assert (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, offset)
                records.append(record)
                position += size
                offset += 1
        assert found.next_offset == offset
    return records


def number_of(record: Record) -> int:
    return int(record.body.partition(b":")[0])


def survivors(store: MessageStore) -> list[int]:
    """Returns message numbers in log order, after checking that every queue reads whole and agrees with the log."""
    by_log_offset: dict[int, int] = {}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            for record in read_queue(store, topic, queue_id):
                number = number_of(record)
                sent = message(number, queue_count=1 << 30, padding=len(record.body) - len(b"%d:" % number))
                assert (record.topic, record.body, record.flag) == (sent.topic, sent.body, sent.flag)
                assert record.properties == sent.properties
                by_log_offset[record.log_offset] = number
    return [by_log_offset[offset] for offset in sorted(by_log_offset)]


def check_survivors(store: MessageStore, history: History) -> int:
    """Checks that exactly a prefix of the appended messages is there, no shorter than the safe part; returns its
    length.
    """
    found = survivors(store)
    appended = [number for number, _ in history.appended] + history.under_way
    assert found == appended[: len(found)], "not a prefix of what was appended"
    assert len(found) >= history.safe_count, "a message was confirmed and is lost"
    for number, done in history.appended[: len(found)]:
        record = store.record_at(done.log_offset, done.size)
        assert record is not None
        assert number_of(decode_record(record)) == number
        sent = message(number)
        hits, _ = store.query(sent.topic, f"k{number}", 32, *FOREVER)
        assert number in [number_of(decode_record(hit)) for hit in hits], f"k{number} is not in the index"
    for number, _ in history.appended[len(found) :]:
        hits, _ = store.query(message(number).topic, f"k{number}", 32, *FOREVER)
        assert number not in [number_of(decode_record(hit)) for hit in hits]
    return len(found)


def check_disk(fs: FaultyFileSystem, history: History, *, go_on: bool = True, **changes: Any) -> int:
    """Opens the store left by a crash, checks it, and (``go_on``) appends, closes and opens it once more."""
    writer = Writer(fs, **changes)
    count = check_survivors(writer.store, history)
    if go_on:
        ends = {
            key: writer.store.max_offset(*key)
            for key in (("TopicA", 0), ("TopicA", 1), ("TopicB", 0), ("TopicB", 1))
        }
        later = History(history.appended[:count])
        for number in history.under_way[: max(0, count - len(history.appended))]:
            sent = message(number)
            hits, _ = writer.store.query(sent.topic, f"k{number}", 32, *FOREVER)
            head = decode_record(hits[-1])
            later.appended.append((number, Appended(head.log_offset, len(hits[-1]), head.queue_offset, 0)))
        writer.history = later
        writer.append(range(1_000_001, 1_000_008))
        for number, done in later.appended[count:]:
            sent = message(number)
            assert done.queue_offset == ends[sent.topic, sent.queue_id]
            ends[sent.topic, sent.queue_id] += 1
        writer.store.close()
        again = Writer(fs, **changes)
        assert again.report.clean
        assert check_survivors(again.store, later) == count + 7
        again.store.close()
    else:
        writer.store.close()
    assert fs.open_paths == []
    return count
