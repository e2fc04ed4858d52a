"""Measures keyed upserts: CPU seconds per batch of 100,000 keys, and the memory of the driver.

    python -m benchmarks.spark_upsert [--rows 1000000] [--batches 3] [--forms delta,iceberg]
                                      [--merge driver,executors] [--keys spread,clustered]

Each combination fills a table with ``--rows`` rows of seven columns (about 180 bytes), then upserts batches of
100,000 keys, 90 % of them known, with the code that pipelines run. ``spread`` keys are distributed evenly over the
table, the worst case; ``clustered`` ones are neighbours. The first batch warms up and is not counted. CPU is that of
driver, JVM and Python workers; the memory is the peak of the Python driver and the resident memory of the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.spark_job import Stopwatch
from benchmarks.spark_sink import session

from orbitmq.pipeline.lake import BatchKey
from orbitmq.pipeline.lake_delta import DeltaTableWriter
from orbitmq.pipeline.lake_iceberg import IcebergTableWriter
from orbitmq.pipeline.spec import DeltaSink, IcebergSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH: Final = 100_000
FILL: Final = 1_000_000
"""Rows of one append while a table is filled."""


def rows(spark: SparkSession, first: int, end: int, step: int, version: int) -> DataFrame:
    return spark.range(first, end, step, 2).selectExpr(
        "id",
        "concat('name of ', id) AS name",
        "md5(cast(id AS string)) AS email",
        "sha2(cast(id AS string), 256) AS note",
        "cast(id % 1000 AS double) AS amount",
        f"cast({version} AS bigint) AS version",
        "id % 2 = 0 AS active",
    )


class Table:
    """A keyed table, written the way a pipeline writes it."""

    def __init__(self, directory: Path, form: str, merge: Any) -> None:
        self._form = form
        self._number = -1
        path = str(directory / "table")
        self._writer: Any
        if form == "delta":
            sink = DeltaSink(path=path, key="id", newest_by="version", merge=merge)
            self._writer = DeltaTableWriter(sink, path)
        else:
            properties = {
                "type": "sql",
                "uri": f"sqlite:///{directory}/c.db",
                "warehouse": f"file://{directory}",
            }
            where = f"file://{path}"
            self._writer = IcebergTableWriter(
                IcebergSink(
                    table="n.t",
                    properties=properties,
                    location=where,
                    key="id",
                    newest_by="version",
                    merge=merge,
                )
            )

    def write(self, frame: DataFrame) -> None:
        self._number += 1
        key = BatchKey("q", self._number)
        if self._form == "delta":
            self._writer.write(frame, key, [])
        else:
            self._writer.write(frame, key)


def memory_mib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) // 1024
    return 0


def java_pid() -> int:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text() == "java\n":
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    return int(entry.name)
        except OSError:
            continue
    return os.getpid()


def measure(
    spark: SparkSession, form: str, merge: str, keys: str, options: argparse.Namespace
) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="orbitmq-upsert-"))
    try:
        # Filled on the executors, which write files sorted by key.
        filling = Table(directory, form, "executors")
        for first in range(0, options.rows, FILL):
            filling.write(rows(spark, first, min(first + FILL, options.rows), 1, 0))
        table = Table(directory, form, merge)
        table._number = filling._number
        known, taken = BATCH * 9 // 10, []
        for batch in range(options.batches + 1):
            first = batch if keys == "spread" else batch * known % max(1, options.rows - known)
            step = max(1, options.rows // known) if keys == "spread" else 1
            new = options.rows + batch * BATCH
            frame = rows(spark, first, first + known * step, step, batch + 1).unionByName(
                rows(spark, new, new + BATCH - known, 1, batch + 1)
            )
            watch = Stopwatch()
            table.write(frame)
            taken.append(watch.read())
        return {
            "form": form,
            "merge": merge,
            "keys": keys,
            "rows": options.rows,
            "seconds": round(statistics.median(one[0] for one in taken[1:]), 1),
            "cpu_s": round(statistics.median(one[1] for one in taken[1:]), 1),
            "driver_peak_mib": memory_mib(os.getpid(), "VmHWM"),
            "jvm_mib": memory_mib(java_pid(), "VmRSS"),
            "load": os.getloadavg()[0],
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--forms", default="delta,iceberg")
    parser.add_argument("--merge", default="executors,driver")
    parser.add_argument("--keys", default="spread,clustered")
    options = parser.parse_args()
    spark = session()
    for merge in options.merge.split(","):  # the driver's peak only grows, so its own merge comes last
        for form in options.forms.split(","):
            for keys in options.keys.split(","):
                print(json.dumps(measure(spark, form, merge, keys, options)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
