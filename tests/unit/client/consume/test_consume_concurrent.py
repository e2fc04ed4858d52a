"""Synchronous functions as handlers: passed to threads in groups, and none waits for a slow one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.support.waiting import until_async
from tests.unit.client.messages import QUEUE, received

from orbitmq.client.callables import UserCalls
from orbitmq.client.consume.consume_concurrent import ConcurrentService
from orbitmq.client.consume.handlers import Handler, HandlerPool, Outcome
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.message import ReceivedMessage
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.runtime.tasks import TaskOwner


class Bench:
    """A service that records what it finishes."""

    def __init__(self, workers: int = 4) -> None:
        self.finished: list[int] = []
        self.failed: list[tuple[int, Outcome]] = []
        self.tasks = TaskOwner("test")
        self.calls = UserCalls(workers, "test")
        self.queue = ProcessQueue(QUEUE, 0, count_max=100_000, bytes_max=1 << 30)
        self.service = ConcurrentService(
            HandlerPool(self.tasks, self.calls, SYSTEM_CLOCK, wrap=None), self, workers
        )

    def finish(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self.finished += [message.queue_offset for message in messages]

    async def finish_other(
        self, held: ProcessQueue, messages: list[ReceivedMessage], outcome: Outcome
    ) -> list[ReceivedMessage]:
        self.failed += [(message.queue_offset, outcome) for message in messages]
        return []

    def submit(self, handler: Handler, offsets: range) -> None:
        self.service.submit(self.queue, handler, [received(offset) for offset in offsets])

    async def until(self, condition: Callable[[], bool]) -> None:
        await until_async(condition)

    async def close(self) -> None:
        await self.service.stop(5.0)
        self.calls.close()
        await self.tasks.close()


def test_quick_functions_are_handed_over_in_groups_to_few_threads() -> None:
    handed_over: list[str] = []

    async def run() -> None:
        bench = Bench(workers=20)
        in_thread = bench.calls.in_thread

        def counted(function: Callable[..., object], *arguments: object) -> asyncio.Future[object]:
            handed_over.append(threading.current_thread().name)
            return in_thread(function, *arguments)

        bench.calls.in_thread = counted  # type: ignore[method-assign]  # counts, and does the same
        bench.submit(Handler(lambda message: None, None), range(20_000))
        await bench.until(lambda: len(bench.finished) == 20_000)
        assert sorted(bench.finished) == list(range(20_000))
        await bench.close()

    asyncio.run(run())
    assert len(handed_over) < 2_000, "ten and more a time, with the first ones alone"


@pytest.mark.parametrize("stuck", [0, 1_500, 2_999])
def test_neighbours_of_a_call_that_waits_are_handled_by_others(stuck: int) -> None:
    release = threading.Event()
    calls: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        calls.append(message.queue_offset)
        if message.queue_offset == stuck:
            assert release.wait(20)

    async def run() -> None:
        bench = Bench()
        bench.submit(Handler(handle, None), range(3_000))
        # Those handled by the waiting thread are finished with their group, all others immediately.
        await bench.until(lambda: len(calls) == 3_000)
        release.set()
        await bench.until(lambda: len(bench.finished) == 3_000)
        await bench.close()

    asyncio.run(run())
    assert sorted(calls) == list(range(3_000)), "each once"


def test_slow_functions_run_side_by_side() -> None:
    barrier = threading.Barrier(4)

    async def run() -> None:
        bench = Bench(workers=4)
        bench.submit(Handler(lambda message: barrier.wait(20) and None, None), range(40))
        await bench.until(lambda: len(bench.finished) == 40)
        await bench.close()

    asyncio.run(run())


def test_outcomes_of_a_group_stay_with_their_messages() -> None:
    def handle(message: ReceivedMessage) -> None:
        if message.queue_offset % 7 == 0:
            raise ValueError(message.queue_offset)

    async def run() -> None:
        bench = Bench()
        bench.submit(Handler(handle, None), range(2_000))
        await bench.until(lambda: len(bench.finished) + len(bench.failed) == 2_000)
        assert sorted(offset for offset, _ in bench.failed) == list(range(0, 2_000, 7))
        assert all(str(outcome.error) == str(offset) for offset, outcome in bench.failed)
        await bench.close()

    asyncio.run(run())


def test_worker_survives_an_error_after_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(message: ReceivedMessage) -> None:
        raise ValueError

    async def succeed(message: ReceivedMessage) -> None: ...

    async def run() -> None:
        bench = Bench(workers=1)
        bench.failed = cast(Any, None)  # what follows a failure raises
        bench.submit(Handler(fail, None), range(3))
        bench.submit(Handler(succeed, None), range(3, 20))
        await bench.until(lambda: len(bench.finished) == 17)
        await bench.close()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["worker failed and continues"] * 3
