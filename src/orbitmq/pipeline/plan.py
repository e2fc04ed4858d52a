"""Derives a plan from a pipeline, as values: which relation reads which, which of them stream, and which queries run.

Pure, without Spark and servers. ``make_plan`` rejects pipelines that cannot work, and ``lines`` describes what would
run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from orbitmq.errors import OrbitError
from orbitmq.model.names import check_send_topic
from orbitmq.pipeline import spec
from orbitmq.pipeline.times import milliseconds, moment_text
from orbitmq.spark.errors import SpecError, did_you_mean

__all__ = [
    "Plan",
    "Query",
    "Relation",
    "check_duration",
    "dead_letter_name",
    "lines",
    "make_plan",
    "query_name",
    "rejected_name",
]

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_SQL_NOISE: Final = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_CHECKPOINT_NAME: Final = re.compile(r"^[A-Za-z0-9_.-]{1,100}$")


@dataclass(frozen=True, slots=True)
class Relation:
    """A named set of rows that a source or step creates."""

    name: str
    inputs: tuple[str, ...]
    streaming: bool
    summary: str
    definition: spec.Source | spec.Step


@dataclass(frozen=True, slots=True)
class Query:
    """A sink and its input. In a stream, each query has its own checkpoint, or shares the checkpoint of its group."""

    name: str
    relation: str
    streaming: bool
    checkpoint: str
    summary: str
    sink: spec.Sink
    group: str = ""
    """Queries with the same group are written by one query from one read; empty means a query of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The relations in build order, and the queries over them."""

    pipeline: spec.Pipeline
    directory: Path
    relations: tuple[Relation, ...]
    queries: tuple[Query, ...]
    warnings: tuple[str, ...]

    @property
    def streaming(self) -> bool:
        return self.pipeline.mode == "stream"

    @property
    def groups(self) -> list[list[Query]]:
        """The queries in groups. Those of a group share one read."""
        found: dict[str, list[Query]] = {}
        for query in self.queries:
            found.setdefault(query_name(self, query), []).append(query)
        return list(found.values())

    def located(self, path: str) -> str:
        """Returns a path of the pipeline file, unchanged if it is absolute or a URI, otherwise relative to the
        directory of the file."""
        return located(self.directory, path)


def query_name(plan: Plan, query: Query) -> str:
    """Returns the name that a query has in Spark, which all queries of a group share."""
    return f"{plan.pipeline.name}.{query.group or query.name}"


def located(directory: Path, path: str) -> str:
    """Like ``Plan.located``, for paths relative to ``directory``."""
    return path if "://" in path or Path(path).is_absolute() else str(directory / path)


def rejected_name(step: str) -> str:
    """Returns the name of the relation with the rows that a quality step rejected."""
    return f"{step}_rejected"


def dead_letter_name(step: str) -> str:
    """Returns the name of the relation that holds a quality step's rejected rows, formatted as dead-letter
    messages."""
    return f"{step}_dead_letters"


def make_plan(pipeline: spec.Pipeline, directory: Path) -> Plan:
    """Returns the plan of a pipeline whose file is in ``directory``. Raises ``SpecError`` if the pipeline cannot
    work."""
    stream = pipeline.mode == "stream"
    relations: dict[str, Relation] = {}
    for name, source in pipeline.sources.items():
        _check_source(pipeline, source, f"sources.{name}")
        relations[name] = Relation(name, (), stream and not _is_static(source), _source_text(source), source)
    last = next(reversed(relations))
    for number, step in enumerate(pipeline.steps):
        path = f"steps[{number}]"
        made = [step.name]
        if isinstance(step, spec.QualityStep):
            made.append(rejected_name(step.name))
            if step.dead_letter is not None:
                made.append(dead_letter_name(step.name))
        for name in made:
            if name in relations:
                raise SpecError(f"{path}.name", f"there is a relation {name!r} already")
        inputs = _inputs(step, relations, last, path)
        streaming = any(relations[name].streaming for name in inputs)
        _check_step(pipeline, step, streaming, directory, path)
        for name in made:
            relations[name] = Relation(name, inputs, streaming, _step_text(step), step)
        last = step.name
    queries = tuple(_queries(pipeline, relations, last, directory))
    if not queries:
        raise SpecError("sinks", "none is enabled")
    unread = _unread(pipeline, relations, queries)
    warnings = tuple(f"{name} is read by nothing" for name in unread)
    return Plan(pipeline, directory, tuple(relations.values()), queries, warnings)


def _is_static(source: spec.Source) -> bool:
    return isinstance(source, spec.StoreSource) or source.static


def _check_source(pipeline: spec.Pipeline, source: spec.Source, path: str) -> None:
    stream = pipeline.mode == "stream" and not _is_static(source)
    if isinstance(source, spec.ParquetSource):
        if stream and not source.schema:
            raise SpecError(
                f"{path}.schema", "a stream of Parquet files needs its columns; or read once: static: true"
            )
        return
    for field, value in (
        ("startingTimestamp", source.starting_timestamp),
        ("endingTimestamp", source.ending_timestamp),
    ):
        if value != "":
            milliseconds(value, f"{path}.{field}")
    if isinstance(source, spec.StoreSource):
        return
    if bool(source.topic) == bool(source.topic_pattern):
        raise SpecError(f"{path}.topic", "give either topic or topicPattern")
    if source.topic_pattern:
        try:
            re.compile(source.topic_pattern)
        except re.error as error:
            raise SpecError(f"{path}.topicPattern", f"not a regular expression: {error}") from error
    _check_cluster(pipeline, source.namesrv_addr, path)
    if source.tags and source.sql:
        raise SpecError(f"{path}.sql", "give either tags or sql")
    if stream and source.ending_offsets:
        raise SpecError(f"{path}.endingOffsets", "a stream has no end; --once ends at what is there")


def _check_topic(topic: str, path: str) -> None:
    """Rejects an invalid topic name, and a topic that only the broker writes to. An empty name is valid, because a
    column then contains the names."""
    if not topic:
        return
    try:
        check_send_topic(topic)
    except OrbitError as error:
        raise SpecError(path, str(error)) from error


def _check_cluster(pipeline: spec.Pipeline, address: str, path: str) -> None:
    address = address or pipeline.namesrv_addr
    if not address:
        raise SpecError(f"{path}.namesrvAddr", "give the address of the name server here or at the top")
    for one in address.split(";"):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdigit():
            raise SpecError(f"{path}.namesrvAddr", f"{one!r} is not host:port")


def _inputs(step: spec.Step, relations: dict[str, Relation], last: str, path: str) -> tuple[str, ...]:
    if isinstance(step, spec.SqlStep):
        words = set(_WORD.findall(_SQL_NOISE.sub(" ", step.query)))
        named = tuple(name for name in relations if name in words)
        if not named:
            near = (did_you_mean(word, relations) for word in sorted(words))
            meant = next((text for text in near if "did you mean" in text), "")
            raise SpecError(
                f"{path}.query", f"it names none of the relations before it: {', '.join(relations)}{meant}"
            )
        return named
    given = step.source
    chosen = (last,) if not given else (given,) if isinstance(given, str) else tuple(given)
    for name in chosen:
        _known(name, relations, f"{path}.from")
    return chosen


def _known(name: str, relations: dict[str, Relation], path: str) -> Relation:
    if name not in relations:
        raise SpecError(path, f"there is no relation {name!r} before this{did_you_mean(name, relations)}")
    return relations[name]


def _check_step(
    pipeline: spec.Pipeline, step: spec.Step, streaming: bool, directory: Path, path: str
) -> None:
    match step:
        case spec.DecodeStep():
            _check_decode(step, directory, path)
        case spec.DeduplicateStep():
            if streaming and not step.within:
                raise SpecError(
                    f"{path}.within",
                    "a stream cannot remember all values forever: say for how long, as in '10 minutes'",
                )
            check_duration(step.within, f"{path}.within")
        case spec.WatermarkStep():
            check_duration(step.delay, f"{path}.delay")
        case spec.QualityStep():
            if step.dead_letter is not None:
                _check_cluster(pipeline, step.dead_letter.namesrv_addr, f"{path}.deadLetter")
        case spec.SqlStep() | spec.PythonStep():
            pass
        case _:
            assert_never(step)


_UNITS: Final = ("millisecond", "second", "minute", "hour", "day", "week")
_DURATION: Final = re.compile(rf"^\s*(?:\d+(?:\.\d+)?\s+(?:{'|'.join(_UNITS)})s?\s*)+$", re.IGNORECASE)


def check_duration(text: str, path: str) -> None:
    """Raises ``SpecError`` for an invalid duration. An empty text is valid."""
    if text and not _DURATION.match(text):
        raise SpecError(
            path, f"{text!r} is not a duration: a number and one of {', '.join(_UNITS)}, as in '10 minutes'"
        )


def _check_decode(step: spec.DecodeStep, directory: Path, path: str) -> None:
    by_registry = step.format == "registry"
    if step.debezium is not None and step.format != "debezium":
        raise SpecError(f"{path}.debezium", "is for format: debezium")
    if step.format == "debezium" and (step.flatten or step.into != "value"):
        raise SpecError(f"{path}.into", "the columns of a change are columns of the relation: leave this out")
    for name, value in (("registry", step.registry), ("subject", step.subject)):
        if by_registry and not value:
            raise SpecError(f"{path}.{name}", "is needed with format: registry")
        if value and not by_registry and (name, step.format) != ("registry", "debezium"):
            raise SpecError(f"{path}.{name}", "is for format: registry")
    if by_registry and (step.schema or step.schema_file):
        raise SpecError(f"{path}.schema", "the registry has it: leave this out")
    if step.framing != "none" and step.format != "avro":
        raise SpecError(f"{path}.framing", "is for Avro")
    if step.format == "protobuf":
        if not step.schema_file:
            raise SpecError(
                f"{path}.schemaFile",
                "name a descriptor set: protoc --include_imports --descriptor_set_out=FILE ...",
            )
        if not step.message:
            raise SpecError(f"{path}.message", "name the message, as in shop.Order")
    elif not by_registry and bool(step.schema) == bool(step.schema_file):
        raise SpecError(f"{path}.schema", "give either schema or schemaFile")
    if step.message and step.format not in ("protobuf", "registry"):
        raise SpecError(f"{path}.message", "is for Protobuf")
    if step.schema_file and not Path(located(directory, step.schema_file)).is_file():
        raise SpecError(f"{path}.schemaFile", f"there is no file {step.schema_file}")


def _queries(
    pipeline: spec.Pipeline, relations: dict[str, Relation], last: str, directory: Path
) -> Iterator[Query]:
    stream = pipeline.mode == "stream"
    names: set[str] = set()
    if (
        stream
        and not pipeline.checkpoint
        and not all(isinstance(s, spec.ConsoleSink) for s in pipeline.sinks)
    ):
        raise SpecError("checkpoint", "a stream needs a directory to keep its progress in")
    if not stream and pipeline.trigger:
        raise SpecError("trigger", "is for mode: stream")
    check_duration(pipeline.trigger, "trigger")
    wanted: list[tuple[str, spec.Sink]] = [(f"sinks[{i}]", sink) for i, sink in enumerate(pipeline.sinks)]
    for number, step in enumerate(pipeline.steps):
        if isinstance(step, spec.QualityStep) and (letter := step.dead_letter) is not None:
            rejects = spec.TopicSink(
                name=dead_letter_name(step.name),
                source=dead_letter_name(step.name),
                topic=letter.topic,
                namesrv_addr=letter.namesrv_addr,
                access_key=letter.access_key,
                secret_key=letter.secret_key,
                options=letter.options,
                keep_ids=True,
            )
            wanted.append((f"steps[{number}].deadLetter", rejects))
    for path, sink in wanted:
        relation = _known(sink.source or last, relations, f"{path}.from")
        kind = str(sink.__struct_config__.tag)
        name = sink.name or f"{relation.name}_{kind}"
        if not _CHECKPOINT_NAME.match(name):
            raise SpecError(f"{path}.name", f"{name!r}: letters, digits, '_', '.' and '-' are accepted")
        if name in names:
            raise SpecError(f"{path}.name", f"there is a sink {name!r} already; give this one a name")
        names.add(name)
        if isinstance(sink, spec.TopicSink):
            _check_topic(sink.topic, f"{path}.topic")
            _check_cluster(pipeline, sink.namesrv_addr, path)
            if stream:
                _check_circle(pipeline, sink, path)
        if isinstance(sink, spec.DeltaSink | spec.IcebergSink):
            _check_table(sink, path)
        if stream and not relation.streaming:
            raise SpecError(
                f"{path}.from", f"{relation.name!r} is read once and never changes: use mode: batch for it"
            )
        if not stream and getattr(sink, "output_mode", "append") == "update":
            raise SpecError(f"{path}.outputMode", "update is for mode: stream")
        if sink.enabled:
            group = f"{relation.name}_sinks" if stream and pipeline.one_read and _shares(sink) else ""
            kept = f"{located(directory, pipeline.checkpoint)}/{group or name}" if pipeline.checkpoint else ""
            checkpoint = kept if stream else ""
            yield Query(name, relation.name, relation.streaming, checkpoint, _sink_text(sink), sink, group)


def _shares(sink: spec.Sink) -> bool:
    """Returns whether a sink can share a query with others, for which it must commit batches itself."""
    if isinstance(sink, spec.TopicSink):
        return False
    return getattr(sink, "output_mode", "append") == "append"


def _check_key(key: str | list[str], path: str) -> None:
    if isinstance(key, list) and not key:
        raise SpecError(path, "name at least one column")
    for name in [key] if isinstance(key, str) else key:
        if key and not spec.KEY_NAME.fullmatch(name):
            raise SpecError(
                path, f"{name!r} is not a column; write a name, or names joined by dots for a field"
            )


def _check_table(sink: spec.DeltaSink | spec.IcebergSink, path: str) -> None:
    check_duration(sink.compact_every, f"{path}.compactEvery")
    check_duration(sink.keep_versions, f"{path}.keepVersions")
    _check_key(sink.key, f"{path}.key")
    if sink.key and sink.output_mode == "complete":
        raise SpecError(f"{path}.key", "outputMode complete replaces the whole table; a key is for append")
    if sink.scd and not sink.key:
        raise SpecError(f"{path}.key", "scd applies changes by key: name the columns of the primary key")
    if sink.scd and sink.newest_by:
        raise SpecError(f"{path}.newestBy", "changes are ordered by their position in the source")
    if (sink.scd or sink.merge == "executors") and sink.partition_by:
        raise SpecError(
            f"{path}.partitionBy", "rows that are replaced on the executors cannot be partitioned"
        )
    if sink.merge == "driver" and (sink.scd or not isinstance(sink.key, str) or "." in sink.key):
        raise SpecError(
            f"{path}.merge", "driver is for one key column and rows that are not changes of a database"
        )
    check_duration(sink.remember_deletes, f"{path}.rememberDeletes")
    if sink.newest_by and not sink.key:
        raise SpecError(f"{path}.newestBy", "is for a table with a key")
    if sink.keep_versions and not sink.compact_every:
        raise SpecError(f"{path}.keepVersions", "is done when the table is compacted: give compactEvery, too")


def _check_circle(pipeline: spec.Pipeline, sink: spec.TopicSink, path: str) -> None:
    """Rejects a stream that reads its own output, because its topic would grow without end."""
    address = sink.namesrv_addr or pipeline.namesrv_addr
    for source in pipeline.sources.values():
        if not isinstance(source, spec.TopicSource) or source.static:
            continue
        if address != (source.namesrv_addr or pipeline.namesrv_addr):
            continue
        topics = source.topic.split(",") if isinstance(source.topic, str) else source.topic
        reads = sink.topic in [one.strip() for one in topics] or (
            source.topic_pattern and re.fullmatch(source.topic_pattern, sink.topic)
        )
        if sink.topic and reads:
            raise SpecError(
                f"{path}.topic", f"the pipeline reads {sink.topic!r} itself: it would feed itself"
            )


def _unread(
    pipeline: spec.Pipeline, relations: dict[str, Relation], queries: tuple[Query, ...]
) -> Iterator[str]:
    read = {name for relation in relations.values() for name in relation.inputs}
    read.update(query.relation for query in queries)
    # A disabled sink still counts as a reader, because it was switched off on purpose.
    read.update(sink.source for sink in pipeline.sinks)
    for relation in relations.values():
        derived = (
            isinstance(relation.definition, spec.QualityStep) and relation.name != relation.definition.name
        )
        if relation.name not in read and not derived:
            yield relation.name


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _source_text(source: spec.Source) -> str:
    if isinstance(source, spec.ParquetSource):
        return f"Parquet files of {source.path}" + (" (read once)" if source.static else "")
    parts: list[str] = []
    if isinstance(source, spec.StoreSource):
        parts.append(f"store {source.path}" + (f", topic {_listed(source.topic)}" if source.topic else ""))
    else:
        parts.append(
            f"topic {_listed(source.topic)}" if source.topic else f"topics like {source.topic_pattern}"
        )
        if source.starting_offsets:
            start = source.starting_offsets
            parts.append(f"from {start if isinstance(start, str) else 'given offsets'}")
        parts += [f"tags {source.tags}"] if source.tags else []
        parts += [f"where {source.sql}"] if source.sql else []
        parts += [f"progress as group {source.group}"] if source.group else []
        parts += ["read once"] if source.static else []
    if source.starting_timestamp != "":
        parts.append(f"since {moment_text(milliseconds(source.starting_timestamp, ''))}")
    if source.ending_timestamp != "":
        parts.append(f"until {moment_text(milliseconds(source.ending_timestamp, ''))}")
    return ", ".join(parts)


def _step_text(step: spec.Step) -> str:
    match step:
        case spec.SqlStep():
            return "SQL: " + " ".join(step.query.split())
        case spec.PythonStep():
            return f"Python: {step.function}"
        case spec.DecodeStep():
            what = f" {step.message}" if step.message else ""
            where = "columns" if step.flatten else f"column {step.into}"
            return f"{step.format} {step.column}{what} into {where}"
        case spec.WatermarkStep():
            return f"rows may be {step.delay} late by {step.column}"
        case spec.DeduplicateStep():
            within = f" within {step.within} of {step.column}" if step.within else ""
            return f"one row for each {', '.join(step.by)}{within}"
        case spec.QualityStep():
            rules = "; ".join(f"{name}: {' '.join(rule.split())}" for name, rule in step.rules.items())
            letter = f"; rejected rows to topic {step.dead_letter.topic}" if step.dead_letter else ""
            return f"rules {rules}{letter}"
    assert_never(step)


def _sink_text(sink: spec.Sink) -> str:
    match sink:
        case spec.ParquetSink():
            by = (
                "topic and date where there are"
                if sink.partition_by is None
                else ", ".join(sink.partition_by)
            )
            return f"Parquet {sink.path}, partitioned by {by or 'nothing'}"
        case spec.DeltaSink():
            return f"Delta table {sink.path}"
        case spec.IcebergSink():
            return f"Iceberg table {sink.table} of catalog {sink.catalog}"
        case spec.JdbcSink():
            # A URL may have a password after the question mark.
            return f"table {sink.table} of {re.split(r'[?;]', sink.url)[0]}"
        case spec.TopicSink():
            return f"topic {sink.topic}" if sink.topic else "topics of the column topic"
        case spec.ConsoleSink():
            return f"terminal, up to {sink.rows} rows of a batch"
    assert_never(sink)


def lines(plan: Plan, *, master: str, once: bool) -> Iterator[str]:
    """Yields the lines of a description of the plan."""
    pipeline = plan.pipeline
    if not plan.streaming:
        way = "one batch"
    elif once:
        way = "stream, up to what is there now"
    else:
        way = (
            f"stream, a micro-batch every {pipeline.trigger}"
            if pipeline.trigger
            else "stream, without a pause"
        )
    yield f"pipeline {pipeline.name}: {way}, on {master}"
    if pipeline.namesrv_addr:
        yield f"name server {pipeline.namesrv_addr}"
    for relation in plan.relations:
        definition = relation.definition
        if isinstance(definition, spec.QualityStep) and relation.name != definition.name:
            yield f"  {relation.name:<20} <- rows {definition.name} refused"
            continue
        inputs = f"{', '.join(relation.inputs)}: " if relation.inputs else ""
        moving = "stream" if relation.streaming else "static" if plan.streaming else "batch"
        yield f"  {relation.name:<20} <- {inputs}{relation.summary} [{moving}]"
    for query in plan.queries:
        kept = f", progress in {query.checkpoint}" if query.checkpoint else ""
        yield f"  {query.relation:<20} -> {query.summary} [{query.name}{kept}]"
    for warning in plan.warnings:
        yield f"  note: {warning}"
