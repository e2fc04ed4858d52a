"""Rejects connector jars that do not fit the running Spark.

A session with a wrong jar starts without any warning. The first read or merge then fails with a linkage error, in
Delta's case after it has written. Pipelines themselves write Delta and Iceberg tables without any jar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from orbitmq.spark.errors import EnvironmentFault

__all__ = ["refuse_wrong_jars"]

_SETTINGS: Final = (
    "spark.jars",
    "spark.jars.packages",
    "spark.driver.extraClassPath",
    "spark.executor.extraClassPath",
)
_CONNECTOR: Final = re.compile(
    r"(?P<name>delta-spark|iceberg-spark-runtime)(?:[-_](?P<spark>\d+\.\d+))?_\d+\.\d+[-:](?P<version>\d[\w.]*?)(?:\.jar)?$"
)
_FITS: Final[Mapping[tuple[str, str], str]] = {("delta-spark", "4.2"): "delta-spark_4.2_2.13 4.4.0"}
"""The connectors that were seen to work with a PySpark that we support."""


def refuse_wrong_jars(settings: Mapping[str, str], spark_version: str) -> None:
    """Raises ``EnvironmentFault`` that names a Delta or Iceberg jar if it was built for another version of Spark."""
    line = ".".join(spark_version.split(".")[:2])
    for jar in _jars(settings):
        found = _CONNECTOR.search(jar)
        if found is None or found["spark"] == line:
            continue
        built = (
            f"built for Spark {found['spark']}" if found["spark"] else "not built for one version of Spark"
        )
        fitting = _FITS.get((found["name"], line))
        instead = f"use {fitting}" if fitting else f"there is none for Spark {line}"
        raise EnvironmentFault(
            f"the session has {found['name']} {found['version']}, {built}, and this is PySpark {spark_version}: "
            f"reads and merges would fail with linkage errors. Leave the jar out ({instead}); pipelines write tables "
            "without it"
        )


def _jars(settings: Mapping[str, str]) -> Iterator[str]:
    for name in _SETTINGS:
        for part in re.split(r"[,;]|(?<=\.jar):", settings.get(name, "")):
            yield part.strip()
