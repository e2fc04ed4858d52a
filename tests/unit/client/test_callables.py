"""The threads of plain functions: bounded, reused, and never waited for at the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from tests.support.waiting import LIMIT_S

from orbitmq.client.callables import UserCalls

_STUCK = """
import asyncio, threading
from orbitmq.client.callables import UserCalls

began = threading.Event()

def handle():
    began.set()
    threading.Event().wait()

async def main():
    calls = UserCalls(2, "test")
    stuck = calls.in_thread(handle)
    while not began.is_set():
        await asyncio.sleep(0.001)
    calls.close()
    stuck.cancel()

asyncio.run(main())
print("stopped")
"""


def test_a_process_ends_although_a_function_never_returns() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STUCK], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr


def test_calls_share_a_bounded_number_of_threads_and_reuse_idle_ones() -> None:
    seen: set[str] = set()
    both = threading.Barrier(2, timeout=LIMIT_S)

    def work(meet: bool) -> str:
        if meet:
            both.wait()
        seen.add(threading.current_thread().name)
        return threading.current_thread().name

    async def run() -> None:
        calls = UserCalls(2, "bounded")
        await asyncio.gather(*(calls.in_thread(work, True) for _ in range(2)))
        await asyncio.gather(*(calls.in_thread(work, False) for _ in range(100)))
        calls.close()

    asyncio.run(run())
    assert seen == {"bounded_0", "bounded_1"}


def test_close_cancels_calls_that_wait_and_refuses_others() -> None:
    began, release = threading.Event(), threading.Event()

    def stuck() -> str:
        began.set()
        release.wait(LIMIT_S)
        return "done"

    async def run() -> None:
        calls = UserCalls(1, "closed")
        running = calls.in_thread(stuck)
        await asyncio.to_thread(began.wait, LIMIT_S)
        waiting = calls.in_thread(print)
        calls.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(RuntimeError, match="closed"):
            calls.in_thread(print)
        release.set()
        assert await running == "done"

    asyncio.run(run())


def test_an_exception_reaches_the_caller() -> None:
    async def run() -> None:
        calls = UserCalls(1, "failing")
        with pytest.raises(ValueError, match="x"):
            await calls.in_thread(int, "x")
        assert await calls.in_thread(int, "7") == 7
        calls.close()

    asyncio.run(run())
