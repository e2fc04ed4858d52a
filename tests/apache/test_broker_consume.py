"""Every way to consume from our broker with every official client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import (
    Clients,
    GoClients,
    JavaClients,
    Message,
    PullResult,
    Queue,
    Script,
    wait_until,
)
from tests.apache.ours import OrbitCluster

Unique = Callable[[str], str]
Cluster = OrbitCluster | ApacheCluster


def numbered(topic: str, count: int, **more: Any) -> list[Message]:
    return [Message(topic=topic, body=b"%d" % number, **more) for number in range(count)]


def test_push_consumer_gets_each_message_once_and_only_its_tags(
    any_client: Clients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"))
    producer = any_client.producer(unique("producers"), ours.namesrv)
    # "AaAa" and "BBBB" have the same hash: the broker lets both pass, the client must not.
    tags = ("A", "B", "AaAa", "BBBB", None)
    messages = [Message(topic=topic, body=f"{tag}-{n}".encode(), tags=tag) for tag in tags for n in range(20)]
    producer.send_many(messages, mode="async")
    wanted = {message.body for message in messages if message.tags in ("A", "AaAa")}
    early = any_client.push_consumer(
        unique("early"), ours.namesrv, {topic: "A || AaAa"}, from_first=True, consumeMessageBatchMaxSize=8
    )
    everything = any_client.push_consumer(unique("all"), ours.namesrv, {topic: "*"}, from_first=True)
    early.wait_bodies(wanted)
    everything.wait_bodies({message.body for message in messages})
    # More while both wait on the broker.
    producer.send(Message(topic=topic, body=b"A-late", tags="A"))
    producer.send(Message(topic=topic, body=b"B-late", tags="B"))
    early.wait_bodies({b"A-late"})
    everything.wait_bodies({b"A-late", b"B-late"})
    assert sorted(early.bodies) == sorted([*wanted, b"A-late"])
    assert sorted(everything.bodies) == sorted([*(one.body for one in messages), b"A-late", b"B-late"])


def test_orderly_consumer_keeps_the_order_of_each_queue_through_failures(
    any_client: Clients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"))
    producer = any_client.producer(unique("producers"), ours.namesrv)
    orders = [f"order-{number}" for number in range(6)]
    for step, order in itertools.product(range(8), orders):
        tag = "again" if step == 3 else "fine"
        message = Message(topic=topic, body=f"{order}/{step}".encode(), tags=tag)
        producer.send(message, selector=("hash", order))
    consumer = any_client.push_consumer(
        unique("readers"),
        ours.namesrv,
        {topic: "*"},
        orderly=True,
        from_first=True,
        script=Script(fail_times=1, fail_tag="again", suspend_ms=50),
    )
    deliveries = consumer.wait(9 * len(orders))
    by_queue: dict[Queue, list[int]] = {}
    for delivery in deliveries:
        if not delivery.failed:
            by_queue.setdefault(delivery.message.queue, []).append(delivery.message.queue_offset)
    assert {queue: sorted(offsets) for queue, offsets in by_queue.items()} == by_queue
    for order in orders:
        seen = [one.body for one in deliveries if one.body.startswith(order.encode() + b"/")]
        assert seen == [f"{order}/{step}".encode() for step in (0, 1, 2, 3, 3, 4, 5, 6, 7)]


def test_broadcast_reaches_every_member(any_client: Clients, ours: OrbitCluster, unique: Unique) -> None:
    topic = ours.create_topic(unique("topic"))
    group = unique("readers")
    members = [
        any_client.push_consumer(
            group, ours.namesrv, {topic: "*"}, from_first=True, messageModel="BROADCASTING"
        )
        for _ in range(3)
    ]
    producer = any_client.producer(unique("producers"), ours.namesrv)
    messages = numbered(topic, 30)
    producer.send_many(messages)
    for member in members:
        member.wait_bodies({message.body for message in messages})
        assert len(member.bodies) == 30


def pull_in_every_way(java: JavaClients, cluster: Cluster, topic: str, groups: tuple[str, str]) -> list[Any]:
    producer = java.producer(groups[0], cluster.namesrv)
    consumer = java.pull_consumer(groups[1], cluster.namesrv)
    [queue] = consumer.queues(topic)
    seen: list[Any] = [consumer.pull(queue, 0), consumer.fetch_offset(queue)]
    for number in range(40):
        tag = "even" if number % 2 == 0 else "odd"
        producer.send(Message(topic=topic, body=b"%d" % number, tags=tag))
    # Apache builds the index of messages after the response.
    wait_until(lambda: consumer.max_offset(queue) == 40, timeout_s=5, what="all messages")
    seen += [
        consumer.pull(queue, 0),
        consumer.pull(queue, 0, max_count=5),
        consumer.pull(queue, 38, max_count=64),
        consumer.pull(queue, 1, max_count=4, expression="odd"),
        consumer.pull(queue, 0, expression="none"),
        consumer.pull(queue, 40),
        consumer.pull(queue, 41),
        consumer.pull(queue, 10_000),
        consumer.fetch_offset(queue),
        consumer.min_offset(queue),
        consumer.max_offset(queue),
        consumer.search_offset(queue, 0),
        consumer.search_offset(queue, int(time.time() * 1000) + 3_600_000),
    ]
    consumer.update_offset(queue, 7)
    wait_until(lambda: consumer.fetch_offset(queue) == 7, timeout_s=5, what="the committed offset")
    consumer.update_offset(queue, 3)
    wait_until(lambda: consumer.fetch_offset(queue) == 3, timeout_s=5, what="the smaller offset")
    tenth = consumer.pull(queue, 9, max_count=1).messages[0]
    seen.append(consumer.search_offset(queue, tenth.stored_at_ms) <= 9)
    seen.append(
        consumer.earliest_time_ms(queue) == consumer.pull(queue, 0, max_count=1).messages[0].stored_at_ms
    )
    return [_plain(one) for one in seen]


def _plain(one: Any) -> Any:
    if isinstance(one, PullResult):
        bodies = [message.body for message in one.messages]
        return (one.status, one.next_offset, one.min_offset, one.max_offset, bodies)
    return one


def test_pulls_and_offsets_look_the_same_as_against_apache(
    any_java: JavaClients, ours: OrbitCluster, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    outcomes = []
    clusters: tuple[Cluster, ...] = (ours, apache_cluster)
    for cluster in clusters:
        topic = cluster.create_topic(unique("topic"), queue_count=1)
        outcomes.append(pull_in_every_way(any_java, cluster, topic, (unique("producers"), unique("readers"))))
    assert outcomes[0] == outcomes[1]


def test_pull_that_blocks_is_woken_by_the_message(
    any_java: JavaClients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"), queue_count=1)
    producer = any_java.producer(unique("producers"), ours.namesrv)
    consumer = any_java.pull_consumer(unique("readers"), ours.namesrv)
    [queue] = consumer.queues(topic)

    def pull(offset: int) -> Future[Any]:
        return any_java.submit(
            "pull.pull",
            handle=consumer.handle,
            queue=queue.to_json(),
            offset=offset,
            max=32,
            block=True,
            timeoutMs=20_000,
            expression="wanted",
            type="TAG",
        )

    for attempt in range(10):
        waiting = pull(attempt)
        time.sleep(0.2)
        producer.send(Message(topic=topic, body=b"other", tags="other"))
        time.sleep(0.2)
        if not waiting.done():
            break
        # It reached the broker after the message: on a busy machine even 0.2 s may not be enough.
        late = PullResult.from_json(any_java.result(waiting, "pull"))
        assert (late.status, late.next_offset) == ("NO_MATCHED_MSG", attempt + 1)
    assert not waiting.done(), "a message of another tag must not end the wait"
    producer.send(Message(topic=topic, body=b"now", tags="wanted"))
    result = PullResult.from_json(any_java.result(waiting, "pull", 10.0))
    assert (result.status, result.next_offset) == ("FOUND", attempt + 2)
    assert [message.body for message in result.messages] == [b"now"]


def test_go_pull_consumer_reads_by_queue_and_offset(
    go_clients: GoClients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"), queue_count=1)
    producer = go_clients.producer(unique("producers"), ours.namesrv)
    producer.send_many(numbered(topic, 5))
    consumer = go_clients.pull_consumer(unique("readers"), ours.namesrv, topics=[topic])
    [queue] = consumer.queues(topic)
    pulled = consumer.pull(queue, 1, max_count=3)
    assert (pulled.status, pulled.next_offset, pulled.min_offset) == ("FOUND", 4, 0)
    assert [message.body for message in pulled.messages] == [b"1", b"2", b"3"]
    consumer.update_offset(queue, 4)
    assert consumer.fetch_offset(queue) == 4


def test_lite_pull_consumer_subscribes_assigns_seeks_pauses_and_commits(
    any_java: JavaClients, ours: OrbitCluster, unique: Unique
) -> None:
    topic = ours.create_topic(unique("topic"), queue_count=2)
    producer = any_java.producer(unique("producers"), ours.namesrv)
    queues = producer.queues(topic)
    for queue in queues:
        producer.send_many(numbered(topic, 4), queue=queue)
    group = unique("readers")
    subscribed = any_java.lite_pull_consumer(group, ours.namesrv, {topic: "*"}, from_first=True)
    assert len(subscribed.poll_until(8)) == 8
    assert sorted(subscribed.assignment()) == queues
    subscribed.commit()
    wait_until(
        lambda: [subscribed.committed(queue) for queue in queues] == [4, 4],
        timeout_s=10,
        what="the committed offsets",
    )
    subscribed.stop()
    assigned = any_java.lite_pull_consumer(group, ours.namesrv, autoCommit=False)
    assigned.assign(queues[:1])
    assert assigned.poll(timeout_ms=300) == [], "it goes on where the group was"
    assigned.seek(queues[0], 2)
    assert [message.body for message in assigned.poll_until(2)] == [b"2", b"3"]
    assigned.pause(queues[:1])
    assigned.seek(queues[0], "begin")
    assert assigned.poll(timeout_ms=100) == []
    assigned.resume(queues[:1])
    assert assigned.poll_until(4)[0].body == b"0"
    assigned.commit({queues[0]: 1})
    wait_until(lambda: assigned.committed(queues[0]) == 1, timeout_s=5, what="the committed offset")
    producer.send(Message(topic=topic, body=b"new"), queue=queues[0])
    assert assigned.poll_until(1)[-1].body == b"new"
    assert assigned.offset_for_time(queues[0], 0) == 0


@pytest.mark.parametrize("where", ["FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"])
def test_new_group_starts_where_apache_would_start_it(
    java_latest: JavaClients, ours: OrbitCluster, apache_cluster: ApacheCluster, unique: Unique, where: str
) -> None:
    received = []
    clusters: tuple[Cluster, ...] = (ours, apache_cluster)
    for cluster in clusters:
        topic = cluster.create_topic(unique("topic"), queue_count=1)
        producer = java_latest.producer(unique("producers"), cluster.namesrv)
        producer.send_many(numbered(topic, 3))
        consumer = java_latest.push_consumer(
            unique("readers"),
            cluster.namesrv,
            {topic: "*"},
            orderly=True,
            consumeFromWhere=f"CONSUME_FROM_{where}",
        )
        consumer.wait_queues(lambda queues: len(queues) == 1, topic=topic)
        producer.send(Message(topic=topic, body=b"last"))
        consumer.wait_bodies({b"last"})
        received.append(consumer.bodies)
    assert received[0] == received[1]
