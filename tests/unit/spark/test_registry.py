"""Schemas of a registry, and bodies that refer to them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.spark.registry_kit import RegistryStub, framed, run_registry

from orbitmq.errors import ConfigError
from orbitmq.spark.decoding.columns import RegistryAvro, RegistryProtobuf, message_indexes
from orbitmq.spark.decoding.json_schema import columns_of
from orbitmq.spark.decoding.registry import (
    Registry,
    RegistryAccess,
    RegistryError,
    RegistryUnavailable,
    SchemaNotFound,
)
from orbitmq.spark.errors import SpecError


@pytest.fixture
def stub() -> Iterator[RegistryStub]:
    with run_registry() as running:
        yield running


def registry(stub: RegistryStub, **settings: Any) -> Registry:
    return Registry(RegistryAccess.parse(stub.url, **settings), (0, 0, 0))


def record(*fields: tuple[str, Any], **more: Any) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": listed, **more})


def avro(schema: str, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), value)
    return stream.getvalue()


def test_address_with_user_is_split_and_kept_out_of_texts(stub: RegistryStub) -> None:
    access = RegistryAccess.parse("https://me:p%40ss@[::1]:8081/api/")
    assert (access.url, access.user, access.password) == ("https://[::1]:8081/api", "me", "p@ss")
    assert "p@ss" not in repr(access)
    for wrong in ("localhost:8081", "ftp://host", "http://"):
        with pytest.raises(ConfigError, match="http://host:port"):
            RegistryAccess.parse(wrong)
    with pytest.raises(ConfigError, match="both a user and a token"):
        RegistryAccess.parse("http://me:x@host", token="t")
    stub.register("a", '"string"')
    registry(stub, token="secret").latest("a")
    Registry(RegistryAccess.parse(stub.url.replace("//", "//me:pw@"))).latest("a")
    assert stub.authorizations == {"Bearer secret", "Basic bWU6cHc="}


def test_ids_are_asked_for_once_and_the_latest_every_time(stub: RegistryStub) -> None:
    number = stub.register("orders/äö value", '"string"')
    found = registry(stub)
    assert found.by_id(number) == found.by_id(number)
    assert found.latest("orders/äö value").schema_id == number
    again = stub.register("orders/äö value", '"int"')
    assert (found.latest("orders/äö value").schema_id, found.latest("orders/äö value").version) == (again, 2)
    assert [one.text for one in found.versions("orders/äö value")] == ['"string"', '"int"']
    assert sum("schemas/ids" in path for path in stub.asked) == 1


def test_registry_that_is_away_for_a_while_is_asked_again_and_then_named(stub: RegistryStub) -> None:
    stub.register("a", '"string"')
    stub.failing = 1
    assert registry(stub).latest("a").form == "AVRO"
    stub.failing = 100
    with pytest.raises(RegistryUnavailable, match="503 leader is elected"):
        registry(stub).latest("a")
    stub.failing = 0
    with pytest.raises(SchemaNotFound, match="404 Schema not found"):
        registry(stub).by_id(7)
    stub.register("xml", "<a/>", "XSD")
    with pytest.raises(RegistryError, match="type XSD; AVRO, JSON and PROTOBUF"):
        registry(stub).latest("xml")
    with pytest.raises(RegistryUnavailable, match=r"no schema from http://127\.0\.0\.1:9/"):
        Registry(RegistryAccess.parse("http://127.0.0.1:9", timeout_s=0.2), (0,)).latest("a")


def test_avro_of_every_version_is_read_into_the_latest_columns(stub: RegistryStub) -> None:
    first = record(("id", "long"), ("gone", "string"))
    second = record(("id", "long"))
    second = json.dumps(
        {
            **json.loads(second),
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "note", "type": ["null", "string"], "default": None},
            ],
        }
    )
    one, two = stub.register("orders-value", first), stub.register("orders-value", second)
    found = registry(stub)
    decoder = RegistryAvro(found, found.latest("orders-value"))
    values, errors = decoder.decode(
        [
            framed(one, avro(first, {"id": 1, "gone": "x"})),
            framed(two, avro(second, {"id": 2, "note": "new"})),
            None,
            b"",
            b"\0\0",
            b"\1\0\0\0\0x",
            framed(999, b"x"),
            framed(two, avro(second, {"id": 3, "note": None}) + b"more"),
        ]
    )
    assert values.to_pylist() == [{"id": 1, "note": None}, {"id": 2, "note": "new"}] + [None] * 6
    texts = errors.to_pylist()
    assert texts[:3] == [None, None, "no body"]
    assert all("no header" in str(text) for text in texts[3:6])
    assert "schema 999" in texts[6]
    assert "4 bytes follow" in texts[7]
    # A schema id registered later is found then; known ids are not queried again.
    asked = len(stub.asked)
    decoder.decode([framed(one, b"\2\0"), framed(two, b"\2\0")])
    assert len(stub.asked) == asked
    stub.failing = 100
    with pytest.raises(RegistryUnavailable):
        decoder.decode([framed(998, b"x")])


def test_avro_types_of_other_subjects_are_taken_in(stub: RegistryStub) -> None:
    inner = json.dumps({"type": "enum", "name": "Color", "namespace": "shop", "symbols": ["RED", "BLUE"]})
    stub.register("color", inner)
    outer = record(("id", "int"), ("front", "shop.Color"), ("back", "Color"))
    references = [{"name": "shop.Color", "subject": "color", "version": 1}]
    number = stub.register("car", outer, references=references)
    found = registry(stub)
    values, errors = RegistryAvro(found, found.latest("car")).decode([framed(number, b"\2\0\2")])
    assert (values.to_pylist(), errors.to_pylist()) == ([{"id": 1, "front": "RED", "back": "BLUE"}], [None])


IMPORTED = """
syntax = "proto3";
package shop;
message Money { int64 cents = 1; }
"""
ORDER = """
syntax = "proto3";
package shop;
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
message Other { string name = 1; }
message Order {
  message Line { int32 count = 1; }
  int64 id = 1;
  Money total = 2;
  google.protobuf.Timestamp at = 3;
}
"""


def compiled(texts: dict[str, str], name: str) -> descriptor_pb2.FileDescriptorSet:
    """Returns the schema that a registry would serve, built by the real compiler."""
    import tempfile
    from pathlib import Path

    import grpc_tools  # type: ignore[import-untyped]  # no types of its own
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as work:
        for file, text in texts.items():
            place = Path(work) / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        include = Path(grpc_tools.__file__).parent / "_proto"
        arguments = [f"-I{work}", f"-I{include}", f"--descriptor_set_out={work}/out", "--include_imports"]
        assert protoc.main(["protoc", *arguments, f"{work}/{name}"]) == 0
        return descriptor_pb2.FileDescriptorSet.FromString((Path(work) / "out").read_bytes())


@pytest.mark.parametrize("compiles", [True, False])
def test_protobuf_of_a_registry_is_read_with_what_it_imports(stub: RegistryStub, compiles: bool) -> None:
    stub.compiles = compiles
    files = compiled({"shop/money.proto": IMPORTED, "order.proto": ORDER}, "order.proto")
    by_name = {one.name: one for one in files.file}
    stub.register("money", IMPORTED, "PROTOBUF", compiled=by_name["shop/money.proto"].SerializeToString())
    references = [{"name": "shop/money.proto", "subject": "money", "version": 1}]
    main = by_name["order.proto"].SerializeToString()
    number = stub.register("orders-value", ORDER, "PROTOBUF", references, main)
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(id=7)
    order.total.cents = 995
    order.at.seconds = 1
    content = order.SerializeToString()
    found = registry(stub)
    decoder = RegistryProtobuf(found, found.latest("orders-value"), "shop.Order")
    values, errors = decoder.decode(
        [
            framed(number, b"\2\2" + content),
            framed(number, b"\0"),
            framed(number, b"\4\2\0"),
            framed(number, b"\2\x12"),
            framed(number, b"\2"),
            framed(number, b"\xff\xff\xff\xff\xff\xff"),
            framed(12345, b"\0"),
            content,
        ]
    )
    row = values.to_pylist()[0]
    assert (row["id"], row["total"], row["at"].timestamp()) == (7, {"cents": 995}, 1.0)
    texts = errors.to_pylist()
    assert "shop.Other, not shop.Order" in texts[1]
    assert "shop.Order.Line, not shop.Order" in texts[2]
    assert "no message at 9" in texts[3]
    assert "truncated" in texts[4]
    assert "too long" in texts[5]
    assert "schema 12345" in texts[6]
    assert texts[7] is not None
    assert RegistryProtobuf(found, found.latest("orders-value"), "")._name == "shop.Other"


def test_message_indexes_of_the_first_message_are_one_zero() -> None:
    assert message_indexes(b"\0\0\0\0\1\0x") == ((0,), 6)
    assert message_indexes(b"\0\0\0\0\1\4\2\0x") == ((1, 0), 8)
    with pytest.raises(ValueError, match="header lists"):
        message_indexes(b"\0\0\0\0\1\1x")


def test_json_schema_becomes_columns() -> None:
    schema = {
        "$defs": {"Line": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        "definitions": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Node"}}}},
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["null", "number"]},
            "ok": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
            "a`b": {"type": "string", "format": "date-time"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "free": {"type": "object"},
            "either": {"type": ["integer", "string"]},
            "node": {"$ref": "#/definitions/Node"},
            "true": True,
        },
    }
    assert columns_of(json.dumps(schema)) == (
        "`id` BIGINT, `price` DOUBLE, `ok` BOOLEAN, `a``b` STRING, `lines` ARRAY<STRUCT<`n`: BIGINT>>, "
        "`labels` MAP<STRING, STRING>, `free` STRING, `either` STRING, `node` STRUCT<`next`: STRING>, `true` STRING"
    )
    for wrong in ('{"type": "string"}', "nothing", '{"$ref": "#/x"}', "[]"):
        with pytest.raises(SpecError):
            columns_of(wrong)
