"""Pipelines over topics, as streams: every message once in every table, also when Spark repeats a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from deltalake import DeltaTable
from tests.spark.pipeline_kit import plan_of, read_all, run_plan, send_all

from orbitmq.client.message import Message
from orbitmq.pipeline.check import analyse
from orbitmq.pipeline.lake_parquet import ParquetTableWriter
from orbitmq.pipeline.preflight import check_servers
from orbitmq.pipeline.status import read_status
from orbitmq.spark.errors import EnvironmentFault, RunFailed
from orbitmq.spark.register import register
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def order(number: int) -> Message:
    body = b"no json" if number % 10 == 9 else json.dumps({"id": number, "amount": number % 10 - 1}).encode()
    return Message("orders", body, keys=f"k{number}", tags="t", properties={"color": "red"})


STEPS: list[dict[str, Any]] = [
    {"name": "parsed", "kind": "decode", "format": "json", "schema": "id int, amount int"},
    {
        "name": "good",
        "kind": "quality",
        "rules": {"readable": "decode_error IS NULL", "positive": "value.amount > 0"},
        "deadLetter": {"topic": "orders_dead"},
    },
    {
        "name": "small",
        "kind": "sql",
        "query": "SELECT topic, msg_id, value.id AS id, store_timestamp FROM good",
    },
]


def good_ids(count: int) -> list[int]:
    return [number for number in range(count) if number % 10 not in (0, 1, 9)]


def test_stream_fills_every_table_once_although_a_batch_is_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    database = f"jdbc:derby:{tmp_path}/derby;create=true"
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty(
        "derby.stream.error.file", f"{tmp_path}/derby.log"
    )  # else in this directory
    sinks = [
        {"name": "delta", "kind": "delta", "path": "delta", "partitionBy": ["topic"]},
        {
            "name": "iceberg",
            "kind": "iceberg",
            "table": "shop.orders",
            "properties": {
                "type": "sql",
                "uri": f"sqlite:///{tmp_path}/catalog.db",
                "warehouse": f"file://{tmp_path}/ice",
            },
        },
        {"name": "database", "kind": "jdbc", "url": database, "table": "orders"},
    ]
    with run_broker() as broker:
        broker.create_topic("orders", queue_count=2)
        broker.create_topic("orders_dead", queue_count=1)
        plan = plan_of(
            tmp_path,
            namesrvAddr=broker.name_server,
            checkpoint="state",
            sources={"orders": {"kind": "topic", "topic": "orders", "startingOffsets": "earliest"}},
            steps=STEPS,
            sinks=sinks,
        )
        check_servers(plan)
        send_all(broker.name_server, [order(number) for number in range(20)])
        first = run_plan(spark, plan)
        assert first.rows("delta") == 14
        assert first.rows("good_dead_letters") == 6
        assert [batch.behind for batch in first.reports["delta"]][-1] == 0
        quality = [batch.quality["good"] for batch in first.reports["delta"] if batch.quality]
        assert sum(one["_rejected"] for one in quality) == 6
        assert sum(one["readable"] for one in quality) == 2
        # Spark does a batch again whose end it did not note: as after a crash right behind the commit of a sink.
        for commits in (tmp_path / "state").glob("*/commits"):
            last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
            last.unlink()
            (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        send_all(broker.name_server, [order(number) for number in range(20, 30)])
        run_plan(spark, plan)
        letters = read_all(broker.name_server, "orders_dead")
    expected = good_ids(30)
    assert sorted(delta_ids(tmp_path)) == expected
    assert sorted(iceberg_ids(tmp_path)) == expected
    rows = spark.read.format("jdbc").options(url=database, dbtable="orders").load().collect()
    assert sorted(row.id for row in rows) == expected
    # A topic has each of them at least once; the ids of the messages tell the copies.
    by_id = {letter.message_id: letter for letter in letters}
    assert len(by_id) == 9
    reasons = sorted(letter.properties["reject_rules"] for letter in by_id.values())
    assert reasons == ["positive"] * 6 + ["readable,positive"] * 3
    one = next(iter(by_id.values()))
    assert (one.properties["color"], one.properties["reject_topic"], one.tags) == ("red", "orders", "t")


def test_transactional_topic_has_each_row_once_although_a_batch_is_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    with run_broker() as broker:
        broker.create_topic("orders", queue_count=2)
        broker.create_topic("copies", queue_count=2)
        plan = plan_of(
            tmp_path,
            namesrvAddr=broker.name_server,
            checkpoint="state",
            sources={"orders": {"kind": "topic", "topic": "orders", "startingOffsets": "earliest"}},
            sinks=[{"name": "copies", "kind": "topic", "topic": "copies", "mode": "transactional"}],
        )
        for numbers in (range(20), range(20, 30)):
            send_all(broker.name_server, [order(number) for number in numbers])
            run_plan(spark, plan)
            if numbers.start == 0:
                last = max((tmp_path / "state" / "copies" / "commits").glob("[0-9]*"))
                last.unlink()  # as after a crash behind the commit of the sink: Spark does the batch again
                (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        copies = read_all(broker.name_server, "copies")
    assert sorted(copy.properties["KEYS"] for copy in copies) == sorted(f"k{number}" for number in range(30))


def test_transactional_topic_with_a_delay_is_refused_before_it_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    plan = plan_of(
        tmp_path,
        namesrvAddr="127.0.0.1:1",
        checkpoint="state",
        sources={"orders": {"kind": "topic", "topic": "orders"}},
        steps=[{"name": "late", "kind": "sql", "query": "SELECT body, 3 AS delay_level FROM orders"}],
        sinks=[{"kind": "topic", "topic": "copies", "mode": "transactional"}],
    )
    [finding] = analyse(spark, plan)
    assert "cannot be used with mode=transactional" in finding.problem


def delta_ids(directory: Path) -> list[int]:
    from deltalake import DeltaTable

    table = DeltaTable(directory / "delta")
    assert table.metadata().partition_columns == ["topic"]
    ids: list[int] = table.to_pyarrow_table().column("id").to_pylist()
    return ids


def iceberg_ids(directory: Path) -> list[int]:
    from pyiceberg.catalog import load_catalog

    properties = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/ice",
    }
    ids: list[int] = (
        load_catalog("default", **properties).load_table("shop.orders").scan().to_arrow()["id"].to_pylist()
    )
    return ids


def test_stream_that_fails_says_why_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with run_broker() as broker:
        broker.create_topic("orders", queue_count=1)
        send_all(broker.name_server, [order(1)])
        plan = plan_of(
            tmp_path,
            namesrvAddr=broker.name_server,
            checkpoint="state",
            sources={"orders": {"kind": "topic", "topic": "orders", "startingOffsets": "earliest"}},
            steps=[
                {
                    "name": "bad",
                    "kind": "sql",
                    "query": "SELECT topic, body, CAST(keys AS INT) AS n FROM orders",
                }
            ],
            sinks=[{"kind": "parquet", "path": "lake"}],
        )
        with pytest.raises(RunFailed) as caught:
            run_plan(spark, plan)
    assert str(caught.value).startswith("sink bad_parquet: ")
    assert "CAST_INVALID_INPUT" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_servers_and_topics_are_looked_at_before_spark_starts(tmp_path: Path) -> None:
    def plan(address: str, topic: str, sink: str) -> Any:
        return plan_of(
            tmp_path,
            namesrvAddr=address,
            checkpoint="state",
            sources={"orders": {"kind": "topic", "topic": topic}},
            sinks=[{"kind": "topic", "topic": sink}],
        )

    with run_broker(autoCreateTopicEnable=False) as broker:
        broker.create_topic("orders", queue_count=1)
        broker.create_topic("out", queue_count=1)
        check_servers(plan(broker.name_server, "orders", "out"))
        with pytest.raises(
            EnvironmentFault, match=r"sources.orders: there is no topic 'ordrs' at 127.0.0.1:\d+"
        ):
            check_servers(plan(broker.name_server, "ordrs", "out"))
        with pytest.raises(EnvironmentFault, match="sink orders_topic: there is no topic 'elsewhere'"):
            check_servers(plan(broker.name_server, "orders", "elsewhere"))
        address = broker.name_server
    with pytest.raises(EnvironmentFault, match=r"sources.orders: .*127.0.0.1"):
        check_servers(plan(address, "orders", "out"))


def test_one_read_feeds_several_sinks_and_one_that_fails_does_not_double_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(spark)
    failures = [OSError("the disk is full")]
    write = ParquetTableWriter.write

    def fails_once(self: ParquetTableWriter, *arguments: Any) -> int:
        if failures:
            raise failures.pop()
        return write(self, *arguments)

    monkeypatch.setattr(ParquetTableWriter, "write", fails_once)
    with run_broker() as broker:
        broker.create_topic("orders", queue_count=2)
        plan = plan_of(
            tmp_path,
            namesrvAddr=broker.name_server,
            checkpoint="state",
            oneRead=True,
            sources={"orders": {"kind": "topic", "topic": "orders", "startingOffsets": "earliest"}},
            sinks=[
                {"name": "delta", "kind": "delta", "path": "delta"},
                {"name": "files", "kind": "parquet", "path": "files"},
                {"name": "shown", "kind": "console"},
            ],
        )
        send_all(broker.name_server, [order(number) for number in range(40)])
        with pytest.raises(RunFailed, match=r"sink delta, files, shown: .*the disk is full"):
            run_plan(spark, plan)
        send_all(broker.name_server, [order(number) for number in range(40, 60)])
        outcome = run_plan(spark, plan)
        status = read_status(str(tmp_path / "state"), broker.name_server)
    for table in (
        DeltaTable(str(tmp_path / "delta")).to_pyarrow_table(),
        spark.read.parquet(f"{tmp_path}/files"),
    ):
        keys = (
            table["keys"].to_pylist()
            if isinstance(table, pa.Table)
            else [row["keys"] for row in table.collect()]
        )
        assert sorted(keys) == sorted(f"k{number}" for number in range(60))
    assert {name: outcome.rows(name) for name in ("delta", "files", "shown")} == dict.fromkeys(
        ("delta", "files", "shown"), 60
    )
    rates = {outcome.reports[name][0].rows_per_second for name in ("delta", "files", "shown")}
    assert len(rates) == 3, "each sink has a rate of its own"
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["orders_sinks"]
    assert [(query.name, query.messages, query.behind) for query in status.queries] == [
        ("orders_sinks", 60, 0)
    ]
