"""Messages that consumers could not handle: retried later, and finally dead-lettered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import JavaClients, Message, Script
from tests.apache.ours import OrbitCluster, orbit_cluster
from tests.apache.servers import ApacheBroker, ApacheNamesrv

Unique = Callable[[str], str]
LEVELS: Final = "1s 1s 1s 1s 2s 1s 1s"
"""Short, so that a first retry (level 3) comes after a second and its second (level 4) too."""


@pytest.fixture(scope="module")
def quick(apache_tools: None) -> Iterator[OrbitCluster]:
    with orbit_cluster(messageDelayLevel=LEVELS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def quick_apache(apache_tools: None) -> Iterator[ApacheCluster]:
    with (
        ApacheNamesrv("5.5.0") as namesrv,
        ApacheBroker("5.5.0", namesrv, messageDelayLevel=LEVELS) as broker,
    ):
        yield ApacheCluster(namesrv, broker)


def retried(cluster: OrbitCluster | ApacheCluster, java: JavaClients, unique: Unique) -> dict[str, Any]:
    """Returns the consumer's view of a message it always rejects, and the resulting dead letters."""
    topic, group = cluster.create_topic(unique("T"), queue_count=1), unique("CG")
    consumer = java.push_consumer(
        group,
        cluster.namesrv,
        {topic: "*"},
        from_first=True,
        script=Script(fail_times=3),
        maxReconsumeTimes=2,
    )
    producer = java.producer(unique("PG"), cluster.namesrv)
    sent = producer.send(Message(topic=topic, body=b"bad", tags="A", keys="k", properties={"own": "1"}))
    deliveries = consumer.wait(3)
    dead_topic = f"%DLQ%{group}"
    reader = java.push_consumer(unique("DLQ"), cluster.namesrv, {dead_topic: "*"}, from_first=True)
    [dead] = reader.wait(1)
    volatile = {
        "MAX_OFFSET",
        "CONSUME_START_TIME",
        "UNIQ_KEY",
        "ORIGIN_MESSAGE_ID",
        "RETRY_TOPIC",
        "REAL_TOPIC",
    }

    def shown(message: Any) -> dict[str, Any]:
        properties = {name: value for name, value in message.properties.items() if name not in volatile}
        return {
            "topic": message.topic.replace(topic, "T").replace(group, "CG"),
            "names": sorted(set(message.properties) - {"MAX_OFFSET", "CONSUME_START_TIME"}),
            "properties": properties,
            "times": message.reconsume_times,
            "same": (
                message.properties["UNIQ_KEY"] == sent.msg_id,
                message.properties.get("ORIGIN_MESSAGE_ID") in (None, sent.offset_msg_id),
                message.properties.get("RETRY_TOPIC") in (None, topic),
            ),
        }

    gaps_ms = [
        after.message.stored_at_ms - before.received_at_ms for before, after in itertools.pairwise(deliveries)
    ]
    assert all(gap >= 1_000 for gap in gaps_ms), gaps_ms
    return {"deliveries": [shown(one.message) for one in deliveries], "dead": shown(dead.message)}


def test_retries_and_dead_letters_look_as_against_apache(
    quick: OrbitCluster, quick_apache: ApacheCluster, java_latest: JavaClients, unique: Unique
) -> None:
    assert retried(quick, java_latest, unique) == retried(quick_apache, java_latest, unique)


def test_every_client_gets_its_message_again(
    quick: OrbitCluster, any_java: JavaClients, unique: Unique
) -> None:
    topic = quick.create_topic(unique("T"), queue_count=1)
    consumer = any_java.push_consumer(
        unique("CG"), quick.namesrv, {topic: "*"}, from_first=True, script=Script(fail_times=1)
    )
    any_java.producer(unique("PG"), quick.namesrv).send(Message(topic=topic, body=b"once more"))
    first, second = consumer.wait(2)
    assert (first.body, second.body) == (b"once more", b"once more")
    assert (first.message.reconsume_times, second.message.reconsume_times) == (0, 1)


def test_a_level_the_consumer_asks_for_counts(
    quick: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = quick.create_topic(unique("T"), queue_count=1)
    consumer = java_latest.push_consumer(
        unique("CG"), quick.namesrv, {topic: "*"}, from_first=True, script=Script(fail_times=1, delay_level=5)
    )
    java_latest.producer(unique("PG"), quick.namesrv).send(Message(topic=topic, body=b"slow"))
    first, second = consumer.wait(2)
    assert second.message.stored_at_ms - first.received_at_ms >= 2_000


@pytest.mark.parametrize("release", ["java_latest", "java_legacy"])
def test_an_orderly_consumer_tries_in_place_and_then_gives_up(
    quick: OrbitCluster, request: pytest.FixtureRequest, unique: Unique, release: str
) -> None:
    """The client 4.9.7 sends the message back with a count that is not above its limit."""
    java: JavaClients = request.getfixturevalue(release)
    topic, group = quick.create_topic(unique("T"), queue_count=1), unique("CG")
    consumer = java.push_consumer(
        group,
        quick.namesrv,
        {topic: "*"},
        orderly=True,
        from_first=True,
        script=Script(fail_times=9, fail_tag="bad", suspend_ms=100),
        maxReconsumeTimes=2,
    )
    producer = java.producer(unique("PG"), quick.namesrv)
    for number, tag in enumerate(("good", "bad", "good")):
        producer.send(Message(topic=topic, body=b"%d" % number, tags=tag))
    consumer.wait_bodies({b"0", b"1", b"2"})
    assert [one.body for one in consumer.deliveries if one.message.topic == topic] == [
        b"0",
        b"1",
        b"1",
        b"1",
        b"2",
    ]
    reader = java.push_consumer(unique("DLQ"), quick.namesrv, {f"%DLQ%{group}": "*"}, from_first=True)
    [dead] = reader.wait(1)
    assert (dead.body, dead.message.properties["RETRY_TOPIC"]) == (b"1", topic)


def test_a_committed_message_sent_back_is_no_transaction_again(
    quick: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = quick.create_topic(unique("T"), queue_count=1)
    consumer = java_latest.push_consumer(
        unique("CG"), quick.namesrv, {topic: "*"}, from_first=True, script=Script(fail_times=1)
    )
    producer = java_latest.producer(unique("PG"), quick.namesrv, transactional=True)
    producer.send_in_transaction(Message(topic=topic, body=b"tx"))
    first, second = consumer.wait(2)
    assert (first.body, second.body, second.message.reconsume_times) == (b"tx", b"tx", 1)
