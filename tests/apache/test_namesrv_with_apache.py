"""Our name server with Apache's brokers, clients and tools.

Brokers of 5.5.0 and 4.9.7 register with two of our name servers and an Apache one, so all three must answer the same
command identically.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.apache.harness import (
    LATEST,
    LEGACY,
    Addressed,
    AdminResult,
    AdminShell,
    ApacheBroker,
    ApacheNamesrv,
    Clients,
    JavaClients,
    Message,
    cluster_info,
    create_group,
    create_topic,
    remoting_call,
    wait_until,
)
from tests.apache.our_namesrv import OurNamesrv

from orbitmq.wire.frame import FrameDecoder, encode_request

Unique = Callable[[str], str]
GET_ROUTE = 105
TOPIC_NOT_EXIST = 17
# The shortest period brokers accept; it is how long a restarted name server stays without them.
REGISTER_PERIOD_MS = 10_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two brokers, registered with two of our name servers and an Apache one."""

    one: OurNamesrv
    two: OurNamesrv
    theirs: ApacheNamesrv
    latest: ApacheBroker
    legacy: ApacheBroker

    def create_topic(self, topic: str) -> str:
        """Creates the topic on both brokers and waits until all name servers know it."""
        for broker in (self.latest, self.legacy):
            for namesrv in (self.one, self.two, self.theirs):
                create_topic(namesrv, broker, topic)
        for namesrv in (self.one, self.two, self.theirs):
            wait_for(namesrv, topic, {"broker-a", "broker-b"})
        return topic


@pytest.fixture(scope="module")
def cluster(apache_tools: None) -> Iterator[Cluster]:
    with OurNamesrv() as one, OurNamesrv() as two, ApacheNamesrv(LATEST) as theirs:
        servers = ";".join(server.address for server in (one, two, theirs))
        with (
            ApacheBroker(LATEST, servers, registerNameServerPeriod=REGISTER_PERIOD_MS) as latest,
            ApacheBroker(
                LEGACY, servers, brokerName="broker-b", registerNameServerPeriod=REGISTER_PERIOD_MS
            ) as legacy,
        ):
            yield Cluster(one, two, theirs, latest, legacy)


def route(namesrv: Addressed, topic: str) -> dict[str, Any] | None:
    code, _, body = remoting_call(namesrv.address, GET_ROUTE, {"topic": topic})
    assert code in (0, TOPIC_NOT_EXIST)
    return json.loads(body) if code == 0 else None


def route_text(namesrv: Addressed, fields: dict[str, str], version: int) -> str:
    """Returns the route as a client of a given version receives it."""
    host, _, port = namesrv.address.rpartition(":")
    decoder = FrameDecoder()
    with socket.create_connection((host, int(port)), 5.0) as connection:
        connection.sendall(encode_request(GET_ROUTE, 1, fields, version=version))
        while not (frames := decoder.feed(connection.recv(65_536))):
            pass
    return frames[0].body.decode()


def brokers_of(namesrv: Addressed, topic: str) -> dict[str, dict[str, str]]:
    found = route(namesrv, topic)
    return {} if found is None else {data["brokerName"]: data["brokerAddrs"] for data in found["brokerDatas"]}


def wait_for(namesrv: Addressed, topic: str, names: set[str], timeout_s: float = 10) -> None:
    """Waits until the route contains exactly these brokers."""
    wait_until(
        lambda: brokers_of(namesrv, topic).keys() == names, timeout_s=timeout_s, what=f"{names} for {topic}"
    )


def in_order(value: Any) -> Any:
    """Lists sorted: neither side promises an order of brokers and topics."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((in_order(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def parsed(text: str) -> Any:
    """JSON as Apache writes it, bare numeric keys included."""
    return in_order(json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text)))


# -- brokers register ------------------------------------------------------------------------------------


def test_brokers_of_both_releases_register_with_every_name_server(cluster: Cluster) -> None:
    infos = [
        parsed(cluster_info(server.address) or "") for server in (cluster.one, cluster.two, cluster.theirs)
    ]
    assert infos[0] == infos[1] == infos[2]
    addresses = {name: data["brokerAddrs"] for name, data in infos[0]["brokerAddrTable"].items()}
    assert addresses == {"broker-a": {"0": cluster.latest.address}, "broker-b": {"0": cluster.legacy.address}}


@pytest.mark.parametrize("version", [0, 399, 401, 513])
def test_routes_equal_apaches_for_every_kind_of_client(
    cluster: Cluster, unique: Unique, version: int
) -> None:
    topic = cluster.create_topic(unique("topic"))
    fields = {"topic": topic} | ({"acceptStandardJsonOnly": "true"} if version == 0 else {})
    ours, theirs = (route_text(server, fields, version or 399) for server in (cluster.one, cluster.theirs))
    assert parsed(ours) == parsed(theirs)
    assert len(ours) == len(theirs)
    assert ('"0":' in ours) == ('"0":' in theirs) == (version != 399)


def test_compressed_registration_of_a_real_broker_is_read(cluster: Cluster) -> None:
    # Not with 5.5.0: with this option its broker registers nowhere, not even with Apache's own name server.
    servers = f"{cluster.one.address};{cluster.theirs.address}"
    with ApacheBroker(LEGACY, servers, brokerName="broker-z", compressedRegister=True) as broker:
        for topic in ("TBW102", "SELF_TEST_TOPIC", "broker-z"):
            assert brokers_of(cluster.one, topic)["broker-z"] == {"0": broker.address}
            wait_for(cluster.theirs, topic, set(brokers_of(cluster.one, topic)))
            assert in_order(route(cluster.one, topic)) == in_order(route(cluster.theirs, topic))
        broker.kill()
        wait_for(cluster.one, "TBW102", {"broker-a", "broker-b"}, timeout_s=5)


# -- clients ---------------------------------------------------------------------------------------------


@pytest.fixture
def clients(request: pytest.FixtureRequest) -> Clients:
    process: Clients = request.getfixturevalue(request.param)
    return process


@pytest.mark.parametrize("clients", ["java_latest", "java_legacy", "go_clients"], indirect=True)
def test_official_clients_produce_and_consume_through_ours(
    clients: Clients, cluster: Cluster, unique: Unique
) -> None:
    topic = cluster.create_topic(unique("topic"))
    producer = clients.producer(unique("producers"), cluster.one)
    assert len(producer.queues(topic)) == 8
    sent = producer.send_many([Message(topic=topic, body=b"%d" % number) for number in range(24)])
    assert {result.queue.broker_name for result in sent} == {"broker-a", "broker-b"}
    both = f"{cluster.one.address};{cluster.two.address}"
    consumer = clients.push_consumer(unique("readers"), both, {topic: "*"}, from_first=True)
    assert len(consumer.wait_bodies({b"%d" % number for number in range(24)})) == 24


# -- mqadmin ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["mqadmin_latest", "mqadmin_legacy"])
def shell(request: pytest.FixtureRequest) -> AdminShell:
    found: AdminShell = request.getfixturevalue(request.param)
    return found


def on_both(cluster: Cluster, shell: AdminShell, *command: str) -> tuple[AdminResult, AdminResult]:
    ours, theirs = (shell.run(*command, namesrv=server) for server in (cluster.one, cluster.theirs))
    assert ours.returncode == theirs.returncode
    return ours, theirs


def lines(cluster: Cluster, result: AdminResult) -> list[str]:
    """Returns sorted lines, without the address of the queried server."""
    text = result.stdout
    for server in (cluster.one, cluster.theirs):
        text = text.replace(server.address, "<namesrv>")
    return sorted(line.rstrip() for line in text.splitlines() if line.strip())


def test_mqadmin_cluster_list_is_apaches(cluster: Cluster, shell: AdminShell) -> None:
    ours, theirs = on_both(cluster, shell, "clusterList")
    # Cluster, broker, id, address, release; the rest are momentary values.
    assert [row[:5] for row in ours.rows()] == [row[:5] for row in theirs.rows()]
    assert ours.rows()[0][:4] == ["DefaultCluster", "broker-a", "0", cluster.latest.address]


def test_mqadmin_topic_route_is_apaches(cluster: Cluster, shell: AdminShell, unique: Unique) -> None:
    topic = cluster.create_topic(unique("topic"))
    ours, theirs = on_both(cluster, shell, "topicRoute", "-t", topic)
    assert parsed(ours.stdout) == parsed(theirs.stdout)
    assert len(parsed(ours.stdout)["brokerDatas"]) == 2
    ours, theirs = on_both(cluster, shell, "topicRoute", "-t", "NoSuchTopic")
    assert "CODE: 17" in ours.output
    assert "CODE: 17" in theirs.output


@pytest.mark.parametrize(
    "command", [("topicList",), ("topicList", "-c"), ("topicClusterList", "-t", "TBW102")]
)
def test_mqadmin_topic_lists_are_apaches(
    cluster: Cluster, shell: AdminShell, command: tuple[str, ...]
) -> None:
    ours, theirs = on_both(cluster, shell, *command)
    assert lines(cluster, ours) == lines(cluster, theirs)
    assert lines(cluster, ours)


def test_mqadmin_kv_config_is_apaches(cluster: Cluster, shell: AdminShell, unique: Unique) -> None:
    topic = unique("topic")
    for command in (
        ("updateKvConfig", "-s", "ns", "-k", "key", "-v", "value"),
        ("deleteKvConfig", "-s", "ns", "-k", "key"),
        ("updateOrderConf", "-m", "put", "-t", topic, "-v", "broker-a:4"),
        ("updateOrderConf", "-m", "get", "-t", topic),
        ("updateOrderConf", "-m", "delete", "-t", topic),
        ("updateOrderConf", "-m", "get", "-t", topic),
    ):
        ours, theirs = on_both(cluster, shell, *command)
        assert lines(cluster, ours) == lines(cluster, theirs)
        assert ("success" in ours.output) == ("success" in theirs.output)


def test_mqadmin_write_permission_is_apaches(cluster: Cluster, shell: AdminShell, unique: Unique) -> None:
    topic = cluster.create_topic(unique("topic"))

    def perms(server: Addressed) -> dict[str, int]:
        found = route(server, topic)
        assert found is not None
        return {data["brokerName"]: data["perm"] for data in found["queueDatas"]}

    for command, expected in (("wipeWritePerm", 4), ("addWritePerm", 6)):
        ours, theirs = on_both(cluster, shell, command, "-b", "broker-b")
        assert lines(cluster, ours) == lines(cluster, theirs)
        assert re.search(r"OK, [1-9]", ours.stdout)
        for server in (cluster.one, cluster.theirs):
            assert perms(server) == {"broker-a": 6, "broker-b": expected}


def test_mqadmin_namesrv_config_is_apaches(cluster: Cluster, shell: AdminShell) -> None:
    def shown() -> tuple[dict[str, str], dict[str, str]]:
        results = on_both(cluster, shell, "getNamesrvConfig")
        first, second = (
            dict(re.findall(r"^(\S+)\s+=  (.*?)\s*$", result.stdout, re.MULTILINE)) for result in results
        )
        return first, second

    ours, theirs = shown()
    shared = ours.keys() & theirs.keys() - {"kvConfigPath", "configStorePath", "rocketmqHome", "listenPort"}
    assert len(shared) >= 16
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    for value in ("false", "true"):
        results = on_both(cluster, shell, "updateNamesrvConfig", "-k", "enableTopicList", "-v", value)
        assert lines(cluster, results[0]) == lines(cluster, results[1])
        ours, theirs = shown()
        assert ours["enableTopicList"] == theirs["enableTopicList"] == value
    for result in on_both(cluster, shell, "updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/x"):
        assert "CODE: 16" in result.output


def test_mqadmin_deletes_a_topic_as_with_apaches(cluster: Cluster, shell: AdminShell, unique: Unique) -> None:
    outputs = []
    for server in (cluster.one, cluster.theirs):
        topic = cluster.create_topic(unique("topic"))
        result = shell.run("deleteTopic", "-c", "DefaultCluster", "-t", topic, namesrv=server)
        outputs.append([line.replace(topic, "<topic>") for line in lines(cluster, result)])
        assert route(server, topic) is None
    assert outputs[0] == outputs[1]
    assert any("success" in line for line in outputs[0])


# -- what breaks -----------------------------------------------------------------------------------------


def test_killed_name_server_comes_back_and_clients_never_stop(
    java_latest: JavaClients, cluster: Cluster, unique: Unique
) -> None:
    topic = cluster.create_topic(unique("topic"))
    group = unique("readers")
    for broker in (cluster.latest, cluster.legacy):
        create_group(cluster.one, broker, group)
    producer = java_latest.producer(unique("producers"), cluster.one)
    consumer = java_latest.push_consumer(group, cluster.one, {topic: "*"}, from_first=True)
    sent: set[bytes] = set()

    def send_for(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            body = b"%d" % len(sent)
            assert producer.send(Message(topic=topic, body=body)).status == "SEND_OK"
            sent.add(body)
            time.sleep(0.02)

    send_for(0.5)
    cluster.one.kill()
    send_for(2.0)
    cluster.one.start()
    deadline = time.monotonic() + 3 * REGISTER_PERIOD_MS / 1000
    while len(brokers_of(cluster.one, topic)) < 2:
        assert time.monotonic() < deadline, "the brokers did not register again"
        send_for(0.2)
    send_for(0.5)
    consumer.wait_bodies(sent)
    assert in_order(route(cluster.one, topic)) == in_order(route(cluster.theirs, topic))
    late = java_latest.producer(unique("producers"), cluster.one)
    assert late.send(Message(topic=topic, body=b"after")).status == "SEND_OK"


def test_killed_broker_leaves_the_routes_at_once(cluster: Cluster, unique: Unique) -> None:
    topic = cluster.create_topic(unique("topic"))
    cluster.legacy.kill()
    for server in (cluster.one, cluster.two):
        wait_for(server, topic, {"broker-a"}, timeout_s=5)
        assert route(server, "broker-b") is None
    cluster.legacy.start()
    for server in (cluster.one, cluster.two):
        assert brokers_of(server, topic)["broker-b"] == {"0": cluster.legacy.address}


def test_slave_acts_as_master_and_is_told_so(apache_tools: None) -> None:
    """Acting master: Apache's own slave gets our notification, and clients see it as the master of a
    read-only group.
    """
    group: dict[str, Any] = {
        "brokerName": "pair",
        "enableSlaveActingMaster": True,
        "enableRemoteEscape": False,
        "brokerNotActiveTimeoutMillis": 10_000,
    }
    topic = "TBW102"
    switched_on: dict[str, Any] = {"supportActingMaster": True, "notifyMinBrokerIdChanged": True}
    with (
        OurNamesrv(**switched_on) as namesrv,
        ApacheBroker(LATEST, namesrv, brokerRole="ASYNC_MASTER", brokerId=0, **group) as master,
        ApacheBroker(LATEST, namesrv, brokerRole="SLAVE", brokerId=1, **group) as slave,
    ):
        assert brokers_of(namesrv, topic) == {"pair": {"0": master.address, "1": slave.address}}
        master.kill()
        wait_until(
            lambda: brokers_of(namesrv, topic) == {"pair": {"0": slave.address}},
            timeout_s=5,
            what="the slave in the place of its master",
        )
        found = route(namesrv, topic)
        assert found is not None
        assert found["queueDatas"][0]["perm"] & 2 == 0
        assert f"told={slave.address}" in namesrv.log_tail()
        # The slave's own log: the name server notified it, so it did not have to query.
        wait_until(
            lambda: bool(
                re.search(
                    r"min broker id changed, prev \S+ new 1\b", (slave.workdir / "apache.log").read_text()
                )
            ),
            timeout_s=10,
            what="the notice in the slave's log",
        )
        master.start()
        wait_until(
            lambda: brokers_of(namesrv, topic) == {"pair": {"0": master.address, "1": slave.address}},
            timeout_s=30,
            what="the master back",
        )
        found = route(namesrv, topic)
        assert found is not None
        assert found["queueDatas"][0]["perm"] & 2 == 2
