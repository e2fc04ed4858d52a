"""Single sends that share requests, without a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orbitmq.client import Message
from orbitmq.client.options import ProducerOptions
from orbitmq.client.produce.accumulator import Accumulator
from orbitmq.runtime.tasks import TaskOwner


def test_a_flush_ends_although_a_send_that_waits_for_room_is_cancelled() -> None:
    async def run() -> None:
        tasks = TaskOwner("test")

        async def send_batch(messages: list[Message]) -> list[Any]:
            await asyncio.sleep(0.05)
            waiting.cancel()  # before it can use the space that becomes free
            return [None] * len(messages)

        options = ProducerOptions(batch_linger_s=0.01, batch_total_bytes=100)
        accumulator = Accumulator(options, tasks, send_batch, lambda message: None)
        first = asyncio.create_task(accumulator.send(Message("T", "x" * 90), None))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(accumulator.send(Message("T", "x" * 20), None))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await accumulator.drain(None)
            await first
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await tasks.close()

    asyncio.run(run())
