"""Measures the sink in both modes: rows per second and CPU per row; with ``--kills``, checks that each row arrives
once.

    python -m benchmarks.spark_sink [--rows 300000] [--modes dedup,transactional] [--kills 10]

A stream of Parquet files goes into a topic of four queues, in micro-batches of ``--batch`` rows, ``local[2]``. The
broker is a separate process, and its CPU is included. Session and workers are warm: each mode first sends 20,000 rows
that do not count. With ``--kills`` the query runs in a child process, which is killed with SIGKILL that many times,
each time during a commit, and all messages of the topic are read and counted at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.spark_job import Stopwatch

from orbitmq.client.sync import PullConsumer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "rows"
QUEUES: Final = 4
WARM_ROWS: Final = 20_000
KILL_TIMEOUT_S: Final = 300.0
_SERVER: Final = (
    "import sys\nfrom orbitmq.testing import run_broker\nwith run_broker() as broker:\n"
    f"    broker.create_topic('{TOPIC}', queue_count={QUEUES})\n"
    "    print(broker.name_server, flush=True)\n    sys.stdin.read()\n"
)


@contextmanager
def server() -> Iterator[str]:
    """Yields the address of a name server; a broker runs next to it, as a child, so that ``Stopwatch`` sees
    its CPU.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from orbitmq.spark import register

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
    )
    return register(builder.getOrCreate())


def make_files(spark: SparkSession, directory: str, rows: int, batch: int) -> None:
    """Writes two files for each micro-batch."""
    files = max(2, 2 * (rows // batch))
    columns = ["concat('k', id) AS keys", "'A' AS tags", "encode(rpad(id, 150, 'x'), 'UTF-8') AS body"]
    spark.range(0, rows, 1, files).selectExpr(*columns).write.mode("overwrite").parquet(directory)


def send(spark: SparkSession, name_server: str, files: str, checkpoint: str, mode: str) -> None:
    """Runs the stream to its end."""
    (
        spark.readStream.schema("keys string, tags string, body binary")
        .option("maxFilesPerTrigger", 2)
        .parquet(files)
        .writeStream.format("rocketmq")
        .options(namesrvAddr=name_server, topic=TOPIC, mode=mode, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def seen(name_server: str) -> Counter[str]:
    """Returns how often each key is in the topic."""
    found: Counter[str] = Counter()
    with PullConsumer("benchmark", name_server) as consumer:
        for queue in consumer.fetch_queues(TOPIC):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                pulled = consumer.pull(queue, offset, 1024)
                found.update(" ".join(message.keys) for message in pulled.messages)
                offset = pulled.next_offset
    return found


def measure(modes: list[str], rows: int, batch: int) -> None:
    with tempfile.TemporaryDirectory() as work, server() as name_server:
        spark = session()
        make_files(spark, f"{work}/warm", WARM_ROWS, WARM_ROWS)
        make_files(spark, f"{work}/rows", rows, batch)
        for mode in modes:
            send(spark, name_server, f"{work}/warm", f"{work}/warm-{mode}", mode)
            watch = Stopwatch()
            send(spark, name_server, f"{work}/rows", f"{work}/rows-{mode}", mode)
            seconds, cpu_s = watch.read()
            figures = {
                "mode": mode,
                "rows": rows,
                "seconds": round(seconds, 1),
                "rows_per_s": round(rows / seconds),
                "cpu_us_per_row": round(cpu_s / rows * 1e6, 1),
                "load": os.getloadavg()[0],
            }
            print(json.dumps(figures), flush=True)
        spark.stop()


def kill_and_count(rows: int, batch: int, kills: int) -> None:
    """Kills the query while it commits. Each start completes at least one further micro-batch, so every kill hits
    commits.
    """
    with tempfile.TemporaryDirectory() as work, server() as name_server:
        spark = session()
        make_files(spark, f"{work}/rows", rows, batch)
        spark.stop()
        command = [sys.executable, "-m", "benchmarks.spark_sink", "--child", name_server, work]
        for number in range(kills + 1):
            child = subprocess.Popen(command, start_new_session=True)
            try:
                if number < kills:
                    wait_for_commits(child, Path(work) / "checkpoint" / "rocketmq-sink")
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait(600)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            print(json.dumps({"start": number, "exit": child.returncode}), flush=True)
        counts = seen(name_server)
        print(
            json.dumps(
                {
                    "rows": rows,
                    "kills": kills,
                    "messages": counts.total(),
                    "distinct": len(counts),
                    "twice": sum(count > 1 for count in counts.values()),
                }
            )
        )


def wait_for_commits(child: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a micro-batch of this start is decided and not yet committed."""
    before = {path.name for path in log.rglob("*.parquet")}
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while not {path.name for path in log.rglob("*.parquet")} - before:
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the query ended before it could be killed: use more rows")
        threading.Event().wait(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--batch", type=int, default=50_000, help="rows of a micro-batch")
    parser.add_argument("--modes", default="dedup,transactional")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name_server, work = options.child
        spark = session()
        send(spark, name_server, f"{work}/rows", f"{work}/checkpoint", "transactional")
        spark.stop()
    elif options.kills:
        kill_and_count(options.rows, options.batch, options.kills)
    else:
        measure(options.modes.split(","), options.rows, options.batch)


if __name__ == "__main__":
    main()
