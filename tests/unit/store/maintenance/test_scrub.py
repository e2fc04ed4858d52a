"""The background pass over the log: it finds every damaged record and queue unit, once, and ends."""

from __future__ import annotations

import logging

import pytest
from tests.unit.store.read.test_integrity import BAD, COUNT, LOG, QUEUE, RECORD_PLACES, read_all, written
from tests.unit.store.support import SEGMENT_BYTES, message, open_store

from orbitmq.kernel.layout import UNIT
from orbitmq.store.maintenance import scrub
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.faulty_fs import FaultyFileSystem


def run_pass(store: MessageStore, fs: FaultyFileSystem) -> int:
    """Returns the number of pieces of one pass; each must make progress."""
    count, before = 0, (-1, 0)
    while (piece := store.scrubber.next_piece()) is not None:
        assert (piece.log_offset, piece.size) != before
        before = (piece.log_offset, piece.size)
        store.scrubber.check(piece, store.scrubber.read_piece(fs, piece))
        count += 1
    return count


@pytest.mark.parametrize("piece_bytes", [8, 100, 1000, 1 << 20])
def test_pass_over_a_whole_log_verifies_every_record(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "PIECE_BYTES", piece_bytes)
    fs, units = written()
    store = open_store(fs)
    store.scrubber._size = piece_bytes
    for _ in range(2):
        run_pass(store, fs)
    assert store.scrubber.verified_bytes == 2 * sum(size for _, size, _ in units)
    assert (store.scrubber.pass_count, store.scrubber.damage_count) == (2, 0)


@pytest.mark.parametrize("place", RECORD_PLACES)
def test_damaged_record_is_found_and_reported_once(place: str, caplog: pytest.LogCaptureFixture) -> None:
    fs, units = written()
    fs.flip(LOG, units[BAD][0] + RECORD_PLACES[place], 1)
    store = open_store(fs)
    for _ in range(2):
        run_pass(store, fs)
    covered = place not in ("queue offset", "queue id", "topic")
    assert store.scrubber.damage_count == (2 if covered or place == "queue offset" else 0)
    found = [record for record in caplog.records if "damaged record found" in record.getMessage()]
    assert [one.levelno for one in found] == [logging.ERROR] * covered
    if covered:
        assert f"log_offset={units[BAD][0]} " in found[0].getMessage()
        assert store.scrubber.verified_bytes == 2 * sum(
            size for _, size, _ in (*units[:BAD], *units[BAD + 1 :])
        )


@pytest.mark.parametrize("position", range(12), ids=lambda at: f"byte {at}")
def test_damaged_queue_unit_is_rewritten(position: int) -> None:
    fs, units = written()
    fs.flip(QUEUE, BAD * UNIT.size + position, 1 << position % 8)
    store = open_store(fs)
    run_pass(store, fs)
    assert (store.scrubber.damage_count, store.integrity.repaired_count) == (1, 1)
    assert store.units("TopicA", 0, BAD, 1) == [units[BAD]]
    assert read_all(store, 32) == list(range(COUNT))


def test_damage_is_given_to_the_repair_from_other_brokers() -> None:
    fs, units = written()
    fs.flip(LOG, units[BAD][0] + RECORD_PLACES["body"], 1)
    store = open_store(fs)
    asked: list[int] = []

    def fetch(log_offset: int, topic: str, queue_id: int) -> bool:
        asked.append(log_offset)
        return True

    store.integrity.fetch_with(fetch)
    run_pass(store, fs)
    assert asked == [units[BAD][0]]
    assert store.integrity.damaged_count == 0


def test_pass_ends_at_what_is_flushed_and_follows_the_log() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    assert store.scrubber.next_piece() is None
    assert store.scrubber.pass_count == 0
    for number in range(COUNT):
        store.append(message(number))
    assert store.scrubber.next_piece() is None
    store.flush()
    run_pass(store, fs)
    assert store.scrubber.pass_count == 1
    piece = store.scrubber.next_piece()
    assert piece is not None
    data = store.scrubber.read_piece(fs, piece)
    store.truncate(0)
    store.scrubber.check(piece, data)
    assert store.scrubber.damage_count == 0


def test_records_of_a_topic_that_was_deleted_and_recreated_are_no_damage() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for _ in range(2):
        for number in range(COUNT):
            store.append(message(number))
        if store.max_offset("TopicA", 0) == COUNT and store.max_log_offset < 3 * SEGMENT_BYTES * 2:
            store.delete_topic("TopicA")
    store.flush()
    run_pass(store, fs)
    assert store.scrubber.damage_count == 0
