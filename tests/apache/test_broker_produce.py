"""Sends in every way with every official client. Clients must see the same from both brokers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import (
    ClientError,
    Clients,
    GoClients,
    JavaClients,
    Message,
    Received,
    SendResult,
    wait_until,
)
from tests.apache.ours import OrbitCluster

Unique = Callable[[str], str]
Cluster = OrbitCluster | ApacheCluster
MESSAGE_ILLEGAL: Final = 13
INVALID_PARAMETER: Final = 29
NASTY: Final = 'größe "quoted" \\ back\tslash\n新しい 🚀 {"a":1}'


def shown(result: SendResult, cluster: Cluster, *, chosen: bool) -> dict[str, Any]:
    """Returns a send's result without values that differ between runs; ids are checked here instead."""
    ids = (result.offset_msg_id or "").split(",")
    for one in ids:
        host, port = cluster.broker.address.split(":")
        expected = "".join(f"{int(part):02X}" for part in host.split(".")) + f"{int(port):08X}"
        assert one.startswith(expected), (one, expected)
        assert len(one) == 32
    return {
        "status": result.status,
        "ids": len(ids),
        "unique_keys": [len(one) for one in result.msg_id.split(",")],
        "queue": result.queue.queue_id if chosen else None,
        "broker": result.queue.broker_name,
        "transaction_id": bool(result.transaction_id),
        "region": result.region_id,
        "trace": result.trace_on,
        "recall": result.recall_handle,
    }


def stored(message: Received) -> dict[str, Any]:
    """Returns a message without values that differ between runs."""
    volatile = {"UNIQ_KEY", "MAX_OFFSET", "CONSUME_START_TIME", "TRAN_MSG", "MIN_OFFSET"}
    properties = {name: value for name, value in message.properties.items() if name not in volatile}
    return {
        "body": message.body,
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "properties": properties,
        "names": sorted(set(message.properties) - {"MAX_OFFSET", "CONSUME_START_TIME"}),
        "reconsume_times": message.reconsume_times,
        "crc": message.body_crc,
        "prepared": message.prepared_transaction_offset,
        "born_host": (message.born_host or "").split(":")[0],
        "broker": message.broker_name,
    }


def send_in_every_way(
    clients: Clients, cluster: Cluster, topic: str, groups: tuple[str, str]
) -> tuple[list[dict[str, Any]], list[Received]]:
    """Returns the results of all sends, and all messages by body."""
    producer = clients.producer(groups[0], cluster.namesrv)
    queues = producer.queues(topic)
    assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]

    def message(body: bytes, **more: Any) -> Message:
        return Message(topic=topic, body=body, **more)

    results = [
        (producer.send(message(b"sync", tags="A", keys="k1 k2", flag=7)), False),
        (producer.send(message(b"async", tags="B"), mode="async"), False),
        (producer.send(message(b"queue", properties={"a": "1", "b": NASTY}), queue=queues[2]), True),
        (producer.send(message(b"index"), selector=("index", 3)), False),
        (producer.send(message(NASTY.encode(), tags="größe", keys="schlüssel")), False),
        (producer.send(message(b"unwaited", wait_store=False)), False),
    ]
    assert results[3][0].queue == queues[3]
    one, other = (producer.send(message(name), selector=("hash", "order-7")) for name in (b"h1", b"h2"))
    assert one.queue == other.queue
    assert other.queue_offset == one.queue_offset + 1
    results += [(one, False), (other, False)]
    producer.send_oneway(message(b"oneway", tags="A"))
    batch = [message(b"b%d" % n, tags="T", keys=f"k{n}", properties={"n": str(n)}) for n in range(3)]
    results.append((producer.send_batch(batch), False))
    many = [message(b"m%d" % n) for n in range(20)]
    sent = producer.send_many(many, mode="async", queue=queues[1])
    assert {result.queue for result in sent} == {queues[1]}
    # Async sends may overtake each other, but every position in the queue is used once.
    assert len({result.queue_offset for result in sent}) == 20
    results += [(result, False) for result in sent]
    expected = {b"sync", b"async", b"queue", b"index", NASTY.encode(), b"unwaited", b"h1", b"h2", b"oneway"}
    expected |= {b"b0", b"b1", b"b2"} | {one.body for one in many}
    consumer = clients.push_consumer(groups[1], cluster.namesrv, {topic: "*"}, from_first=True)
    deliveries = consumer.wait_bodies(expected)
    received = [delivery.message for delivery in deliveries]
    assert len(received) == len(expected), "every message exactly once"
    by_place = {(found.queue, found.queue_offset): found for found in received}
    for result, _ in results:
        found = by_place[result.queue, result.queue_offset]
        if result.msg_id:  # the Go client gives none for a batch
            assert found.msg_id == result.msg_id.split(",")[0]
        assert found.offset_msg_id == (result.offset_msg_id or "").split(",")[0]
        assert found.store_host == cluster.broker.address
        assert found.stored_at_ms >= found.born_at_ms - 1_000
    shown_results = [shown(result, cluster, chosen=chosen) for result, chosen in results]
    return shown_results, sorted(received, key=lambda found: found.body)


def test_every_way_to_send_looks_the_same_as_against_apache(
    any_client: Clients, ours: OrbitCluster, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    outcomes = []
    clusters: tuple[Cluster, ...] = (ours, apache_cluster)
    for cluster in clusters:
        topic = cluster.create_topic(unique("topic"))
        groups = (unique("producers"), unique("readers"))
        results, received = send_in_every_way(any_client, cluster, topic, groups)
        outcomes.append((results, [stored(message) for message in received]))
    (our_results, our_messages), (their_results, their_messages) = outcomes
    assert our_results == their_results
    assert our_messages == their_messages


def test_big_bodies_arrive_whole_and_the_limit_holds(
    any_client: Clients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"), queue_count=1)
    noise = random.Random(7)
    bodies = [noise.randbytes(3 * 1024 * 1024), b"repeated " * 50_000, noise.randbytes(4_097), b""]
    if isinstance(any_client, GoClients):
        bodies.pop()  # the Go client refuses an empty body itself, as Java's does below
    producer = any_client.producer(unique("producers"), ours.namesrv)
    for body in bodies:
        if body:
            assert producer.send(Message(topic=topic, body=body)).status == "SEND_OK"
        else:
            with pytest.raises(ClientError):
                producer.send(Message(topic=topic, body=body))
    consumer = any_client.push_consumer(unique("readers"), ours.namesrv, {topic: "*"}, from_first=True)
    received = consumer.wait_bodies({body for body in bodies if body})
    assert len(received) == 3
    [repetitive] = [delivery.message for delivery in received if delivery.body == bodies[1]]
    assert repetitive.store_bytes < len(bodies[1]) / 50, "stored as the client compressed it"


def test_message_over_the_limit_is_refused_with_its_code(
    any_java: JavaClients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"), queue_count=1)
    producer = any_java.producer(unique("producers"), ours.namesrv, maxMessageSize=16 * 1024 * 1024)
    [queue] = producer.queues(topic)
    body = random.Random(7).randbytes(4 * 1024 * 1024 + 1024)
    with pytest.raises(ClientError) as refused:
        producer.send(Message(topic=topic, body=body), queue=queue)
    assert refused.value.code == MESSAGE_ILLEGAL
    assert producer.max_offset(queue) == 0
    properties = {"long": "x" * 40_000}
    with pytest.raises(ClientError) as too_long:
        producer.send(Message(topic=topic, body=b"x", properties=properties), queue=queue)
    assert too_long.value.code == MESSAGE_ILLEGAL
    assert producer.max_offset(queue) == 0


def test_queue_the_topic_lacks_is_refused_with_its_code(
    any_java: JavaClients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"), queue_count=1)
    producer = any_java.producer(unique("producers"), ours.namesrv)
    [queue] = producer.queues(topic)
    beyond = type(queue)(queue.topic, queue.broker_name, 99)
    with pytest.raises(ClientError) as refused:
        producer.send(Message(topic=topic, body=b"x"), queue=beyond)
    assert refused.value.code == INVALID_PARAMETER
    assert "queueId[99]" in refused.value.text


def test_first_send_creates_the_topic_as_apache_does(
    any_client: Clients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = unique("fresh")
    producer = any_client.producer(unique("producers"), ours.namesrv)
    assert producer.send(Message(topic=topic, body=b"first")).status == "SEND_OK"
    consumer = any_client.push_consumer(unique("readers"), ours.namesrv, {topic: "*"}, from_first=True)
    [delivery] = consumer.wait(1)
    assert delivery.body == b"first"
    table = ours.broker.store_dir / "config" / "topics.json"
    wait_until(lambda: table.exists() and topic in table.read_text(), timeout_s=10.0, what="the saved topic")
    made = json.loads(table.read_text())["topicConfigTable"][topic]
    assert (made["readQueueNums"], made["writeQueueNums"], made["perm"], made["order"]) == (4, 4, 6, False)


def test_vip_channel_and_namespace_reach_the_broker(
    any_java: JavaClients, ours: OrbitCluster, unique: Unique
) -> None:
    plain = unique("topic")
    topic = ours.create_topic(f"space%{plain}", queue_count=1)
    producer = any_java.producer("producers", ours.namesrv, namespace="space", vipChannelEnabled=True)
    assert producer.send(Message(topic=plain, body=b"x")).status == "SEND_OK"
    consumer = any_java.pull_consumer(unique("readers"), ours.namesrv)
    [queue] = consumer.queues(topic)
    [message] = consumer.pull(queue, 0).messages
    assert (message.topic, message.body) == (topic, b"x")
