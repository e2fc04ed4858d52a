"""The log's files: loading, creating, mapping, removing."""

from __future__ import annotations

import pytest

from orbitmq.errors import CorruptionError
from orbitmq.store.log.segment import SegmentList, zero_range
from orbitmq.testing.faulty_fs import FaultyFileSystem

SIZE = 4096
DIRECTORY = "/store/commitlog"


def new_list(
    fs: FaultyFileSystem, *directories: str, maps_max: int = 4, warm_up: bool = False
) -> SegmentList:
    segments = SegmentList(fs, directories or (DIRECTORY,), SIZE, maps_max=maps_max, warm_up=warm_up)
    segments.load()
    return segments


def add(segments: SegmentList, *starts: int) -> None:
    for start in starts:
        segments.make_file(start)
        segments.add(start)


def test_segments_are_found_again_in_order() -> None:
    fs = FaultyFileSystem()
    add(new_list(fs), 0, SIZE, 2 * SIZE)
    segments = new_list(fs)
    assert segments.starts == [0, SIZE, 2 * SIZE]
    assert segments.end == 3 * SIZE
    assert SIZE in segments
    assert 3 * SIZE not in segments
    assert [info.start for info in segments.infos()] == segments.starts


def test_new_segment_is_zeros_at_full_length_and_survives_a_power_cut() -> None:
    fs = FaultyFileSystem()
    new_list(fs).make_file(SIZE)
    left = fs.power_cut()
    assert left.content(f"{DIRECTORY}/{SIZE:020d}") == bytes(SIZE)


def test_warm_up_gives_a_segment_its_blocks() -> None:
    fs = FaultyFileSystem()
    new_list(fs, warm_up=True).make_file(0)
    assert fs.used_bytes == SIZE


def test_segments_are_spread_over_several_directories() -> None:
    fs = FaultyFileSystem()
    add(new_list(fs, "/a", "/b"), 0, SIZE, 2 * SIZE)
    assert fs.paths("/a") == [f"/a/{0:020d}", f"/a/{2 * SIZE:020d}"]
    assert fs.paths("/b") == [f"/b/{SIZE:020d}"]
    assert new_list(fs, "/a", "/b").starts == [0, SIZE, 2 * SIZE]


def test_last_file_without_length_is_removed() -> None:
    fs = FaultyFileSystem()
    add(new_list(fs), 0)
    fs.close(fs.open(f"{DIRECTORY}/{SIZE:020d}", create=True))
    assert new_list(fs).starts == [0]
    assert fs.paths(DIRECTORY) == [f"{DIRECTORY}/{0:020d}"]


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 2 * SIZE])
def test_segment_of_another_length_is_an_error_that_names_the_option(size: int) -> None:
    fs = FaultyFileSystem()
    add(new_list(fs), 0, SIZE)
    fs.resize(f"{DIRECTORY}/{SIZE:020d}", size)
    with pytest.raises(CorruptionError, match="mappedFileSizeCommitLog"):
        new_list(fs)


def test_missing_segment_is_an_error_that_names_its_offset() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0, SIZE, 2 * SIZE)
    fs.pwrite(segments.handle(2 * SIZE), b"record", 0)
    fs.remove(f"{DIRECTORY}/{SIZE:020d}")
    with pytest.raises(CorruptionError, match=f"offset {SIZE} is missing"):
        new_list(fs)


def test_unused_segment_behind_a_gap_is_removed() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0)
    segments.make_file(2 * SIZE)
    assert new_list(fs).starts == [0]
    assert fs.paths(DIRECTORY) == [f"{DIRECTORY}/{0:020d}"]


def test_files_made_ahead_are_dropped_unless_they_were_reached() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0)
    segments.make_file(SIZE)
    segments.add(SIZE)
    segments.make_file(SIZE)  # a worker that is late
    segments.make_file(2 * SIZE)
    segments.drop_made_ahead()
    assert new_list(fs).starts == [0, SIZE]


def test_foreign_files_are_left_alone() -> None:
    fs = FaultyFileSystem()
    fs.make_directories(DIRECTORY)
    fs.close(fs.open(f"{DIRECTORY}/README", create=True))
    assert new_list(fs).starts == []
    assert fs.paths(DIRECTORY) == [f"{DIRECTORY}/README"]


def test_maps_show_what_is_written_and_are_bounded() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs, maps_max=2)
    add(segments, 0, SIZE, 2 * SIZE)
    view = segments.view(0)
    assert view is not None
    fs.pwrite(segments.handle(0), b"hello", 10)
    assert bytes(view[10:15]) == b"hello"
    assert segments.view(0) is view
    segments.view(SIZE)
    segments.view(2 * SIZE)
    assert segments.view(0) is not view, "the least recently used map should have been dropped"
    assert bytes(view[10:15]) == b"hello", "a slice that is out stays readable"
    assert segments.view(5 * SIZE) is None


def test_released_maps_are_made_again_and_slices_stay_readable() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0)
    fs.pwrite(segments.handle(0), b"hello", 0)
    view = segments.view(0)
    segments.release_maps()
    again = segments.view(0)
    assert view is not None
    assert again is not None
    assert again is not view
    assert bytes(view[:5]) == bytes(again[:5]) == b"hello"


def test_removed_segment_is_gone_and_its_slices_stay_readable() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0, SIZE)
    fs.pwrite(segments.handle(0), b"hello", 0)
    view = segments.view(0)
    assert view is not None
    segments.remove(0)
    assert segments.starts == [SIZE]
    assert segments.view(0) is None
    assert bytes(view[:5]) == b"hello"
    assert fs.paths(DIRECTORY) == [f"{DIRECTORY}/{SIZE:020d}"]


def test_detached_segment_leaves_the_file_to_the_caller() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0, SIZE)
    path = segments.detach(0)
    assert segments.starts == [SIZE]
    assert path in fs.paths(DIRECTORY)


def test_rest_of_a_segment_becomes_zero_durably() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0)
    fs.pwrite(segments.handle(0), b"x" * SIZE, 0)
    segments.zero_from(100)
    assert fs.power_cut().content(f"{DIRECTORY}/{0:020d}") == b"x" * 100 + bytes(SIZE - 100)


def test_zero_range_writes_nothing_where_zeros_are() -> None:
    fs = FaultyFileSystem()
    handle = fs.open("/file", create=True)
    fs.truncate(handle, 1 << 20)
    fs.pwrite(handle, b"x", 500_000)
    before = fs.write_count
    zero_range(fs, handle, 0, 400_000)
    assert fs.write_count == before
    zero_range(fs, handle, 400_000, 1 << 20)
    assert not any(fs.content("/file"))


def test_handles_of_finished_segments_are_released() -> None:
    fs = FaultyFileSystem()
    segments = new_list(fs)
    add(segments, 0, SIZE)
    segments.handle(0)
    segments.handle(SIZE)
    segments.release_handles(SIZE)
    assert fs.open_paths == [f"{DIRECTORY}/{SIZE:020d}"]
    segments.close()
    assert fs.open_paths == []
