"""The sinks of a pipeline on Spark, each of which is a streaming query or one write of a batch."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

from orbitmq.errors import ConfigError
from orbitmq.pipeline import spec
from orbitmq.pipeline.batches import AllSinks, Note, OneSink, TableView, partitioned, show
from orbitmq.pipeline.changes import EVENT_COLUMNS
from orbitmq.pipeline.database import DatabaseWriter
from orbitmq.pipeline.keyed import key_names
from orbitmq.pipeline.lake import BatchKey, newest_column
from orbitmq.pipeline.lake_delta import DeltaTableWriter
from orbitmq.pipeline.lake_iceberg import IcebergTableWriter
from orbitmq.pipeline.plan import Plan, Query, query_name
from orbitmq.pipeline.sources import cluster_options
from orbitmq.spark.errors import SpecError, did_you_mean
from orbitmq.spark.sink.plan import plan_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["TableView", "output_mode", "sink_columns", "start_query", "write_batch"]

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


def start_query(
    frame: DataFrame,
    plan: Plan,
    queries: Sequence[Query],
    view: TableView,
    note: Note,
    *,
    once: bool,
) -> StreamingQuery:
    """Starts the query of one sink, or of several sinks that share a read. ``note`` is called with each sink's
    results."""
    first = queries[0]
    sink = first.sink
    writer: Any
    if len(queries) > 1:
        sinks = [_opened(OneSink(plan, query, view, note), frame) for query in queries]
        writer = frame.writeStream.foreachBatch(AllSinks(sinks, first.checkpoint))
    elif isinstance(sink, spec.ParquetSink) and sink.layout == "spark":
        frame, by = partitioned(frame, sink.partition_by, first)
        writer = frame.writeStream.format("parquet").option("path", plan.located(sink.path))
        writer = writer.option("compression", sink.compression).partitionBy(*by)
    elif isinstance(sink, spec.TopicSink):
        writer = _messages(frame, sink, first).writeStream.format("rocketmq")
        writer = writer.options(**_topic_options(frame, plan, sink)).outputMode(sink.output_mode)
    else:
        function = _opened(OneSink(plan, first, view, note), frame)
        writer = frame.writeStream.outputMode(output_mode(sink)).foreachBatch(function)
    writer = writer.queryName(query_name(plan, first))
    if first.checkpoint:
        writer = writer.option("checkpointLocation", first.checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif plan.pipeline.trigger:
        writer = writer.trigger(processingTime=plan.pipeline.trigger)
    started: StreamingQuery = writer.start()
    return started


def output_mode(sink: spec.Sink) -> str:
    """Returns the output mode of a streaming query with this sink."""
    return "append" if isinstance(sink, spec.ParquetSink) else sink.output_mode


def _opened(sink: OneSink, frame: DataFrame) -> OneSink:
    sink.open(frame)
    return sink


def sink_columns(frame: DataFrame, plan: Plan, query: Query) -> DataFrame:
    """Returns the columns that a sink would receive. Raises ``SpecError`` or ``RunFailed`` if the sink cannot use
    them."""
    sink = query.sink
    if isinstance(sink, spec.TopicSink):
        messages = _messages(frame, sink, query)
        try:
            options = _topic_options(frame, plan, sink)
            if query.checkpoint:
                options["checkpointLocation"] = query.checkpoint
            plan_sink(options, messages.schema, streaming=query.streaming)
        except ConfigError as error:
            raise SpecError(f"sink {query.name}", str(error)) from error
        return messages
    if isinstance(sink, spec.ParquetSink | spec.DeltaSink | spec.IcebergSink):
        frame, _ = partitioned(frame, sink.partition_by or [], query)
    if isinstance(sink, spec.DeltaSink | spec.IcebergSink) and sink.key:
        for key in key_names(sink):
            if key.split(".")[0] not in frame.columns:
                raise SpecError(
                    f"sink {query.name}: key", f"there is no column {key!r}{did_you_mean(key, frame.columns)}"
                )
        has_events = set(EVENT_COLUMNS) <= set(frame.columns)
        if sink.scd and not has_events:
            raise SpecError(
                f"sink {query.name}: scd",
                f"the rows are not changes: they lack one of {', '.join(EVENT_COLUMNS)}, which decode with "
                "format: debezium adds",
            )
        if has_events and not sink.scd:
            raise SpecError(
                f"sink {query.name}: key", "the rows are changes of a database: say scd: 1 or scd: 2"
            )
        if not sink.scd:
            newest_column(frame.columns, sink)
    return frame


def write_batch(frame: DataFrame, plan: Plan, query: Query, view: TableView) -> int | None:
    """Writes all rows of a relation. Returns the number of written rows, or None if the sink does not count them."""
    sink = query.sink
    # No batch is repeated here, so every run has a unique name.
    run = BatchKey(uuid.uuid4().hex, 0)
    match sink:
        case spec.ParquetSink():
            frame, by = partitioned(frame, sink.partition_by, query)
            writer = frame.write.mode(sink.save_mode).option("compression", sink.compression)
            writer.partitionBy(*by).parquet(plan.located(sink.path))
        case spec.DeltaSink():
            frame, by = partitioned(
                frame, [] if sink.key and not sink.partition_by else sink.partition_by, query
            )
            return DeltaTableWriter(sink, plan.located(sink.path)).write(frame, run, by)
        case spec.IcebergSink():
            frame, _ = partitioned(frame, sink.partition_by or [], query)
            return IcebergTableWriter(sink).write(frame, run)
        case spec.JdbcSink():
            DatabaseWriter(frame.sparkSession, sink, run.query).write(frame, None)
        case spec.TopicSink():
            options = _topic_options(frame, plan, sink)
            _messages(frame, sink, query).write.format("rocketmq").options(**options).mode("append").save()
        case spec.ConsoleSink():
            show(frame, sink, sink.title or query.relation, view)
        case _:
            assert_never(sink)
    return None


def _topic_options(frame: DataFrame, plan: Plan, sink: spec.TopicSink) -> dict[str, str]:
    options = cluster_options(plan.pipeline, sink)
    if sink.topic:
        options["topic"] = sink.topic
    if sink.mode != "dedup":
        options["mode"] = sink.mode
    if sink.keep_ids and "msg_id" in frame.columns:
        options["uniqueKeyColumn"] = "msg_id"
    return options


def _messages(frame: DataFrame, sink: spec.TopicSink, query: Query) -> DataFrame:
    """Returns only the columns of a message. A topic set in the sink overrides the column ``topic``."""
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
