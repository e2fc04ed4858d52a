"""Metric families as values, and the text format of Prometheus.

A family is filled for a request and dropped after it, so nothing here runs while messages are handled. This renderer
replaces the one of prometheus_client, which needs 9 us per sample and cannot pause, so a thousand topics would delay
every message by tens of milliseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["TEXT_CONTENT_TYPE", "Declared", "Families", "Family", "Histogram", "Kind", "label_text"]

TEXT_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Kind(enum.Enum):
    """The type of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Declared:
    """The description of a family for the reference: name, kind, labels in addition to the common ones, and text."""

    __slots__ = ("bounds", "doc", "kind", "labels", "name")

    def __init__(
        self, name: str, kind: Kind, doc: str, labels: Sequence[str] = (), bounds: Sequence[float] = ()
    ) -> None:
        self.name = name
        self.kind = kind
        self.doc = doc
        self.labels = tuple(labels)
        self.bounds = tuple(bounds)
        """Upper bounds of a histogram's buckets, without the last, which has none."""


class Histogram:
    """A histogram: the number of values by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[index] += count
                break
        else:
            self.counts[-1] += count
        self.sum += value * count


class Family:
    """The samples of one metric in one response."""

    __slots__ = ("_common", "_limit", "declared", "left_out", "lines")

    def __init__(self, declared: Declared, common: str, limit: int) -> None:
        """``common`` is the text of the labels that every sample has. ``limit`` is the maximum number of samples."""
        self.declared = declared
        self._common = common
        self._limit = limit
        self.lines: list[str] = []
        self.left_out = 0
        """Samples beyond the limit."""

    def add(self, value: float, *values: str) -> None:
        """Add a sample. ``values`` belong to the declared labels, in their order. Samples beyond the limit are only
        counted."""
        if self._is_full(1):
            return
        self.lines.append(f"{self.declared.name}{self._labels(values)} {_number(value)}")

    def add_histogram(self, histogram: Histogram, *values: str) -> None:
        if self._is_full(len(histogram.counts) + 2):
            return
        name, labels = self.declared.name, self._labels(values)
        inner = labels[1:-1] + "," if labels else ""
        total = 0
        for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
            total += count
            edge = "+Inf" if bound is None else _number(float(bound))
            self.lines.append(f'{name}_bucket{{{inner}le="{edge}"}} {total}')
        self.lines.append(f"{name}_count{labels} {total}")
        self.lines.append(f"{name}_sum{labels} {_number(histogram.sum)}")

    def _is_full(self, count: int) -> bool:
        # Every series costs the scraper memory for as long as it keeps its data.
        if len(self.lines) + count <= self._limit:
            return False
        self.left_out += 1
        return True

    def _labels(self, values: tuple[str, ...]) -> str:
        assert len(values) == len(self.declared.labels), (self.declared.name, values)
        parts = [
            f'{name}="{_escaped(value)}"' for name, value in zip(self.declared.labels, values, strict=True)
        ]
        if self._common:
            parts.insert(0, self._common)
        return f"{{{','.join(parts)}}}" if parts else ""


LEFT_OUT: Final = Declared(
    "orbitmq_metrics_left_out",
    Kind.GAUGE,
    "Samples of a metric that were left out of this answer, because metricsOtelCardinalityLimit was reached.",
    ("metric",),
)


class Families:
    """All families of one response."""

    def __init__(self, common: Mapping[str, str], limit: int) -> None:
        self._common = label_text(common)
        self._limit = limit
        self._families: list[Family] = []

    def start(self, declared: Declared) -> Family:
        """Returns a new family, to be filled by the caller."""
        family = Family(declared, self._common, self._limit)
        self._families.append(family)
        return family

    def gauge(self, declared: Declared, value: float, *values: str) -> None:
        """Add a family with a single sample."""
        self.start(declared).add(value, *values)

    def text(self) -> str:
        """Returns the text of all families. Families without samples are left out."""
        left_out = Family(LEFT_OUT, self._common, self._limit)
        for family in self._families:
            if family.left_out:
                left_out.add(family.left_out, family.declared.name)
        out: list[str] = []
        for family in (*self._families, left_out):
            if family.lines:
                declared = family.declared
                out.append(f"# HELP {declared.name} {_help(declared.doc)}")
                out.append(f"# TYPE {declared.name} {declared.kind.value}")
                out += family.lines
        out.append("")
        return "\n".join(out)


def label_text(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Returns labels as ``name="value"`` pairs, as they appear between the braces."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    # Group names come from clients; invalid UTF-8 must not break the response.
    return value if value.isascii() else value.encode(errors="replace").decode()


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", " ")


def _number(value: float) -> str:
    return repr(float(value))
