"""Shows the progress of a running pipeline, as a live table on a terminal, otherwise as a line per batch, and as
Prometheus metrics."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orbitmq.pipeline.plan import Plan
from orbitmq.pipeline.run import BatchReport
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.errors import EnvironmentFault

__all__ = ["PipelineMetrics", "ProgressDisplay", "print_table"]

_CELL_CHARS_MAX: Final = 200
_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ProgressDisplay:
    """Receives a report of every batch, on any thread. Writes to standard error, because tables of sinks go to
    standard output."""

    def __init__(self, plan: Plan, console: Console, *, quiet: bool = False) -> None:
        self._plan = plan
        self._console = console
        self._quiet = quiet
        self._lock = threading.Lock()
        self._last: dict[str, BatchReport] = {}
        self.rows: dict[str, int] = {query.name: 0 for query in plan.queries}
        """Total rows per sink."""
        self.quality: dict[str, dict[str, int]] = {}
        """Totals of the quality steps."""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet and self._plan.streaming:
            self._live = Live(self._table(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, batch: BatchReport) -> None:
        """Shows the report of a batch."""
        with self._lock:
            self.rows[batch.query] = self.rows.get(batch.query, 0) + batch.rows
            self._last[batch.query] = batch
            for step, counts in batch.quality.items():
                total = self.quality.setdefault(step, {})
                for name, count in counts.items():
                    total[name] = total.get(name, 0) + count
            if self._live is not None:
                self._live.update(self._table())
            elif not self._quiet and (batch.rows or not self._plan.streaming):
                self._console.print(batch_line(batch), highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(title=f"pipeline {self._plan.pipeline.name}", title_justify="left", box=None)
        for column in ("sink", "batch", "rows", "rows/s", "batch ms", "behind", "rows in all"):
            table.add_column(column, justify="left" if column == "sink" else "right")
        for query in self._plan.queries:
            batch = self._last.get(query.name)
            if batch is None:
                table.add_row(query.name, "-", "-", "-", "-", "-", "0")
                continue
            behind = "-" if batch.behind is None else f"{batch.behind:,}"
            table.add_row(
                query.name,
                str(batch.batch_id),
                f"{batch.rows:,}",
                f"{batch.rows_per_second:,.0f}",
                f"{batch.duration_ms:,}",
                behind,
                f"{self.rows[query.name]:,}",
            )
        return table

    def summary(self) -> list[str]:
        """Returns the lines to print when the run ends."""
        lines = [f"{name}: {rows:,} rows" for name, rows in self.rows.items()]
        for step, counts in self.quality.items():
            rules = ", ".join(f"{name} {n:,}" for name, n in counts.items() if not name.startswith("_") and n)
            refused = counts.get("_rejected", 0)
            lines.append(
                f"{step}: {counts.get('_checked', 0):,} rows checked, {refused:,} refused"
                + (f" ({rules})" if rules else "")
            )
        return lines


def batch_line(batch: BatchReport) -> str:
    """Returns a one-line summary of a batch."""
    behind = "" if batch.behind is None else f" behind={batch.behind}"
    refused = "".join(
        f" {step}_refused={counts['_rejected']}"
        for step, counts in batch.quality.items()
        if counts.get("_rejected")
    )
    return (
        f"{batch.query} batch={batch.batch_id} rows={batch.rows} rows/s={batch.rows_per_second:.0f} "
        f"ms={batch.duration_ms}{behind}{refused}"
    )


def print_table(console: Console) -> Any:
    """Returns a view for console sinks that prints tables."""

    def view(title: str, columns: list[str], rows: list[tuple[Any, ...]], more: bool) -> None:
        table = Table(title=Text(title), title_justify="left", header_style="bold")
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            # Text instead of markup, because bodies and keys are untrusted.
            table.add_row(*(Text(_cell(value)) for value in row))
        console.print(table)
        if more:
            console.print("... and more rows", markup=False)

    return view


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "backslashreplace")
    text = str(value)
    return text if len(text) <= _CELL_CHARS_MAX else text[: _CELL_CHARS_MAX - 3] + "..."


class PipelineMetrics:
    """Prometheus metrics of a pipeline, on their own registry."""

    def __init__(self, pipeline: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        labels = ("pipeline", "sink")
        self._name = pipeline
        self._rows = Counter("orbitmq_pipeline_rows", "Rows read.", labels, registry=self.registry)
        self._batches = Counter(
            "orbitmq_pipeline_batches", "Micro-batches done.", labels, registry=self.registry
        )
        self._seconds = Histogram(
            "orbitmq_pipeline_batch_seconds",
            "Duration of a micro-batch.",
            labels,
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._behind = Gauge(
            "orbitmq_pipeline_behind", "Messages not read yet.", labels, registry=self.registry
        )
        self._committed = Gauge(
            "orbitmq_pipeline_last_commit_timestamp_seconds",
            "When the last micro-batch was committed.",
            labels,
            registry=self.registry,
        )
        self._broken = Counter(
            "orbitmq_pipeline_broken_rules",
            "Rows that broke a quality rule.",
            ("pipeline", "sink", "step", "rule"),
            registry=self.registry,
        )

    def report(self, batch: BatchReport) -> None:
        """Adds the report of a batch to the metrics."""
        labels = (self._name, batch.query)
        self._rows.labels(*labels).inc(batch.rows)
        self._batches.labels(*labels).inc()
        self._seconds.labels(*labels).observe(batch.duration_ms / 1000)
        self._committed.labels(*labels).set(self._clock.now_ms() / 1000)
        if batch.behind is not None:
            self._behind.labels(*labels).set(batch.behind)
        for step, counts in batch.quality.items():
            for rule, count in counts.items():
                if not rule.startswith("_"):
                    self._broken.labels(*labels, step, rule).inc(count)

    def serve(self, port: int, address: str) -> Any:
        """Starts the scrape endpoint, and returns the server and its thread. Raises ``EnvironmentFault``."""
        try:
            return start_http_server(port, address, registry=self.registry)
        except OSError as error:
            raise EnvironmentFault(f"metrics cannot be served on {address}:{port}: {error}") from error
