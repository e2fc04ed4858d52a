"""One Spark session for all tests of this folder: starting a JVM takes seconds, a query far less. Tests that need a
driver of their own start it with the options of ``tests/spark/jvm.py``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.apache.artifacts import require
from tests.apache.fixtures import (
    apache_tools,
    java_latest,
    shared_java,
    unique,
)
from tests.spark.jvm import fast_start_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["apache_tools", "java_latest", "shared_java", "unique"]


@pytest.fixture(scope="session")
def fast_jvm() -> Iterator[None]:
    """Drivers, also those of child processes, start with the shared archive of Spark's classes."""
    require()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", fast_start_options())
        yield


@pytest.fixture(scope="session")
def spark(fast_jvm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with two local cores. Without Java the test is skipped, or fails where it must not be."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    work = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        # PySpark leaves the log files of its launcher to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("orbitmq tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.default.parallelism", "2")
            # Compiling a query that reads a hundred rows takes longer than interpreting it.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(work / "warehouse"))
            .config("spark.local.dir", str(work / "local"))
            .config("spark.sql.streaming.stopTimeout", "30s")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
    yield session
    session.stop()
