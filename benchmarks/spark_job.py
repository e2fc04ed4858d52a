"""Runs one side of ``benchmarks.spark``: a Spark session of the PySpark under test, which runs steps on command.

The first line of standard input is the plan, each further line a step, all JSON. Each is answered by a line on
standard output: for a step its rows, its seconds, and the CPU seconds of Spark (driver, JVM and Python workers).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Plan = dict[str, Any]


def cpu_seconds() -> float:
    """Returns the user and system time of this process and all its descendants, running and ended."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        times[pid] = sum(int(field) for field in fields[11:15]) / tick
    total = 0.0
    for pid, seconds in times.items():
        at = pid
        while at not in (0, os.getpid()):
            at = parents.get(at, 0)
        if at:
            total += seconds
    return total


def load(spark: SparkSession, step: Plan) -> DataFrame:
    reader = spark.read.format(step["format"]).options(**step["options"])
    if step.get("schema"):
        reader = reader.schema(step["schema"])
    return reader.load(step["path"]) if step.get("path") else reader.load()


class Stopwatch:
    """Seconds and CPU seconds since it was created."""

    def __init__(self) -> None:
        self._cpu = cpu_seconds()
        self._started = time.perf_counter()

    def read(self) -> tuple[float, float]:
        seconds = time.perf_counter() - self._started
        return seconds, cpu_seconds() - self._cpu


def read(spark: SparkSession, step: Plan, plan: Plan) -> tuple[float, float]:
    """Counts rows and measures bodies; returns the seconds and CPU seconds it took."""
    watch = Stopwatch()
    [row] = load(spark, step).selectExpr("count(*) AS n", f"sum(length({step['body']})) AS bytes").collect()
    taken = watch.read()
    assert (row.n, row.bytes) == (plan["count"], plan["count"] * plan["body_bytes"]), row
    return taken


def read_all(spark: SparkSession, step: Plan, plan: Plan) -> tuple[float, float]:
    """Reads every column of every row and discards them."""
    watch = Stopwatch()
    load(spark, step).write.format("noop").mode("overwrite").save()
    return watch.read()


def stream(spark: SparkSession, step: Plan, plan: Plan) -> tuple[float, float]:
    """Streams Parquet files into a topic; creating the files is not counted."""
    rows = spark.range(0, plan["sink_count"], 1, 2).selectExpr(*step["columns"])
    with tempfile.TemporaryDirectory() as checkpoint, tempfile.TemporaryDirectory() as files:
        rows.write.mode("overwrite").parquet(files)
        frame = spark.readStream.schema(spark.read.parquet(files).schema).parquet(files)
        writer = frame.writeStream.format(step["format"]).options(**step["options"])
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        watch = Stopwatch()
        writer.start().awaitTermination()
        return watch.read()


KINDS = {"read": read, "read all": read_all, "stream": stream}


def timed(spark: SparkSession, step: Plan, plan: Plan) -> dict[str, float]:
    """Runs one window."""
    rows = plan["sink_count"] if step["kind"] == "stream" else plan["count"]
    seconds, cpu_s = KINDS[step["kind"]](spark, step, plan)
    return {"rows": rows, "seconds": seconds, "cpu_s": cpu_s}


def answer(document: object) -> None:
    print(json.dumps(document), flush=True)


def main() -> None:
    plan: Plan = json.loads(sys.stdin.readline())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
    )
    if plan.get("jars"):
        builder = builder.config("spark.jars", ",".join(plan["jars"]))
    spark = builder.getOrCreate()
    answer({"version": spark.version})
    for line in sys.stdin:
        step: Plan = json.loads(line)
        answer(timed(spark, step, {**plan, **step.get("plan", {})}))
    spark.stop()


if __name__ == "__main__":
    main()
