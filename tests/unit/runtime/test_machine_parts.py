"""Clock, files, logging, address: the thin parts that touch the machine."""

from __future__ import annotations

import errno
import ipaddress
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orbitmq.errors import CorruptionError
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM as FS
from orbitmq.runtime.logs import configure_logging
from orbitmq.runtime.machine import physical_memory_bytes
from orbitmq.runtime.network import own_address
from orbitmq.runtime.safe_file import SafeFile


def test_clock_gives_milliseconds_since_the_epoch_and_steady_seconds() -> None:
    before = time.time()
    now_ms = SYSTEM_CLOCK.now_ms()
    after = time.time()
    assert int(before * 1000) - 1 <= now_ms <= int(after * 1000) + 1
    first = SYSTEM_CLOCK.monotonic()
    assert SYSTEM_CLOCK.monotonic() >= first


def test_own_address_is_an_ipv4_address() -> None:
    assert ipaddress.ip_address(own_address()).version == 4


def test_physical_memory_is_plausible() -> None:
    assert physical_memory_bytes() > 64 << 20


def test_file_is_written_read_cut_and_mapped(tmp_path: Path) -> None:
    handle = FS.open(str(tmp_path / "a"), create=True)
    assert FS.pwrite(handle, b"hello", 3) == 5
    assert FS.pread(handle, 100, 0) == b"\0\0\0hello"
    FS.sync_data(handle)
    FS.allocate(handle, 0, 4096)
    assert FS.file_size(handle) == 4096
    view = FS.map(handle, 4096)
    FS.pwrite(handle, b"j", 3)
    assert bytes(view[3:8]) == b"jello"
    with pytest.raises(TypeError):
        view[0] = 1
    FS.truncate(handle, 4)
    assert FS.file_size(handle) == 4
    FS.close(handle)


def test_missing_file_is_not_created_without_being_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FS.open(str(tmp_path / "a"), write=True)
    assert FS.stat(str(tmp_path / "a")) is None
    assert FS.names(str(tmp_path / "folder")) == []
    FS.remove(str(tmp_path / "a"))
    FS.remove_tree(str(tmp_path / "folder"))


def test_folders_are_made_listed_and_removed(tmp_path: Path) -> None:
    folder = str(tmp_path / "one" / "two")
    FS.make_directories(folder)
    FS.make_directories(folder)
    for name in ("b", "a"):
        FS.close(FS.open(f"{folder}/{name}", create=True))
    FS.replace(f"{folder}/b", f"{folder}/c")
    FS.sync_directory(folder)
    assert FS.names(folder) == ["a", "c"]
    found = FS.stat(folder)
    assert found is not None
    assert found.is_directory
    FS.remove_tree(str(tmp_path / "one"))
    assert FS.stat(folder) is None
    usage = FS.disk_usage(str(tmp_path))
    assert 0 < usage.available_bytes <= usage.total_bytes


def test_lock_keeps_another_process_out(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    handle = FS.open(path, create=True)
    assert FS.lock(handle, 0, 1)
    attempt = (
        "import sys; from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM as fs\n"
        "print(fs.lock(fs.open(sys.argv[1], write=True), 0, 1))"
    )

    def elsewhere() -> str:
        done = subprocess.run(
            [sys.executable, "-c", attempt, path], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.strip()

    assert elsewhere() == "False"
    FS.unlock(handle, 0, 1)
    assert elsewhere() == "True"
    FS.close(handle)


def test_safe_file_keeps_the_content_before_as_backup(tmp_path: Path) -> None:
    file = SafeFile(FS, str(tmp_path / "config" / "topics.json"))
    assert file.load(bytes.decode) is None
    file.save(b"first")
    file.save(b"second")
    assert file.load(bytes.decode) == "second"
    assert Path(file.backup_path).read_bytes() == b"first"
    Path(file.path).write_bytes(b"\xff broken")
    assert file.load(bytes.decode) == "first"
    Path(file.backup_path).write_bytes(b"\xff")
    with pytest.raises(CorruptionError, match="no readable copy"):
        file.load(bytes.decode)


def test_safe_file_on_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    class FullDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(FS, name)

        def pwrite(self, handle: int, data: bytes, offset: int, /) -> int:
            raise OSError(errno.ENOSPC, "no space")

    path = str(tmp_path / "a.json")
    SafeFile(FS, path).save(b"kept")
    with pytest.raises(OSError, match="no space"):
        SafeFile(FullDisk(), path).save(b"lost")  # type: ignore[arg-type]  # a fake with what is needed
    assert SafeFile(FS, path).load(bytes.decode) == "kept"
    assert FS.names(str(tmp_path)) == ["a.json"]


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """Yields the root logger; changes to the logging configuration are undone."""
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    yield root
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising


def test_logging_goes_to_the_file_with_level_and_name(tmp_path: Path, root_logger: logging.Logger) -> None:
    file = tmp_path / "server.log"
    configure_logging("INFO", str(file))
    logging.getLogger("orbitmq.some").info("started port=%d", 1)
    logging.getLogger("orbitmq.some").debug("not this")
    (line,) = file.read_text().splitlines()
    assert line.endswith("INFO    orbitmq.some started port=1")


def test_logging_set_up_twice_writes_each_line_once(root_logger: logging.Logger) -> None:
    configure_logging()
    configure_logging("WARNING")
    assert len(root_logger.handlers) == 1
    assert root_logger.level == logging.WARNING


def test_process_may_open_all_the_files_it_is_allowed() -> None:
    code = (
        "import resource; from orbitmq.runtime.machine import open_all_files_allowed\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "assert open_all_files_allowed() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "assert open_all_files_allowed() == hard\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
