"""The sources of a pipeline as Spark readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orbitmq.pipeline import spec
from orbitmq.pipeline.times import milliseconds
from orbitmq.spark.errors import SpecError, did_you_mean
from orbitmq.spark.schema import COLUMNS, SCHEMA_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from orbitmq.pipeline.plan import Plan

__all__ = ["cluster_options", "message_schema", "open_source", "option_text", "source_options"]


def option_text(value: object) -> str:
    """Returns a value as text for a Spark option, in which booleans are lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def cluster_options(
    pipeline: spec.Pipeline, part: spec.TopicSource | spec.TopicSink | spec.DeadLetter
) -> dict[str, str]:
    """Returns the address and keys of the servers, which default to those of the pipeline, and the part's further
    options."""
    options = {
        "namesrvAddr": part.namesrv_addr or pipeline.namesrv_addr,
        "accessKey": part.access_key or pipeline.access_key,
        "secretKey": part.secret_key or pipeline.secret_key,
    }
    given = {key: value for key, value in options.items() if value}
    return given | {key: option_text(value) for key, value in part.options.items()}


def source_options(pipeline: spec.Pipeline, source: spec.TopicSource | spec.StoreSource) -> dict[str, str]:
    """Returns the Spark options of a source, for format ``rocketmq`` or ``rocketmq-store``."""
    values: dict[str, Any] = {
        "topic": source.topic if isinstance(source.topic, str) else ",".join(source.topic)
    }
    if isinstance(source, spec.TopicSource):
        values |= {
            "topicPattern": source.topic_pattern,
            "startingOffsets": source.starting_offsets,
            "endingOffsets": source.ending_offsets,
            "tags": source.tags,
            "sql": source.sql,
            "group": source.group,
            "maxOffsetsPerTrigger": source.max_offsets_per_trigger,
            "minPartitions": source.min_partitions,
            "failOnDataLoss": None if source.fail_on_data_loss else False,
        }
    for key, moment in (
        ("startingTimestamp", source.starting_timestamp),
        ("endingTimestamp", source.ending_timestamp),
    ):
        if moment != "":
            values[key] = milliseconds(moment, key)
    texts = {
        key: json.dumps(value) if isinstance(value, dict) else option_text(value)
        for key, value in values.items()
        if value is not None and value != ""
    }
    if isinstance(source, spec.TopicSource):
        return cluster_options(pipeline, source) | texts
    return texts | {key: option_text(value) for key, value in source.options.items()}


def open_source(
    session: SparkSession, plan: Plan, name: str, source: spec.Source, *, streaming: bool
) -> DataFrame:
    """Returns the rows of a source."""
    reader: Any = session.readStream if streaming else session.read
    if isinstance(source, spec.ParquetSource):
        if source.schema:
            reader = reader.schema(source.schema)
        reader = reader.format("parquet").options(**_texts(source.options))
        frame: DataFrame = reader.load(plan.located(source.path))
        return frame
    if source.columns:
        reader = reader.schema(message_schema(source.columns, f"sources.{name}.columns"))
    options = source_options(plan.pipeline, source)
    if isinstance(source, spec.StoreSource):
        stored: DataFrame = reader.format("rocketmq-store").options(**options).load(plan.located(source.path))
        return stored
    messages: DataFrame = reader.format("rocketmq").options(**options).load()
    return messages


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {key: option_text(value) for key, value in options.items()}


def message_schema(columns: list[str], path: str) -> str:
    """Returns the types of some columns of a message, or of all if ``columns`` is empty, as in CREATE TABLE. Raises
    ``SpecError`` for an unknown column."""
    types = dict(part.split(" ", 1) for part in SCHEMA_DDL.split(", "))
    for column in columns:
        if column not in types:
            raise SpecError(path, f"messages have no column {column!r}{did_you_mean(column, COLUMNS)}")
    return ", ".join(f"{column} {types[column]}" for column in columns or types)
