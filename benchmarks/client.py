"""Our client and Apache's Java client against one and the same broker, in one run.

    python -m benchmarks.client [--broker ours|apache] [--seconds 4] [--body 128] [--java] [--uvloop]
                                [--rocketmq-python DIRECTORY]

Sync is one send after the other; async keeps 100 on the way; batches hold 32 messages; push consuming counts messages
that reached a coroutine handler and were acknowledged. CPU is that of the client process alone. The Java figures are
those of Apache's own benchmark programs. Figures of one machine compare only with each other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from tests.apache.harness import LATEST, ApacheBroker, ApacheNamesrv, create_topic, run_benchmark
from tests.apache.ours import orbit_cluster

from orbitmq.client import ConsumeFromWhere, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage

IN_FLIGHT: Final = 100
BATCH: Final = 32


class Figure:
    """Messages and what they cost."""

    def __init__(self) -> None:
        self.started, self.cpu = time.perf_counter(), time.process_time()
        self.count = 0

    def result(self) -> dict[str, float]:
        seconds = time.perf_counter() - self.started
        cpu = time.process_time() - self.cpu
        return {
            "messages_per_s": round(self.count / seconds),
            "cpu_us_per_message": round(cpu * 1e6 / max(1, self.count), 2),
        }


async def measure(seconds: float, send: Callable[[], Awaitable[int]], tasks: int) -> dict[str, float]:
    """Call ``send`` from that many tasks until the time is over."""
    figure = Figure()
    deadline = figure.started + seconds

    async def one() -> None:
        while time.perf_counter() < deadline:
            sent = await send()  # not inside the sum: that would read the count before waiting
            figure.count += sent

    await asyncio.gather(*(one() for _ in range(tasks)))
    return figure.result()


async def sends(address: str, topic: str, body: bytes, seconds: float) -> dict[str, Any]:
    async with Producer("bench-producer", address) as producer:

        async def single() -> int:
            await producer.send(Message(topic, body))
            return 1

        async def batch() -> int:
            await producer.send_batch([Message(topic, body) for _ in range(BATCH)])
            return BATCH

        await measure(0.5, single, IN_FLIGHT)
        return {
            "sync": await measure(seconds, single, 1),
            "async_100": await measure(seconds, single, IN_FLIGHT),
            "batch_32": await measure(seconds, batch, 4),
        }


async def consumes(address: str, topic: str, seconds: float, count_max: int) -> dict[str, float]:
    """Consume what the sends left in the topic."""
    consumer = PushConsumer(f"bench-{time.time_ns()}", address, from_where=ConsumeFromWhere.FIRST_OFFSET)
    figure = Figure()
    done = asyncio.Event()

    @consumer.listen(topic)
    async def handle(message: ReceivedMessage) -> None:
        figure.count += 1
        if figure.count >= count_max:
            done.set()

    figure.started, figure.cpu = time.perf_counter(), time.process_time()
    async with consumer:
        try:
            async with asyncio.timeout(seconds):
                await done.wait()
        except TimeoutError:
            pass
        return figure.result()


@contextmanager
def servers(kind: str) -> Iterator[tuple[Any, Any]]:
    if kind == "ours":
        with orbit_cluster() as cluster:
            yield cluster.namesrv, cluster.broker
    else:
        with ApacheNamesrv(LATEST) as namesrv, ApacheBroker(LATEST, namesrv) as broker:
            yield namesrv, broker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=("ours", "apache"), default="ours")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--java", action="store_true", help="also run Apache's own programs (20 s more)")
    parser.add_argument("--uvloop", action="store_true", help="run our client on uvloop")
    parser.add_argument(
        "--rocketmq-python",
        metavar="DIRECTORY",
        help="where the package rocketmq 0.4.4 is installed (pip --target)",
    )
    arguments = parser.parse_args()
    body = b"x" * arguments.body
    results: dict[str, Any] = {"broker": arguments.broker, "body_bytes": arguments.body}
    with servers(arguments.broker) as (namesrv, broker):
        create_topic(namesrv, broker, "bench", queue_count=8)
        factory = uvloop.new_event_loop if arguments.uvloop else None
        with asyncio.Runner(loop_factory=factory) as runner:
            results["orbitmq"] = runner.run(sends(namesrv.address, "bench", body, arguments.seconds))
            stored = sum(
                int(figures["messages_per_s"] * arguments.seconds) for figures in results["orbitmq"].values()
            )
            results["orbitmq"]["push"] = runner.run(
                consumes(namesrv.address, "bench", arguments.seconds, int(stored * 0.9))
            )
        if arguments.rocketmq_python:
            asyncio.run(start_at_zero(namesrv.address))
            results["rocketmq-python"] = rocketmq_python(
                arguments.rocketmq_python, namesrv.address, str(arguments.body), str(arguments.seconds)
            )
        if arguments.java:
            results["java"] = java(namesrv, arguments.body)
    print(json.dumps(results, indent=2))


async def start_at_zero(address: str) -> None:
    """Let the group of the PyPI package read all that is there."""
    async with PullConsumer("bench-pypi-readers", address) as consumer:
        for queue in await consumer.fetch_queues("bench"):
            await consumer.update_offset(queue, 0)


def rocketmq_python(directory: str, *arguments: str) -> Any:
    """The PyPI package, in a process of its own; the topic already holds what our client sent."""
    address, *rest = arguments
    script = Path(__file__).with_name("client_rocketmq_python.py")
    ended = subprocess.run(
        [sys.executable, str(script), address, "bench", *rest],
        env=os.environ | {"PYTHONPATH": directory},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": ended.stderr[-300:]}


def java(namesrv: Any, body_bytes: int) -> dict[str, float]:
    """Apache's programs: 64 threads sending, then a consumer of what is there."""
    size = ("-s", str(body_bytes))
    sync = run_benchmark("producer", namesrv, topic="bench", args=("-w", "64", *size))
    batch = run_benchmark("batch-producer", namesrv, topic="bench", args=("-w", "4", "-b", "32", *size))
    return {"producer_64_threads": sync[-1].messages_per_s, "batch_32": batch[-1].messages_per_s}


if __name__ == "__main__":
    main()
