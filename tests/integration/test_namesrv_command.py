"""``orbitmq namesrv`` as a process: ready line, signals, exit codes, and refused configurations."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.ports import free_ports

from orbitmq import __version__
from orbitmq.kernel import NAME as KERNEL
from orbitmq.requests import RequestCode
from orbitmq.transport.client import RpcClient
from orbitmq.wire.frame import Frame

COMMAND = (sys.executable, "-m", "orbitmq.cli.main")
DEADLINE_S = 120.0


def orbitmq(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *python, "-m", "orbitmq.cli.main", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@contextmanager
def name_server(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yields a running process and its address."""
    settings = (f"kvConfigPath={folder / 'kv.json'}", "bindAddress=127.0.0.1")
    command = (
        *COMMAND,
        "namesrv",
        *(part for setting in settings for part in ("--set", setting)),
        *arguments,
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"ready, address (\S+)", line)
            assert found, (line, process.stderr.read() if process.stderr is not None else "")
            yield process, found[1]
        finally:
            process.kill()


def ask(address: str, code: int, **fields: str) -> Frame:
    async def call() -> Frame:
        client = RpcClient()
        try:
            return await client.call(address, code, ext=fields)
        finally:
            await client.close()

    return asyncio.run(call())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with name_server(tmp_path, "--port", "0") as (process, address):
        assert ask(address, RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert "name server started" in log
    assert "name server stopped" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_killed_server_starts_again_on_its_port_with_its_kv_config(tmp_path: Path) -> None:
    port = str(free_ports()[0])
    with name_server(tmp_path, "--port", port) as (process, address):
        assert ask(address, RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v").code == 0
        process.kill()
        process.wait(DEADLINE_S)
    with name_server(tmp_path, "--port", port) as (_, again):
        assert again == address
        assert ask(address, RequestCode.GET_KV_CONFIG, namespace="n", key="k").ext_fields == {"value": "v"}


@pytest.mark.slow
def test_changed_option_is_written_to_the_config_file_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# ours\nlistenPort=0\nserverWorkerThreads=8\n")
    body = b"enableTopicList=false"

    async def update(address: str) -> None:
        client = RpcClient()
        answer = await client.call(address, RequestCode.UPDATE_NAMESRV_CONFIG, None, body)
        assert answer.code == 0, answer.remark
        await client.close()

    with name_server(tmp_path, "-c", str(file)) as (process, address):
        asyncio.run(update(address))
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
        assert process.stderr is not None
        assert "serverWorkerThreads" in process.stderr.read()
    assert "enableTopicList=false\n" in file.read_text()
    assert "serverWorkerThreads=8\n" in file.read_text()
    shown = orbitmq("namesrv", "-c", str(file), "-p")
    assert shown.returncode == 0
    assert "enableTopicList=false\n" in shown.stdout
    assert f"configStorePath={file}\n" in shown.stdout


@pytest.mark.slow
def test_taken_port_and_broken_kv_file_are_one_line_and_1(tmp_path: Path) -> None:
    with name_server(tmp_path, "--port", "0") as (_, address):
        taken = orbitmq("namesrv", "--set", "bindAddress=127.0.0.1", "--port", address.rpartition(":")[2])
    assert taken.returncode == 1
    assert f"port {address.rpartition(':')[2]} of 127.0.0.1 is in use" in taken.stderr
    assert "Traceback" not in taken.stderr
    (tmp_path / "kv.json").write_text("{")
    broken = orbitmq("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path / 'kv.json'}")
    assert broken.returncode == 1
    assert "no readable copy" in broken.stderr.splitlines()[-1]
    assert "Traceback" not in broken.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--set", "listenPort=70000"), "--set:2: listenPort='70000' is not a whole number from 0 to 65535"),
        (("--set", "nonsense"), "is not of the form KEY=VALUE"),
        (("-c", "no/such/file.conf"), "no/such/file.conf cannot be read"),
        (
            ("--set", "tls.server.mode=enforcing", "--set", "tls.test.mode.enable=false", "--port", "0"),
            "needs tls.server.certPath",
        ),
        (("--log-file", "no/such/folder/x.log"), "No such file or directory"),
    ],
)
def test_bad_configuration_is_one_line_and_1(arguments: tuple[str, ...], reason: str) -> None:
    done = orbitmq("namesrv", "--set", "kvConfigPath=", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("orbitmq: ")
    assert reason in line


@pytest.mark.slow
def test_bad_value_in_a_file_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "n.conf"
    file.write_text("listenPort=0\norderMessageEnable=maybe\n")
    done = orbitmq("namesrv", "-c", str(file))
    assert done.returncode == 1
    assert f"{file}:2: orderMessageEnable='maybe' is not true or false" in done.stderr


@pytest.mark.slow
def test_server_refuses_to_run_without_assertions() -> None:
    done = orbitmq("namesrv", "--port", "0", "--set", "kvConfigPath=", python=("-O",))
    assert done.returncode == 1
    assert "python -O" in done.stderr


@pytest.mark.slow
def test_command_offers_what_is_there_and_knows_its_version() -> None:
    shown = orbitmq("--help")
    assert shown.returncode == 0
    assert "namesrv" in shown.stdout
    assert orbitmq("--version").stdout == f"orbitmq, version {__version__}, {KERNEL} kernel\n"
    unknown = orbitmq("nonsense")
    assert unknown.returncode == 2
    assert "No such command" in unknown.stderr


@pytest.mark.slow
def test_importing_the_command_stays_cheap() -> None:
    # Importing a server costs ten times as much as parsing a command line: --help must not pay for it.
    check = (
        "import sys, orbitmq.cli.main; heavy = {'asyncio', 'msgspec', 'uvloop', 'ssl', 'rich'} & sys.modules.keys();"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        (sys.executable, "-c", check), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
