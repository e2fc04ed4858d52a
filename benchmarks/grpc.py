"""Compares gRPC with Apache 5.5.0, in alternating windows: the official Java client 5.x, and a proxy and a broker on
each side.

    python -m benchmarks.grpc [--pairs 8] [--seconds 2.5] [--messages 300000] [--ours-only] [--json FILE]

Two loads, one after the other: sends with 64 in flight, and receives of 32 with an acknowledgement of every message.
Proxy and broker are separate processes on both sides; CPU and memory are the totals of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.windows import BENCH_JVM, PAIRS, JavaLoad, Pair, alternate, summary
from tests.apache.artifacts import prepare
from tests.apache.grpc_clients.run import java_class_path
from tests.apache.harness import LATEST, ApacheBroker, ApacheNamesrv, create_topic, missing_tools
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.proxy_stack import ApacheProxy, OurProxy
from tests.apache.servers import Addressed

from orbitmq.client import Message, Producer

OURS: Final = "orbitmq"
APACHE: Final = f"apache-{LATEST}"
SENT: Final = "bench-grpc-sent"
RECEIVED: Final = "bench-grpc-received"
QUEUES: Final = 8
SIZE: Final = 1024
SEGMENT_BYTES: Final = 1024 * 1024 * 1024
WARM_UP_S: Final = 20.0
"""Four JVMs have to be compiled."""
GOALS: Final = {
    "send, broker CPU us/message": 0.8,
    "receive and ack, broker CPU us/message": 0.8,
    "private memory, MiB": 0.1,
}
"""What ours divided by Apache's may be."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A proxy in front of a broker."""

    namesrv: Addressed
    broker: OrbitBroker | ApacheBroker
    proxy: OurProxy | ApacheProxy

    def cpu_s(self) -> float:
        return self.broker.cpu_seconds() + self.proxy.cpu_seconds()

    def private_mib(self) -> float:
        return (self.broker.private_bytes() + self.proxy.private_bytes()) / 2**20

    def load(self, mode: str, topic: str, **options: str) -> JavaLoad:
        classes = java_class_path()
        return JavaLoad(mode, self.proxy.address, topic, main="GrpcLoad", classes=classes, **options)

    async def fill(self, count: int) -> None:
        """Stores the messages to receive. They are sent over remoting, because sending is not measured."""
        async with Producer("bench-fill", self.namesrv.address) as producer:
            for _ in range(0, count, 32 * 16):
                batch = [Message(RECEIVED, b"x" * SIZE) for _ in range(32)]
                await asyncio.gather(*(producer.send_batch(batch) for _ in range(16)))


@contextmanager
def _stacks(*, ours_only: bool) -> Iterator[dict[str, Stack]]:
    with ExitStack() as stack:
        namesrv = stack.enter_context(OrbitNamesrv())
        broker = stack.enter_context(OrbitBroker(namesrv, mappedFileSizeCommitLog=SEGMENT_BYTES))
        stacks = {OURS: Stack(namesrv, broker, stack.enter_context(OurProxy(namesrv)))}
        if not ours_only:
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            apache = stack.enter_context(
                ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, mappedFileSizeCommitLog=SEGMENT_BYTES)
            )
            proxy = stack.enter_context(ApacheProxy(theirs, jvm_args=BENCH_JVM))
            stacks[APACHE] = Stack(theirs, apache, proxy)
        for one in stacks.values():
            for topic in (SENT, RECEIVED):
                create_topic(one.namesrv, one.broker, topic, queue_count=QUEUES)
        yield stacks


def _measure(
    stacks: dict[str, Stack], mode: str, options: dict[str, str], *, pairs: int, seconds: float
) -> tuple[list[Pair], dict[str, int]]:
    """Measures pairs of windows, and the failed calls by side. With one side alone, both windows of a pair are its
    own.
    """
    topic = SENT if mode == "send" else RECEIVED
    with ExitStack() as running:
        loads = {
            name: running.enter_context(one.load(mode, topic, **options)) for name, one in stacks.items()
        }
        for load in loads.values():
            load.wait_first()
            load.pause()
        sides = [loads[name].side(one.cpu_s) for name, one in stacks.items()]
        measured = alternate(sides[0], sides[-1], seconds=seconds, pairs=pairs, warm_up_s=WARM_UP_S)
        return measured, {name: load.failed for name, load in loads.items()}


def run(
    seconds: float = 2.5, *, pairs: int = PAIRS, messages: int = 300_000, ours_only: bool = False
) -> dict[str, dict[str, float]]:
    """Returns the measurements by side, and the ratios ours / Apache's."""
    missing = missing_tools()
    if missing:
        raise RuntimeError(f"the load is the Java client: it needs {', '.join(missing)}")
    prepare()
    figures: dict[str, dict[str, float]] = {}
    with _stacks(ours_only=ours_only) as stacks:
        for one in stacks.values():
            asyncio.run(one.fill(messages))
        for name, mode, options in (
            ("send", "send", {"inflight": "64", "size": str(SIZE)}),
            ("receive and ack", "receive", {"inflight": "4", "stored": str(messages)}),
        ):
            measured, failed = _measure(stacks, mode, options, pairs=pairs, seconds=seconds)
            for side, values in summary(name, measured).items():
                figures.setdefault(side, {}).update(values)
            for side, count in failed.items():
                figures[side][f"{name}, failed calls"] = count
        memory = {name: one.private_mib() for name, one in stacks.items()}
        for name, mib in memory.items():
            figures[name]["private memory, MiB"] = mib
    if ours_only:
        return {OURS: figures[OURS]}
    figures["ratio"]["private memory, MiB"] = memory[OURS] / memory[APACHE]
    return figures


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a window")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--messages", type=int, default=300_000, help="stored for the receives")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", help="write the figures there as well")
    options = parser.parse_args(arguments)
    results = run(
        options.seconds, pairs=options.pairs, messages=options.messages, ours_only=options.ours_only
    )
    for name, figures in results.items():
        for figure, value in figures.items():
            print(f"{name:16} {figure:44} {value:14,.3f}")
    for figure, goal in GOALS.items():
        if not options.ours_only:
            ratio = results["ratio"][figure]
            print(f"{figure}: ratio {ratio:.2f}, goal <= {goal}: {'met' if ratio <= goal else 'MISSED'}")
    if options.json is not None:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()
