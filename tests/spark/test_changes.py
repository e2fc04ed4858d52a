"""Tables of changes: the recorded events and hard orders of events, compared by readers without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.change_kit import UNAVAILABLE, ChangeTable, event, recorded, tombstone
from tests.spark.pipeline_kit import plan_of, run_plan, send_all
from tests.spark.table_kit import read_table

from orbitmq.client.message import Message
from orbitmq.pipeline import deleted
from orbitmq.pipeline.check import analyse
from orbitmq.spark.errors import RunFailed
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

CUSTOMERS = (
    "id int, name string, email string, mail string, balance decimal(12,2), vip boolean, "
    "changed_at timestamp, score bigint"
)
ORDERS = "region string, no bigint, customer int, amount decimal(10,2), placed timestamp_ntz"


def at(second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


@pytest.mark.parametrize(("form", "file"), [("delta", "envelope.jsonl"), ("iceberg", "flattened.jsonl")])
def test_recorded_events_make_the_table_of_the_database(
    spark: SparkSession, tmp_path: Path, form: str, file: str
) -> None:
    table = ChangeTable(spark, tmp_path, form, CUSTOMERS, "id", decimals="base64")
    found = recorded(file, "customers")
    table.feed(*found[:12])
    table.feed(*found[12:])
    table.feed(*found[:9])  # sent again
    kept = datetime(2026, 11, 18, 10, tzinfo=UTC)
    expected = [
        (1, "Ada", "ada@example.org", Decimal("101.75"), 5_000_000_000, kept + timedelta(seconds=2)),
        (2, "back again", None, Decimal("5.00"), None, kept),
        (3, "Cyrus II", None, Decimal("0.00"), 10, kept),
    ]
    columns = ("id", "name", "email", "balance", "score", "changed_at")
    assert table.rows(*columns) == expected
    (tmp_path / "orders").mkdir()
    orders = ChangeTable(
        spark, tmp_path / "orders", form, ORDERS, ["region", "no"], decimals="base64", units={"placed": "ms"}
    )
    orders.feed(*recorded(file, "orders"))
    gone = [] if file == "envelope.jsonl" else [("EU", 1, Decimal("13.37")), ("UK", 2, Decimal("0.01"))]
    assert orders.rows("region", "no", "amount") == sorted([*gone, ("EU", 3, Decimal("1.00"))])


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_late_repeated_and_missing_pieces_change_nothing_wrong(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    table = ChangeTable(spark, tmp_path, form, "id int, a string, big string", "id")
    table.feed(
        event("c", 10, {"id": 1, "a": "x", "big": "B"}), event("c", 11, {"id": 2, "a": "y", "big": "C"})
    )
    table.feed(event("u", 20, {"id": 1, "a": "z", "big": UNAVAILABLE}))
    assert table.rows("id", "a", "big") == [(1, "z", "B"), (2, "y", "C")]
    late = event("u", 15, {"id": 1, "a": "late", "big": "L"})
    table.feed(late, late)
    assert table.rows("id", "a", "big") == [(1, "z", "B"), (2, "y", "C")]
    table.feed(event("d", 30, None, {"id": 2}), tombstone({"id": 2}))
    assert table.rows("id") == [(1,)]
    table.feed(event("u", 25, {"id": 2, "a": "ghost", "big": "G"}), tombstone({"id": 77}))
    assert table.rows("id") == [(1,)], "a late event brings no deleted row back"
    table.feed(event("c", 40, {"id": 2, "a": "again", "big": "D"}))
    table.feed(tombstone({"id": 1}))
    assert table.rows("id", "a") == [(2, "again")]
    # The key of a row changes, and its large value is not sent.
    table.feed(event("d", 50, {"id": 2}), event("c", 50, {"id": 3, "a": "moved", "big": UNAVAILABLE}))
    table.feed(event("u", 60, {"id": 3, "a": "moved on", "big": UNAVAILABLE}))
    assert table.rows("id", "a", "big") == [(3, "moved on", "D")]
    with pytest.raises(Exception, match="did not change and was not sent"):
        table.feed(event("u", 70, {"id": 99, "a": "?", "big": UNAVAILABLE}))
    assert table.rows("id", "a", "big") == [(3, "moved on", "D")]


def test_truncate_deletes_what_was_before_it(spark: SparkSession, tmp_path: Path) -> None:
    table = ChangeTable(spark, tmp_path, "delta", "id int, a string", "id")
    table.feed(*(event("c", number, {"id": number, "a": "x"}) for number in range(1, 6)))
    table.feed(
        event("c", 20, {"id": 20, "a": "after"}),
        event("t", 10, None),
        event("u", 9, {"id": 5, "a": "before"}),
    )
    assert table.rows("id", "a") == [(20, "after")]
    table.feed(
        event("u", 8, {"id": 4, "a": "late"}),
        event("c", 21, {"id": 4, "a": "new"}),
        event("u", 7, {"id": 3, "a": "-"}),
    )
    assert table.rows("id", "a") == [(20, "after"), (4, "new")]


def test_deleted_keys_are_kept_in_few_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted, "_FILES_MAX", 1)
    table = ChangeTable(spark, tmp_path, "delta", "id int, a string", "id")
    for number in range(1, 5):
        table.feed(event("d", number * 10, {"id": number}))
    assert len(list((table.path / deleted.DIRECTORY).rglob("*.parquet"))) == 2, "one joined, one of the batch"
    table.feed(*(event("u", 5, {"id": number, "a": "late"}) for number in range(1, 6)))
    assert table.rows("id") == [(5,)]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_history_keeps_every_version_in_the_order_of_the_source(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    table = ChangeTable(spark, tmp_path, form, "id int, a string", "id", scd=2)
    first = [event("c", 10, {"id": 1, "a": "one"}), event("u", 20, {"id": 1, "a": "two"})]
    table.feed(*first)
    table.feed(event("d", 40, {"id": 1}), tombstone({"id": 1}), event("c", 50, {"id": 1, "a": "four"}))
    table.feed(*first)  # again
    table.feed(event("u", 30, {"id": 1, "a": "three"}))  # late
    columns = ("a", "_valid_from", "_valid_to")
    expected: list[tuple[Any, ...]] = [
        ("four", at(50), None),
        ("one", at(10), at(20)),
        ("three", at(30), at(40)),
        ("two", at(20), at(30)),
    ]
    assert table.rows(*columns) == expected
    table.feed(
        event("t", 60, None), event("c", 5, {"id": 2, "a": "old"}), event("c", 70, {"id": 3, "a": "new"})
    )
    assert table.rows(*columns) == sorted(
        [("four", at(50), at(60)), *expected[1:], ("old", at(5), at(60)), ("new", at(70), None)], key=repr
    )


def test_events_that_cannot_be_applied_stop_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    table = ChangeTable(spark, tmp_path, "delta", "id int, a string", "id")
    with pytest.raises(RunFailed, match="no field that orders it"):
        table.feed(('{"id": 1, "a": "x", "__op": "u"}', None))
    with pytest.raises(RunFailed, match="no value for the key id"):
        table.feed(event("c", 1, {"a": "x"}))
    with pytest.raises(RunFailed, match="field 'b' that the schema does not have"):
        table.feed(event("c", 1, {"id": 1, "b": 1}))


def test_nested_keys_and_new_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = ChangeTable(spark, tmp_path, "delta", "id struct<a: int, b: string>, v int", ["id.a", "id.b"])
    one, two = {"a": 1, "b": "x"}, {"a": 1, "b": "y"}
    table.feed(event("c", 1, {"id": one, "v": 1}), event("c", 2, {"id": two, "v": 2}))
    table.feed(event("u", 3, {"id": one, "v": 3}), event("d", 4, {"id": two}))
    assert table.rows("id", "v") == [(one, 3)]
    table._columns = "id struct<a: int, b: string>, v bigint, w string"
    table.feed(
        event("u", 5, {"id": one, "v": 2**40, "w": "new"}), event("c", 6, {"id": two, "v": 1, "w": None})
    )
    assert table.rows("id", "v", "w") == [(one, 2**40, "new"), (two, 1, None)]


def test_a_pipeline_keeps_rows_and_history_of_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    events = recorded("envelope.jsonl", "customers")
    with run_broker() as broker:
        topic = broker.create_topic("shop_customers", queue_count=1)
        sent = [Message(topic, body.encode(), keys=key or "") for body, key in events if body]
        send_all(broker.name_server, sent)
        plan = plan_of(
            tmp_path,
            namesrvAddr=broker.name_server,
            checkpoint="state",
            oneRead=True,
            sources={"events": {"kind": "topic", "topic": topic, "startingOffsets": "earliest"}},
            steps=[
                {
                    "name": "changes",
                    "kind": "decode",
                    "format": "debezium",
                    "schema": CUSTOMERS,
                    "debezium": {"decimals": "base64", "table": "public.customers"},
                }
            ],
            sinks=[
                {"kind": "delta", "name": "present", "path": "present", "key": "id", "scd": 1},
                {"kind": "delta", "name": "history", "path": "history", "key": ["id"], "scd": 2},
            ],
        )
        assert analyse(spark, plan) == []
        run_plan(spark, plan)
    present = read_table("delta", tmp_path / "present", "").to_pylist()
    assert sorted(row["name"] for row in present) == ["Ada", "Cyrus II", "back again"]
    history = read_table("delta", tmp_path / "history", "").to_pylist()
    assert sorted(row["name"] for row in history if row["_valid_to"] is None) == [
        "Ada",
        "Cyrus II",
        "back again",
    ]
    versions = [(row["email"], row["mail"]) for row in history if row["id"] == 3]
    assert len(versions) == 5, "one of the snapshot, four updates"
