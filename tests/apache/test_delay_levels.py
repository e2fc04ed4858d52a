"""Delay levels and timers with the official Java client: never early, in order, and with the same fields as on
Apache.

How late a delivery may be is tested with a virtual clock in tests/unit/broker/delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import ClientError, JavaClients, Message
from tests.apache.ours import OrbitBroker, OrbitCluster, OrbitNamesrv, orbit_cluster
from tests.apache.servers import create_topic

Unique = Callable[[str], str]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_levels_fire_in_order_and_none_early(
    ours: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    """Levels 1 and 2, and one above the highest, which counts as the highest. Longer levels use the same code."""
    topic = ours.create_topic(unique("T"))
    producer = java_latest.producer(unique("PG"), ours.namesrv)
    consumer = java_latest.push_consumer(unique("CG"), ours.namesrv, {topic: "*"}, from_first=True)
    waits_ms = {1: 1_000, 2: 5_000}
    sent_ms: dict[int, int] = {}
    for level in (*waits_ms, 100):
        sent_ms[level] = now_ms()
        result = producer.send(Message(topic=topic, body=b"%d" % level, delay_level=level))
        assert result.status == "SEND_OK"
        assert result.queue.topic == topic
    consumer.wait(len(waits_ms))
    stored_ms = {int(delivery.body): delivery.message.stored_at_ms for delivery in consumer.deliveries}
    assert sorted(stored_ms, key=stored_ms.__getitem__) == list(waits_ms), "nothing of the highest level"
    for level, wait_ms in waits_ms.items():
        assert stored_ms[level] >= sent_ms[level] + wait_ms
    last = java_latest.admin(ours.namesrv).invoke("examineTopicStats", "SCHEDULE_TOPIC_XXXX")
    assert "17" in str(last)


def delayed(cluster: OrbitCluster | ApacheCluster, java: JavaClients, unique: Unique) -> list[dict[str, Any]]:
    """Returns the consumer's view of messages with every kind of delay."""
    topic = cluster.create_topic(unique("T"), queue_count=1)
    producer = java.producer(unique("PG"), cluster.namesrv)
    consumer = java.push_consumer(unique("CG"), cluster.namesrv, {topic: "*"}, from_first=True)
    kinds: dict[bytes, dict[str, Any]] = {
        b"level": {"delay_level": 1},
        b"ms": {"delay_ms": 1_500},
        b"s": {"delay_s": 2},
        b"at": {"deliver_at_ms": now_ms() + 1_200},
        b"past": {"deliver_at_ms": now_ms() - 1_000},
        b"both": {"delay_level": 1, "delay_ms": 60_000},
    }
    handles: dict[bytes, bool] = {}
    for body, options in kinds.items():
        result = producer.send(Message(topic=topic, body=body, tags="A", keys="k", **options))
        handles[body] = result.recall_handle is not None
    with pytest.raises(ClientError) as too_far:
        producer.send(Message(topic=topic, body=b"far", delay_s=3 * 86_400 + 10))
    deliveries = consumer.wait(len(kinds))
    seen = [
        {
            "body": delivery.body,
            "handle": handles[delivery.body],
            "names": sorted(set(delivery.message.properties) - {"MAX_OFFSET", "CONSUME_START_TIME"}),
            "queue": delivery.message.queue.queue_id,
            "fields": (delivery.message.tags, delivery.message.keys, delivery.message.reconsume_times),
        }
        for delivery in deliveries
    ]
    return [*sorted(seen, key=lambda one: repr(one["body"])), {"too far": too_far.value.code}]


def test_delayed_messages_look_as_against_apache(
    ours: OrbitCluster, apache_cluster: ApacheCluster, java_latest: JavaClients, unique: Unique
) -> None:
    assert delayed(ours, java_latest, unique) == delayed(apache_cluster, java_latest, unique)


def test_timers_fire_in_order_and_none_early(
    ours: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = ours.create_topic(unique("T"))
    producer = java_latest.producer(unique("PG"), ours.namesrv)
    consumer = java_latest.push_consumer(unique("CG"), ours.namesrv, {topic: "*"}, from_first=True)
    start_ms = now_ms()
    due_ms = [start_ms + 1_000 + 137 * number for number in range(20)]
    for due in due_ms:
        producer.send(Message(topic=topic, body=b"%d" % due, deliver_at_ms=due))
    consumer.wait(len(due_ms))
    stored = sorted((one.message.stored_at_ms, int(one.body)) for one in consumer.deliveries)
    assert [due for _, due in stored] == due_ms
    assert all(stored_ms >= due for stored_ms, due in stored)


def test_a_timer_message_can_be_taken_back(
    apache_tools: None, java_latest: JavaClients, ours: OrbitCluster, unique: Unique
) -> None:
    with orbit_cluster(recallMessageEnable=True) as cluster:
        topic = cluster.create_topic(unique("T"))
        producer = java_latest.producer(unique("PG"), cluster.namesrv)
        consumer = java_latest.push_consumer(unique("CG"), cluster.namesrv, {topic: "*"}, from_first=True)
        sent = producer.send(Message(topic=topic, body=b"gone", delay_ms=3_500))
        producer.send(Message(topic=topic, body=b"stays", delay_ms=3_500))
        assert sent.recall_handle is not None
        assert producer.recall(topic, sent.recall_handle) == sent.msg_id
        consumer.wait(1)
        producer.send(Message(topic=topic, body=b"fence", delay_ms=1_000))
        consumer.wait_bodies({b"fence"})
        assert sorted(consumer.bodies) == [b"fence", b"stays"]
    topic = ours.create_topic(unique("T"))
    producer = java_latest.producer(unique("PG"), ours.namesrv)
    sent = producer.send(Message(topic=topic, body=b"off", delay_s=5))
    with pytest.raises(ClientError) as refused:
        producer.recall(topic, sent.recall_handle or "")
    assert refused.value.code == 16


def test_a_clean_restart_repeats_and_loses_nothing(
    java_latest: JavaClients, unique: Unique, tmp_path: Path, apache_tools: None
) -> None:
    topic = unique("T")
    with OrbitNamesrv() as namesrv:
        broker = OrbitBroker(namesrv, tmp_path / "store")
        with broker:
            create_topic(namesrv, broker, topic, queue_count=2)
            producer = java_latest.producer(unique("PG"), namesrv)
            bodies = set()
            for number in range(60):
                for kind, more in (("level", {"delay_level": 1}), ("timer", {"delay_ms": 300 + 50 * number})):
                    body = f"{kind} {number}".encode()
                    bodies.add(body)
                    producer.send(Message(topic=topic, body=body, **more))  # type: ignore[arg-type]  # values of several types by name
            broker.stop()
        with broker:
            consumer = java_latest.push_consumer(unique("CG"), namesrv, {topic: "*"}, from_first=True)
            consumer.wait_bodies(bodies)
            # A level delivers in order, so any repeated messages come before these. Two of each kind: both queues.
            for number in range(2):
                for kind, more in (("level", {"delay_level": 1}), ("timer", {"delay_ms": 1_500})):
                    body = f"last {kind} {number}".encode()
                    bodies.add(body)
                    producer.send(Message(topic=topic, body=body, **more))  # type: ignore[arg-type]  # as above
            consumer.wait_bodies(bodies)
            assert sorted(consumer.bodies) == sorted(bodies)
