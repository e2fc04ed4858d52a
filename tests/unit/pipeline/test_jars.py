"""Connector jars that do not fit the running Spark are refused before anything is written."""

from __future__ import annotations

import pytest

from orbitmq.pipeline.jars import refuse_wrong_jars
from orbitmq.spark.errors import EnvironmentFault


@pytest.mark.parametrize(
    ("setting", "value", "version", "text"),
    [
        (
            "spark.jars.packages",
            "org.x:y:1,io.delta:delta-spark_4.2_2.13:4.4.0",
            "4.3.0",
            "delta-spark 4.4.0, built for Spark 4.2, and this is PySpark 4.3.0",
        ),
        (
            "spark.jars",
            "/jars/a.jar,/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar",
            "4.2.1",
            "iceberg-spark-runtime 1.12.0, built for Spark 4.1, and this is PySpark 4.2.1",
        ),
        (
            "spark.driver.extraClassPath",
            "/jars/a.jar:/jars/delta-spark_2.13-4.4.0.jar",
            "4.2.1",
            "delta-spark 4.4.0, not built for one version of Spark.*use delta-spark_4.2_2.13 4.4.0",
        ),
    ],
)
def test_a_jar_for_another_spark_is_named(setting: str, value: str, version: str, text: str) -> None:
    with pytest.raises(EnvironmentFault, match=text):
        refuse_wrong_jars({setting: value}, version)


def test_jars_that_fit_and_other_jars_pass() -> None:
    refuse_wrong_jars({}, "4.3.0")
    refuse_wrong_jars({"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}, "4.2.1")
    refuse_wrong_jars({"spark.jars": "s3a://jars/postgresql-42.7.jar,/x/delta-storage-4.4.0.jar"}, "4.3.0")
