"""A standalone proxy in front of brokers with access control, which decide who may call it."""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.apache.process import wait_until
from tests.proxy.cluster import Cluster, running_cluster
from tests.proxy.golden import GOLDEN, SERVICE

from orbitmq.auth.model import Action, Decision, Entry, Policies, Resource, User
from orbitmq.errors import ConfigError
from orbitmq.proxy.config import read_proxy_config
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.server import Proxy

pytestmark = pytest.mark.slow

INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'
SECURED = (
    "authenticationEnabled=true",
    "authorizationEnabled=true",
    'initAuthenticationUser={"username":"admin","password":"secret12"}',
    f"innerClientAuthenticationCredentials={INNER}",
)


@contextlib.contextmanager
def running_proxy(cluster: Cluster, **settings: str) -> Iterator[Proxy]:
    values = {
        "grpcServerPort": "0",
        "bindAddress": "127.0.0.1",
        "namesrvAddr": cluster.name_server,
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "innerClientAuthenticationCredentials": INNER,
        "userCacheRefreshSeconds": "1",
        **settings,
    }
    config, unknown = read_proxy_config(None, values)
    assert not unknown
    proxy = Proxy(config)
    cluster.loop.run(proxy.start())
    try:
        yield proxy
    finally:
        cluster.loop.run(proxy.stop())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 1, *SECURED) as running:
        running.create("AuthT", "AuthG")
        _store(running, User("bob", "secret34"))
        yield running


def _store(cluster: Cluster, user: User, *resources: str) -> None:
    """Allows the user to publish to and consume from these."""
    entries = []
    for text in resources:
        resource = Resource.parse(text)
        assert resource is not None
        entries.append(Entry(resource, (Action.PUB, Action.SUB), Decision.ALLOW))

    async def store() -> None:
        for broker in cluster.brokers:
            broker.security.table.store_user(user)
            broker.security.table.store_policies(user.name, Policies(tuple(entries)) if entries else None)

    cluster.loop.run(store())


def _signed(name: str, secret: str) -> list[tuple[str, str]]:
    date = time.strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex().upper()
    return [
        ("x-mq-client-id", "c"),
        ("x-mq-date-time", date),
        (
            "authorization",
            f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}",
        ),
    ]


def _route(proxy: Proxy, metadata: list[tuple[str, str]]) -> pb.Status:
    with grpc.insecure_channel(proxy.address) as channel:
        call = channel.unary_unary(
            SERVICE + "QueryRoute",
            pb.QueryRouteRequest.SerializeToString,
            pb.QueryRouteResponse.FromString,
        )
        request = pb.QueryRouteRequest(topic=pb.Resource(name="AuthT"))
        status = call(request, metadata=metadata, timeout=10).status
    assert isinstance(status, pb.Status)
    return status


def test_recorded_calls_are_judged_as_by_apache(cluster: Cluster) -> None:
    with running_proxy(cluster, signedDateCheck="off") as proxy:
        for exchange in GOLDEN["signed"]:
            given = [tuple(line.split(": ", 1)) for line in exchange["metadata"]]
            status = _route(proxy, given)
            seen = {"code": pb.Code.Name(status.code), "message": status.message}
            assert seen == exchange["status"], exchange["label"]


def test_changes_at_the_broker_are_in_force_after_the_time_of_the_cache(cluster: Cluster) -> None:
    with running_proxy(cluster) as proxy:
        carol = _signed("carol", "secret56")
        assert _route(proxy, carol).message == "User:carol is not found."
        _store(cluster, User("carol", "secret56"), "Topic:AuthT")
        wait_until(lambda: _route(proxy, carol).code == pb.OK, timeout_s=20, what="carol being allowed")
        _store(cluster, User("carol", "secret56"))
        wait_until(
            lambda: _route(proxy, carol).message.endswith("no matched policies."),
            timeout_s=20,
            what="carol losing a right",
        )
        _store(cluster, User("carol", "changed78"))
        wait_until(
            lambda: _route(proxy, carol).message == "check signature failed.",
            timeout_s=20,
            what="the old secret being refused",
        )


def test_a_broker_that_does_not_tell_secrets_lets_nobody_in(cluster: Cluster) -> None:
    """The proxy has credentials of another Super user than the brokers' inner one: it does not get the secret of a
    user, and a call signed with an empty one is refused.
    """
    with running_proxy(
        cluster, innerClientAuthenticationCredentials='{"accessKey":"admin","secretKey":"secret12"}'
    ) as proxy:
        for secret in ("secret34", ""):
            status = _route(proxy, _signed("bob", secret))
            assert status.code == pb.INTERNAL_SERVER_ERROR
            assert "innerClientAuthenticationCredentials" in status.message


def test_known_users_stay_when_no_broker_answers(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1, *SECURED) as own:
        own.create("AuthT", "AuthG")
        with running_proxy(own) as proxy:
            assert _route(proxy, _signed("admin", "secret12")).code == pb.OK
            own.loop.run(own.brokers[0].stop())
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                assert _route(proxy, _signed("admin", "secret12")).code == pb.OK
                assert _route(proxy, _signed("admin", "wrong")).message == "check signature failed."
            assert _route(proxy, _signed("erin", "x")).code != pb.OK


def test_brokers_that_insist_on_tls_are_reached_with_tls_enable(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1, *SECURED, "tls.server.mode=enforcing") as own:
        own.create("AuthT", "AuthG")
        with running_proxy(own) as plain:
            assert _route(plain, _signed("admin", "secret12")).code != pb.OK
        with running_proxy(own, **{"tls.enable": "true"}) as proxy:
            assert _route(proxy, _signed("admin", "secret12")).code == pb.OK
            assert _route(proxy, _signed("admin", "wrong")).message == "check signature failed."


def test_a_proxy_without_credentials_of_its_own_does_not_start() -> None:
    config, _ = read_proxy_config(None, {"authenticationEnabled": "true", "namesrvAddr": "127.0.0.1:1"})
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials"):
        Proxy(config)
