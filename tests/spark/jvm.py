"""Java options with which Spark's JVMs start in half the time: an archive of Spark's classes and the fast compiler.

Loading and verifying some 12,000 classes takes most of a driver's start, and ten tests start a driver. The archive is
built once per version of Spark and Java and kept in the cache of the Apache artifacts. A JVM that cannot use it, for
example because its class path differs, ignores it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.apache.artifacts import build_product

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["fast_start_options"]

FAST: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
_BUILD_LIMIT_S: Final = 300


@cache
def fast_start_options() -> str:
    """Java options for Spark's drivers, daemons and executors in tests; builds the archive if there is none."""
    made_from = f"{_java_version()} {Path(__file__).read_text()}"
    product = build_product(f"spark-{version('pyspark')}", made_from, _build)
    return f"{FAST} -XX:SharedArchiveFile={product / 'spark.jsa'}"


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else (shutil.which("java") or "java")
    return subprocess.run([java, "-version"], capture_output=True, check=True, text=True).stderr


def _build(target: Path) -> None:
    options = f"{FAST} -XX:ArchiveClassesAtExit={target / 'spark.jsa'}"
    subprocess.run(
        [sys.executable, "-m", "tests.spark.jvm", str(target / "work")],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable},
        check=True,
        capture_output=True,
        timeout=_BUILD_LIMIT_S,
    )
    shutil.rmtree(target / "work", ignore_errors=True)


def _use(spark: SparkSession, work: Path) -> None:
    """Do a little of everything that tests do, so that its classes are loaded."""
    spark.createDataFrame([(1, "a")], "id int, name string").createOrReplaceTempView("rows")
    spark.sql("SELECT name, count(*) AS n FROM rows GROUP BY name").collect()
    spark.sql("SELECT * FROM rows").write.parquet(str(work / "rows"))
    stream = spark.readStream.schema("id int, name string").parquet(str(work / "rows"))
    query = (
        stream.writeStream.foreachBatch(_collect)
        .option("checkpointLocation", str(work / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _collect(batch: DataFrame, number: int) -> None:
    batch.collect()


def _main(work: Path) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    gateway: Any = spark.sparkContext._gateway
    try:
        _use(spark, work)
    finally:
        spark.stop()
        # The JVM writes the archive when its standard input ends.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
