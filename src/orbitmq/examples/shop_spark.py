"""The Spark part of ``orbitmq demo``, which writes topics to Parquet and Parquet to a table. Runs in its own process.

``python -m orbitmq.examples.shop_spark NAME_SERVER DIRECTORY`` prints one line of JSON with the rows by topic, the
table, and the duration of each part. Spark's own output goes to standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbitmq.examples.shop import CLOSED, ORDERS, PAYMENTS, WARM_UP, MinuteRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkResult", "missing", "run"]

TIME_LIMIT_S: Final = 600.0
"""Only an upper bound: a busy machine takes many times as long as an idle one."""


class SparkResult(msgspec.Struct, frozen=True):
    """What Spark found in the topics."""

    rows: dict[str, int]
    """By topic."""
    minutes: list[MinuteRow]
    read_s: float
    """Reading the topics and writing Parquet."""
    start_s: float
    """Starting Spark."""

    def differences(self, expected: Sequence[MinuteRow], rows: dict[str, int]) -> list[str]:
        found = [
            f"Spark read {self.rows.get(topic, 0)} rows of {topic}, {count} were sent"
            for topic, count in rows.items()
            if self.rows.get(topic, 0) != count
        ]
        if list(self.minutes) != list(expected):
            wrong = next(
                (
                    f"{got} instead of {wanted}"
                    for got, wanted in zip(self.minutes, expected, strict=False)
                    if got != wanted
                ),
                f"{len(self.minutes)} minutes instead of {len(expected)}",
            )
            found.append(f"Spark's table differs: {wrong}")
        return found


def missing() -> str:
    """Returns a requirement that is missing, and how to install it; empty if Spark can run."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "Java 17 or later (apt-get install default-jre-headless)"
    from importlib.util import find_spec

    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "PySpark (pip install 'orbitmq[spark]')"
    return ""


def run(name_server: str, directory: Path) -> SparkResult:
    """Run the Spark part in its own process and return its result. Raises ``RuntimeError`` with the end of the
    process's log."""
    log = directory / "spark.log"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "orbitmq.examples.shop_spark", name_server, str(directory)],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                timeout=TIME_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"Spark did not finish within {TIME_LIMIT_S:.0f} s; see {log}") from None
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise RuntimeError(f"Spark failed with exit code {done.returncode}; see {log}\n{tail}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=SparkResult)


# -- in the process of its own -------------------------------------------------------------------------


def _session(directory: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("orbitmq demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "spark-warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _minutes(orders: DataFrame, payments: DataFrame, closed: DataFrame) -> list[MinuteRow]:
    from pyspark.sql import functions as f

    paid = payments.select("order", f.lit(1).alias("paid")).distinct()
    gone = closed.select("order", f.lit(1).alias("closed")).distinct()
    table = (
        orders.dropDuplicates(["order"])
        .join(paid, "order", "left")
        .join(gone, "order", "left")
        .groupBy(f.date_format("placed_at", "HH:mm").alias("minute"))
        .agg(
            f.count("*").alias("orders"),
            f.count("paid").alias("paid"),
            f.count("closed").alias("closed"),
            f.sum(f.when(f.col("paid") == 1, f.col("cents")).otherwise(0)).alias("cents"),
        )
        .orderBy("minute")
    )
    return [
        MinuteRow(row.minute, row.orders, row.paid, row.closed, int(row.cents)) for row in table.collect()
    ]


def _work(name_server: str, directory: Path) -> dict[str, Any]:
    from pyspark.sql import functions as f

    from orbitmq.spark import register

    started_s = time.monotonic()
    spark = _session(directory)
    register(spark)
    ready_s = time.monotonic()
    parquet = str(directory / "parquet")
    (
        spark.read.format("rocketmq")
        .option("namesrvAddr", name_server)
        .option("topic", ",".join((ORDERS, PAYMENTS, CLOSED)))
        .load()
        .where(f.col("tags") != WARM_UP)
        .withColumn("body", f.col("body").cast("string"))
        .coalesce(2)  # as many files as cores, not as queues
        .write.mode("overwrite")
        .partitionBy("topic")
        .parquet(parquet)
    )
    read_s = time.monotonic() - ready_s
    table = spark.read.parquet(parquet).select(
        "topic", f.from_json("body", "order string, placed_at timestamp, cents bigint").alias("about")
    )
    table = table.select("topic", "about.*").cache()
    rows = {row.topic: row["count"] for row in table.groupBy("topic").count().collect()}
    parts = {topic: table.where(f.col("topic") == topic) for topic in (ORDERS, PAYMENTS, CLOSED)}
    minutes = _minutes(parts[ORDERS], parts[PAYMENTS], parts[CLOSED])
    spark.stop()
    return {"rows": rows, "minutes": minutes, "read_s": read_s, "start_s": ready_s - started_s}


if __name__ == "__main__":
    print(json.dumps(_work(sys.argv[1], Path(sys.argv[2]))))
