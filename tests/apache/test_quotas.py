"""Quotas as official clients see them: flow control (code 2) for a producer above its quota only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.apache.harness import ClientError, GoClients, JavaClients, Message
from tests.apache.ours import OrbitCluster, orbit_cluster

pytestmark = [pytest.mark.slow, pytest.mark.soak]
SYSTEM_BUSY = 2
QUOTA = 20


@pytest.fixture(scope="module")
def limited() -> Iterator[OrbitCluster]:
    with orbit_cluster(quotaTopicMessagesPerSecond=QUOTA) as cluster:
        yield cluster


def refusals(clients: JavaClients | GoClients, cluster: OrbitCluster, topic: str, group: str) -> list[str]:
    """Returns the errors a producer receives while it sends ten times its quota, one message after the other."""
    options: dict[str, Any] = {"retryTimesWhenSendFailed": 0} if isinstance(clients, JavaClients) else {}
    producer = clients.producer(group, cluster.namesrv, **options)
    told = []
    for number in range(10 * QUOTA):
        try:
            producer.send(Message(topic=topic, body=b"%d" % number))
        except ClientError as error:
            told.append(str(error))
    return told


def test_java_producer_over_its_quota_is_told_flow_control(
    java_latest: JavaClients, limited: OrbitCluster, unique: Callable[[str], str]
) -> None:
    topic = limited.create_topic(unique("topic"))
    told = refusals(java_latest, limited, topic, unique("producers"))
    assert told
    assert all("[QUOTA]" in text and f"CODE: {SYSTEM_BUSY}" in text for text in told), told[:3]
    other = limited.create_topic(unique("topic"))
    producer = java_latest.producer(unique("producers"), limited.namesrv)
    assert producer.send(Message(topic=other, body=b"free")).status == "SEND_OK"


def test_go_producer_over_its_quota_is_told_flow_control(
    go_clients: GoClients, limited: OrbitCluster, unique: Callable[[str], str]
) -> None:
    topic = limited.create_topic(unique("topic"))
    told = refusals(go_clients, limited, topic, unique("producers"))
    assert told
    assert all("[QUOTA]" in text for text in told), told[:3]
