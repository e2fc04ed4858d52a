"""Task owners and periodic jobs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.unit.transport.loops import on_both_loops

from orbitmq.runtime.tasks import TaskOwner, every


@on_both_loops
async def test_close_cancels_what_runs_and_waits_for_its_clean_up() -> None:
    owner = TaskOwner("owner")
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("done")

    task = owner.start(work(), "work")
    assert task.get_name() == "owner.work"
    await asyncio.sleep(0)
    await owner.close()
    assert cleaned == ["done"]
    assert task.cancelled()


@on_both_loops
async def test_start_after_close_is_refused_and_leaves_no_coroutine_behind() -> None:
    owner = TaskOwner("owner")
    await owner.close()

    async def work() -> None: ...

    with pytest.raises(RuntimeError, match="owner is closed; cannot start late"):
        owner.start(work(), "late")


@on_both_loops
async def test_death_of_a_task_is_reported_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = []
    owner = TaskOwner("owner", on_failure=failures.append)

    async def work() -> None:
        raise ValueError("broken")

    await asyncio.wait([owner.start(work(), "work")])
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "task failed name=owner.work")
    assert [str(failure) for failure in failures] == ["broken"]
    await owner.close()


@on_both_loops
async def test_task_that_refuses_to_stop_is_named_after_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = TaskOwner("owner")
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = owner.start(stubborn(), "stubborn")
    await asyncio.sleep(0)
    await owner.close(wait_s=0.01)
    assert [record.getMessage() for record in caplog.records] == [
        "task did not stop in time name=owner.stubborn"
    ]
    release.set()
    await task


@on_both_loops
async def test_periodic_job_goes_on_after_an_error_and_waits_for_coroutines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = TaskOwner("owner")
    rounds: list[int] = []
    enough = asyncio.Event()

    async def work() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 2:
            raise ValueError("one bad round")
        if len(rounds) == 4:
            enough.set()

    owner.start(every(0.001, work, first_s=0), "job")
    await enough.wait()
    await owner.close()
    assert rounds[:4] == [0, 1, 2, 3]
    (record,) = caplog.records
    assert "periodic job failed" in record.getMessage()


@on_both_loops
async def test_periodic_plain_function_waits_one_period_first() -> None:
    owner = TaskOwner("owner")
    calls: list[Any] = []
    owner.start(every(60, lambda: calls.append(1)), "job")
    await asyncio.sleep(0.005)
    assert calls == []
    await owner.close()
