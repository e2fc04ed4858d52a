"""Compares POP over remoting with Apache 5.5.0, in alternating windows: pop 32 and acknowledge each, like Java's
consumer.

    python -m benchmarks.pop [--pairs 8] [--seconds 2.5] [--messages 300000] [--ours-only] [--json FILE]

The load is one program for both brokers, written on bare frames: connections that pop and send an ACK_MESSAGE for
every message, all of a pop in flight at once. It runs against one broker at a time. When a group has less than twice
the largest window so far left to read, it is replaced by a new group, which begins at the oldest message. A window in
which the backlog ran out is an error, since it would measure waiting. CPU is that of the broker's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks.windows import BENCH_JVM, PAIRS, Pair, Window, summary
from tests.apache.artifacts import prepare
from tests.apache.harness import LATEST, ApacheBroker, ApacheNamesrv, create_topic, missing_tools
from tests.apache.ours import OrbitBroker, OrbitNamesrv

from orbitmq.client import Message, Producer
from orbitmq.codes import ResponseCode
from orbitmq.record.codec import decode_records
from orbitmq.requests import RequestCode
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection

OURS: Final = "orbitmq"
APACHE: Final = f"apache-{LATEST}"
TOPIC: Final = "bench-pop"
QUEUES: Final = 16
CONNECTIONS: Final = 4
LOOPS: Final = 4
"""Pops on their way on each connection."""
BODY: Final = b"x" * 128
SEGMENT_BYTES: Final = 1024 * 1024 * 1024
MESSAGES: Final = 300_000
RAN_OUT: Final = 0.95
"""Of a backlog: beyond this share pops find nothing."""
CPU_GOAL: Final = 0.5
"""Limit of our CPU divided by Apache's."""


class Load:
    """Pops and acknowledges messages of one broker."""

    def __init__(self, namesrv: OrbitNamesrv | ApacheNamesrv, broker: OrbitBroker | ApacheBroker) -> None:
        self._namesrv = namesrv
        self._broker = broker
        self._stored = 0
        self._group = 0
        self._done_of_group = 0
        self._done = 0
        self._largest = 0
        self.empty = 0
        self.refused = 0

    async def fill(self, count: int) -> None:
        create_topic(self._namesrv, self._broker, TOPIC, queue_count=QUEUES)
        async with Producer("bench-fill", self._namesrv.address) as producer:
            for _ in range(0, count, 32 * 16):
                batch = [Message(TOPIC, BODY) for _ in range(32)]
                await asyncio.gather(*(producer.send_batch(batch) for _ in range(16)))
        self._stored = count

    async def window(self, seconds: float) -> Window:
        """Loads the broker for that long; a message counts once its acknowledgement was answered. Raises
        ``RuntimeError`` when the backlog ran out.
        """
        if not self._group or self._stored - self._done_of_group < 2 * self._largest:
            self._group += 1
            self._done_of_group = 0
        clients = [RpcClient() for _ in range(CONNECTIONS)]
        try:
            connections = [await client.connection(self._broker.address) for client in clients]
            before, cpu_s, started = self._done, self._broker.cpu_seconds(), time.perf_counter()
            until = started + seconds
            await asyncio.gather(*(self._loop(one, until) for one in connections for _ in range(LOOPS)))
            took = time.perf_counter() - started
            window = Window(took, self._done - before, self._broker.cpu_seconds() - cpu_s)
            if not window.count or self._done_of_group > RAN_OUT * self._stored:
                raise RuntimeError(f"{self._done_of_group} of {self._stored} messages are popped: store more")
            self._largest = max(self._largest, window.count)
            return window
        finally:
            for client in clients:
                await client.close()

    async def _loop(self, connection: Connection, until: float) -> None:
        group = f"bench-poppers-{self._group}"
        question = {
            "consumerGroup": group,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": "60000",
            "pollTime": "1000",
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        while time.perf_counter() < until:
            fields = {**question, "bornTime": str(time.time_ns() // 1_000_000)}
            answer = await connection.call(RequestCode.POP_MESSAGE, None, timeout_s=20.0, ext=fields)
            if answer.code == ResponseCode.POLLING_TIMEOUT:
                self.empty += 1
                continue
            if answer.code != ResponseCode.SUCCESS:
                self.refused += 1
                continue
            found = answer.ext_fields
            starts = {
                int(entry.split(" ")[1]): entry.split(" ")[2] for entry in found["startOffsetInfo"].split(";")
            }
            times = f"{found['popTime']} {found['invisibleTime']} {found['reviveQid']} 0"
            acks = [
                connection.call(
                    RequestCode.ACK_MESSAGE,
                    None,
                    timeout_s=20.0,
                    ext={
                        "consumerGroup": group,
                        "topic": TOPIC,
                        "queueId": str(record.queue_id),
                        "extraInfo": f"{starts[record.queue_id]} {times} broker-a {record.queue_id} "
                        f"{record.queue_offset}",
                        "offset": str(record.queue_offset),
                    },
                )
                for record in decode_records(answer.body, check_crc=False)
            ]
            codes = [frame.code for frame in await asyncio.gather(*acks)]
            self.refused += len(codes) - codes.count(0)
            self._done += codes.count(0)
            self._done_of_group += codes.count(0)


@contextmanager
def _loads(*, ours_only: bool) -> Iterator[dict[str, Load]]:
    options: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
    with ExitStack() as stack:
        namesrv = stack.enter_context(OrbitNamesrv())
        loads = {OURS: Load(namesrv, stack.enter_context(OrbitBroker(namesrv, **options)))}
        if not ours_only:
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            broker = stack.enter_context(ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, **options))
            loads[APACHE] = Load(theirs, broker)
        yield loads


async def _measure(loads: dict[str, Load], count: int, pairs: int, seconds: float) -> list[Pair]:
    for load in loads.values():
        await load.fill(count)
        for _ in range(3):
            await load.window(seconds)  # warm
    measured: list[Pair] = []
    for number in range(pairs):
        order = list(loads) if number % 2 == 0 else list(reversed(loads))
        windows = {name: await loads[name].window(seconds) for name in order}
        measured.append((windows[OURS], windows[list(loads)[-1]]))
    return measured


def run(
    seconds: float = 2.5, *, pairs: int = PAIRS, messages: int = MESSAGES, ours_only: bool = False
) -> dict[str, dict[str, float]]:
    """Returns the results by broker, and the ratios ours / Apache's."""
    missing = [] if ours_only else missing_tools()
    if missing:
        raise RuntimeError(f"Apache's broker needs {', '.join(missing)}")
    if not ours_only:
        prepare()
    with _loads(ours_only=ours_only) as loads:
        pairs_measured = asyncio.run(_measure(loads, messages, pairs, seconds))
        figures = {name: dict(values) for name, values in summary("pop and ack", pairs_measured).items()}
        for name, load in loads.items():
            figures[name]["pops or acks refused"] = load.refused
            figures[name]["pops that found nothing"] = load.empty
    return {OURS: figures[OURS]} if ours_only else figures


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a window")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="stored before the first pop")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", help="write the figures there as well")
    options = parser.parse_args(arguments)
    results = run(
        options.seconds, pairs=options.pairs, messages=options.messages, ours_only=options.ours_only
    )
    for name, figures in results.items():
        for figure, value in figures.items():
            print(f"{name:16} {figure:44} {value:14,.3f}")
    if not options.ours_only:
        ratio = results["ratio"]["pop and ack, broker CPU us/message"]
        print(f"CPU ratio {ratio:.2f}, goal <= {CPU_GOAL}: {'met' if ratio <= CPU_GOAL else 'MISSED'}")
    if options.json is not None:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()
