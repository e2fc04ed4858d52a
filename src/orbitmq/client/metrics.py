"""Client metrics for Prometheus or OpenTelemetry: hooks that count sends and handler calls.

::

    metrics = PrometheusMetrics()  # or OpenTelemetryMetrics()
    producer.add_hook(metrics)
    consumer.add_hook(metrics)
    metrics.watch(producer, consumer)

Names are ``orbitmq_client_...`` and the same in both; labels are bounded: topic, group, kind of send, outcome. A hook
makes a plain producer send over its loop, which is slower than without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from orbitmq.client.consume.handlers import ConsumeContext
from orbitmq.client.message import SendStatus
from orbitmq.client.produce.sender import SendContext
from orbitmq.errors import ConfigError
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = ["Measured", "OpenTelemetryMetrics", "PrometheusMetrics"]

Figure = tuple[str, str, tuple[str, ...]]
SENT: Final[Figure] = ("orbitmq_client_sent_messages", "Messages sent", ("topic", "group", "kind", "outcome"))
SEND_SECONDS: Final[Figure] = (
    "orbitmq_client_send_seconds",
    "Time of a send, all attempts",
    ("topic", "group", "kind"),
)
HANDLED: Final[Figure] = (
    "orbitmq_client_handled_messages",
    "Messages handlers got",
    ("topic", "group", "outcome"),
)
HANDLER_SECONDS: Final[Figure] = ("orbitmq_client_handler_seconds", "Time of a handler", ("topic", "group"))
HELD: Final[Figure] = (
    "orbitmq_client_held_messages",
    "Sends without an answer; received messages that are not finished",
    ("group", "kind"),
)
DAMAGED: Final[Figure] = (
    "orbitmq_client_damaged_messages",
    "Messages skipped because their bytes were damaged",
    ("group",),
)
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Measured(Protocol):
    """A client that reports how many messages it holds."""

    @property
    def group(self) -> str:
        """The client's group."""

    @property
    def held_messages(self) -> dict[str, int]:
        """The number of held messages, by kind."""


class _Metrics(ABC):
    """The base of both kinds of metrics: a hook for producers and consumers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: WeakSet[Any] = WeakSet()

    def watch(self, *clients: Measured) -> None:
        """Report the held messages of these clients as long as the clients exist."""
        self._clients.update(clients)

    @abstractmethod
    def _count(self, figure: Figure, labels: tuple[str, ...], amount: int) -> None: ...

    @abstractmethod
    def _observe(self, figure: Figure, labels: tuple[str, ...], seconds: float) -> None: ...

    def _held(self) -> Iterator[tuple[tuple[str, str], int]]:
        totals: dict[tuple[str, str], int] = {}
        for client in list(self._clients):
            for kind, count in client.held_messages.items():
                key = (client.group, kind)
                totals[key] = totals.get(key, 0) + count
        yield from totals.items()

    def _damaged(self) -> Iterator[tuple[tuple[str], int]]:
        totals: dict[tuple[str], int] = {}
        for client in list(self._clients):
            count = getattr(client, "damaged_messages", None)  # producers have none
            if count is not None:
                totals[client.group,] = totals.get((client.group,), 0) + count
        yield from totals.items()

    # -- hooks -----------------------------------------------------------------------------------------

    def before_send(self, context: SendContext) -> None:
        context.extra["metrics_started"] = self._clock.monotonic()

    def after_send(self, context: SendContext) -> None:
        place = (context.messages[0].topic, context.group, context.mode)
        if context.error is not None:
            outcome = type(context.error).__name__
        elif context.result is not None and context.result.status is not SendStatus.OK:
            outcome = context.result.status.name.lower()
        else:
            outcome = "ok"
        self._count(SENT, (*place, outcome), len(context.messages))
        started = context.extra.pop("metrics_started", None)
        if started is not None:
            self._observe(SEND_SECONDS, place, self._clock.monotonic() - started)

    def before_consume(self, context: ConsumeContext) -> None:
        context.extra["metrics_started"] = self._clock.monotonic()

    def after_consume(self, context: ConsumeContext) -> None:
        place = (context.messages[0].topic, context.group)
        self._count(HANDLED, (*place, context.status.lower()), len(context.messages))
        started = context.extra.pop("metrics_started", None)
        if started is not None:
            self._observe(HANDLER_SECONDS, place, self._clock.monotonic() - started)


class PrometheusMetrics(_Metrics):
    """Client metrics registered with ``prometheus_client``. Serve its registry as usual (``start_http_server``, an
    ASGI app)."""

    def __init__(self, registry: CollectorRegistry | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock)
        try:
            import prometheus_client
        except ImportError:
            raise ConfigError("prometheus_client is not installed: pip install prometheus-client") from None
        registry = prometheus_client.REGISTRY if registry is None else registry
        self._counters = {
            figure: prometheus_client.Counter(*figure, registry=registry) for figure in (SENT, HANDLED)
        }
        self._histograms = {
            figure: prometheus_client.Histogram(*figure, registry=registry, buckets=_BUCKETS)
            for figure in (SEND_SECONDS, HANDLER_SECONDS)
        }
        registry.register(self)

    def _count(self, figure: Figure, labels: tuple[str, ...], amount: int) -> None:
        self._counters[figure].labels(*labels).inc(amount)

    def _observe(self, figure: Figure, labels: tuple[str, ...], seconds: float) -> None:
        self._histograms[figure].labels(*labels).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics. Called by ``prometheus_client`` at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        family = GaugeMetricFamily(HELD[0], HELD[1], labels=HELD[2])
        for labels, count in self._held():
            family.add_metric(labels, count)
        damaged = CounterMetricFamily(DAMAGED[0], DAMAGED[1], labels=DAMAGED[2])
        for group, count in self._damaged():
            damaged.add_metric(group, count)
        return [family, damaged]


class OpenTelemetryMetrics(_Metrics):
    """Client metrics as instruments of an OpenTelemetry meter."""

    def __init__(self, meter: Meter | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock)
        try:
            from opentelemetry import metrics
        except ImportError:
            raise ConfigError("OpenTelemetry is not installed: pip install 'orbitmq[otel]'") from None
        meter = meter or metrics.get_meter("orbitmq")
        self._counters = {
            figure: meter.create_counter(figure[0], "{message}", figure[1]) for figure in (SENT, HANDLED)
        }
        self._histograms = {
            figure: meter.create_histogram(figure[0], "s", figure[1])
            for figure in (SEND_SECONDS, HANDLER_SECONDS)
        }
        meter.create_observable_gauge(HELD[0], [self._observations], "{message}", HELD[1])
        meter.create_observable_counter(DAMAGED[0], [self._damage_observations], "{message}", DAMAGED[1])

    def _count(self, figure: Figure, labels: tuple[str, ...], amount: int) -> None:
        self._counters[figure].add(amount, dict(zip(figure[2], labels, strict=True)))

    def _observe(self, figure: Figure, labels: tuple[str, ...], seconds: float) -> None:
        self._histograms[figure].record(seconds, dict(zip(figure[2], labels, strict=True)))

    def _observations(self, _options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        return [Observation(count, dict(zip(HELD[2], labels, strict=True))) for labels, count in self._held()]

    def _damage_observations(self, _options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        return [Observation(count, {"group": group}) for (group,), count in self._damaged()]
