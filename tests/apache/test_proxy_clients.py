"""Official gRPC clients run the same cases through our proxy and Apache's, with our brokers and Apache's.

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
GROUPS = (
    *("Plain", "ByTag", "BySql", "Waiting", "Recalling", "Transacted", "Changing", "Retrying", "Ranked"),
    *("Late", "Refused", "RefusedSql"),
)
CASES = frozenset(
    (
        *("normal", "filters", "fifo", "delay", "recall", "priority", "transaction"),
        *("change_invisible_duration", "push_with_retry", "dead_letters", "late_ack", "refusals"),
    )
)
LACKING: dict[str, frozenset[str]] = {
    "go": frozenset(("recall", "priority")),
    "node": frozenset(("priority",)),  # it has the field, but treats such a message as a normal one
    "rust": CASES - {"normal", "filters", "fifo", "delay", "transaction", "refusals"},
}
"""Cases for which a client has no call."""
_COMMON = {
    "far delivery": "40012",
    "invisible time": "40011",
    "long message group": "40006",
    "recall handle": "50001",
    "reserved property": "40007",
    "sql": "50001",
    "unknown topic": "40402",
}
_OWN: dict[str, dict[str, str | None]] = {
    "java": {"large body": "ClientException", "wrong type": "IllegalArgumentException"},
    "python": {
        "large body": "IllegalArgumentException",
        "wrong type": "IllegalArgumentException",
        "unknown topic": "Exception",
    },
    "go": {
        "large body": "message body size exceeds the threshold",
        "wrong type": "current message type not match with topic accept message types",
        "recall handle": None,
    },
    "node": {"large body": "TypeError", "wrong type": "TypeError", "recall handle": "Error"},
}


def _refusals(client: str) -> str:
    codes = {**_COMMON, **_OWN[client]}
    return "; ".join(f"{name}: {code}" for name, code in sorted(codes.items()) if code is not None)


FOUR = ("python", "java", "go", "node")
REFUSALS = {
    **{(client, "refusals"): _refusals(client) for client in FOUR},
    **{(client, "late_ack"): "ack: 40013" for client in FOUR},
    ("go", "late_ack"): "ack: accepted",  # it ignores the status of the entry
}
"""What clients are told, the same by every proxy: codes of statuses, or the error of the client itself."""
_serial = itertools.count(1)


class Target(NamedTuple):
    name_server: str
    broker: str
    endpoint: str


OPTIONS = {**BROKER_OPTIONS, "transactionTimeOut": 5000}
"""A client of a busy machine must be able to end a transaction before it is asked about it."""


def _apache_broker(stack: ExitStack) -> tuple[str, str]:
    namesrv = stack.enter_context(ApacheNamesrv(LATEST))
    broker = stack.enter_context(ApacheBroker(LATEST, namesrv, **OPTIONS))
    return namesrv.address, broker.address


def _our_broker(stack: ExitStack) -> tuple[str, str]:
    broker = stack.enter_context(run_broker(**OPTIONS))
    return broker.name_server, broker.address


def _ours_before_apache(stack: ExitStack) -> Target:
    name_server, broker = _apache_broker(stack)
    return Target(name_server, broker, stack.enter_context(OurProxy(name_server)).address)


def _ours_before_ours(stack: ExitStack) -> Target:
    name_server, broker = _our_broker(stack)
    return Target(name_server, broker, stack.enter_context(OurProxy(name_server)).address)


def _apache_proxy(name_server: str) -> ApacheProxy:
    """Returns Apache's proxy. A broker checks back 15 times for the end of a transaction, here within 15 s, and then
    gives up. Apache's proxy announces its producers to brokers every 20 s; here it does so every second, so that a
    check finds it registered.
    """
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
    """Yields a function that returns targets by name; each is started when it is first requested, and shared."""
    with ExitStack() as stack:
        started: dict[str, Target] = {}

        def find(name: str) -> Target:
            if name not in started:
                started[name] = TARGETS[name](stack)
            return started[name]

        yield find


def _prepared(target: Target, client: str) -> str:
    """Creates topics and groups of the cases; returns their prefix."""
    prefix = f"{client}{next(_serial)}"
    create_typed_topics(target.name_server, target.broker, prefix)
    for group in GROUPS:
        create_consumer_group(target.broker, prefix + group)
    create_consumer_group(target.broker, f"{prefix}Orderly", consumeMessageOrderly=True)
    create_consumer_group(target.broker, f"{prefix}Short", retryMaxTimes=1)
    return prefix


def _check(target: Target, client: str, workdir: Path) -> dict[str, int]:
    """Runs the cases; returns the number of redeliveries by case."""
    prefix = _prepared(target, client)
    outcomes = run_cases(client, target.endpoint, prefix, workdir)
    assert not failures(outcomes), failures(outcomes)
    cases = {one["case"] for one in outcomes}
    assert cases == CASES - LACKING.get(client, frozenset())
    for one in outcomes:
        if (expected := REFUSALS.get((client, one["case"]))) is not None:
            assert one["seen"] == expected, (client, one)
    if "dead_letters" in cases:
        fields = {"topic": f"%DLQ%{prefix}Short", "queueId": "0"}
        code, answer, _ = remoting_call(target.broker, GET_MAX_OFFSET, fields)
        assert (code, answer.get("offset")) == (0, "1"), (code, answer)
    return repeated(outcomes)


def _check_together(target: Target, clients: tuple[str, ...], workdir: Path) -> dict[str, dict[str, int]]:
    """Runs all clients in parallel, since each waits most of the time. Returns the number of redeliveries by client
    and case.
    """
    for client in clients:
        require_client(client)
    again: dict[str, dict[str, int]] = {}
    errors: list[Any] = []

    def run(client: str) -> None:
        try:
            own = workdir / client
            own.mkdir()
            again[client] = _check(target, client, own)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append((client, error))

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "\n".join(f"{client}: {error}" for client, error in errors)
    return again


def test_every_official_client_works_before_our_proxy_and_broker(
    targets: Callable[[str], Target], tmp_path: Path
) -> None:
    again = _check_together(targets("ours-before-ours"), FOUR, tmp_path)
    assert not any(again.values()), f"delivered again after an acknowledgement: {again}"


RUST = frozenset(("ours-before-ours", "apache-before-apache"))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "client"),
    [(name, client) for name in TARGETS for client in (*FOUR, "rust") if client != "rust" or name in RUST],
)
def test_client_before_every_pair_of_proxy_and_broker(
    targets: Callable[[str], Target], name: str, client: str, tmp_path: Path
) -> None:
    require_client(client)
    again = _check(targets(name), client, tmp_path)
    logger.info("%s, %s: delivered again after an acknowledgement: %s", client, name, again or "nothing")
