"""Profiles the broker's CPU time under the load of Apache's own programs.

    python -m benchmarks.profile_broker [producer | batch-producer | consumer] [--seconds 8]

The broker runs in this process as ``orbitmq broker`` would run it. A CPU timer interrupts it every millisecond and
records our innermost function. Unlike a tracing profiler it costs almost nothing, so cheap functions do not look
expensive. Time spent in the event loop and in the operating system is attributed to the caller.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvloop
from tests.apache.harness import Benchmark, create_topic

import orbitmq
from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.store.config import StoreConfig

INTERVAL_S: Final = 0.001
HOST: Final = "127.0.0.1"
TOPIC: Final = "bench"
QUEUES: Final = 16
LOADS: Final = {
    "producer": ("-w", "64", "-s", "128"),
    "batch-producer": ("-w", "64", "-s", "128", "-b", "32"),
    "consumer": ("-g", "bench-readers"),
}
ROOT: Final = str(Path(orbitmq.__file__).parent) + "/"
STAGES: Final = (
    ("wire/frame.py", "bytes into frames"),
    ("kernel/plain/frames.py", "header into fields"),
    ("wire/pulls.py", "header into fields"),
    ("wire/header.py", "header into fields"),
    ("record/batch.py", "batch into messages"),
    ("broker/handlers/send.py:_answer", "replies"),
    ("broker/handlers/send.py:stored", "replies"),
    ("broker/handlers/send.py", "checks"),
    ("store/index", "index (every 512 keys)"),
    ("store/", "store"),
    ("record/", "store"),
    ("broker/statistics/stats.py", "statistics"),
    ("broker/delivery/pull_waiters.py", "waiting pulls"),
    ("broker/handlers/pull.py:_encode", "replies"),
    ("broker/handlers/pull.py", "checks"),
    ("broker/", "tables"),
    ("transport/", "connection, writes to the socket"),
)


class Sampler:
    """Samples the position of the process by CPU time."""

    def __init__(self) -> None:
        self.by_function: Counter[str] = Counter()
        self.by_stage: Counter[str] = Counter()
        self.count = 0

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        self.count += 1
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(ROOT):
                where = f"{code.co_filename.removeprefix(ROOT)}:{code.co_name}"
                if where.startswith(("cli/", "runtime/")):
                    break
                self.by_function[where] += 1
                self.by_stage[_stage(where)] += 1
                return
            frame = frame.f_back
        self.by_function["(event loop, reads from the socket)"] += 1
        self.by_stage["event loop, reads from the socket"] += 1


def _stage(where: str) -> str:
    return next((stage for prefix, stage in STAGES if where.startswith(prefix)), "other")


def _served(broker: Broker, kind: str) -> int:
    if kind == "consumer":
        group = broker.offsets
        return sum(max(0, group.query("bench-readers", TOPIC, queue_id)) for queue_id in range(QUEUES))
    return sum(broker.store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))


async def profile(kind: str, seconds: float, backlog: int) -> tuple[Sampler, float]:
    """Returns the samples and the CPU per message in microseconds."""
    loop = asyncio.get_running_loop()
    sampler = Sampler()
    with tempfile.TemporaryDirectory() as directory:
        names = NameServerConfig(listen_port=0, bind_address=HOST, kv_config_path="", config_store_path="")
        async with NameServer(names) as namesrv:
            config = BrokerConfig(
                listen_port=0, bind_host=HOST, public_host=HOST, name_servers=namesrv.address
            )
            async with Broker(config, StoreConfig(root=directory)) as broker:
                gc.set_threshold(50_000, 20, 50)
                gc.freeze()
                await asyncio.to_thread(
                    create_topic, namesrv.address, broker.address, TOPIC, queue_count=QUEUES
                )

                async def until(count: int) -> None:
                    while _served(broker, kind) < count:  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.1)

                if kind == "consumer":
                    await _fill(broker, namesrv.address, backlog)
                program = Benchmark(kind, namesrv.address, topic=TOPIC, args=LOADS[kind])  # type: ignore[arg-type]  # a name from the table of loads
                await loop.run_in_executor(None, program.__enter__)
                try:
                    await until(1)
                    await asyncio.sleep(0.0 if kind == "consumer" else 6.0)
                    count, cpu_s = _served(broker, kind), time.process_time()
                    sampler.start()
                    await asyncio.sleep(seconds)
                    sampler.stop()
                    cpu_s, count = time.process_time() - cpu_s, _served(broker, kind) - count
                finally:
                    await loop.run_in_executor(None, program.__exit__, None, None, None)
    return sampler, cpu_s / max(1, count) * 1e6


async def _fill(broker: Broker, address: str, backlog: int) -> None:
    loop = asyncio.get_running_loop()
    kind = "batch-producer"
    program = Benchmark(kind, address, topic=TOPIC, args=LOADS[kind])  # type: ignore[arg-type]  # a name from the table of loads
    await loop.run_in_executor(None, program.__enter__)
    try:
        while _served(broker, kind) < backlog:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    finally:
        await loop.run_in_executor(None, program.__exit__, None, None, None)


def show(sampler: Sampler, us_per_message: float) -> None:
    print(f"{us_per_message:.2f} us of CPU per message, {sampler.count} samples")
    for counter, rows in ((sampler.by_stage, 20), (sampler.by_function, 25)):
        print()
        for name, count in counter.most_common(rows):
            share = count / sampler.count
            print(f"{share * us_per_message:8.2f} us {share:7.1%}  {name}")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=list(LOADS), nargs="?", default="producer")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--backlog", type=int, default=1_500_000, help="messages the consumer finds")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sampler, us_per_message = runner.run(profile(options.kind, options.seconds, options.backlog))
    show(sampler, us_per_message)
    return {"us_per_message": us_per_message, "stages": dict(sampler.by_stage)}


if __name__ == "__main__":
    main()
