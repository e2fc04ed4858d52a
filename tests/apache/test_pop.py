"""POP over remoting: Java's push consumer in POP mode and our own consumers, the same cases against both brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import JavaClients, Message, Script, remoting_call, wait_until
from tests.apache.ours import OrbitCluster
from tests.integration.ha_kit import until

from orbitmq.client import ConsumeFromWhere, Producer, PushConsumer, SimpleConsumer
from orbitmq.client import Message as OurMessage
from orbitmq.client.message import ReceivedMessage
from orbitmq.requests import RequestCode

Unique = Callable[[str], str]
Cluster = OrbitCluster | ApacheCluster


@pytest.fixture(params=["ours", "apache_cluster"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Our broker, then Apache's."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


def set_mode(cluster: Cluster, topic: str, group: str, mode: str) -> None:
    """Sends the same request as ``mqadmin setConsumeMode``."""
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
    code, _, _ = remoting_call(
        cluster.broker.address, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode()
    )
    assert code == 0


def polling_count(cluster: Cluster, topic: str, group: str) -> int:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "-1"}
    _, answer, _ = remoting_call(cluster.broker.address, RequestCode.POLLING_INFO, fields)
    return int(answer["pollingNum"])


def test_java_consumer_pops_and_acknowledges(
    java_latest: JavaClients, cluster: Cluster, unique: Unique
) -> None:
    topic, group = cluster.create_topic(unique("topic")), unique("readers")
    set_mode(cluster, topic, group, "POP")
    producer = java_latest.producer(unique("producers"), cluster.namesrv)
    bodies = {b"%d" % number for number in range(100)}
    producer.send_many([Message(topic=topic, body=body) for body in bodies], mode="async")
    consumer = java_latest.push_consumer(
        group, cluster.namesrv, {topic: "*"}, from_first=True, clientRebalance=False, popInvisibleTime=5000
    )
    consumer.wait_bodies(bodies)
    wait_until(lambda: polling_count(cluster, topic, group) > 0, timeout_s=20.0, what="a waiting pop")
    producer.send(Message(topic=topic, body=b"late"))
    consumer.wait_bodies({b"late"})
    assert consumer.count() == 101  # each once: all were acknowledged


def test_java_consumer_switched_from_pull_to_pop_and_back_loses_nothing(
    java_latest: JavaClients, cluster: Cluster, unique: Unique
) -> None:
    """Messages flow continuously to a slow listener, so that every switch finds some pulled but not handled."""
    topic, group = cluster.create_topic(unique("topic")), unique("readers")
    set_mode(cluster, topic, group, "PULL")
    producer = java_latest.producer(unique("producers"), cluster.namesrv)
    consumer = java_latest.push_consumer(
        group,
        cluster.namesrv,
        {topic: "*"},
        from_first=True,
        script=Script(sleep_ms=50),
        clientRebalance=False,
        popInvisibleTime=5000,
    )
    sent: set[bytes] = set()

    def comes_by_pop(*, expected: bool) -> bool:
        """Sends 20 more without waiting for them; returns whether the newest delivery came the expected way."""
        bodies = [b"%d" % number for number in range(len(sent), len(sent) + 20)]
        producer.send_many([Message(topic=topic, body=body) for body in bodies], mode="async")
        sent.update(bodies)
        newest = max(consumer.deliveries, key=lambda delivery: int(delivery.body), default=None)
        return newest is not None and ("POP_CK" in newest.message.properties) is expected

    for mode in ("PULL", "POP", "PULL", "POP"):
        set_mode(cluster, topic, group, mode)
        by_mode = partial(comes_by_pop, expected=mode == "POP")
        wait_until(by_mode, timeout_s=30.0, what=f"messages by {mode}")
    consumer.wait_bodies(sent)
    wait_until(lambda: polling_count(cluster, topic, group) > 0, timeout_s=20.0, what="a waiting pop")


@pytest.mark.soak
def test_java_consumer_gets_a_failed_message_again(
    java_latest: JavaClients, cluster: Cluster, unique: Unique
) -> None:
    """Java waits at least 10 s before another attempt."""
    topic, group = cluster.create_topic(unique("topic")), unique("readers")
    set_mode(cluster, topic, group, "POP")
    producer = java_latest.producer(unique("producers"), cluster.namesrv)
    consumer = java_latest.push_consumer(
        group,
        cluster.namesrv,
        {topic: "*"},
        from_first=True,
        script=Script(fail_times=1),
        clientRebalance=False,
    )
    producer.send(Message(topic=topic, body=b"twice", tags="T", keys="k"))
    first, second = consumer.wait(2, timeout_s=40.0)
    assert (first.body, second.body) == (b"twice", b"twice")
    assert (first.message.reconsume_times, second.message.reconsume_times) == (0, 1)
    assert second.message.topic == topic
    assert second.message.tags == "T"


async def _send(cluster: Cluster, topic: str, bodies: list[str]) -> None:
    async with Producer("senders", cluster.namesrv.address) as producer:
        for body in bodies:
            await producer.send(OurMessage(topic, body))


def test_our_simple_consumer_receives_hides_and_acknowledges(cluster: Cluster, unique: Unique) -> None:
    topic, group = cluster.create_topic(unique("topic"), queue_count=2), unique("readers")

    async def scenario() -> None:
        await _send(cluster, topic, ["a", "b", "c"])
        consumer = SimpleConsumer(group, cluster.namesrv.address, invisible_s=60)
        consumer.subscribe(topic)
        async with consumer:
            found: dict[str, Any] = {}
            while len(found) < 3:
                for message in await consumer.receive():
                    found[message.text()] = message
            await consumer.ack_all([found["a"], found["c"]])
            await consumer.change_invisible(found["b"], 0.5)
            (again,) = await consumer.receive(wait_s=12)
            assert (again.text(), again.attempt, again.topic) == ("b", 2, topic)
            await consumer.ack(again)
            assert await consumer.receive(wait_s=0.3) == []

    asyncio.run(scenario())


def _is_there(consumer: PushConsumer, handled: list[str], mode: str, count: int) -> bool:
    return len(set(handled)) >= count and bool(consumer._pops.held) == (mode == "POP")


def test_our_push_consumer_pops_when_told_to(cluster: Cluster, unique: Unique) -> None:
    topic, group = cluster.create_topic(unique("topic"), queue_count=2), unique("readers")
    handled: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.text())

    async def scenario() -> None:
        consumer = PushConsumer(
            group,
            cluster.namesrv.address,
            server_rebalance=True,
            rebalance_s=0.3,
            suspend_s=1.0,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(topic, "*", handle)
        async with consumer:
            for part, mode in enumerate(("PULL", "POP", "PULL")):
                set_mode(cluster, topic, group, mode)
                await _send(cluster, topic, [f"{part}-{number}" for number in range(50)])
                await until(
                    partial(_is_there, consumer, handled, mode, 50 * (part + 1)),
                    "all messages",
                    20.0,
                )

    asyncio.run(scenario())
