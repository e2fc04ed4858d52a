"""Where services get stuck: brokers that freeze, callbacks that never return, bodies nobody can read, calls in the
wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conformance.proxy import Proxy
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    BodyMismatch,
    ClientClosedError,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from orbitmq.codes import SysFlag
from orbitmq.errors import ConfigError
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


async def send_damaged(broker: RunningBroker, topic: str) -> None:
    """One message that says it is compressed and is not, between two good ones, in one queue."""
    async with Producer("writers", broker.name_server, auto_create_queue_count=1) as producer:
        await producer.send(Message(topic, "one"))
        outgoing = producer._sender.prepare(Message(topic, "not compressed"))
        outgoing.sys_flag = int(SysFlag.COMPRESSED)
        await producer._sender.send(outgoing)
        await producer.send(Message(topic, "two"))


async def test_damaged_body_is_a_failed_message_and_its_queue_goes_on(broker: RunningBroker) -> None:
    async with proxy_for(broker):
        await send_damaged(broker, "damaged-push")
        good: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            good.append(message.text())

        dead: list[ReceivedMessage] = []

        async def bury(message: ReceivedMessage) -> None:
            dead.append(message)

        consumer = PushConsumer("damaged-push", broker.name_server, start="first", reconsume_max=0)
        consumer.subscribe("damaged-push", handler=handle)
        cemetery = PushConsumer("damaged-dead", broker.name_server, start="first", rebalance_s=0.5)
        cemetery.subscribe("%DLQ%damaged-push", handler=bury)
        async with consumer, cemetery:
            await until(lambda: sorted(good) == ["one", "two"] and dead, "both good ones, and a dead letter")
    assert dead[0].record.body == b"not compressed"
    assert "zlib" in (dead[0].get("RETRY_REASON") or "")
    with pytest.raises(BodyMismatch, match="zlib"):
        dead[0].text()


async def test_damaged_body_does_not_hold_up_those_who_ask_for_messages(broker: RunningBroker) -> None:
    async with proxy_for(broker):
        await send_damaged(broker, "damaged-pull")
        came: list[ReceivedMessage] = []
        async with LitePullConsumer("damaged-pull", broker.name_server, start="first") as reader:
            reader.subscribe("damaged-pull")
            while len(came) < 3:
                came += await reader.poll(10.0)
        async with SimpleConsumer("damaged-simple", broker.name_server) as simple:
            simple.subscribe("damaged-pull")
            while len(came) < 6:
                came += await simple.receive(wait_s=10.0)
    assert [m.record.body for m in came] == 2 * [b"one", b"not compressed", b"two"]
    with pytest.raises(BodyMismatch, match="zlib"):
        _ = came[1].body


async def test_receive_says_at_once_that_its_consumer_does_not_run(broker: RunningBroker) -> None:
    async with proxy_for(broker):
        await fill(broker, "receive-life", 1)
        consumer = SimpleConsumer("receive-life", broker.name_server)
        consumer.subscribe("receive-life")
        with pytest.raises(ClientClosedError, match="not started"):
            await consumer.receive(wait_s=20)
        await consumer.start()
        assert len(await consumer.receive(wait_s=10)) == 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        for topics in (1, 2):  # one place is waited at by the pop itself, several by notifications
            if topics == 2:
                consumer = SimpleConsumer("receive-life-2", broker.name_server)
                consumer.subscribe("receive-none")
                consumer.subscribe("receive-life", "other")
                await fill(broker, "receive-none", 0)
                await consumer.start()
            waiting = asyncio.ensure_future(consumer.receive(wait_s=30))
            await asyncio.sleep(0.3)
            await consumer.stop()
            with pytest.raises(ClientClosedError, match="stopped"):
                await waiting
            with pytest.raises(ClientClosedError, match="stopped"):
                await consumer.receive(wait_s=30)
        assert loop.time() - began < 15.0


async def test_receive_raises_when_no_topic_could_be_asked_for(broker: RunningBroker) -> None:
    consumer = SimpleConsumer("receive-ab", broker.name_server, call_timeout_s=0.5)
    consumer.subscribe("receive-a")
    consumer.subscribe("receive-b")
    async with proxy_for(broker):
        for topic in ("receive-a", "receive-b"):
            await fill(broker, topic, 0)
        await consumer.start()
        assert await consumer.receive(wait_s=0.2) == []
    with pytest.raises(ConnectionError):
        await consumer.receive(wait_s=0.2)
    await consumer.stop()


@pytest.mark.parametrize(
    "wrong", [{"invisible_s": -1}, {"invisible_s": float("nan")}, {"wait_s": float("inf")}]
)
async def test_receive_refuses_times_that_are_none(broker: RunningBroker, wrong: dict[str, Any]) -> None:
    async with proxy_for(broker), SimpleConsumer("receive-times", broker.name_server) as consumer:
        consumer.subscribe("receive-times")
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .* accepted"):
            await consumer.receive(**wrong)


async def test_missing_topic_is_one_log_line_however_often_it_is_asked_for(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxy_for(broker):
        await fill(broker, "receive-here", 0)
        async with SimpleConsumer("receive-missing", broker.name_server) as consumer:
            consumer.subscribe("receive-here")
            consumer.subscribe("receive-not-here")
            for _ in range(20):
                await consumer.receive(wait_s=0)
    lines = [record for record in caplog.records if "does not exist yet" in record.getMessage()]
    assert len(lines) == 1
