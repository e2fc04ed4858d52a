"""``orbitmq pipeline archive`` and ``replay`` killed with -9: nothing is lost, and what comes twice has one key."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from tests.apache.artifacts import require
from tests.apache.process import wait_until
from tests.spark.pipeline_kit import read_all

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import run_broker

pytestmark = [pytest.mark.slow, pytest.mark.apache, pytest.mark.soak, pytest.mark.usefixtures("fast_jvm")]

KILLS = 4
COUNT = 20_000


def command(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "orbitmq", "pipeline", *arguments, "--master", "local[2]"]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True)


def killed(process: subprocess.Popen[bytes], begun: Callable[[], bool], moment_s: float) -> None:
    try:
        wait_until(lambda: begun() or process.poll() is not None, timeout_s=300, what="a beginning")
        threading.Event().wait(moment_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def finished(process: subprocess.Popen[bytes], directory: Path) -> None:
    assert process.wait(300) == 0, (directory / "log").read_text(errors="replace")[-3000:]


@pytest.mark.timeout(1800)
def test_archive_and_replay_killed_again_and_again_keep_every_message(tmp_path: Path) -> None:
    require()
    moments = random.Random(5)
    archive = tmp_path / "archive"
    with run_broker() as broker:
        broker.create_topic("Kept", queue_count=4)
        broker.create_topic("Again", queue_count=4)
        with Producer("archive", broker.name_server) as producer:
            for start in range(0, COUNT, 500):
                producer.send_batch([Message("Kept", b"%d" % n) for n in range(start, start + 500)])
        keep = ["archive", str(archive), "-n", broker.name_server, "-t", "Kept"]
        for _ in range(KILLS):
            place = archive / "run=00000"
            killed(command(tmp_path, *keep), place.exists, moments.random() * 3)
        finished(command(tmp_path, *keep), tmp_path)
        runs = [run["number"] for run in json.loads((archive / "_archive.json").read_text())["runs"]]
        with duckdb.connect() as engine:
            files = [f"{archive}/run={number:05d}/**/*.parquet" for number in runs]
            bodies = engine.execute("SELECT decode(body)::INT FROM read_parquet(?)", [files]).fetchall()
        assert sorted(row[0] for row in bodies) == list(range(COUNT))

        def sent() -> bool:
            return bool(read_all(broker.name_server, "Again"))

        again = ["replay", str(archive), "-n", broker.name_server, "--rename", "Kept=Again"]
        for _ in range(KILLS):
            killed(command(tmp_path, *again), sent, moments.random() * 3)
        finished(command(tmp_path, *again), tmp_path)
        messages = read_all(broker.name_server, "Again")
    assert {int(message.body) for message in messages} == set(range(COUNT))
    assert len({message.message_id for message in messages}) == COUNT, "a repeated message keeps its key"
