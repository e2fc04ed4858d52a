"""``orbitmq pipeline export --spark-pipelines``: writes the same pipeline as a project of Spark Declarative
Pipelines.

Steps become temporary views, and sinks become tables of the catalog or sinks of format ``rocketmq``. A project needs
all of its parts, so a pipeline with a part that has no counterpart is not exported. Each such part is named with the
reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

from orbitmq.pipeline import spec
from orbitmq.pipeline.check import Finding
from orbitmq.pipeline.sources import cluster_options, message_schema, option_text, source_options

if TYPE_CHECKING:
    from orbitmq.pipeline.plan import Plan, Query, Relation

__all__ = ["misfits", "project_files"]

_SECRETS: Final = {"accessKey": "ORBITMQ_ACCESS_KEY", "secretKey": "ORBITMQ_SECRET_KEY"}
"""Keys are not written to files; the project reads them from the environment."""
_HEAD: Final = '''"""Exported from {file} by orbitmq pipeline export."""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
'''
_PROJECT: Final = """name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
_NO_MERGE: Final = (
    "needs a connector that can MERGE, and there is none for this Spark: keep this table in the pipeline"
)


def misfits(plan: Plan) -> list[Finding]:
    """Returns the parts that Spark's pipelines cannot express, each with the reason."""
    found: list[Finding] = []
    for number, step in enumerate(plan.pipeline.steps):
        if reason := _step_reason(step):
            found.append(Finding(f"steps[{number}]", f"{step.name}: {reason}"))
    for number, sink in enumerate(plan.pipeline.sinks):
        if reason := _sink_reason(sink):
            found.append(Finding(f"sinks[{number}]", reason))
    return found


def _step_reason(step: spec.Step) -> str:
    match step:
        case spec.PythonStep():
            return f"{step.function} runs with the pipeline: write it as a function of a project of your own"
        case spec.DecodeStep():
            if step.format == "debezium":
                return _NO_MERGE
            if step.format not in ("json", "registry") or step.schema_file:
                return (
                    "reads a schema file when it starts: use a registry, or JSON with the columns in schema"
                )
            if step.flatten or step.on_error != "keep":
                return "flatten and onError have no counterpart: select the fields in a sql step"
        case spec.QualityStep():
            if step.dead_letter is not None:
                return "dead letters have no counterpart: write the relation of rejected rows to a topic"
        case spec.DeduplicateStep():
            # TABLE_OR_VIEW_NOT_FOUND, seen with PySpark 4.3: only this operation looks for its input there.
            return "Spark resolves its columns when the flow is defined, before the relation it reads exists"
        case spec.SqlStep() | spec.WatermarkStep():
            pass
        case _:
            assert_never(step)
    return ""


def _sink_reason(sink: spec.Sink) -> str:
    match sink:
        case spec.DeltaSink() | spec.IcebergSink():
            kind = "Delta" if isinstance(sink, spec.DeltaSink) else "Iceberg"
            return _NO_MERGE if sink.key else f"{kind} needs a connector of its own in Spark's pipelines"
        case spec.JdbcSink():
            return "Spark's pipelines have no JDBC sink"
        case spec.ConsoleSink():
            return "Spark's pipelines have no console sink"
        case spec.TopicSink():
            if sink.mode == "transactional":
                return (
                    "mode: transactional keeps its log in a checkpoint, whose place a project does not know"
                )
            return "keepIds and keepQueue have no counterpart" if sink.keep_ids or sink.keep_queue else ""
        case spec.ParquetSink():
            return ""
        case _:
            assert_never(sink)


def project_files(plan: Plan, file: str, directory: Path) -> dict[str, str]:
    """Returns the content of a project's files by their path in the project. Call it only for a plan without
    ``misfits``."""
    relations = {one.name: one for one in plan.relations}
    parts = [_HEAD.format(file=file)]
    for name, source in plan.pipeline.sources.items():
        parts.append(_source(plan, name, source, relations[name].streaming))
    for step in plan.pipeline.steps:
        parts.extend(_step(step, relations))
    parts.extend(_sink(plan, query, relations) for query in plan.queries)
    storage = (directory.resolve() / "pipeline-storage").as_uri()
    return {
        "spark-pipeline.yml": _PROJECT.format(name=plan.pipeline.name, storage=storage),
        "transformations/pipeline.py": "\n\n".join(parts),
    }


def _view(name: str, *lines: str) -> str:
    return "\n".join(("@dp.temporary_view", f"def {name}():", *(f"    {line}" for line in lines))) + "\n"


def _options(options: dict[str, str]) -> str:
    pairs = [
        f"{key!r}: os.environ[{_SECRETS[key]!r}]" if key in _SECRETS else f"{key!r}: {value!r}"
        for key, value in options.items()
    ]
    return "{" + ", ".join(pairs) + "}"


def _reader(streaming: bool) -> str:
    return "spark.readStream" if streaming else "spark.read"


def _source(plan: Plan, name: str, source: spec.Source, streaming: bool) -> str:
    reader = _reader(streaming)
    if isinstance(source, spec.ParquetSource):
        if source.schema:
            reader += f".schema({source.schema!r})"
        options = {key: option_text(value) for key, value in source.options.items()}
        return _view(
            name,
            f"return {reader}.format('parquet').options(**{_options(options)}).load({plan.located(source.path)!r})",
        )
    if source.columns:
        reader += f".schema({message_schema(source.columns, name)!r})"
    options = source_options(plan.pipeline, source)
    if isinstance(source, spec.StoreSource):
        place = repr(plan.located(source.path))
        return _view(
            name, f"return {reader}.format('rocketmq-store').options(**{_options(options)}).load({place})"
        )
    return _view(name, f"return {reader}.format('rocketmq').options(**{_options(options)}).load()")


def _table(relation: Relation) -> str:
    return f"{_reader(relation.streaming)}.table({relation.name!r})"


def _step(step: spec.Step, relations: dict[str, Relation]) -> Iterator[str]:
    inputs = [relations[name] for name in relations[step.name].inputs]
    match step:
        case spec.SqlStep():
            yield _view(step.name, f"return spark.sql({_query(step.query, inputs)!r})")
        case spec.DecodeStep():
            yield _view(step.name, f"rows = {_table(inputs[0])}", *_decoding(step))
        case spec.WatermarkStep():
            yield _view(
                step.name, f"return {_table(inputs[0])}.withWatermark({step.column!r}, {step.delay!r})"
            )
        case spec.QualityStep():
            yield from _quality(step, inputs[0])
        case _:
            raise AssertionError(f"{step.name} is a misfit")


def _query(query: str, inputs: list[Relation]) -> str:
    """Returns the query in a form that names streams as such, which a WITH clause does for the whole query."""
    streams = [one.name for one in inputs if one.streaming]
    if not streams:
        return query
    named = ", ".join(f"{name} AS (SELECT * FROM STREAM({name}))" for name in streams)
    return f"WITH {named} SELECT * FROM (\n{query}\n)"


def _decoding(step: spec.DecodeStep) -> list[str]:
    if step.format == "registry":
        return [
            "from orbitmq.spark.decoding import decode",
            "",
            f"return decode(rows, {step.registry!r}, subject={step.subject!r}, column={step.column!r}, "
            f"into={step.into!r}, errors='decode_error', message={step.message!r})",
        ]
    schema = f"{step.schema}, _corrupt string"
    options = "{'mode': 'PERMISSIVE', 'columnNameOfCorruptRecord': '_corrupt'}"
    into, column = repr(step.into), repr(step.column)
    return [
        f"value = f.from_json(f.col({column}).cast('string'), {schema!r}, {options})",
        "error = (",
        f"    f.when(f.col({column}).isNull(), 'no body')",
        f"    .when(f.col({into}).isNull(), 'empty')",
        f"    .when(f.col({into})['_corrupt'].isNotNull(), 'not JSON with these columns')",
        ")",
        f"clean = f.when(f.col('decode_error').isNull(), f.col({into}).dropFields('_corrupt'))",
        f"return rows.withColumn({into}, value).withColumn('decode_error', error).withColumn({into}, clean)",
    ]


def _quality(step: spec.QualityStep, source: Relation) -> Iterator[str]:
    held = [f"coalesce({rule}, false)" for rule in step.rules.values()]
    yield _view(step.name, f"return {_table(source)}.where({' AND '.join(held)!r})")
    failed = ", ".join(
        f"f.when(f.expr({f'NOT {rule}'!r}), {name!r})" for name, rule in zip(step.rules, held, strict=True)
    )
    yield _view(
        f"{step.name}_rejected",
        f"rows = {_table(source)}.withColumn('failed_rules', f.array_compact(f.array({failed})))",
        "return rows.where('size(failed_rules) > 0')",
    )


def _sink(plan: Plan, query: Query, relations: dict[str, Relation]) -> str:
    relation, sink = relations[query.relation], query.sink
    name = query.name.replace("-", "_")
    if isinstance(sink, spec.TopicSink):
        options = cluster_options(plan.pipeline, sink) | ({"topic": sink.topic} if sink.topic else {})
        return (
            f"dp.create_sink({name!r}, 'rocketmq', {_options(options)})\n\n\n"
            f"@dp.append_flow(target={name!r})\ndef {name}_rows():\n    return {_table(relation)}\n"
        )
    assert isinstance(sink, spec.ParquetSink), "others are misfits"
    kind = "table" if relation.streaming else "materialized_view"
    arguments: dict[str, Any] = {"name": name, "format": "parquet"}
    if sink.partition_by:
        arguments["partition_cols"] = list(sink.partition_by)
    listed = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"@dp.{kind}({listed})\ndef {name}_rows():\n    return {_table(relation)}\n"
