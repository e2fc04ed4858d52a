"""Tests the disk that fails on request: if it were wrong, crash tests would prove nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from orbitmq.runtime.filesystem import FileSystem, LocalFileSystem
from orbitmq.testing.faulty_fs import FaultyFileSystem, SimulatedCrash

PAGE = 4096


def disk() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.make_directories("/d")
    return fs


def put(fs: FileSystem, path: str, data: bytes, *, sync: bool = False) -> int:
    handle = fs.open(path, create=True)
    assert fs.pwrite(handle, data, 0) == len(data)
    if sync:
        fs.sync_data(handle)
    return handle


@pytest.mark.parametrize("kind", ["faulty", "local"])
def test_both_file_systems_behave_alike(kind: str, tmp_path: Path) -> None:
    fs: FileSystem = disk() if kind == "faulty" else LocalFileSystem()
    root = "/d" if kind == "faulty" else str(tmp_path)
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/missing/a", create=True)
    handle = put(fs, f"{root}/a", b"hello")
    assert fs.pread(handle, 100, 1) == b"ello"
    assert fs.pread(handle, 100, 50) == b""
    fs.truncate(handle, 3 * PAGE)
    assert fs.file_size(handle) == 3 * PAGE
    assert fs.pwrite(handle, b"end", 3 * PAGE) == 3
    assert fs.file_size(handle) == 3 * PAGE + 3
    assert fs.next_data(handle, 0) == 0
    assert fs.next_data(handle, PAGE) == 3 * PAGE
    assert fs.next_data(handle, 3 * PAGE + 3) is None
    fs.allocate(handle, PAGE, 10)
    view = fs.map(handle, 3 * PAGE, write=True)
    view[PAGE : PAGE + 2] = b"mm"
    assert fs.pread(handle, 2, PAGE) == b"mm"
    assert fs.pwrite(handle, b"x", PAGE) == 1
    assert bytes(view[PAGE : PAGE + 2]) == b"xm"
    reader = fs.map(handle, PAGE)
    with pytest.raises(TypeError):
        reader[0] = 1
    del view, reader
    fs.truncate(handle, 2)
    assert fs.pread(handle, 10, 0) == b"he"
    fs.close(handle)
    with pytest.raises(OSError):
        fs.pread(handle, 1, 0)
    read_only = fs.open(f"{root}/a")
    with pytest.raises(OSError):
        fs.pwrite(read_only, b"x", 0)
    fs.close(read_only)
    fs.make_directories(f"{root}/x/y")
    fs.close(put(fs, f"{root}/x/y/b", b"1"))
    assert fs.names(root) == ["a", "x"]
    assert fs.names(f"{root}/none") == []
    found = fs.stat(f"{root}/x/y/b")
    assert found is not None
    assert (found.size_bytes, found.is_directory) == (1, False)
    folder = fs.stat(f"{root}/x")
    assert folder is not None
    assert folder.is_directory
    assert fs.stat(f"{root}/none") is None
    fs.replace(f"{root}/x/y/b", f"{root}/a")
    assert fs.names(f"{root}/x/y") == []
    with pytest.raises(FileNotFoundError):
        fs.replace(f"{root}/none", f"{root}/a")
    fs.sync_directory(root)
    fs.remove(f"{root}/a")
    fs.remove(f"{root}/a")
    fs.remove_tree(f"{root}/x")
    fs.remove_tree(f"{root}/x")
    assert fs.names(root) == []
    assert fs.disk_usage(root).total_bytes > 0


def test_power_cut_keeps_only_what_was_synced() -> None:
    fs = disk()
    handle = put(fs, "/d/a", b"one", sync=True)
    put(fs, "/d/b", b"two", sync=True)
    fs.sync_directory("/d")
    put(fs, "/d/c", b"three", sync=True)
    fs.pwrite(handle, b"ONE", 0)
    left = fs.power_cut()
    assert left.paths() == ["/d/a", "/d/b"]
    assert left.content("/d/a") == b"one"
    assert fs.kill().content("/d/a") == b"ONE"
    assert fs.kill().paths() == ["/d/a", "/d/b", "/d/c"]


def test_power_cut_asks_for_each_dirty_page_and_each_change_of_a_directory() -> None:
    fs = disk()
    handle = put(fs, "/d/a", bytes(3 * PAGE), sync=True)
    fs.sync_directory("/d")
    fs.pwrite(handle, b"\1" * PAGE, 0)
    view = fs.map(handle, 3 * PAGE, write=True)
    view[2 * PAGE] = 7
    put(fs, "/d/b", b"new")
    fs.remove("/d/a")
    asked: list[tuple[str, int]] = []

    def survives(path: str, page: int) -> bool:
        asked.append((path, page))
        return page in (-1, 2)

    left = fs.power_cut(survives)
    assert asked[:2] == [("/d", -1), ("/d", -1)]
    assert left.paths() == ["/d/b"]
    assert left.content("/d/b") == b""

    left = fs.power_cut(lambda path, page: page == 2)
    assert left.paths() == ["/d/a"]
    content = left.content("/d/a")
    assert (content[0], content[2 * PAGE], len(content)) == (0, 7, 3 * PAGE)


def test_renamed_file_is_found_under_the_old_or_the_new_name() -> None:
    fs = disk()
    put(fs, "/d/a", b"old", sync=True)
    put(fs, "/d/a.tmp", b"new", sync=True)
    fs.sync_directory("/d")
    fs.replace("/d/a.tmp", "/d/a")
    before = fs.power_cut()
    assert (before.content("/d/a"), before.content("/d/a.tmp")) == (b"old", b"new")
    after = fs.power_cut(lambda path, page: True)
    assert after.paths() == ["/d/a"]
    assert after.content("/d/a") == b"new"


def test_left_disk_is_independent_of_the_old_one() -> None:
    fs = disk()
    handle = put(fs, "/d/a", b"one", sync=True)
    left = fs.kill()
    fs.pwrite(handle, b"two", 0)
    assert left.content("/d/a") == b"one"
    with pytest.raises(OSError):
        left.pread(handle, 1, 0)


def test_failing_writes_can_be_timed_and_healed() -> None:
    fs = disk()
    handle = put(fs, "/d/a", b"")
    fs.fail_writes(after=1, error=errno.EIO)
    assert fs.pwrite(handle, b"x", 0) == 1
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            fs.pwrite(handle, b"y", 0)
        assert caught.value.errno == errno.EIO
    with pytest.raises(OSError):
        fs.open("/d/b", create=True)
    fs.heal()
    assert fs.pwrite(handle, b"z", 0) == 1
    assert fs.content("/d/a") == b"z"


def test_full_disk_gives_short_writes_then_none_but_takes_rewrites() -> None:
    fs = FaultyFileSystem(capacity_bytes=2 * PAGE)
    fs.make_directories("/d")
    handle = fs.open("/d/a", create=True)
    assert fs.pwrite(handle, b"x" * (3 * PAGE), 100) == 2 * PAGE - 100
    with pytest.raises(OSError) as caught:
        fs.pwrite(handle, b"y", 2 * PAGE)
    assert caught.value.errno == errno.ENOSPC
    assert fs.pwrite(handle, b"z" * PAGE, 0) == PAGE
    with pytest.raises(OSError):
        fs.allocate(handle, 0, 3 * PAGE)
    assert fs.disk_usage("/d").available_bytes == 0


def test_torn_write_ends_the_process() -> None:
    fs = disk()
    handle = put(fs, "/d/a", b"0123456789")
    fs.tear_write(0, 3)
    with pytest.raises(SimulatedCrash):
        fs.pwrite(handle, b"abcdefghij", 0)
    assert fs.content("/d/a") == b"abc3456789"


def test_failed_sync_gives_pages_up_for_good() -> None:
    fs = disk()
    handle = put(fs, "/d/a", bytes(2 * PAGE), sync=True)
    fs.sync_directory("/d")
    fs.pwrite(handle, b"lost", 0)
    fs.sync_error = errno.EIO
    with pytest.raises(OSError):
        fs.sync_data(handle)
    fs.heal()
    fs.pwrite(handle, b"kept", PAGE)
    fs.sync_data(handle)
    content = fs.power_cut(lambda path, page: True).content("/d/a")
    assert (content[:4], content[PAGE : PAGE + 4]) == (bytes(4), b"kept")
    fs.pwrite(handle, b"late", 0)
    fs.sync_data(handle)
    assert fs.power_cut().content("/d/a")[:4] == b"late"


def test_write_through_a_map_into_a_hole_is_noticed() -> None:
    fs = disk()
    handle = fs.open("/d/a", create=True)
    fs.truncate(handle, 2 * PAGE)
    fs.allocate(handle, 0, PAGE)
    view = fs.map(handle, 2 * PAGE, write=True)
    view[5] = 1
    fs.check_holes()
    view[PAGE] = 1
    with pytest.raises(AssertionError, match="hole"):
        fs.kill()


def test_lock_excludes_other_handles_until_closed() -> None:
    fs = disk()
    first, second = (fs.open("/d/lock", create=True) for _ in range(2))
    assert fs.lock(first, 0, 1)
    assert not fs.lock(second, 0, 1)
    fs.close(first)
    assert fs.lock(second, 0, 1)
    fs.unlock(second, 0, 1)
    assert fs.lock(fs.open("/d/lock", write=True), 0, 1)


def test_crash_before_an_operation_changes_nothing() -> None:
    fs = disk()
    handle = put(fs, "/d/a", b"one")

    def crash(name: str, path: str) -> None:
        raise SimulatedCrash(f"{name} {path}")

    fs.on_operation = crash
    for change in (
        lambda: fs.pwrite(handle, b"two", 0),
        lambda: fs.truncate(handle, 0),
        lambda: fs.remove("/d/a"),
        lambda: fs.open("/d/b", create=True),
        lambda: fs.replace("/d/a", "/d/c"),
    ):
        with pytest.raises(SimulatedCrash):
            change()
    assert fs.paths() == ["/d/a"]
    assert fs.content("/d/a") == b"one"
