"""Sinks of a pipeline on Spark: a query of a stream for each, or one write of a batch."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

from orbitmq.errors import ConfigError
from orbitmq.spark.pipeline import spec
from orbitmq.spark.pipeline.database import DatabaseWriter
from orbitmq.spark.pipeline.errors import SpecError, did_you_mean
from orbitmq.spark.pipeline.lake import BatchKey, newest_column
from orbitmq.spark.pipeline.lake_delta import DeltaTableWriter
from orbitmq.spark.pipeline.lake_iceberg import IcebergTableWriter
from orbitmq.spark.pipeline.lake_parquet import ParquetTableWriter
from orbitmq.spark.pipeline.plan import Plan, Query
from orbitmq.spark.pipeline.sources import cluster_options
from orbitmq.spark.sink import plan_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["TableView", "query_name", "sink_columns", "start_query", "write_batch"]

_MESSAGE_COLUMNS: Final = (
    "topic",
    "body",
    "keys",
    "tags",
    "sharding_key",
    "properties",
    "delay_level",
    "deliver_at",
)
_PLACE_COLUMNS: Final = ("broker", "queue_id")
BatchFunction = Callable[["DataFrame", int], None]


class TableView(Protocol):
    """Shows rows to a person."""

    def __call__(self, title: str, columns: list[str], rows: list[tuple[Any, ...]], more: bool) -> None: ...


def query_name(plan: Plan, query: Query) -> str:
    """The name of a query in Spark."""
    return f"{plan.pipeline.name}.{query.name}"


def start_query(frame: DataFrame, plan: Plan, query: Query, view: TableView, *, once: bool) -> StreamingQuery:
    """Start the query of a sink."""
    sink = query.sink
    function: BatchFunction | None = None
    if isinstance(sink, spec.ParquetSink) and sink.layout == "spark":
        frame, by = _partitioned(frame, sink.partition_by, query)
        writer = frame.writeStream.format("parquet").option("path", plan.located(sink.path))
        writer = writer.option("compression", sink.compression).partitionBy(*by)
    elif isinstance(sink, spec.TopicSink):
        writer = _messages(frame, sink, query).writeStream.format("rocketmq")
        writer = writer.options(**_topic_options(frame, plan, sink)).outputMode(sink.output_mode)
    else:
        by = []
        if isinstance(sink, spec.DeltaSink | spec.IcebergSink | spec.ParquetSink):
            # Rows that are replaced by key may change their day, so a default partition would only cost.
            default: list[str] | None = [] if isinstance(sink, spec.IcebergSink) or _key_of(sink) else None
            wanted = default if sink.partition_by is None else list(sink.partition_by)
            frame, by = _partitioned(frame, wanted, query)
        function = _batch_function(frame, plan, query, view, by)
        mode = "append" if isinstance(sink, spec.ParquetSink) else sink.output_mode
        writer = frame.writeStream.outputMode(mode).foreachBatch(function)
    writer = writer.queryName(query_name(plan, query))
    if query.checkpoint:
        writer = writer.option("checkpointLocation", query.checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif plan.pipeline.trigger:
        writer = writer.trigger(processingTime=plan.pipeline.trigger)
    return writer.start()


def _batch_function(
    frame: DataFrame, plan: Plan, query: Query, view: TableView, by: list[str]
) -> BatchFunction:
    sink = query.sink
    match sink:
        case spec.DeltaSink():
            delta = DeltaTableWriter(sink, plan.located(sink.path))
            return lambda batch, number: _ignore(delta.write(batch, _key(batch, number), by))
        case spec.IcebergSink():
            iceberg = IcebergTableWriter(sink)
            return lambda batch, number: _ignore(iceberg.write(batch, _key(batch, number)))
        case spec.JdbcSink():
            database = DatabaseWriter(frame.sparkSession, sink, query_name(plan, query))
            return lambda batch, number: database.write(batch, _key(batch, number))
        case spec.ConsoleSink():
            title = sink.title or query.relation
            return lambda batch, number: _show(batch, sink, f"{title} (batch {number})", view)
        case spec.ParquetSink():
            files = ParquetTableWriter(sink, plan.located(sink.path))
            return lambda batch, number: _ignore(files.write(batch, _key(batch, number), by))
        case spec.TopicSink():
            raise AssertionError("written by Spark itself")
    assert_never(sink)


def sink_columns(frame: DataFrame, plan: Plan, query: Query) -> DataFrame:
    """The columns a sink would get. Raises ``SpecError`` or ``RunFailed`` for what it cannot do with them."""
    sink = query.sink
    if isinstance(sink, spec.TopicSink):
        messages = _messages(frame, sink, query)
        try:
            plan_sink(_topic_options(frame, plan, sink), messages.schema, streaming=query.streaming)
        except ConfigError as error:
            raise SpecError(f"sink {query.name}", str(error)) from error
        return messages
    if isinstance(sink, spec.ParquetSink | spec.DeltaSink | spec.IcebergSink):
        frame, _ = _partitioned(frame, sink.partition_by or [], query)
    if key := _key_of(sink):
        if key not in frame.columns:
            raise SpecError(
                f"sink {query.name}: key", f"there is no column {key!r}{did_you_mean(key, frame.columns)}"
            )
        assert isinstance(sink, spec.DeltaSink | spec.IcebergSink), "the others have no key"
        newest_column(frame.columns, sink)
    return frame


def _key_of(sink: spec.Sink) -> str:
    return sink.key if isinstance(sink, spec.DeltaSink | spec.IcebergSink) else ""


def _key(batch: DataFrame, number: int) -> BatchKey:
    """The id of the query is in its checkpoint: a new checkpoint counts from zero under a new id."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query, "Spark sets it on the thread of the query"
    return BatchKey(query, number)


def _ignore(_: object) -> None:
    """Spark wants nothing back."""


def write_batch(frame: DataFrame, plan: Plan, query: Query, view: TableView) -> None:
    """Write all rows of a relation."""
    sink = query.sink
    # No batch is repeated here, so every run has a name of its own.
    run = BatchKey(uuid.uuid4().hex, 0)
    match sink:
        case spec.ParquetSink():
            frame, by = _partitioned(frame, sink.partition_by, query)
            writer = frame.write.mode(sink.save_mode).option("compression", sink.compression)
            writer.partitionBy(*by).parquet(plan.located(sink.path))
        case spec.DeltaSink():
            frame, by = _partitioned(
                frame, [] if sink.key and not sink.partition_by else sink.partition_by, query
            )
            DeltaTableWriter(sink, plan.located(sink.path)).write(frame, run, by)
        case spec.IcebergSink():
            frame, _ = _partitioned(frame, sink.partition_by or [], query)
            IcebergTableWriter(sink).write(frame, run)
        case spec.JdbcSink():
            DatabaseWriter(frame.sparkSession, sink, run.query).write(frame, None)
        case spec.TopicSink():
            options = _topic_options(frame, plan, sink)
            _messages(frame, sink, query).write.format("rocketmq").options(**options).mode("append").save()
        case spec.ConsoleSink():
            _show(frame, sink, sink.title or query.relation, view)
        case _:
            assert_never(sink)


def _partitioned(frame: DataFrame, wanted: list[str] | None, query: Query) -> tuple[DataFrame, list[str]]:
    """The frame with the columns it is partitioned by; ``date`` and ``hour`` are made of the store time (UTC) where
    they are missing."""
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


def _topic_options(frame: DataFrame, plan: Plan, sink: spec.TopicSink) -> dict[str, str]:
    options = cluster_options(plan.pipeline, sink)
    if sink.topic:
        options["topic"] = sink.topic
    if sink.keep_ids and "msg_id" in frame.columns:
        options["uniqueKeyColumn"] = "msg_id"
    return options


def _messages(frame: DataFrame, sink: spec.TopicSink, query: Query) -> DataFrame:
    """Only the columns that mean something for a message; a topic given by the sink beats the column."""
    columns: list[str] = [name for name in _MESSAGE_COLUMNS if name in frame.columns]
    if sink.topic and "topic" in columns:
        columns.remove("topic")
    if sink.keep_queue:
        columns += [name for name in _PLACE_COLUMNS if name in frame.columns]
    if sink.keep_ids and "msg_id" in frame.columns:
        columns.append("msg_id")
    where = f"sink {query.name}"
    if "body" not in columns:
        known = ", ".join(frame.columns)
        raise SpecError(
            where, f"a message needs a column 'body' (to_json(struct(*)) AS body); there are {known}"
        )
    if not sink.topic and "topic" not in columns:
        raise SpecError(where, "give a topic here or in a column 'topic'")
    return frame.select(*columns)


def _show(frame: DataFrame, sink: spec.ConsoleSink, title: str, view: TableView) -> None:
    rows = frame.limit(sink.rows + 1).collect()
    if rows or not frame.isStreaming:
        view(title, frame.columns, [tuple(row) for row in rows[: sink.rows]], len(rows) > sink.rows)
