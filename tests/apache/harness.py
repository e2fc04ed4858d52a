"""Exports the whole harness under one name; see README.md in this folder."""

from __future__ import annotations

from tests.apache.artifacts import LATEST, LEGACY, VERSIONS, ApacheUnavailable, missing_tools, require
from tests.apache.benchmark import BENCH_JVM, Benchmark, BenchmarkReport, run_benchmark
from tests.apache.clients import (
    Admin,
    Clients,
    GoClients,
    JavaClients,
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    Script,
    Sql,
)
from tests.apache.driver import ClientError
from tests.apache.mqadmin import AdminResult, AdminShell, mqadmin
from tests.apache.process import SMALL_JVM, HarnessTimeout, StartFailed, free_ports, wait_until
from tests.apache.servers import (
    Addressed,
    ApacheBroker,
    ApacheNamesrv,
    cluster_info,
    create_group,
    create_topic,
    remoting_call,
    wait_known,
)
from tests.apache.values import Check, Delivery, Message, PullResult, Queue, Received, SendResult

__all__ = [
    "BENCH_JVM",
    "LATEST",
    "LEGACY",
    "SMALL_JVM",
    "VERSIONS",
    "Addressed",
    "Admin",
    "AdminResult",
    "AdminShell",
    "ApacheBroker",
    "ApacheNamesrv",
    "ApacheUnavailable",
    "Benchmark",
    "BenchmarkReport",
    "Check",
    "ClientError",
    "Clients",
    "Delivery",
    "GoClients",
    "HarnessTimeout",
    "JavaClients",
    "LitePullConsumer",
    "Message",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "Queue",
    "Received",
    "Script",
    "SendResult",
    "Sql",
    "StartFailed",
    "cluster_info",
    "create_group",
    "create_topic",
    "free_ports",
    "missing_tools",
    "mqadmin",
    "remoting_call",
    "require",
    "run_benchmark",
    "wait_known",
    "wait_until",
]
