"""Compares our exporter with that of a real Apache 5.5.0 broker: the same work, then names, kinds, labels
and values.
"""

from __future__ import annotations

import asyncio
import functools
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Final

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from scripts.build_docs import NOT_EXPORTED
from tests.apache.artifacts import LATEST
from tests.apache.harness import ApacheBroker, ApacheNamesrv, create_group, create_topic, free_ports

from orbitmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionState,
)
from orbitmq.testing import run_broker

pytestmark = [pytest.mark.apache, pytest.mark.slow]

TOPIC: Final = "Metered"
GROUP: Final = "meter"
NOT_OURS: Final = {name: why for names, why in NOT_EXPORTED for name in names}
SAME_FIGURES: Final = (
    "rocketmq_broker_permission",
    "rocketmq_commit_messages",
    "rocketmq_consumer_connections",
    "rocketmq_consumer_group_number",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_consumer_ready_messages",
    "rocketmq_half_messages",
    "rocketmq_messages_out",
    "rocketmq_processor_watermark",
    "rocketmq_producer_connections",
    "rocketmq_rollback_messages",
    "rocketmq_throughput_out",
    "rocketmq_topic_number",
)
Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(address: str) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def labels(family: Metric) -> set[frozenset[str]]:
    return {
        frozenset(name for name in sample.labels if name not in ("otel_scope_name", "le"))
        for sample in family.samples
    }


def figures(families: Iterable[Metric]) -> Figures:
    return {
        (
            sample.name,
            frozenset(item for item in sample.labels.items() if item[0] != "otel_scope_name"),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def outcome(state: TransactionState, _message: Message, _id: str) -> TransactionState:
    return state


async def work(name_server: str, watch: Callable[[], None]) -> None:
    """Does work of every kind; ``watch`` is called while the clients are still connected."""
    async with Producer("meters", name_server, check=lambda _: TransactionState.UNKNOWN) as producer:
        for size in (100, 100, 100, 2_000):
            await producer.send(Message(TOPIC, b"x" * size))
        await producer.send(Message(TOPIC, "bad"))
        await producer.send(Message(TOPIC, "late", delay_level=1))
        await producer.send(Message(TOPIC, "much later", delay_level=10))
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN):
            await producer.send_in_transaction(Message(TOPIC, "half"), functools.partial(outcome, state))
        consumer = PushConsumer(
            GROUP, name_server, from_where=ConsumeFromWhere.FIRST_OFFSET, rebalance_s=1.0, reconsume_max=0
        )
        seen: list[str] = []
        done = asyncio.Event()

        @consumer.listen(TOPIC)
        async def handle(message: ReceivedMessage) -> ConsumeResult:
            seen.append(message.text())
            if len(seen) >= 7:
                done.set()
            return ConsumeResult.RETRY if message.text() == "bad" else ConsumeResult.SUCCESS

        async with consumer, asyncio.timeout(60):
            await done.wait()
            await asyncio.to_thread(watch)


def settled(address: str) -> dict[str, Metric]:
    """Returns a scrape taken once the consumer has committed everything and its dead letter is stored."""
    deadline = time.monotonic() + 30
    while True:
        families = scrape(address)
        lag = families.get("rocketmq_consumer_lag_messages")
        dead = families.get("rocketmq_send_to_dlq_messages")
        half = families.get("rocketmq_half_messages")
        if (
            lag is not None
            and dead is not None
            and half is not None
            and not any(sample.value for sample in lag.samples)
            and [sample.value for sample in half.samples] == [1.0]
        ):
            return families
        assert time.monotonic() < deadline, sorted(families)
        time.sleep(0.2)


def of_apache() -> dict[str, Metric]:
    (port,) = free_ports()
    found: dict[str, Metric] = {}
    with (
        ApacheNamesrv(LATEST) as namesrv,
        ApacheBroker(
            LATEST,
            namesrv,
            metricsExporterType="PROM",
            metricsPromExporterPort=port,
            metricsPromExporterHost="127.0.0.1",
        ) as broker,
    ):
        create_topic(namesrv, broker, TOPIC)
        create_group(namesrv, broker, GROUP)
        asyncio.run(work(namesrv.address, lambda: found.update(settled(f"127.0.0.1:{port}"))))
    return found


def of_ours() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    with run_broker(metricsExporterType="PROM", metricsPromExporterPort=0) as broker:
        broker.create_topic(TOPIC)
        broker.create_topic(f"%RETRY%{GROUP}", queue_count=1)
        asyncio.run(work(broker.name_server, lambda: found.update(settled(str(broker.metrics)))))
    return found


def test_names_kinds_labels_and_figures_are_those_of_apaches_exporter(apache_tools: None) -> None:
    theirs, ours = of_apache(), of_ours()
    assert set(theirs) - set(ours) <= set(NOT_OURS)
    for name in set(theirs) & set(ours):
        assert ours[name].type == theirs[name].type, name
        assert labels(ours[name]) == labels(theirs[name]), name
    expected = figures(theirs[name] for name in SAME_FIGURES)
    assert {key: figures(ours.values()).get(key) for key in expected} == expected
    # Our client gives our broker the reason with the send-back; Apache's gets a copy, counted by its producer.
    dead = [sum(figures([one["rocketmq_send_to_dlq_messages"]]).values()) for one in (theirs, ours)]
    assert dead == [1, 1]
    # Apache does not count a committed message, nor what it moves to dead letters; the rest is to the byte.
    for name in ("rocketmq_messages_in", "rocketmq_throughput_in"):
        counted = figures([theirs[name]])
        assert counted
        assert {key: figures([ours[name]]).get(key) for key in counted} == counted
    bounds = [
        {sample.labels["le"] for sample in one["rocketmq_message_size"].samples if "le" in sample.labels}
        for one in (theirs, ours)
    ]
    assert bounds[0] == bounds[1]
