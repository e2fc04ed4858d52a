"""The Spark session of a pipeline. Only this module handles Java, Python, logging and deviations from Spark's
defaults."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orbitmq.pipeline.jars import refuse_wrong_jars
from orbitmq.spark.errors import EnvironmentFault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["build_session", "check_environment", "session_options", "under_submit"]

LOG_LEVELS: Final = ("OFF", "ERROR", "WARN", "INFO")
_OF_A_SERVER: Final = frozenset({"spark.sql.streaming.numRecentProgressUpdates"})
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


def under_submit() -> bool:
    """Returns whether ``spark-submit`` runs this program and therefore decides where Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_environment(remote: str = "") -> None:
    """Raises ``EnvironmentFault``, which says how to fix it, if PySpark or Java is missing. With ``remote`` it checks
    the URL and the packages of Spark Connect instead of Java, and does not connect."""
    try:
        import pyspark  # noqa: F401  # only asked whether it is there
    except ImportError:
        raise EnvironmentFault("pipelines need PySpark: pip install 'orbitmq[spark]'") from None
    if remote:
        _check_connect(remote)
        return
    home = os.environ.get("JAVA_HOME", "")
    if home:
        if not os.access(Path(home) / "bin" / "java", os.X_OK):
            raise EnvironmentFault(f"JAVA_HOME is {home}, and there is no bin/java in it")
    elif shutil.which("java") is None:
        raise EnvironmentFault("Spark needs a JDK 17 or 21: install one, or set JAVA_HOME to it")


def _check_connect(remote: str) -> None:
    if not remote.startswith("sc://"):
        raise EnvironmentFault(f"--remote is {remote!r}, not sc://host:port")
    try:
        import pyspark.sql.connect.session  # noqa: F401  # only asked whether it can be imported
    except ImportError as error:
        raise EnvironmentFault(
            f"--remote needs more packages: pip install 'orbitmq[connect]' ({_first_line(str(error))})"
        ) from None


def session_options(master: str, options: Mapping[str, str], log_level: str = "OFF") -> dict[str, str]:
    """Returns all settings of a session. ``options`` take precedence over our own."""
    java = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -Dorbitmq.spark.log={log_level}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Days and hours of messages must mean the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        # Fewer and fewer tools read the default, INT96.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.sql.streaming.numRecentProgressUpdates": "200",
        # Spark's Arrow execution of plain UDFs needs pandas. Without pandas every UDF would print a warning first.
        "spark.sql.execution.pythonUDF.arrow.enabled": str(find_spec("pandas") is not None).lower(),
        **options,
    }
    if master.startswith("local"):
        # 200 partitions suit a cluster. Here each costs a task and, in a stream, a state file.
        settings.setdefault("spark.sql.shuffle.partitions", "4")
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    settings["spark.driver.extraJavaOptions"] = " ".join(
        filter(None, (java, settings.get("spark.driver.extraJavaOptions", "")))
    )
    return settings


def build_session(
    master: str,
    name: str,
    options: Mapping[str, str] | None = None,
    *,
    log_level: str = "OFF",
    python_path: Path | None = None,
    remote: str = "",
) -> SparkSession:
    """Returns a session with our data sources. Raises ``EnvironmentFault`` if that fails.

    If ``master`` is empty, ``spark-submit`` decides where Spark runs. ``remote`` is a Connect server, which keeps its
    own settings except for those of SQL. ``python_path`` is the directory of the pipeline's modules, which Python
    workers on this machine also search.
    """
    check_environment(remote)
    import pyspark
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from orbitmq.spark.register import register

    # Otherwise workers would use the first python3 on the path, which may lack pyarrow or this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if python_path is not None:
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if str(python_path) not in known:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(python_path), *known]))
    builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder.appName(name)
    if master and not remote:
        builder = builder.master(master)
    settings = session_options(master, options or {}, log_level)
    if not remote:
        refuse_wrong_jars(settings, pyspark.__version__)
    for key, value in settings.items():
        if not remote or (key.startswith("spark.sql.") and key not in _OF_A_SERVER):
            builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        raise EnvironmentFault(f"Spark does not start: {_first_line(str(error))}") from error
    except Exception as error:  # py4j wraps the JVM's exception; the author needs its first line
        where = remote or master or "the master of spark-submit"
        raise EnvironmentFault(f"Spark does not start on {where}: {_first_line(str(error))}") from error
    if log_level == "OFF":
        # PySpark also prints what it raises, as JSON with a Java stack.
        logging.getLogger("SQLQueryContextLogger").disabled = True
    if not remote:  # jars given to spark-submit, or of a session that was there before
        refuse_wrong_jars(dict(session.sparkContext.getConf().getAll()), session.version)
    register(session)
    return session


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return " ".join(lines[:2])[:300] or "no reason given"
