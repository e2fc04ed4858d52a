"""Official gRPC clients: the same cases before our proxy and Apache's, before our brokers and Apache's.

Java and Go run over TLS, Python and Node over plain text, on the same port.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.apache.artifacts import LATEST
from tests.apache.grpc_clients.run import failures, repeated, require_client, run_cases
from tests.apache.proxy_stack import (
    BROKER_OPTIONS,
    ApacheProxy,
    OurProxy,
    create_consumer_group,
    create_typed_topics,
)
from tests.apache.servers import ApacheBroker, ApacheNamesrv, remoting_call

from orbitmq.testing import run_broker

pytestmark = [pytest.mark.apache, pytest.mark.slow]

logger = logging.getLogger(__name__)

GET_MAX_OFFSET = 30
_serial = itertools.count(1)


class Target(NamedTuple):
    name_server: str
    broker: str
    endpoint: str


def _apache_broker(stack: ExitStack) -> tuple[str, str]:
    namesrv = stack.enter_context(ApacheNamesrv(LATEST))
    broker = stack.enter_context(ApacheBroker(LATEST, namesrv, **BROKER_OPTIONS))
    return namesrv.address, broker.address


def _our_broker(stack: ExitStack) -> tuple[str, str]:
    broker = stack.enter_context(run_broker(**BROKER_OPTIONS))
    return broker.name_server, broker.address


def _ours_before_apache(stack: ExitStack) -> Target:
    name_server, broker = _apache_broker(stack)
    return Target(name_server, broker, stack.enter_context(OurProxy(name_server)).address)


def _ours_before_ours(stack: ExitStack) -> Target:
    name_server, broker = _our_broker(stack)
    return Target(name_server, broker, stack.enter_context(OurProxy(name_server)).address)


def _apache_proxy(name_server: str) -> ApacheProxy:
    """A broker asks for the end of a transaction 15 times, here within 15 s, and then gives it up. Apache's proxy
    tells brokers of its producers every 20 s: here every second, so that it is known when it is asked."""
    return ApacheProxy(name_server, transactionHeartbeatPeriodSecond=1)


def _apache_before_apache(stack: ExitStack) -> Target:
    name_server, broker = _apache_broker(stack)
    return Target(name_server, broker, stack.enter_context(_apache_proxy(name_server)).address)


def _apache_before_ours(stack: ExitStack) -> Target:
    name_server, broker = _our_broker(stack)
    return Target(name_server, broker, stack.enter_context(_apache_proxy(name_server)).address)


TARGETS: dict[str, Callable[[ExitStack], Target]] = {
    "ours-before-ours": _ours_before_ours,
    "ours-before-apache": _ours_before_apache,
    "apache-before-apache": _apache_before_apache,
    "apache-before-ours": _apache_before_ours,
}


@pytest.fixture(scope="module")
def targets(apache_tools: None) -> Iterator[Callable[[str], Target]]:
    """Each target is started when it is first asked for, and shared."""
    with ExitStack() as stack:
        started: dict[str, Target] = {}

        def find(name: str) -> Target:
            if name not in started:
                started[name] = TARGETS[name](stack)
            return started[name]

        yield find


def _prepared(target: Target, client: str) -> str:
    """Topics and groups of the cases, under a prefix of their own."""
    prefix = f"{client}{next(_serial)}"
    create_typed_topics(target.name_server, target.broker, prefix)
    for group in ("Plain", "ByTag", "BySql", "Waiting", "Transacted", "Changing", "Retrying"):
        create_consumer_group(target.broker, prefix + group)
    create_consumer_group(target.broker, f"{prefix}Orderly", consumeMessageOrderly=True)
    create_consumer_group(target.broker, f"{prefix}Short", retryMaxTimes=1)
    return prefix


def _check(target: Target, client: str, workdir: Path) -> dict[str, int]:
    """Runs the cases; returns what was delivered again, by case."""
    prefix = _prepared(target, client)
    outcomes = run_cases(client, target.endpoint, prefix, workdir)
    assert not failures(outcomes), failures(outcomes)
    assert any(one["case"] == "dead_letters" for one in outcomes)
    fields = {"topic": f"%DLQ%{prefix}Short", "queueId": "0"}
    code, answer, _ = remoting_call(target.broker, GET_MAX_OFFSET, fields)
    assert (code, answer.get("offset")) == (0, "1"), (code, answer)
    return repeated(outcomes)


def _check_together(target: Target, clients: tuple[str, ...], workdir: Path) -> None:
    """All at once: each waits most of the time. What was acknowledged is not delivered again."""
    for client in clients:
        require_client(client)
    errors: list[Any] = []

    def run(client: str) -> None:
        try:
            own = workdir / client
            own.mkdir()
            again = _check(target, client, own)
            assert not again, f"delivered again: {again}"
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append((client, error))

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "\n".join(f"{client}: {error}" for client, error in errors)


def test_every_official_client_works_before_our_proxy_and_broker(
    targets: Callable[[str], Target], tmp_path: Path
) -> None:
    _check_together(targets("ours-before-ours"), ("python", "java", "go", "node"), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("client", ["python", "java", "go", "node"])
@pytest.mark.parametrize("name", list(TARGETS))
def test_client_before_every_pair_of_proxy_and_broker(
    targets: Callable[[str], Target],
    name: str,
    client: str,
    tmp_path: Path,
) -> None:
    require_client(client)
    again = _check(targets(name), client, tmp_path)
    logger.info("%s, %s: delivered again after an acknowledgement: %s", client, name, again or "nothing")
