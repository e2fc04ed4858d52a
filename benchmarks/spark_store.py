"""Measures raw stores and the sink in Spark: rows per second and CPU per row. Checks a store of any size against its
broker.

    python -m benchmarks.spark_store [--messages N] [--body BYTES] [--sink-rows N] [--check]

Our own store writes the data (as many log files of 1 GiB as it takes). Spark reads it as ``rocketmq-store`` and, with
``--check``, also as ``rocketmq`` from a broker opened on the same directory: rows, bytes and checksums must equal
each other and the written data. CPU is that of the JVM and all Python workers, user and system; the session is warmed
up first. ``--check`` with 1,800,000 messages of 1,024 bytes is a store of 2 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
TOPIC: Final = "SparkStore"
QUEUES: Final = 8
CHUNK: Final = 2000
PROPERTIES: Final = b"UNIQ_KEY\x017F0000014676C0DEE0B0%012X\x02TAGS\x01TagA\x02WAIT\x01true\x02"
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
Sums = tuple[int, int, int]


def body_of(number: int, size: int) -> bytes:
    return (b"%015d." % number * (size // 16 + 1))[:size]


def write_store(root: Path, count: int, body_bytes: int) -> Sums:
    """Creates a store with that many messages and returns the totals that a reader must find in it."""
    store = MessageStore(StoreConfig(root=str(root)))
    store.open()
    checksums = 0
    try:
        for first in range(0, count, CHUNK):
            messages = []
            for number in range(first, min(first + CHUNK, count)):
                body, properties = body_of(number, body_bytes), PROPERTIES % number
                checksums += zlib.crc32(properties[9:41] + body)
                messages.append(
                    NewMessage(
                        topic=TOPIC,
                        queue_id=number % QUEUES,
                        body=body,
                        properties=properties,
                        born_timestamp_ms=1_794_773_001_075,
                        born_host=HOST,
                    )
                )
            store.append_batch(messages)
    finally:
        store.close()
    return count, count * body_bytes, checksums


@contextmanager
def session(cores: int = 2) -> Iterator[SparkSession]:
    """Starts Spark on this machine, with both formats."""
    from pyspark.sql import SparkSession

    from orbitmq.spark import register

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("orbitmq benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = register(builder.getOrCreate())
    try:
        yield spark
    finally:
        spark.stop()


def cpu_seconds() -> dict[int, float]:
    """Returns the user and system time so far of every process below this one, without its own."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        times[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    own = os.getpid()

    def is_below(process: int) -> bool:
        while process in parents and process != own:
            process = parents[process]
        return process == own

    return {process: spent for process, spent in times.items() if process != own and is_below(process)}


def timed(work: Callable[[], int]) -> dict[str, float]:
    """Returns the cost of ``work``, which returns the number of rows. Workers stay alive for a minute, so none is
    missed.
    """
    started, before = time.perf_counter(), cpu_seconds()
    rows = work()
    seconds = time.perf_counter() - started
    spent = sum(after - before.get(process, 0.0) for process, after in cpu_seconds().items())
    return {
        "rows": rows,
        "rows_per_s": round(rows / seconds),
        "cpu_us_per_row": round(spent * 1e6 / max(1, rows), 2),
        "seconds": round(seconds, 2),
    }


def sums(frame: DataFrame) -> Sums:
    found = frame.selectExpr(
        "count(*)", "sum(length(body))", "sum(crc32(concat(cast(msg_id as binary), body)))"
    ).first()
    assert found is not None
    return found[0], found[1], found[2]


def read_store(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq-store").options(**options)
    return reader.load(str(path))


def measure_store(spark: SparkSession, path: Path) -> dict[str, Any]:
    """Measures reads of a whole store: all columns into a sink that drops them, and two columns for a sum
    of bytes.
    """

    def everything() -> int:
        read_store(spark, path).write.format("noop").mode("overwrite").save()
        return read_rows

    def bodies(**options: str) -> int:
        reader = spark.read.format("rocketmq-store").schema("topic string, body binary").options(**options)
        found = reader.load(str(path)).selectExpr("count(*)", "sum(length(body))").first()
        assert found is not None
        return int(found[0])

    read_rows = bodies()  # the warm-up
    return {
        "all columns": timed(everything),
        "topic and body": timed(bodies),
        "topic and body, no CRC": timed(lambda: bodies(verifyCrc="false")),
    }


def measure_sink(spark: SparkSession, rows: int, body_bytes: int) -> dict[str, Any]:
    """Measures rows into a topic of a broker in this process (its CPU is not counted)."""
    frame = spark.range(0, rows, 1, 2).selectExpr(
        f"cast(rpad(cast(id as string), {body_bytes}, '.') as binary) as body",
        "cast(id as string) as keys",
        "'TagA' as tags",
    )
    with run_broker(mappedFileSizeCommitLog=1 << 30) as broker:
        broker.create_topic(TOPIC, queue_count=QUEUES)

        def write(part: DataFrame) -> int:
            writer = part.write.format("rocketmq").option("namesrvAddr", broker.name_server)
            writer.option("topic", TOPIC).mode("append").save()
            return rows

        def drop() -> int:
            frame.write.format("noop").mode("overwrite").save()
            return rows

        write(frame.limit(1000))
        drop()
        return {"batch": timed(lambda: write(frame)), "making the rows alone": timed(drop)}


def check(spark: SparkSession, data: Path, written: Sums) -> dict[str, Any]:
    """Compares the store as Spark reads it with the messages that its broker delivers."""
    store = data / "store"
    found: dict[str, Sums] = {}
    figures = {"raw store": timed(lambda: note(found, "raw store", sums(read_store(spark, store))))}
    # The broker needs the topic; a store alone does not create it.
    with run_broker(data=data, mappedFileSizeCommitLog=1 << 30) as broker:
        broker.create_topic(TOPIC, queue_count=QUEUES)
        reader = spark.read.format("rocketmq").option("namesrvAddr", broker.name_server)
        frame = reader.option("topic", TOPIC).load()
        figures["broker"] = timed(lambda: note(found, "broker", sums(frame)))
        live = sums(read_store(spark, store, topic=TOPIC))
    if not found["raw store"] == found["broker"] == live == written:
        raise RuntimeError(f"not equal: written {written}, found {found}, with the broker running {live}")
    size = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    return {"log_mib": size >> 20, "sums": list(written), **figures}


def note(found: dict[str, Sums], name: str, value: Sums) -> int:
    found[name] = value
    return value[0]


def run(
    messages: int = 2_000_000, body: int = 128, sink_rows: int = 500_000, checked: bool = False
) -> dict[str, Any]:
    """Returns all results."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as directory:
        data = Path(directory)
        written = write_store(data / "store", messages, body)
        with session() as spark:
            if checked:
                results["check"] = check(spark, data, written)
            results["store"] = measure_store(spark, data / "store")
            if sink_rows:
                results["sink"] = measure_sink(spark, sink_rows, body)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--sink-rows", type=int, default=500_000)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    results = run(arguments.messages, arguments.body, arguments.sink_rows, arguments.check)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
