"""Official gRPC clients with credentials connect to our proxy, which has our broker authenticate them. Clients whose
calls are accepted use TLS, and the local time of a zone far from UTC.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.apache.grpc_clients.run import CLIENTS, failures, require_client, run_cases
from tests.apache.proxy_stack import OurProxy
from tests.proxy.cluster import Cluster, running_cluster
from tests.unit.transport.certificates import Certificates, make_certificates

from orbitmq.auth.model import Action, Decision, Entry, Policies, Resource, User

pytestmark = [pytest.mark.apache, pytest.mark.slow]

INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'
SECURED = (
    "authenticationEnabled=true",
    "authorizationEnabled=true",
    'initAuthenticationUser={"username":"admin","password":"secret12"}',
    f"innerClientAuthenticationCredentials={INNER}",
)
ZONES = {
    "python": "Asia/Shanghai",
    "java": "America/New_York",
    "go": "Asia/Shanghai",
    "node": "America/New_York",
}
"""Clients sign their local time with a literal Z."""
HIDES_REASON = {"python": "failed to fetch topic", "node": "Failed to fetch topic"}
"""What these say instead of why they got no route."""


@pytest.fixture(scope="module")
def secured(
    apache_tools: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, str, Certificates]]:
    """Yields a cluster, the endpoint of a proxy in front of it, and the proxy's certificates.

    ``alice`` may use names that begin with go, java and so on; ``bob`` has no rights.
    """
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(tmp_path_factory.mktemp("cluster"), 1, *SECURED))
        for client in CLIENTS:
            cluster.create(f"{client}Normal", f"{client}Plain")
        _store_users(cluster)
        made = make_certificates(tmp_path_factory.mktemp("tls"))
        proxy = stack.enter_context(
            OurProxy(
                cluster.name_server,
                authenticationEnabled=True,
                authorizationEnabled=True,
                innerClientAuthenticationCredentials=INNER,
                tlsTestModeEnable=False,
                tlsCertPath=str(made.server),
                tlsKeyPath=str(made.server_key),
            )
        )
        yield cluster, proxy.address, made


def _store_users(cluster: Cluster) -> None:
    texts = [f"{kind}:{client}*" for kind in ("Topic", "Group") for client in CLIENTS]
    resources = [resource for resource in map(Resource.parse, texts) if resource is not None]
    assert len(resources) == len(texts)
    entries = tuple(Entry(one, (Action.PUB, Action.SUB), Decision.ALLOW) for one in resources)

    async def store() -> None:
        table = cluster.brokers[0].security.table
        table.store_user(User("alice", "secret34"))
        table.store_policies("alice", Policies(entries))
        table.store_user(User("bob", "secret56"))

    cluster.loop.run(store())


def _outcome(
    endpoint: str, client: str, workdir: Path, name: str, secret: str, *, authority: Path | None
) -> dict[str, Any]:
    own = workdir / f"{client}-{name}-{secret}"
    own.mkdir()
    (outcome,) = run_cases(
        client,
        endpoint,
        client,
        own,
        cases=("normal",),
        credentials=(name, secret),
        authority=authority,
        zone=ZONES[client],
    )
    return outcome


def test_official_clients_are_let_in_and_refused(
    secured: tuple[Cluster, str, Certificates], tmp_path: Path
) -> None:
    _, endpoint, made = secured
    for client in CLIENTS:
        require_client(client)
    seen: dict[tuple[str, str, str], dict[str, Any]] = {}

    def run(client: str) -> None:
        for name, secret in (("alice", "secret34"), ("alice", "wrong-one"), ("bob", "secret56")):
            authority = made.authority if secret == "secret34" else None
            seen[client, name, secret] = _outcome(
                endpoint, client, tmp_path, name, secret, authority=authority
            )

    threads = [threading.Thread(target=run, args=(client,)) for client in CLIENTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in CLIENTS:
        assert not failures([seen[client, "alice", "secret34"]])
        for name, secret, reason in (
            ("alice", "wrong-one", "check signature failed"),
            ("bob", "secret56", "no matched policies"),
        ):
            outcome = seen[client, name, secret]
            assert not outcome["ok"], (client, outcome)
            shown = HIDES_REASON.get(client, reason)
            assert shown in outcome["seen"], (client, outcome)
