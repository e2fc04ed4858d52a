"""The harness proves itself: Apache's clients against Apache's servers, nothing of ours between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import LATEST, LEGACY, AdminShell, JavaClients, Message, mqadmin

Unique = Callable[[str], str]


@pytest.mark.parametrize("fixture", ["java_latest", "java_legacy"])
def test_java_client_produces_and_consumes_every_field(
    fixture: str, request: pytest.FixtureRequest, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    java: JavaClients = request.getfixturevalue(fixture)
    topic = apache_cluster.create_topic(unique("topic"))
    producer = java.producer(unique("producers"), apache_cluster.namesrv)
    sent = producer.send(
        Message(
            topic=topic, body="größe".encode(), tags="A", keys="k1 k2", flag=7, properties={"colour": "blau"}
        )
    )
    assert sent.status == "SEND_OK"
    consumer = java.push_consumer(unique("readers"), apache_cluster.namesrv, {topic: "*"}, from_first=True)
    [delivery] = consumer.wait(1)
    message = delivery.message
    assert message.body == "größe".encode()
    assert (message.tags, message.keys, message.flag) == ("A", "k1 k2", 7)
    assert message.properties["colour"] == "blau"
    assert message.msg_id == sent.msg_id
    assert message.offset_msg_id == sent.offset_msg_id
    assert (message.queue, message.queue_offset) == (sent.queue, sent.queue_offset)
    assert message.store_host == apache_cluster.broker.address
    assert message.stored_at_ms >= message.born_at_ms - 1_000
    assert len(consumer.wait_queues(lambda queues: len(queues) == 4, topic=topic)) == 4


def test_mqadmin_in_its_own_jvm_lists_the_cluster(apache_cluster: ApacheCluster) -> None:
    result = mqadmin(LATEST, apache_cluster.namesrv, "clusterList")
    assert result.returncode == 0
    assert result.rows()[0][:4] == ["DefaultCluster", "broker-a", "0", apache_cluster.broker.address]


@pytest.mark.parametrize("version", [LATEST, LEGACY])
def test_mqadmin_commands_share_one_jvm(
    version: str, shared_mqadmin: dict[str, AdminShell], apache_cluster: ApacheCluster, unique: Unique
) -> None:
    shell = shared_mqadmin[version]
    topic = apache_cluster.create_topic(unique("topic"), queue_count=3)
    listed = shell.run("clusterList", namesrv=apache_cluster.namesrv)
    assert listed.rows()[0][:4] == ["DefaultCluster", "broker-a", "0", apache_cluster.broker.address]
    status = shell.run("topicStatus", "-t", topic, namesrv=apache_cluster.namesrv)
    assert [row[:4] for row in status.rows()[:3]] == [["broker-a", str(n), "0", "0"] for n in range(3)]
    refused = shell.run("topicStatus", namesrv=apache_cluster.namesrv)
    assert refused.returncode != 0, "a missing option ends a command, not the shell"
    assert topic in shell.run("topicList", namesrv=apache_cluster.namesrv).stdout.split()
