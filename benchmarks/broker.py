"""Compares our broker with Apache 5.5.0, in alternating windows, loaded by the official Java client.

    python -m benchmarks.broker [--only NAME ...] [--pairs 8] [--seconds 2.5] [--ours-only] [--json FILE]

Both brokers and a load program for each are up and warm. While one is measured, the other is paused
(``benchmarks/windows.py``). The loads:

sync send       64 threads, one message of 128 bytes per request
batch of 32     64 threads, 128 bytes, unique keys of 56 characters, like clients with an IPv6 address
mixed batch     64 threads, batches of 32, bodies of 50 to 500 bytes, KEYS, TAGS and three varying properties
consume         a push consumer over the messages of the batches
SQL backlog     pulls through four expressions (``benchmarks/filter.py``)

The load counts the messages. CPU is that of the broker's process over the same seconds. Start-up time, memory and the
time from a send to a waiting consumer are measured once per side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import filter as sql
from benchmarks.windows import BENCH_JVM, PAIRS, JavaLoad, Pair, Side, Window, alternate, summary
from tests.apache.artifacts import prepare
from tests.apache.harness import (
    LATEST,
    ApacheBroker,
    ApacheNamesrv,
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

OURS: Final = "orbitmq"
APACHE: Final = f"apache-{LATEST}"
QUEUES: Final = 16
STARTS: Final = 3
LATENCIES: Final = 200
CONSUMED_AT_MOST: Final = 0.8
"""A consumer that has read so much of the backlog is replaced by one of a new group before the next window."""
SEGMENT_BYTES: Final = 1024 * 1024 * 1024
"""Apache's default: the harness' own would have the brokers make a file every second."""
GET_MAX_OFFSET: Final = 30
LOADS: Final[Mapping[str, Mapping[str, str]]] = {
    "sync send": {},
    "batch of 32": {"batch": "32", "uniq": "56"},
    "mixed batch": {"batch": "32", "sizes": "50-500", "rich": "true"},
}
CONSUMED: Final = "batch of 32"
PARTS: Final = ("start", "latency", *LOADS, "consume", "SQL backlog")
GOALS: Final = {
    "sync send, messages/s": (">=", 1.8),
    "sync send, broker CPU us/message": ("<=", 0.35),
    "batch of 32, messages/s": (">=", 1.3),
    "batch of 32, broker CPU us/message": ("<=", 0.45),
    "mixed batch, messages/s": (">=", 1.3),
    "mixed batch, broker CPU us/message": ("<=", 0.45),
    "consume, messages/s": (">=", 1.4),
    "consume, broker CPU us/message": ("<=", 0.3),
    **{f"SQL backlog, {name}, messages/s": (">=", 1.0) for name in sql.EXPRESSIONS},
    "private memory, MiB": ("<=", 0.1),
    "start, s": ("<=", 0.25),
}
"""What ours divided by Apache's is meant to be."""


@dataclass(frozen=True, slots=True)
class Running:
    namesrv: Namesrv
    broker: Server


def _topic(load: str) -> str:
    return "bench-" + load.replace(" ", "-")


def _stored(broker: Server, topic: str) -> int:
    """Returns the number of messages stored in a topic so far."""
    total = 0
    for queue_id in range(QUEUES):
        fields = {"topic": topic, "queueId": str(queue_id)}
        total += int(remoting_call(broker.address, GET_MAX_OFFSET, fields)[1]["offset"])
    return total


class Consuming:
    """A push consumer over a backlog; a new group starts at the beginning of the backlog when the old one is nearly
    through.
    """

    def __init__(self, running: Running, topic: str, stored: int, **options: str) -> None:
        """``stored`` is the number of messages in the backlog; ``options`` are those of the load."""
        self._running = running
        self._topic = topic
        self._stored = stored
        self._options = options
        self._group = 0
        self._load: JavaLoad | None = None
        self._restart()

    def _restart(self) -> None:
        self.close()
        self._group += 1
        group = f"bench-readers-{self._group}"
        self._load = JavaLoad("consume", self._running.namesrv, self._topic, group=group, **self._options)
        self._load.start()
        self._load.wait_first()
        # The client rebalances and compiles before it runs at full speed.
        time.sleep(3.0)

    def side(self) -> Side:
        return Side(self._count, self._running.broker.cpu_seconds, self._resume, self._pause)

    def _count(self) -> int:
        return self._load.done if self._load else 0

    def _resume(self) -> None:
        assert self._load is not None
        if self._load.done > self._stored * CONSUMED_AT_MOST:
            self._restart()
        self._load.resume()

    def _pause(self) -> None:
        assert self._load is not None
        self._load.pause()

    def close(self) -> None:
        if self._load is not None:
            self._load.__exit__(None, None, None)
            self._load = None


def _measure_sends(
    name: str, servers: Mapping[str, Running], measured: Callable[[Side, Side], list[Pair]]
) -> tuple[list[Pair], dict[str, int]]:
    topic = _topic(name)
    with ExitStack() as stack:
        loads: dict[str, JavaLoad] = {}
        for server, running in servers.items():
            create_topic(running.namesrv, running.broker, topic, queue_count=QUEUES)
            load = JavaLoad("send", running.namesrv, topic, **LOADS[name])
            loads[server] = stack.enter_context(load)
            load.wait_first()
            load.pause()
        sides = [load.side(servers[server].broker.cpu_seconds) for server, load in loads.items()]
        pairs = measured(sides[0], sides[-1])
        for load in loads.values():
            load.resume()
        return pairs, {server: load.failed for server, load in loads.items()}


def _measure_consuming(
    servers: Mapping[str, Running], measured: Callable[[Side, Side], list[Pair]]
) -> list[Pair]:
    consuming: list[Consuming] = []
    try:
        for running in servers.values():
            topic = _topic(CONSUMED)
            one = Consuming(running, topic, _stored(running.broker, topic))
            consuming.append(one)
            one.side().pause()
        sides = [one.side() for one in consuming]
        return measured(sides[0], sides[-1])
    finally:
        for one in consuming:
            one.close()


def _measure_sql(servers: Mapping[str, Running], pairs: int, seconds: float) -> dict[str, list[Pair]]:
    loads = {
        server: sql.Load(running.namesrv, running.broker, sql.BACKLOG) for server, running in servers.items()
    }
    for load in loads.values():
        load.fill()
        load.subscribe()
        for name in sql.EXPRESSIONS:
            load.run(name, 3.0)
    measured: dict[str, list[Pair]] = {name: [] for name in sql.EXPRESSIONS}
    for number in range(pairs):
        for name in sql.EXPRESSIONS:
            order = list(loads) if number % 2 == 0 else list(reversed(loads))
            windows = {server: _sql_window(loads[server], name, seconds) for server in order}
            measured[name].append((windows[OURS], windows[list(loads)[-1]]))
    for load in loads.values():
        load.close()
    return measured


def _sql_window(load: sql.Load, name: str, seconds: float) -> Window:
    figures = load.run(name, seconds)
    return Window(figures["seconds"], int(figures["looked"]), figures["cpu_seconds"])


def _measure_latency(running: Running) -> Figures:
    """Measures the time from the birth of a message to the listener, with sender and waiting consumer in one separate
    process.
    """
    topic = "bench-latency"
    create_topic(running.namesrv, running.broker, topic, queue_count=1)
    with JavaClients(LATEST, jvm_args=BENCH_JVM) as java:
        producer = java.producer("bench-latency-producers", running.namesrv)
        consumer = java.push_consumer("bench-latency-readers", running.namesrv, {topic: "*"}, from_first=True)
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
    """Measures the time from the start of the process until its name server lists it."""
    starts = []
    for _ in range(STARTS):
        broker.kill()
        started = time.perf_counter()
        broker.start()
        starts.append(time.perf_counter() - started)
    return min(starts)


@contextmanager
def _servers(*, ours_only: bool) -> Iterator[dict[str, Running]]:
    options: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "enablePropertyFilter": True}
    with ExitStack() as stack:
        namesrv = stack.enter_context(OrbitNamesrv())
        servers = {OURS: Running(namesrv, stack.enter_context(OrbitBroker(namesrv, **options)))}
        if not ours_only:
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            broker = stack.enter_context(ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, **options))
            servers[APACHE] = Running(theirs, broker)
        yield servers


def run(
    seconds: float = 2.5, *, pairs: int = PAIRS, only: Sequence[str] = PARTS, ours_only: bool = False
) -> dict[str, Figures]:
    """Returns the measurements by broker, and the ratios ours / Apache's; with ``ours_only`` both windows of a pair
    are ours.
    """
    missing = missing_tools()
    if missing:
        raise RuntimeError(f"the load is the official Java client, which needs {', '.join(missing)}")
    prepare()
    results: dict[str, Figures] = {OURS: {}, APACHE: {}, "ratio": {}}

    def add(figures: Mapping[str, Mapping[str, float]]) -> None:
        for server, values in figures.items():
            results[server] |= values

    def measured(ours: Side, theirs: Side) -> list[Pair]:
        return alternate(ours, theirs, seconds=seconds, pairs=pairs)

    with _servers(ours_only=ours_only) as servers:
        if "start" in only:
            add({server: {"start, s": _start_time(running.broker)} for server, running in servers.items()})
        if "latency" in only:
            add({server: _measure_latency(running) for server, running in servers.items()})
        for name in LOADS:
            if name in only or ("consume" in only and name == CONSUMED):
                windows, failed = _measure_sends(name, servers, measured)
                add(summary(name, windows))
                add({server: {f"{name}, failed": count} for server, count in failed.items()})
        if "consume" in only:
            add(summary("consume", _measure_consuming(servers, measured)))
        add(
            {
                server: {"private memory, MiB": running.broker.private_bytes() / 2**20}
                for server, running in servers.items()
            }
        )
        if "SQL backlog" in only:
            for name, found in _measure_sql(servers, pairs, min(seconds, 1.0)).items():
                add(summary(f"SQL backlog, {name}", found))
    if ours_only:
        return {OURS: results[OURS]}
    for figure, value in results[OURS].items():
        if results[APACHE].get(figure):
            results["ratio"].setdefault(figure, value / results[APACHE][figure])
    return results


def show(results: dict[str, Figures]) -> None:
    """Prints a table: one row per measurement, one column per broker, the ratio and its goal."""
    print(f"{'':48}" + "".join(f"{name:>16}" for name in results) + "   goal")
    rows = dict.fromkeys(figure for figures in results.values() for figure in figures)
    for figure in rows:
        cells = "".join(
            f"{figures[figure]:16,.3f}" if figure in figures else f"{'':16}" for figures in results.values()
        )
        goal = ""
        ratio = results.get("ratio", {}).get(figure)
        if figure in GOALS and ratio is not None:
            sign, bound = GOALS[figure]
            met = ratio >= bound if sign == ">=" else ratio <= bound
            goal = f"   {sign} {bound:g} {'met' if met else 'MISSED'}"
        print(f"{figure:48}{cells}{goal}")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a window")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--only", action="append", choices=PARTS, help="may be given several times")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", help="write the figures there as well")
    options = parser.parse_args(arguments)
    results = run(
        options.seconds, pairs=options.pairs, only=options.only or PARTS, ours_only=options.ours_only
    )
    show(results)
    if options.json is not None:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()
