"""Runs the test cases of a pipeline: its steps over sample rows, without servers, streams or sinks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import msgspec

from orbitmq.pipeline import spec
from orbitmq.pipeline.cases import Case, Difference, compare, message_rows
from orbitmq.pipeline.failures import explained, failure
from orbitmq.pipeline.load import load_pipeline
from orbitmq.pipeline.plan import Plan, make_plan
from orbitmq.pipeline.sources import message_schema, open_source
from orbitmq.pipeline.steps import apply_step
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.errors import PipelineError, SpecError, did_you_mean
from orbitmq.spark.schema import COLUMNS, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Outcome", "junit", "plan_of_case", "run_case"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one test case."""

    case: Case
    differences: tuple[Difference, ...] = ()
    error: str = ""
    """Why the case could not be completed."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.differences and not self.error

    def lines(self) -> Iterator[str]:
        """Yields the lines of a description of the problems."""
        if self.error:
            yield self.error
        for one in self.differences:
            yield from one.lines()


def plan_of_case(file: Path, case: Case, environment: Mapping[str, str]) -> Plan:
    """Returns the plan that runs a pipeline file as one batch. Raises ``SpecError``, for example for unknown names in
    the case."""
    plan = make_plan(load_pipeline(file, case.given, environment), file.resolve().parent)
    names = {relation.name for relation in plan.relations}
    for name in case.sources:
        if name not in plan.pipeline.sources:
            raise SpecError(
                f"sources.{name}",
                f"unknown source{did_you_mean(name, plan.pipeline.sources)}",
            )
    for name, source in plan.pipeline.sources.items():
        if name not in case.sources and not isinstance(source, spec.ParquetSource):
            raise SpecError(f"sources.{name}", "needs sample rows: a test queries no server")
    for name in case.expect:
        if name not in names and name not in {query.name for query in plan.queries}:
            raise SpecError(f"expect.{name}", f"unknown relation or sink{did_you_mean(name, names)}")
    return replace(
        plan,
        pipeline=msgspec.structs.replace(plan.pipeline, mode="batch"),
        relations=tuple(replace(relation, streaming=False) for relation in plan.relations),
    )


def run_case(
    session: SparkSession,
    file: Path,
    case: Case,
    environment: Mapping[str, str],
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Outcome:
    """Runs one case and returns its outcome. For an invalid pipeline or case, the outcome contains the reason, and
    nothing is raised."""
    begun = clock.monotonic()
    try:
        plan = plan_of_case(file, case, environment)
        frames = _frames(session, plan, case)
        relations = {query.name: query.relation for query in plan.queries}
        differences = [
            compare(name, rows, _found(frames[relations.get(name, name)], rows, f"expect.{name}"))
            for name, rows in case.expect.items()
        ]
    except PipelineError as error:
        return Outcome(case, error=str(error), seconds=clock.monotonic() - begun)
    found = tuple(one for one in differences if one is not None)
    return Outcome(case, found, seconds=clock.monotonic() - begun)


def _frames(session: SparkSession, plan: Plan, case: Case) -> dict[str, DataFrame]:
    frames: dict[str, DataFrame] = {}
    for name, source in plan.pipeline.sources.items():
        path = f"sources.{name}"
        with explained(path):
            if name in case.sources:
                frames[name] = _sample(session, source, case.sources[name], path)
            else:
                frames[name] = open_source(session, plan, name, source, streaming=False)
        frames[name].createOrReplaceTempView(name)
    for number, step in enumerate(plan.pipeline.steps):
        for name, frame in apply_step(session, plan, step, frames, f"steps[{number}]").items():
            frame.createOrReplaceTempView(name)
            frames[name] = frame
    return frames


def _sample(session: SparkSession, source: spec.Source, rows: Sequence[Any], path: str) -> DataFrame:
    if isinstance(source, spec.ParquetSource):
        return _parquet_sample(session, source, rows, path)
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

    message_schema(source.columns, f"{path}.columns")
    topic = source.topic if isinstance(source.topic, str) else source.topic[0]
    columns = source.columns or COLUMNS
    messages = message_rows(rows, topic.partition(",")[0], path)
    try:
        table = pa.Table.from_pylist(messages, schema=arrow_schema()).select(list(columns))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SpecError(path, f"a value does not fit its column: {error}") from None
    return session.createDataFrame(table)


def _parquet_sample(
    session: SparkSession, source: spec.ParquetSource, rows: Sequence[Any], path: str
) -> DataFrame:
    if not source.schema:
        raise SpecError(path, "sample rows need the schema of the source in the pipeline file")
    from pyspark.sql import functions as f

    texts = [(row if isinstance(row, str) else json.dumps(row),) for row in rows]
    parsed = f.from_json("value", source.schema, {"mode": "FAILFAST"}).alias("row")
    return session.createDataFrame(texts, "value string").select(parsed).select("row.*")


def _found(frame: DataFrame, expected: Sequence[Mapping[str, Any]], path: str) -> list[dict[str, Any]]:
    """Returns the rows as JSON values, with times in UTC and binary columns as text. Raises ``SpecError`` for a
    column that does not exist."""
    from pyspark.sql import functions as f

    wanted = list(dict.fromkeys(name for row in expected for name in row))
    for name in wanted:
        if name not in frame.columns:
            raise SpecError(path, f"there is no column {name!r}{did_you_mean(name, frame.columns)}")
    kinds = dict(frame.dtypes)
    columns = [
        f.expr(_TEXT_OF_BINARY.format(name)).alias(name) if kinds[name] == "binary" else f.col(f"`{name}`")
        for name in wanted or frame.columns
    ]
    options = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX"}
    try:
        lines = frame.select(f.to_json(f.struct(*columns), options)).collect()
    except Exception as error:  # py4j wraps the JVM's exception; the outcome has its first line
        raise failure(path, error) from error
    return [json.loads(line[0]) for line in lines]


_TEXT_OF_BINARY = (
    "if(is_valid_utf8(cast(`{0}` as string)), cast(`{0}` as string), concat('base64:', base64(`{0}`)))"
)


def junit(name: str, outcomes: Sequence[Outcome]) -> bytes:
    """Returns the outcomes as a JUnit report."""
    failures = sum(bool(one.differences) for one in outcomes)
    errors = sum(bool(one.error) for one in outcomes)
    counts = {"tests": len(outcomes), "failures": failures, "errors": errors}
    suite = ElementTree.Element(
        "testsuite",
        {"name": name, **{key: str(value) for key, value in counts.items()}},
        time=f"{sum(one.seconds for one in outcomes):.3f}",
    )
    for one in outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", classname=name, name=one.case.name, time=f"{one.seconds:.3f}"
        )
        if not one.passed:
            first, *rest = one.lines()
            kind = "error" if one.error else "failure"
            ElementTree.SubElement(case, kind, message=_xml(first)).text = _xml("\n".join([first, *rest]))
    report: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return report


def _xml(text: str) -> str:
    """Returns the text without characters that XML cannot represent."""
    return "".join(one if one >= " " or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
