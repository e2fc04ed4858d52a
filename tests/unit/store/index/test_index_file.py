"""One index file."""

from __future__ import annotations

import errno
import random

import pytest

from orbitmq.errors import CorruptionError
from orbitmq.kernel.layout import INDEX_KEY
from orbitmq.store.index.index_file import ENTRY, HEADER, IndexFile
from orbitmq.testing.faulty_fs import FaultyFileSystem

PATH = "/store/index/20260101000000000"
SLOTS, ENTRIES = 7, 50
START_MS = 1_700_000_000_000
FOREVER = (0, 1 << 62)


def disk() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.make_directories("/store/index")
    return fs


def new(fs: FaultyFileSystem, after: IndexFile | None = None, path: str = PATH) -> IndexFile:
    return IndexFile.create(fs, path, SLOTS, ENTRIES, after=after)


def load(fs: FaultyFileSystem) -> IndexFile:
    return IndexFile.load(fs, PATH, SLOTS, ENTRIES)


Key = tuple[int, int, int]
"""Hash, log offset, store time."""


def row(keys: list[Key]) -> bytes:
    return b"".join(INDEX_KEY.pack(*key) for key in keys)


def puts(count: int, first: int = 0) -> list[Key]:
    """Returns hashes 0..9 repeatedly, so that slots hold several hashes and hashes several entries."""
    return [(n % 10, 100 * n, START_MS + 700 * n) for n in range(first, first + count)]


def find_by_list(entries: list[Key], key_hash: int, begin_ms: int, end_ms: int) -> list[int]:
    """Returns the expected result of ``find``. Times are kept in whole seconds since the first one."""
    return [
        log_offset
        for stored_hash, log_offset, store_ms in reversed(entries)
        if stored_hash == key_hash
        and begin_ms <= entries[0][2] + (store_ms - entries[0][2]) // 1000 * 1000 <= end_ms
    ]


def check_slots(file: IndexFile) -> None:
    """Checks that slots and chains match the entries, and that nothing follows them."""
    newest = [0] * SLOTS
    for number, entry in file.entries():
        slot = entry.key_hash % SLOTS
        assert entry.previous == newest[slot], number
        newest[slot] = number
    assert list(file.slots()) == newest
    assert file.used_slots == sum(number > 0 for number in newest)
    position = file.entries_at + file.count * ENTRY.size
    assert not file.read(position, file.size_bytes).strip(b"\0")


@pytest.mark.parametrize("batch", [1, 3, 49])
def test_find_gives_newest_first_within_the_times(batch: int) -> None:
    entries = puts(49)
    file = new(disk())
    for start in range(0, 49, batch):
        file.put(row(entries[start : start + batch]))
    check_slots(file)
    for key_hash in range(12):
        for begin_ms, end_ms in [
            FOREVER,
            (START_MS + 9000, START_MS + 20_000),
            (0, START_MS),
            (START_MS + 999_999, 1),
        ]:
            expected = find_by_list(entries, key_hash, begin_ms, end_ms)
            assert file.find(key_hash, 64, begin_ms, end_ms) == expected
            assert file.find(key_hash, 2, begin_ms, end_ms) == expected[:2]
    assert file.find(1, 0, *FOREVER) == []


def test_file_reads_the_same_when_loaded_again() -> None:
    fs = disk()
    file = new(fs)
    file.put(row(puts(30)))
    file.close()
    again = load(fs)
    assert again.progress == file.progress
    assert (again.begin_ms, again.begin_log_offset, again.end_log_offset) == (START_MS, 0, 2900)
    assert again.find(3, 64, *FOREVER) == file.find(3, 64, *FOREVER) == [2300, 1300, 300]
    assert again.put(row(puts(5, 30))) == 5
    check_slots(again)
    again.close()
    assert fs.open_paths == []


def test_put_takes_what_fits_and_the_next_file_begins_where_it_ended() -> None:
    fs = disk()
    first = new(fs)
    entries = puts(60)
    assert first.put(row(entries)) == 49
    assert first.is_full
    assert first.put(row(entries[49:])) == 0
    second = new(fs, first, PATH[:-1] + "1")
    assert (second.begin_ms, second.end_ms) == (first.end_ms, first.end_ms)
    assert (second.begin_log_offset, second.end_log_offset) == (4800, 4800)
    assert second.is_empty
    assert second.put(row(entries[49:])) == 11
    assert (second.begin_ms, second.begin_log_offset) == (START_MS + 700 * 49, 4900)
    check_slots(second)


def test_seconds_are_clamped_and_counted_from_the_begin_time() -> None:
    file = new(disk())
    times = (START_MS, START_MS + 1999, START_MS - 5000, START_MS + 2**31 * 1000)
    file.put(row([(1, number, store_ms) for number, store_ms in enumerate(times)]))
    assert [entry.seconds for _, entry in file.entries()] == [0, 1, 0, 2**31 - 1]


@pytest.mark.parametrize("failing_write", range(3))
def test_full_disk_leaves_the_file_as_it_was(failing_write: int) -> None:
    fs = disk()
    file = new(fs)
    entries = puts(40)
    file.put(row(entries[:20]))
    before = fs.content(PATH)
    fs.fail_writes(after=failing_write)
    for start in range(20, 20 + failing_write):
        file.put(row(entries[start : start + 1]))
        before = fs.content(PATH)
    with pytest.raises(OSError) as caught:
        file.put(row(entries[20 + failing_write :]))
    assert caught.value.errno == errno.ENOSPC
    assert fs.content(PATH)[: file.entries_at] == before[: file.entries_at]
    fs.heal()
    file.put(row(entries[20 + failing_write :]))
    check_slots(file)
    fs.check_holes()


def test_create_on_a_full_disk_leaves_no_file() -> None:
    for failing_write in range(2):
        fs = disk()
        fs.fail_writes(after=failing_write)
        with pytest.raises(OSError, match="No space"):
            new(fs)
        assert fs.paths() == []
        assert fs.open_paths == []


@pytest.mark.parametrize("cut_at", [0, 1, 100, 101, 2500, 4800, 4801, 9999])
def test_cut_drops_entries_at_and_beyond_an_offset(cut_at: int) -> None:
    entries = puts(49)
    file = new(disk())
    file.put(row(entries))
    left = [entry for entry in entries if entry[1] < cut_at]
    assert file.cut(cut_at) == len(entries) - len(left)
    check_slots(file)
    assert file.count == len(left) + 1
    if left:
        assert file.end_log_offset == left[-1][1]
        assert file.end_ms <= left[-1][2]
    for key_hash in range(10):
        assert file.find(key_hash, 64, *FOREVER) == find_by_list(left, key_hash, *FOREVER)


def test_mark_is_found_only_where_a_sync_left_it() -> None:
    fs = disk()
    file = new(fs)
    file.put(row(puts(10)))
    assert file.mark() is None
    file.sync(file.progress)
    assert file.mark() == file.progress.mark
    file.put(row(puts(10, 10)))
    assert file.mark() != file.progress.mark
    for position in range(file.entries_at, file.entries_at + ENTRY.size):
        fs.flip(PATH, position)
        assert file.mark() is None
        fs.flip(PATH, position)


def test_mark_taken_before_a_cut_is_not_written_after_it() -> None:
    file = new(disk())
    file.put(row(puts(20)))
    progress = file.progress
    file.cut(500)
    file.sync(progress)
    assert file.mark() is None
    file.sync(file.progress)
    file.cut(300)
    mark = file.mark()
    assert mark is not None
    assert mark.end == 4


@pytest.mark.parametrize("seed", range(60))
def test_restore_after_a_power_cut_gives_exactly_what_the_mark_vouches_for(seed: int) -> None:
    chance = random.Random(seed)
    fs = FaultyFileSystem()
    fs.make_directories("/store/index")
    # Slots and entries over several pages, so that some survive and some do not.
    file = IndexFile.create(fs, PATH, 3000, 1000)
    fs.sync_directory("/store/index")
    entries = [(chance.randrange(9000), 100 * n, START_MS + 700 * n) for n in range(900)]
    synced = chance.randrange(0, 400)
    file.put(row(entries[:synced]))
    file.sync(file.progress)
    file.sync(file.progress)  # the second one puts the mark itself on the disk
    for start in range(synced, 900, 50):
        file.put(row(entries[start : start + 50]))
    left = fs.power_cut(lambda path, page: chance.random() < 0.5)
    again = IndexFile.load(left, PATH, 3000, 1000)
    mark = again.mark()
    assert mark is not None
    assert mark.end == synced + 1
    again.restore(mark)
    newest: dict[int, int] = {}
    for number, entry in again.entries():
        assert entry[:2] == entries[number - 1][:2]
        assert entry.previous == newest.get(entry.key_hash % 3000, 0)
        newest[entry.key_hash % 3000] = number
    assert {slot: number for slot, number in enumerate(again.slots()) if number} == newest
    assert again.used_slots == len(newest)
    assert not again.read(again.entries_at + again.count * ENTRY.size, again.size_bytes).strip(b"\0")
    again.put(row(entries[synced:]))
    assert again.find(entries[-1][0], 1, *FOREVER) == [89_900]
    left.check_holes()


@pytest.mark.parametrize(
    "header",
    [
        (0, 0, 0, 0, 0, ENTRIES + 1),
        (0, 0, 0, 0, 0, -1),
        (0, 0, 10, 5, 0, 3),
    ],
)
def test_impossible_header_is_refused(header: tuple[int, ...]) -> None:
    fs = disk()
    new(fs).close()
    fs.overwrite(PATH, 0, HEADER.pack(*header))
    with pytest.raises(CorruptionError, match="impossible header"):
        load(fs)


def test_wrong_size_is_refused() -> None:
    fs = disk()
    new(fs).close()
    fs.resize(PATH, 100)
    with pytest.raises(CorruptionError, match="100 bytes"):
        load(fs)


@pytest.mark.parametrize("seed", range(20))
def test_find_in_a_rotten_file_ends_and_never_raises(seed: int) -> None:
    chance = random.Random(seed)
    fs = disk()
    file = new(fs)
    file.put(row(puts(49)))
    for _ in range(200):
        fs.flip(PATH, chance.randrange(HEADER.size, file.size_bytes), 1 << chance.randrange(8))
    for key_hash in range(10):
        assert len(file.find(key_hash, 64, *FOREVER)) <= 49
