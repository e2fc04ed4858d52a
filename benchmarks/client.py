"""Compares our client with the PyPI package ``rocketmq`` 0.4.4, against one broker, in alternating windows.

    python -m benchmarks.client [--broker ours|apache] [--seconds 1.5] [--pairs 6] [--body 128] [--case NAME ...]
                                [--ours-only] [--java]

Each client runs in its own process. They take turns: one works while the other is stopped, and ratios are taken
between neighbouring windows (``benchmarks/windows.py``). The cases:

sync              one thread, one send after the other
sync_8_threads    eight threads that share one producer
sync_await        one task with ``await`` (of the PyPI package again one thread)
async_100         100 sends in flight
batches           batches of 16, four in flight (of the PyPI package four threads: its batches are synchronous; more
                  than 16 it would compress as a whole, which no broker understands)
batches_threads   the same with four threads on both sides
push              messages that reached a handler; ours is a coroutine function
push_plain        the same with plain functions on both sides, ours on ``orbitmq.sync``
push_plain_no_pause  the same, with a cache so large that the PyPI package never pauses
push_sleep        handlers that wait 1 ms, ours coroutines; 20 threads of the PyPI package, our default as well
push_plain_sleep  the same with plain functions on both sides

A consumer would reach the end of any backlog that can be filled in reasonable time. So in all push cases every window
has its own process, which reads the backlog from its start.

The PyPI package stops pulling a queue for a whole second when more than 1,000 of its messages are in the cache. A
broker that responds quickly fills the cache immediately, so in ``push`` and ``push_plain`` the package is idle most
of the time: 8,900 to 24,000 messages/s in windows of 1.5 s, bursts of 40,000 to 48,000/s separated by idle seconds,
both on Apache's broker and on ours. That is what its users get, but not what its code can do. ``push_plain_no_pause``
measures the latter (steady 35,000 to 47,000/s); quote its ratio for the cost of the client's code.

CPU is that of the client process alone. With ``--java`` the rates of Apache's own benchmark programs are added, for
reference. The PyPI package is installed into a separate cache directory; where that fails, it is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.windows import Pair, Side, Window, alternate, measure
from tests.apache.artifacts import missing_tools
from tests.apache.harness import LATEST, ApacheBroker, ApacheNamesrv, Benchmark, create_topic
from tests.apache.ours import orbit_cluster
from tests.apache.process import ChildProcess

from orbitmq.client import Message, Producer, PullConsumer

PYPI: Final = "rocketmq==0.4.4"
BATCH: Final = 16
BACKLOG_PER_S: Final = 400_000
BACKLOG_MAX: Final = 4_000_000
"""More than any Python client consumes in a second, and about a gigabyte."""
SEND_CASES: Final = ("sync", "sync_8_threads", "sync_await", "async_100", "batches", "batches_threads")
CASES: Final = (*SEND_CASES, "push", "push_plain", "push_plain_no_pause", "push_sleep", "push_plain_sleep")
_LIKE: Final = {"sync_await": "sync"}
"""Cases for which the PyPI package does the same as for another."""
_NUMBER: Final = struct.Struct(">q")
Figures = dict[str, float]


class Load(ChildProcess):
    """One client under one load; it runs until it is killed."""

    def __init__(self, script: str, case: str, *arguments: str, pythonpath: str) -> None:
        workdir = Path(tempfile.mkdtemp(prefix="orbitmq-client-load-"))
        counter = workdir / "counter"
        counter.write_bytes(bytes(_NUMBER.size))
        # ``env`` because ``start`` passes on the environment of this process.
        command = [
            "env",
            f"PYTHONPATH={pythonpath}",
            sys.executable,
            str(Path(__file__).with_name(script)),
            case,
        ]
        super().__init__(f"{script} {case}", [*command, *arguments, str(counter)], workdir)
        with counter.open("r+b") as file:
            self._counter = mmap.mmap(file.fileno(), _NUMBER.size)

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready(lambda: self.done > 0, timeout_s=60.0)
        self.pause()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._counter.close()
        shutil.rmtree(self.workdir, ignore_errors=True)

    @property
    def done(self) -> int:
        return int(_NUMBER.unpack_from(self._counter)[0])

    @property
    def side(self) -> Side:
        return Side(lambda: self.done, self.cpu_seconds, self.resume, self.pause)


async def fill(address: str, topic: str, body: bytes, count: int) -> None:
    """Sends a backlog to consume."""
    async with Producer("bench-filler", address) as producer:
        for _ in range(-(-count // 3200)):
            await asyncio.gather(
                *(producer.send_batch([Message(topic, body) for _ in range(64)]) for _ in range(50))
            )


@contextmanager
def servers(kind: str) -> Iterator[tuple[Any, Any]]:
    if kind == "ours":
        with orbit_cluster() as cluster:
            yield cluster.namesrv, cluster.broker
    else:
        with ApacheNamesrv(LATEST) as namesrv, ApacheBroker(LATEST, namesrv) as broker:
            yield namesrv, broker


async def start_at_zero(address: str, topic: str) -> None:
    """Lets the group of the PyPI package start at offset 0."""
    async with PullConsumer("bench-pypi-readers", address) as consumer:
        for queue in await consumer.fetch_queues(topic):
            await consumer.update_offset(queue, 0)


def installed() -> Path | None:
    """Returns the directory in which the PyPI package is installed, or None where it cannot be installed."""
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


def java(namesrv: Any, topic: str, body_bytes: int) -> Figures:
    """Runs Apache's programs: one thread, 100 threads (its asynchronous mode has no bound), batches, a consumer."""
    size = ("-s", str(body_bytes))
    programs: dict[str, tuple[Any, tuple[str, ...]]] = {
        "sync": ("producer", ("-w", "1", *size)),
        "async_100": ("producer", ("-w", "100", *size)),
        "batches": ("batch-producer", ("-w", "4", "-b", str(BATCH), *size)),
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
            results[f"{name}, messages/s"] = round(rate)
            results[f"{name}, client CPU us/message"] = round(used * 1e6 / max(1.0, rate), 2)
    return results


def alone(load: Load, seconds: float, count: int) -> list[Pair]:
    """Measures windows of one client, each paired with itself."""
    windows = []
    for _ in range(count):
        load.resume()
        time.sleep(0.3)
        started, done, cpu_s = time.perf_counter(), load.done, load.cpu_seconds()
        time.sleep(seconds)
        window = Window(time.perf_counter() - started, load.done - done, load.cpu_seconds() - cpu_s)
        load.pause()
        windows.append((window, window))
    return windows


def consumer_window(load: Load, seconds: float, backlog: int) -> Window:
    """Measures a window of a consumer that was started for it."""
    with load:
        window = measure(load.side, seconds)
        if load.done >= backlog:
            raise RuntimeError(f"{load.name} consumed all {backlog} messages: take shorter windows")
    if window.count <= 0:
        raise RuntimeError(f"{load.name}: nothing happened in a window")
    return window


def consumers(
    case: str, arguments: Sequence[str], paths: Sequence[str], seconds: float, pairs: int
) -> list[Pair]:
    """Measures windows of both consumers in turn, or of our consumer alone if ``paths`` has one entry."""
    address, topic = arguments[:2]
    backlog = backlog_for(seconds)
    measured: list[Pair] = []

    def ours() -> Window:
        return consumer_window(
            Load("client_orbitmq.py", case, *arguments, pythonpath=paths[0]), seconds, backlog
        )

    def theirs() -> Window:
        asyncio.run(start_at_zero(address, topic))
        load = Load("client_rocketmq_python.py", case, *arguments, pythonpath=paths[1])
        return consumer_window(load, seconds, backlog)

    for number in range(pairs):
        if len(paths) == 1:
            window = ours()
            measured.append((window, window))
        elif number % 2:
            second = theirs()
            measured.append((ours(), second))
        else:
            measured.append((ours(), theirs()))
    return measured


def backlog_for(seconds: float) -> int:
    """Returns more messages than a consumer can get through in one window and the time before it."""
    return min(BACKLOG_MAX, round(BACKLOG_PER_S * (seconds + 1.0)))


def summarize(case: str, pairs: Sequence[Pair], results: dict[str, Figures]) -> None:
    """Adds the medians by side, and the median of the ratios with their extremes, to ``results``."""
    for index, side in enumerate(("orbitmq", PYPI)):
        if side in results:
            windows = [pair[index] for pair in pairs]
            results[side][f"{case}, messages/s"] = round(statistics.median(w.per_s for w in windows))
            results[side][f"{case}, client CPU us/message"] = round(
                statistics.median(w.cpu_us for w in windows), 2
            )
    if PYPI in results:
        rates = [ours.per_s / theirs.per_s for ours, theirs in pairs]
        cpu = [ours.cpu_us / theirs.cpu_us for ours, theirs in pairs]
        results["ratio"][f"{case}, messages/s"] = round(statistics.median(rates), 2)
        results["ratio"][f"{case}, rate ratio lowest"] = round(min(rates), 2)
        results["ratio"][f"{case}, rate ratio highest"] = round(max(rates), 2)
        results["ratio"][f"{case}, client CPU us/message"] = round(statistics.median(cpu), 3)


def run(
    seconds: float = 1.5,
    ours_only: bool = False,
    *,
    broker: str = "ours",
    pairs: int = 6,
    body_bytes: int = 128,
    cases: Sequence[str] = CASES,
    with_java: bool = False,
) -> dict[str, Figures]:
    """Returns the measurements by client, and the ratios."""
    body = b"x" * body_bytes
    directory = None if ours_only else installed()
    results: dict[str, Figures] = {"orbitmq": {}}
    if directory is not None:
        results |= {PYPI: {}, "ratio": {}}
    own_path = os.pathsep.join(path for path in sys.path if path)
    with servers(broker) as (namesrv, server):
        address = namesrv.address
        for topic in ("bench", "bench-backlog"):
            create_topic(namesrv, server, topic, queue_count=8)
        if any(case not in SEND_CASES for case in cases):
            asyncio.run(fill(address, "bench-backlog", body, backlog_for(seconds)))
        for case in cases:
            topic = "bench" if case in SEND_CASES else "bench-backlog"
            arguments = (address, topic, str(body_bytes), str(BATCH))
            if case not in SEND_CASES:
                paths = [own_path] if directory is None else [own_path, str(directory)]
                summarize(case, consumers(case, arguments, paths, seconds, pairs), results)
                continue
            with ExitStack() as stack:
                ours = stack.enter_context(Load("client_orbitmq.py", case, *arguments, pythonpath=own_path))
                if directory is None:
                    summarize(case, alone(ours, seconds, pairs), results)
                    continue
                name = _LIKE.get(case, case)
                theirs = stack.enter_context(
                    Load("client_rocketmq_python.py", name, *arguments, pythonpath=str(directory))
                )
                measured = alternate(ours.side, theirs.side, seconds=seconds, pairs=pairs, warm_up_s=0.5)
                summarize(case, measured, results)
        if with_java and not ours_only and not missing_tools():
            results[f"Java {LATEST}"] = java(namesrv, "bench", body_bytes)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", choices=("ours", "apache"), default="ours")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--case", choices=CASES, action="append", dest="cases")
    parser.add_argument("--ours-only", action="store_true", help="without the PyPI package")
    parser.add_argument(
        "--java", action="store_true", help="Apache's benchmark programs, too (a minute more)"
    )
    arguments = parser.parse_args()
    results = run(
        arguments.seconds,
        arguments.ours_only,
        broker=arguments.broker,
        pairs=arguments.pairs,
        body_bytes=arguments.body,
        cases=arguments.cases or CASES,
        with_java=arguments.java,
    )
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
