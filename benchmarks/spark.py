"""Compares topics and raw stores in Spark with Spark's Kafka connector, in one run.

    python -m benchmarks.spark [--count 1000000] [--rounds 5] [--seconds 330] [--steps raw,sink] [--ours-only]

Both sides run the same PySpark 4.2.0 in a separate virtual environment, ``local[2]``, and read the same number of
messages with 128-byte bodies from four queues or partitions of a server on this machine: once to count them and
measure their bodies (``read``), and once as whole rows into Spark's ``noop`` sink (Kafka's seven columns, compared
with our seven equivalent ones, and all seventeen). The sink is a stream of Parquet files into a topic with keys and
tags (a header, for Kafka), ``availableNow``.

Sessions and servers of both sides stay up, and their windows alternate: Kafka's step follows the same step of ours.
The first round warms both up and is not counted; ratios are medians over the rounds. CPU is that of Spark's processes
and of the server in the same window, per row.

Responses of our broker hold at most 32 messages, like Apache's (``maxTransferCountOnMessageInMemory``); Kafka's are
bounded only by bytes. Both of our settings are measured.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
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
COUNT: Final = 1_000_000
BODY_BYTES: Final = 128
QUEUES: Final = 4
SEND_BATCH: Final = 500
LARGE_ANSWERS: Final = {"maxTransferCountOnMessageInMemory": 2000}
LIKE_KAFKA: Final = (
    "keys string, body binary, topic string, queue_id int, queue_offset bigint, "
    "store_timestamp timestamp, flag int"
)
STEP_TIMEOUT_S: Final = 120.0
SECONDS: Final = 330.0
GOALS: Final = {
    "read": 1.5,
    "seven columns": 1.5,
    "raw store, read": 2.5,
    "raw store, seven columns": 2.5,
    "sink": 1.0,
}
Figures = dict[str, Any]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- what is fetched once ------------------------------------------------------------------------------


def interpreter() -> Path:
    """Returns the Python of the virtual environment in which both sides run."""
    python = CACHE / f"venv-{PYSPARK}" / "bin" / "python"
    complete = python.parents[1] / "complete"
    if not complete.exists():
        shutil.rmtree(python.parents[1], ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        import numpy
        import pyarrow  # type: ignore[import-untyped]  # pyarrow has no types of its own

        packages = [f"pyspark=={PYSPARK}", f"pyarrow=={pyarrow.__version__}", f"numpy=={numpy.__version__}"]
        packages += ["msgspec", "lz4", "backports.zstd", "click", "rich", "uvloop", "prometheus-client"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        complete.touch()
    return python


def bring_kernel(python: Path) -> None:
    """Copies the compiled kernel of this environment, if it has one, into that of the benchmark."""
    target = next(python.parents[1].glob("lib/python3*/site-packages"))
    shutil.rmtree(target / "orbitmq_kernel", ignore_errors=True)
    if (found := importlib.util.find_spec("orbitmq_kernel")) is not None and found.origin is not None:
        shutil.copytree(Path(found.origin).parent, target / "orbitmq_kernel")


def jars(name: str) -> list[str]:
    """Returns the jars of one of the files in poms/, fetched by Maven once."""
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
    """Yields the address and process id of a Kafka broker with default settings."""
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


class Side:
    """A Spark session and its server."""

    def __init__(self, plan: Mapping[str, Any], server_pid: int) -> None:
        self._server_pid = server_pid
        bring_kernel(interpreter())
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the session
        self._process = subprocess.Popen(
            [interpreter(), "-m", "benchmarks.spark_job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        self._tell(plan)

    def _tell(self, document: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(STEP_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"a Spark job failed:\n{self._errors.read().decode()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def window(self, step: Mapping[str, Any]) -> Figures:
        """Runs one step: rows per second, and microseconds of CPU per row."""
        server_pid = step.get("server_pid", self._server_pid)
        before = _cpu_seconds(server_pid)
        found = self._tell(step)
        server_s = _cpu_seconds(server_pid) - before
        rows = found["rows"]
        return {
            "rows/s": rows / found["seconds"],
            "Spark CPU us/row": found["cpu_s"] / rows * 1e6,
            "server CPU us/row": server_s / rows * 1e6,
            "CPU us/row": (found["cpu_s"] + server_s) / rows * 1e6,
        }

    def close(self) -> None:
        """Ends the session."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


@contextmanager
def session(plan: Mapping[str, Any], server_pid: int) -> Iterator[Side]:
    side = Side(plan, server_pid)
    try:
        yield side
    finally:
        side.close()


def fill_ours(namesrv: OrbitNamesrv, broker: OrbitBroker, topic: str, count: int) -> None:
    create_topic(namesrv, broker, topic, queue_count=QUEUES)
    body = b"x" * BODY_BYTES
    with Producer("bench-spark", namesrv.address) as producer:
        for first in range(0, count, SEND_BATCH):
            size = min(SEND_BATCH, count - first)
            producer.send_batch([Message(topic=topic, body=body, keys="k1") for _ in range(size)])


@contextmanager
def our_side(
    plan: Mapping[str, Any], settings: Mapping[str, int]
) -> Iterator[tuple[Side, dict[str, dict[str, Any]]]]:
    """Yields a session with a filled topic, and the steps by name. The sink has a separate server: in the log that
    the raw store is read from, it would add other messages with every round.
    """
    topic, sink = "bench", "sink"
    conf: dict[str, Any] = {"mappedFileSizeCommitLog": 1024**3, **settings}
    with (
        OrbitNamesrv() as namesrv,
        OrbitBroker(namesrv, **conf) as broker,
        OrbitNamesrv() as sink_namesrv,
        OrbitBroker(sink_namesrv, **conf) as sink_broker,
    ):
        fill_ours(namesrv, broker, topic, plan["count"])
        create_topic(sink_namesrv, sink_broker, sink, queue_count=QUEUES)
        options = {"namesrvAddr": namesrv.address, "topic": topic}
        read: dict[str, Any] = {"format": "rocketmq", "options": options, "body": "body"}
        raw: dict[str, Any] = {
            "format": "rocketmq-store",
            "options": {"topic": topic},
            "body": "body",
            "path": str(broker.store_dir),
        }
        columns = ["concat('k', id) AS keys", "'TagA' AS tags"]
        columns.append(f"cast(repeat('x', {BODY_BYTES}) AS binary) AS body")
        steps: dict[str, dict[str, Any]] = {
            "read": {**read, "kind": "read", "schema": LIKE_KAFKA},
            "seven columns": {**read, "kind": "read all", "schema": LIKE_KAFKA},
            "all columns": {**read, "kind": "read all"},
            "raw store, read": {**raw, "kind": "read", "schema": LIKE_KAFKA},
            "raw store, seven columns": {**raw, "kind": "read all", "schema": LIKE_KAFKA},
            "sink": {
                "kind": "stream",
                "format": "rocketmq",
                "options": {"namesrvAddr": sink_namesrv.address, "topic": sink},
                "columns": columns,
                "server_pid": sink_broker.pid,
            },
        }
        with session(plan, broker.pid) as side:
            yield side, steps


@contextmanager
def kafka_side(plan: Mapping[str, Any]) -> Iterator[tuple[Side, dict[str, dict[str, Any]]]]:
    """Yields the same for Kafka."""
    with kafka_server() as (address, pid), session({**plan, "jars": jars("kafka-connector")}, pid) as side:
        options = {"kafka.bootstrap.servers": address}
        columns = [
            "concat('k', id) AS key",
            f"cast(repeat('x', {BODY_BYTES}) AS binary) AS value",
            "array(named_struct('key', 'TAGS', 'value', cast('TagA' AS binary))) AS headers",
        ]
        write: dict[str, Any] = {"kind": "stream", "format": "kafka", "columns": columns}
        side.window(
            {
                **write,
                "columns": columns[:2],
                "options": {**options, "topic": "bench"},
                "plan": {"sink_count": plan["count"]},
            }
        )
        read: dict[str, Any] = {"format": "kafka", "options": {**options, "subscribe": "bench"}}
        read["body"] = "value"
        yield (
            side,
            {
                "read": {**read, "kind": "read"},
                "seven columns": {**read, "kind": "read all"},
                "sink": {**write, "options": {**options, "topic": "sink"}},
            },
        )


def their_name(step: str) -> str:
    """Returns the Kafka step with which our step is compared."""
    return step.removeprefix("raw store, ")


def chosen(steps: Mapping[str, dict[str, Any]], beginnings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the steps whose names begin with one of these words, or all if there are none."""
    return {name: step for name, step in steps.items() if name.startswith(tuple(beginnings) or "")}


def run(
    *,
    ours_only: bool = False,
    count: int = COUNT,
    rounds: int = 5,
    seconds: float = SECONDS,
    steps: Sequence[str] = (),
) -> Figures:
    """Returns the results by side and step, and the ratios ours / Kafka's."""
    deadline = time.monotonic() + seconds
    plan = {"count": count, "sink_count": min(count, 400_000), "body_bytes": BODY_BYTES}
    windows: dict[str, dict[str, list[Figures]]] = {"orbitmq": {}, "kafka": {}}
    with contextlib.ExitStack() as stack:
        ours, our_steps = stack.enter_context(our_side(plan, LARGE_ANSWERS))
        kafka = None if ours_only else stack.enter_context(kafka_side(plan))
        for number in range(rounds + 1):
            if number > 1 and time.monotonic() > deadline:
                break
            for name, step in chosen(our_steps, steps).items():
                found = ours.window(step)
                theirs = None
                if kafka is not None and their_name(name) in kafka[1]:
                    theirs = kafka[0].window(kafka[1][their_name(name)])
                if number == 0:
                    continue
                windows["orbitmq"].setdefault(name, []).append(found)
                if theirs is not None:
                    windows["kafka"].setdefault(name, []).append(theirs)
    return summary(windows)


def summary(windows: Mapping[str, Mapping[str, Sequence[Figures]]]) -> Figures:
    """Returns the medians, and the medians of the ratios of neighbouring windows."""
    results: Figures = {
        side: {
            step: {name: statistics.median(one[name] for one in found) for name in found[0]}
            for step, found in steps.items()
        }
        for side, steps in windows.items()
    }
    ratios: Figures = {}
    for step, theirs in windows["kafka"].items():
        ours = windows["orbitmq"][step]
        goal = GOALS.get(step)
        for name, label in (("rows/s", "rows a second"), ("CPU us/row", "CPU of Spark and server a row")):
            pairs = [mine[name] / other[name] for mine, other in zip(ours, theirs, strict=True)]
            wanted = f" (goal {goal})" if goal is not None and name == "rows/s" else ""
            ratios[f"{step}, {label}, of Kafka's{wanted}"] = statistics.median(pairs)
    results["windows"] = len(next(iter(windows["orbitmq"].values()), ()))
    results["ratio"] = ratios
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="no further round begins after this time"
    )
    parser.add_argument(
        "--steps", default="", help="only steps that begin with one of these, by commas: raw,sink"
    )
    parser.add_argument("--ours-only", action="store_true")
    arguments = parser.parse_args()
    figures = run(
        ours_only=arguments.ours_only,
        count=arguments.count,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        steps=[word.strip() for word in arguments.steps.split(",") if word.strip()],
    )
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
