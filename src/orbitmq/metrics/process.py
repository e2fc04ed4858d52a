"""Process metrics: memory, CPU, descriptors, garbage collections and the Python version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orbitmq import __version__
from orbitmq.metrics.families import Declared, Families, Kind
from orbitmq.runtime.stalls import STALLS

__all__ = ["BUILD_INFO", "ProcessMetrics"]

BUILD_INFO: Final = Declared(
    "orbitmq_build_info", Kind.GAUGE, "Always 1; the release is in the label.", ("release",)
)
LOOP_HELD: Final = Declared(
    "orbitmq_loop_held_total",
    Kind.COUNTER,
    "Times a request or a job held the event loop for more than 20 ms, and delayed all other requests.",
    ("by",),
)
LOOP_HELD_SECONDS: Final = Declared(
    "orbitmq_loop_held_seconds_total", Kind.COUNTER, "For how long, in sum.", ("by",)
)


class ProcessMetrics:
    """The process metrics of prometheus_client, as metric families."""

    def __init__(self) -> None:
        # Imported here, so that a server without metrics starts without it.
        from prometheus_client import CollectorRegistry
        from prometheus_client.gc_collector import GCCollector
        from prometheus_client.platform_collector import PlatformCollector
        from prometheus_client.process_collector import ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def _declared(self) -> Iterator[tuple[Declared, list[tuple[float, tuple[str, ...]]]]]:
        for metric in self._registry.collect():
            samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            if not samples:
                continue
            kind = Kind.COUNTER if metric.type == "counter" else Kind.GAUGE
            names = tuple(samples[0].labels)
            yield (
                Declared(samples[0].name, kind, metric.documentation, names),
                [(sample.value, tuple(sample.labels[name] for name in names)) for sample in samples],
            )

    def report(self, families: Families) -> None:
        """Add the families of the process to a response."""
        families.gauge(BUILD_INFO, 1, __version__)
        count, seconds = families.start(LOOP_HELD), families.start(LOOP_HELD_SECONDS)
        for name, stall in STALLS.by_name.items():
            count.add(stall.count, name)
            seconds.add(round(stall.total_s, 3), name)
        for declared, samples in self._declared():
            family = families.start(declared)
            for value, labels in samples:
                family.add(value, *labels)

    def declared(self) -> list[Declared]:
        """Returns the descriptions of the families, for the reference page."""
        return [BUILD_INFO, LOOP_HELD, LOOP_HELD_SECONDS, *(declared for declared, _ in self._declared())]
