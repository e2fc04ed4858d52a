"""The broker beside Apache 5.5.0 in one run, loaded by Apache's own benchmark programs.

    python -m benchmarks.broker [--seconds 12] [--ours-only] [--json FILE]

Both brokers get the same load on the same machine, one after the other: 64 threads sending 128-byte messages one by
one; the same in batches of 32; a consumer reading what was sent. Messages are counted at the broker (ends of queues,
committed offsets), CPU is that of the broker's process, both over the same seconds, after the programs and Apache's
broker have warmed up. How long a waiting consumer waits for a message is measured with the official client's own
clock. A figure is only worth something on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.apache.artifacts import prepare
from tests.apache.harness import (
    BENCH_JVM,
    LATEST,
    ApacheBroker,
    ApacheNamesrv,
    Benchmark,
    JavaClients,
    Message,
    create_topic,
    missing_tools,
    remoting_call,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv

Server = OrbitBroker | ApacheBroker
Namesrv = OrbitNamesrv | ApacheNamesrv
Figures = dict[str, float]

BODY_BYTES: Final = 128
THREADS: Final = 64
BATCH: Final = 32
QUEUES: Final = 16
STARTS: Final = 3
WARM_UP_S: Final = 8.0
LATENCIES: Final = 200
SEGMENT_BYTES: Final = 1024 * 1024 * 1024
"""Apache's default: the harness' own would have the brokers make a file every second."""
GET_MAX_OFFSET: Final = 30
GET_CONSUME_STATS: Final = 208
PULL_OFFSET: Final = re.compile(rb'"pullOffset":(\d+)')
BACKLOG: Final = 3_000_000
"""Messages the consumer should find, so that reading them takes long enough to be measured."""
BACKLOG_WAIT_S: Final = 30.0
GOALS: Final = {
    "sync send, messages/s": (">=", 1.1),
    "sync send, broker CPU us/message": ("<=", 0.7),
    "batch of 32, messages/s": (">=", 1.1),
    "batch of 32, broker CPU us/message": ("<=", 1.0),
    "consume, messages/s": (">=", 1.1),
    "consume, broker CPU us/message": ("<=", 0.5),
    "private memory, MiB": ("<=", 0.1),
    "start, s": ("<=", 0.25),
}
"""What ours divided by Apache's is meant to be."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is read at the ends of a measured time."""

    at_s: float
    cpu_s: float
    count: int


def _queue_ends(broker: Server, topic: str) -> int:
    """Messages of a topic so far."""
    total = 0
    for queue_id in range(QUEUES):
        fields = {"topic": topic, "queueId": str(queue_id)}
        total += int(remoting_call(broker.address, GET_MAX_OFFSET, fields)[1]["offset"])
    return total


def _pulled(broker: Server, topic: str, group: str) -> int:
    """Messages a group has pulled so far, as the broker keeps it for its tools."""
    fields = {"consumerGroup": group, "topic": topic}
    code, _, body = remoting_call(broker.address, GET_CONSUME_STATS, fields)
    # Maps with objects as keys: not JSON, so no parser takes it.
    return sum(int(found) for found in PULL_OFFSET.findall(body)) if code == 0 else 0


def _per_second(name: str, first: _Moment, last: _Moment) -> Figures:
    count, seconds = last.count - first.count, last.at_s - first.at_s
    if count <= 0:
        raise RuntimeError(f"{name}: nothing happened within {seconds:.1f} s")
    return {
        f"{name}, messages/s": count / seconds,
        f"{name}, broker CPU us/message": (last.cpu_s - first.cpu_s) / count * 1e6,
        f"{name}, broker cores": (last.cpu_s - first.cpu_s) / seconds,
    }


def _wait_for(condition: Callable[[], bool], timeout_s: float, what: str, poll_s: float = 0.05) -> None:
    deadline = time.perf_counter() + timeout_s
    while not condition():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"waited {timeout_s} s for {what}")
        time.sleep(poll_s)


def measure_sends(
    name: str,
    namesrv: Namesrv,
    broker: Server,
    topic: str,
    load: Sequence[str],
    seconds: float,
    *,
    backlog: int = 0,
) -> Figures:
    """One of Apache's producers for ``seconds`` after the warm-up, then on until ``backlog`` messages are there."""
    kind, args = load[0], (*load[1:], "-w", str(THREADS), "-s", str(BODY_BYTES))
    create_topic(namesrv, broker, topic, queue_count=QUEUES)

    def moment() -> _Moment:
        return _Moment(time.perf_counter(), broker.cpu_seconds(), _queue_ends(broker, topic))

    with Benchmark(kind, namesrv, topic=topic, args=args) as program:  # type: ignore[arg-type]  # a name from the table of loads
        _wait_for(lambda: _queue_ends(broker, topic) > 0, 30.0, f"the first message of {name}")
        time.sleep(WARM_UP_S)
        first = moment()
        time.sleep(seconds)
        last = moment()
        until = time.perf_counter() + BACKLOG_WAIT_S
        while _queue_ends(broker, topic) < backlog and time.perf_counter() < until:
            time.sleep(0.2)
        failed = sum(report.failed for report in program.reports()[-1:])
    return _per_second(name, first, last) | {f"{name}, failed": failed}


def measure_consumption(namesrv: Namesrv, broker: Server, topic: str, seconds: float) -> Figures:
    """Apache's consumer over what the producers left: once to warm up, then measured until nearly all is read."""
    name = "consume"
    stored = _queue_ends(broker, topic)
    moments: list[_Moment] = []
    for group in ("bench-warm-up", "bench-readers"):
        moments.clear()
        with Benchmark("consumer", namesrv, topic=topic, args=("-g", group)):
            deadline = time.perf_counter() + 60.0 + seconds
            while not moments or moments[-1].count < stored * 0.9:
                time.sleep(0.1)
                moment = _Moment(time.perf_counter(), broker.cpu_seconds(), _pulled(broker, topic, group))
                # The program is warm after a fifth of the way.
                if moment.count > stored * 0.2:
                    moments.append(moment)
                    if moment.at_s - moments[0].at_s > seconds:
                        break
                elif moment.at_s > deadline:
                    raise RuntimeError(f"{moment.count} of {stored} messages consumed, then nothing more")
    return _per_second(name, moments[0], moments[-1])


def measure_latency(namesrv: Namesrv, broker: Server) -> Figures:
    """From the birth of a message to the listener, sender and waiting consumer in one process of their own."""
    topic = "bench-latency"
    create_topic(namesrv, broker, topic, queue_count=1)
    with JavaClients(LATEST, jvm_args=BENCH_JVM) as java:
        producer = java.producer("bench-latency-producers", namesrv)
        consumer = java.push_consumer("bench-latency-readers", namesrv, {topic: "*"}, from_first=True)
        for number in range(LATENCIES):
            producer.send(Message(topic=topic, body=b"%d" % number))
            consumer.wait(number + 1, timeout_s=40.0)
        delays = sorted(
            delivery.received_at_ms - delivery.message.born_at_ms
            for delivery in consumer.deliveries[LATENCIES // 4 :]
        )
    return {
        "send to waiting consumer, median ms": statistics.median(delays),
        "send to waiting consumer, p99 ms": delays[int(len(delays) * 0.99)],
    }


def _start_time(broker: Server) -> float:
    """From the start of the process until its name server lists it."""
    starts = []
    for _ in range(STARTS):
        broker.kill()
        started = time.perf_counter()
        broker.start()
        starts.append(time.perf_counter() - started)
    return min(starts)


@contextmanager
def _servers(kind: str) -> Iterator[tuple[Namesrv, Server]]:
    if kind == "orbitmq":
        with OrbitNamesrv() as namesrv, OrbitBroker(namesrv, mappedFileSizeCommitLog=SEGMENT_BYTES) as broker:
            yield namesrv, broker
    else:
        with (
            ApacheNamesrv(LATEST) as their_namesrv,
            ApacheBroker(
                LATEST, their_namesrv, jvm_args=BENCH_JVM, mappedFileSizeCommitLog=SEGMENT_BYTES
            ) as their_broker,
        ):
            yield their_namesrv, their_broker


def measure(kind: str, seconds: float) -> Figures:
    """All figures of one broker."""
    with _servers(kind) as (namesrv, broker):
        figures: Figures = {"start, s": _start_time(broker)}
        idle_bytes = broker.private_bytes()
        figures |= measure_latency(namesrv, broker)
        figures |= measure_sends("sync send", namesrv, broker, "bench-sync", ["producer"], seconds)
        batches = ["batch-producer", "-b", str(BATCH)]
        figures |= measure_sends(
            f"batch of {BATCH}", namesrv, broker, "bench-batch", batches, seconds, backlog=BACKLOG
        )
        figures["private memory, MiB"] = broker.private_bytes() / 2**20
        figures["private memory when idle, MiB"] = idle_bytes / 2**20
        figures |= measure_consumption(namesrv, broker, "bench-batch", seconds)
    return figures


def run(seconds: float = 12.0, *, ours_only: bool = False) -> dict[str, Figures]:
    """Figures by broker, and the ratios ours / Apache's."""
    missing = missing_tools()
    if missing:
        raise RuntimeError(f"the load comes from Apache's own programs, which need {', '.join(missing)}")
    prepare()
    results = {"orbitmq": measure("orbitmq", seconds)}
    if not ours_only:
        name = f"apache-{LATEST}"
        results[name] = measure(name, seconds)
        theirs = results[name]
        results["ratio"] = {
            figure: value / theirs[figure]
            for figure, value in results["orbitmq"].items()
            if theirs.get(figure)
        }
    return results


def show(results: dict[str, Figures]) -> None:
    """A table: one row a figure, one column a broker, the ratio and its goal."""
    print(f"{'':40}" + "".join(f"{name:>16}" for name in results) + "   goal")
    for figure in results["orbitmq"]:
        cells = "".join(
            f"{figures[figure]:16,.3f}" if figure in figures else f"{'':16}" for figures in results.values()
        )
        goal = ""
        ratio = results.get("ratio", {}).get(figure)
        if figure in GOALS and ratio is not None:
            sign, bound = GOALS[figure]
            met = ratio >= bound if sign == ">=" else ratio <= bound
            goal = f"   {sign} {bound:g} {'met' if met else 'MISSED'}"
        print(f"{figure:40}{cells}{goal}")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="measured time of each load")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", help="write the figures there as well")
    options = parser.parse_args(arguments)
    results = run(options.seconds, ours_only=options.ours_only)
    show(results)
    if options.json is not None:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()
