"""Filters by class: official Java consumers pull the messages selected by a Python class through ``orbitmq
filtersrv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.apache.clients import ClassFilter
from tests.apache.harness import LATEST, AdminShell, JavaClients, Message, wait_until
from tests.apache.ours import COMMAND, OrbitCluster, OrbitServer, orbit_cluster
from tests.apache.servers import accepts, remoting_call
from tests.support.ports import free_ports

Unique = Callable[[str], str]

SOURCE = """
class Expensive:
    def match(self, message):
        return int(message.properties["price"]) >= 7 and message.body != b"8"
"""
GET_ROUTE = 105
PULL_MESSAGE = 11
NO_PERMISSION = 16


class OrbitFilterServer(OrbitServer):
    """`orbitmq filtersrv`."""

    def __init__(self, cluster: OrbitCluster, *arguments: str) -> None:
        super().__init__("orbitmq-filtersrv", None)
        port = free_ports()[0]
        self.address = f"127.0.0.1:{port}"
        self._command = [
            *(*COMMAND, "filtersrv", "--broker", cluster.broker.address, "--set", f"listenPort={port}"),
            *arguments,
        ]

    def start(self) -> None:
        super().start()
        self.wait_ready(lambda: accepts(self.address), timeout_s=20)


@pytest.fixture(scope="module")
def filtering(apache_tools: None) -> Iterator[OrbitCluster]:
    with orbit_cluster(filterServerNums=1) as cluster:
        yield cluster


@contextmanager
def filter_server(cluster: OrbitCluster, topic: str, *arguments: str) -> Iterator[OrbitFilterServer]:
    """Yields a filter server that routes of the topic already name."""
    with OrbitFilterServer(cluster, *arguments) as server:

        def in_route() -> bool:
            _, _, body = remoting_call(cluster.namesrv.address, GET_ROUTE, {"topic": topic})
            return server.address.encode() in body

        wait_until(in_route, timeout_s=20, what="the filter server in the route")
        yield server


def consume(
    java: JavaClients, cluster: OrbitCluster, topic: str, group: str, wanted: ClassFilter
) -> list[bytes]:
    producer = java.producer(f"{group}-producers", cluster.namesrv)
    producer.send_many(
        [Message(topic=topic, body=b"%d" % n, properties={"price": str(n)}) for n in range(10)], mode="sync"
    )
    with java.push_consumer(group, cluster.namesrv, {topic: wanted}, from_first=True) as consumer:
        consumer.wait_bodies({b"7", b"9"})
        # While it waits: a message that is skipped and one that is selected.
        producer.send(Message(topic=topic, body=b"no", properties={"price": "1"}))
        producer.send(Message(topic=topic, body=b"late", properties={"price": "70"}))
        consumer.wait_bodies({b"late"})
        return sorted(consumer.bodies)


@pytest.mark.parametrize("release", ["java_latest", "java_legacy"])
def test_consumer_gets_what_a_class_of_the_operator_selects(
    release: str, filtering: OrbitCluster, unique: Unique, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    java: JavaClients = request.getfixturevalue(release)
    topic, group = filtering.create_topic(unique("topic")), filtering.create_group(unique("group"))
    (tmp_path / "shop.py").write_text(SOURCE)
    with filter_server(filtering, topic, "--classes", str(tmp_path)) as server:
        assert consume(java, filtering, topic, group, ClassFilter("shop.Expensive")) == [b"7", b"9", b"late"]
        assert server.exit_code(timeout_s=10) == 0


def test_consumer_gets_what_its_uploaded_class_selects(
    java_legacy: JavaClients, filtering: OrbitCluster, unique: Unique
) -> None:
    topic, group = filtering.create_topic(unique("topic")), filtering.create_group(unique("group"))
    with filter_server(filtering, topic, "--set", "clientUploadFilterClassEnable=true"):
        found = consume(java_legacy, filtering, topic, group, ClassFilter("shop.Expensive", SOURCE))
        assert found == [b"7", b"9", b"late"]


ROOT: dict[str, Any] = {"accessKey": "root", "secretKey": "root-secret-1"}


def test_consumer_of_a_secured_broker_gets_what_its_own_rights_allow(
    java_legacy: JavaClients, unique: Unique, tmp_path: Path
) -> None:
    """The filter server forwards the consumer's signature; its own user may only register."""
    topic, group = unique("topic"), unique("group")
    (tmp_path / "shop.py").write_text(SOURCE)
    secured: dict[str, Any] = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": '{"username":"root","password":"root-secret-1"}',
    }
    with orbit_cluster(filterServerNums=1, **secured) as cluster, AdminShell(LATEST) as shell:
        shell.sign_in(*ROOT.values())

        def admin(line: str) -> None:
            output = shell.run(*line.split(), "-b", cluster.broker.address, namesrv=cluster.namesrv).output
            assert "success" in output, output

        admin(f"updateTopic -t {topic} -r 1 -w 1")
        admin(f"updateSubGroup -g {group}")
        admin("createUser -u filter -p filter-secret")
        admin("createAcl -s User:filter -r Cluster:* -a Get,Update -d Allow")
        admin("createAcl -s User:filter -r Group:* -a Get -d Allow")
        credentials = (
            'innerClientAuthenticationCredentials={"accessKey":"filter","secretKey":"filter-secret"}'
        )
        with filter_server(cluster, topic, "--classes", str(tmp_path), "--set", credentials) as server:
            producer = java_legacy.producer(unique("p"), cluster.namesrv, **ROOT)
            for number in range(10):
                message = Message(topic=topic, body=b"%d" % number, properties={"price": str(number)})
                producer.send(message)
            wanted = {topic: ClassFilter("shop.Expensive")}
            with java_legacy.push_consumer(
                group, cluster.namesrv, wanted, from_first=True, **ROOT
            ) as consumer:
                consumer.wait_bodies({b"7", b"9"})
            fields = {
                "consumerGroup": group,
                "topic": topic,
                "queueId": "0",
                "queueOffset": "0",
                "maxMsgNums": "32",
                "sysFlag": "0",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
            }
            code, _, body = remoting_call(server.address, PULL_MESSAGE, fields)
            assert (code, body) == (NO_PERMISSION, b""), "an unsigned pull gets nothing through it"
