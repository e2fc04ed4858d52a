"""Tables fed with change events of Debezium, without a broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.pipeline.debezium import decode_changes
from orbitmq.pipeline.lake import BatchKey
from orbitmq.pipeline.lake_delta import DeltaTableWriter
from orbitmq.pipeline.lake_iceberg import IcebergTableWriter
from orbitmq.pipeline.spec import DebeziumOptions, DecodeStep, DeltaSink, IcebergSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOLDEN = Path(__file__).parents[1] / "golden" / "debezium"
_MESSAGES = "body binary, keys string, queue_id int, queue_offset bigint, store_timestamp timestamp"
UNAVAILABLE = "__debezium_unavailable_value"


def recorded(file: str, table: str) -> list[tuple[str | None, str | None]]:
    """Values and keys of the messages of a table."""
    found = [json.loads(line) for line in (GOLDEN / file).read_text("utf-8").splitlines()]
    return [(one["value"], one["key"]) for one in found if one["topic"] == f"shop.public.{table}"]


def event(op: str, lsn: int | None, row: Any, key: Any = None) -> tuple[str | None, str | None]:
    """An event of table ``t`` at a position; the time is that many seconds after 1970."""
    sides = {"before": row if op == "d" else None, "after": None if op in "dt" else row}
    source = {"lsn": lsn, "ts_ms": lsn * 1000 if lsn else None, "table": "t"}
    return json.dumps({**sides, "op": op, "source": source}), None if key is None else json.dumps(key)


def tombstone(key: Any) -> tuple[str | None, str | None]:
    return None, json.dumps(key)


class ChangeTable:
    """A keyed table; every ``feed`` is a micro-batch."""

    def __init__(
        self, spark: SparkSession, path: Path, form: str, columns: str, key: Any, **sink: Any
    ) -> None:
        self._spark = spark
        self._columns = columns
        self._form = form
        self.path = path / "table"
        self.options = DebeziumOptions(units=sink.pop("units", {}), decimals=sink.pop("decimals", "string"))
        common = {"key": key, "scd": 1, **sink}
        self._writer: Any
        if form == "delta":
            self._writer = DeltaTableWriter(DeltaSink(path=str(self.path), **common), str(self.path))
        else:
            properties = {"type": "sql", "uri": f"sqlite:///{path}/c.db", "warehouse": f"file://{path}"}
            where = f"file://{self.path}"
            self._writer = IcebergTableWriter(
                IcebergSink(table="n.t", properties=properties, location=where, **common)
            )
        self._number = -1
        self._offset = 0

    def events(self, messages: list[tuple[str | None, str | None]]) -> DataFrame:
        from orbitmq.pipeline.decode import _json_schema

        rows = []
        for body, key in messages:
            self._offset += 1
            moment = datetime(2026, 11, 18, tzinfo=UTC) + timedelta(seconds=self._offset)
            rows.append((body.encode() if body else b"", key, 0, self._offset, moment))
        frame = self._spark.createDataFrame(rows, _MESSAGES)
        step = DecodeStep(name="d", format="debezium", schema=self._columns, debezium=self.options)
        return decode_changes(frame, step, _json_schema(self._columns, "schema"), "steps[0]")

    def feed(self, *messages: tuple[str | None, str | None], again: bool = False) -> int:
        self._number += 0 if again else 1
        key = BatchKey("q", self._number)
        frame = self.events(list(messages))
        written: int = (
            self._writer.write(frame, key, []) if self._form == "delta" else self._writer.write(frame, key)
        )
        return written

    def arrow(self) -> pa.Table:
        """As readers without Spark see it: deltalake, or pyiceberg without the catalog."""
        from tests.spark.table_kit import read_table

        return read_table(self._form, self.path, "t")

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        found = self.arrow().select(list(columns)).to_pylist()
        return sorted((tuple(row[name] for name in columns) for row in found), key=repr)
