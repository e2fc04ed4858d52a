"""Fixtures over the harness. JVMs are slow to start, so all tests of a run share them; each test gets them without
other tests' clients, and unique names for topics and groups.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import pytest
from tests.apache.artifacts import LATEST, LEGACY, prepare, require
from tests.apache.clients import Clients, GoClients, JavaClients
from tests.apache.mqadmin import AdminShell
from tests.apache.servers import ApacheBroker, ApacheNamesrv, create_group, create_topic

__all__ = [
    "ApacheCluster",
    "apache_cluster",
    "apache_tools",
    "go_clients",
    "java_latest",
    "java_legacy",
    "mqadmin_latest",
    "mqadmin_legacy",
    "shared_go",
    "shared_java",
    "shared_mqadmin",
    "started_cluster",
    "unique",
]

NAME_CHARACTERS_MAX: Final = 40
T = TypeVar("T", bound=Clients)
_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ApacheCluster:
    """Apache's own name server with one broker."""

    namesrv: ApacheNamesrv
    broker: ApacheBroker

    def create_topic(self, topic: str, *, queue_count: int = 4) -> str:
        create_topic(self.namesrv, self.broker, topic, queue_count=queue_count)
        return topic

    def create_group(self, group: str) -> str:
        create_group(self.namesrv, self.broker, group)
        return group


@pytest.fixture(scope="session")
def apache_tools() -> None:
    """Ensures that Java, Maven and the artifacts are available; otherwise the test is skipped, or fails in CI."""
    require()
    prepare()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Returns names that no other test uses: `unique("topic")`."""
    test = re.sub(r"\W+", "-", request.node.name)[:NAME_CHARACTERS_MAX].strip("-")
    return lambda kind: f"{kind}-{test}-{next(_serial)}"


@contextmanager
def started_cluster() -> Iterator[ApacheCluster]:
    """Yields Apache's name server and broker 5.5.0 with SQL filters on."""
    with (
        ApacheNamesrv(LATEST) as namesrv,
        ApacheBroker(LATEST, namesrv, enablePropertyFilter=True) as broker,
    ):
        yield ApacheCluster(namesrv, broker)


# Tests with transactions start their own: after the first one, an Apache 5.5.0 broker keeps one core busy for as long
# as it lives (its TransactionalOpBatchService waits for a time that has passed).
@pytest.fixture(scope="session")
def apache_cluster(apache_tools: None) -> Iterator[ApacheCluster]:
    """Yields one cluster for the whole run, so leave it running."""
    with started_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_java(apache_tools: None) -> Iterator[dict[str, JavaClients]]:
    processes: dict[str, JavaClients] = {}
    yield processes
    for process in processes.values():
        process.close()


@pytest.fixture
def java_latest(shared_java: dict[str, JavaClients]) -> Iterator[JavaClients]:
    """The Java client 5.5.0."""
    yield from _lend(shared_java, LATEST, lambda: JavaClients(LATEST))


@pytest.fixture
def java_legacy(shared_java: dict[str, JavaClients]) -> Iterator[JavaClients]:
    """The Java client 4.9.7."""
    yield from _lend(shared_java, LEGACY, lambda: JavaClients(LEGACY))


@pytest.fixture(scope="session")
def shared_go() -> Iterator[dict[str, GoClients]]:
    require(go=True)
    processes: dict[str, GoClients] = {}
    yield processes
    for process in processes.values():
        process.close()


@pytest.fixture
def go_clients(shared_go: dict[str, GoClients]) -> Iterator[GoClients]:
    """The Go client 2.1.2."""
    yield from _lend(shared_go, "go", GoClients)


@pytest.fixture(scope="session")
def shared_mqadmin(apache_tools: None) -> Iterator[dict[str, AdminShell]]:
    shells = {version: AdminShell(version) for version in (LATEST, LEGACY)}
    yield shells
    for shell in shells.values():
        shell.close()


@pytest.fixture
def mqadmin_latest(shared_mqadmin: dict[str, AdminShell]) -> AdminShell:
    """mqadmin 5.5.0, all commands in one JVM; set its `namesrv` or pass one with each command."""
    return shared_mqadmin[LATEST]


@pytest.fixture
def mqadmin_legacy(shared_mqadmin: dict[str, AdminShell]) -> AdminShell:
    """mqadmin 4.9.7."""
    return shared_mqadmin[LEGACY]


def _lend(processes: dict[str, T], key: str, make: Callable[[], T]) -> Iterator[T]:
    """Yields the shared process, restarted if a test killed it; drops its clients when the test is over."""
    process = processes.get(key)
    if process is None or not process.child.running:
        if process is not None:
            process.close()
        process = processes[key] = make()
        process.start()
    yield process
    if process.child.running:
        process.abandon()
