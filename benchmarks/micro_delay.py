"""Measures the CPU of delayed messages without a network: into the store, into the wheel, and out again; levels and
timers.

    python -m benchmarks.micro_delay [--count 100000]

Prints messages per second of process CPU, and microseconds per message.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.delivery.parking import Parking
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.record.properties import encode_properties
from orbitmq.runtime.clock import ClockSteps
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage
from orbitmq.testing.manual_clock import ManualClock

BATCH = 32
QUEUES = 4


def messages(count: int, name: str, value: str) -> list[NewMessage]:
    properties = encode_properties(
        {
            "UNIQ_KEY": "7F0000014676C0DEE0B059E800000019",
            "WAIT": "true",
            "TAGS": "A",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
            name: value,
        }
    )
    host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
    return [NewMessage("T", number % QUEUES, b"x" * 128, properties, 1, host) for number in range(count)]


def measured(name: str, count: int, work: Callable[[], object]) -> None:
    started = time.process_time()
    work()
    seconds = time.process_time() - started
    print(f"{name:16} {count / seconds:10,.0f} /s  {seconds / count * 1e6:6.1f} us")


def run(count: int, directory: str) -> None:
    clock = ManualClock()
    config = BrokerConfig()
    store = MessageStore(StoreConfig(root=directory, segment_bytes=1 << 28), clock=clock)
    store.open()
    stats = BrokerStats()
    steps = ClockSteps(clock, lambda: store.max_log_offset)
    parking = Parking(config, DelayLevels(), steps, clock)
    puts = WritePath(store=store, parking=parking, stats=stats, gate=AckGate(store))
    timers = Timers(
        config=config, store=store, puts=puts, fs=LOCAL_FILE_SYSTEM, clock=clock, events=BrokerEvents()
    )
    file = SafeFile(LOCAL_FILE_SYSTEM, f"{directory}/config/delayOffset.json")
    schedule = Schedule(
        config=config,
        store=store,
        puts=puts,
        stats=stats,
        file=file,
        clock=clock,
        events=BrokerEvents(),
    )
    schedule.load()

    def put(batch: list[NewMessage]) -> None:
        for start in range(0, count, BATCH):
            store.append_batch([parking.of_producer(message) for message in batch[start : start + BATCH]])

    def delivered() -> int:
        return sum(store.max_offset("T", queue_id) for queue_id in range(QUEUES))

    waiting = messages(count, "DELAY", "1")
    measured("level in", count, lambda: put(waiting))
    clock.advance(1_000)
    measured("level out", count, lambda: asyncio.run(schedule.deliver_due()))
    assert delivered() == count
    waiting = messages(count, "TIMER_DELAY_SEC", "10")
    measured("timer in", count, lambda: put(waiting))
    measured("timer entered", count, lambda: asyncio.run(timers.work()))
    clock.advance(10_000)
    measured("timer out", count, lambda: asyncio.run(timers.work()))
    assert delivered() == 2 * count
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as directory:
        run(count, directory)


if __name__ == "__main__":
    main()
