"""Our client, the PyPI package ``rocketmq`` 0.4.4 and Apache's Java client against one broker, in one run.

    python -m benchmarks.client [--broker ours|apache] [--seconds 2] [--rounds 3] [--body 128]
                                [--ours-only | --no-java]

Sync is one send after the other (``orbitmq.sync``); async keeps 100 on the way; batches hold 16 messages, four on the
way (more would be compressed by the PyPI package as a whole, which no broker understands); push consuming counts
messages that reached a handler. CPU is that of the client process alone, per message. Our client and the PyPI package
take turns, and the better round of each counts: a machine is disturbed, never helped. The Java figures are those of
Apache's own benchmark programs, for reference. Figures of one run compare with each other and with nothing else.

The PyPI package is installed into a cache directory of its own; where that is not possible it is left out.
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
from tests.apache.artifacts import missing_tools
from tests.apache.harness import LATEST, ApacheBroker, ApacheNamesrv, Benchmark, create_topic
from tests.apache.ours import orbit_cluster

from orbitmq.client import (
    ConsumeFromWhere,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    sync,
)

PYPI: Final = "rocketmq==0.4.4"
IN_FLIGHT: Final = 100
BATCH: Final = 16
BATCHES_IN_FLIGHT: Final = 4
BACKLOG: Final = 300_000
Figures = dict[str, dict[str, float]]


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


def plain_sends(address: str, topic: str, body: bytes, seconds: float) -> dict[str, float]:
    with sync.Producer("bench-plain", address) as producer:
        for _ in range(200):
            producer.send(Message(topic, body))
        figure = Figure()
        deadline = figure.started + seconds
        while time.perf_counter() < deadline:
            producer.send(Message(topic, body))
            figure.count += 1
        return figure.result()


async def sends(address: str, topic: str, body: bytes, seconds: float) -> Figures:
    async with Producer("bench-producer", address) as producer:

        async def single() -> int:
            await producer.send(Message(topic, body))
            return 1

        async def batch() -> int:
            await producer.send_batch([Message(topic, body) for _ in range(BATCH)])
            return BATCH

        await measure(0.3, single, IN_FLIGHT)
        return {
            "sync_await": await measure(seconds, single, 1),
            "async_100": await measure(seconds, single, IN_FLIGHT),
            f"batch_{BATCH}": await measure(seconds, batch, BATCHES_IN_FLIGHT),
        }


async def fill(address: str, topic: str, body: bytes) -> None:
    """A backlog to consume."""
    async with Producer("bench-filler", address) as producer:
        for _ in range(BACKLOG // 3200):
            await asyncio.gather(
                *(producer.send_batch([Message(topic, body) for _ in range(64)]) for _ in range(50))
            )


async def consumes(address: str, topic: str, seconds: float) -> dict[str, float]:
    """Consume the backlog; counted from the first message on, as for the others."""
    consumer = PushConsumer(f"bench-{time.time_ns()}", address, from_where=ConsumeFromWhere.FIRST_OFFSET)
    figure = Figure()
    first, done = asyncio.Event(), asyncio.Event()

    @consumer.listen(topic)
    async def handle(message: ReceivedMessage) -> None:
        figure.count += 1
        first.set()
        if figure.count >= BACKLOG * 0.9:
            done.set()

    async with consumer:
        await first.wait()
        figure.started, figure.cpu, figure.count = time.perf_counter(), time.process_time(), 0
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


def ours(address: str, topic: str, body: bytes, seconds: float) -> Figures:
    results: Figures = {"sync": plain_sends(address, topic, body, seconds)}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results |= runner.run(sends(address, topic, body, seconds))
        results["push"] = runner.run(consumes(address, "bench-backlog", seconds))
    return results


async def start_at_zero(address: str, topic: str) -> None:
    """Let the group of the PyPI package read all that is there."""
    async with PullConsumer("bench-pypi-readers", address) as consumer:
        for queue in await consumer.fetch_queues(topic):
            await consumer.update_offset(queue, 0)


def installed() -> Path | None:
    """Where the PyPI package lies, by itself; None where it cannot be had."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(cache, "orbitmq", "pypi", PYPI.replace("==", "-"))
    if not (directory / "rocketmq").is_dir():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(directory),
            PYPI,
        ]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            print(f"{PYPI} cannot be installed and is left out: {ended.stderr[-200:]}", file=sys.stderr)
            return None
    return directory


def pypi(directory: Path, address: str, topic: str, *numbers: float) -> Figures | None:
    """The PyPI package, in a process of its own."""
    asyncio.run(start_at_zero(address, topic))
    script = Path(__file__).with_name("client_rocketmq_python.py")
    ended = subprocess.run(
        [sys.executable, str(script), address, topic, *map(str, numbers)],
        env=os.environ | {"PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(f"{PYPI} failed and is left out: {ended.stderr[-300:]}", file=sys.stderr)
        return None
    found: Figures = json.loads(lines[-1])
    return found


def java(namesrv: Any, topic: str, body_bytes: int) -> Figures:
    """Apache's programs: one thread, 100 threads (its asynchronous mode has no bound), batches, a consumer."""
    size = ("-s", str(body_bytes))
    programs: dict[str, tuple[Any, tuple[str, ...]]] = {
        "sync": ("producer", ("-w", "1", *size)),
        "async_100": ("producer", ("-w", str(IN_FLIGHT), *size)),
        f"batch_{BATCH}": ("batch-producer", ("-w", str(BATCHES_IN_FLIGHT), "-b", str(BATCH), *size)),
        "push": ("consumer", ("-g", f"bench-java-{time.time_ns()}")),
    }
    results: Figures = {}
    for name, (kind, args) in programs.items():
        with Benchmark(kind, namesrv, topic=topic, args=args) as running:
            running.wait_reports(1, timeout_s=40)
            cpu, started, seen = running.cpu_seconds(), time.perf_counter(), len(running.reports())
            reports = running.wait_reports(seen + 2, timeout_s=40)
            rate = reports[-1].messages_per_s
            used = (running.cpu_seconds() - cpu) / (time.perf_counter() - started)
            results[name] = {
                "messages_per_s": round(rate),
                "cpu_us_per_message": round(used * 1e6 / max(1.0, rate), 2),
            }
    return results


def better(one: Figures | None, other: Figures) -> Figures:
    """Of each kind of load the round with the higher rate."""
    if one is None:
        return other
    return {name: max(one[name], other[name], key=lambda f: f["messages_per_s"]) for name in other}


def run(
    seconds: float = 2.0,
    ours_only: bool = False,
    *,
    broker: str = "ours",
    rounds: int = 3,
    body_bytes: int = 128,
    with_java: bool = True,
) -> dict[str, Figures]:
    """Figures by client."""
    body = b"x" * body_bytes
    directory = None if ours_only else installed()
    results: dict[str, Figures] = {}
    with servers(broker) as (namesrv, server):
        for topic in ("bench", "bench-backlog"):
            create_topic(namesrv, server, topic, queue_count=8)
        asyncio.run(fill(namesrv.address, "bench-backlog", body))
        for _ in range(rounds):
            results["orbitmq"] = better(results.get("orbitmq"), ours(namesrv.address, "bench", body, seconds))
            if directory is not None:
                found = pypi(directory, namesrv.address, "bench", body_bytes, BATCH, seconds)
                if found is not None:
                    results[PYPI] = better(results.get(PYPI), found)
        if with_java and not ours_only and not missing_tools():
            results[f"Java {LATEST}"] = java(namesrv, "bench", body_bytes)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=("ours", "apache"), default="ours")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--ours-only", action="store_true", help="neither the PyPI package nor Java")
    parser.add_argument("--no-java", action="store_true", help="no Java client (a minute less)")
    arguments = parser.parse_args()
    results = run(
        arguments.seconds,
        arguments.ours_only,
        broker=arguments.broker,
        rounds=arguments.rounds,
        body_bytes=arguments.body,
        with_java=not arguments.no_java,
    )
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
