"""``orbitmq broker --processes N``: several broker groups under one parent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.support.waiting import until

from orbitmq import Message
from orbitmq.client import sync

pytestmark = pytest.mark.slow

COMMAND: Final = (sys.executable, "-m", "orbitmq.cli.main")
DEADLINE_S: Final = 60.0


@contextmanager
def name_server(folder: Path) -> Iterator[str]:
    settings = [f"kvConfigPath={folder / 'kv.json'}", f"configStorePath={folder / 'namesrv.conf'}"]
    settings += ["bindAddress=127.0.0.1", "listenPort=0"]
    command = [*COMMAND, "namesrv", *(part for one in settings for part in ("--set", one))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"address ([\d.:]+)", process.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            process.kill()


@contextmanager
def brokers(folder: Path, namesrv: str, count: int) -> Iterator[subprocess.Popen[str]]:
    config = folder / "broker.conf"
    config.write_text(
        f"brokerName=shard\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\n"
        f"storePathRootDir={folder / 'store'}\nmappedFileSizeCommitLog={16 * 1024 * 1024}\n"
    )
    command = [*COMMAND, "broker", "-c", str(config), "-n", namesrv, "--processes", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str], count: int) -> dict[str, str]:
    """Returns addresses by broker name, from the lines the parent prints."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count + 1)]
    found = [re.search(r"name (\S+), address ([\d.:]+)", line) for line in lines]
    addresses = {match[1]: match[2] for match in found if match}
    assert len(addresses) == count, lines
    return addresses


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_processes_serve_one_topic_and_a_killed_one_comes_back(tmp_path: Path) -> None:
    with name_server(tmp_path) as namesrv, brokers(tmp_path, namesrv, 2) as parent:
        assert set(ready(parent, 2)) == {"shard-0", "shard-1"}
        with sync.Producer("senders", namesrv) as producer:
            used = {producer.send(Message("Spread", f"{number}")).queue.broker_name for number in range(16)}
        assert used == {"shard-0", "shard-1"}
        before = children_of(parent.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(set(children_of(parent.pid)) - set(before)) == 1, "a new process")
        assert parent.poll() is None

        parent.send_signal(signal.SIGTERM)
        assert parent.wait(DEADLINE_S) == 0
        stores = sorted(path.name for path in (tmp_path / "store").iterdir() if path.is_dir())
        assert stores == ["shard-0", "shard-1"]


def test_processes_whose_parent_is_killed_stop_in_order(tmp_path: Path) -> None:
    with name_server(tmp_path) as namesrv, brokers(tmp_path, namesrv, 2) as parent:
        ready(parent, 2)
        children = children_of(parent.pid)
        parent.kill()
        until(lambda: not any(is_alive(child) for child in children), "the end of both brokers")
        # A cleanly closed store has no abort file.
        assert not list((tmp_path / "store").glob("*/abort"))


def test_processes_with_one_that_cannot_start_all_stop(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "shard-1").write_text("a file where the store should be")
    with name_server(tmp_path) as namesrv, brokers(tmp_path, namesrv, 2) as parent:
        assert parent.wait(DEADLINE_S) == 1
        assert parent.stderr is not None
        assert "shard-1 did not start" in parent.stderr.read()


def test_up_with_two_brokers_prints_both_and_stops_both(tmp_path: Path) -> None:
    command = [*COMMAND, "up", "--data", str(tmp_path / "data"), "--brokers", "2", "--no-console"]
    command += ["--port", "0", "--broker-port", "0", "--metrics-port", "0", "--proxy-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(6)]
            found = dict(re.findall(r"^  (name server|broker) +(\S+)$", "".join(lines), re.MULTILINE))
            assert sum(line.startswith("  broker ") for line in lines) == 2
            with sync.Producer("senders", found["name server"]) as producer:
                used = {producer.send(Message("Spread", f"{n}")).queue.broker_name for n in range(16)}
            assert len(used) == 2
            [child] = children_of(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
            assert not is_alive(child)
        finally:
            process.kill()
