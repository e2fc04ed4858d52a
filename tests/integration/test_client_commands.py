"""``orbitmq produce``, ``consume`` and ``run``, the package's public names, and messages for tests of handlers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from tests.support.processes import interruptible_children

import orbitmq
import orbitmq.client
import orbitmq.sync
from orbitmq.cli.messages import moment
from orbitmq.client import BodyMismatch, Message, sync
from orbitmq.testing import ChaosProxy, RunningBroker, message, run_broker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def orbit(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orbitmq", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)


def test_lines_go_in_and_come_out(broker: RunningBroker) -> None:
    broker.create_topic("lines", queue_count=1)
    arguments = ["-n", broker.name_server]
    made = orbit("produce", "lines", *arguments, "--tags", "t", "-p", "a=1", given="one\ntwo\n")
    assert made.returncode == 0, made.stderr
    read = orbit("consume", "lines", *arguments, "--format", "json")
    found = [json.loads(line) for line in read.stdout.splitlines()]
    assert [(m["body"], m["tags"], m["properties"]["a"]) for m in found] == [
        ("one", "t", "1"),
        ("two", "t", "1"),
    ]
    assert [(m["topic"], m["broker"], m["queue"], m["offset"]) for m in found] == [
        ("lines", "broker-a", 0, 0),
        ("lines", "broker-a", 0, 1),
    ]
    assert orbit("consume", "lines", *arguments, "--count", "1").stdout == "one\n"
    assert orbit("consume", "lines", *arguments, "--from", "latest").stdout == ""
    wrong = orbit("consume", "Lnes", *arguments)
    assert (wrong.returncode, "Did you mean lines?" in wrong.stderr) == (4, True), wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_messages_are_printed_in_the_order_they_were_stored(broker: RunningBroker) -> None:
    broker.create_topic("ordered", queue_count=4)
    sent = "".join(f"{number}\n" for number in range(40))
    assert orbit("produce", "ordered", "-n", broker.name_server, given=sent).returncode == 0
    assert orbit("consume", "ordered", "-n", broker.name_server).stdout == sent
    newest = orbit("consume", "ordered", "-n", broker.name_server, "--last", "3")
    assert newest.stdout == "37\n38\n39\n"


def test_one_queue_is_read_from_an_offset_with_a_template(broker: RunningBroker) -> None:
    broker.create_topic("placed", queue_count=2)
    with sync.Producer("placers", broker.name_server) as producer:
        for number in range(6):
            producer.send(Message("placed", f"body {number}", keys=f"k{number}"))
    arguments = ["placed", "-n", broker.name_server]
    read = orbit("consume", *arguments, "-q", "broker-a:1", "-o", "1", "--format", r"%q %o\t%k=%v")
    lines = read.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["1 1", "1 2"], read.stderr
    assert all(
        key.removeprefix("k") in value for key, _, value in (line[4:].partition("=") for line in lines)
    )
    wrong = orbit("consume", *arguments, "-q", "9")
    assert (wrong.returncode, "has no queue 9; it has broker-a:0, broker-a:1" in wrong.stderr) == (2, True)
    both = orbit("consume", *arguments, "--last", "1", "--from", "-1h")
    assert (both.returncode, "one of --from, --offset and --last" in both.stderr) == (2, True)


def test_keys_and_headers_go_in_with_the_lines_and_as_json(broker: RunningBroker) -> None:
    broker.create_topic("keyed", queue_count=1)
    arguments = ["keyed", "-n", broker.name_server]
    made = orbit("produce", *arguments, "-K", ":", "-H", "source=till", "--json", given="a:one\nb:two:2\n")
    places = [json.loads(line) for line in made.stdout.splitlines()]
    assert [(place["queue"], place["offset"], place["status"]) for place in places] == [
        (0, 0, "OK"),
        (0, 1, "OK"),
    ]
    printed = orbit("consume", *arguments, "--json").stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [(row["keys"], row["body"], row["properties"]["source"]) for row in rows] == [
        (["a"], "one", "till"),
        (["b"], "two:2", "till"),
    ]
    again = orbit("produce", *arguments, "--format", "json", given=printed)
    assert again.returncode == 0, again.stderr
    copies = orbit("consume", *arguments, "-o", "2", "--format", "%k %v %p").stdout.splitlines()
    assert [copy.split(" {")[0] for copy in copies] == ["a one", "b two:2"]
    assert all('"source": "till"' in copy for copy in copies)
    for options, line, text in (
        (["-K", ":"], "no key\n", "a line is not KEY:BODY: 'no key'"),
        (["--format", "json"], "no json\n", "a line is not a message in JSON"),
    ):
        wrong = orbit("produce", *arguments, *options, given=line)
        assert (wrong.returncode, text in wrong.stderr) == (1, True), wrong.stderr


def test_times_as_people_write_them() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert moment("earliest", now) == "first"
    assert moment("-15m", now) == now - timedelta(minutes=15)
    assert moment("2026-01-01T10:00:00+00:00", now) == datetime(2026, 1, 1, 10, tzinfo=UTC)
    for wrong in ("yesterday", "-99999999999d", "0001-01-01"):
        with pytest.raises(click.BadParameter, match="-15m"):
            moment(wrong, now)


def test_worker_runs_until_it_is_told_to_stop_and_lets_handlers_end(
    broker: RunningBroker, tmp_path: Path
) -> None:
    broker.create_topic("work", queue_count=1)
    (tmp_path / "worker.py").write_text(
        "import asyncio\n"
        "from orbitmq import PushConsumer\n"
        f"consumer = PushConsumer('workers', {broker.name_server!r}, start='first')\n"
        "@consumer.listen('work')\n"
        "async def handle(message):\n"
        "    print('began', flush=True)\n"
        "    await asyncio.sleep(0.5)\n"
        "    print('done', flush=True)\n"
    )
    command = [sys.executable, "-m", "orbitmq", "run", "worker:consumer", "--health-port", "0"]
    worker = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert worker.stdout is not None
    assert worker.stderr is not None
    try:
        port = worker.stderr.readline().split()[-1]
        lines = iter(worker.stderr.readline, "")
        assert any(" INFO    orbitmq.run running worker:consumer group=workers" in line for line in lines)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=60) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b'orbitmq_client_held_messages{group="workers"' in answer.read()
        with sync.Producer("work", broker.name_server) as producer:
            producer.send(Message("work", "x"))
        assert worker.stdout.readline() == "began\n"
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=120)
        assert out == "done\n"
        assert err.endswith("stopped\n")
        assert worker.returncode == 0
    finally:
        worker.kill()


@pytest.mark.parametrize(
    "handler",
    [
        "def handle(message):\n    print('began', flush=True)\n    time.sleep(600)\n",
        "async def handle(message):\n"
        "    print('began', flush=True)\n"
        "    while True:\n"
        "        with contextlib.suppress(asyncio.CancelledError):\n"
        "            await asyncio.sleep(600)\n",
    ],
    ids=["plain", "coroutine"],
)
def test_worker_ends_beside_a_handler_that_does_not(
    broker: RunningBroker, tmp_path: Path, handler: str, request: pytest.FixtureRequest
) -> None:
    topic = broker.create_topic(f"stuck-{request.node.callspec.id}", queue_count=1)
    (tmp_path / "stuck.py").write_text(
        "import asyncio, contextlib, time\n"
        "from orbitmq import PushConsumer\n"
        f"consumer = PushConsumer({topic!r}, {broker.name_server!r}, start='first', close_wait_s=0.5)\n"
        f"@consumer.listen({topic!r})\n{handler}"
    )
    command = [sys.executable, "-m", "orbitmq", "run", "stuck:consumer"]
    worker = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    try:
        with sync.Producer("work", broker.name_server) as producer:
            producer.send(Message(topic, "x"))
        assert worker.stdout.readline() == "began\n"
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=120)
        assert "stopped although 1 handler did not end" in err
        assert worker.returncode == 1
    finally:
        worker.kill()


def test_bytes_that_are_no_text_go_in_and_come_out(broker: RunningBroker) -> None:
    broker.create_topic("bytes", queue_count=1)
    command = [sys.executable, "-m", "orbitmq", "produce", "bytes", "-n", broker.name_server]
    made = subprocess.run(command, input=b"\xff\xfe\nlast", capture_output=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    consumer = sync.LitePullConsumer("bytes", broker.name_server, start="first")
    consumer.subscribe("bytes")
    with consumer:
        assert [m.body for m in consumer.poll(20)] == [b"\xff\xfe", b"last"]
    read = orbit("consume", "bytes", "-n", broker.name_server)
    assert (read.returncode, read.stdout) == (0, "\ufffd\ufffd\nlast\n"), read.stderr


def test_what_cannot_be_a_message_is_refused(broker: RunningBroker) -> None:
    made = orbit("produce", "refused", "x", "", "-n", broker.name_server)
    assert (made.returncode, "without a body" in made.stderr) == (2, True), made.stderr
    made = orbit("produce", "refused", "-n", broker.name_server, given="x" * (64 * 1024 * 1024 + 70_000))
    assert (made.returncode, "a line is longer than 64 MiB" in made.stderr) == (1, True), made.stderr


def test_interrupt_ends_a_producer_that_waits_for_lines(broker: RunningBroker) -> None:
    command = [sys.executable, "-m", "orbitmq", "produce", "waiting", "-n", broker.name_server]
    with interruptible_children():
        typing = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert typing.stdin is not None
    try:
        typing.stdin.write(b"first\n")
        typing.stdin.flush()
        until = datetime.now(UTC) + timedelta(seconds=120)
        while orbit("consume", "waiting", "-n", broker.name_server).stdout != "first\n":
            assert datetime.now(UTC) < until
        typing.send_signal(signal.SIGINT)
        assert typing.wait(120) == 1
    finally:
        typing.kill()
        typing.communicate()


def test_worker_is_started_again_when_its_source_changes(broker: RunningBroker, tmp_path: Path) -> None:
    broker.create_topic("reloaded", queue_count=1)
    source = (
        "from orbitmq import PushConsumer\n"
        f"consumer = PushConsumer('reloaders', {broker.name_server!r}, start='first')\n"
        "@consumer.listen('reloaded')\n"
        "async def handle(message):\n"
        "    print('WORD', message.text(), flush=True)\n"
    )
    (tmp_path / "reloaded.py").write_text(source.replace("WORD", "old"))
    command = [sys.executable, "-m", "orbitmq", "run", "reloaded:consumer", "--reload"]
    with interruptible_children():
        worker = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    assert worker.stdout is not None
    assert worker.stderr is not None
    try:
        with sync.Producer("reloaded", broker.name_server) as producer:
            lines = iter(worker.stderr.readline, "")
            assert any("orbitmq.run running" in line for line in lines)
            producer.send(Message("reloaded", "1"))
            assert worker.stdout.readline() == "old 1\n"
            (tmp_path / "reloaded.py").write_text("def (")
            assert any("invalid syntax" in line for line in lines), "and it goes on"
            (tmp_path / "reloaded.py").write_text(source.replace("WORD", "new"))
            assert any("orbitmq.run running" in line for line in lines)
            producer.send(Message("reloaded", "2"))
            assert worker.stdout.readline() == "new 2\n"
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=120)
        assert "stopped" in err
        assert worker.returncode == 0
    finally:
        if worker.poll() is None:
            worker.terminate()  # it ends its child, which has the same pipes
        worker.communicate()


def test_saved_contexts_stand_for_addresses_and_keys(
    broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("named", queue_count=1)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert "in use" in orbit("context", "set", "here", "-n", broker.name_server).stdout
    assert (
        orbit("context", "set", "far", "-n", "127.0.0.1:1", "--accessKey", "k", "--secretKey", "s").returncode
        == 0
    )
    file = tmp_path / "orbitmq" / "contexts.json"
    assert file.stat().st_mode & 0o077 == 0, "keys are for its owner alone"
    made = orbit("produce", "named", "one")
    assert made.returncode == 0, made.stderr
    assert orbit("consume", "named").stdout == "one\n"
    assert "named" in orbit("admin", "topicList").stdout
    shown = orbit("context", "list").stdout
    assert f"* here  {broker.name_server}" in shown
    assert "far  127.0.0.1:1 signed" in shown
    assert json.loads(orbit("context", "list", "--json").stdout)["far"]["accessKey"] == "k"
    orbit("context", "use", "far")
    assert orbit("consume", "named").returncode == 1
    assert orbit("consume", "named", "-n", broker.name_server).stdout == "one\n", "an option wins"
    monkeypatch.setenv("ORBITMQ_CONTEXT", "here")
    assert orbit("consume", "named").stdout == "one\n"
    monkeypatch.setenv("ORBITMQ_CONTEXT", "nowhere")
    wrong = orbit("consume", "named")
    assert (wrong.returncode, "no context 'nowhere'" in wrong.stderr) == (1, True)
    monkeypatch.delenv("ORBITMQ_CONTEXT")
    assert orbit("context", "remove", "far").returncode == 0
    assert orbit("context", "use", "far").returncode == 1
    file.write_text("{")
    broken = orbit("consume", "named")
    assert broken.returncode == 1
    assert "Traceback" not in broken.stderr


def worker_module(folder: Path, name: str, text: str) -> Path:
    (folder / f"{name}.py").write_text(
        "import asyncio\nfrom orbitmq import PushConsumer\n"
        f"{text}\n"
        "@consumer.listen('quiet')\n"
        "async def handle(message):\n"
        "    print('began', flush=True)\n"
        "    await asyncio.sleep(600)\n"
    )
    return folder


def test_worker_without_a_name_server_ends_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NAMESRV_ADDR", "ORBITMQ_NAMESRV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(worker_module(tmp_path, "nowhere", "consumer = PushConsumer('g')"))
    wrong = orbit("run", "nowhere:consumer")
    assert (wrong.returncode, "-n HOST:PORT, ORBITMQ_NAMESRV" in wrong.stderr) == (2, True), wrong.stderr
    monkeypatch.setenv("ORBITMQ_ACCESS_KEY", "only-half")
    wrong = orbit("run", "nowhere:consumer", "-n", "127.0.0.1:1")
    assert (wrong.returncode, "belong together" in wrong.stderr) == (2, True), wrong.stderr


def test_worker_takes_its_connection_from_options_and_context_and_logs_json(
    broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("quiet", queue_count=1)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    orbit("context", "set", "here", "-n", broker.name_server)
    worker_module(tmp_path, "open", "consumer = PushConsumer('open', start='first', close_wait_s=0.2)")
    command = [sys.executable, "-m", "orbitmq", "run", "open:consumer", "--log-format", "json"]
    worker = subprocess.Popen(
        [*command, "--context", "here"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    try:
        with sync.Producer("work", broker.name_server) as producer:
            producer.send(Message(topic, "x"))
        assert worker.stdout.readline() == "began\n"
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=120)
        events = [json.loads(line) for line in err.splitlines()]
        assert {"time", "level", "logger", "message"} <= set(events[0])
        assert events[-1]["message"] == "stopped", "the coroutine was cancelled after close_wait_s"
        assert worker.returncode == 0
    finally:
        worker.kill()


def test_commands_take_the_addresses_of_the_environment_and_name_tls(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("surroundings", queue_count=1)
    monkeypatch.setenv("ORBITMQ_NAMESRV", broker.name_server)
    assert "1 message sent" in orbit("produce", "surroundings", "one").stderr
    assert orbit("consume", "surroundings").stdout == "one\n"
    assert "surroundings" in orbit("admin", "topicList").stdout
    with sync.Producer("surroundings") as producer:
        producer.send(Message("surroundings", "two"))
    closed = orbit("produce", "surroundings", "x", "-n", "127.0.0.1:1")
    assert (closed.returncode, "--tlsCa FILE" in closed.stderr) == (1, True), closed.stderr
    encrypted = orbit("produce", "surroundings", "x", "--tls")
    assert encrypted.returncode == 1, "the broker's certificate is not one this machine trusts"
    assert "certificate" in encrypted.stderr.lower() or "TLS" in encrypted.stderr, encrypted.stderr


def test_worker_that_cannot_be_found_is_said_plainly() -> None:
    wrong = orbit("run", "no_such_module:consumer")
    assert wrong.returncode == 2
    assert "no_such_module" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_surface_is_listed_and_importable() -> None:
    assert set(orbitmq.__all__) == {*orbitmq.client.__all__, "sync", "__version__"}
    assert set(orbitmq.__all__) <= set(dir(orbitmq)), "for completion in a shell"
    for name in orbitmq.__all__:
        assert getattr(orbitmq, name) is not None
    assert orbitmq.sync.Producer is sync.Producer


@dataclass
class Order:
    id: int


def test_handler_is_tested_without_a_broker() -> None:
    made = message({"id": 7}, topic="Orders", tags="paid", keys=["k"], properties={"a": "1"}, attempt=3)
    assert made.json(Order) == Order(7)
    assert (made.topic, made.tags, made.keys, made.attempt) == ("Orders", "paid", ["k"], 3)
    assert made.user_properties == {"a": "1"}
    with pytest.raises(BodyMismatch, match="Order"):
        message("{}").json(Order)
    assert Message.json("Orders", Order(7)).body == b'{"id":7}'


def test_proxy_of_the_kit_stands_between(broker: RunningBroker) -> None:
    async def run() -> None:
        host, _, port = broker.name_server.partition(":")
        async with (
            ChaosProxy(host, int(port)) as proxy,
            orbitmq.Producer("proxied", proxy.address) as producer,
        ):
            await producer.wait_ready()

    asyncio.run(run())
