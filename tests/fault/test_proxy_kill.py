"""kill -9 of proxies and of a broker behind one, under load: no message acknowledged to a producer is lost.

After the kill of a proxy, no message with an answered acknowledgement is redelivered; messages in flight through the
proxy are, when their invisible time is over. After the kill of a broker, this holds for all but the acknowledgements
of its last 100 ms, which were only in memory.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.proxy_stack import OurProxy
from tests.apache.servers import create_topic
from tests.proxy.cluster import Cluster, running_cluster
from tests.proxy.half import check_foreign_end
from tests.proxy.load import Load
from tests.support.waiting import until

pytestmark = pytest.mark.slow

logger = logging.getLogger(__name__)

SETTINGS: dict[str, Any] = {
    "minInvisibleTimeMillsForRecv": 1000,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 1000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


@pytest.fixture(scope="module")
def proxies(cluster: Cluster) -> Iterator[list[OurProxy]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(OurProxy(cluster.name_server, **SETTINGS)) for _ in range(2)]


@contextlib.contextmanager
def _load(cluster: Cluster, proxies: list[OurProxy], name: str) -> Iterator[Load]:
    """Runs clients of these proxies; at the end they must have received every acknowledged message."""
    topic, group = f"Kill{name}", f"kill-{name}"
    cluster.create(topic, group)
    load = Load([proxy.address for proxy in proxies], topic, group, cluster.broker_names)
    load.start()
    try:
        yield load
        load.stop_sending()
        load.wait_delivered()
        until(lambda: not cluster.open_count(topic, group), lambda: "something is not delivered again")
    finally:
        load.stop()
    assert not load.failures, load.failures
    assert not load.missing
    assert not load.after_done, "delivered again after its acknowledgement was answered"


def test_killed_proxy_loses_nothing_and_its_clients_go_on_when_it_is_back(
    cluster: Cluster, proxies: list[OurProxy]
) -> None:
    with _load(cluster, proxies[:1], "One") as load:
        load.wait_sent(200)
        proxies[0].kill()
        proxies[0].start()
        load.wait_sent(200)


def test_clients_of_a_killed_proxy_go_on_with_another(cluster: Cluster, proxies: list[OurProxy]) -> None:
    with _load(cluster, proxies, "Two") as load:
        load.wait_sent(200)
        held = _pause_with_messages(cluster, proxies[0])
        proxies[0].kill()
        before = len(load.done)
        load.wait_sent(200)
        until(lambda: len(load.done) >= before + 100, lambda: "consumers stand still")
    assert load.again, f"{held} messages were on their way, none was delivered again"
    assert all(broker.store.max_offset("KillTwo", 0) > 0 for broker in cluster.brokers)
    proxies[0].start()


def _pause_with_messages(cluster: Cluster, proxy: OurProxy) -> int:
    """Stops a proxy when brokers have handed out more messages than there can be acknowledgements in flight, one per
    consumer; returns how many.
    """
    for _ in range(200):
        proxy.pause()
        held = cluster.open_count("KillTwo", "kill-Two")
        if held > len(cluster.brokers):
            return held
        proxy.resume()
        time.sleep(0.01)
    raise AssertionError("the proxy never holds a message")


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_broker_behind_a_proxy_loses_nothing(kills: int) -> None:
    topic, group = "KillBroker", "kill-broker"
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(OrbitNamesrv())
        names = ["broker-0", "broker-1"]
        brokers = [stack.enter_context(OrbitBroker(namesrv, brokerName=name)) for name in names]
        for broker in brokers:
            create_topic(namesrv, broker, topic, queue_count=2)
        # A returning broker is found when its route is queried again.
        proxy = stack.enter_context(OurProxy(namesrv, **SETTINGS, topicRouteServiceCacheRefreshSeconds=1))
        load = Load([proxy.address], topic, group, names)
        load.start()
        late = 0
        try:
            for _ in range(kills):
                load.wait_sent(200)
                brokers[0].kill()
                late += load.done_since(time.monotonic() - 1.0)
                load.wait_sent(100)  # with the other broker
                brokers[0].start()
                load.wait_sent(200)
            load.stop_sending()
            load.wait_delivered()
            until(load.all_done, lambda: "something is not delivered until it is acknowledged")
        finally:
            load.stop()
    figures = {
        "sent": len(load.acknowledged),
        "delivered again": load.delivered.total() - len(load.delivered),
        "after its acknowledgement": len(load.after_done),
        "acknowledged in the last second before a kill": late,
    }
    logger.info("kill of a broker behind a proxy: %s", figures)
    assert not load.failures, load.failures
    assert not load.missing
    assert len(load.after_done) <= late, figures


def test_transaction_is_ended_through_a_proxy_that_did_not_send_it(
    cluster: Cluster, proxies: list[OurProxy]
) -> None:
    """As after a restart: the half message is found by its id, and a repeated end is refused."""
    cluster.create("KillHalf", "kill-half", kind="TRANSACTION")
    check_foreign_end(proxies[0].address, proxies[1].address, "KillHalf")

    async def stored() -> list[int]:
        return [
            sum(broker.store.max_offset("KillHalf", queue) for queue in range(2))
            for broker in cluster.brokers
        ]

    until(lambda: sum(cluster.loop.run(stored())) >= 1, lambda: "the message is not committed")
    assert sum(cluster.loop.run(stored())) == 1


@pytest.mark.soak
def test_proxies_killed_in_turn_for_a_minute(cluster: Cluster, proxies: list[OurProxy]) -> None:
    until = time.monotonic() + 60
    with _load(cluster, proxies, "Turns") as load:
        for proxy in itertools.cycle(proxies):
            if time.monotonic() > until:
                break
            load.wait_sent(500)
            proxy.kill()
            load.wait_sent(100)
            proxy.start()
