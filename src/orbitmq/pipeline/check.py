"""``orbitmq pipeline check``: finds the problems of a pipeline that show without running it, with their positions.

Spark analyses every step over empty rows with the right columns, or over an empty stream for streaming rows. So SQL,
types, names and the rules of streams are checked as in a run. No message is read, no statement is executed and
nothing is written, but the functions of Python steps are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.pipeline import spec
from orbitmq.pipeline.failures import explained
from orbitmq.pipeline.plan import Plan, Query
from orbitmq.pipeline.preflight import check_query, check_source
from orbitmq.pipeline.queries import require_streamable, streaming_rows
from orbitmq.pipeline.sinks import output_mode, sink_columns
from orbitmq.pipeline.sources import message_schema
from orbitmq.pipeline.steps import apply_step
from orbitmq.spark.errors import PipelineError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Finding", "analyse", "ask_servers", "findings_text", "line_of"]

_SINK_FIELD: Final = re.compile(r"sink [^:]+: (\w+)")
_TOKEN: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, and the path of its field."""

    path: str
    """Path of the field; empty for the whole file."""
    problem: str


def analyse(session: SparkSession, plan: Plan) -> list[Finding]:
    """Returns the problems that Spark finds in the plan. A relation that cannot be built counts as one problem, and
    relations that read it are not checked."""
    found: list[Finding] = []
    frames: dict[str, DataFrame] = {}
    for name, source in plan.pipeline.sources.items():
        try:
            frames[name] = _empty(session, plan, name, source)
            frames[name].createOrReplaceTempView(name)
        except PipelineError as error:
            found.append(_finding(error, f"sources.{name}"))
    inputs = {relation.name: relation.inputs for relation in plan.relations}
    for number, step in enumerate(plan.pipeline.steps):
        if any(name not in frames for name in inputs[step.name]):
            continue
        try:
            made = apply_step(session, plan, step, frames, f"steps[{number}]")
        except PipelineError as error:
            found.append(_finding(error, f"steps[{number}]"))
            continue
        for name, frame in made.items():
            frame.createOrReplaceTempView(name)
            frames[name] = frame
    for query in plan.queries:
        if query.relation not in frames:
            continue
        try:
            with explained(f"sink {query.name}"):
                frame = sink_columns(frames[query.relation], plan, query)
                _check_table(frame, plan, query)
                if query.streaming:
                    require_streamable(frame, output_mode(query.sink))
        except PipelineError as error:
            found.append(_finding(error, _sink_path(plan, query)))
    return found


def ask_servers(plan: Plan) -> list[Finding]:
    """Returns the problems with topics, permissions and options for which name servers and brokers would refuse
    requests."""
    found: list[Finding] = []
    for name, source in plan.pipeline.sources.items():
        try:
            check_source(plan, name, source)
        except PipelineError as error:
            found.append(_finding(error, f"sources.{name}"))
    for query in plan.queries:
        try:
            check_query(plan, query)
        except PipelineError as error:
            found.append(_finding(error, _sink_path(plan, query)))
    return found


def _empty(session: SparkSession, plan: Plan, name: str, source: spec.Source) -> DataFrame:
    """Returns an empty frame with the columns of a source."""
    path = f"sources.{name}"
    with explained(path):
        if not isinstance(source, spec.ParquetSource):
            columns = message_schema(source.columns, f"{path}.columns")
        elif source.schema:
            columns = source.schema
        else:
            return session.read.parquet(plan.located(source.path)).limit(0)
        if next(relation.streaming for relation in plan.relations if relation.name == name):
            return streaming_rows(session, columns)
        return session.createDataFrame([], columns)


def _check_table(frame: DataFrame, plan: Plan, query: Query) -> None:
    """Raises ``RunFailed`` if an existing Delta or Iceberg table does not accept the columns of ``frame``."""
    if isinstance(query.sink, spec.DeltaSink):
        from orbitmq.pipeline.lake_delta import DeltaTableWriter

        DeltaTableWriter(query.sink, plan.located(query.sink.path)).check(frame)
    elif isinstance(query.sink, spec.IcebergSink):
        from orbitmq.pipeline.lake_iceberg import IcebergTableWriter

        IcebergTableWriter.check(query.sink, frame)


def _finding(error: PipelineError, path: str) -> Finding:
    if not isinstance(error, SpecError):
        return Finding(path, str(error).removeprefix(f"{path}: "))
    if error.path.startswith(("sources.", "steps[", "sinks[")):
        return Finding(error.path, error.problem)
    field = _SINK_FIELD.fullmatch(error.path)
    return Finding(path if field is None else f"{path}.{field[1]}", error.problem)


def _sink_path(plan: Plan, query: Query) -> str:
    for number, sink in enumerate(plan.pipeline.sinks):
        if sink is query.sink:
            return f"sinks[{number}]"
    for number, step in enumerate(plan.pipeline.steps):  # dead letters are sinks of their step
        if isinstance(step, spec.QualityStep) and query.name.startswith(step.name):
            return f"steps[{number}].deadLetter"
    return "sinks"


# -- positions in the file -----------------------------------------------------------------------------


def findings_text(file: Path, findings: list[Finding]) -> Iterator[str]:
    """Yields ``file:line: field: problem`` lines, in file order."""
    text = file.read_text("utf-8", "replace")  # one finding may be that it is not UTF-8
    placed = [(line_of(file, text, one.path), one) for one in findings]
    for line, one in sorted(placed, key=lambda pair: pair[0]):
        yield f"{file}:{line}: {one.path}: {one.problem}" if one.path else f"{file}:{line}: {one.problem}"


def line_of(file: Path, text: str, path: str) -> int:
    """Returns the line number of a field, or of the nearest enclosing element in the file. The first line is 1."""
    tokens: list[str | int] = [int(index) if index else name for name, index in _TOKEN.findall(path)]
    if file.suffix == ".toml":
        return _toml_line(text, tokens)
    import yaml

    try:
        node: Any = yaml.compose(text, yaml.SafeLoader)  # JSON is YAML, too
    except yaml.YAMLError:
        return 1
    line = 1
    for token in tokens:
        below: Any = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(token):
                    line, below = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(token, int) and token < len(node.value):
            below = node.value[token]
            line = below.start_mark.line + 1
        if below is None:
            break
        node = below
    return line


def _toml_line(text: str, tokens: list[str | int]) -> int:
    """Returns the line number of a field in TOML. Searches for headers and keys at the beginning of lines, which is
    enough for files written by hand."""
    names = [str(one) for one in tokens if isinstance(one, str)]
    wanted = next((one for one in tokens if isinstance(one, int)), None)
    line, seen, inside = 1, -1, not names
    for number, content in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", content)
        if header:
            parts = [part.strip().strip('"') for part in header[1].split(".")]
            if wanted is not None and parts == names[:1]:
                seen += 1
            inside = parts == names[: len(parts)] and (wanted is None or seen == wanted)
            if inside:
                line = number
        elif inside and names and re.match(rf"\s*{re.escape(names[-1])}\s*=", content):
            return number
    return line
