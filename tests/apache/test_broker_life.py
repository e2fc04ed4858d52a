"""Several brokers behind one name server, a stopped broker, a killed one, and how fast a waiting consumer gets its
message, all as seen by the official clients.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.apache.harness import (
    Clients,
    JavaClients,
    Message,
    Producer,
    Queue,
    cluster_info,
    create_topic,
    remoting_call,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitCluster, OrbitNamesrv, orbit_cluster

Unique = Callable[[str], str]
STOP_S = 60.0
GET_MAX_OFFSET = 30
LATENCY_MEDIAN_MS = 1_000.0


class Load:
    """Official producers sending from threads; records the acknowledged messages by their position in the queue."""

    def __init__(self, producers: list[Producer], topic: str) -> None:
        self.acknowledged: dict[tuple[Queue, int], bytes] = {}
        self.failed = 0
        self._producers = producers
        self._topic = topic
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, producer))
            for number, producer in enumerate(producers)
        ]

    def _run(self, number: int, producer: Producer) -> None:
        count = 0
        while not self._over.is_set():
            body = b"%d-%d" % (number, count)
            count += 1
            try:
                result = producer.send(Message(topic=self._topic, body=body), timeout_ms=1_000)
            except Exception:  # noqa: BLE001 - not acknowledged; whether it was stored is open
                self.failed += 1
                continue
            assert result.status == "SEND_OK"
            self.acknowledged[result.queue, result.queue_offset] = body

    def wait(self, count: int) -> None:
        wait_until(lambda: len(self.acknowledged) >= count, timeout_s=60, what=f"{count} acknowledged sends")

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()


def stored_bodies(
    java: JavaClients, cluster: OrbitCluster, topic: str, group: str
) -> dict[Queue, list[bytes]]:
    """Returns every message of the topic, by queue, in order."""
    consumer = java.pull_consumer(group, cluster.namesrv)
    found: dict[Queue, list[bytes]] = {}
    for queue in consumer.queues(topic):
        bodies = found.setdefault(queue, [])
        while True:
            result = consumer.pull(queue, len(bodies), max_count=32)
            if result.status != "FOUND":
                assert len(bodies) == result.max_offset, result
                break
            assert [message.queue_offset for message in result.messages] == list(
                range(len(bodies), len(bodies) + len(result.messages))
            )
            bodies += [message.body for message in result.messages]
    return found


def assert_nothing_acknowledged_is_lost(load: Load, found: dict[Queue, list[bytes]]) -> None:
    for (queue, offset), body in load.acknowledged.items():
        assert found[queue][offset] == body, (queue, offset)


def test_killed_broker_has_everything_it_acknowledged(
    java_latest: JavaClients, java_legacy_binary: JavaClients, unique: Unique, tmp_path: Path
) -> None:
    with orbit_cluster(tmp_path / "store", mappedFileSizeCommitLog=1024 * 1024) as cluster:
        topic = cluster.create_topic(unique("topic"), queue_count=4)
        producers = [
            java.producer(unique("producers"), cluster.namesrv, retryTimesWhenSendFailed=0)
            for java in (java_latest, java_latest, java_latest, java_legacy_binary)
        ]
        load = Load(producers, topic)
        with load.running():
            for turn in range(1, 4):
                load.wait(turn * 400)
                cluster.broker.kill()
                assert (tmp_path / "store" / "abort").exists()
                cluster.broker.start()
            load.wait(len(load.acknowledged) + 200)
        assert load.failed > 0, "the kills must have hit the load"
        found = stored_bodies(java_latest, cluster, topic, unique("readers"))
        assert_nothing_acknowledged_is_lost(load, found)
        # Once more from the files alone.
        assert cluster.broker.exit_code(timeout_s=STOP_S) == 0
        cluster.broker.start()
        assert stored_bodies(java_latest, cluster, topic, unique("readers")) == found
        for java in (java_latest, java_legacy_binary):
            java.abandon()


def test_sigterm_under_load_and_long_polls_leaves_a_clean_store(
    java_latest: JavaClients, unique: Unique, tmp_path: Path
) -> None:
    with orbit_cluster(tmp_path / "store") as cluster:
        topic = cluster.create_topic(unique("topic"), queue_count=4)
        idle = cluster.create_topic(unique("idle"), queue_count=8)
        waiting = java_latest.push_consumer(unique("waiting"), cluster.namesrv, {idle: "*"})
        waiting.wait_queues(lambda queues: len(queues) == 8, topic=idle)
        producers = [java_latest.producer(unique("producers"), cluster.namesrv) for _ in range(3)]
        load = Load(producers, topic)
        with load.running():
            load.wait(300)
            assert cluster.broker.exit_code(timeout_s=STOP_S) == 0
            # Unregistered, not just missing: the routes no longer contain its topics and its address.
            assert cluster.broker.address not in (cluster_info(cluster.namesrv.address) or "")
            assert not (tmp_path / "store" / "abort").exists()
            cluster.broker.start()
            load.wait(len(load.acknowledged) + 100)
        found = stored_bodies(java_latest, cluster, topic, unique("readers"))
        assert_nothing_acknowledged_is_lost(load, found)
        log = (cluster.broker.workdir / "stderr.log").read_text()
        assert [line for line in log.splitlines() if "store open" in line][-1].count("clean=True") == 1
        java_latest.abandon()


def test_one_topic_over_several_brokers(any_client: Clients, unique: Unique) -> None:
    with ExitStack() as stack:
        namesrv = stack.enter_context(OrbitNamesrv())
        brokers = [
            stack.enter_context(OrbitBroker(namesrv, workdir=None, brokerName=f"broker-{letter}"))
            for letter in "abc"
        ]
        topic = unique("topic")
        for broker in brokers:
            create_topic(namesrv, broker, topic, queue_count=2)
        producer = any_client.producer(unique("producers"), namesrv)
        queues = sorted(producer.queues(topic))
        assert [(queue.broker_name, queue.queue_id) for queue in queues] == [
            (f"broker-{letter}", number) for letter in "abc" for number in (0, 1)
        ]
        bodies = {b"%d" % number for number in range(60)}
        sent = [producer.send(Message(topic=topic, body=body)) for body in bodies]
        assert {result.queue for result in sent} == set(queues), "in turn over all queues of all brokers"
        consumer = any_client.push_consumer(unique("readers"), namesrv, {topic: "*"}, from_first=True)
        deliveries = consumer.wait_bodies(bodies)
        assert len(deliveries) == len(bodies)
        for broker in brokers:
            stored = sum(
                int(
                    remoting_call(broker.address, GET_MAX_OFFSET, {"topic": topic, "queueId": n})[1]["offset"]
                )
                for n in ("0", "1")
            )
            assert stored == sum(result.queue.broker_name == broker.broker_name for result in sent)
        # With one of them gone, the others accept everything.
        brokers[1].kill()
        late = {b"late-%d" % number for number in range(30)}

        def arrived(body: bytes) -> bool:
            try:
                return producer.send(Message(topic=topic, body=body)).status == "SEND_OK"
            except Exception:  # noqa: BLE001 - the client has not left the dead broker yet
                return False

        for body in late:
            wait_until(lambda body=body: arrived(body), timeout_s=20, what="a broker that takes it")  # type: ignore[misc]  # a default binds the loop's value
        consumer.wait_bodies(late)
        brokers[0].check_log()
        brokers[2].check_log()
        any_client.abandon()


@pytest.mark.parametrize("java", ["java_latest", "java_legacy"])
def test_waiting_consumer_gets_a_message_at_once(
    java: str, request: pytest.FixtureRequest, ours: OrbitCluster, unique: Unique
) -> None:
    """benchmarks/broker.py measures the latency; this bound only distinguishes a wake-up from a poll."""
    clients: JavaClients = request.getfixturevalue(java)
    topic = ours.create_topic(unique("topic"), queue_count=1)
    producer = clients.producer(unique("producers"), ours.namesrv)
    consumer = clients.push_consumer(unique("readers"), ours.namesrv, {topic: "*"}, from_first=True)
    producer.send(Message(topic=topic, body=b"warm-up"))
    consumer.wait(1)
    for number in range(40):
        producer.send(Message(topic=topic, body=b"%d" % number))
        consumer.wait(number + 2)
    # Both ends run in one process: one clock. The driver's own calls warm the way up for the first ten.
    delays = [delivery.received_at_ms - delivery.message.born_at_ms for delivery in consumer.deliveries[10:]]
    assert statistics.median(delays) < LATENCY_MEDIAN_MS, delays
