"""Tests the taskiq broker against an orbitmq broker: taskiq's receiver in this process, and its worker command."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from taskiq import Context, TaskiqDepends
from taskiq.api import run_receiver_task
from taskiq.brokers.inmemory_broker import InmemoryResultBackend

from orbitmq import ClientClosedError, ConfigError, PushOptions
from orbitmq.testing import RunningBroker, run_broker
from orbitmq_taskiq import RocketMQBroker

_serial = itertools.count(1)
SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def new_broker(server: RunningBroker, name: str, **settings: Any) -> RocketMQBroker:
    broker = RocketMQBroker(server.name_server, topic=f"{name}-topic", group=name, **settings)
    return broker.with_result_backend(InmemoryResultBackend())


def name() -> str:
    return f"taskiq-{next(_serial)}"


@contextlib.asynccontextmanager
async def worker(broker: RocketMQBroker) -> AsyncIterator[None]:
    """Runs taskiq's receiver during the test. Unfinished tasks stay unacknowledged at the end."""
    await broker.startup()
    receiving = asyncio.ensure_future(run_receiver_task(broker))
    try:
        yield
    finally:
        receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await receiving
        await broker.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - conditions are about what taskiq did, which sets no event
        await asyncio.sleep(0.01)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def test_tasks_run_once_and_their_results_come_back(server: RunningBroker) -> None:
    server.create_topic(f"{(group := name())}-topic")
    broker = new_broker(server, group)
    calls: list[int] = []

    @broker.task
    async def double(number: int) -> int:
        calls.append(number)
        return number * 2

    @broker.task
    def plain(text: str) -> str:
        return text.upper()

    async def work() -> None:
        async with worker(broker):
            tasks = await asyncio.gather(*(double.kiq(number) for number in range(50)))
            results = [(await task.wait_result(timeout=30)).return_value for task in tasks]
            assert results == [number * 2 for number in range(50)]
            assert (await (await plain.kiq("x")).wait_result(timeout=30)).return_value == "X"
        assert sorted(calls) == list(range(50))

    run(work())


def test_task_of_a_worker_that_goes_away_is_run_by_another(server: RunningBroker) -> None:
    server.create_topic(f"{(group := name())}-topic", queue_count=1)
    entered = asyncio.Event()
    done: list[int] = []

    def make(block: bool) -> tuple[RocketMQBroker, Any]:
        broker = new_broker(server, group, consumer=PushOptions(start="first", close_wait_s=0.2))

        @broker.task(task_name="job")
        async def job(number: int) -> None:
            if block and number == 1:
                entered.set()
                await asyncio.Event().wait()
            done.append(number)

        return broker, job

    async def work() -> None:
        first, job = make(block=True)
        async with worker(first):
            for number in range(4):
                await job.kiq(number)
            await entered.wait()
            await until(lambda: len(done) >= 3)
        second, _ = make(block=False)
        async with worker(second):
            await until(lambda: {0, 1, 2, 3} <= set(done))
        # The previous task is not repeated; later ones may be, since a queue is acknowledged in order.
        assert done.count(0) == 1
        assert set(done) == {0, 1, 2, 3}

    run(work())


def test_acknowledged_by_hand_and_failed_tasks_are_not_repeated(server: RunningBroker) -> None:
    server.create_topic(f"{(group := name())}-topic")
    ran: list[str] = []

    def make() -> tuple[RocketMQBroker, Any, Any]:
        broker = new_broker(server, group)

        @broker.task(task_name="by-hand", ack_type="manual")
        async def by_hand(context: Context = TaskiqDepends()) -> None:  # noqa: B008 - taskiq's way to inject
            ran.append("by hand")
            await context.ack()

        @broker.task(task_name="fails")
        async def fails() -> None:
            ran.append("fails")
            raise ValueError("wrong")

        return broker, by_hand, fails

    async def work() -> None:
        broker, by_hand, fails = make()
        async with worker(broker):
            await (await by_hand.kiq()).wait_result(timeout=30)
            result = await (await fails.kiq()).wait_result(timeout=30)
            assert result.is_err
        again, by_hand, _ = make()
        async with worker(again):
            await (await by_hand.kiq()).wait_result(timeout=30)
        assert ran == ["by hand", "fails", "by hand"]

    run(work())


def test_labels_delay_and_keep_order(server: RunningBroker) -> None:
    server.create_topic(f"{(group := name())}-topic")
    broker = new_broker(server, group, orderly=True)
    ran: list[tuple[str, float]] = []

    @broker.task
    async def note(text: str) -> None:
        ran.append((text, time.monotonic()))

    async def work() -> None:
        async with worker(broker):
            started = time.monotonic()
            late = await note.kicker().with_labels(delay=0.5).kiq("late")
            for number in range(20):
                await note.kicker().with_labels(shard_key="one").kiq(f"{number}")
            await late.wait_result(timeout=30)
            await until(lambda: len(ran) >= 21)
        assert [text for text, _ in ran if text != "late"] == [str(number) for number in range(20)]
        assert dict(ran)["late"] - started >= 0.5

    run(work())


def test_broker_that_was_not_started_or_cannot_be_says_so(server: RunningBroker) -> None:
    broker = new_broker(server, name())

    @broker.task
    async def anything() -> None: ...

    async def work() -> None:
        with pytest.raises(Exception) as caught:
            await anything.kiq()
        assert isinstance(caught.value.__cause__ or caught.value, ClientClosedError)

    run(work())
    with pytest.raises(ConfigError):
        PushOptions(start="soon")  # type: ignore[arg-type]  # what is refused


MODULE = """
import asyncio, os
from orbitmq_taskiq import RocketMQBroker

broker = RocketMQBroker(os.environ["NAMESRV"], topic=os.environ["TOPIC"], group=os.environ["GROUP"])

@broker.task(task_name="slow")
async def slow(number: int) -> None:
    with open(os.environ["OUT"], "a") as out:
        out.write(f"begin {number}\\n")
    if os.environ["HANG"] == "1":
        await asyncio.sleep(600)
    with open(os.environ["OUT"], "a") as out:
        out.write(f"end {number}\\n")
"""


@pytest.mark.slow
def test_worker_command_killed_in_a_task_loses_nothing(server: RunningBroker, tmp_path: Path) -> None:
    topic = server.create_topic(f"{(group := name())}-topic", queue_count=1)
    (tmp_path / "tasks_module.py").write_text(MODULE)
    out = tmp_path / "out"
    out.touch()
    paths = [str(SOURCE), str(tmp_path), *(path for path in sys.path if path)]
    settings = {"NAMESRV": server.name_server, "TOPIC": topic, "GROUP": group, "OUT": str(out)}

    def start(hang: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "taskiq", "worker", "tasks_module:broker", "--workers", "1"]
        environment = {**os.environ, **settings, "HANG": hang, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)

    def until_written(condition: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition(out.read_text()):
            assert time.monotonic() < deadline, out.read_text()
            time.sleep(0.05)

    async def send() -> None:
        broker = new_broker(server, group)

        @broker.task(task_name="slow")
        async def slow(number: int) -> None: ...

        await broker.startup()
        for number in range(3):
            await slow.kiq(number)
        await broker.shutdown()

    first = start("1")
    try:
        run(send())
        until_written(lambda text: text.count("begin") == 3)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(30)
        second = start("0")
        try:
            until_written(lambda text: all(f"end {number}" in text for number in range(3)))
        finally:
            second.send_signal(signal.SIGTERM)
            second.wait(30)
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(30)
