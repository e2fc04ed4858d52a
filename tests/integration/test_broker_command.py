"""``orbitmq broker`` as a process: ready line, signals, exit codes, and refused configurations."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.integration.bad_requests import PULL, SEND_V2
from tests.support.ports import free_ports

from orbitmq.codes import ResponseCode
from orbitmq.requests import RequestCode
from orbitmq.transport.client import RpcClient
from orbitmq.wire.frame import Frame

pytestmark = pytest.mark.slow

COMMAND: Final = (sys.executable, "-m", "orbitmq.cli.main")
DEADLINE_S: Final = 120.0
STOP_S: Final = 120.0


def orbitmq(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *python, "-m", "orbitmq.cli.main", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def settings(folder: Path, **more: str) -> list[str]:
    values = {
        "storePathRootDir": str(folder / "store"),
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": "0",
        "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
        **more,
    }
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


@contextmanager
def broker(folder: Path, *arguments: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yields a running process and its address. Its log is in the folder."""
    command = (*COMMAND, "broker", *settings(folder, **more), "--log-file", str(folder / "log"), *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"orbitmq broker ready, name \S+, address (\S+)", line)
            assert found, (line, process.stderr.read() if process.stderr is not None else "")
            yield process, found[1]
        finally:
            process.kill()


def ask(address: str, code: int, fields: dict[str, str], body: bytes = b"") -> Frame:
    async def call() -> Frame:
        client = RpcClient()
        try:
            return await client.call(address, code, None, body, ext=fields)
        finally:
            await client.close()

    return asyncio.run(call())


def send(address: str, topic: str = "T") -> Frame:
    return ask(address, RequestCode.SEND_MESSAGE_V2, {**SEND_V2, "b": topic}, b"body")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_answers_waiting_pulls_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    async def wait_and_stop(process: subprocess.Popen[str], address: str) -> None:
        client = RpcClient()
        connection = await client.connection(address)
        fields = {**PULL, "topic": "T", "queueOffset": "1", "sysFlag": "6", "suspendTimeoutMillis": "600000"}
        waiting = connection.call(RequestCode.PULL_MESSAGE, timeout_s=600.0, ext=fields)
        # A response to a later request shows that the pull has been received.
        await client.call(address, RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"})
        assert not waiting.done()
        started = time.monotonic()
        process.send_signal(number)
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
        assert time.monotonic() - started < STOP_S
        await client.close()

    with broker(tmp_path) as (process, address):
        assert send(address).code == 0
        assert (tmp_path / "store" / "abort").exists()
        asyncio.run(wait_and_stop(process, address))
        assert process.wait(STOP_S) == 0
    assert not (tmp_path / "store" / "abort").exists()
    log = (tmp_path / "log").read_text()
    assert "broker stopped" in log
    assert "Traceback" not in log


def test_killed_broker_starts_again_with_what_it_had(tmp_path: Path) -> None:
    port = str(free_ports(-2, 1)[0])
    with broker(tmp_path, listenPort=port) as (process, address):
        assert [send(address).code for _ in range(5)] == [0] * 5
        process.kill()
        process.wait(DEADLINE_S)
    with broker(tmp_path, listenPort=port) as (_, again):
        assert again == address
        answer = ask(address, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert answer.ext_fields == {"offset": "5"}
    assert "clean=False" in (tmp_path / "log").read_text()


def test_store_belongs_to_one_broker_at_a_time(tmp_path: Path) -> None:
    with broker(tmp_path):
        second = orbitmq("broker", *settings(tmp_path))
    assert second.returncode == 1
    assert second.stderr.count("orbitmq: ") == 1
    assert str(tmp_path / "store") in second.stderr
    assert "Traceback" not in second.stderr


def test_taken_port_ends_with_1_and_one_line(tmp_path: Path) -> None:
    with broker(tmp_path) as (_, address):
        (tmp_path / "other").mkdir()
        taken = orbitmq("broker", *settings(tmp_path / "other", listenPort=address.rpartition(":")[2]))
    assert taken.returncode == 1
    assert f"port {address.rpartition(':')[2]} of 127.0.0.1 is in use" in taken.stderr
    assert "Traceback" not in taken.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("listenPort=abc", "listenPort"),
        ("brokerRole=KING", "brokerRole"),
        ("flushDiskType=NEVER", "flushDiskType"),
        ("mappedFileSizeCommitLog=-1", "mappedFileSizeCommitLog"),
    ],
)
def test_bad_option_names_file_line_and_key(tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"# a broker\nbrokerName=a\n{line}\n")
    ended = orbitmq("broker", "-c", str(file))
    assert ended.returncode == 1
    assert f"{file}:3" in ended.stderr
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_configuration_is_printed_file_under_command_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerName=from-file\nnamesrvAddr=10.0.0.1:9876\nfileReservedTime=24\nuseEpollNativeSelector=true\n"
    )
    shown = orbitmq("broker", "-c", str(file), "-n", "10.0.0.2:9876;10.0.0.3:9876", "-p")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert "brokerName=from-file" in lines
    assert "namesrvAddr=10.0.0.2:9876;10.0.0.3:9876" in lines
    assert "fileReservedTime=24" in lines
    assert len(lines) == len({line.partition("=")[0] for line in lines}), "no key twice"


def test_option_of_apache_without_effect_is_kept_shown_and_warned_of(tmp_path: Path) -> None:
    with broker(tmp_path, useEpollNativeSelector="true") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0
    log = (tmp_path / "log").read_text()
    assert "options without effect" in log
    assert "useEpollNativeSelector" in log


@pytest.mark.parametrize("name", ["2m-2s-sync", "2m-noslave", "broker", "widely-copied"])
def test_configuration_written_for_apache_starts_unchanged(tmp_path: Path, name: str) -> None:
    """Only settings that would leave the test's own directory and ports are overridden."""
    file = Path(__file__).parent.parent / "golden" / "apache-conf" / f"{name}.properties"
    with broker(tmp_path, "-c", str(file), storePathCommitLog=str(tmp_path / "log-files")) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("useTLS", "true", "set tls.enable=true"),
        ("storeType", "defaultRocksDB", "turn the store back to plain files"),
        ("metricsExporterType", "OTLP_GRPC", "metrics are only served over HTTP"),
    ],
)
def test_promise_that_is_not_kept_stops_the_start(tmp_path: Path, key: str, value: str, reason: str) -> None:
    ended = orbitmq("broker", *settings(tmp_path, **{key: value}))
    assert ended.returncode == 1
    assert f"{key}={value} is refused" in ended.stderr
    assert reason in ended.stderr


def test_option_nobody_knows_stops_the_start_with_a_suggestion(tmp_path: Path) -> None:
    ended = orbitmq("broker", *settings(tmp_path, listenPrt="1"))
    assert ended.returncode == 1
    assert "listenPrt; did you mean listenPort?" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_broker_refuses_to_run_without_assertions(tmp_path: Path) -> None:
    ended = orbitmq("broker", *settings(tmp_path), python=("-O",))
    assert ended.returncode == 1
    assert "python -O" in ended.stderr


def test_dead_name_server_does_not_keep_a_broker_from_serving(tmp_path: Path) -> None:
    with broker(tmp_path, "-n", "127.0.0.1:1;127.0.0.1:2") as (process, address):
        assert send(address).code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0


def test_broker_without_name_server_warns_and_takes_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with broker(tmp_path):
        assert "no name server is configured" in (tmp_path / "log").read_text()
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    shown = orbitmq("broker", "-p", *settings(tmp_path)).stdout
    assert "namesrvAddr=127.0.0.1:1\n" in shown
    # The option takes precedence, as in Apache.
    assert "namesrvAddr=127.0.0.1:2\n" in orbitmq("broker", "-p", "-n", "127.0.0.1:2").stdout
