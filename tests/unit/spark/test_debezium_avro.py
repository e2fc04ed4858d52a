"""Debezium's events in Avro of a registry mean what the same events mean in JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from tests.spark.registry_kit import RegistryStub, framed, run_registry
from tests.unit.spark.test_debezium import CUSTOMERS, KINDS, ORDERS, messages

from orbitmq.spark.decoding import registry as registry_module
from orbitmq.spark.decoding.debezium import ChangeDecoder, ChangeForm
from orbitmq.spark.decoding.debezium_values import PLACEHOLDER
from orbitmq.spark.decoding.registry import RegistryAccess, RegistryUnavailable

_AVRO = {"int32": "int", "int16": "int", "int64": "long", "struct": "record"}


@pytest.fixture
def stub() -> Iterator[RegistryStub]:
    with run_registry() as running:
        yield running


def avro_schema(node: dict[str, Any], seen: dict[str, int]) -> Any:
    """Returns a Connect schema as registry converters write it."""
    kind: Any = _AVRO.get(node["type"], node["type"])
    found: dict[str, Any] = {"type": kind}
    if node.get("name"):
        found["connect.name"] = node["name"]
    if node.get("parameters"):
        found["connect.parameters"] = node["parameters"]
    if node.get("name") == "org.apache.kafka.connect.data.Decimal":
        scale = int(node["parameters"]["scale"])
        found |= {"logicalType": "decimal", "scale": scale, "precision": 64}
    if kind == "record":
        name = node.get("name") or "Struct"
        if name in seen:
            return [name, "null"] if node.get("optional") else name
        seen[name] = 1
        found["name"] = name
        found["fields"] = [
            {"name": one["field"], "type": avro_schema(one, seen)} for one in node.get("fields", ())
        ]
    elif kind == "array":
        found["items"] = avro_schema(node["items"], seen)
    elif kind == "map":
        found["values"] = avro_schema(node["values"], seen)
    return ["null", found] if node.get("optional") else found


def avro_value(value: Any, node: dict[str, Any]) -> Any:
    """Returns the value in the converter's representation."""
    if value is None:
        return None
    if node["type"] == "bytes":
        return base64.b64decode(value)
    if node["type"] == "struct":
        return {one["field"]: avro_value(value.get(one["field"]), one) for one in node["fields"]}
    if node["type"] == "array":
        return [avro_value(one, node["items"]) for one in value]
    return value


def body(stub: RegistryStub, node: dict[str, Any], value: Any) -> bytes:
    schema = avro_schema(node, {})
    number = stub.register("events-value", json.dumps(schema))
    clean = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(clean), avro_value(value, node))
    return framed(number, stream.getvalue())


def decoder(stub: RegistryStub, columns: pa.Schema) -> ChangeDecoder:
    return ChangeDecoder(
        columns, ChangeForm(unknown_fields="ignore", registry=RegistryAccess.parse(stub.url))
    )


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("customers", CUSTOMERS),
        ("orders", ORDERS),
        ("kinds", KINDS),
    ],
)
def test_recorded_envelopes_are_the_same_in_avro(stub: RegistryStub, table: str, columns: pa.Schema) -> None:
    found = [json.loads(one["value"]) for one in messages("envelope_schema.jsonl", table) if one["value"]]
    assert found
    wanted, errors = ChangeDecoder(columns, ChangeForm(unknown_fields="ignore")).decode(
        [json.dumps(one).encode() for one in found], [None] * len(found)
    )
    assert set(errors.to_pylist()) == {None}
    bodies = [body(stub, one["schema"], one["payload"]) for one in found]
    rows, errors = decoder(stub, columns).decode(bodies, [None] * len(bodies))
    assert set(errors.to_pylist()) == {None}
    assert rows.to_pylist() == wanted.to_pylist()


def flattened(stub: RegistryStub, **changes: Any) -> bytes:
    event = json.loads(messages("envelope_schema.jsonl", "customers")[0]["value"])
    node = next(one for one in event["schema"]["fields"] if one["field"] == "after")
    extra = {"__deleted": "string", "__op": "string", "__lsn": "int64", "__source_ts_ms": "int64"}
    fields = [*node["fields"], *({"type": kind, "field": name} for name, kind in extra.items())]
    value = event["payload"]["after"] | {
        "__deleted": "false",
        "__op": "u",
        "__lsn": 7,
        "__source_ts_ms": 1000,
    }
    return body(stub, node | {"fields": fields, "optional": False}, value | changes)


def test_flattened_records_deletes_and_unavailable_values(stub: RegistryStub) -> None:
    bodies = [
        flattened(stub),
        flattened(stub, __deleted="true", __op="d", __lsn=8),
        flattened(stub, name=PLACEHOLDER, __lsn=9),
        None,
    ]
    rows, errors = decoder(stub, CUSTOMERS).decode(bodies, [None, None, None, '{"id": 4}'])
    assert set(errors.to_pylist()) == {None}
    update, delete, kept, tombstone = rows.to_pylist()
    assert (update["op"], update["position"], update["row"]["id"]) == ("u", f"{7:020d}", 1)
    assert (delete["op"], delete["row"]["id"]) == ("d", 1)
    assert (kept["unavailable"], kept["row"]["name"]) == (["name"], None)
    assert (tombstone["op"], tombstone["row"]["id"]) == ("d", 4)


def test_bodies_that_cannot_be_read_have_a_reason_and_a_registry_that_is_down_stops(
    stub: RegistryStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = flattened(stub)
    text = stub.register("text", '{"type": "object"}', "JSON")
    bodies = [b"{}", framed(9999, b"x"), framed(text, b"x"), good[:-3], good + b"!", good]
    _, errors = decoder(stub, CUSTOMERS).decode(bodies, [None] * len(bodies))
    *bad, none = errors.to_pylist()
    assert none is None
    for error, part in zip(bad, ("header", "schema 9999", "JSON", "not Avro", "1 bytes follow"), strict=True):
        assert part in error, (error, part)
    monkeypatch.setattr(registry_module, "PAUSES_S", ())
    registry_module.registry_of.cache_clear()
    stub.failing = 10
    with pytest.raises(RegistryUnavailable):
        decoder(stub, CUSTOMERS).decode([good], [None])
