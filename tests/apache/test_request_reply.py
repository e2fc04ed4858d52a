"""Request-reply through our broker with the official Java client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.apache.harness import ClientError, JavaClients, Message, Script
from tests.apache.ours import OrbitCluster

Unique = Callable[[str], str]


def test_a_request_is_answered(ours: OrbitCluster, any_java: JavaClients, unique: Unique) -> None:
    topic = ours.create_topic(unique("T"))
    replier = any_java.producer(unique("RG"), ours.namesrv)
    consumer = any_java.push_consumer(
        unique("CG"), ours.namesrv, {topic: "*"}, from_first=True, script=Script(reply_by=replier)
    )
    asker = any_java.producer(unique("PG"), ours.namesrv)
    replies = [
        asker.request(Message(topic=topic, body=b"%d" % number), timeout_ms=10_000) for number in range(3)
    ]
    assert [reply.body for reply in replies] == [b"reply to 0", b"reply to 1", b"reply to 2"]
    assert all("CORRELATION_ID" in reply.properties for reply in replies)
    assert all("PUSH_REPLY_TIME" in reply.properties for reply in replies)
    assert len(consumer.wait(3)) == 3
    # The replies are also kept.
    admin = any_java.admin(ours.namesrv)
    assert "maxOffset" in str(admin.invoke("examineTopicStats", "DefaultCluster_REPLY_TOPIC"))


def test_a_request_nobody_answers_ends_in_time(
    ours: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = ours.create_topic(unique("T"))
    asker = java_latest.producer(unique("PG"), ours.namesrv)
    with pytest.raises(ClientError, match=r"timeout|time out"):
        asker.request(Message(topic=topic, body=b"?"), timeout_ms=1_000)


def test_a_reply_to_a_client_that_is_gone_fails(
    ours: OrbitCluster, java_latest: JavaClients, unique: Unique
) -> None:
    topic = ours.create_topic(unique("T"))
    replier = java_latest.producer(unique("RG"), ours.namesrv)
    properties = {
        "REPLY_TO_CLIENT": "nobody@1",
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c",
        "CLUSTER": "DefaultCluster",
    }
    with pytest.raises(ClientError, match="still failed"):
        replier.send(Message(topic="DefaultCluster_REPLY_TOPIC", body=b"late", properties=properties))
    assert replier.send(Message(topic=topic, body=b"x")).status == "SEND_OK"
