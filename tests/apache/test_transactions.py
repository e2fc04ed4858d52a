"""Transactions with the official Java client: ends, checks, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from tests.apache.harness import JavaClients, Message
from tests.apache.ours import OrbitCluster, orbit_cluster

Unique = Callable[[str], str]
DISCARDED: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
QUICK: Final[dict[str, Any]] = {
    "transactionTimeOut": 300,
    "transactionCheckInterval": 400,
    "transactionCheckMax": 3,
    "transactionOpBatchInterval": 100,
}


@pytest.fixture(scope="module")
def quick(apache_tools: None) -> Iterator[OrbitCluster]:
    """Yields a broker that checks back soon and gives up soon."""
    with orbit_cluster(**QUICK) as cluster:
        yield cluster


def test_committed_messages_arrive_and_rolled_back_ones_never(
    quick: OrbitCluster, any_java: JavaClients, unique: Unique
) -> None:
    topic = quick.create_topic(unique("Tx"))
    producer = any_java.producer(unique("PG"), quick.namesrv, transactional=True)
    producer.send_in_transaction(Message(topic=topic, body=b"first"))
    sent = producer.send_in_transaction(Message(topic=topic, body=b"yes", tags="T", keys="k"))
    assert (sent.status, sent.local_state) == ("SEND_OK", "COMMIT_MESSAGE")
    producer.send_in_transaction(Message(topic=topic, body=b"no"), local="ROLLBACK_MESSAGE")
    producer.send_in_transaction(Message(topic=topic, body=b"last"))
    consumer = any_java.push_consumer(unique("CG"), quick.namesrv, {topic: "*"}, from_first=True)
    consumer.wait_bodies({b"yes", b"last"})
    [first] = [one.message for one in consumer.deliveries if one.body == b"yes"]
    assert first.transaction_id == sent.transaction_id
    assert (first.sys_flag & 12, first.tags, first.keys) == (8, "T", "k")
    assert first.prepared_transaction_offset > 0
    assert not {"REAL_TOPIC", "REAL_QID"} & set(first.properties)
    assert b"no" not in consumer.bodies


def test_open_transactions_are_asked_about_until_they_end(
    quick: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = quick.create_topic(unique("Tx"))
    producer = java_latest.producer(unique("PG"), quick.namesrv, transactional=True)
    consumer = java_latest.push_consumer(unique("CG"), quick.namesrv, {topic: "*"}, from_first=True)
    sent = producer.send_in_transaction(
        Message(topic=topic, body=b"asked twice"), local="UNKNOW", checks=["UNKNOW", "COMMIT_MESSAGE"]
    )
    producer.send_in_transaction(
        Message(topic=topic, body=b"undone"), local="UNKNOW", checks=["ROLLBACK_MESSAGE"]
    )
    [delivery] = consumer.wait(1)
    assert delivery.body == b"asked twice"
    assert delivery.message.properties["TRANSACTION_CHECK_TIMES"] == "2"
    checks = producer.wait_checks(3)
    asked = [check for check in checks if check.message.body == b"asked twice"]
    assert [check.answer for check in asked] == ["UNKNOW", "COMMIT_MESSAGE"]
    assert {check.message.topic for check in checks} == {topic}
    assert {check.message.transaction_id for check in asked} == {sent.transaction_id}
    # No further checks follow.
    producer.send_in_transaction(
        Message(topic=topic, body=b"fence"), local="UNKNOW", checks=["COMMIT_MESSAGE"]
    )
    consumer.wait_bodies({b"fence"})
    assert len(producer.checks()) == 4
    assert sorted(consumer.bodies) == [b"asked twice", b"fence"]


def test_a_transaction_that_never_ends_is_given_up_and_can_be_taken_back(
    quick: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = quick.create_topic(unique("Tx"))
    producer = java_latest.producer(unique("PG"), quick.namesrv, transactional=True)
    producer.send_in_transaction(
        Message(topic=topic, body=b"lost"),
        local="UNKNOW",
        checks=["UNKNOW", "UNKNOW", "UNKNOW", "COMMIT_MESSAGE"],
    )
    given_up = java_latest.push_consumer(unique("CG"), quick.namesrv, {DISCARDED: "*"}, from_first=True)
    [delivery] = given_up.wait(1)
    assert (delivery.body, delivery.message.properties["REAL_TOPIC"]) == (b"lost", topic)
    assert len(producer.checks()) == 3
    admin = java_latest.admin(quick.namesrv)
    assert admin.invoke("resumeCheckHalfMessage", DISCARDED, delivery.message.offset_msg_id)
    consumer = java_latest.push_consumer(unique("CG"), quick.namesrv, {topic: "*"}, from_first=True)
    assert [one.body for one in consumer.wait(1)] == [b"lost"]


def test_immunity_keeps_questions_away_and_lets_others_pass(
    quick: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = quick.create_topic(unique("Tx"))
    producer = java_latest.producer(unique("PG"), quick.namesrv, transactional=True)
    consumer = java_latest.push_consumer(unique("CG"), quick.namesrv, {topic: "*"}, from_first=True)
    immune = Message(topic=topic, body=b"immune", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "4"})
    producer.send_in_transaction(immune, local="UNKNOW", checks=["COMMIT_MESSAGE"])
    producer.send_in_transaction(
        Message(topic=topic, body=b"plain"), local="UNKNOW", checks=["COMMIT_MESSAGE"]
    )
    first, second = consumer.wait(2)
    assert (first.body, second.body) == (b"plain", b"immune")
    waited_ms = second.message.stored_at_ms - second.message.born_at_ms
    assert waited_ms >= 4_000
