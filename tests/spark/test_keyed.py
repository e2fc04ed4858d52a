"""Rows replaced by key on the executors, beside other writers of the table."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.table_kit import read_table

from orbitmq.pipeline import lake_delta, lake_iceberg
from orbitmq.pipeline.keyed import replace_rows
from orbitmq.pipeline.lake import BatchKey
from orbitmq.pipeline.lake_delta import DeltaTableWriter
from orbitmq.pipeline.lake_iceberg import IcebergTableWriter
from orbitmq.pipeline.maintain import maintain_delta, maintain_iceberg
from orbitmq.pipeline.spec import DeltaSink, IcebergSink
from orbitmq.spark.errors import RunFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]
ROWS = "id long, region string, n int"


class Keyed:
    def __init__(self, spark: SparkSession, path: Path, form: str, key: Any, **sink: Any) -> None:
        self.spark, self.form, self.path = spark, form, path / "table"
        common = {"key": key, "newest_by": "n", "merge": "executors", **sink}
        self.writer: Any
        if form == "delta":
            self.sink: Any = DeltaSink(path=str(self.path), **common)
            self.writer = DeltaTableWriter(self.sink, str(self.path))
        else:
            properties = {"type": "sql", "uri": f"sqlite:///{path}/c.db", "warehouse": f"file://{path}"}
            where = f"file://{self.path}"
            self.sink = IcebergSink(table="n.t", properties=properties, location=where, **common)
            self.writer = IcebergTableWriter(self.sink)
        self.number = -1

    def feed(self, *rows: tuple[Any, ...]) -> int:
        self.number += 1
        return self.write(self.number, *rows)

    def write(self, number: int, *rows: tuple[Any, ...]) -> int:
        frame = self.spark.createDataFrame(list(rows), ROWS)
        key = BatchKey("q", number)
        found: int = (
            self.writer.write(frame, key, []) if self.form == "delta" else self.writer.write(frame, key)
        )
        return found

    def maintain(self) -> Any:
        return (
            maintain_delta(self.sink, str(self.path)) if self.form == "delta" else maintain_iceberg(self.sink)
        )

    def rows(self) -> list[tuple[Any, ...]]:
        found = read_table(self.form, self.path, "t").to_pylist()
        return sorted((row["id"], row["region"], row["n"]) for row in found)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_rows_are_replaced_by_a_key_of_two_columns(spark: SparkSession, tmp_path: Path, form: str) -> None:
    table = Keyed(spark, tmp_path, form, ["id", "region"])
    table.feed((1, "EU", 1), (1, "US", 1), (2, "EU", 1), (2, "EU", 2))
    assert table.rows() == [(1, "EU", 1), (1, "US", 1), (2, "EU", 2)]
    table.feed((1, "EU", 5), (2, "EU", 1), (3, "EU", 1))
    expected = [(1, "EU", 5), (1, "US", 1), (2, "EU", 2), (3, "EU", 1)]
    assert table.rows() == expected, "an older row replaces nothing"
    table.write(1, (9, "EU", 9))
    assert table.rows() == expected, "a batch that was committed is not written again"
    with pytest.raises(RunFailed, match="a row has no 'id', 'region'"):
        table.feed((None, "EU", 5))


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_commit_over_compacted_files_is_refused_and_planned_again(
    spark: SparkSession, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Keyed(spark, tmp_path, form, "id")
    for number in range(4):
        table.feed((number * 10, "EU", 1), (number * 10 + 1, "EU", 1))
    module = lake_delta if form == "delta" else lake_iceberg
    plans: list[Any] = []

    def compacted_meanwhile(*args: Any) -> Any:
        found = replace_rows(*args)
        if not plans:
            assert table.maintain().removed == 4
        plans.append(found)
        return found

    monkeypatch.setattr(module, "replace_rows", compacted_meanwhile)
    assert table.feed((1, "EU", 2), (20, "EU", 2)) == 2
    assert len(plans) == 2, "the first plan names files that are gone"
    expected = [(0, "EU", 1), (1, "EU", 2), (10, "EU", 1), (11, "EU", 1)]
    expected += [(20, "EU", 2), (21, "EU", 1), (30, "EU", 1), (31, "EU", 1)]
    assert table.rows() == expected


def test_files_without_keys_of_the_batch_stay(spark: SparkSession, tmp_path: Path) -> None:
    table = Keyed(spark, tmp_path, "delta", "id")
    table.feed((1, "EU", 1))
    table.feed((100, "EU", 1))
    from deltalake import DeltaTable

    before = set(DeltaTable(str(table.path)).file_uris())
    table.feed((100, "EU", 2))
    assert len(before & set(DeltaTable(str(table.path)).file_uris())) == 1


def test_large_tables_and_batches_go_to_the_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Keyed(spark, tmp_path, "delta", "id", merge="auto")
    used: list[int] = []

    def noted(*args: Any) -> Any:
        used.append(1)
        return replace_rows(*args)

    monkeypatch.setattr(lake_delta, "replace_rows", noted)
    table.feed((1, "EU", 1))
    assert not used
    monkeypatch.setattr(lake_delta, "BATCH_ROWS_MAX", 1)
    table.feed((1, "EU", 2), (2, "EU", 2))
    assert len(used) == 1
    monkeypatch.setattr(lake_delta, "_DRIVER_BYTES_MAX", 0)
    table.feed((2, "EU", 3))
    assert len(used) == 2
    assert table.rows() == [(1, "EU", 2), (2, "EU", 3)]


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_maintain_beside_100_batches_loses_and_revives_nothing(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    table = Keyed(spark, tmp_path, form, "id")
    table.feed((0, "EU", 0))
    over = threading.Event()
    joined: list[int] = []
    failures: list[BaseException] = []

    def keep_joining() -> None:
        try:
            while not over.wait(0.5):
                joined.append(table.maintain().removed)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    thread = threading.Thread(target=keep_joining)
    thread.start()
    expected = {0: 0}
    try:
        for number in range(1, 101):
            rows = {(number * step) % 40: number for step in (1, 7, 13)}
            table.feed(*[(key, "EU", value) for key, value in rows.items()])
            expected |= rows
    finally:
        over.set()
        thread.join(120)
    assert not failures
    assert sum(joined), "maintain has found files to join"
    assert table.rows() == sorted((key, "EU", value) for key, value in expected.items())
