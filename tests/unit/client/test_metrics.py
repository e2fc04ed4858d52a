"""Metrics of real clients, read with the libraries that collect them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from orbitmq import Message, MessageQueue, RetryLater, SendFailed, sync
from orbitmq.client.metrics import OpenTelemetryMetrics, PrometheusMetrics
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def work(broker: RunningBroker, metrics: Any, name: str) -> tuple[sync.Producer, sync.PushConsumer]:
    """Sends three messages and a batch of two; one handler of five fails."""
    topic = broker.create_topic(f"metrics-{name}")
    seen: queue.Queue[str] = queue.Queue()
    consumer = sync.PushConsumer(f"metrics-readers-{name}", broker.name_server, start="first")

    @consumer.listen(topic)
    def handle(message: Any) -> None:
        seen.put(message.text())
        if message.text() == "fails":
            raise RetryLater

    producer = sync.Producer(f"metrics-writers-{name}", broker.name_server)
    producer.add_hook(metrics)
    consumer._client.add_hook(metrics)
    with producer, consumer:
        metrics.watch(producer, consumer)
        for text in ("a", "b", "fails"):
            producer.send(Message(topic, text))
        producer.send_batch([Message(topic, "c"), Message(topic, "d")])
        nowhere = MessageQueue(topic=topic, broker_name="nobody", queue_id=0)
        with pytest.raises(SendFailed):
            producer.send(Message(topic, "late"), queue=nowhere, timeout_s=0.1)
        assert {seen.get(timeout=10) for _ in range(5)} >= {"a", "b", "c", "d", "fails"}
    # A stopped consumer has called every hook.
    return producer, consumer  # their state is shown as long as they live


def test_prometheus_counts_sends_and_handlers(broker: RunningBroker) -> None:
    registry = CollectorRegistry()
    clients = work(broker, PrometheusMetrics(registry), "prom")
    place = {"topic": "metrics-prom", "group": "metrics-writers-prom"}
    reader = {"topic": "metrics-prom", "group": "metrics-readers-prom"}

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(name, labels) or 0.0

    sent = "orbitmq_client_sent_messages_total"
    assert value(sent, **place, kind="send", outcome="ok") == 3
    assert value(sent, **place, kind="batch", outcome="ok") == 2
    failed = [
        s for metric in registry.collect() for s in metric.samples if "late" in str(s) or s.name == sent
    ]
    assert any(s.labels["outcome"] not in ("ok",) and s.value == 1 for s in failed)
    assert value("orbitmq_client_send_seconds_count", **place, kind="send") == 4
    handled = "orbitmq_client_handled_messages_total"
    assert value(handled, **reader, outcome="success") >= 4, "the late one may be stored"
    assert value(handled, **reader, outcome="exception") >= 1
    assert value("orbitmq_client_handler_seconds_count", **reader) >= 5
    text = generate_latest(registry).decode()
    assert 'orbitmq_client_held_messages{group="metrics-writers-prom",kind="in flight"} 0.0' in text
    assert 'orbitmq_client_damaged_messages_total{group="metrics-readers-prom"} 0.0' in text
    del clients


def test_opentelemetry_has_the_same_figures(broker: RunningBroker) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    clients = work(broker, OpenTelemetryMetrics(provider.get_meter("test")), "otel")
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, list[Any]] = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    ok = [p for p in found["orbitmq_client_sent_messages"] if (p.attributes or {}).get("outcome") == "ok"]
    assert sum(point.value for point in ok if not hasattr(point, "bucket_counts")) == 5
    assert set(found) == {
        "orbitmq_client_sent_messages",
        "orbitmq_client_send_seconds",
        "orbitmq_client_handled_messages",
        "orbitmq_client_handler_seconds",
        "orbitmq_client_held_messages",
        "orbitmq_client_damaged_messages",
    }
    provider.shutdown()
    del clients
