"""Handlers that Spark calls with every micro-batch, for sinks that commit on their own.

Under Spark Connect these objects are pickled and run in a process next to the server, which opens a table with its
first batch. A driver of our own opens it immediately, so that problems are reported before anything starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from orbitmq.pipeline import spec
from orbitmq.pipeline.database import DatabaseWriter
from orbitmq.pipeline.lake import BatchKey
from orbitmq.pipeline.lake_delta import DeltaTableWriter
from orbitmq.pipeline.lake_iceberg import IcebergTableWriter
from orbitmq.pipeline.lake_parquet import ParquetTableWriter
from orbitmq.pipeline.plan import Plan, Query, query_name
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.errors import SpecError, did_you_mean
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "AllSinks",
    "Note",
    "OneSink",
    "TableView",
    "Written",
    "is_connect",
    "partitioned",
    "show",
    "table_partitions",
]

Write = Callable[["DataFrame", BatchKey], int | None]


class TableView(Protocol):
    """Shows rows to a user."""

    def __call__(self, title: str, columns: list[str], rows: list[tuple[Any, ...]], more: bool) -> None: ...


def is_connect(frame: object) -> bool:
    """Returns whether a frame or session belongs to Spark Connect."""
    return type(frame).__module__.startswith("pyspark.sql.connect")


class Written(NamedTuple):
    """The outcome of one sink for a micro-batch."""

    rows: int | None
    """Rows written to a table with a key; None where all rows are written."""
    seconds: float


Note = Callable[[str, int, Written], None]
"""Called with the name of a sink, the number of a batch, and the result."""


class OneSink:
    """Writes each micro-batch to one sink exactly once. In a driver of our own, ``note`` is called with each
    result."""

    def __init__(
        self,
        plan: Plan,
        query: Query,
        view: TableView | None,
        note: Note | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._plan = plan
        self._query = query
        self._view = view
        self._note = note
        self._clock = clock
        self._write: Write | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_write": None, "_view": None, "_note": None}

    def open(self, frame: DataFrame) -> None:
        """Creates the writer. Raises ``PipelineError``, for example if ``frame`` lacks columns."""
        sink, plan, view = self._query.sink, self._plan, self._view
        _, by = partitioned(frame, table_partitions(sink), self._query)
        if is_connect(frame) and isinstance(sink, spec.JdbcSink | spec.ConsoleSink):
            kind = sink.__struct_config__.tag
            raise SpecError(
                f"sink {self._query.name}",
                f"kind {kind} needs a local driver, so it cannot be used with --remote",
            )
        write: Write
        match sink:
            case spec.DeltaSink():
                delta = DeltaTableWriter(sink, plan.located(sink.path))
                write = lambda batch, key: delta.write(batch, key, by)  # noqa: E731  # one of several
            case spec.IcebergSink():
                write = IcebergTableWriter(sink).write
            case spec.ParquetSink():
                files = ParquetTableWriter(sink, plan.located(sink.path))
                write = lambda batch, key: files.write(batch, key, by)  # noqa: E731  # the same
            case spec.JdbcSink():
                write = DatabaseWriter(frame.sparkSession, sink, query_name(plan, self._query)).write
            case spec.ConsoleSink():
                assert view is not None, "a driver of our own has one"
                title = sink.title or self._query.relation
                write = lambda batch, key: show(batch, sink, f"{title} (batch {key.number})", view)  # noqa: E731  # the same
            case _:
                raise AssertionError("written by Spark itself")
        self._write = write

    def __call__(self, batch: DataFrame, number: int) -> None:
        self.write(batch, _key(batch, number, self._query.checkpoint))

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        """Writes a batch unless it has already been written."""
        if self._write is None:
            self.open(batch)
        assert self._write is not None, "just made"
        frame, _ = partitioned(batch, table_partitions(self._query.sink), self._query)
        start = self._clock.monotonic()
        rows = self._write(frame, key)
        if self._note is not None:
            seconds = self._clock.monotonic() - start
            keyed = isinstance(rows, int) and bool(getattr(self._query.sink, "key", ""))
            self._note(self._query.name, key.number, Written(rows if keyed else None, seconds))


class AllSinks:
    """Writes each micro-batch to several sinks, one after the other, with a single read.

    Every sink records its batches. So if a crash between two sinks makes Spark repeat a batch, the first sink skips
    it.
    """

    def __init__(self, sinks: list[OneSink], checkpoint: str) -> None:
        self._sinks = sinks
        self._checkpoint = checkpoint

    def __call__(self, batch: DataFrame, number: int) -> None:
        key = _key(batch, number, self._checkpoint)
        batch.persist()  # otherwise each sink would read and decode the messages again
        try:
            for sink in self._sinks:
                sink.write(batch, key)
        finally:
            batch.unpersist()


def _key(batch: DataFrame, number: int, checkpoint: str) -> BatchKey:
    """Returns the key of a micro-batch: the query's id, which is stored in its checkpoint, and the batch number. With
    a new checkpoint, numbers start from zero under a new id."""
    if not is_connect(batch):
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query, "Spark sets it on the thread of the query"
        return BatchKey(query, number)
    filesystem, root = open_location(checkpoint)
    with filesystem.open_input_file(f"{root}/metadata") as file:
        return BatchKey(str(json.loads(file.read())["id"]), number)


def table_partitions(sink: spec.Sink) -> list[str] | None:
    """Returns the partition columns of a table, or None for the default, which is by topic and day if those columns
    exist."""
    if isinstance(sink, spec.DeltaSink | spec.IcebergSink | spec.ParquetSink):
        if sink.partition_by is not None:
            return list(sink.partition_by)
        # Rows that are replaced by key may change their day, so a default partition would only add cost.
        keyed = isinstance(sink, spec.DeltaSink) and bool(sink.key)
        return [] if keyed or isinstance(sink, spec.IcebergSink) else None
    return []


def partitioned(frame: DataFrame, wanted: list[str] | None, query: Query) -> tuple[DataFrame, list[str]]:
    """Returns the frame and its partition columns. Missing ``date`` and ``hour`` columns are derived from the store
    time (UTC)."""
    from pyspark.sql import functions as f

    timed = next((name for name in ("store_timestamp", "_store_timestamp") if name in frame.columns), "")
    if wanted is None:
        wanted = [name for name in ("topic", "date") if name in frame.columns or (name == "date" and timed)]
        if len(wanted) == len(frame.columns):
            wanted = []
    for name in wanted:
        if name in frame.columns:
            continue
        if name not in ("date", "hour") or not timed:
            raise SpecError(
                f"sink {query.name}: partitionBy",
                f"there is no column {name!r}{did_you_mean(name, frame.columns)}",
            )
        made = f.to_date(timed) if name == "date" else f.hour(timed)
        frame = frame.withColumn(name, made)
    return frame, wanted


def show(frame: DataFrame, sink: spec.ConsoleSink, title: str, view: TableView) -> None:
    """Passes the first rows of a frame to ``view``."""
    rows = frame.limit(sink.rows + 1).collect()
    if rows or not frame.isStreaming:
        view(title, frame.columns, [tuple(row) for row in rows[: sink.rows]], len(rows) > sink.rows)
