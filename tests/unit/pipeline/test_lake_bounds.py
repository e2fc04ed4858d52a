"""Column bounds from the footers of files, as stored in Delta's log."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # the same
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction

from orbitmq.pipeline.lake import Bounds, column_bounds, written_files

AT = datetime(2026, 5, 1, 12, 0, 0, 123456, UTC)


def bounds_of(path: Path, table: pa.Table, **settings: Any) -> Bounds:
    pq.write_table(table, path / "rows.parquet", **settings)
    return column_bounds(pq.read_metadata(path / "rows.parquet"))


def test_bounds_hold_every_value_over_all_row_groups(tmp_path: Path) -> None:
    table = pa.table(
        {
            "number": pa.array([5, None, -3, 9], pa.int32()),
            "amount": pa.array([1.5, 2.5, None, None]),
            "text": ["b", "a", "c", None],
            "day": [date(2026, 5, 2), date(2026, 5, 1), None, None],
            "at": pa.array([AT] * 4, pa.timestamp("us", "UTC")),
            "empty": pa.array([None] * 4, pa.string()),
        }
    )
    low, high, nulls = bounds_of(tmp_path, table, row_group_size=2)
    assert low == {
        "number": -3,
        "amount": 1.5,
        "text": "a",
        "day": "2026-05-01",
        "at": "2026-05-01T12:00:00.123Z",
    }
    assert high == {
        "number": 9,
        "amount": 2.5,
        "text": "c",
        "day": "2026-05-02",
        "at": "2026-05-01T12:00:00.124Z",
    }
    assert nulls == {"number": 1, "amount": 2, "text": 1, "day": 2, "at": 0, "empty": 4}


def test_what_has_no_order_or_form_in_the_log_has_no_bounds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "flag": [True, False],
            "body": [b"a", b"b"],
            "price": [Decimal("1.10"), Decimal("2.20")],
            "local": pa.array([AT.replace(tzinfo=None)] * 2, pa.timestamp("us")),
            "long": ["x" * 65, "a"],
            "nested": [{"a": 1}, {"a": 2}],
            "several": [[1], [2, 3]],
        }
    )
    low, high, nulls = bounds_of(tmp_path, table)
    assert low == high == {}
    assert nulls["flag"] == nulls["long"] == 0
    assert bounds_of(tmp_path, pa.table({f"c{n}": [n] for n in range(40)})).low == {
        f"c{n}": n for n in range(32)
    }


def test_a_delta_table_with_bounds_gives_the_rows_of_a_filter(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), Schema.from_json(SCHEMA))
    for number in range(3):
        rows = pa.table(
            {
                "id": [10 * number, 10 * number + 9],
                "at": pa.array([AT.replace(minute=number)] * 2, pa.timestamp("us", "UTC")),
            }
        )
        (tmp_path / "data" / str(number)).mkdir(parents=True)
        pq.write_table(rows, tmp_path / "data" / str(number) / "rows.parquet")
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            path=f"data/{file.path}",
            size=file.size_bytes,
            partition_values={},
            modification_time=file.modified_ms,
            data_change=True,
            stats=json.dumps(
                {
                    "numRecords": file.row_count,
                    "minValues": file.bounds.low,
                    "maxValues": file.bounds.high,
                    "nullCount": file.bounds.nulls,
                }
            ),
        )
        for file in written_files(str(tmp_path / "data"))
    ]
    table.create_write_transaction(actions, "append", table.schema(), [])
    table = DeltaTable(str(tmp_path))
    # deltalake relies on the bounds when it reads with a filter.
    found = table.to_pyarrow_table(filters=[("at", "=", AT.replace(minute=1))])
    assert sorted(found["id"].to_pylist()) == [10, 19]
    flat = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    assert sorted(flat["min.id"]) == [0, 10, 20]
    assert sorted(flat["max.id"]) == [9, 19, 29]


SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
        ],
    }
)
