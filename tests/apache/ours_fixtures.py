"""Fixtures for the official clients against our servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from tests.apache.artifacts import LATEST, LEGACY
from tests.apache.clients import Clients, JavaClients
from tests.apache.fixtures import _lend
from tests.apache.ours import OrbitCluster, orbit_cluster

__all__ = ["any_client", "any_java", "java_latest_binary", "java_legacy_binary", "ours"]

JAVA: Final = ("java_latest", "java_latest_binary", "java_legacy", "java_legacy_binary")


@pytest.fixture(scope="session")
def ours(apache_tools: None) -> Iterator[OrbitCluster]:
    """Our name server and broker with default settings; shared, so leave it running."""
    with orbit_cluster() as cluster:
        yield cluster


@pytest.fixture
def java_latest_binary(shared_java: dict[str, JavaClients]) -> Iterator[JavaClients]:
    """The Java client 5.5.0 with binary headers."""
    yield from _lend(shared_java, f"{LATEST}-binary", _binary(LATEST))


@pytest.fixture
def java_legacy_binary(shared_java: dict[str, JavaClients]) -> Iterator[JavaClients]:
    """The Java client 4.9.7 with binary headers."""
    yield from _lend(shared_java, f"{LEGACY}-binary", _binary(LEGACY))


def _binary(version: str) -> Callable[[], JavaClients]:
    return lambda: JavaClients(version, serialize="ROCKETMQ")


@pytest.fixture(params=JAVA)
def any_java(request: pytest.FixtureRequest) -> JavaClients:
    """Each Java client in turn: both releases, both header forms."""
    process: JavaClients = request.getfixturevalue(request.param)
    return process


@pytest.fixture(params=(*JAVA, "go_clients"))
def any_client(request: pytest.FixtureRequest) -> Clients:
    """Each official client in turn."""
    process: Clients = request.getfixturevalue(request.param)
    return process
