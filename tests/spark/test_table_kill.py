"""``orbitmq pipeline table`` killed with -9 under load: the table holds every message once, for every reader."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from tests.spark.table_kit import read_table, read_with_spark

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

START_TIMEOUT_S = 300.0
KEYS = 50


class Job:
    """The command, in a group of its own: driver, JVM and workers."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._directory = directory
        command = [sys.executable, "-m", "orbitmq", "pipeline", "table", *arguments, "--master", "local[1]"]
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-3000:]

    def planned(self) -> int:
        return len(list((self._directory / "table" / "_checkpoint" / "table" / "offsets").glob("[0-9]*")))

    def kill_in_a_batch(self, moment_s: float) -> None:
        before, deadline = self.planned(), time.monotonic() + START_TIMEOUT_S
        try:
            while self.planned() <= before:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                threading.Event().wait(0.01)
            threading.Event().wait(moment_s)  # anywhere: while it is read, written, or committed
        finally:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def finish(self) -> None:
        assert self._process.wait(START_TIMEOUT_S) == 0, self.log()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("form", "kills", "key"),
    [
        ("delta", 1, ""),
        pytest.param("delta", 10, "", marks=pytest.mark.soak),
        pytest.param("iceberg", 10, "", marks=pytest.mark.soak),
        pytest.param("parquet", 10, "", marks=pytest.mark.soak),
        pytest.param("delta", 10, "id", marks=pytest.mark.soak),
        pytest.param("iceberg", 10, "id", marks=pytest.mark.soak),
    ],
)
def test_a_table_whose_writer_is_killed_again_and_again_is_whole(
    spark: SparkSession, tmp_path: Path, form: str, kills: int, key: str
) -> None:
    moments = random.Random(7)
    schema = tmp_path / "rows.ddl"
    schema.write_text("id int, n int")
    sent: list[int] = []
    done = threading.Event()
    with run_broker() as broker:
        topic = broker.create_topic("Table", queue_count=2 if not key else 1)
        arguments = [topic, str(tmp_path / "table"), "--to", form, "-n", broker.name_server]
        arguments += ["--schema", str(schema), *(["--key", key] if key else [])]

        def load() -> None:
            with Producer("kill", broker.name_server) as producer:
                while not done.wait(0.1):
                    numbers = range(len(sent), len(sent) + 10)
                    producer.send_batch(
                        [
                            Message(
                                topic, b'{"id": %d, "n": %d, "city": "c%d"}' % (n % KEYS if key else n, n, n)
                            )
                            for n in numbers
                        ]
                    )
                    sent.extend(numbers)

        sender = threading.Thread(target=load)
        sender.start()
        try:
            for number in range(kills):
                if number == kills // 2:
                    # Half-way its columns change; plain files cannot widen a type.
                    schema.write_text(f"id {'int' if form == 'parquet' else 'bigint'}, n int, city string")
                Job(tmp_path, *arguments).kill_in_a_batch(moments.random() * 2)
        finally:
            done.set()
            sender.join(30)
        Job(tmp_path, *arguments, "--once").finish()
    expected = (
        sorted({n % KEYS: n for n in sent}.items()) if key else [(number, number) for number in sorted(sent)]
    )
    arrow = read_table(form, tmp_path / "table", topic)
    with duckdb.connect() as engine:
        engine.register("rows", arrow)
        by_duckdb = engine.execute("SELECT id, n, city FROM rows ORDER BY id, n").fetchall()
    by_spark = read_with_spark(spark, form, tmp_path / "table").select("id", "n", "city").collect()
    assert [row[:2] for row in by_duckdb] == expected
    assert sorted((row.id, row.n, row.city) for row in by_spark) == by_duckdb
    assert {row[2] for row in by_duckdb} - {None} <= {f"c{row[1]}" for row in by_duckdb}
    assert any(row[2] is not None for row in by_duckdb)
    assert len(sent) > 100
