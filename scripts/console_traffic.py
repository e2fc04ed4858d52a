"""Generates varied traffic for the screenshots of the console: four topics, five groups with lag and dead letters,
and a slave.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from orbitmq.client import ConsumeFromWhere, Message, Producer, PushConsumer, ReceivedMessage, RetryLater
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.testing import RunningBroker

__all__ = ["running_slave", "traffic"]

RATES: Final = {"orders": 12.0, "payments": 6.0, "shipments": 3.0, "clicks": 25.0}
"""Mean messages per second by topic. The rates rise and fall, each with a period of its own."""
_PERIOD_S: Final = 900.0
_TAGS: Final = {
    "orders": ("new", "paid"),
    "payments": ("card", "transfer"),
    "shipments": ("sent",),
    "clicks": ("web",),
}
_PAUSES: Final = {"search-index": (1200.0, 240.0), "statistics": (700.0, 90.0)}
"""Groups that stop consuming now and then: every so many seconds, for so many seconds."""
_FAILURE_SHARE: Final = 0.002


@contextlib.contextmanager
def running_slave(broker: RunningBroker, directory: Path) -> Iterator[None]:
    """Runs a slave of the broker in a separate process."""
    settings = {
        "brokerName": "broker-a",
        "brokerId": 1,
        "brokerRole": "SLAVE",
        "namesrvAddr": broker.name_server,
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": directory / "store",
        "mappedFileSizeCommitLog": 64 * 1024 * 1024,
        "metricsExporterType": "DISABLE",
    }
    arguments = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "orbitmq.cli.main", "broker", *arguments], env=dict(os.environ)
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


@contextlib.asynccontextmanager
async def traffic(name_server: str, seconds: float) -> AsyncIterator[None]:
    """Sends and consumes until the block ends; enters the block after that many seconds."""
    consumers = [
        _consumer("billing", name_server, "payments", _book),
        _consumer("warehouse", name_server, "orders", _quick),
        _consumer("search-index", name_server, "clicks", _Paused("search-index")),
        _consumer("statistics", name_server, "orders", _Paused("statistics")),
        _consumer("emails", name_server, "shipments", _quick),
    ]
    async with contextlib.AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer("web-shop", name_server, send_timeout_s=30.0))
        for topic in RATES:
            await producer.send(Message(topic, "first"))
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        tasks = TaskOwner("traffic")
        stack.push_async_callback(tasks.close)
        for topic, rate in RATES.items():
            tasks.start(_send(producer, topic, rate), name=topic)
        await asyncio.sleep(seconds)
        yield


async def _send(producer: Producer, topic: str, rate: float) -> None:
    loop = asyncio.get_running_loop()
    begin, number, chance = loop.time(), 0, random.Random(topic)
    phase = chance.random() * 2 * math.pi
    while True:
        wave = (
            1
            + 0.6 * math.sin(2 * math.pi * (loop.time() - begin) / _PERIOD_S + phase)
            + chance.uniform(-0.2, 0.2)
        )
        count = max(1, round(rate * wave))
        for _ in range(count):
            number += 1
            body = f'{{"id": {number}, "customer": "c-{number % 97}", "amount": {chance.randint(5, 400)}}}'
            tag = chance.choice(_TAGS[topic])
            await producer.send(Message(topic, body, tags=tag, keys=f"{topic}-{number}"))
            await asyncio.sleep(1 / count)


def _consumer(group: str, name_server: str, topic: str, handler: object) -> PushConsumer:
    consumer = PushConsumer(
        group, name_server, from_where=ConsumeFromWhere.FIRST_OFFSET, reconsume_max=1, instance_name="pod-1"
    )
    consumer.subscribe(topic, "*", handler)  # type: ignore[arg-type]  # a handler of any of the accepted forms
    return consumer


async def _quick(_: ReceivedMessage) -> None:
    return None


async def _book(message: ReceivedMessage) -> None:
    if random.Random(message.keys[0] if message.keys else "").random() < _FAILURE_SHARE:
        raise RetryLater("the bank refused the payment", delay=1)


class _Paused:
    """A handler that waits during its group's pauses, so that lag builds up and is worked off."""

    def __init__(self, group: str) -> None:
        self._every_s, self._pause_s = _PAUSES[group]

    async def __call__(self, _: ReceivedMessage) -> None:
        into_s = asyncio.get_running_loop().time() % self._every_s
        if into_s < self._pause_s:
            await asyncio.sleep(self._pause_s - into_s)
