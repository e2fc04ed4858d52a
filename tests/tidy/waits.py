"""The rules for waits in tests: no new sleeps and no new helpers that poll, beside those of ``tests/support``.

The tables hold what is still there. A number may only go down, and an entry goes with its last sleep or helper.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.tidy.rules import Source

__all__ = ["POLLING_HELPERS", "SLEEPS", "check_waits", "polling_helpers", "sleeps"]

# The shared helpers; the clock of the simulation is virtual; programs for other interpreters.
_EXEMPT: Final = ("tests/support/", "tests/sim/", "tests/apache/grpc_clients/")
_HELPER: Final = re.compile(r"_?(until|wait_until|wait_for|eventually)(_\w+)?")

SLEEPS: Final[Mapping[str, int]] = {
    "tests/apache/process.py": 2,
    "tests/apache/test_broker_consume.py": 2,
    "tests/apache/test_broker_groups.py": 2,
    "tests/apache/test_broker_queries.py": 2,
    "tests/apache/test_metrics.py": 1,
    "tests/apache/test_namesrv_with_apache.py": 1,
    "tests/conformance/proxy.py": 1,
    "tests/conformance/test_consumer_life.py": 1,
    "tests/conformance/test_consuming.py": 4,
    "tests/conformance/test_corners.py": 1,
    "tests/conformance/test_faults.py": 1,
    "tests/conformance/test_iterating.py": 1,
    "tests/conformance/test_starting.py": 1,
    "tests/console/kit.py": 1,
    "tests/console/test_scale.py": 2,
    "tests/fault/load.py": 4,
    "tests/fault/real.py": 8,
    "tests/fault/test_pop_kill.py": 5,
    "tests/fault/test_proxy_kill.py": 1,
    "tests/golden/test_pop.py": 1,
    "tests/integration/failover_kit.py": 1,
    "tests/integration/test_broker_connections.py": 2,
    "tests/integration/test_broker_sends.py": 1,
    "tests/integration/test_examples.py": 1,
    "tests/integration/test_failover.py": 3,
    "tests/integration/test_ha.py": 2,
    "tests/integration/test_ha_faults.py": 1,
    "tests/integration/test_service_and_worker.py": 2,
    "tests/integration/test_simple_consumer.py": 1,
    "tests/integration/test_transport.py": 6,
    "tests/proxy/golden.py": 1,
    "tests/proxy/load.py": 1,
    "tests/unit/broker/delivery/test_schedule.py": 1,
    "tests/unit/broker/delivery/test_timers.py": 2,
    "tests/unit/broker/failover/test_coordinator.py": 1,
    "tests/unit/broker/replication/test_acks.py": 3,
    "tests/unit/client/produce/test_accumulator.py": 1,
    "tests/unit/client/test_clients.py": 1,
    "tests/unit/runtime/test_stalls.py": 1,
    "tests/unit/runtime/test_tasks.py": 1,
    "tests/unit/transport/test_connection.py": 1,
}
POLLING_HELPERS: Final[Mapping[str, int]] = {
    "tests/apache/process.py": 1,
    "tests/apache/test_broker_groups.py": 1,
    "tests/apache/test_mqadmin_broker.py": 1,
    "tests/integration/config_files.py": 1,
    "tests/integration/spark_servers.py": 1,
    "tests/integration/test_examples.py": 1,
    "tests/integration/test_screens.py": 1,
    "tests/integration/test_spark_outages.py": 1,
    "tests/spark/test_stream_kill.py": 1,
}


def sleeps(source: Source) -> Iterator[int]:
    """Yields the line of every call of ``sleep`` that waits; ``sleep(0)`` only lets other tasks run."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        yields_only = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if name == "sleep" and not yields_only:
            yield node.lineno


def polling_helpers(source: Source) -> Iterator[int]:
    """Yields the line of every function named like ``until`` that contains a loop."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not _HELPER.fullmatch(node.name):
            continue
        if any(isinstance(inner, ast.While | ast.For) for inner in ast.walk(node)):
            yield node.lineno


def check_waits(
    sources: Iterable[Source],
    listed_sleeps: Mapping[str, int] = SLEEPS,
    listed_helpers: Mapping[str, int] = POLLING_HELPERS,
) -> Iterator[str]:
    """test-sleep, polling-helper, stale-exception."""
    tests = [source for source in sources if source.path.startswith("tests/")]
    rules = (
        ("test-sleep", sleeps, listed_sleeps, "wait for a state with tests/support/waiting.py"),
        (
            "polling-helper",
            polling_helpers,
            listed_helpers,
            "use until or until_async of tests/support/waiting.py",
        ),
    )
    for rule, find, listed, instead in rules:
        found: Counter[str] = Counter()
        for source in tests:
            lines = [] if source.path.startswith(_EXEMPT) else list(find(source))
            found[source.path] = len(lines)
            if len(lines) > listed.get(source.path, 0):
                yield f"{rule}: {source.path}: {len(lines)} at lines {lines}: {instead}"
        for path, number in listed.items():
            if not found[path]:
                yield f"stale-exception: the {rule} table lists {path} with {number} and there are none"
