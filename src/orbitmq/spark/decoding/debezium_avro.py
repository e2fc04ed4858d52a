"""Reads Debezium's events in Avro, with Confluent's header and the schemas of a registry.

The registries' converters translate Connect's schemas to Avro and keep Connect's names and parameters
(``connect.name``, ``connect.parameters``). So an event can be translated back to the form it has in JSON with
schemas, and ``debezium.py`` reads both.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from orbitmq.spark.decoding.columns import Writers, inlined
from orbitmq.spark.decoding.debezium_values import BadValue, Node
from orbitmq.spark.decoding.registry import RegisteredSchema, Registry, RegistryAccess, registry_of
from orbitmq.spark.errors import EnvironmentFault, SpecError

__all__ = ["AvroEvents"]

_HEADER_BYTES: Final = 5
_CONNECT: Final = "org.apache.kafka.connect.data."
_TYPES: Final[Mapping[str, str]] = {
    "int": "int32",
    "long": "int64",
    "record": "struct",
    "enum": "string",
    "fixed": "bytes",
}
_LOGICAL: Final[Mapping[str, str]] = {
    "decimal": f"{_CONNECT}Decimal",
    "date": f"{_CONNECT}Date",
    "timestamp-millis": f"{_CONNECT}Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "time-millis": f"{_CONNECT}Time",
    "time-micros": "io.debezium.time.MicroTime",
}
"""For schemas that name a logical type but no schema of Connect."""


class _Writer(NamedTuple):
    """A schema with which events were written."""

    avro: Any
    """For fastavro, without logical types: values stay as they are in the message."""
    node: Node


class AvroEvents:
    """Reads bodies of events. Schemas are requested once per process."""

    def __init__(self, access: RegistryAccess) -> None:
        registry = registry_of(access)
        self._writers = Writers(registry, lambda schema: _writer(registry, schema))

    def learn(self, bodies: Iterable[bytes | None]) -> None:
        """Fetches the schemas that some bodies name. Raises ``RegistryUnavailable``."""
        self._writers.learn(bodies)

    def read(self, body: bytes) -> tuple[Any, Node]:
        """Returns an event as parsed JSON, and its schema. Raises ``ValueError`` for an unreadable body."""
        import fastavro

        writer: _Writer = self._writers.of(body)
        stream = io.BytesIO(body)
        stream.seek(_HEADER_BYTES)
        try:
            value = fastavro.schemaless_reader(stream, writer.avro, None)
        except Exception as error:  # noqa: BLE001  # bytes from anybody: whatever the reader raises is the answer
            raise BadValue(f"not Avro of its schema: {type(error).__name__}: {error}"[:200]) from None
        if stream.tell() != len(body):
            raise BadValue(f"{len(body) - stream.tell()} bytes follow the datum")
        return _as_json(value), writer.node


def _writer(registry: Registry, schema: RegisteredSchema) -> _Writer:
    if schema.form != "AVRO":
        raise SpecError("", f"is {schema.form}, not AVRO")
    try:
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError:
        raise EnvironmentFault("decoding Avro needs fastavro: pip install 'orbitmq[decode]'") from None
    try:
        tree = json.loads(inlined(registry, schema))
        return _Writer(fastavro.parse_schema(_plain(tree)), _node(tree, "", {}))
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SpecError("", f"not an Avro schema: {type(error).__name__} {error}") from error


def _plain(tree: Any) -> Any:
    """Returns the schema without logical types."""
    if isinstance(tree, list):
        return [_plain(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        name: _plain(value) if name in ("type", "items", "values", "fields") else value
        for name, value in tree.items()
        if name != "logicalType"
    }


def _node(tree: Any, space: str, named: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the Connect schema from which an Avro schema was generated."""
    if isinstance(tree, list):
        several = [one for one in tree if one != "null"]
        return _node(several[0], space, named) if len(several) == 1 else {}
    if isinstance(tree, str):
        return named.get(f"{space}.{tree}") or named.get(tree) or {"type": _TYPES.get(tree, tree)}
    kind = tree["type"]
    if not isinstance(kind, str) or kind in named:
        return _node(kind, space, named)
    logical = str(tree.get("logicalType") or "")
    parameters = dict(tree.get("connect.parameters") or {})
    if logical == "decimal":
        parameters["scale"] = tree.get("scale", 0)
    node: dict[str, Any] = {
        "type": _TYPES.get(kind, kind),
        "name": tree.get("connect.name") or _LOGICAL.get(logical),
        "parameters": parameters,
    }
    if kind == "array":
        node["items"] = _node(tree["items"], space, named)
    elif kind == "map":
        node["values"] = _node(tree["values"], space, named)
    elif kind in ("record", "enum", "fixed"):
        name = str(tree.get("name", ""))
        space = name.rpartition(".")[0] or str(tree.get("namespace", space))
        named[name if "." in name or not space else f"{space}.{name}"] = node
        if kind == "record":
            node["fields"] = [
                {**_node(one["type"], space, named), "field": one["name"]} for one in tree["fields"]
            ]
    return node


def _as_json(value: Any) -> Any:
    """Returns a value as Debezium writes it in JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return Decimal(repr(value)) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items()}
    return [_as_json(one) for one in value] if isinstance(value, list) else value
