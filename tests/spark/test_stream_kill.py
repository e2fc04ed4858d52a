"""A streaming query killed with -9 again and again under load: its Parquet holds every message exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

START_TIMEOUT_S = 300.0


def start(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The program in a group of its own: driver, JVM and workers."""
    command = [sys.executable, "-m", "tests.spark.stream_job", *arguments]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def begun(directory: Path) -> int:
    """Micro-batches the query has planned so far."""
    return len(list((directory / "checkpoint" / "offsets").glob("[0-9]*")))


def until(condition: Callable[[], bool], job: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert job.poll() is None, (directory / "log").read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, (directory / "log").read_text(errors="replace")[-3000:]
        threading.Event().wait(0.01)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_a_query_killed_again_and_again_under_load_writes_every_message_once(
    spark: SparkSession, tmp_path: Path, kills: int
) -> None:
    moments = random.Random(9)
    sent: set[bytes] = set()
    done = threading.Event()
    with run_broker() as broker:
        topic = broker.create_topic("Killed", queue_count=3)

        def load() -> None:
            with Producer("kill", broker.name_server) as producer:
                while not done.wait(0.05):
                    bodies = [b"%d" % number for number in range(len(sent), len(sent) + 20)]
                    producer.send_batch([Message(topic=topic, body=body) for body in bodies])
                    sent.update(bodies)

        sender = threading.Thread(target=load)
        sender.start()
        try:
            for _ in range(kills):
                before = begun(tmp_path)
                job = start(tmp_path, broker.name_server, topic, str(tmp_path))
                try:
                    until(lambda: begun(tmp_path) > before, job, tmp_path)  # noqa: B023  # called before it changes
                    # Anywhere in a batch: while it is read, written, or committed.
                    threading.Event().wait(moments.random() * 0.8)
                finally:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait(30)
        finally:
            done.set()
            sender.join(30)
        last = start(tmp_path, broker.name_server, topic, str(tmp_path), "once")
        assert last.wait(START_TIMEOUT_S) == 0, (tmp_path / "log").read_text(errors="replace")[-3000:]
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert len(rows) == len(sent) > 100 * kills
    assert {bytes(row.body) for row in rows} == sent
    assert len({(row.queue_id, row.queue_offset) for row in rows}) == len(rows)
    assert begun(tmp_path) > kills
