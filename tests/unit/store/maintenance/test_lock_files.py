"""The lock and the abort file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.golden.data import files

from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.store.errors import StoreLocked
from orbitmq.store.maintenance.lock_files import AbortFile, StoreLock
from orbitmq.testing.faulty_fs import FaultyFileSystem

# Like Java's FileChannel.lock: a POSIX record lock on byte 0.
TRY_TO_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        sys.exit(3)
"""
HOLD_LOCK = """
import fcntl, sys
with open(sys.argv[1], "a+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("held", flush=True)
    sys.stdin.read()
"""


def try_to_lock(path: Path) -> int:
    return subprocess.run([sys.executable, "-c", TRY_TO_LOCK, str(path)], timeout=30).returncode


def test_lock_keeps_out_other_processes_until_released(tmp_path: Path) -> None:
    path = tmp_path / "root" / "lock"
    lock = StoreLock(LOCAL_FILE_SYSTEM, str(path))
    lock.acquire()
    was_held = lock.held
    assert path.read_bytes() == files("store-clean")["lock"]
    assert try_to_lock(path) == 3
    lock.release()
    assert (was_held, lock.held) == (True, False)
    assert try_to_lock(path) == 0
    lock.release()


def test_lock_held_by_another_process_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        lock = StoreLock(LOCAL_FILE_SYSTEM, str(path))
        with pytest.raises(StoreLocked, match="another broker has this store open"):
            lock.acquire()
        holder.stdin.close()
        holder.wait(10)
    lock.acquire()
    lock.release()


def test_lock_held_in_this_process_is_refused_and_survives_the_attempt(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock, second = (StoreLock(LOCAL_FILE_SYSTEM, str(path)) for _ in range(2))
    lock.acquire()
    with pytest.raises(StoreLocked):
        second.acquire()
    path.read_bytes()  # opens and closes the file: a plain record lock would be gone now
    assert try_to_lock(path) == 3
    lock.release()


def test_abort_file_holds_the_process_id_and_survives_a_power_cut() -> None:
    fs = FaultyFileSystem()
    fs.make_directories("/store")
    abort = AbortFile(fs, "/store/abort")
    assert not abort.exists
    abort.create(1234567)
    abort.create(89)
    assert fs.content("/store/abort") == b"89\nboot-1"
    assert AbortFile(fs.kill(), "/store/abort").cache_survived
    left = fs.power_cut()
    assert AbortFile(left, "/store/abort").exists
    assert not AbortFile(left, "/store/abort").cache_survived
    abort.remove()
    assert not abort.exists
    assert not AbortFile(fs.power_cut(), "/store/abort").exists
    assert not abort.cache_survived
    assert fs.open_paths == []
