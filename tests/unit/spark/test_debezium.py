"""Events of Debezium as rows: the recorded ones, and forms of other tables and databases."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest

from orbitmq.spark.decoding.debezium import ChangeDecoder, ChangeForm, position_of
from orbitmq.spark.decoding.debezium_values import Reading

GOLDEN = Path(__file__).parents[2] / "golden" / "debezium"
NTZ, TZ = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
CUSTOMERS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("email", pa.string()),
        ("mail", pa.string()),
        ("balance", pa.decimal128(12, 2)),
        ("vip", pa.bool_()),
        ("changed_at", TZ),
        ("score", pa.int64()),
    ]
)
ORDERS = pa.schema(
    [
        ("region", pa.string()),
        ("no", pa.int64()),
        ("customer", pa.int32()),
        ("amount", pa.decimal128(10, 2)),
        ("placed", NTZ),
    ]
)
KINDS = pa.schema(
    [
        ("id", pa.int32()),
        ("c_smallint", pa.int16()),
        ("c_bigint", pa.int64()),
        ("c_real", pa.float32()),
        ("c_double", pa.float64()),
        ("c_num", pa.decimal128(10, 2)),
        ("c_num_free", pa.string()),
        ("c_bool", pa.bool_()),
        ("c_char", pa.string()),
        ("c_bytea", pa.binary()),
        ("c_date", pa.date32()),
        ("c_time", pa.string()),
        ("c_time3", pa.time64("us")),
        ("c_timetz", pa.string()),
        ("c_ts", NTZ),
        ("c_ts3", NTZ),
        ("c_tstz", TZ),
        ("c_uuid", pa.string()),
        ("c_json", pa.string()),
        ("c_int_arr", pa.list_(pa.int32())),
        ("c_text_arr", pa.list_(pa.string())),
        ("c_num_arr", pa.list_(pa.decimal128(6, 2))),
        ("c_enum", pa.string()),
        ("c_bit1", pa.bool_()),
        ("c_bit8", pa.binary()),
        ("c_point", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
    ]
)
UNITS = {"placed": "ms", "c_time3": "ms", "c_ts": "us", "c_ts3": "ms"}
BASE64 = Reading(units=UNITS, decimals="base64")


def clock(*parts: int) -> datetime:
    """A time without a zone."""
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


def messages(file: str, table: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (GOLDEN / file).read_text("utf-8").splitlines()]
    return [one for one in found if one["topic"] == f"shop.public.{table}"]


def decode(schema: pa.Schema, found: list[dict[str, Any]], form: ChangeForm) -> tuple[list[Any], list[Any]]:
    bodies = [one["value"].encode() if one["value"] is not None else None for one in found]
    rows, errors = ChangeDecoder(schema, form).decode(bodies, [one["key"] for one in found])
    flat = [
        None if one is None else one.pop("row") | {f"_{name}": value for name, value in one.items()}
        for one in rows.to_pylist()
    ]
    return flat, errors.to_pylist()


def one(schema: pa.Schema, value: Any, key: Any = None, **form: Any) -> tuple[Any, Any]:
    text = None if value is None else json.dumps(value)
    message = {"value": text, "key": None if key is None else json.dumps(key)}
    rows, errors = decode(schema, [message], ChangeForm(**form))
    return rows[0], errors[0]


def envelope(op: str = "u", lsn: int = 5, **sides: Any) -> dict[str, Any]:
    return {
        "before": None,
        "after": None,
        "op": op,
        "source": {"lsn": lsn, "ts_ms": 1000, "table": "t"},
    } | sides


def test_recorded_envelopes_without_schemas() -> None:
    form = ChangeForm(reading=BASE64)
    rows, errors = decode(CUSTOMERS, messages("envelope.jsonl", "customers"), form)
    assert set(errors) == {None}
    assert rows[0] == {
        "id": 1,
        "name": "Ada",
        "email": "ada@example.org",
        "mail": None,
        "balance": Decimal("100.50"),
        "vip": True,
        "changed_at": datetime(2026, 11, 18, 10, tzinfo=UTC),
        "score": None,
        "_op": "r",
        "_position": f"{26518352:020d}",
        "_changed_at": datetime(2026, 11, 18, 11, 36, 5, 316378, UTC),
        "_unavailable": [],
    }
    assert [row["_op"] for row in rows].count("d") == 6, "three deletes and their tombstones"
    positions = [row["_position"] for row in rows if row["_position"]]
    assert positions == sorted(positions)
    rows, errors = decode(ORDERS, messages("envelope.jsonl", "orders"), form)
    assert set(errors) == {None}
    assert rows[0]["placed"] == clock(2026, 11, 18, 9, 0, 0, 123000)
    assert rows[1]["amount"] == Decimal("99999999.99")
    assert [row["region"] for row in rows if row["_op"] == "t"] == [None]
    deleted = [(row["region"], row["no"], row["customer"]) for row in rows if row["_op"] == "d"]
    assert deleted[0] == ("EU", 2, None)


@pytest.mark.parametrize("file", ["envelope.jsonl", "envelope_schema.jsonl", "string_modes.jsonl"])
def test_recorded_values_of_every_type(file: str) -> None:
    found = messages(file, "kinds")
    form = ChangeForm(unknown_fields="ignore", reading=BASE64 if file == "envelope.jsonl" else Reading())
    rows, errors = decode(KINDS, found[:1], form)
    assert errors == [None]
    row = rows[0]
    assert row["c_smallint"] == -32768
    assert row["c_bigint"] == 2**63 - 1
    assert row["c_num"] == Decimal("12345678.90")
    assert row["c_num_free"] == "12345678901234567890.123456789"
    assert row["c_char"] == "ab "
    assert row["c_bytea"] == bytes.fromhex("deadbeef00")
    assert row["c_date"] == date(2026, 2, 28)
    assert row["c_time"].startswith("23:59:59.999999") or row["c_time"] == "86399999999"
    assert row["c_time3"].isoformat() == "12:30:00.500000"
    assert row["c_ts"] == clock(2026, 11, 18, 10, 11, 12, 123456)
    assert row["c_ts3"] == clock(2026, 11, 18, 10, 11, 12, 123000)
    assert row["c_tstz"] == datetime(2026, 11, 18, 9, 11, 12, 123456, UTC)
    assert row["c_json"] == '{"a": [1, 2.50, null], "b": "x"}'
    assert row["c_int_arr"] == [1, None, 3]
    assert row["c_text_arr"] == ["a", "b c", None]
    assert row["c_num_arr"] == [Decimal("1.00"), Decimal("-2.50")]
    assert row["c_bit1"] is True
    assert row["c_point"] == {"x": 1.5, "y": -2.0}


def test_every_recorded_message_is_a_change_or_passed_over() -> None:
    columns = pa.schema([("id", pa.int64())])
    for file in sorted(GOLDEN.glob("*.jsonl")):
        found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        rows, errors = decode(columns, found, ChangeForm(unknown_fields="ignore"))
        assert set(errors) == {None}, file.name
        for message, row in zip(found, rows, strict=True):
            if "public" not in message["topic"]:
                assert row is None or message["value"] is None, message


def test_deletes_take_their_key_from_the_message_where_before_has_none() -> None:
    columns = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())])
    for before in (None, {"a": 1, "b": None, "c": None}):
        row, error = one(columns, envelope("d", before=before), {"a": 1, "b": "x"})
        assert error is None
        assert (row["_op"], row["a"], row["b"], row["c"]) == ("d", 1, "x", None)
    _, error = one(columns, envelope("d"))
    assert error == "the delete names no row: before is null and the message has no key"
    schema = {"type": "struct", "fields": [{"type": "int64", "field": "a"}]}
    row, _ = one(columns, {"schema": None, "payload": None}, {"schema": schema, "payload": {"a": 7}})
    assert (row["_op"], row["a"], row["_position"]) == ("d", 7, None)


def test_values_of_a_deleted_row_outside_of_its_key_do_not_matter() -> None:
    columns = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    row, error = one(columns, envelope("d", before={"id": 1, "day": -2147472692}))
    assert error is None
    assert (row["id"], row["day"]) == (1, None)


def test_flattened_records_without_an_order_are_refused() -> None:
    columns = pa.schema([("id", pa.int64())])
    _, error = one(columns, {"id": 1, "__op": "u", "__deleted": "false", "__source_ts_ms": 5})
    assert error is not None
    assert "no field that orders it" in error
    assert "add.fields=op,lsn" in error
    row, error = one(columns, {"id": 1, "__op": "u", "__v": 7}, order_by=("__v",))
    assert (row["_position"], error) == (f"{7:020d}", None)
    row, _ = one(columns, {"id": 1, "__source_lsn": 9, "__deleted": "true"})
    assert (row["_op"], row["_position"]) == ("d", f"{9:020d}")


def test_values_that_did_not_change_are_named() -> None:
    columns = pa.schema(
        [("id", pa.int64()), ("t", pa.string()), ("b", pa.binary()), ("a", pa.list_(pa.string()))]
    )
    gone = "__debezium_unavailable_value"
    raw = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    row, error = one(columns, envelope(after={"id": 1, "t": gone, "b": raw, "a": [gone]}))
    assert error is None
    assert row["_unavailable"] == ["t", "b", "a"]
    assert (row["t"], row["b"], row["a"]) == (None, None, None)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (pa.decimal128(12, 2), "J0I=", "decimal.handling.mode=string"),
        (pa.decimal128(12, 2), "1.005", "more than 2 digits"),
        (pa.decimal128(4, 2), "100", "does not fit into decimal(4,2)"),
        (pa.decimal128(4, 2), "NAN", "has no decimal"),
        (NTZ, 1794992400123, "unknown unit"),
        (NTZ, "-0043-03-15T12:00:00Z", "years 1 to 9999"),
        (pa.date32(), -2147472692, "years 1 to 9999"),
        (pa.int32(), 2**31, "does not fit into 32 bits"),
        (pa.int32(), 1.5, "not an integer"),
        (pa.bool_(), "x", "not a boolean"),
        (pa.list_(pa.int32()), 5, "not a JSON array"),
    ],
)
def test_values_that_could_be_read_wrong_are_refused(kind: pa.DataType, value: Any, problem: str) -> None:
    _, error = one(pa.schema([("v", kind)]), envelope(after={"v": value}))
    assert error is not None
    assert error.startswith("column v: ")
    assert problem in error


def test_schemas_in_messages_decide_the_meaning() -> None:
    def typed(name: str, kind: pa.DataType, value: Any, **more: Any) -> Any:
        node = {"type": "int64", "field": "v", "name": name} | more
        after = {"type": "struct", "field": "after", "fields": [node]}
        event = {"schema": {"type": "struct", "fields": [after]}, "payload": envelope(after={"v": value})}
        row, error = one(pa.schema([("v", kind)]), event)
        assert error is None, error
        return row["v"]

    day = clock(2026, 11, 18)
    seconds = int(day.replace(tzinfo=UTC).timestamp())
    for name, factor in (("Timestamp", 10**3), ("MicroTimestamp", 10**6), ("NanoTimestamp", 10**9)):
        assert typed(f"io.debezium.time.{name}", NTZ, seconds * factor) == day
        assert typed(f"io.debezium.time.{name}", pa.string(), seconds * factor) == "2026-11-18T00:00:00"
    connect = "org.apache.kafka.connect.data"
    assert typed(f"{connect}.Timestamp", TZ, seconds * 1000) == day.replace(tzinfo=UTC)
    assert typed(f"{connect}.Date", pa.date32(), 20775) == day.date()
    assert typed(f"{connect}.Time", pa.string(), 3_723_004) == "01:02:03.004000"
    assert typed("io.debezium.time.NanoTime", pa.time64("us"), 1_000_000_000).isoformat() == "00:00:01"
    scale = {"scale": "2"}
    assert typed(
        f"{connect}.Decimal", pa.decimal128(5, 2), "J0I=", type="bytes", parameters=scale
    ) == Decimal("100.50")
    assert typed(f"{connect}.Decimal", pa.string(), "/w==", type="bytes", parameters=scale) == "-0.01"
    assert typed("io.debezium.time.Year", pa.int32(), 2026) == 2026


def test_unknown_fields_stop_or_are_ignored() -> None:
    columns = pa.schema([("id", pa.int64())])
    event = envelope(after={"id": 1, "new": 2})
    assert "field 'new' that the schema does not have" in one(columns, event)[1]
    assert one(columns, event, unknown_fields="ignore")[1] is None


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"file": "binlog.000009", "pos": 999, "row": 9}, {"file": "binlog.000010", "pos": 4, "row": 0}),
        ({"file": "binlog.000010", "pos": 4, "row": 0}, {"file": "binlog.000010", "pos": 4, "row": 1}),
        ({"scn": "999"}, {"scn": "990", "commit_scn": "1001", "ssn": 0}),
        (
            {"commit_lsn": "00000027:00000758:0005"},
            {"commit_lsn": "00000027:00000758:0006", "change_lsn": "0"},
        ),
        ({"sequence": '[null,"99"]', "lsn": None}, {"sequence": '["99","100"]', "lsn": 100}),
        ({"ts_ms": 5, "ord": 9}, {"ts_ms": 5, "ord": 10}),
    ],
)
def test_positions_sort_like_the_source(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    first, second = position_of(earlier, None), position_of(later, None)
    assert first is not None
    assert second is not None
    assert first < second
    assert position_of(later, {"total_order": 9}) < position_of(later, {"total_order": 10})  # type: ignore[operator]


def test_events_of_other_tables_are_passed_over() -> None:
    columns = pa.schema([("id", pa.int64())])
    event = envelope(after={"id": 1})
    assert one(columns, event, table="t")[0]["id"] == 1
    assert one(columns, event, table="other") == (None, None)
