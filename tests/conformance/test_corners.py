"""Where services get stuck: brokers that freeze, callbacks that never return, bodies nobody can read, calls in the
wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.conformance.proxy import Proxy
from tests.conformance.waiting import Collector

from orbitmq.client import LitePullConsumer, Message, Producer, PushConsumer
from orbitmq.testing import RunningBroker, run_broker

NEAR, FAR = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """A broker that tells clients another address than its own: the one a proxy listens on."""
    with run_broker(brokerIP1=FAR) as broker:
        yield broker


def proxy_for(broker: RunningBroker) -> Proxy:
    port = int(broker.address.rpartition(":")[2])
    return Proxy((FAR, port), (NEAR, port))


async def fill(broker: RunningBroker, topic: str, count: int, *, queue_count: int = 1) -> None:
    await asyncio.to_thread(broker.create_topic, topic, queue_count=queue_count)
    async with Producer("writers", broker.name_server) as producer:
        for number in range(count):
            await producer.send(Message(topic, f"{number}"))


@pytest.mark.parametrize("orderly", [False, True])
async def test_stop_beside_a_frozen_broker_takes_as_long_for_many_queues_as_for_one(
    broker: RunningBroker, orderly: bool
) -> None:
    topic = f"frozen-{orderly}"
    async with proxy_for(broker) as proxy:
        await fill(broker, topic, 32, queue_count=16)
        collector = Collector()
        consumer = PushConsumer(
            f"frozen-{orderly}", broker.name_server, start="first", orderly=orderly, call_timeout_s=0.5
        )
        collector.on(consumer, topic)
        async with consumer:
            await collector.wait(32)
            proxy.stall()
            began = asyncio.get_running_loop().time()
            await consumer.stop()
            # Store the offsets, give back the locks, say goodbye: a time-out each, not one for each queue.
            assert asyncio.get_running_loop().time() - began < 4.0
        proxy.flow()


async def test_commit_beside_a_frozen_broker_takes_one_timeout(broker: RunningBroker) -> None:
    async with proxy_for(broker) as proxy:
        await fill(broker, "frozen-commit", 32, queue_count=16)
        consumer = LitePullConsumer(
            "frozen-commit", broker.name_server, start="first", poll_batch_size=1, call_timeout_s=0.5
        )
        consumer.subscribe("frozen-commit")
        async with consumer:
            for _ in range(16):
                assert await consumer.poll(10.0)
            proxy.stall()
            began = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await consumer.commit()
            assert asyncio.get_running_loop().time() - began < 3.0
            proxy.flow()
            await consumer.commit()
