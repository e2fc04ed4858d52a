"""Runs our broker under steady load: its memory must not grow, and nothing may fail.

    python -m benchmarks.soak --minutes 30

First the broker receives as many simultaneous sends as the steady load may have in flight when it falls behind
(1,024), so that its buffers reach their maximum size. Then the maximum rate is measured: 64 sends in flight and a
consumer, both in this process. Then 70 % of that rate (``--share``) is sent for the given time. Broker and name
server are separate processes, started as a user would start them. The memory of the broker is its private bytes (not
the page cache of mapped files), sampled every five seconds. Its median over the last tenth of the time may be at most
5 % above that over the second tenth. Every acknowledged message must be handled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

from tests.apache.ours import OrbitBroker, orbit_cluster

from orbitmq.client import Message, Producer, PushConsumer
from orbitmq.client.message import ReceivedMessage, SendStatus
from orbitmq.errors import OrbitError

TOPIC = "soak"
SENDERS = 64
IN_FLIGHT_MAX = 16 * SENDERS
BODY = b"x" * 1024
SAMPLE_S = 5.0
TURN_S = 0.01
GROWTH_MAX = 0.05
CATCH_UP_S = 60.0


class Run:
    """The clients and their counters."""

    def __init__(self, namesrv: str) -> None:
        self._producer = Producer("soak-writers", namesrv)
        self._consumer = PushConsumer("soak-readers", namesrv, start="first")
        self._consumer.subscribe(TOPIC, handler=self._handle)
        self.acked = self.handled = 0
        self.errors: list[str] = []
        self._waiting: set[asyncio.Task[None]] = set()
        self.late = 0
        """Sends that were due and had no place among those on their way."""

    async def __aenter__(self) -> Run:
        await self._producer.start()
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()
        await self._consumer.stop()

    async def _handle(self, message: ReceivedMessage) -> None:
        self.handled += 1

    async def _send(self) -> None:
        try:
            result = await self._producer.send(Message(TOPIC, BODY))
        except OrbitError as error:
            self.errors.append(f"{type(error).__name__}: {error}"[:200])
            return
        if result.status is not SendStatus.OK:
            self.errors.append(f"status {result.status.name}")
        self.acked += 1

    async def maximum(self, seconds: float, senders: int = SENDERS) -> float:
        """Returns messages per second, sent as fast as they are acknowledged."""
        until, before, began = time.monotonic() + seconds, self.acked, time.monotonic()

        async def sender() -> None:
            while time.monotonic() < until:
                await self._send()

        await asyncio.gather(*(sender() for _ in range(senders)))
        return (self.acked - before) / (time.monotonic() - began)

    async def steady(self, rate: float, seconds: float) -> None:
        """Sends at that rate per second, whether or not the previous sends were answered."""
        began = time.monotonic()
        started = 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * rate) - started
            started += due
            for _ in range(due):
                if len(self._waiting) >= IN_FLIGHT_MAX:
                    self.late += 1
                    continue
                task = asyncio.create_task(self._send())
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
            await asyncio.sleep(TURN_S)
        await asyncio.gather(*self._waiting)

    async def caught_up(self) -> bool:
        until = time.monotonic() + CATCH_UP_S
        while self.handled < self.acked and time.monotonic() < until:  # noqa: ASYNC110 - handlers only count
            await asyncio.sleep(0.1)
        return self.handled >= self.acked


async def watch(broker: OrbitBroker, samples: list[int]) -> None:
    while True:
        samples.append(broker.private_bytes())
        await asyncio.sleep(SAMPLE_S)


def growth(samples: list[int]) -> float:
    """Returns the ratio of the median of the last tenth to that of the second tenth."""
    tenth = max(1, len(samples) // 10)
    before = statistics.median(samples[tenth : 2 * tenth])
    return statistics.median(samples[-tenth:]) / before - 1


async def soak(broker: OrbitBroker, namesrv: str, minutes: float, share: float) -> dict[str, Any]:
    samples: list[int] = []
    async with Run(namesrv) as run:
        await run.maximum(5.0, IN_FLIGHT_MAX)  # connections, caches, buffers and the first files
        maximum = await run.maximum(10.0)
        await run.caught_up()
        watching = asyncio.create_task(watch(broker, samples))
        before, cpu = run.acked, broker.cpu_seconds()
        await run.steady(maximum * share, minutes * 60)
        sent = run.acked - before
        watching.cancel()
        whole = await run.caught_up()
    return {
        "minutes": minutes,
        "maximum_per_s": round(maximum),
        "sent": sent,
        "sent_per_s": round(sent / (minutes * 60)),
        "not_sent_in_time": run.late,
        "errors": len(run.errors),
        "first_errors": run.errors[:3],
        "all_handled": whole,
        "handled_again": run.handled - run.acked,
        "broker_cpu_us_per_message": round((broker.cpu_seconds() - cpu) / max(1, sent) * 1e6),
        "memory_mib": [round(value / 2**20, 1) for value in samples[:: max(1, len(samples) // 20)]],
        "memory_growth": round(growth(samples), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--share", type=float, default=0.7)
    arguments = parser.parse_args()
    # Log files older than an hour are deleted, so the disk holds at most an hour's messages of 1.2 KB each.
    hours = ";".join(f"{hour:02}" for hour in range(24))
    with orbit_cluster(
        fileReservedTime=1, deleteWhen=hours, mappedFileSizeCommitLog=64 * 1024 * 1024
    ) as cluster:
        cluster.create_topic(TOPIC, queue_count=8)
        figures = asyncio.run(
            soak(cluster.broker, cluster.namesrv.address, arguments.minutes, arguments.share)
        )
    print(json.dumps(figures, indent=1))
    good = not figures["errors"] and figures["all_handled"] and figures["memory_growth"] <= GROWTH_MAX
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
