"""Pipelines over files, in one batch: steps, decoding, rules, sinks, and what an author is told."""

from __future__ import annotations

import datetime
import io
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # as above
import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2

from orbitmq.pipeline.load import parse_pipeline
from orbitmq.pipeline.plan import Plan, make_plan
from orbitmq.pipeline.run import BatchReport, build_frames, run_batch
from orbitmq.spark.errors import PipelineError, RunFailed, SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
DAYS = [datetime.datetime(2026, 5, day, tzinfo=datetime.UTC) for day in (1, 2)]


class Outcome:
    """Collects what a run shows and reports."""

    def __init__(self) -> None:
        self.tables: dict[str, list[tuple[Any, ...]]] = {}
        self.reports: dict[str, BatchReport] = {}

    def view(self, title: str, columns: list[str], rows: list[tuple[Any, ...]], more: bool) -> None:
        self.tables[title] = rows

    def report(self, batch: BatchReport) -> None:
        self.reports[batch.query] = batch


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., Outcome]:
    def run_one(**document: Any) -> Outcome:
        outcome = Outcome()
        run_batch(spark, plan_of(tmp_path, **document), outcome.view, outcome.report, threading.Event())
        return outcome

    return run_one


def plan_of(directory: Path, **document: Any) -> Plan:
    whole = {"name": "test", "mode": "batch", "sources": {"rows": {"kind": "parquet", "path": "in"}}}
    return make_plan(parse_pipeline(whole | {"sinks": [{"kind": "console"}]} | document, {}, {}), directory)


def write_messages(directory: Path, bodies: list[bytes | None]) -> None:
    count = len(bodies)
    columns = {
        "topic": pa.array(["a", "b"] * count)[:count],
        "broker": pa.array(["broker-a"] * count),
        "queue_id": pa.array([0] * count, pa.int32()),
        "queue_offset": pa.array(range(count), pa.int64()),
        "msg_id": pa.array([f"ID{number}" for number in range(count)]),
        "keys": pa.array([f"k{number}" for number in range(count)]),
        "tags": pa.array([None] * count, pa.string()),
        "body": pa.array(bodies, pa.binary()),
        "properties": pa.array(
            [[("UNIQ_KEY", "x"), ("color", "red"), ("reject_step", "old")]] * count,
            pa.map_(pa.string(), pa.string()),
        ),
        "store_timestamp": pa.array([DAYS[number % 2] for number in range(count)], pa.timestamp("us", "UTC")),
    }
    (directory / "in").mkdir()
    pq.write_table(pa.table(columns), directory / "in" / "rows.parquet")


def order(number: int) -> bytes:
    return json.dumps({"id": f"o{number}", "amount": number - 2}).encode()


def test_json_rules_and_sql_give_tables_files_and_counts(
    run: Callable[..., Outcome], spark: SparkSession, tmp_path: Path
) -> None:
    write_messages(tmp_path, [*map(order, range(6)), b"no json", None])
    steps = [
        {"name": "parsed", "kind": "decode", "format": "json", "schema": "id string, amount double"},
        {"name": "unique", "kind": "deduplicate", "by": ["queue_id", "queue_offset"]},
        {
            "name": "good",
            "kind": "quality",
            "rules": {"readable": "decode_error IS NULL", "positive": "value.amount > 0"},
        },
        {
            "name": "sums",
            "kind": "sql",
            "query": "SELECT topic, sum(value.amount) AS total FROM good GROUP BY topic ORDER BY topic",
        },
    ]
    sinks = [
        {"kind": "console", "title": "sums"},
        {"kind": "parquet", "from": "good", "path": "lake"},
        {"kind": "console", "from": "good_rejected", "title": "bad", "rows": 1},
    ]
    outcome = run(steps=steps, sinks=sinks)
    assert outcome.tables["sums"] == [("a", 2.0), ("b", 4.0)]
    assert len(outcome.tables["bad"]) == 1
    assert outcome.reports["good_parquet"].rows == 3
    assert outcome.reports["good_parquet"].quality == {
        "good": {"_checked": 8, "_rejected": 5, "readable": 2, "positive": 5}
    }
    written = spark.read.parquet(str(tmp_path / "lake"))
    assert {(row.topic, str(row.date), row.msg_id, row.value.id) for row in written.collect()} == {
        ("b", "2026-05-02", "ID3", "o3"),
        ("a", "2026-05-01", "ID4", "o4"),
        ("b", "2026-05-02", "ID5", "o5"),
    }
    assert (tmp_path / "lake" / "topic=a" / "date=2026-05-01").is_dir()


def test_dead_letters_carry_the_body_the_reason_and_the_origin(spark: SparkSession, tmp_path: Path) -> None:
    write_messages(tmp_path, [order(5), b"no json"])
    steps = [
        {"name": "parsed", "kind": "decode", "format": "json", "schema": "id string, amount double"},
        {
            "name": "good",
            "kind": "quality",
            "rules": {"readable": "decode_error IS NULL", "positive": "value.amount > 0"},
            "deadLetter": {"topic": "dead"},
        },
    ]
    frames = build_frames(spark, plan_of(tmp_path, namesrvAddr="127.0.0.1:1", steps=steps))
    (letter,) = frames["good_dead_letters"].collect()
    assert (bytes(letter.body), letter.keys, letter.msg_id) == (b"no json", "k1", "ID1")
    assert letter.properties == {
        "UNIQ_KEY": "x",
        "color": "red",
        "reject_rules": "readable,positive",
        "reject_pipeline": "test",
        "reject_step": "good",
        "reject_error": "not JSON with these columns",
        "reject_topic": "b",
        "reject_broker": "broker-a",
        "reject_queue_id": "0",
        "reject_queue_offset": "1",
        "reject_msg_id": "ID1",
    }


def test_dead_letters_of_rows_without_a_body_are_the_row_as_json(spark: SparkSession, tmp_path: Path) -> None:
    write_messages(tmp_path, [order(5)])
    steps = [
        {"name": "less", "kind": "sql", "query": "SELECT topic, queue_offset FROM rows"},
        {"name": "good", "kind": "quality", "rules": {"never": "1 = 2"}, "deadLetter": {"topic": "dead"}},
    ]
    frames = build_frames(spark, plan_of(tmp_path, namesrvAddr="127.0.0.1:1", steps=steps))
    (letter,) = frames["good_dead_letters"].collect()
    assert json.loads(bytes(letter.body)) == {"topic": "a", "queue_offset": 0, "failed_rules": ["never"]}


def test_avro_and_protobuf_are_decoded_on_the_executors(run: Callable[..., Outcome], tmp_path: Path) -> None:
    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "string"}]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), {"id": "avro"})
    files = descriptor_pb2.FileDescriptorSet()
    wrappers_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    kind = files.file.add(name="shop.proto", package="shop", syntax="proto3").message_type.add(name="Order")
    kind.field.add(name="id", number=1, type=9, label=1)
    (tmp_path / "shop.desc").write_bytes(files.SerializeToString())
    write_messages(tmp_path, [stream.getvalue(), b"\x0a\x05proto", b"\x0a\x09cut"])
    steps: list[dict[str, Any]] = [
        {"name": "a", "kind": "decode", "format": "avro", "schema": json.dumps(schema), "from": "rows"},
        {
            "name": "p",
            "kind": "decode",
            "format": "protobuf",
            "schemaFile": "shop.desc",
            "message": "shop.Order",
            "from": "rows",
            "flatten": True,
            "onError": "drop",
        },
        {
            "name": "both",
            "kind": "sql",
            "query": "SELECT value.id FROM a UNION ALL SELECT id FROM p WHERE id > ''",
        },
    ]
    outcome = run(steps=steps, sinks=[{"kind": "console", "title": "both"}])
    assert sorted(row[0] for row in outcome.tables["both"] if row[0]) == ["avro", "proto"]
    with pytest.raises(
        RunFailed, match=r"sink strict_console: .*strict: a body cannot be decoded \(avro\): "
    ):
        run(
            steps=[steps[0] | {"name": "strict", "onError": "fail"}],
            sinks=[{"kind": "console", "from": "strict"}],
        )


MODULE = """
from pyspark.sql import functions as f


def loud(frame, other, column="keys"):
    shout = f.udf(shouted, useArrow=False)
    return frame.join(other.select("msg_id"), "msg_id").withColumn("loud", shout(column))


def shouted(text):
    return text.upper() + "!"


def nothing(frame):
    return 3


def broken(frame):
    raise KeyError("oops")
"""


def test_python_step_gets_frames_and_arguments_and_its_functions_reach_the_executors(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    write_messages(tmp_path, [order(5)])
    (tmp_path / "shouting.py").write_text(MODULE)
    step = {"name": "l", "kind": "python", "function": "shouting:loud", "from": ["rows", "rows"]}
    sql = {"name": "s", "kind": "sql", "query": "SELECT loud FROM l"}
    outcome = run(
        steps=[step | {"arguments": {"column": "topic"}}, sql], sinks=[{"kind": "console", "title": "loud"}]
    )
    assert outcome.tables["loud"] == [("A!",)]
    for function, text in (
        ("shouting:loudd", r"shouting has no function 'loudd' \(did you mean 'loud'\?\)"),
        ("shoutin:loud", "cannot import shoutin: ModuleNotFoundError"),
        ("shouting:nothing", "shouting:nothing returned int, not a DataFrame"),
        ("shouting:broken", "shouting:broken raised KeyError: 'oops'"),
    ):
        with pytest.raises(SpecError, match=rf"steps\[0\].function: {text}"):
            run(steps=[{"name": "l", "kind": "python", "function": function}])


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            {"kind": "sql", "query": "SELEC * FROM rows"},
            r"steps\[0\].query: .*Syntax error at or near 'SELEC'.*",
        ),
        ({"kind": "sql", "query": "SELECT nme FROM rows"}, r"steps\[0\].query: .*`nme` cannot be resolved.*"),
        ({"kind": "quality", "rules": {"a": "amount >"}}, r"steps\[0\].rules.a: .*[Ss]yntax error.*"),
        (
            {"kind": "quality", "rules": {"a": "queue_id"}},
            r"steps\[0\].rules.a: the rule gives int, not true or false",
        ),
        (
            {"kind": "decode", "format": "json", "schema": "a nothing"},
            r"steps\[0\].schema: not a list of columns.*",
        ),
        ({"kind": "decode", "format": "json", "schema": "int"}, r"steps\[0\].schema: .*"),
        (
            {"kind": "decode", "format": "json", "schema": "a int", "column": "queue_id"},
            r"steps\[0\].column: column 'queue_id' is int; a binary or string column can be decoded",
        ),
        (
            {"kind": "decode", "format": "json", "schema": "topic string", "flatten": True},
            r"steps\[0\].flatten: there are columns topic already.*",
        ),
        (
            {"kind": "decode", "format": "avro", "schema": "{"},
            r"steps\[0\].schema: the Avro schema is not JSON.*",
        ),
        (
            {"kind": "deduplicate", "by": ["msgid"]},
            r"steps\[0\].by: there is no column 'msgid' \(did you mean 'msg_id'\?\)",
        ),
    ],
)
def test_step_that_spark_refuses_is_told_in_one_line(
    run: Callable[..., Outcome], tmp_path: Path, step: dict[str, Any], text: str
) -> None:
    write_messages(tmp_path, [order(5)])
    with pytest.raises(SpecError) as caught:
        run(steps=[{"name": "s"} | step])
    assert "\n" not in str(caught.value)
    assert re.fullmatch(text, str(caught.value)), str(caught.value)


def test_sink_that_cannot_work_is_told_in_one_line(run: Callable[..., Outcome], tmp_path: Path) -> None:
    write_messages(tmp_path, [order(5)])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "parquet", "path": "x", "partitionBy": ["tpic"]}, "partitionBy: there is no column 'tpic'"),
        ({"kind": "jdbc", "url": "jdbc:nosuch:x", "table": "t"}, "No suitable driver"),
        ({"kind": "topic", "topic": "t", "from": "less"}, "a message needs a column 'body'"),
    ]
    steps = [{"name": "less", "kind": "sql", "query": "SELECT topic FROM rows"}]
    for sink, text in cases:
        with pytest.raises(PipelineError) as caught:
            run(namesrvAddr="127.0.0.1:1", steps=steps, sinks=[{"from": "rows"} | sink])
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
