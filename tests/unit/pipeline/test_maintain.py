"""Compacting the files of tables, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from orbitmq.cli.pipeline import pipeline_commands
from orbitmq.pipeline import maintain as module
from orbitmq.pipeline.lake_iceberg import replace_files
from orbitmq.pipeline.maintain import maintain, sinks_of_table
from orbitmq.spark.errors import RunFailed


def rows(start: int) -> Any:
    return pa.table({"id": pa.array([start, start + 1], pa.int64()), "city": [f"c{start}", None]})


def make_delta(path: Path) -> None:
    for start in range(0, 8, 2):
        write_deltalake(str(path), rows(start), mode="append")


def make_iceberg(path: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    path.mkdir()
    where = {"uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
    catalog = load_catalog("default", type="sql", **where)
    catalog.create_namespace("rocketmq")
    table = catalog.create_table("rocketmq.t", rows(0).schema, location=f"file://{path}")
    for start in range(0, 4, 2):
        table.append(rows(start))
    with table.update_schema() as update:
        update.union_by_name(pa.schema([*rows(0).schema, pa.field("more", pa.int32())]))
    for start in range(4, 8, 2):
        table.append(rows(start).append_column("more", pa.array([start, None], pa.int32())))
    return table


def run(*arguments: str) -> Any:
    return CliRunner().invoke(pipeline_commands, ["maintain", *arguments])


def test_files_of_a_delta_table_are_joined_and_old_versions_deleted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make_delta(path)
    assert run(str(path)).output == "table: 4 files joined into 1, 0 files of old versions deleted\n"
    assert run(str(path), "--keep-versions", "0 seconds").output.endswith("4 files of old versions deleted\n")
    table = DeltaTable(str(path))
    assert len(table.file_uris()) == 1
    assert sorted(table.to_pyarrow_table().column("id").to_pylist()) == list(range(8))
    assert run(str(tmp_path / "none")).exit_code == 2


def test_files_of_an_iceberg_table_are_joined_with_columns_that_came_later(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = make_iceberg(path)
    before = table.scan().to_arrow().sort_by("id").to_pylist()
    assert run(str(path)).output == "rocketmq.t: 4 files joined into 1, 0 files of old versions deleted\n"
    table.refresh()
    assert table.scan().to_arrow().sort_by("id").to_pylist() == before
    assert len(list(table.scan().plan_files())) == 1
    assert run(str(path), "--keep-versions", "0 seconds").output.endswith("4 files of old versions deleted\n")
    table.refresh()
    assert table.scan().to_arrow().sort_by("id").to_pylist() == before


def test_files_that_a_stream_replaced_meanwhile_are_not_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    table = make_iceberg(path)
    sink = sinks_of_table(str(path))["rocketmq.t"]
    refused: list[int] = []

    def overtaken(*args: Any) -> None:
        if not refused:
            refused.append(1)
            table.refresh()
            table.delete("id < 2")
        replace_files(*args)

    monkeypatch.setattr(module, "replace_files", overtaken)
    assert maintain(sink, "").removed == 3
    table.refresh()
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == list(range(2, 8))

    def never(*args: Any) -> None:
        from pyiceberg.exceptions import ValidationException

        raise ValidationException("gone")

    for start in (20, 22):
        table.append(rows(start).append_column("more", pa.nulls(2, pa.int32())))
    monkeypatch.setattr(module, "replace_files", never)
    with pytest.raises(RunFailed, match="5 times"):
        maintain(sink, "")
    assert not list(path.glob("data/joined/*.parquet")) or len(list(path.glob("data/joined/*.parquet"))) == 1
