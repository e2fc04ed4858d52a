"""Finds messages by key, unique key, offset id and time, and resets groups to an earlier message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import ClientError, JavaClients, Message, Producer, Received, wait_until
from tests.apache.ours import OrbitCluster, orbit_cluster

Unique = Callable[[str], str]
Cluster = OrbitCluster | ApacheCluster


def bodies(found: list[Received]) -> list[bytes]:
    return sorted(message.body for message in found)


def query_in_every_way(java: JavaClients, cluster: Cluster, topic: str, group: str) -> list[Any]:
    producer = java.producer(group, cluster.namesrv)
    queues = producer.queues(topic)
    sent = [
        producer.send(
            Message(topic=topic, body=b"%d" % number, keys=f"order-{number % 3} all", tags="T"),
            queue=queues[number % len(queues)],
        )
        for number in range(12)
    ]
    wait_until(lambda: len(_found(producer, topic, "order-2")) == 4, timeout_s=10, what="the index")
    seen: list[Any] = [_found(producer, topic, f"order-{number}") for number in range(3)]
    seen += [
        bodies(producer.query_by_key(topic, "all", max_count=64)),
        len(producer.query_by_key(topic, "all", max_count=5)),
    ]
    for key in ("nothing", "order", "order-0 all"):
        with pytest.raises(ClientError) as refused:
            producer.query_by_key(topic, key)
        seen.append((refused.value.kind, refused.value.code))
    with pytest.raises(ClientError) as elsewhere:
        producer.query_by_key(cluster.create_topic(f"{topic}-other", queue_count=1), "all")
    seen.append(elsewhere.value.code)
    for result in sent[:3]:
        by_unique_key = producer.query_by_id(topic, result.msg_id)
        by_offset_id = producer.query_by_id(topic, result.offset_msg_id or "")
        assert by_unique_key.queue_offset == by_offset_id.queue_offset == result.queue_offset
        assert by_unique_key.offset_msg_id == result.offset_msg_id
        seen.append((by_unique_key.body, by_offset_id.body, by_offset_id.properties.get("KEYS")))
    return seen


def test_queries_find_the_same_as_at_apaches(
    any_java: JavaClients, ours: OrbitCluster, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    outcomes = []
    clusters: tuple[Cluster, ...] = (ours, apache_cluster)
    for cluster in clusters:
        topic = cluster.create_topic(unique("topic"), queue_count=2)
        outcomes.append(query_in_every_way(any_java, cluster, topic, unique("producers")))
    assert outcomes[0] == outcomes[1]


def test_time_bounds_of_queries_and_searches_are_those_of_apaches(
    java_latest: JavaClients, ours: OrbitCluster, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    outcomes = []
    clusters: tuple[Cluster, ...] = (ours, apache_cluster)
    for cluster in clusters:
        topic = cluster.create_topic(unique("topic"), queue_count=1)
        producer = java_latest.producer(unique("producers"), cluster.namesrv)
        [queue] = producer.queues(topic)
        first = producer.send_many([Message(topic=topic, body=b"early", keys="größe") for _ in range(3)])
        time.sleep(2.2)  # the index keeps seconds
        producer.send(Message(topic=topic, body=b"late", keys="größe"))
        wait_until(
            lambda producer=producer, topic=topic: len(_found(producer, topic, "größe")) == 4,  # type: ignore[misc]  # a default binds the loop's value
            timeout_s=10,
            what="the index",
        )
        stored_ms = producer.query_by_id(topic, first[-1].msg_id).stored_at_ms
        middle_ms = stored_ms + 1_100
        outcomes.append(
            [
                _found(producer, topic, "größe", begin_ms=middle_ms),
                _found(producer, topic, "größe", end_ms=middle_ms),
                _found(producer, topic, "größe", begin_ms=middle_ms, end_ms=middle_ms),
                [producer.search_offset(queue, at) for at in (0, middle_ms, middle_ms + 3_600_000)],
                producer.search_offset(queue, stored_ms) <= 2,
            ]
        )
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:3] == [[b"late"], [b"early"] * 3, []]


def test_messages_are_found_again_after_a_restart_and_after_a_kill(
    java_latest: JavaClients, unique: Unique
) -> None:
    with orbit_cluster() as cluster:
        topic = cluster.create_topic(unique("topic"), queue_count=1)
        producer = java_latest.producer(unique("producers"), cluster.namesrv)
        results = [
            producer.send(Message(topic=topic, body=b"%d" % number, keys=f"k{number}"))
            for number in range(50)
        ]
        for end in (lambda: cluster.broker.exit_code(timeout_s=10), cluster.broker.kill):
            end()
            cluster.broker.start()
            for number in (0, 17, 49):
                # The client may need some time to find the broker again.
                wait_until(
                    lambda number=number: _found(producer, topic, f"k{number}") == [b"%d" % number],  # type: ignore[misc]  # a default binds the loop's value
                    timeout_s=20,
                    what=f"k{number}",
                )
                assert producer.query_by_id(topic, results[number].msg_id).body == b"%d" % number
        java_latest.abandon()


def _found(producer: Producer, topic: str, key: str, **bounds: int) -> list[bytes]:
    try:
        return bodies(producer.query_by_key(topic, key, **bounds))
    except ClientError:
        return []


@pytest.mark.parametrize("java", ["java_latest", "java_legacy"])
def test_offsets_reset_by_time_send_a_running_group_back(
    java: str, request: pytest.FixtureRequest, ours: OrbitCluster, unique: Unique
) -> None:
    clients: JavaClients = request.getfixturevalue(java)
    topic = ours.create_topic(unique("topic"), queue_count=2)
    group = ours.create_group(unique("readers"))
    producer = clients.producer(unique("producers"), ours.namesrv)
    early = [Message(topic=topic, body=b"early-%d" % number) for number in range(6)]
    producer.send_many(early)
    middle_ms = int(time.time() * 1000) + 50
    while int(time.time() * 1000) <= middle_ms:
        time.sleep(0.01)
    late = [Message(topic=topic, body=b"late-%d" % number) for number in range(4)]
    producer.send_many(late)
    consumer = clients.push_consumer(group, ours.namesrv, {topic: "*"}, from_first=True)
    consumer.wait_bodies({message.body for message in (*early, *late)})
    consumer.persist()
    admin = clients.admin(ours.namesrv)
    admin.invoke("resetOffsetByTimestamp", topic, group, middle_ms, True)

    def late_again() -> bool:
        return all(consumer.bodies.count(message.body) >= 2 for message in late)

    wait_until(late_again, timeout_s=40, what="the late messages a second time")
    assert all(consumer.bodies.count(message.body) == 1 for message in early), "nothing older was redelivered"
