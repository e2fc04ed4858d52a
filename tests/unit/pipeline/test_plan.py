"""The plan derived from a pipeline, without Spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orbitmq.pipeline import spec
from orbitmq.pipeline.batches import AllSinks, OneSink
from orbitmq.pipeline.load import parse_pipeline
from orbitmq.pipeline.plan import Plan, lines, make_plan
from orbitmq.spark.errors import SpecError

TOPIC = {"kind": "topic", "topic": "orders"}


def plan(directory: Path = Path("base"), **changes: Any) -> Plan:
    document: dict[str, Any] = {
        "name": "orders",
        "namesrvAddr": "127.0.0.1:9876",
        "checkpoint": "state",
        "sources": {"orders": TOPIC},
        "sinks": [{"kind": "parquet", "path": "lake"}],
    }
    return make_plan(parse_pipeline(document | changes, {}, {}), directory)


def refusal(**changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        plan(**changes)
    return str(caught.value)


def test_steps_follow_one_another_unless_they_say_from() -> None:
    made = plan(
        steps=[
            {"name": "a", "kind": "decode", "format": "json", "schema": "id string"},
            {"name": "b", "kind": "watermark", "delay": "1 minute"},
            {"name": "c", "kind": "watermark", "delay": "1 minute", "from": "a"},
        ]
    )
    assert {one.name: one.inputs for one in made.relations} == {
        "orders": (),
        "a": ("orders",),
        "b": ("a",),
        "c": ("a",),
    }
    assert [query.relation for query in made.queries] == ["c"]
    assert made.warnings == ("b is read by nothing",)


def test_query_reads_the_relations_it_names_outside_of_texts_and_comments() -> None:
    made = plan(
        sources={
            "orders": TOPIC,
            "customers": {"kind": "parquet", "path": "c", "static": True},
            "unused": TOPIC,
        },
        steps=[
            {
                "name": "joined",
                "kind": "sql",
                "query": "SELECT 'unused' AS a FROM orders JOIN customers USING (id) -- unused\n/* unused */",
            }
        ],
    )
    assert made.relations[-1].inputs == ("orders", "customers")
    assert made.relations[-1].streaming
    assert made.warnings == ("unused is read by nothing",)


def test_quality_step_with_dead_letters_gets_a_query_of_its_own() -> None:
    made = plan(
        steps=[
            {
                "name": "good",
                "kind": "quality",
                "rules": {"positive": "amount > 0"},
                "deadLetter": {"topic": "bad_orders", "accessKey": "k"},
            }
        ]
    )
    assert [one.name for one in made.relations] == ["orders", "good", "good_rejected", "good_dead_letters"]
    first, letters = made.queries
    assert first.relation == "good"
    assert isinstance(letters.sink, spec.TopicSink)
    assert (letters.relation, letters.sink.topic, letters.sink.access_key) == (
        "good_dead_letters",
        "bad_orders",
        "k",
    )
    assert letters.checkpoint == "base/state/good_dead_letters"


def test_batch_has_no_checkpoint_and_reads_nothing_as_a_stream() -> None:
    made = plan(mode="batch")
    assert not made.relations[0].streaming
    assert made.queries[0].checkpoint == ""


def test_disabled_sink_makes_no_query_and_no_warning() -> None:
    made = plan(
        steps=[{"name": "a", "kind": "watermark", "delay": "1 minute"}],
        sinks=[{"kind": "console", "from": "a", "enabled": False}, {"kind": "console", "from": "orders"}],
    )
    assert [query.name for query in made.queries] == ["orders_console"]
    assert made.warnings == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"steps": [{"name": "a", "kind": "sql", "query": "SELECT * FROM ordrs"}]},
            "steps[0].query: it names none of the relations before it: orders (did you mean 'orders'?)",
        ),
        (
            {
                "steps": [
                    {
                        "name": "good",
                        "kind": "quality",
                        "rules": {"positive": "amount > 0"},
                        "deadLetter": {"topic": "%bad name%"},
                    }
                ]
            },
            "steps[0].deadLetter.topic: topic '%bad name%' contains illegal characters",
        ),
        (
            {"sinks": [{"kind": "topic", "topic": "a b", "from": "orders"}]},
            "sinks[0].topic: topic 'a b' contains illegal characters",
        ),
        ({"sources": {"a": {"kind": "topic"}}}, "sources.a.topic: give either topic or topicPattern"),
        ({"sources": {"a": {"kind": "topic", "topicPattern": "("}}}, "sources.a.topicPattern: not a regular"),
        ({"sources": {"a": TOPIC | {"tags": "a", "sql": "b"}}}, "sources.a.sql: give either tags or sql"),
        (
            {"sources": {"a": TOPIC | {"startingTimestamp": "soon"}}},
            "sources.a.startingTimestamp: 'soon' is not a time",
        ),
        (
            {"sources": {"a": TOPIC | {"endingOffsets": "latest"}}},
            "sources.a.endingOffsets: a stream has no end",
        ),
        (
            {"sources": {"a": {"kind": "parquet", "path": "x"}}},
            "sources.a.schema: a stream of Parquet files needs",
        ),
        ({"namesrvAddr": ""}, "sources.orders.namesrvAddr: give the address"),
        ({"namesrvAddr": "localhost"}, "sources.orders.namesrvAddr: 'localhost' is not host:port"),
        ({"checkpoint": ""}, "checkpoint: a stream needs a directory"),
        ({"trigger": "often"}, "trigger: 'often' is not a duration"),
        ({"mode": "batch", "trigger": "1 second"}, "trigger: is for mode: stream"),
        (
            {"sinks": [{"kind": "console", "from": "ordrs"}]},
            "sinks[0].from: there is no relation 'ordrs' before this",
        ),
        (
            {"sinks": [{"kind": "console"}, {"kind": "console"}]},
            "sinks[1].name: there is a sink 'orders_console'",
        ),
        ({"sinks": [{"kind": "console", "name": "a/b"}]}, "sinks[0].name: 'a/b'"),
        ({"sinks": [{"kind": "console", "enabled": False}]}, "sinks: none is enabled"),
        (
            {"mode": "batch", "sinks": [{"kind": "console", "outputMode": "update"}]},
            "sinks[0].outputMode: update is for mode: stream",
        ),
        (
            {"sinks": [{"kind": "topic", "topic": "orders"}]},
            "sinks[0].topic: the pipeline reads 'orders' itself",
        ),
        (
            {
                "sources": {"orders": TOPIC, "s": {"kind": "store", "path": "x"}},
                "sinks": [{"kind": "console", "from": "s"}],
            },
            "sinks[0].from: 's' is read once",
        ),
    ],
)
def test_what_cannot_work_is_told_with_its_path(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            {"kind": "sql", "query": "SELECT 1"},
            "steps[0].query: it names none of the relations before it: orders",
        ),
        (
            {"kind": "sql", "query": "SELECT * FROM oders"},
            "steps[0].query: it names none of the relations before it: orders (did you mean 'orders'?)",
        ),
        ({"kind": "deduplicate"}, "steps[0].within: a stream cannot remember"),
        ({"kind": "deduplicate", "within": "a while"}, "steps[0].within: 'a while' is not a duration"),
        ({"kind": "watermark", "delay": "10"}, "steps[0].delay: '10' is not a duration"),
        ({"kind": "decode", "format": "json"}, "steps[0].schema: give either schema or schemaFile"),
        (
            {"kind": "decode", "format": "avro", "schemaFile": "x.avsc"},
            "steps[0].schemaFile: there is no file x.avsc",
        ),
        ({"kind": "decode", "format": "protobuf"}, "steps[0].schemaFile: name a descriptor set"),
        ({"kind": "decode", "format": "protobuf", "schemaFile": "x"}, "steps[0].message: name the message"),
        (
            {"kind": "decode", "format": "json", "schema": "a int", "message": "x"},
            "steps[0].message: is for Protobuf",
        ),
        (
            {"kind": "decode", "format": "json", "schema": "a int", "framing": "confluent"},
            "steps[0].framing: is for Avro",
        ),
        (
            {"kind": "python", "function": "a:b", "from": ["orders", "x"]},
            "steps[0].from: there is no relation 'x'",
        ),
        (
            {"kind": "watermark", "delay": "1 hour", "name": "orders"},
            "steps[0].name: there is a relation 'orders'",
        ),
    ],
)
def test_step_that_cannot_work_is_told_with_its_path(step: dict[str, Any], text: str) -> None:
    assert refusal(steps=[{"name": "s"} | step]).startswith(text)


def test_lines_say_what_runs_and_keep_secrets() -> None:
    made = plan(
        secretKey="TOP-SECRET",
        trigger="10 seconds",
        steps=[
            {"name": "one", "kind": "deduplicate", "within": "10 minutes"},
            {
                "name": "good",
                "kind": "quality",
                "rules": {"positive": "amount > 0"},
                "deadLetter": {"topic": "bad"},
            },
            {"name": "last", "kind": "sql", "query": "SELECT *\nFROM good"},
        ],
        sinks=[
            {"kind": "parquet", "path": "lake"},
            {
                "kind": "jdbc",
                "url": "jdbc:postgresql://db/x?password=TOP-SECRET",
                "table": "t",
                "password": "TOP-SECRET",
            },
            {"kind": "delta", "path": "d"},
            {"kind": "iceberg", "table": "a.b"},
            {"kind": "console", "outputMode": "update"},
        ],
    )
    text = "\n".join(lines(made, master="local[2]", once=False))
    assert "TOP-SECRET" not in text
    assert text.splitlines()[0] == "pipeline orders: stream, a micro-batch every 10 seconds, on local[2]"
    for part in (
        "orders               <- topic orders [stream]",
        "one                  <- orders: one row for each msg_id within 10 minutes of store_timestamp [stream]",
        "good                 <- one: rules positive: amount > 0; rejected rows to topic bad [stream]",
        "good_rejected        <- rows good refused",
        "last                 <- good: SQL: SELECT * FROM good [stream]",
        "-> Parquet lake, partitioned by topic and date where there are [last_parquet, progress in base/state",
        "-> table t of jdbc:postgresql://db/x [last_jdbc",
        "-> topic bad [good_dead_letters",
    ):
        assert part in text
    once = next(lines(made, master="local[2]", once=True))
    assert once == "pipeline orders: stream, up to what is there now, on local[2]"


def test_paths_are_those_of_the_file_unless_absolute_or_a_uri() -> None:
    made = plan()
    assert made.located("lake") == "base/lake"
    assert made.located("/lake") == "/lake"
    assert made.located("s3://bucket/lake") == "s3://bucket/lake"


def test_sinks_of_one_relation_share_a_query_where_they_may_and_travel_to_a_connect_server() -> None:
    changes: dict[str, Any] = {
        "steps": [{"name": "small", "kind": "sql", "query": "SELECT body, topic FROM orders"}],
        "sinks": [
            {"name": "a", "kind": "delta", "path": "a"},
            {"name": "b", "kind": "parquet", "path": "b"},
            {"name": "c", "kind": "topic", "topic": "copies"},
            {"name": "d", "kind": "delta", "path": "d", "outputMode": "complete"},
            {"name": "e", "kind": "delta", "path": "e", "from": "orders"},
        ],
    }
    shared, apart = plan(**changes, oneRead=True), plan(**changes)
    assert [[query.name for query in group] for group in shared.groups] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert [group[0].checkpoint.rpartition("/")[2] for group in shared.groups] == [
        "small_sinks", "c", "d", "orders_sinks",
    ]  # fmt: skip
    assert [group[0].checkpoint.rpartition("/")[2] for group in apart.groups] == ["a", "b", "c", "d", "e"]
    sinks = AllSinks([OneSink(shared, query, None) for query in shared.groups[0]], "state/small_sinks")
    assert isinstance(pickle.loads(pickle.dumps(sinks)), AllSinks)  # our own bytes, as Spark does


def test_changes_are_refused_where_they_could_not_be_applied() -> None:
    delta = {"kind": "delta", "path": "t"}
    assert refusal(sinks=[delta | {"key": []}]) == "sinks[0].key: name at least one column"
    assert refusal(sinks=[delta | {"key": "a b"}]).startswith("sinks[0].key: 'a b' is not a column")
    assert refusal(sinks=[delta | {"key": ["a", ""]}]).startswith("sinks[0].key: '' is not a column")
    assert refusal(sinks=[delta | {"scd": 1}]).startswith("sinks[0].key: scd applies changes by key")
    keyed = delta | {"scd": 2, "key": ["a", "b.c"]}
    assert plan(sinks=[keyed]).queries[0].name == "orders_delta"
    assert "ordered by their position" in refusal(sinks=[keyed | {"newestBy": "a"}])
    assert "cannot be partitioned" in refusal(sinks=[keyed | {"partitionBy": ["a"]}])
    assert "driver is for one key column" in refusal(sinks=[keyed | {"scd": 0, "merge": "driver"}])
    step = {"name": "d", "kind": "decode", "format": "json", "schema": "a int"}
    assert "is for format: debezium" in refusal(steps=[step | {"debezium": {"table": "t"}}])
    assert "leave this out" in refusal(steps=[step | {"format": "debezium", "flatten": True}])


def test_process_that_has_read_a_pipeline_ends_in_order() -> None:
    """A union that msgspec handles incorrectly crashed one process in four at interpreter exit."""
    program = (
        "import msgspec\n"
        "from orbitmq.pipeline import spec\n"
        "msgspec.convert({'name': 'a', 'sources': {}, 'sinks': []}, spec.Pipeline)\n"
    )
    codes = {subprocess.run([sys.executable, "-c", program], check=False).returncode for _ in range(15)}
    assert -11 not in codes
