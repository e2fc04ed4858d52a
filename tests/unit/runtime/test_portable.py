"""Systems without Linux's own calls, such as macOS: files, locks, and a broker with its clients."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.runtime.filesystem import LocalFileSystem, PortableFileSystem


@pytest.fixture
def handle(tmp_path: Path) -> int:
    return PortableFileSystem().open(str(tmp_path / "file"), create=True)


def test_allocated_file_has_its_size_and_keeps_what_it_holds(handle: int) -> None:
    files = PortableFileSystem()
    files.pwrite(handle, b"kept", 0)
    files.allocate(handle, 0, 3 << 20)
    assert files.file_size(handle) == 3 << 20
    assert files.pread(handle, 8, 0) == b"kept\0\0\0\0"
    files.allocate(handle, 0, 1 << 20)
    assert files.file_size(handle) == 3 << 20, "never shorter"
    os.close(handle)


def test_data_is_synced_with_what_the_system_has(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def control(handle: int, code: int) -> None:
        calls.append("full")
        if len(calls) > 1:
            raise OSError(45, "Operation not supported")

    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("fsync"))
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    PortableFileSystem().sync_data(handle)
    assert calls == ["fsync"]
    calls.clear()
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    PortableFileSystem().sync_data(handle)
    assert calls == ["full"]
    PortableFileSystem().sync_data(handle)
    assert calls == ["full", "full", "fsync"], "a file system without it"
    os.close(handle)


def test_data_is_found_without_seeking_for_it(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = PortableFileSystem()
    files.pwrite(handle, b"x", 9)
    monkeypatch.delattr(os, "SEEK_DATA")
    assert files.next_data(handle, 5) == 5
    assert files.next_data(handle, 10) is None
    os.close(handle)


def test_lock_excludes_other_processes_and_other_handles(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    files = PortableFileSystem()
    first, second = files.open(path, create=True), files.open(path, write=True)
    assert files.lock(first, 0, 1)
    assert files.lock(first, 0, 1), "by the same handle again"
    assert not files.lock(second, 0, 1)
    program = f"import fcntl; fcntl.lockf(open({path!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode != 0
    files.unlock(first, 0, 1)
    assert files.lock(second, 0, 1)
    os.close(second)  # without being unlocked
    assert files.lock(first, 0, 1)
    os.close(first)


def test_linux_keeps_its_own_calls() -> None:
    assert LocalFileSystem.sync_data is os.fdatasync


WITHOUT = """
import fcntl, os, select, socket
for module, names in (
    (os, ("fdatasync", "posix_fallocate", "posix_fadvise", "sendfile", "eventfd", "sched_getaffinity",
          "sched_setaffinity", "copy_file_range", "memfd_create", "pidfd_open")),
    (fcntl, ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK")),
    (select, ("epoll",)),
    (socket, ("SO_REUSEPORT", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "TCP_QUICKACK", "MSG_NOSIGNAL")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import sys
sys.modules["uvloop"] = None
from orbitmq import Message, sync
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, PortableFileSystem
from orbitmq.testing import run_broker
import orbitmq.cli.main, orbitmq.cli.up

assert isinstance(LOCAL_FILE_SYSTEM, PortableFileSystem)
with run_broker() as broker:
    broker.create_topic("T", queue_count=1)
    with sync.Producer("p", broker.name_server) as producer:
        for number in range(20):
            producer.send(Message("T", str(number)))
    consumer = sync.PushConsumer("g", broker.name_server, start="first")
    consumer.subscribe("T")
    with consumer:
        seen = []
        for message in consumer:
            seen.append(message.text())
            if len(seen) == 20:
                break
print(seen == [str(number) for number in range(20)])
"""


def test_broker_and_clients_work_without_calls_of_linux() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == "True", ended.stderr[-3000:]
