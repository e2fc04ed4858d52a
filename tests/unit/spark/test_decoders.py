"""Avro and Protobuf bodies as Arrow columns, for any bytes."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.spark.decoding.avro import AvroDecoder
from orbitmq.spark.decoding.protobuf import ProtobufDecoder
from orbitmq.spark.errors import SpecError

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {
            "name": "amount",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "other", "type": "shop.State"},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]},
            },
        },
        {"name": "notes", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "number", "type": ["int", "long"]},
        {"name": "trace", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "ratio", "type": "float"},
    ],
}
ROW: dict[str, Any] = {
    "id": "o-1",
    "amount": Decimal("12.50"),
    "at": datetime.datetime(2026, 5, 1, 12, 0, 0, 123000, tzinfo=datetime.UTC),
    "day": datetime.date(2026, 5, 1),
    "state": "PAID",
    "other": "NEW",
    "lines": [{"n": 1}, {"n": 2}],
    "notes": {"a": "b", "c": None},
    "number": 5_000_000_000,
    "trace": "6f1f6f0e-0000-4000-8000-000000000000",
    "mark": b"ab",
    "ratio": 0.5,
}


def avro(value: Any, schema: Any = ORDER) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_avro_of_every_type_becomes_columns_of_its_type() -> None:
    decoder = AvroDecoder(json.dumps(ORDER))
    values, errors = decoder.decode([avro(ROW), avro(ROW | {"amount": None, "number": 3, "lines": []})])
    assert errors.to_pylist() == [None, None]
    first, second = values.to_pylist()
    assert first == ROW | {"notes": [("a", "b"), ("c", None)]}
    assert (second["amount"], second["number"], second["lines"]) == (None, 3, [])
    kinds = {field.name: field.type for field in decoder.arrow_type}
    assert kinds["amount"] == pa.decimal128(9, 2)
    assert kinds["at"] == pa.timestamp("us", tz="UTC")
    assert kinds["number"] == pa.int64()


def test_avro_that_cannot_be_read_is_null_with_a_reason_and_harms_no_other_row() -> None:
    decoder = AvroDecoder(json.dumps(ORDER))
    good = avro(ROW)
    values, errors = decoder.decode([good, good[:-1], b"", None, good + b"x", good])
    assert [value is None for value in values.to_pylist()] == [False, True, True, True, True, False]
    reasons = errors.to_pylist()
    assert reasons[0] is None
    assert reasons[5] is None
    assert reasons[1].startswith("EOFError")
    assert reasons[3] == "no body"
    assert reasons[4] == "ValueError: 1 bytes follow the datum"


def test_avro_value_that_does_not_fit_its_column_spoils_its_own_row() -> None:
    schema = {"type": "record", "name": "A", "fields": [{"name": "n", "type": "int"}]}
    wide = {"type": "record", "name": "A", "fields": [{"name": "n", "type": "long"}]}
    decoder = AvroDecoder(json.dumps(schema))
    values, errors = decoder.decode(
        [avro({"n": 1}, schema), avro({"n": 2**40}, wide), avro({"n": 3}, schema)]
    )
    assert values.to_pylist() == [{"n": 1}, None, {"n": 3}]
    assert errors.to_pylist()[1] is not None


@pytest.mark.parametrize(
    ("framing", "header"), [("confluent", b"\x00\x00\x00\x00\x07"), ("single-object", b"\xc3\x01" + b"f" * 8)]
)
def test_avro_behind_a_header_is_found(framing: str, header: bytes) -> None:
    decoder = AvroDecoder(json.dumps(ORDER), framing)
    values, errors = decoder.decode([header + avro(ROW), avro(ROW), b""])
    assert values.to_pylist()[0]["id"] == "o-1"
    assert values.to_pylist()[1:] == [None, None]
    assert errors.to_pylist()[1].startswith("ValueError: there is no header")


def record(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "the Avro schema is not JSON"),
        (record(["string", "int"]), "a union of int, string: Spark has no such type"),
        (record(["null", "R"]), "R is recursive"),
        (record("Unknown"), "names a type 'Unknown' that it does not define"),
        (record({"type": "array", "items": "null"}), "an array of items without content"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 50}), "a decimal of 50 digits"),
        ("3", "not an Avro schema: 3"),
    ],
)
def test_avro_schema_that_has_no_columns_is_refused(schema: str, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        AvroDecoder(schema)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_avro_of_any_bytes_gives_a_value_or_a_reason_for_each(bodies: list[bytes]) -> None:
    values, errors = AVRO.decode(bodies)
    assert len(values) == len(errors) == len(bodies)
    assert values.is_null().to_pylist() == errors.is_valid().to_pylist()


AVRO = AvroDecoder(json.dumps(ORDER))


# -- Protobuf ------------------------------------------------------------------------------------------


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    """Returns the output of ``protoc --include_imports --descriptor_set_out`` for a file with this content."""
    field = descriptor_pb2.FieldDescriptorProto
    one = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    one.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    one.enum_type.add(name="State").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=n)
            for n, name in enumerate(["NEW", "PAID"])
        ]
    )
    line = one.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    line.field.add(name="n", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    order = one.message_type.add(name="Order")
    order.oneof_decl.add(name="_amount")
    add = order.field.add
    add(name="id", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    add(
        name="amount",
        number=2,
        type=field.TYPE_DOUBLE,
        label=field.LABEL_OPTIONAL,
        proto3_optional=True,
        oneof_index=0,
    )
    add(name="lines", number=3, type=field.TYPE_MESSAGE, type_name=".shop.Line", label=field.LABEL_REPEATED)
    add(name="state", number=4, type=field.TYPE_ENUM, type_name=".shop.State", label=field.LABEL_OPTIONAL)
    add(name="at", number=5, type=field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=1)
    add(name="note", number=6, type=field.TYPE_MESSAGE, type_name=".google.protobuf.StringValue", label=1)
    add(name="total", number=7, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    add(name="raw", number=8, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    add(name="codes", number=9, type=field.TYPE_INT64, label=field.LABEL_REPEATED)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    add(name="counts", number=10, type=field.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=3)
    tree = one.message_type.add(name="Tree")
    tree.field.add(name="children", number=1, type=field.TYPE_MESSAGE, type_name=".shop.Tree", label=3)
    whole = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(whole.file.add())
    whole.file.append(one)
    return whole


SET = descriptor_set()
PROTOBUF = ProtobufDecoder(SET.SerializeToString(), "shop.Order")


def order(**values: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for one in SET.file:
        pool.Add(one)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**values)


def test_protobuf_of_every_type_becomes_columns_of_its_type() -> None:
    full = order(id="o-1", amount=2.5, state=1, total=2**63, raw=b"x", codes=[1, 2], counts={"a": 1})
    full.lines.add(sku="s", n=3)
    full.at.FromJsonString("2026-05-01T12:00:00.123456Z")
    full.note.value = ""
    values, errors = PROTOBUF.decode([full.SerializeToString(), b"", order(state=7).SerializeToString()])
    assert errors.to_pylist() == [None, None, None]
    first, empty, odd = values.to_pylist()
    assert first == {
        "id": "o-1",
        "amount": 2.5,
        "lines": [{"sku": "s", "n": 3}],
        "state": "PAID",
        "at": datetime.datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC),
        "note": "",
        "total": Decimal(2**63),
        "raw": b"x",
        "codes": [1, 2],
        "counts": [("a", 1)],
    }
    assert (empty["id"], empty["amount"], empty["at"], empty["note"], empty["lines"]) == (
        "",
        None,
        None,
        None,
        [],
    )
    assert odd["state"] == "7"


def test_protobuf_that_cannot_be_read_is_null_with_a_reason_and_harms_no_other_row() -> None:
    good = order(id="o-1").SerializeToString()
    values, errors = PROTOBUF.decode([good, b"\xff\xff", None, b"\x0a\x02\xff\xfe", good])
    assert [value is None for value in values.to_pylist()] == [False, True, True, True, False]
    assert errors.to_pylist()[2] == "no body"
    assert "DecodeError" in errors.to_pylist()[1]


@pytest.mark.parametrize(
    ("content", "message", "text"),
    [
        (b"\xff\xff", "shop.Order", "the file is not a descriptor set"),
        (SET.SerializeToString(), "shop.Ordr", r"no message 'shop.Ordr' \(did you mean 'shop.Order'\?\)"),
        (SET.SerializeToString(), "shop.Tree", "message shop.Tree is recursive"),
        (
            descriptor_pb2.FileDescriptorSet(file=[SET.file[2]]).SerializeToString(),
            "shop.Order",
            "the descriptor set is not whole",
        ),
    ],
)
def test_descriptor_set_that_cannot_be_used_is_refused(content: bytes, message: str, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        ProtobufDecoder(content, message)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_protobuf_of_any_bytes_gives_a_value_or_a_reason_for_each(bodies: list[bytes]) -> None:
    values, errors = PROTOBUF.decode(bodies)
    assert values.is_null().to_pylist() == errors.is_valid().to_pylist()
