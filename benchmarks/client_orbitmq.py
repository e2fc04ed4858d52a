"""Runs our client under one load of ``benchmarks.client``, until it is killed.

    python client_orbitmq.py CASE NAME_SERVER TOPIC BODY_BYTES BATCH COUNTER_FILE

The file holds the number of messages completed, as eight bytes, big-endian.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from orbitmq.client import Message, Producer, PushConsumer, ReceivedMessage, sync

IN_FLIGHT: Final = 100
BATCHES_IN_FLIGHT: Final = 4
SLEEP_S: Final = 0.001
_NUMBER: Final = struct.Struct(">q")


class Counter:
    """The number of messages completed, written to the file every few milliseconds."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _NUMBER.size)
        self.parts: list[list[int]] = []
        threading.Thread(target=self._publish, daemon=True).start()

    def part(self) -> list[int]:
        """One number for each counting thread, so that none is lost."""
        self.parts.append([0])
        return self.parts[-1]

    def _publish(self) -> None:
        while True:
            time.sleep(0.01)
            _NUMBER.pack_into(self._shared, 0, sum(part[0] for part in self.parts))


def in_threads(count: int, counter: Counter, send: Callable[[], int]) -> None:
    def run() -> None:
        part = counter.part()
        while True:
            part[0] += send()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def in_tasks(count: int, counter: Counter, send: Callable[[], Awaitable[int]]) -> None:
    part = counter.part()

    async def run() -> None:
        while True:
            done = await send()  # not inside the sum: that would read the count before waiting
            part[0] += done

    await asyncio.gather(*(run() for _ in range(count)))


async def asyncio_sends(
    case: str, address: str, topic: str, body: bytes, batch: int, counter: Counter
) -> None:
    async with Producer("bench-asyncio", address, send_timeout_s=30.0) as producer:

        async def single() -> int:
            await producer.send(Message(topic, body))
            return 1

        async def several() -> int:
            await producer.send_batch([Message(topic, body) for _ in range(batch)])
            return batch

        if case == "batches":
            await in_tasks(BATCHES_IN_FLIGHT, counter, several)
        else:
            await in_tasks(IN_FLIGHT if case == "async_100" else 1, counter, single)


def plain_sends(case: str, address: str, topic: str, body: bytes, batch: int, counter: Counter) -> None:
    with sync.Producer("bench-plain", address, send_timeout_s=30.0) as producer:

        def single() -> int:
            producer.send(Message(topic, body))
            return 1

        def several() -> int:
            producer.send_batch([Message(topic, body) for _ in range(batch)])
            return batch

        if case == "batches_threads":
            in_threads(BATCHES_IN_FLIGHT, counter, several)
        else:
            in_threads(8 if case == "sync_8_threads" else 1, counter, single)


async def asyncio_push(case: str, address: str, topic: str, counter: Counter) -> None:
    consumer = PushConsumer(f"bench-{time.time_ns()}", address, start="first")
    part = counter.part()

    async def handle(message: ReceivedMessage) -> None:
        part[0] += 1

    async def sleep(message: ReceivedMessage) -> None:
        await asyncio.sleep(SLEEP_S)
        part[0] += 1

    consumer.subscribe(topic, handler=sleep if case == "push_sleep" else handle)
    async with consumer:
        await asyncio.Event().wait()


def plain_push(case: str, address: str, topic: str, counter: Counter) -> None:
    consumer = sync.PushConsumer(f"bench-{time.time_ns()}", address, start="first")
    local = threading.local()

    def handle(message: ReceivedMessage) -> None:
        try:
            local.part[0] += 1
        except AttributeError:
            local.part = counter.part()
            local.part[0] = 1

    def sleep(message: ReceivedMessage) -> None:
        time.sleep(SLEEP_S)
        handle(message)

    consumer.subscribe(topic, handler=sleep if case == "push_plain_sleep" else handle)
    with consumer:
        threading.Event().wait()


def main() -> None:
    case, address, topic = sys.argv[1:4]
    body, batch, counter = b"x" * int(sys.argv[4]), int(sys.argv[5]), Counter(sys.argv[6])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if case in ("push", "push_sleep"):
            runner.run(asyncio_push(case, address, topic, counter))
        elif case.startswith("push_plain"):
            plain_push(case, address, topic, counter)
        elif case in ("sync", "sync_8_threads", "batches_threads"):
            plain_sends(case, address, topic, body, batch, counter)
        else:
            runner.run(asyncio_sends(case, address, topic, body, batch, counter))


if __name__ == "__main__":
    main()
