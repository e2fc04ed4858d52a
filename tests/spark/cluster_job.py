"""What test_cluster.py has a cluster do, as a program of its own: a driver needs its own JVM.

    python cluster_job.py ARGUMENTS.json

Reads a topic into Parquet and back, reads the raw store, writes a topic with a task that fails half-way,
and leaves what it found in the file the arguments name.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from orbitmq.spark import register

BATCH_ROWS = 500
FAILS_AFTER_ROWS = 4_000


def sums(frame: DataFrame) -> list[int]:
    """Rows, and checksums that do not depend on their order."""
    ids = "concat_ws('/', topic, queue_id, queue_offset, log_offset, msg_id, tags)"
    found = frame.selectExpr(
        "count(*)", "sum(crc32(body))", f"sum(crc32(cast({ids} as binary)))", "count(distinct msg_id)"
    ).first()
    assert found is not None
    return list(found)


def rows_of_task(numbers: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Rows to send; the first attempt of the second task ends in the middle of them."""
    context = TaskContext.get()
    assert context is not None
    for count, number in enumerate(numbers):
        if context.partitionId() == 1 and context.attemptNumber() == 0 and count == FAILS_AFTER_ROWS:
            raise RuntimeError("this attempt was made to fail")
        yield str(number).ljust(64, "."), str(number)


def daemon_of_task(number: int) -> int:
    """Workers are children of a daemon, and every executor has a daemon of its own."""
    del number
    return os.getppid()


def run(spark: SparkSession, arguments: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    context = spark.sparkContext
    result["executors"] = context.range(0, 8, 1, 8).map(daemon_of_task).distinct().count()

    topics = spark.read.format("rocketmq").option("namesrvAddr", arguments["name_server"])
    topics = topics.option("minPartitions", 4)
    parquet = arguments["parquet"]
    topics.option("topic", arguments["topic"]).load().write.partitionBy("topic").parquet(parquet)
    result["parquet"] = sums(spark.read.parquet(parquet))

    store = spark.read.format("rocketmq-store").option("topic", arguments["topic"])
    result["store"] = sums(store.option("maxPartitionBytes", 500_000).load(arguments["store"]))

    rows = context.range(0, arguments["rows"], 1, 2).mapPartitions(rows_of_task)
    sink = spark.createDataFrame(rows, "body string, keys string").write.format("rocketmq")
    sink = sink.option("namesrvAddr", arguments["name_server"]).option("topic", arguments["sink_topic"])
    sink.option("reportPath", arguments["report"]).option("batchBytes", 16_384).mode("append").save()
    written = topics.option("topic", arguments["sink_topic"]).load()
    found = written.selectExpr("count(*)", "count(distinct msg_id)", "count(distinct msg_id, keys)").first()
    assert found is not None
    result["sent"] = list(found)
    unique = written.dropDuplicates(["msg_id"]).selectExpr("count(*)", "sum(cast(keys as long))").first()
    assert unique is not None
    result["unique"] = list(unique)
    return result


def main() -> None:
    arguments = json.loads(Path(sys.argv[1]).read_text())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(arguments["master"]).appName("orbitmq cluster test")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": arguments["java_options"],
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.task.maxFailures": "3",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.log.level": "WARN",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = register(builder.getOrCreate())
    try:
        result = run(spark, arguments)
    finally:
        spark.stop()
    Path(arguments["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
