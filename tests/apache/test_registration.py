"""Our broker registered with Apache's name servers, 5.5.0 and 4.9.7, and with ours, simultaneously."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.apache.harness import LATEST, LEGACY, Addressed, ApacheNamesrv, remoting_call, wait_until
from tests.apache.ours import OrbitBroker, OrbitNamesrv

ROUTE, CREATE_TOPIC, SHOW_TOPIC, PUT_KV = 105, 17, 351, 100
TOPIC_NOT_EXIST = 17
WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Registered:
    latest: ApacheNamesrv
    legacy: ApacheNamesrv
    own: OrbitNamesrv
    broker: OrbitBroker

    @property
    def servers(self) -> tuple[Addressed, ...]:
        return self.latest, self.legacy, self.own


@pytest.fixture(scope="module")
def registered(apache_tools: None) -> Iterator[Registered]:
    with ApacheNamesrv(LATEST) as latest, ApacheNamesrv(LEGACY) as legacy, OrbitNamesrv() as own:
        addresses = ";".join(server.address for server in (latest, legacy, own))
        with OrbitBroker(addresses) as broker:
            yield Registered(latest, legacy, own, broker)


def route(server: Addressed, topic: str) -> dict[str, Any] | None:
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    try:
        code, _, body = remoting_call(server.address, ROUTE, fields)
    except OSError:
        return None
    if code == TOPIC_NOT_EXIST:
        return None
    assert code == 0
    # 4.9.7 does not know the field that asks for standard JSON.
    found: dict[str, Any] = json.loads(body.replace(b"{0:", b'{"0":'))
    return found


def wait_for_route(server: Addressed, topic: str) -> dict[str, Any]:
    wait_until(
        lambda: route(server, topic) is not None, timeout_s=WAIT_S, what=f"{topic} at {server.address}"
    )
    found = route(server, topic)
    assert found is not None
    return found


def assert_no_route(server: Addressed, topic: str) -> None:
    wait_until(
        lambda: route(server, topic) is None, timeout_s=WAIT_S, what=f"{topic} to leave {server.address}"
    )


def create_topic(broker: OrbitBroker, topic: str, queues: int) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    assert remoting_call(broker.address, CREATE_TOPIC, fields)[0] == 0


def test_topics_ordered_by_a_name_server_are_ordered_in_the_broker(registered: Registered) -> None:
    broker = registered.broker
    create_topic(broker, "Sorted", 2)
    kv = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Sorted", "value": "broker-a:2"}
    assert remoting_call(registered.latest.address, PUT_KV, kv)[0] == 0
    # The list arrives with the response to a registration, which any change triggers.
    create_topic(broker, "Other", 1)

    def is_ordered() -> bool:
        _, _, body = remoting_call(broker.address, SHOW_TOPIC, {"topic": "Sorted"})
        return bool(json.loads(body)["order"])

    wait_until(is_ordered, timeout_s=5.0, what="the order flag")


def test_every_name_server_knows_what_the_broker_has_until_it_ends(registered: Registered) -> None:
    """The last test of this module: it stops the broker."""
    broker = registered.broker
    for server in registered.servers:
        built_in = route(server, "TBW102")
        assert built_in is not None
        assert built_in["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
        (queues,) = built_in["queueDatas"]
        assert (queues["writeQueueNums"], queues["perm"], queues["brokerName"]) == (8, 7, "broker-a")
    create_topic(broker, "Fresh", 5)
    for server in registered.servers:
        fresh = wait_for_route(server, "Fresh")
        assert fresh["queueDatas"][0]["readQueueNums"] == 5
        assert route(server, "BenchmarkTest") is not None, "a single topic does not replace the table"

    # A name server that dies and returns is notified without waiting for the next period of 30 s.
    registered.latest.kill()
    registered.latest.start()
    wait_for_route(registered.latest, "Fresh")
    assert route(registered.latest, "TBW102") is not None

    assert broker.exit_code(timeout_s=10.0) == 0
    for server in registered.servers:
        assert_no_route(server, "TBW102")
