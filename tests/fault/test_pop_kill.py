"""kill -9 of a broker under POP load: no acknowledged message is lost, every message is delivered at least once, and
only messages in flight, or acknowledged just before the kill, are delivered twice.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.integration.ha_kit import until

from orbitmq.client import Message, Producer, SimpleConsumer
from orbitmq.errors import OrbitError

pytestmark = pytest.mark.slow

TOPIC = "killed"


async def _produce(namesrv: str, sent: set[str], stop: asyncio.Event) -> None:
    number = 0
    async with Producer("senders", namesrv, send_timeout_s=2.0) as producer:
        while not stop.is_set():
            bodies = [f"m{number + step}" for step in range(16)]
            number += len(bodies)
            try:
                await producer.send_batch([Message(TOPIC, body) for body in bodies])
                sent.update(bodies)
                await asyncio.sleep(0.02)  # a load both consumers keep up with
            except OrbitError:
                await asyncio.sleep(0.05)  # not acknowledged: it may be stored or not


async def _consume(namesrv: str, deliveries: dict[str, int], acked: set[str], stop: asyncio.Event) -> None:
    consumer = SimpleConsumer("readers", namesrv, invisible_s=2.0, await_s=0.5)
    consumer.subscribe(TOPIC)
    async with consumer:
        while not stop.is_set():
            try:
                messages = await consumer.receive(32)
            except OrbitError:
                await asyncio.sleep(0.05)
                continue
            for message in messages:
                deliveries[message.text()] = deliveries.get(message.text(), 0) + 1
            for message in messages:
                try:
                    await consumer.ack(message)
                    acked.add(message.text())
                except OrbitError:
                    continue


async def _load(namesrv: OrbitNamesrv, broker: OrbitBroker, kills: int) -> dict[str, int]:
    sent: set[str] = set()
    acked: set[str] = set()
    deliveries: dict[str, int] = {}
    stop_sending, stop = asyncio.Event(), asyncio.Event()
    address = namesrv.address
    tasks = [
        asyncio.ensure_future(_produce(address, sent, stop_sending)),
        *(asyncio.ensure_future(_consume(address, deliveries, acked, stop)) for _ in range(2)),
    ]
    acked_again = 0
    for _ in range(kills):
        await asyncio.sleep(1.5)
        before, seen = set(acked), dict(deliveries)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await asyncio.sleep(3.0)  # longer than the invisible time
        acked_again += sum(deliveries[body] > seen[body] for body in before)
    stop_sending.set()
    await until(lambda: sent <= acked, "everything to be acknowledged", 60.0)
    stop.set()
    await asyncio.gather(*tasks)
    return {
        "sent": len(sent),
        "missing": len(sent - set(deliveries)),
        "redelivered": sum(count - 1 for count in deliveries.values()),
        "acknowledged and redelivered": acked_again,
    }


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_kill_under_load_loses_nothing_and_repeats_little(kills: int) -> None:
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv) as broker:
        figures = asyncio.run(_load(namesrv, broker, kills))
    assert figures["sent"] > 100
    assert figures["missing"] == 0
    # Of the acknowledgements before a kill, only those of the last 100 ms are solely in memory.
    assert figures["acknowledged and redelivered"] <= kills * 300, figures
    assert figures["redelivered"] <= kills * 600, figures
