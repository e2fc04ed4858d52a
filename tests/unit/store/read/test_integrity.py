"""Damaged records and queue units of old files: skipped exactly, or repaired from the log."""

from __future__ import annotations

import logging

import pytest
from tests.unit.store.support import SEGMENT_BYTES, config, decoded, message, open_store

from orbitmq.kernel import Filter
from orbitmq.kernel.layout import UNIT
from orbitmq.store.message_store import MessageStore
from orbitmq.store.read import integrity
from orbitmq.store.types import ReadStatus
from orbitmq.testing.faulty_fs import FaultyFileSystem

COUNT = 60
BAD = 7
"""The message that is damaged: its record is in the first segment, its unit in the first file of the queue."""
LOG = "/store/commitlog/00000000000000000000"
QUEUE = "/store/consumequeue/TopicA/0/00000000000000000000"


def written(*, queue_count: int = 1) -> tuple[FaultyFileSystem, list[tuple[int, int, int]]]:
    """Returns the disk of a store that was closed, and the units of queue 0."""
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(COUNT * queue_count):
        store.append(message(number, queue_id=number % queue_count))
    units: list[tuple[int, int, int]] = []
    while len(units) < COUNT:
        units += store.units("TopicA", 0, len(units), COUNT)
    assert units[BAD][0] + units[BAD][1] < SEGMENT_BYTES < store.max_log_offset
    store.close()
    return fs, units


def read_all(store: MessageStore, count: int, wanted: Filter | None = None) -> list[int]:
    """Returns the queue offsets of all messages, read that many at a time; each read must make progress."""
    offset, found = 0, list[int]()
    while offset < store.max_offset("TopicA", 0):
        result = store.read("TopicA", 0, offset, count, wanted=wanted)
        assert result.next_offset > offset
        records = decoded(result.slices)  # raises for anything that is not a whole record
        assert result.count == len(records)
        assert (result.status is ReadStatus.FOUND) == bool(records)
        found += [record.queue_offset for record in records]
        offset = result.next_offset
    return found


ALL_BUT_BAD = [number for number in range(COUNT) if number != BAD]
RECORD_PLACES = {
    "size": 1,
    "magic": 5,
    "crc": 8,
    "queue id": 15,
    "queue offset": 27,
    "log offset": 35,
    "body size": 87,
    "body": 90,
    "topic": 97,
}


@pytest.mark.parametrize("count", [1, 32])
@pytest.mark.parametrize("place", RECORD_PLACES)
def test_damaged_record_is_skipped_exactly_and_reported_once(
    place: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    fs, units = written()
    fs.flip(LOG, units[BAD][0] + RECORD_PLACES[place], 1)
    store = open_store(fs)
    assert read_all(store, count) == ALL_BUT_BAD
    assert read_all(store, count) == ALL_BUT_BAD
    assert (store.integrity.damaged_count, store.integrity.repaired_count) == (1, 0)
    [line] = [record for record in caplog.records if "damaged message skipped" in record.getMessage()]
    assert line.levelno == logging.ERROR
    assert f"topic=TopicA queue_id=0 queue_offset={BAD} reason=" in line.getMessage()
    assert f"log offset {units[BAD][0]}" in line.getMessage()


@pytest.mark.parametrize("wanted", [Filter({UNIT.size}), None], ids=["another tag", "all"])
def test_record_that_a_tag_excludes_is_not_checked(wanted: Filter | None) -> None:
    fs, units = written()
    fs.flip(LOG, units[BAD][0] + 90, 1)
    store = open_store(fs)
    assert read_all(store, 32, wanted) == (ALL_BUT_BAD if wanted is None else [])
    assert store.integrity.damaged_count == (1 if wanted is None else 0)


@pytest.mark.parametrize("queue_count", [1, 3])
@pytest.mark.parametrize("count", [1, 32])
@pytest.mark.parametrize("position", range(12), ids=lambda at: f"byte {at}")
def test_damaged_unit_of_a_whole_record_is_repaired(
    position: int, count: int, queue_count: int, caplog: pytest.LogCaptureFixture
) -> None:
    fs, units = written(queue_count=queue_count)
    fs.flip(QUEUE, BAD * UNIT.size + position, 1 << position % 8)
    store = open_store(fs)
    assert read_all(store, count) == list(range(COUNT))
    assert (store.integrity.damaged_count, store.integrity.repaired_count) == (0, 1)
    [line] = [record for record in caplog.records if "queue unit repaired" in record.getMessage()]
    assert f"topic=TopicA queue_id=0 queue_offset={BAD} log_offset={units[BAD][0]}" in line.getMessage()
    store.close()
    assert UNIT.unpack_from(fs.content(QUEUE), BAD * UNIT.size) == units[BAD]


def test_units_that_became_zeros_are_repaired_and_a_damaged_record_among_them_is_skipped() -> None:
    fs, units = written(queue_count=2)
    fs.overwrite(QUEUE, UNIT.size, bytes(7 * UNIT.size))
    fs.flip(LOG, units[BAD][0] + 90, 1)
    store = open_store(fs)
    assert read_all(store, 4) == ALL_BUT_BAD
    assert (store.integrity.damaged_count, store.integrity.repaired_count) == (1, 6)


def test_unit_that_names_the_record_of_another_message_is_repaired() -> None:
    fs, units = written()
    fs.overwrite(QUEUE, BAD * UNIT.size, UNIT.pack(*units[BAD + 2]))
    store = open_store(fs)
    assert read_all(store, 32) == list(range(COUNT))
    assert store.integrity.repaired_count == 1


def test_damaged_unit_is_repaired_behind_a_damaged_record() -> None:
    fs, units = written()
    fs.flip(LOG, units[BAD - 1][0] + 5, 1)
    fs.flip(QUEUE, BAD * UNIT.size + 7, 1)
    store = open_store(fs)
    assert read_all(store, 32) == [number for number in range(COUNT) if number != BAD - 1]


def test_unit_that_cannot_be_written_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    fs, _ = written()
    fs.flip(QUEUE, BAD * UNIT.size + 7, 1)
    store = open_store(fs)
    fs.fail_writes()
    assert read_all(store, 32) == ALL_BUT_BAD
    assert store.integrity.damaged_count == 1
    assert "the queue unit is damaged and cannot be written" in caplog.text
    fs.heal()


def test_search_is_bounded_and_so_is_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, _ = written(queue_count=3)
    fs.flip(QUEUE, BAD * UNIT.size + 7, 1)
    store = open_store(fs)
    monkeypatch.setattr(integrity, "KNOWN_MAX", 0)
    monkeypatch.setattr(integrity, "SEARCH_BYTES", 100)
    assert read_all(store, 32) == ALL_BUT_BAD
    monkeypatch.undo()
    assert read_all(store, 32) == list(range(COUNT)), "what is not remembered is tried again"


def test_file_that_keeps_no_repair_does_not_hold_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, _ = written()
    fs.flip(QUEUE, BAD * UNIT.size + 7, 1)
    store = open_store(fs)
    monkeypatch.setattr("orbitmq.store.queues.consume_queue.ConsumeQueue.replace", lambda *args: None)
    assert read_all(store, 32) == ALL_BUT_BAD
    assert store.integrity.repaired_count == integrity.ATTEMPTS


def test_damaged_record_is_returned_by_no_other_read(caplog: pytest.LogCaptureFixture) -> None:
    fs, units = written()
    fs.flip(LOG, units[BAD][0] + 90, 1)
    store = open_store(fs)
    for _ in range(2):
        assert store.record_at(units[BAD][0], units[BAD][1]) is None
        assert store.query("TopicA", f"{BAD:032X}", 32, 0, 1 << 62)[0] == []
    assert store.record_at(units[BAD + 1][0]) is not None
    assert store.integrity.damaged_count == 1
    assert caplog.text.count("damaged message skipped") == 1


def test_what_this_process_has_written_is_not_checked_again_while_it_is_in_memory() -> None:
    fs = FaultyFileSystem()
    stores = [MessageStore(config(), fs=fs, memory_bytes=memory_bytes) for memory_bytes in (1 << 30, 0)]
    store = stores[0]
    store.open()
    for number in range(COUNT):
        store.append(message(number))
    fs.flip(LOG, store.log_offset_at("TopicA", 0, BAD) + 90, 1)
    assert len(read_all(store, 32, Filter({-1}))) == 0
    result = store.read("TopicA", 0, BAD - 1, 3)
    assert (result.count, store.integrity.damaged_count) == (3, 0)
    store.close()
    store = stores[1]  # of another process, and of a machine without memory
    store.open()
    store.append(message(COUNT))
    assert read_all(store, 32) == [*ALL_BUT_BAD, COUNT]
