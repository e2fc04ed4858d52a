"""Topics as tables: columns that change, rows that are replaced, files that are joined; read by other engines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from tests.spark.pipeline_kit import Outcome, send_all
from tests.spark.registry_kit import framed, run_registry
from tests.spark.table_kit import read_table

from orbitmq.client.message import Message
from orbitmq.pipeline.load import parse_pipeline
from orbitmq.pipeline.plan import make_plan
from orbitmq.pipeline.run import run_stream
from orbitmq.pipeline.table import TableRequest, table_document
from orbitmq.spark.errors import PipelineError
from orbitmq.spark.register import register
from orbitmq.testing import RunningBroker, run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


class Table:
    """The table command inside this process: each run reads what is there and ends."""

    def __init__(
        self, spark: SparkSession, broker: RunningBroker, path: Path, form: str, **more: Any
    ) -> None:
        register(spark)
        self._spark = spark
        self._path = path
        self._form = form
        self._server = broker.name_server
        self._more = {"partition": "none", **more}
        self.topic = broker.create_topic(f"{form}-{path.name}", queue_count=2)

    def send(self, *rows: dict[str, Any]) -> None:
        send_all(self._server, [Message(self.topic, json.dumps(row).encode(), keys="k") for row in rows])

    def run(self, ddl: str = "", **more: Any) -> Outcome:
        if ddl:
            schema = self._path / "rows.ddl"
            schema.write_text(ddl)
            more["schema"] = str(schema)
        request = TableRequest(
            topic=self.topic,
            form=self._form,
            path=str(self._path / "table"),
            name_servers=self._server,
            **{**self._more, **more},
        )
        plan = make_plan(parse_pipeline(table_document(request), {}, {}), self._path)
        outcome = Outcome()
        run_stream(self._spark, plan, outcome.view, outcome.report, threading.Event(), once=True)
        return outcome

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        """As DuckDB reads them."""
        messages = read_table(self._form, self._path / "table", self.topic)
        with duckdb.connect() as engine:
            engine.register("messages", messages)
            return engine.execute(f"SELECT {columns} FROM messages ORDER BY ALL").fetchall()


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_columns_are_added_and_widened_and_everything_else_stops(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, form: str
) -> None:
    table = Table(spark, broker, tmp_path, form, partition="day")
    table.send({"id": 1, "n": 10}, {"id": 2, "n": 20})
    table.run("id int, n int")
    table.send({"id": 3, "n": 3_000_000_000, "city": "Ulm"})
    table.run("id int, n bigint, city string")
    expected = [(1, 10, None), (2, 20, None), (3, 3_000_000_000, "Ulm")]
    assert table.rows("id, n, city") == expected
    table.send({"id": 4, "n": 4, "city": "Bonn"})
    with pytest.raises(PipelineError, match=r"column 'id' is int in the table and string in the rows"):
        table.run("id string, n bigint, city string")
    with pytest.raises(PipelineError, match="lack column 'city'"):
        table.run("id int, n bigint")
    assert table.rows("id, n, city") == expected, "a refused batch leaves the table as it was"
    table.run("id int, n int, city string")  # the batch that was refused, now with columns that fit
    assert table.rows("id, n, city") == [*expected, (4, 4, "Bonn")]
    assert table.rows("count(DISTINCT date)") in ([(1,)], [(2,)])


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_rows_with_a_key_are_replaced_in_a_table_whose_columns_changed(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, form: str
) -> None:
    table = Table(spark, broker, tmp_path, form, key="id")
    table.send({"id": 1, "n": 10}, {"id": 2, "n": 20})
    table.run("id int, n int")
    table.send({"id": 2, "n": 21, "city": "Ulm"}, {"id": 3_000_000_000, "n": 30, "city": "Bonn"})
    table.run("id bigint, n int, city string")
    assert table.rows("id, n, city") == [(1, 10, None), (2, 21, "Ulm"), (3_000_000_000, 30, "Bonn")]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_the_newest_row_of_a_key_stays_and_small_files_are_joined(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, form: str
) -> None:
    table = Table(
        spark, broker, tmp_path, form, key="id", compact_every="1 millisecond", keep_versions="1 millisecond"
    )
    table.send(*({"id": number, "n": number} for number in range(4)), {"id": 1, "n": 100})
    outcome = table.run("id int, n int")
    assert [sum(batch.rows for batch in batches) for batches in outcome.reports.values()] == [4], "not 5"
    assert table.rows("id, n") == [(0, 0), (1, 100), (2, 2), (3, 3)]
    table.send({"id": 2, "n": 200}, {"id": 7, "n": 7}, {"id": 2, "n": 201})
    table.run("id int, n int")
    expected = [(0, 0), (1, 100), (2, 201), (3, 3), (7, 7)]
    assert table.rows("id, n") == expected
    assert len(list((tmp_path / "table").rglob("*.parquet"))) <= 3, "files of old versions are gone"
    table.send({"n": 9})
    with pytest.raises(PipelineError, match="a row has no 'id', which is the key"):
        table.run("id int, n int")
    assert table.rows("id, n") == expected


def test_plain_files_hold_whole_batches_with_all_columns_of_a_message(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    table = Table(spark, broker, tmp_path, "parquet", partition="hour")
    table.send(*({"id": number} for number in range(5)))
    table.run()
    table.send({"id": 5})
    table.run()
    table.run()
    path = tmp_path / "table"
    with duckdb.connect() as engine:
        found = engine.execute(
            f"SELECT CAST(decode(body) AS JSON) ->> 'id', keys, topic, date = CAST(store_timestamp AS DATE) "
            f"FROM read_parquet('{path}/**/*.parquet', hive_partitioning = true) ORDER BY 1"
        ).fetchall()
    assert [row[0] for row in found] == list("012345")
    assert {row[1:3] for row in found} == {("k", table.topic)}
    assert spark.read.parquet(str(path)).count() == 6
    table.send({"id": 6})
    with pytest.raises(PipelineError, match="lack column 'topic'"):
        table.run("id int")


def test_message_columns_are_the_same_for_every_form(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    for form in ("delta", "iceberg"):
        (tmp_path / form).mkdir()
        table = Table(spark, broker, tmp_path / form, form, partition="hour")
        table.send({"id": 1}, {"id": 2})
        table.run()
        assert table.rows("decode(body), properties['KEYS'][1], keys, topic") == [
            ('{"id": 1}', "k", "k", table.topic),
            ('{"id": 2}', "k", "k", table.topic),
        ]


def test_messages_that_do_not_fit_go_to_the_dead_letters(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    table = Table(spark, broker, tmp_path, "delta", key="id", dead_letter="table-dead")
    broker.create_topic("table-dead", queue_count=1)
    table.send({"id": 1, "n": 1}, {"n": 2}, {"id": "x", "n": 3})
    outcome = table.run("id int, n int")
    assert table.rows("id, n") == [(1, 1)]
    assert outcome.rows("checked_dead_letters") == 2


def test_bodies_are_decoded_by_a_registry_and_its_next_version_adds_a_column(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    table = Table(spark, broker, tmp_path, "delta")
    field: dict[str, Any] = {"name": "id", "type": "int"}
    note = {"name": "note", "type": ["null", "string"], "default": None}

    def send(number: int, *rows: bytes) -> None:
        send_all(broker.name_server, [Message(table.topic, framed(number, row)) for row in rows])

    with run_registry() as registry:
        subject = f"{table.topic}-value"
        first = registry.register(subject, json.dumps({"type": "record", "name": "R", "fields": [field]}))
        send(first, b"\x02", b"\x04")  # 1 and 2, as Avro writes them
        table.run(schema=registry.url)
        second = registry.register(
            subject, json.dumps({"type": "record", "name": "R", "fields": [field, note]})
        )
        send(first, b"\x06")
        send(second, b"\x08\x02\x02x")
        table.run(schema=registry.url)
        assert table.rows("id, note") == [(1, None), (2, None), (3, None), (4, "x")]
        with pytest.raises(PipelineError, match="unknown"):
            table.run(schema=registry.url, subject="unknown")
    with pytest.raises(PipelineError, match="registry"):
        table.run(schema=registry.url)
