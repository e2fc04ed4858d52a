"""Tests bytes that change on their own, and derived files that are missing, short or corrupt."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from tests.fault.workload import (
    LOG,
    ROOT,
    History,
    Writer,
    check_disk,
    config,
    message,
    number_of,
)

from orbitmq.errors import CorruptionError
from orbitmq.record.codec import decode_record
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import ReadStatus
from orbitmq.testing.faulty_fs import FaultyFileSystem

COUNT = 60


def written(*, clean: bool, count: int = COUNT) -> tuple[FaultyFileSystem, History]:
    """Returns a store in which every message is safe; closed, or left by a killed process."""
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(count))
    writer.flush_all()
    if clean:
        writer.store.close()
        return fs, writer.history
    return fs.kill(), writer.history


def bodies_that_are_there(store: MessageStore) -> set[int]:
    """Returns the numbers of all messages readable through their queues, whatever else their records contain."""
    numbers: set[int] = set()
    for topic in store.topics():
        for queue_id in store.queues(topic):
            offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while offset < end:
                found = store.read(topic, queue_id, offset, 1)
                assert found.next_offset > offset, "a read must always get on"
                if found.status is ReadStatus.FOUND:
                    record = decode_record(bytes(found.slices[0]))
                    number = number_of(record)
                    assert record.body == message(number).body, "an altered body was served"
                    assert number not in numbers, "a message was served twice"
                    numbers.add(number)
                offset = found.next_offset
    return numbers


def refusal(store: MessageStore) -> str:
    """Opens the store; returns the reason when it refuses."""
    try:
        store.open()
    except CorruptionError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
def test_flip_at_any_byte_of_the_last_records_is_refused_or_harmless(clean: bool) -> None:
    fs, history = written(clean=clean)
    places = dict(history.appended)
    refused = 0
    for number in range(COUNT - 3, COUNT):
        done = places[number]
        segment = done.log_offset - done.log_offset % 8192
        for position in range(done.log_offset - segment, done.log_offset - segment + done.size):
            disk = fs.kill()
            disk.flip(f"{LOG}{segment:020d}", position, 1 << position % 8)
            store = MessageStore(config(), fs=disk)
            if reason := refusal(store):
                refused += 1
                offsets = [int(text) for text in re.findall(r"\d+", reason)]
                # The record itself, or a later one of a queue whose numbers no longer add up.
                assert any(segment <= offset < history.log_end for offset in offsets), reason
                continue
            # Head and properties have no checksum: a flip there may go unnoticed, but no body is lost or altered.
            there = bodies_that_are_there(store)
            assert there == set(range(COUNT)), (number, position - done.log_offset + segment)
            store.close()
    assert refused > 3 * 60, "every byte of a body, of sizes and of offsets is noticed"


@pytest.mark.slow
def test_damage_can_be_walked_past_on_request_and_costs_only_the_damaged_records() -> None:
    fs, history = written(clean=False)
    chance = random.Random(5)
    # Opening a store reads only the log after the checkpoint.
    walked = [(number, done) for number, done in history.appended if done.log_offset >= 8192]
    assert len(walked) > 15
    for _ in range(150):
        number, done = chance.choice(walked)
        segment = done.log_offset - done.log_offset % 8192
        disk = fs.kill()
        position = chance.randrange(done.size)
        disk.flip(f"{LOG}{segment:020d}", done.log_offset - segment + position, 1 << chance.randrange(8))
        store = MessageStore(config(recover_past_corruption=True), fs=disk)
        store.open()
        lost = set(range(COUNT)) - bodies_that_are_there(store)
        if 12 <= position < 16 or 20 <= position < 28:
            # Its queue or its number in it: later messages of that queue may count as doubles.
            assert all(one >= number for one in lost), (number, position)
        else:
            assert lost <= {number}, (number, position)
        store.append(message(COUNT))
        store.close()


def derived_files(fs: FaultyFileSystem) -> Iterator[str]:
    yield from (path for path in fs.paths() if not path.startswith(LOG))


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["removed", "empty", "short", "cut in a unit", "zeros", "noise"])
def test_any_derived_file_damaged_is_rebuilt_from_the_log(clean: bool, damage: str) -> None:
    fs, history = written(clean=clean, count=150)
    for path in derived_files(fs):
        if damage in ("zeros", "noise") and "/consumequeue/" in path:
            continue  # its length is right, and a start does not read all queues: see the test of rot below
        disk = fs.kill()
        damage_file(disk, path, damage)
        count = check_disk(disk, history, go_on=path.endswith("0"))
        assert count == 150, path


def damage_file(disk: FaultyFileSystem, path: str, damage: str) -> None:
    size = len(disk.content(path))
    if damage == "removed":
        disk.remove(path)
    elif damage == "empty":
        disk.resize(path, 0)
    elif damage == "short":
        disk.resize(path, size // 2)
    elif damage == "cut in a unit":
        disk.resize(path, max(0, size - 7))
    elif damage == "zeros":
        disk.overwrite(path, 0, bytes(size))
    else:
        disk.overwrite(path, 0, random.Random(path).randbytes(size))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "folder", ["consumequeue", "index", "checkpoint", "consumequeue and index and checkpoint"]
)
def test_whole_kind_of_file_removed_is_rebuilt_from_the_log(clean: bool, folder: str) -> None:
    fs, history = written(clean=clean, count=150)
    for kind in folder.split(" and "):
        for path in fs.paths(f"{ROOT}/{kind}"):
            fs.remove(path)
    assert check_disk(fs, history) == 150


def test_queue_file_truncated_at_every_unit_is_completed() -> None:
    fs, history = written(clean=False)
    path = fs.paths(f"{ROOT}/consumequeue/TopicA/1/")[-1]
    size = len(fs.content(path))
    for keep in range(0, size, 20):
        disk = fs.kill()
        disk.overwrite(path, keep, bytes(size - keep))
        assert check_disk(disk, history, go_on=False) == COUNT


def test_abort_file_left_behind_only_costs_time() -> None:
    fs, history = written(clean=True)
    handle = fs.open(f"{ROOT}/abort", create=True)
    fs.close(handle)
    assert check_disk(fs, history) == COUNT


def test_missing_segment_in_the_middle_is_an_error_that_names_it() -> None:
    fs, _ = written(clean=True, count=150)
    segments = fs.paths(LOG)
    assert len(segments) > 3
    fs.remove(segments[1])
    with pytest.raises(CorruptionError, match="8192"):
        Writer(fs)
    assert fs.open_paths == []


def test_missing_first_segments_are_like_expired_ones() -> None:
    fs, history = written(clean=False, count=150)
    fs.remove(fs.paths(LOG)[0])
    writer = Writer(fs)
    left = bodies_that_are_there(writer.store)
    gone = {number for number, done in history.appended if done.log_offset < 8192}
    assert left == set(range(150)) - gone
    for topic in writer.store.topics():
        for queue_id in writer.store.queues(topic):
            first = writer.store.min_offset(topic, queue_id)
            assert writer.store.read(topic, queue_id, first, 1).status is ReadStatus.FOUND
    writer.append([150])
    assert writer.history.appended[-1][1].queue_offset == writer.store.max_offset("TopicB", 0) - 1
    writer.store.close()


def test_failed_open_leaves_the_store_as_it_was() -> None:
    fs, history = written(clean=False)
    _, done = history.appended[-3]
    path, position = fs.paths(LOG)[-1], done.log_offset % 8192 + 95
    fs.flip(path, position)
    before = {path: fs.content(path) for path in fs.paths(LOG)}
    for _ in range(2):
        with pytest.raises(CorruptionError, match=str(done.log_offset)):
            Writer(fs)
        assert fs.open_paths == []
        assert {path: fs.content(path) for path in fs.paths(LOG)} == before
    fs.flip(path, position)
    assert check_disk(fs, history) == COUNT


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["zeros", "noise", "flips"])
def test_rotten_queue_file_is_refused_or_read_without_failing(clean: bool, damage: str) -> None:
    fs, _ = written(clean=clean, count=150)
    for path in fs.paths(f"{ROOT}/consumequeue/"):
        disk = fs.kill()
        chance = random.Random(path)
        if damage == "flips":
            for _ in range(20):
                disk.flip(path, chance.randrange(320), 1 << chance.randrange(8))
        else:
            damage_file(disk, path, damage)
        store = MessageStore(config(), fs=disk)
        if not refusal(store):
            for topic in store.topics():
                for queue_id in store.queues(topic):
                    for offset in range(store.max_offset(topic, queue_id)):
                        found = store.read(topic, queue_id, offset, 4)
                        assert found.next_offset > offset or found.status is not ReadStatus.FOUND
            store.close()


@pytest.mark.parametrize("seed", range(10))
def test_rotten_index_answers_with_real_records_or_none(seed: int) -> None:
    chance = random.Random(seed)
    fs, history = written(clean=True)
    for path in fs.paths(f"{ROOT}/index"):
        for _ in range(60):
            fs.flip(path, chance.randrange(40, len(fs.content(path))), 1 << chance.randrange(8))
    writer = Writer(fs)
    for number, _ in history.appended:
        hits, _ = writer.store.query(message(number).topic, f"k{number}", 32, 0, 1 << 62)
        for hit in hits:
            decode_record(hit)
    assert bodies_that_are_there(writer.store) == set(range(COUNT))
    writer.store.close()
