"""Runs the client against every server it must work with: ours, Apache 5.5.0, 4.9.7 and 5.5.1 (``--target``).

Tests are coroutines. Each runs on its own loop with a time limit, and fails when it leaves a task or an unhandled
exception behind.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from tests.apache.artifacts import prepare, require
from tests.apache.fixtures import *  # noqa: F403 - pytest finds fixtures by name
from tests.apache.ours import orbit_cluster
from tests.apache.servers import ApacheBroker, ApacheNamesrv, create_group, create_topic

TARGETS: Final = ("ours", "apache-5.5.0", "apache-4.9.7", "apache-5.5.1")
SOAKED: Final = TARGETS[2:]
"""Further releases of Apache's broker: minutes that rarely find what the first one does not."""
TEST_SECONDS: Final = 150.0
ROOM: Final = "here"
SETTINGS: Final[dict[str, Any]] = {
    "brokerName": f"{ROOM}@broker",  # the form the strategy of machine rooms reads
    "enablePropertyFilter": True,
    "traceTopicEnable": True,
    "recallMessageEnable": True,
    # The broker checks back for an unanswered transaction after a second or two, not after a minute.
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
}
_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Target:
    """Servers to run against."""

    name: str
    namesrv: Any
    broker: Any

    @property
    def address(self) -> str:
        """The address of the name server."""
        address: str = self.namesrv.address
        return address

    def topic(self, *, queue_count: int = 4) -> str:
        """Creates a topic and returns its name."""
        name = f"topic-{next(_serial)}"
        create_topic(self.namesrv, self.broker, name, queue_count=queue_count)
        return name

    def group(self) -> str:
        """Returns the name of a new group; the first heartbeat creates it."""
        name = f"group-{next(_serial)}"
        create_group(self.namesrv, self.broker, name)
        return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--target") or TARGETS
        marked = [
            pytest.param(name, marks=pytest.mark.apache) if name.startswith("apache") else name
            for name in chosen
        ]
        if not metafunc.config.getoption("--target"):
            for at, name in enumerate(chosen):
                if name in SOAKED:
                    marked[at] = pytest.param(name, marks=[pytest.mark.apache, pytest.mark.soak])
        metafunc.parametrize("target", marked, indirect=True, scope="session")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    name: str = request.param
    kind, _, version = name.partition("-")
    if kind == "ours":
        # A broker collects outcomes for 3 s, and would also check back for finished transactions.
        with orbit_cluster(**SETTINGS, transactionOpBatchInterval=100) as cluster:
            yield Target(name, cluster.namesrv, cluster.broker)
    else:
        require()
        prepare()
        with ApacheNamesrv(version) as namesrv, ApacheBroker(version, namesrv, **SETTINGS) as broker:
            yield Target(name, namesrv, broker)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(_bounded(pyfuncitem.obj, arguments))
    return True


async def _bounded(test: Callable[..., Any], arguments: dict[str, Any]) -> None:
    strays: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: strays.append(context))
    async with asyncio.timeout(TEST_SECONDS):
        await test(**arguments)
    # Transports report their end one turn later.
    for _ in range(5):
        await asyncio.sleep(0)
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks left behind: {left}"
    assert not strays, f"exceptions nobody took: {strays}"
