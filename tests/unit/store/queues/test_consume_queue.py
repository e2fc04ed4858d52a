"""One queue: units in files and tail, searches, cuts, expiry."""

from __future__ import annotations

import errno

import pytest

from orbitmq.store.layout import BLANK_UNIT_SIZE, UNIT
from orbitmq.store.queues.consume_queue import ConsumeQueue, HandleCache
from orbitmq.testing.faulty_fs import FaultyFileSystem

DIRECTORY = "/store/consumequeue/TopicA/0"
FILE_UNITS = 8


def new_queue(fs: FaultyFileSystem) -> ConsumeQueue:
    return ConsumeQueue(fs, HandleCache(fs, 4), DIRECTORY, "TopicA", 0, FILE_UNITS)


def filled(fs: FaultyFileSystem, count: int, *, start: int = 0, written: bool = True) -> ConsumeQueue:
    """Returns a queue whose unit n points at log offset 100 n, size 100."""
    queue = new_queue(fs)
    if start:
        queue.start_at(start)
    for number in range(start, start + count):
        queue.append(100 * number, 100, number)
    if written:
        queue.write_tail()
    return queue


def loaded(fs: FaultyFileSystem) -> ConsumeQueue:
    queue = new_queue(fs)
    assert queue.load()
    queue.rewind(1 << 62)
    return queue


def offsets(queue: ConsumeQueue, start: int | None = None) -> list[int]:
    found: list[int] = []
    at = queue.min_offset if start is None else start
    while at < queue.max_offset:
        data = queue.units(at, 100)
        assert data
        units = list(UNIT.iter_unpack(data))
        found += [unit[0] for unit in units]
        at += len(units)
    return found


@pytest.mark.parametrize("written", [0, 3, 8, 11, 20])
def test_units_are_read_alike_from_files_from_the_tail_and_across_both(written: int) -> None:
    queue = filled(FaultyFileSystem(), written)
    for number in range(written, 20):
        queue.append(100 * number, 100, number)
    assert [queue.unit(number) for number in range(20)] == [(100 * n, 100, n) for n in range(20)]
    assert offsets(queue) == [100 * number for number in range(20)]
    assert queue.unit(20) is None
    for start in range(20):
        data = queue.units(start, 5)
        # A read ends early only at the end of a file or of the queue.
        count = len(data) // 20
        assert data == b"".join(UNIT.pack(100 * n, 100, n) for n in range(start, start + count))
        assert count == 5 or start + count == 20 or (start + count) % FILE_UNITS == 0


@pytest.mark.parametrize("kept", [0, 3, 5])
def test_units_read_ahead_are_forgotten_when_the_queue_is_cut(kept: int) -> None:
    queue = filled(FaultyFileSystem(), 8)
    assert UNIT.unpack(queue.units(2, 2)[20:]) == (300, 100, 3)
    assert UNIT.unpack(queue.units(4, 2)[20:]) == (500, 100, 5)
    queue.truncate(100 * kept)
    for number in range(kept, 8):
        queue.append(1000 * number, 50, number)
    queue.write_tail()
    expected = [100 * number if number < kept else 1000 * number for number in range(8)]
    assert [unit[0] for unit in UNIT.iter_unpack(queue.units(4, 2))] == expected[4:6]
    assert offsets(queue) == expected


def test_consumer_that_reads_on_gets_several_portions_with_one_read() -> None:
    queue = filled(FaultyFileSystem(), 8)
    reads: list[int] = []
    pread = queue._fs.pread

    def counted(handle: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return pread(handle, size, offset)

    queue._fs.pread = counted  # type: ignore[method-assign]  # counts what reaches the disk
    assert [queue.units(at, 2) for at in (0, 2, 4, 6)] == [
        b"".join(UNIT.pack(100 * n, 100, n) for n in (at, at + 1)) for at in (0, 2, 4, 6)
    ]
    assert reads == [8 * UNIT.size]


def test_files_are_made_at_full_length_and_named_by_their_first_byte() -> None:
    fs = FaultyFileSystem()
    filled(fs, 17)
    assert fs.paths(DIRECTORY) == [f"{DIRECTORY}/{start:020d}" for start in (0, 160, 320)]
    assert all(len(fs.content(path)) == 160 for path in fs.paths(DIRECTORY))
    assert not any(fs.content(fs.paths(DIRECTORY)[2])[20:])


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 30])
def test_queue_loads_to_the_unit_it_was_written_to(count: int) -> None:
    fs = FaultyFileSystem()
    filled(fs, count)
    queue = loaded(fs)
    assert queue.max_offset == count
    assert queue.log_end == (100 * count if count else -1)
    assert offsets(queue) == [100 * number for number in range(count)]


@pytest.mark.parametrize("log_offset", [0, 1, 50, 100, 799, 800, 801, 1500, 5000])
def test_rewind_keeps_exactly_the_units_below_a_log_offset(log_offset: int) -> None:
    for written in (True, False):
        queue = filled(FaultyFileSystem(), 20, written=written)
        queue.rewind(log_offset)
        kept = min(20, -(-log_offset // 100))
        assert queue.max_offset == kept
        assert offsets(queue) == [100 * number for number in range(kept)]
        assert queue.log_end == (100 * kept if kept else -1)


@pytest.mark.parametrize("log_offset", [0, 700, 750, 800, 1600, 1700])
def test_truncate_leaves_zeros_behind_the_last_unit_and_no_later_file(log_offset: int) -> None:
    fs = FaultyFileSystem()
    queue = filled(fs, 20)
    queue.truncate(log_offset)
    kept = -(-log_offset // 100)
    content = b"".join(fs.content(path) for path in fs.paths(DIRECTORY))
    assert content.rstrip(b"\0") == b"".join(UNIT.pack(100 * n, 100, n) for n in range(kept)).rstrip(b"\0")
    assert len(fs.paths(DIRECTORY)) == max(1, -(-kept // FILE_UNITS))
    queue.append(7777, 5, 1)
    queue.write_tail()
    assert loaded(fs).unit(kept) == (7777, 5, 1)


def test_truncated_queue_keeps_its_numbers_when_nothing_is_left_in_it() -> None:
    fs = FaultyFileSystem()
    queue = filled(fs, 4, start=FILE_UNITS * 3)
    queue.truncate(0)
    assert loaded(fs).max_offset == FILE_UNITS * 3


def test_queue_that_starts_late_fills_its_file_with_blank_units() -> None:
    fs = FaultyFileSystem()
    filled(fs, 2, start=21)
    (path,) = fs.paths(DIRECTORY)
    assert path.endswith(f"{320:020d}")
    assert list(UNIT.iter_unpack(fs.content(path)))[:6] == [
        *[(0, BLANK_UNIT_SIZE, 0)] * 5,
        (2100, 100, 21),
    ]
    queue = loaded(fs)
    queue.correct_min(0)
    assert (queue.min_offset, queue.max_offset) == (21, 23)


def test_min_moves_to_the_first_unit_still_in_the_log_and_never_back() -> None:
    queue = filled(FaultyFileSystem(), 20)
    queue.correct_min(450)
    assert queue.min_offset == 5
    queue.correct_min(300)
    assert queue.min_offset == 5
    queue.correct_min(10_000)
    assert (queue.min_offset, queue.max_offset) == (20, 20)


def test_expired_files_go_but_never_the_last_one() -> None:
    fs = FaultyFileSystem()
    queue = filled(fs, 20)
    assert queue.expire(900) == 1
    assert (queue.min_offset, queue.first_file) == (9, 1)
    assert queue.expire(1 << 40) == 1
    assert len(fs.paths(DIRECTORY)) == 1
    assert (queue.min_offset, queue.max_offset) == (20, 20)
    again = loaded(fs)
    again.correct_min(1 << 40)
    assert (again.min_offset, again.max_offset) == (20, 20)


def test_lost_numbers_are_blank_units_that_keep_the_order() -> None:
    queue = filled(FaultyFileSystem(), 5)
    queue.skip_to(12, 480)
    queue.append(1200, 100, 12)
    assert queue.unit(7) == (480, BLANK_UNIT_SIZE, 0)
    assert queue.count_below(481) == 12
    assert queue.count_below(480) == 5
    assert queue.unit(12) == (1200, 100, 12)


def test_refused_write_keeps_the_tail_and_can_be_repeated() -> None:
    fs = FaultyFileSystem()
    queue = filled(fs, 6)
    for number in range(6, 20):
        queue.append(100 * number, 100, number)
    fs.fail_writes(after=1)
    with pytest.raises(OSError, match="No space"):
        queue.write_tail()
    assert offsets(queue) == [100 * number for number in range(20)]
    fs.heal()
    queue.write_tail()
    assert not queue.tail
    assert offsets(loaded(fs)) == [100 * number for number in range(20)]


def test_write_cut_short_keeps_what_is_missing_in_the_tail() -> None:
    fs = FaultyFileSystem()
    queue = filled(fs, 0)
    short = ShortWrites(fs)
    queue = ConsumeQueue(short, HandleCache(short, 4), DIRECTORY, "TopicA", 0, FILE_UNITS)  # type: ignore[arg-type]  # a fake with what is needed
    for number in range(6):
        queue.append(100 * number, 100, number)
    queue.write_tail()
    assert short.calls > 1
    assert offsets(loaded(fs)) == [100 * number for number in range(6)]


class ShortWrites:
    """A disk that accepts at most 50 bytes at a time."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        self._fs = fs
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._fs, name)

    def pwrite(self, handle: int, data: bytes, offset: int, /) -> int:
        self.calls += 1
        return self._fs.pwrite(handle, bytes(data)[:50], offset)


@pytest.mark.parametrize("damage", ["length", "gap", "name"])
def test_files_that_cannot_be_a_queue_are_not_loaded(damage: str) -> None:
    fs = FaultyFileSystem()
    filled(fs, 20)
    first, second, _ = fs.paths(DIRECTORY)
    if damage == "length":
        fs.resize(first, 100)
    elif damage == "gap":
        fs.remove(second)
    else:
        fs.replace(second, f"{DIRECTORY}/{170:020d}")
    assert not new_queue(fs).load()


def test_foreign_names_are_left_alone() -> None:
    fs = FaultyFileSystem()
    filled(fs, 3)
    fs.close(fs.open(f"{DIRECTORY}/notes.txt", create=True))
    queue = loaded(fs)
    assert queue.max_offset == 3
    queue.truncate(0)
    assert f"{DIRECTORY}/notes.txt" in fs.paths(DIRECTORY)


def test_handles_are_bounded_and_reopened_on_demand() -> None:
    fs = FaultyFileSystem()
    handles = HandleCache(fs, 3)
    queues = [
        ConsumeQueue(fs, handles, f"/store/consumequeue/T{n}/0", f"T{n}", 0, FILE_UNITS) for n in range(10)
    ]
    for queue in queues:
        queue.append(1, 2, 3)
        queue.write_tail()
    assert len(fs.open_paths) == 3
    assert [queue.unit(0) for queue in queues] == [(1, 2, 3)] * 10
    assert len(fs.open_paths) == 3
    handles.close()
    assert fs.open_paths == []


def test_unsynced_files_are_handed_over_once() -> None:
    fs = FaultyFileSystem()
    queue = filled(fs, 10)
    assert sorted(queue.take_unsynced()) == fs.paths(DIRECTORY)
    assert queue.take_unsynced() == []
    queue.append(1000, 100, 0)
    queue.write_tail()
    assert queue.take_unsynced() == fs.paths(DIRECTORY)[1:]


def test_missing_file_reads_as_nothing() -> None:
    fs = FaultyFileSystem()
    queue = filled(fs, 10)
    for path in fs.paths(DIRECTORY):
        fs.remove(path)
    again = new_queue(fs)
    again.max_offset = again.tail_start = 10
    assert again.units(0, 5) == b""
    assert again.unit(3) is None
    assert queue.unit(9) == (900, 100, 9), "an open handle keeps reading"


def test_error_of_the_disk_reaches_the_caller() -> None:
    fs = FaultyFileSystem()
    queue = new_queue(fs)
    queue.append(1, 2, 3)
    fs.fail_writes(error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        queue.write_tail()
