"""Starts the servers of a folder written by ``orbitmq init``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.ports import free_ports

from orbitmq.admin import Admin
from orbitmq.model.route import MASTER_ID

COMMAND: Final = (sys.executable, "-m", "orbitmq.cli.main")
READY_S: Final = 60.0


def init(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "init", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def written(kind: str, directory: Path, broker_count: int) -> str:
    """Writes the files of a layout on free ports; returns the address of the name server."""
    (name_server,) = free_ports()
    # A broker also uses its port - 2 and + 1; the next broker is ten further.
    offsets = [10 * number + own for number in range(broker_count) for own in (0, 2, 3)]
    broker = free_ports(*offsets[1:])[0] + 2
    metrics = free_ports(*range(1, broker_count + 1))[0]
    done = init(
        kind,
        *("-d", str(directory), "--port", str(name_server)),
        *("--broker-port", str(broker), "--metrics-port", str(metrics)),
    )
    assert done.returncode == 0, done.stderr
    assert "Start each in a terminal of its own" in done.stdout
    return f"127.0.0.1:{name_server}"


@contextlib.contextmanager
def started(directory: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Starts every server of the folder, the name server first; all stop in order with exit code 0."""
    files = sorted(directory.glob("*.conf"), key=lambda path: (path.stem != "namesrv", path.stem))
    running: dict[str, subprocess.Popen[str]] = {}
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    try:
        for path in files:
            server = "namesrv" if path.stem == "namesrv" else "broker"
            running[path.stem] = subprocess.Popen(
                [*COMMAND, server, "-c", str(path), "--log-file", str(directory / f"{path.stem}.log")],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        for name, process in running.items():
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "ready" in line, f"{name}: {line}{process.stderr.read() if process.stderr else ''}"
        yield running
        for name, process in reversed(running.items()):
            process.terminate()
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, f"{name}: {errors}"
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def wait_for_brokers(name_server: str, count: int) -> None:
    """Waits until that many brokers are registered, and every name has a master."""

    async def registered() -> None:
        async with Admin(name_server) as admin, asyncio.timeout(READY_S):
            known: list[dict[int, str]] = []
            while sum(map(len, known)) < count or not all(MASTER_ID in one for one in known):
                # Every round is a request to the name server.
                table = (await admin.cluster_info()).broker_addr_table
                known = [data.broker_addrs for data in table.values()]

    asyncio.run(registered())
