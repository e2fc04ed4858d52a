"""``orbitmq pipeline`` as a process: what it prints, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.apache.artifacts import require
from tests.spark.pipeline_kit import send_all

from orbitmq.client.message import Message
from orbitmq.testing import run_broker

pytestmark = pytest.mark.slow
WAIT_S = 150.0
STREAM = """
name: orders
namesrvAddr: ${address}
checkpoint: state
sources:
  orders: {kind: topic, topic: orders, startingOffsets: earliest}
steps:
  - {name: small, kind: sql, query: "SELECT ${columns:-topic, keys, store_timestamp} FROM orders"}
sinks:
  - {name: files, kind: parquet, path: lake}
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orbitmq.cli.main", "pipeline", *arguments]


def ended(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and what was said last on standard error."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=WAIT_S, env={**os.environ, **environment}
    )
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr, "a Java stack"
    return done.returncode, done.stderr.strip().splitlines()[-1]


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(STREAM)
    return path


def test_dry_run_prints_the_plan_without_java_or_servers(pipeline: Path) -> None:
    done = subprocess.run(
        command(
            "run",
            str(pipeline),
            "--dry-run",
            "--offline",
            "--set",
            "address=127.0.0.1:1",
            "--master",
            "local[2]",
        ),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, "JAVA_HOME": "/nowhere"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "pipeline orders: stream, without a pause, on local[2]"
    assert lines[2] == "  orders               <- topic orders, from earliest [stream]"
    assert "not checked: JAVA_HOME is /nowhere" in done.stderr


@pytest.mark.usefixtures("fast_jvm")
def test_dry_run_refuses_what_could_not_run(pipeline: Path) -> None:
    require()
    with run_broker(autoCreateTopicEnable=False) as broker:
        done = subprocess.run(
            command(
                *("run", str(pipeline), "--dry-run", "--set", f"address={broker.name_server}"),
                *("--set", "columns=topic, kees, store_timestamp"),
            ),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    assert (done.returncode, done.stdout) == (2, "")
    topic, query = [line for line in done.stderr.splitlines() if line.startswith("orbitmq: ")]
    assert topic.startswith(f"orbitmq: {pipeline}:6: sources.orders: ")
    assert "there is no topic 'orders'" in topic
    assert query.startswith(f"orbitmq: {pipeline}:8: steps[0].query: ")
    assert "`kees` cannot be resolved" in query
    assert "keys" in query, "the name that was probably meant"


@pytest.mark.usefixtures("fast_jvm")
def test_mistakes_of_a_newcomer_are_one_line_and_exit_2(pipeline: Path, tmp_path: Path) -> None:
    require()
    run = ("run", str(pipeline), "--set", "address=127.0.0.1:1")
    assert ended("run", str(tmp_path / "none.yaml")) == (
        2,
        f"orbitmq: {tmp_path}/none.yaml: there is no such file",
    )
    code, text = ended("run", str(pipeline))
    assert (code, text.split(": ", 2)[1]) == (2, str(pipeline))
    assert "parameter 'address' has no value" in text
    code, text = ended(*run, JAVA_HOME="/nowhere")
    assert (code, text) == (2, "orbitmq: JAVA_HOME is /nowhere, and there is no bin/java in it")
    code, text = ended(*run)
    assert code == 2
    assert text.startswith("orbitmq: sources.orders: ")
    assert "127.0.0.1:1" in text
    with run_broker(autoCreateTopicEnable=False) as broker:
        code, text = ended("run", str(pipeline), "--set", f"address={broker.name_server}")
        assert (code, "there is no topic 'orders'" in text) == (2, True), text
        code, text = ended("archive", str(tmp_path / "archive"), "-n", broker.name_server, "-t", "nothing")
        assert (code, "there is no topic 'nothing'" in text) == (2, True), text
    code, text = ended("archive", str(tmp_path / "archive"))
    assert (code, text) == (2, "orbitmq: give --topic (once or more) or --topic-pattern")
    code, text = ended("archive", str(tmp_path / "archive"), "-t", "x", "--since", "yesterday")
    assert (code, text.startswith("orbitmq: --since: 'yesterday' is not a time")) == (2, True), text


@pytest.mark.usefixtures("fast_jvm")
def test_stream_ends_with_0_on_sigterm_and_bad_sql_with_2(pipeline: Path, tmp_path: Path) -> None:
    require()
    with run_broker() as broker:
        broker.create_topic("orders", queue_count=1)
        send_all(
            broker.name_server, [Message("orders", json.dumps({"n": n}), keys=f"k{n}") for n in range(5)]
        )
        arguments = ("run", str(pipeline), "--set", f"address={broker.name_server}", "--master", "local[1]")
        # The name of a column is wrong: Spark says it with forty lines, we with one.
        code, text = ended(*arguments, "--set", "columns=topik")
        assert code == 2
        assert "`topik` cannot be resolved" in text
        assert text.startswith("orbitmq: steps[0].query: ")
        process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            lines: list[str] = []
            for line in process.stderr:  # the test's own timeout is the bound
                lines.append(line)
                if line.startswith("files batch="):
                    break
            assert " rows=5 " in lines[-1], lines
            assert " behind=0" in lines[-1]
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, rest
    assert rest.strip().splitlines()[-1] == "files: 5 rows"
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 1
