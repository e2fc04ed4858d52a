"""Official gRPC clients of two proxies with two brokers, one proxy killed: they recover, and no message is lost.

The Node client cannot use two addresses (it treats them as one host name), so it recovers only when its proxy is
back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.apache.grpc_clients.run import CLIENTS, failures, require_client, run_cases
from tests.apache.process import wait_until
from tests.apache.proxy_stack import OurProxy
from tests.proxy.cluster import Cluster, running_cluster

pytestmark = [pytest.mark.apache, pytest.mark.slow]

logger = logging.getLogger(__name__)
SECONDS = 120.0
"""Of sending, at most."""


@pytest.fixture(scope="module")
def cluster(apache_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


def _stored(cluster: Cluster, topic: str) -> int:
    async def count() -> int:
        return sum(broker.store.max_offset(topic, queue) for broker in cluster.brokers for queue in range(2))

    return cluster.loop.run(count())


def _wait_grown(
    cluster: Cluster, ended: Container[str], before: Mapping[str, int], clients: Sequence[str]
) -> None:
    """Waits until each of these clients has sent 50 more messages, or has ended."""
    for client in clients:
        wait_until(
            lambda client=client: (  # type: ignore[misc]  # mypy gives a default no type
                client in ended or _stored(cluster, f"{client}Normal") > before[client] + 50
            ),
            timeout_s=60,
            what=f"messages of {client}",
        )


def test_clients_of_a_killed_proxy_go_on_and_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    for client in CLIENTS:
        require_client(client)
        cluster.create(f"{client}Normal", f"{client}Plain")
    outcomes: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        # Two addresses and one port, as on two machines: clients receive the port of the proxy they query.
        first = stack.enter_context(OurProxy(cluster.name_server))
        second = stack.enter_context(OurProxy(cluster.name_server, host="127.0.0.2", port=first.port))
        endpoints = f"{first.address};{second.address}"

        def run(client: str) -> None:
            own = tmp_path / client
            known = first.address if client == "node" else endpoints
            outcomes[client] = run_cases(client, known, client, own, cases=("steady",), seconds=SECONDS)

        for client in CLIENTS:
            (tmp_path / client).mkdir()
        threads = [threading.Thread(target=run, args=(client,)) for client in CLIENTS]
        for thread in threads:
            thread.start()
        _wait_grown(cluster, outcomes, dict.fromkeys(CLIENTS, 0), list(CLIENTS))
        first.kill()
        before = {client: _stored(cluster, f"{client}Normal") for client in CLIENTS}
        _wait_grown(cluster, outcomes, before, [client for client in CLIENTS if client != "node"])
        first.start()
        _wait_grown(cluster, outcomes, before, ["node"])
        for client in CLIENTS:
            (tmp_path / client / "stop").touch()
        for thread in threads:
            thread.join()
    assert set(outcomes) == set(CLIENTS)
    for client, found in outcomes.items():
        logger.info("%s: %s, delivered again %d", client, found[0]["seen"], found[0]["repeated"])
        assert not failures(found), (client, failures(found))
