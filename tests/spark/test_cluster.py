"""A real standalone cluster on loopback: a master and two workers from PySpark's own jars, and a driver."""

from __future__ import annotations

import json
import os
import signal
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
from tests.spark.jvm import fast_start_options
from tests.spark.table_kit import read_table

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.requests import RequestCode
from orbitmq.testing import run_broker

pytestmark = [pytest.mark.slow, pytest.mark.apache, pytest.mark.usefixtures("fast_jvm")]

WORKERS = 2
COUNT = 3_000
SINK_ROWS = 10_000
JOB = Path(__file__).with_name("cluster_job.py")


def spark_class(name: str, workdir: Path, *arguments: str, **more: str) -> ChildProcess:
    """A daemon of Spark's. Its script replaces itself by the JVM, so that ending the child ends that."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": fast_start_options(),
        "SPARK_LOCAL_DIRS": workdir / "local",
        **more,
    }
    given = [f"{key}={value}" for key, value in environment.items()]
    command = ["env", *given, str(home / "bin" / "spark-class"), *arguments]
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
            "java_options": fast_start_options(),
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
        arguments += settings()
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


SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
    "spark.sql.shuffle.partitions": "2",
}


def settings(**more: str) -> list[str]:
    chosen = {**SMALL, "spark.executor.extraJavaOptions": fast_start_options(), **more}
    return [part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")]


def send_rows(name_server: str, topic: str, numbers: range) -> None:
    with Producer("cluster-test", name_server) as producer:
        for start in range(numbers.start, numbers.stop, 100):
            rows = range(start, min(start + 100, numbers.stop))
            producer.send_batch([Message(topic, json.dumps({"id": n, "n": n})) for n in rows])


def run_to_end(name: str, command: list[str], workdir: Path) -> None:
    program = ChildProcess(name, ["env", f"PYSPARK_PYTHON={sys.executable}", *command], workdir)
    program.start()
    try:
        code = program.process.wait(400)
    finally:
        program.stop(timeout_s=10)
    assert code == 0, program.log_tail(80)


@pytest.fixture(scope="module")
def connect_server(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Connect server whose driver works on the cluster."""
    workdir = tmp_path_factory.mktemp("connect")
    (port,) = free_ports()
    more = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    server = spark_class(
        "connect",
        workdir,
        "org.apache.spark.deploy.SparkSubmit",
        *["--master", master, *settings(**more)],
        *["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"],
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_DAEMON_MEMORY="1g",
    )
    try:
        server.start()
        server.wait_ready(lambda: "Spark Connect server started" in server.log_tail(200), timeout_s=90)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.stop(timeout_s=15)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("form", "way"), [("delta", "submit"), ("iceberg", "connect"), ("delta", "connect")])
def test_cluster_keeps_a_table_by_spark_submit_and_from_connect(
    master: str, request: pytest.FixtureRequest, tmp_path: Path, form: str, way: str
) -> None:
    """Twice each: the second run goes on where the first one stopped, and replaces rows by their key."""
    import pyspark

    import orbitmq

    schema = tmp_path / "rows.ddl"
    schema.write_text("id int, n int")
    with run_broker() as broker:
        broker.create_topic("Rows", queue_count=1)
        arguments = ["pipeline", "table", "Rows", str(tmp_path / "table"), "--to", form, "--once"]
        arguments += ["-n", broker.name_server, "--schema", str(schema), "--key", "id"]
        if way == "submit":
            program = Path(orbitmq.__file__).with_name("__main__.py")
            submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
            command = [str(submit), "--master", master, *settings(), str(program), *arguments]
        else:
            command = [sys.executable, "-m", "orbitmq", *arguments, "--remote"]
            command.append(request.getfixturevalue("connect_server"))
        for number in range(2):
            send_rows(broker.name_server, "Rows", range(300 * number, 300 * number + 400))
            run_to_end(way, command, tmp_path / "driver")
            rows = read_table(form, tmp_path / "table", "Rows").to_pydict()
            assert sorted(zip(rows["id"], rows["n"], strict=True)) == [
                (n, n) for n in range(300 * number + 400)
            ]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_executors_killed_under_load_leave_a_table_with_every_message_once(
    master: str, tmp_path: Path
) -> None:
    schema = tmp_path / "rows.ddl"
    schema.write_text("id int, n int")
    with run_broker() as broker:
        broker.create_topic("Rows", queue_count=4)
        send_rows(broker.name_server, "Rows", range(400))
        table = tmp_path / "table"
        command = [sys.executable, "-m", "orbitmq", "pipeline", "table", "Rows", str(table), "--to", "delta"]
        command += [
            "-n",
            broker.name_server,
            "--schema",
            str(schema),
            "--max-rows",
            "200",
            "--master",
            master,
        ]
        driver = ChildProcess("table", [*command, *settings()], tmp_path / "driver")
        driver.start()
        try:
            sent = 400
            for _ in range(5):
                batches = planned(table)
                # Behind the look: what was sent before it may be planned by then, and no further batch follow.
                send_rows(broker.name_server, "Rows", range(sent, sent + 400))
                sent += 400
                driver.wait_ready(lambda: planned(table) > batches, timeout_s=300)  # noqa: B023  # called at once
                victims = executors()
                assert victims, "no executor runs"
                os.kill(victims[0], signal.SIGKILL)
            driver.wait_ready(lambda: committed_rows(table) >= sent, timeout_s=300)
        finally:
            driver.stop(timeout_s=30)
        rows = read_table("delta", table, "Rows").to_pydict()
    assert sorted(rows["id"]) == list(range(sent))


def planned(table: Path) -> int:
    return len(list((table / "_checkpoint" / "table" / "offsets").glob("[0-9]*")))


def committed_rows(table: Path) -> int:
    return int(read_table("delta", table, "Rows").num_rows)


def executors() -> list[int]:
    """Executors of the workers of this process."""
    found = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = status.read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and os.getpid() in ancestors(
                int(status.parent.name)
            ):
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


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
