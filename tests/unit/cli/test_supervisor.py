"""``orbitmq broker --processes``: children that start, end, restart and stop, with processes that exist in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orbitmq.cli.servers import STOP_AT_EOF, read_broker_settings
from orbitmq.cli.supervisor import Child, RestartPolicy, Supervisor, broker_children
from orbitmq.errors import ConfigError

A, B = Child("a", ("run", "a")), Child("b", ("run", "b"))


class _Process:
    """Prints its lines, and ends when its input closes or ``end`` is called."""

    def __init__(self, pid: int, lines: tuple[bytes, ...], *, obeys: bool) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.killed = False
        self.stdout, self.stdin = asyncio.StreamReader(), self
        self._ended = asyncio.Event()
        self._obeys = obeys
        for line in lines:
            self.stdout.feed_data(line)
        if not lines:
            self.end(1)

    def end(self, status: int) -> None:
        if self.returncode is None:
            self.returncode = status
            self.stdout.feed_eof()
            self._ended.set()

    def close(self) -> None:
        """Of its standard input."""
        if self._obeys:
            self.end(0)

    def kill(self) -> None:
        self.killed = True
        self.end(-9)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


class _Machine:
    """Starts processes; ``silent`` names those that end before they are ready, once each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[tuple[str, _Process]] = []
        self.silent: list[str] = []
        self.stubborn: set[str] = set()
        self.slept: list[float] = []
        self.on_sleep: Callable[[], Awaitable[None]] | None = None
        monkeypatch.setattr("orbitmq.cli.supervisor.asyncio.create_subprocess_exec", self._exec)
        self._zero = asyncio.sleep
        monkeypatch.setattr("orbitmq.cli.supervisor.asyncio.sleep", self._slept)

    async def _exec(self, *command: str, env: dict[str, str], start_new_session: bool, **_: Any) -> _Process:
        assert start_new_session, "Ctrl-C would reach the children"
        assert env[STOP_AT_EOF] == "1"
        name = command[-1]
        is_silent = name in self.silent
        if is_silent:
            self.silent.remove(name)
        number = len(self.started)
        lines = () if is_silent else (b"broker %s, address 10.0.0.1:%d, ready\n" % (name.encode(), number),)
        process = _Process(number, lines, obeys=name not in self.stubborn)
        self.started.append((name, process))
        return process

    async def _slept(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.on_sleep is not None:
            await self.on_sleep()
        await self._zero(0)


def test_children_start_together_and_stop_when_their_input_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        machine = _Machine(monkeypatch)
        async with Supervisor([A, B]) as running:
            assert running.addresses == ("10.0.0.1:0", "10.0.0.1:1")
            assert running.process_ids == {"a": 0, "b": 1}
        assert [process.returncode for _, process in machine.started] == [0, 0]
        assert not any(process.killed for _, process in machine.started)

    asyncio.run(work())


def test_child_that_does_not_start_stops_the_others_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        machine = _Machine(monkeypatch)
        machine.silent = ["b"]
        with pytest.raises(ConfigError, match=r"b did not start \(exit status 1\)"):
            async with Supervisor([A, B]):
                pytest.fail("it must not be entered")
        assert dict(machine.started)["a"].returncode == 0

    asyncio.run(work())


def test_child_that_ends_is_restarted_after_longer_and_longer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        machine = _Machine(monkeypatch)
        told: list[tuple[str, str]] = []
        restarted = asyncio.Event()

        def on_restart(name: str, line: str) -> None:
            told.append((name, line))
            restarted.set()

        policy = RestartPolicy(first_s=1.0, most_s=4.0)
        async with Supervisor([A], policy, on_restart) as running:
            machine.silent = ["a"] * 3
            machine.started[0][1].end(1)
            await asyncio.wait_for(restarted.wait(), 5)
            assert machine.slept == [1.0, 2.0, 4.0, 4.0]
            assert told == [("a", "broker a, address 10.0.0.1:4, ready")]
            assert running.process_ids == {"a": 4}

    asyncio.run(work())


def test_child_that_does_not_stop_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        machine = _Machine(monkeypatch)
        machine.stubborn = {"a"}
        async with Supervisor([A, B], RestartPolicy(stop_s=0.01)):
            pass
        assert [process.killed for _, process in machine.started] == [True, False]

    asyncio.run(work())


def test_child_that_waits_for_its_restart_is_not_started_during_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        machine = _Machine(monkeypatch)
        sleeping, wake = asyncio.Event(), asyncio.Event()

        async def on_sleep() -> None:
            sleeping.set()
            await wake.wait()

        machine.on_sleep = on_sleep
        machine.stubborn = {"b"}
        running = Supervisor([A, B])
        await running.__aenter__()
        machine.started[0][1].end(1)
        await sleeping.wait()
        loop = asyncio.get_running_loop()
        loop.call_soon(wake.set)  # while b, which takes its time, is awaited
        loop.call_later(0.02, machine.started[1][1].end, 0)
        await running.__aexit__(None, None, None)
        assert [name for name, _ in machine.started] == ["a", "b"], "nobody would stop a third process"

    asyncio.run(work())


def test_brokers_differ_in_name_store_ports_and_log(tmp_path: Path) -> None:
    shared = tmp_path / "broker.conf"
    shared.write_text("brokerName=shared\n")
    settings = read_broker_settings(
        None,
        [
            "brokerName=b",
            f"storePathRootDir={tmp_path}/s",
            f"storePathCommitLog={tmp_path}/x,{tmp_path}/y",
            "listenPort=10911",
            "haListenPort=10930",
            "metricsPromExporterPort=0",
        ],
    )
    one, two = broker_children((0, 1), settings, ["--set", "k=v"], str(shared), str(tmp_path / "broker.log"))
    assert (one.name, two.name) == ("b-0", "b-1")
    own = [word for word in two.command if "=" in word]
    assert own[0] == "k=v"
    assert set(own[1:]) == {
        "brokerName=b-1",
        f"storePathRootDir={tmp_path}/s/b-1",
        f"storePathCommitLog={tmp_path}/x/b-1,{tmp_path}/y/b-1",
        "listenPort=10921",
        "haListenPort=10940",
    }, "a port of 0 stays 0"
    assert str(tmp_path / "broker-1.log") in two.command
    assert (tmp_path / "s/b-1.conf").read_text() == "brokerName=shared\n"


def test_own_copy_of_the_configuration_is_replaced_only_by_a_newer_file(tmp_path: Path) -> None:
    shared, own = tmp_path / "broker.conf", tmp_path / "s/b-0.conf"
    shared.write_text("a=1\n")
    settings = read_broker_settings(None, ["brokerName=b", f"storePathRootDir={tmp_path}/s"])
    broker_children((0,), settings, (), str(shared))
    own.write_text("a=changed by request\n")
    os.utime(shared, (1, 1))
    broker_children((0,), settings, (), str(shared))
    assert own.read_text() == "a=changed by request\n"
    shared.write_text("a=2\n")
    os.utime(own, (1, 1))
    broker_children((0,), settings, (), str(shared))
    assert own.read_text() == "a=2\n"
