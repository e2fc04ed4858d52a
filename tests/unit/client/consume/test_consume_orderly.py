"""Synchronous functions of an orderly consumer: called in rows on a thread, always in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.support.waiting import until_async
from tests.unit.client.messages import QUEUE, received

from orbitmq.client.callables import UserCalls
from orbitmq.client.consume.consume_orderly import OrderlyService
from orbitmq.client.consume.handler_table import HandlerTable
from orbitmq.client.consume.handlers import Handler, HandlerPool, Outcome
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import PushOptions
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.runtime.tasks import TaskOwner


class Bench:
    """A service that records what it commits."""

    def __init__(self, handle: Callable[[ReceivedMessage], object], count: int) -> None:
        self.committed: list[int] = []
        self.rows = 0
        self.tasks = TaskOwner("test")
        self.calls = UserCalls(4, "test")
        self.queue = ProcessQueue(QUEUE, 0, count_max=100_000, bytes_max=1 << 30)
        self.queue.put([received(offset) for offset in range(count)])
        handlers = HandlerTable("")
        handlers.default = Handler(handle, None)
        pool = HandlerPool(self.tasks, self.calls, SYSTEM_CLOCK, wrap=None)
        options = PushOptions(workers=4, suspend_queue_s=0.01)
        self.service = OrderlyService(pool, self, handlers, options, locks=None)
        in_thread = self.calls.in_thread

        def counted(function: Callable[..., object], *arguments: object) -> asyncio.Future[object]:
            self.rows += 1
            return in_thread(function, *arguments)

        self.calls.in_thread = counted  # type: ignore[method-assign]  # counts, and does the same

    def commit(self, held: ProcessQueue, offset: int | None = None) -> None:
        end = held.commit()
        self.committed.append(end if offset is None else offset)

    async def give_up(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        return False

    def log_failure(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """Ignores failures, which are expected here."""

    async def answer(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        raise AssertionError("no message is a request")

    async def run(self, ended: Callable[[], bool]) -> None:
        self.service.submit(self.queue)
        await until_async(ended)
        await self.service.stop(5.0)
        self.calls.close()
        await self.tasks.close()


def test_quick_functions_are_called_in_rows_and_in_order() -> None:
    seen: list[int] = []
    bench: list[Bench] = []

    async def run() -> None:
        bench.append(Bench(lambda message: seen.append(message.queue_offset), 10_000))
        await bench[0].run(lambda: bench[0].committed[-1:] == [10_000])

    asyncio.run(run())
    assert seen == list(range(10_000))
    assert bench[0].rows < 1_000, "ten and more a time, with the first ones alone"
    assert bench[0].committed == sorted(bench[0].committed)


def test_failure_in_a_row_is_tried_again_before_those_after_it() -> None:
    seen: list[int] = []
    failed: set[int] = set()
    committed: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset % 500 == 499 and message.queue_offset not in failed:
            failed.add(message.queue_offset)
            raise ValueError("once")

    async def run() -> None:
        bench = Bench(handle, 3_000)
        await bench.run(lambda: bench.committed[-1:] == [3_000])
        committed.extend(bench.committed)

    asyncio.run(run())
    expected = [offset for n in range(3_000) for offset in ([n, n] if n % 500 == 499 else [n])]
    assert seen == expected
    assert committed == sorted(committed)
    assert {499, 999}.issubset(committed), "the stored offset stops before the one that failed"


def test_row_ends_with_the_call_during_which_its_queue_is_given_up() -> None:
    """The next owner must find no call in progress, and begin after the last call made here."""
    seen: list[int] = []
    benches: list[Bench] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1_000:
            benches[0].queue.ending = True  # as the rebalance on the loop's thread does meanwhile

    async def run() -> None:
        benches.append(Bench(handle, 3_000))
        await benches[0].run(lambda: benches[0].queue.ending and not benches[0].queue.runner_active)

    asyncio.run(run())
    assert seen == list(range(1_001))
    assert benches[0].committed[-1] == 1_001
    assert not benches[0].queue.consuming
    first = benches[0].queue.first()
    assert first is not None
    assert first.queue_offset == 1_001


def test_call_that_takes_long_ends_its_row_and_is_committed() -> None:
    release = threading.Event()
    seen: list[int] = []
    committed: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 2_000:
            assert release.wait(20)

    async def run() -> None:
        bench = Bench(handle, 3_000)
        cut = bench.service._cut

        def cut_and_release(row: Any) -> None:
            cut(row)
            if seen[-1] == 2_000:
                release.set()

        bench.service._cut = cut_and_release  # type: ignore[method-assign]  # not before the cut, however slow we are
        await bench.run(lambda: bench.committed[-1:] == [3_000])
        committed.extend(bench.committed)

    asyncio.run(run())
    assert seen == list(range(3_000))
    assert 2_001 in committed


def test_seek_during_a_row_brings_nothing_of_before_back() -> None:
    seen: list[int] = []
    benches: list[Bench] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1_000:
            benches[0].queue.clear()

    async def run() -> None:
        benches.append(Bench(handle, 3_000))
        queue = benches[0].queue
        await benches[0].run(lambda: 1_000 in seen and not queue.runner_active)
        assert not queue.messages

    asyncio.run(run())
