"""The service and the worker of examples/ as processes: restart, killed master, outage, slow handlers."""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.servers import create_topic
from tests.support.ports import free_ports
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MEMORY_GROWTH_MAX = 48 * 1024 * 1024


class Program:
    """A process whose log is kept line by line."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def memory(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self._reading.join(10)
            assert self.process.stderr is not None
            self.process.stderr.close()


class Shop:
    """Service, worker, and the orders known to the customers."""

    def __init__(self, name_server: str, directory: Path) -> None:
        port = free_ports()[0]
        self._database = directory / "orders.db"
        self._serial = itertools.count(1)
        settings = {"NAMESRV_ADDR": name_server, "ORDERS_DB": str(self._database)}
        self.service = Program(
            "-m",
            "uvicorn",
            "examples.orders_service:app",
            "--port",
            str(port),
            "--log-level",
            "warning",
            **settings,
        )
        self.worker = Program("-m", "orbitmq", "run", "examples.orders_worker:consumer", **settings)
        self.browser = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30.0)
        self.taken: list[str] = []
        """Orders the service answered with 200."""

    def order(self, *, seconds: float = 0.0) -> bool:
        name = f"order-{next(self._serial)}"
        answer = self.browser.post("/orders", json={"id": name, "amount": 1.5, "seconds": seconds})
        if answer.status_code == 200:
            self.taken.append(name)
        else:
            assert answer.status_code == 503, answer.text
        return answer.status_code == 200

    def booked(self) -> dict[str, int]:
        if not self._database.exists():
            return {}
        with closing(sqlite3.connect(self._database, timeout=30)) as connection:
            try:
                return dict(connection.execute("SELECT id, times FROM orders"))
            except sqlite3.OperationalError:  # the table does not exist yet
                return {}

    def settle(self) -> dict[str, int]:
        """Waits until all accepted orders are booked."""
        until(lambda: set(self.taken) <= set(self.booked()), "orders are lost")
        return self.booked()


@contextmanager
def shop(name_server: str, directory: Path) -> Iterator[Shop]:
    running = Shop(name_server, directory)
    try:

        def ready() -> bool:
            try:
                return running.browser.get("/ready").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, "the service does not start")
        yield running
    finally:
        running.browser.close()
        running.service.end()
        running.worker.end()
    for program in (running.service, running.worker):
        assert program.process.returncode in (0, -15), program.lines
        assert not any("Traceback" in line for line in program.lines), program.lines


@pytest.mark.slow
def test_service_and_worker_lose_nothing_in_restart_kill_outage_and_slow_handlers(tmp_path: Path) -> None:
    with (
        OrbitNamesrv() as namesrv,
        OrbitBroker(namesrv, workdir=None) as one,
        OrbitBroker(namesrv, workdir=None, brokerName="broker-b") as two,
    ):
        for broker in (one, two):
            create_topic(namesrv, broker, "orders", queue_count=4)
        with shop(namesrv.address, tmp_path) as running:
            quiet(running)
            memory = [running.service.memory(), running.worker.memory()]
            slow_handlers(running)
            during(running, one.stop, one.start)
            during(running, one.kill, lambda: time.sleep(1.0), one.start)
            outage(running, one, two)
            running.settle()
            growth = [running.service.memory() - memory[0], running.worker.memory() - memory[1]]
            assert max(growth) < MEMORY_GROWTH_MAX, growth


def quiet(running: Shop) -> None:
    """No fault: every order is accepted and booked once."""
    assert all(running.order() for _ in range(150))
    booked = running.settle()
    assert sorted(booked) == sorted(running.taken)
    assert set(booked.values()) == {1}, "none twice"


def slow_handlers(running: Shop) -> None:
    """Two handlers that take seconds delay no other order."""
    for _ in range(2):
        assert running.order(seconds=2.5)
    slow = set(running.taken[-2:])
    for _ in range(60):
        assert running.order()
    rest = set(running.taken) - slow
    until(lambda: rest <= set(running.booked()), "others waited for the slow ones", 2.0)
    assert not slow & set(running.booked())


def during(running: Shop, *trouble: Callable[[], object]) -> None:
    """Orders continue during a fault of a broker; the accepted ones are booked."""
    over = threading.Event()

    def make() -> None:
        try:
            for step in trouble:
                step()
        finally:
            over.set()

    thread = threading.Thread(target=make)
    thread.start()
    answers = []
    while not over.is_set():
        answers.append(running.order())
        time.sleep(0.01)
    thread.join()
    assert any(answers), "the other broker takes orders meanwhile"
    running.settle()


def outage(running: Shop, *brokers: OrbitBroker) -> None:
    """No broker for some time: a readable log, and work resumes afterwards."""
    before = {program: len(program.lines) for program in (running.service, running.worker)}
    for broker in brokers:
        broker.kill()
    started = time.monotonic()
    while time.monotonic() < started + 6:
        assert not running.order()
    for program, count in before.items():
        lines = program.lines[count:]
        assert len(lines) <= 20, "".join(lines)
    for broker in brokers:
        broker.start()
    until(running.order, "the service does not recover")
    running.settle()


OUTAGE_S = 65.0
LINES_A_MINUTE_MAX = 20
CUSTOMERS = 8


@pytest.mark.soak
@pytest.mark.slow
def test_service_and_worker_survive_a_minute_without_master_while_handlers_are_slow(tmp_path: Path) -> None:
    """The master is killed while handlers are running; its slave stays. Then the name server is killed as well."""
    with (
        OrbitNamesrv() as namesrv,
        OrbitBroker(namesrv, workdir=None, brokerRole="SYNC_MASTER") as master,
        OrbitBroker(namesrv, workdir=None, brokerRole="SLAVE", brokerId=1, slaveSyncInterval=1_000),
    ):
        create_topic(namesrv, master, "orders", queue_count=4)
        with shop(namesrv.address, tmp_path) as running:
            until(running.order, "the slave does not follow")
            quiet(running)
            memory = [running.service.memory(), running.worker.memory()]
            for _ in range(60):
                running.order(seconds=1.0)
            without(running, master)
            quiet_again(running)
            for _ in range(60):
                running.order(seconds=1.0)
            without(running, master, namesrv)
            quiet_again(running)
            growth = [running.service.memory() - memory[0], running.worker.memory() - memory[1]]
            assert max(growth) < MEMORY_GROWTH_MAX, growth


def without(running: Shop, *servers: OrbitBroker | OrbitNamesrv) -> None:
    """A long outage with customers that keep trying."""
    before = {program: len(program.lines) for program in (running.service, running.worker)}
    for server in servers:
        server.kill()
    started = time.monotonic()
    refused: list[bool] = []

    def try_on() -> None:
        while time.monotonic() < started + OUTAGE_S:
            refused.append(not running.order())

    customers = [threading.Thread(target=try_on) for _ in range(CUSTOMERS)]
    for customer in customers:
        customer.start()
    for customer in customers:
        customer.join()
    assert refused
    assert all(refused), "nobody could store these"
    minutes = (time.monotonic() - started) / 60
    for program, count in before.items():
        lines = program.lines[count:]
        assert len(lines) <= LINES_A_MINUTE_MAX * minutes, "".join(lines)
    for server in reversed(servers):
        server.start()
    until(running.order, "the service does not recover")
    running.settle()


def quiet_again(running: Shop) -> None:
    """After an outage every order is booked once again."""
    before = len(running.taken)
    assert all(running.order() for _ in range(100))
    booked = running.settle()
    assert {booked[name] for name in running.taken[before:]} == {1}
