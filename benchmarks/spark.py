"""Topics and raw stores in Spark beside Spark's own Kafka connector, in one run.

    python -m benchmarks.spark [--count 2000000] [--rounds 3] [--ours-only]

Both sides run the same PySpark 4.2.0 in a virtual environment of its own, ``local[2]``, and read the same number of
messages with 128-byte bodies from four queues or partitions of a server on this machine: counted and their bodies
measured (``read``), and as whole rows into Spark's ``noop`` sink (Kafka's seven columns beside the seven of ours that
say the same, and all seventeen). The sink is a stream of Parquet files into a topic, ``availableNow``. The best of
some rounds counts, so that the JVM has compiled both; CPU is that of Spark's processes, and that of the server.

Answers of our broker hold at most 32 messages, as Apache's do (``maxTransferCountOnMessageInMemory``); Kafka's are
bounded by bytes alone. Both settings of ours are measured.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.apache.harness import create_topic
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.process import free_ports

from orbitmq.client import Message
from orbitmq.client.sync import Producer

ROOT: Final = Path(__file__).resolve().parents[1]
POMS: Final = Path(__file__).parent / "poms"
CACHE: Final = Path(
    os.environ.get("ORBITMQ_SPARK_CACHE") or Path.home() / ".cache" / "orbitmq" / "spark-peers"
)
PYSPARK: Final = "4.2.0"
COUNT: Final = 2_000_000
BODY_BYTES: Final = 128
QUEUES: Final = 4
SEND_BATCH: Final = 500
LARGE_ANSWERS: Final = {"maxTransferCountOnMessageInMemory": 2000}
LIKE_KAFKA: Final = (
    "keys string, body binary, topic string, queue_id int, queue_offset bigint, "
    "store_timestamp timestamp, flag int"
)
JOB_TIMEOUT_S: Final = 300.0
Figures = dict[str, Any]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- what is fetched once ------------------------------------------------------------------------------


def interpreter() -> Path:
    """The Python of the virtual environment both sides run in."""
    python = CACHE / f"venv-{PYSPARK}" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        import numpy
        import pyarrow  # type: ignore[import-untyped]  # pyarrow has no types of its own

        packages = [f"pyspark=={PYSPARK}", f"pyarrow=={pyarrow.__version__}", f"numpy=={numpy.__version__}"]
        packages += ["msgspec", "lz4", "backports.zstd", "click", "rich", "uvloop", "prometheus-client"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


def jars(name: str) -> list[str]:
    """The jars of one of the files in poms/, fetched by Maven once."""
    target = CACHE / name
    if not any(target.glob("*.jar")):
        if shutil.which("mvn") is None:
            raise RuntimeError("no mvn on this machine: Kafka cannot be fetched (--ours-only leaves it out)")
        with tempfile.TemporaryDirectory() as workspace:
            shutil.copy(POMS / f"{name}.xml", Path(workspace) / "pom.xml")
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
            subprocess.run([*command, f"-DoutputDirectory={target}"], cwd=workspace, check=True, timeout=900)
    return sorted(map(str, target.glob("*.jar")))


# -- servers -------------------------------------------------------------------------------------------


@contextmanager
def kafka_server() -> Iterator[tuple[str, int]]:
    """Address and process id of a Kafka broker with nothing but defaults."""
    port, controller = free_ports(7)
    classpath = ":".join(jars("kafka"))
    with tempfile.TemporaryDirectory(prefix="orbitmq-kafka-") as work:
        settings = Path(work) / "server.properties"
        settings.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
            f"inter.broker.listener.name=PLAINTEXT\nlog.dirs={work}/data\nnum.partitions={QUEUES}\n"
            "offsets.topic.replication.factor=1\n"
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        java = ["java", "-Xmx1g", "-cp", classpath]
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        with (Path(work) / "log").open("wb") as log:
            server = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
        try:
            _wait_for_port(port, server)
            yield f"127.0.0.1:{port}", server.pid
        finally:
            server.kill()
            server.wait()


def _wait_for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    import socket

    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the Kafka server did not start") from None
            time.sleep(0.1)


# -- the two sides -------------------------------------------------------------------------------------


def job(steps: Sequence[Mapping[str, Any]], plan: Mapping[str, Any], pid: int) -> Figures:
    """Run the steps in Spark; figures by step, with the server's CPU over all of them."""
    before = _cpu_seconds(pid)
    done = subprocess.run(
        [interpreter(), "-m", "benchmarks.spark_job"],
        input=json.dumps({**plan, "steps": steps}),
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    if done.returncode:
        raise RuntimeError(f"a Spark job failed:\n{done.stderr[-3000:]}")
    server_s = _cpu_seconds(pid) - before
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    figures: Figures = {}
    rows = 0.0
    for name, step in found.items():
        figures[f"{name}, rows/s"] = step["rows"] / step["seconds"]
        figures[f"{name}, Spark CPU us/row"] = step["cpu_s"] / step["rows"] * 1e6
        rows += step["rows"] * plan["rounds"]
    figures["server CPU us/row, all steps"] = server_s / rows * 1e6
    return figures


def fill_ours(namesrv: OrbitNamesrv, broker: OrbitBroker, topic: str, count: int) -> None:
    create_topic(namesrv, broker, topic, queue_count=QUEUES)
    body = b"x" * BODY_BYTES
    with Producer("bench-spark", namesrv.address) as producer:
        for first in range(0, count, SEND_BATCH):
            size = min(SEND_BATCH, count - first)
            producer.send_batch([Message(topic=topic, body=body, keys="k1") for _ in range(size)])


def measure_ours(plan: Mapping[str, Any], settings: Mapping[str, int], *, store: bool) -> Figures:
    topic, sink = "bench", "sink"
    conf: dict[str, Any] = {"mappedFileSizeCommitLog": 1024**3, **settings}
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv, **conf) as broker:
        fill_ours(namesrv, broker, topic, plan["count"])
        create_topic(namesrv, broker, sink, queue_count=QUEUES)
        options = {"namesrvAddr": namesrv.address, "topic": topic}
        read: dict[str, Any] = {"format": "rocketmq", "options": options, "body": "body"}
        steps: list[dict[str, Any]] = [
            {**read, "kind": "read", "name": "read", "schema": LIKE_KAFKA},
            {**read, "kind": "read all", "name": "seven columns", "schema": LIKE_KAFKA},
            {**read, "kind": "read all", "name": "all columns"},
        ]
        if store:
            raw: dict[str, Any] = {
                "format": "rocketmq-store",
                "options": {"topic": topic},
                "body": "body",
                "path": str(broker.store_dir),
            }
            steps += [
                {**raw, "kind": "read", "name": "raw store, read", "schema": LIKE_KAFKA},
                {**raw, "kind": "read all", "name": "raw store, seven columns", "schema": LIKE_KAFKA},
                {
                    "kind": "stream",
                    "name": "sink",
                    "format": "rocketmq",
                    "options": {"namesrvAddr": namesrv.address, "topic": sink},
                    "columns": ["'k1' AS keys", f"cast(repeat('x', {BODY_BYTES}) AS binary) AS body"],
                },
            ]
        return job(steps, plan, broker.pid)


def measure_kafka(plan: Mapping[str, Any]) -> Figures:
    with kafka_server() as (address, pid):
        options = {"kafka.bootstrap.servers": address}
        columns = ["'k1' AS key", f"cast(repeat('x', {BODY_BYTES}) AS binary) AS value"]
        fill = {"kind": "stream", "name": "fill", "format": "kafka", "columns": columns}
        fill["options"] = {**options, "topic": "bench"}  # type: ignore[assignment]  # a step is of mixed kinds
        with_jars = {**plan, "jars": jars("kafka-connector")}
        job([fill], {**with_jars, "sink_count": plan["count"], "rounds": 1}, pid)
        read = {"format": "kafka", "options": {**options, "subscribe": "bench"}, "body": "value"}
        steps = [
            {**read, "kind": "read", "name": "read"},
            {**read, "kind": "read all", "name": "seven columns"},
            {**fill, "name": "sink", "options": {**options, "topic": "sink"}},
        ]
        return job(steps, with_jars, pid)


def run(*, ours_only: bool = False, count: int = COUNT, rounds: int = 3) -> Figures:
    """Figures by side, and what ours is of Kafka's."""
    plan = {"count": count, "sink_count": count // 5, "body_bytes": BODY_BYTES, "rounds": rounds}
    results: Figures = {
        "orbitmq": measure_ours(plan, LARGE_ANSWERS, store=True),
        "orbitmq, 32 an answer": measure_ours(plan, {}, store=False),
    }
    if ours_only:
        return results
    results["kafka"] = measure_kafka(plan)
    kafka = results["kafka"]
    goals = {"read": 0.7, "seven columns": 0.7, "raw store, read": 1.5, "raw store, seven columns": 1.5}
    ratios: Figures = {}
    for name, goal in goals.items():
        theirs = kafka[f"{name.removeprefix('raw store, ')}, rows/s"]
        ratios[f"{name}, of Kafka's (goal {goal})"] = results["orbitmq"][f"{name}, rows/s"] / theirs
    ratios["sink, of Kafka's"] = results["orbitmq"]["sink, rows/s"] / kafka["sink, rows/s"]
    results["ratio"] = ratios
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours-only", action="store_true")
    arguments = parser.parse_args()
    figures = run(ours_only=arguments.ours_only, count=arguments.count, rounds=arguments.rounds)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
