"""Code that blocks the event loop is counted and named in the log."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from tests.unit.transport.test_connection import connected, requests

from orbitmq.runtime import stalls
from orbitmq.runtime.stalls import NAMES_MAX, OTHERS, Stalls
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute, Router
from orbitmq.wire.frame import Frame, FrameDecoder, encode_response


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Stalls:
    found = Stalls()
    monkeypatch.setattr(stalls, "STALLS", found)
    monkeypatch.setattr("orbitmq.transport.connection.STALLS", found)
    return found


def hold(seconds: float = 0.03) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_a_request_that_holds_the_loop_is_counted_and_logged_once(
    seen: Stalls, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(frame: Frame, peer: Connection) -> None:
        hold()

    async def run() -> None:
        connection, _ = connected(Router([RawRoute(34, slow)]))
        connection.data_received(requests(1, 34))
        connection.data_received(requests(1, 34))

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert seen.by_name["request-34"].count == 2
    assert seen.by_name["request-34"].longest_s >= 0.03
    (line,) = [record.getMessage() for record in caplog.records if "event loop held" in record.getMessage()]
    assert "by=request-34" in line
    assert "peer=10.0.0.1:4000" in line


def test_a_read_of_answers_alone_that_holds_the_loop_is_counted_and_the_connection_lives(
    seen: Stalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> int:
        connection, transport = connected()
        call = connection.call(34, timeout_s=5.0)
        complete = connection._complete

        def slowly(frame: Frame) -> None:
            hold()
            complete(frame)

        monkeypatch.setattr(Connection, "_complete", lambda self, frame: slowly(frame))
        [request] = FrameDecoder().feed(b"".join(transport.writes))
        connection.data_received(encode_response(0, request.opaque))
        return (await call).code

    assert asyncio.run(run()) == 0
    assert seen.by_name["answers"].count == 1


def test_a_job_and_a_task_that_hold_the_loop_are_named(seen: Stalls) -> None:
    rounds = 0

    async def run() -> None:
        nonlocal rounds
        tasks = TaskOwner("test", watched=True)
        done = asyncio.Event()

        def job() -> None:
            nonlocal rounds
            rounds += 1
            hold()
            if rounds == 2:
                done.set()

        async def quick() -> int:
            await asyncio.sleep(0)
            return 7

        task = tasks.start(quick(), "quick")
        tasks.start(every(0.001, job), "sweep")
        assert await task == 7
        await done.wait()
        await tasks.close()

    asyncio.run(run())
    assert set(seen.by_name) == {"sweep"}
    assert seen.by_name["sweep"].count == 2


def test_an_error_and_a_cancellation_pass_through_a_measured_task(seen: Stalls) -> None:
    async def run() -> list[str]:
        tasks = TaskOwner("test", watched=True)
        ends: list[str] = []

        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("as it was")

        async def waits() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        failing, waiting = tasks.start(fails(), "fails"), tasks.start(waits(), "waits")
        await asyncio.wait({failing})
        ends.append(str(failing.exception()))
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        await tasks.close()
        return ends

    assert asyncio.run(run()) == ["as it was", "cancelled"]


def test_names_are_bounded() -> None:
    found = Stalls()
    for number in range(NAMES_MAX * 2):
        found.note(f"request-{number}", 1.0)
    assert len(found.by_name) <= NAMES_MAX + 1
    assert found.by_name[OTHERS].count >= NAMES_MAX
    assert found.count == NAMES_MAX * 2
