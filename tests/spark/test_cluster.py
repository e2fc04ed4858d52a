"""A real standalone cluster on loopback: a master and two workers from PySpark's own jars, and a driver."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from tests.apache.artifacts import require
from tests.apache.process import ChildProcess, free_ports
from tests.apache.servers import remoting_call

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.codes import RequestCode
from orbitmq.testing import run_broker

pytestmark = [pytest.mark.slow, pytest.mark.apache]

WORKERS = 2
COUNT = 3_000
SINK_ROWS = 10_000
JOB = Path(__file__).with_name("cluster_job.py")


def spark_class(name: str, workdir: Path, *arguments: str) -> ChildProcess:
    """A daemon of Spark's. Its script replaces itself by the JVM, so that ending the child ends that."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "SPARK_LOCAL_DIRS": workdir / "local",
    }
    settings = [f"{key}={value}" for key, value in environment.items()]
    command = ["env", *settings, str(home / "bin" / "spark-class"), *arguments]
    return ChildProcess(name, command, workdir)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster that has all its workers."""
    require()
    tmp_path = tmp_path_factory.mktemp("cluster")
    (port,) = free_ports()
    address = f"spark://127.0.0.1:{port}"
    host = ["--host", "127.0.0.1", "--webui-port", "0"]
    children = [
        spark_class(
            "master", tmp_path / "master", "org.apache.spark.deploy.master.Master", *host, "--port", str(port)
        )
    ]
    log = tmp_path / "master" / "stderr.log"
    try:
        children[0].start()
        children[0].wait_ready(lambda: "I have been elected leader" in log.read_text(), timeout_s=90)
        for number in range(WORKERS):
            workdir = tmp_path / f"worker-{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(workdir / "work")]
            worker = spark_class(
                f"worker {number}", workdir, "org.apache.spark.deploy.worker.Worker", *host, *size, address
            )
            children.append(worker)
            worker.start()
        children[0].wait_ready(lambda: log.read_text().count("Registering worker") == WORKERS, timeout_s=90)
        yield address
    finally:
        for child in reversed(children):
            child.stop(timeout_s=15)


def body(number: int) -> bytes:
    return b"%08d" % number * 40


@pytest.mark.timeout(280)
def test_cluster_runs_topics_parquet_raw_stores_and_a_sink_whose_task_fails(
    master: str, tmp_path: Path
) -> None:
    with run_broker(mappedFileSizeCommitLog=1024 * 1024) as broker:
        broker.create_topic("Clustered", queue_count=4)
        broker.create_topic("Sink", queue_count=4)
        with Producer("cluster-test", broker.name_server) as producer:
            for start in range(0, COUNT, 500):
                messages = [Message("Clustered", body(n), tags="t") for n in range(start, start + 500)]
                producer.send_batch(messages)
        arguments = {
            "master": master,
            "name_server": broker.name_server,
            "store": str(broker.data / "store"),
            "topic": "Clustered",
            "sink_topic": "Sink",
            "rows": SINK_ROWS,
            "parquet": str(tmp_path / "parquet"),
            "report": str(tmp_path / "report.json"),
            "result": str(tmp_path / "result.json"),
        }
        result = run_job(arguments, tmp_path)
        report = json.loads((tmp_path / "report.json").read_text())
    assert result["executors"] == WORKERS
    assert result["parquet"][:2] == [COUNT, sum(zlib.crc32(body(number)) for number in range(COUNT))]
    assert result["parquet"][3] == COUNT
    assert result["store"] == result["parquet"], "the raw store holds what the broker delivered"
    sent, distinct, distinct_rows = result["sent"]
    assert sent > SINK_ROWS, "the attempt that failed had sent some of its rows"
    assert distinct == distinct_rows == SINK_ROWS, "the next attempt gave every row the same key again"
    assert result["unique"] == [SINK_ROWS, SINK_ROWS * (SINK_ROWS - 1) // 2]
    assert report["rows"] == SINK_ROWS
    assert {(task["partition"], task["attempt"]) for task in report["tasks"]} == {(0, 0), (1, 1)}


PIPELINE = """
name: clustered
namesrvAddr: ${address}
checkpoint: state
sources:
  orders: {kind: topic, topic: Orders, startingOffsets: earliest}
steps:
  - {name: parsed, kind: decode, format: json, schema: "id int, amount double"}
  - name: good
    kind: quality
    rules: {readable: decode_error IS NULL, positive: value.amount > 0}
    deadLetter: {topic: Rejected}
  - {name: flat, kind: sql, query: "SELECT topic, store_timestamp, value.id AS id, value.amount AS amount FROM good"}
sinks:
  - {name: files, kind: parquet, path: lake}
"""


@pytest.mark.timeout(280)
def test_cluster_runs_a_pipeline_file_from_topic_to_parquet_and_dead_letters(
    master: str, tmp_path: Path
) -> None:
    file = tmp_path / "clustered.yaml"
    file.write_text(PIPELINE)
    with run_broker() as broker:
        broker.create_topic("Orders", queue_count=4)
        broker.create_topic("Rejected", queue_count=1)
        with Producer("cluster-test", broker.name_server) as producer:
            for start in range(0, 400, 100):
                producer.send_batch(
                    [
                        # Every tenth costs nothing, which a rule does not let pass.
                        Message("Orders", json.dumps({"id": n, "amount": 0.5 * (n % 10)}))
                        for n in range(start, start + 100)
                    ]
                )
        arguments = ["run", str(file), "--once", "--master", master, "--set", f"address={broker.name_server}"]
        for setting in ("spark.executor.memory=512m", "spark.executor.cores=1", "spark.cores.max=2"):
            arguments += ["--conf", setting]
        program = [sys.executable, "-m", "orbitmq.cli.main", "pipeline", *arguments]
        driver = ChildProcess("pipeline", program, tmp_path / "driver")
        driver.start()
        try:
            code = driver.process.wait(200)
        finally:
            driver.stop(timeout_s=10)
        assert code == 0, driver.log_tail(80)
        place = {"topic": "Rejected", "queueId": "0"}
        _, fields, _ = remoting_call(broker.address, RequestCode.GET_MAX_OFFSET, place)
    rows = pyarrow.dataset.dataset(tmp_path / "lake", partitioning="hive").to_table().to_pydict()
    assert sorted(rows["id"]) == [n for n in range(400) if n % 10]
    assert sum(rows["amount"]) == sum(0.5 * (n % 10) for n in range(400))
    assert fields["offset"] == "40", "the free ones are dead letters"


def run_job(arguments: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps(arguments))
    driver = ChildProcess("driver", [sys.executable, str(JOB), str(file)], tmp_path / "driver")
    driver.start()
    try:
        code = driver.process.wait(200)
    finally:
        driver.stop(timeout_s=10)
    assert code == 0, driver.log_tail(80)
    result: dict[str, Any] = json.loads(Path(arguments["result"]).read_text())
    return result
