"""The key index as a whole."""

from __future__ import annotations

import logging
import posixpath
import random
from typing import Any

import pytest
from tests.golden.data import STORES, files, messages

from orbitmq.store.config import StoreConfig
from orbitmq.store.index.index_file import HEADER
from orbitmq.store.index.index_service import BUILD_COUNT, IndexService, file_name
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

DIRECTORY = "/store/index"
FOREVER = (0, 1 << 62)
START_MS = 1_700_000_000_000
ENTRY_0 = slice(40 + 500 * 4, 40 + 500 * 4 + 20)


def config(**changes: Any) -> StoreConfig:
    return StoreConfig(**{"index_slots": 50, "index_entries": 20} | changes)


def service(fs: FaultyFileSystem, **changes: Any) -> IndexService:
    return IndexService(fs, DIRECTORY, config(**changes), clock=ManualClock(START_MS))


def put(index: IndexService, number: int, keys: str = "") -> None:
    """Puts record ``number`` with the key ``k<number>`` and a tag, two entries, at log offset 100 * number."""
    raw = f"KEYS\x01{keys or f'k{number}'}\x02TAGS\x01t\x02".encode()
    index.put_record(("T", raw, 0, 100 * number, START_MS + 1000 * number))


def filled(fs: FaultyFileSystem, count: int, **changes: Any) -> IndexService:
    index = service(fs, **changes)
    for number in range(count):
        put(index, number)
    index.build()
    return index


def check(index: IndexService, count: int) -> None:
    """Checks that exactly the records 0 to ``count`` are there, each once."""
    for number in range(count):
        assert index.query("T", f"k{number}", *FOREVER, 10) == [100 * number]
    assert index.query("T", f"k{count}", *FOREVER, 10) == []
    assert index.query("T", "T#t", *FOREVER, 10**6) == [100 * number for number in range(count)]
    assert sum(file.count - 1 for file in index.files) == 2 * count


@pytest.mark.parametrize("batch", [1, 7, 10_000])
@pytest.mark.parametrize("store", STORES)
def test_index_built_from_a_recorded_log_is_byte_equal_to_apaches(store: str, batch: int) -> None:
    fs = FaultyFileSystem()
    golden = messages(store)
    index = service(fs, index_slots=500, index_entries=1000)
    for number, record in enumerate(golden["records"]):
        raw = bytes.fromhex(record["propertiesHex"])
        index.put_record(
            (record["topic"], raw, record["sysFlag"], record["commitLogOffset"], record["storeTimestamp"])
        )
        if number % batch == 0:
            index.build()
    index.build()
    theirs = [content for path, content in sorted(files(store).items()) if path.startswith("index/")]
    assert [fs.content(path) for path in fs.paths()] == theirs
    for key, log_offsets in golden["served"]["keys"].items():
        topic, _, word = key.partition("#")
        assert index.query(topic, word, *FOREVER, 32) == sorted(log_offsets)
    index.close()
    # A sync writes its mark into the unused entry 0 and changes nothing else.
    for path, content in zip(fs.paths(), theirs, strict=True):
        mine = bytearray(fs.content(path))
        assert any(mine[ENTRY_0])
        mine[ENTRY_0] = bytes(20)
        assert mine == content


@pytest.mark.parametrize("store", STORES)
def test_index_of_apache_is_loaded_and_continued(store: str) -> None:
    fs = FaultyFileSystem()
    fs.make_directories(DIRECTORY)
    for path, content in files(store).items():
        if path.startswith("index/"):
            handle = fs.open(posixpath.join("/store", path), create=True)
            fs.pwrite(handle, content, 0)
            fs.close(handle)
    golden = messages(store)
    index = service(fs, index_slots=500, index_entries=1000)
    index.load(clean=store == "store-clean", trusted_ms=golden["checkpoint"]["indexMsgTimestamp"])
    # Without a clean stop the unfinished third file is ignored.
    assert len(index.files) == (3 if store == "store-clean" else 2)
    for record in golden["records"]:
        raw = bytes.fromhex(record["propertiesHex"])
        index.put_record(
            (record["topic"], raw, record["sysFlag"], record["commitLogOffset"], record["storeTimestamp"])
        )
    index.build()
    theirs = [content for path, content in sorted(files(store).items()) if path.startswith("index/")]
    assert [fs.content(path) for path in fs.paths()] == theirs, "feeding all again changes nothing"
    index.close()


def test_keys_are_built_when_enough_wait_and_before_a_query() -> None:
    index = service(FaultyFileSystem(), index_entries=5000)
    put(index, 0)
    assert index.files == []
    assert index.query("T", "k0", *FOREVER, 1) == [0]
    for number in range(1, BUILD_COUNT + 1):
        put(index, number)
    assert index.last_update == (START_MS + 1000 * BUILD_COUNT, 100 * BUILD_COUNT)


def test_query_gives_the_newest_within_the_times_across_files() -> None:
    index = service(FaultyFileSystem())
    for number in range(100):
        put(index, number, keys=f"k{number % 3}")
    index.build()
    assert len(index.files) > 5
    offsets = [100 * number for number in range(100) if number % 3 == 1]
    assert index.query("T", "k1", *FOREVER, 64) == offsets
    assert index.query("T", "k1", *FOREVER, 5) == offsets[-5:]
    begin, end = START_MS + 20_500, START_MS + 61_500
    found = index.query("T", "k1", begin, end, 64)
    # By Apache's rule the first entry of a file counts its seconds from the file before: it may seem a second late.
    assert set(found) - {1900, 2200, 6100} == {offset for offset in offsets if 2200 < offset < 6100}
    assert index.query("T", "k1", 0, START_MS + 1000, 64) == [100]
    assert index.query("T", "k1", end, begin, 64) == []
    assert index.query("T", "k1", *FOREVER, 0) == []
    assert index.query("Other", "k1", *FOREVER, 64) == []


def test_index_closed_in_order_is_loaded_whole() -> None:
    fs = FaultyFileSystem()
    filled(fs, 55).close()
    index = service(fs)
    index.load(clean=True)
    check(index, 55)
    assert index.rebuild_from == 5400
    for number in range(50, 70):
        put(index, number)
    check(index, 70)
    index.close()
    assert fs.open_paths == []


@pytest.mark.parametrize("built_after_sync", [0, 1, 9, 30])
def test_killed_process_keeps_the_index_up_to_the_last_sync(built_after_sync: int) -> None:
    fs = FaultyFileSystem()
    index = filled(fs, 43)
    index.flush()
    for number in range(43, 43 + built_after_sync):
        put(index, number)
        index.build()
    left = fs.kill()
    again = service(left)
    again.load(clean=False)
    assert again.rebuild_from == 4200
    check(again, 43)
    for number in range(30, 80):
        put(again, number)
    check(again, 80)


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_and_feeding_the_log_again_gives_the_same_index(seed: int) -> None:
    chance = random.Random(seed)
    # Odd sizes, so that pages contain slots and entries of every kind, and files end between the keys of a record.
    sizes = {"index_slots": 1500, "index_entries": chance.randrange(301, 420)}
    fs = FaultyFileSystem()
    index = service(fs, **sizes)
    fs.make_directories(DIRECTORY)
    for number in range(600):
        put(index, number)
        if chance.random() < 0.02:
            index.build()
        if chance.random() < 0.01:
            index.flush()
            fs.sync_directory(DIRECTORY)
    left = fs.power_cut(lambda path, page: chance.random() < 0.5)
    again = service(left, **sizes)
    again.load(clean=False, trusted_ms=index.synced_ms)
    for number in range(again.rebuild_from // 100, 600):
        put(again, number)
    check(again, 600)
    whole = filled(FaultyFileSystem(), 600, **sizes)
    assert [entry for file in again.files for entry in file.entries()] == [
        entry for file in whole.files for entry in file.entries()
    ]


def test_unfinished_file_without_a_mark_is_removed_with_all_newer_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = FaultyFileSystem()
    index = filled(fs, 43)
    third = index.files[2]
    trusted_ms = index.files[1].end_ms
    left = fs.kill()
    again = service(left)
    with caplog.at_level(logging.WARNING):
        again.load(clean=False, trusted_ms=trusted_ms)
    assert len(again.files) == 2
    assert len(left.paths()) == 2
    assert third.path in caplog.text
    assert again.synced_ms == trusted_ms
    for number in range(again.rebuild_from // 100, 43):
        put(again, number)
    check(again, 43)


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "missing", "foreign"])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_file_is_rebuilt_from_the_log(damage: str, clean: bool) -> None:
    fs = FaultyFileSystem()
    filled(fs, 43).close()
    path = fs.paths()[2]
    if damage == "cut":
        fs.resize(path, 77)
    elif damage == "empty":
        fs.resize(path, 0)
    elif damage == "header":
        fs.overwrite(path, 0, HEADER.pack(-1, -1, 9, 1, 5, 1 << 30))
    elif damage == "missing":
        for later in fs.paths()[2:]:
            fs.remove(later)
    else:
        handle = fs.open(DIRECTORY + "/notes.txt", create=True)
        fs.close(handle)
    index = service(fs)
    index.load(clean=clean)
    for number in range(index.rebuild_from // 100, 43):
        put(index, number)
    check(index, 43)


@pytest.mark.parametrize("failing_write", range(12))
def test_full_disk_pauses_the_index_and_resume_completes_it(failing_write: int) -> None:
    fs = FaultyFileSystem()
    index = service(fs)
    fs.fail_writes(after=failing_write)
    for number in range(60):
        put(index, number)
        if number % 4 == 0:
            index.build()
    assert index.paused
    before = index.rebuild_from
    assert index.query("T", "k59", *FOREVER, 1) == []
    fs.heal()
    index.resume()
    assert index.rebuild_from == before
    for number in range(before // 100, 60):
        put(index, number)
    check(index, 60)
    index.flush()
    fs.check_holes()


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 19, 42, 43])
def test_truncate_forgets_records_at_and_beyond_an_offset(keep: int) -> None:
    fs = FaultyFileSystem()
    index = filled(fs, 40)
    index.flush()
    for number in range(40, 43):
        put(index, number)  # still waiting
    index.truncate(100 * keep)
    check(index, keep)
    for number in range(keep, 50):
        put(index, number)
    check(index, 50)
    again = service(fs.kill())
    again.load(clean=False, trusted_ms=index.synced_ms)
    for number in range(again.rebuild_from // 100, 50):
        put(again, number)
    check(again, 50)


def test_expire_removes_files_below_the_log_but_never_the_last() -> None:
    fs = FaultyFileSystem()
    index = filled(fs, 43)
    count = len(index.files)
    assert index.expire(0) == 0
    assert index.expire(index.files[0].end_log_offset) == 0
    assert index.expire(index.files[1].end_log_offset) == 1
    assert index.query("T", "k8", *FOREVER, 10) == []
    # The first file was full between the two keys of record 9.
    assert index.query("T", "T#t", *FOREVER, 10**6) == [100 * number for number in range(9, 43)]
    assert index.expire(1 << 40) == count - 2
    assert len(index.files) == len(fs.paths()) == 1
    index.close()


def test_sync_on_a_worker_thread_tells_the_checkpoint_how_far_full_files_are() -> None:
    fs = FaultyFileSystem()
    index = filled(fs, 43)
    assert index.synced_ms == 0
    job = index.sync_job()
    assert job is not None
    assert index.sync_job() is None
    job()
    assert index.synced_ms == [file.end_ms for file in index.files if file.is_full][-1]
    fs.sync_directory(DIRECTORY)
    index.flush()
    again = service(fs.power_cut())
    again.load(clean=False, trusted_ms=index.synced_ms)
    assert again.synced_ms == index.synced_ms


def test_failed_sync_is_tried_again_and_promises_nothing() -> None:
    fs = FaultyFileSystem()
    index = filled(fs, 43)
    fs.sync_error = 5
    job = index.sync_job()
    assert job is not None
    with pytest.raises(OSError, match="Input/output"):
        job()
    assert index.synced_ms == 0
    assert all(file.mark() is None for file in index.files)
    fs.heal()
    index.flush()
    assert index.synced_ms > 0
    assert all(file.mark() == file.progress.mark for file in index.files)


def test_destroy_removes_everything() -> None:
    fs = FaultyFileSystem()
    index = filled(fs, 43)
    index.destroy()
    assert fs.paths() == []
    assert index.rebuild_from == 0
    put(index, 0)
    check(index, 1)


def test_file_names_are_local_times_that_never_go_back() -> None:
    name = file_name(START_MS + 7, "")
    assert len(name) == 17
    assert name.endswith("007")
    assert file_name(START_MS + 7, name) == name[:-3] + "008"
    assert file_name(START_MS - 3_600_000, name) == name[:-3] + "008"
    assert file_name(START_MS, "20261231235959999") == "20270101000000000"


def test_file_made_ahead_is_taken_over_by_the_first_key_that_needs_one() -> None:
    fs = FaultyFileSystem()
    fs.make_directories(posixpath.dirname(DIRECTORY))
    index = service(fs)
    job = index.next_file_job()
    assert job is not None
    assert index.next_file_job() is None  # it is being created
    job()
    assert fs.paths(DIRECTORY) == [f"{DIRECTORY}.next"]
    for number in range(6):
        put(index, number)
        index.build()
    assert fs.paths(DIRECTORY) == [index.files[0].path]
    assert index.next_file_job() is None  # the last one has room
    for number in (6, 7):
        put(index, number)
        index.build()
    second = index.next_file_job()
    assert second is not None
    for number in range(8, 25):  # two more files are needed before the second is created
        put(index, number)
        index.build()
    second()
    for number in range(25, 60):
        put(index, number)
        index.build()
    assert len(fs.paths(DIRECTORY)) == len(index.files)
    check(index, 60)
    index.flush()
    fs.check_holes()


def test_file_that_cannot_be_made_ahead_is_made_when_it_is_needed(caplog: pytest.LogCaptureFixture) -> None:
    fs = FaultyFileSystem()
    fs.make_directories(posixpath.dirname(DIRECTORY))
    index = service(fs)
    job = index.next_file_job()
    assert job is not None
    fs.fail_writes()
    job()
    assert "not preallocated" in caplog.text
    assert fs.paths(DIRECTORY) == []
    assert index.next_file_job() is None  # not again and again
    fs.heal()
    for number in range(9):
        put(index, number)
    index.build()
    check(index, 9)
    assert index.next_file_job() is not None


@pytest.mark.parametrize("killed", [False, True])
def test_file_made_ahead_and_never_needed_is_removed(killed: bool) -> None:
    fs = FaultyFileSystem()
    fs.make_directories(posixpath.dirname(DIRECTORY))
    index = service(fs)
    job = index.next_file_job()
    assert job is not None
    job()
    if killed:
        fs = fs.kill()
        index = service(fs)
        index.load(clean=False)
    else:
        index.close()
    assert fs.paths(DIRECTORY) == []
    assert index.next_file_job() is not None
