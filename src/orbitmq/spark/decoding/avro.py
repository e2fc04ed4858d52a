"""Decodes Avro bodies into Arrow columns with ``fastavro``. An unreadable body becomes null, and its error is in a
second column."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.spark.errors import EnvironmentFault, SpecError

__all__ = ["AvroDecoder"]

_SIMPLE: Final = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _MICROSECONDS,
    ("long", "timestamp-micros"): _MICROSECONDS,
}
_DECIMAL_DIGITS_MAX: Final = 38
_CONFLUENT_HEADER_BYTES: Final = 5  # a zero byte and the schema id
_SINGLE_OBJECT_MARK: Final = b"\xc3\x01"
_SINGLE_OBJECT_HEADER_BYTES: Final = 10  # the marker and a fingerprint of the schema
_WIDENED: Final = (
    ({"int", "long"}, "long"),
    ({"float", "double"}, "double"),
    ({"int", "float"}, "double"),
    ({"int", "double"}, "double"),
)


class AvroDecoder:
    """Decodes data written with one schema. Raises ``SpecError`` for a schema that Spark columns cannot express."""

    def __init__(self, schema: str, framing: str = "none") -> None:
        try:
            import fastavro
            from fastavro.schema import SchemaParseException, UnknownType
        except ImportError:
            raise EnvironmentFault("decoding Avro needs fastavro: pip install 'orbitmq[decode]'") from None
        try:
            tree = json.loads(schema)
        except ValueError as error:
            raise SpecError("", f"the Avro schema is not JSON: {error}") from error
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        clean, self.arrow_type = self._walk(tree, "")
        try:
            self._schema = fastavro.parse_schema(clean)
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
            raise SpecError("", f"not an Avro schema: {type(error).__name__} {error}") from error
        self._read = fastavro.schemaless_reader
        self._framing = framing

    def _walk(self, node: Any, space: str) -> tuple[Any, pa.DataType]:
        """Returns the schema without the logical types that Spark lacks, and the type of its data."""
        if isinstance(node, list):
            return self._union(node, space)
        if isinstance(node, str):
            if node in _SIMPLE:
                return node, _SIMPLE[node]
            full = node if "." in node or not space else f"{space}.{node}"
            if full in self._open:
                raise SpecError("", f"the Avro schema {full} is recursive; Spark has no recursive types")
            for name in (full, node):
                if name in self._named:
                    return name, self._named[name]
            raise SpecError("", f"the Avro schema names a type {node!r} that it does not define")
        if not isinstance(node, dict) or "type" not in node:
            raise SpecError("", f"not an Avro schema: {json.dumps(node)[:80]}")
        kind = node["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_name(node, space)
        if kind == "array":
            items, inner = self._walk(node.get("items"), space)
            _refuse_empty(items)
            return {"type": "array", "items": items}, pa.list_(pa.field("element", inner))
        if kind == "map":
            values, inner = self._walk(node.get("values"), space)
            return {"type": "map", "values": values}, pa.map_(pa.string(), inner)
        if not isinstance(kind, str) or kind not in _SIMPLE:
            return self._walk(kind, space)
        logical = str(node.get("logicalType"))
        if logical == "decimal" and kind == "bytes":
            return node, _decimal(node)
        if (kind, logical) in _LOGICAL:
            return node, _LOGICAL[kind, logical]
        return kind, _SIMPLE[kind]

    def _of_name(self, node: dict[str, Any], space: str) -> tuple[Any, pa.DataType]:
        name = str(node.get("name", ""))
        space = name.rpartition(".")[0] or str(node.get("namespace", space))
        full = name if "." in name or not space else f"{space}.{name}"
        clean = {**node, "name": full}
        clean.pop("namespace", None)
        if node["type"] == "enum":
            self._named[full] = pa.string()
        elif node["type"] == "fixed":
            decimal = node.get("logicalType") == "decimal"
            if not decimal:
                clean.pop("logicalType", None)
            self._named[full] = _decimal(node) if decimal else pa.binary()
        else:
            self._open.append(full)
            fields, columns = [], []
            for field in node.get("fields") or []:
                inner, arrow = self._walk(field.get("type"), space)
                fields.append({**field, "type": inner})
                columns.append(pa.field(field["name"], arrow))
            self._open.pop()
            clean["fields"] = fields
            self._named[full] = pa.struct(columns)
        return clean, self._named[full]

    def _union(self, nodes: list[Any], space: str) -> tuple[Any, pa.DataType]:
        walked = [self._walk(one, space) for one in nodes]
        clean = [one for one, _ in walked]
        kinds = {_kind(one): arrow for one, arrow in walked if one != "null"}
        if not kinds:
            return clean, pa.string()
        if len({str(arrow) for arrow in kinds.values()}) == 1:
            return clean, next(iter(kinds.values()))
        for members, wide in _WIDENED:
            if set(kinds) == members:
                return clean, _SIMPLE[wide]
        raise SpecError(
            "", f"the Avro schema has a union of {', '.join(sorted(kinds))}: Spark has no such type"
        )

    def _datum(self, body: bytes) -> bytes:
        if self._framing == "confluent":
            if len(body) < _CONFLUENT_HEADER_BYTES or body[0] != 0:
                raise ValueError("there is no header with a schema id before the datum")
            return body[_CONFLUENT_HEADER_BYTES:]
        if self._framing == "single-object":
            if len(body) < _SINGLE_OBJECT_HEADER_BYTES or body[:2] != _SINGLE_OBJECT_MARK:
                raise ValueError("there is no header with the fingerprint of a schema before the datum")
            return body[_SINGLE_OBJECT_HEADER_BYTES:]
        return body

    def _one(self, body: bytes) -> Any:
        datum = self._datum(body)
        stream = io.BytesIO(datum)
        value = self._read(stream, self._schema, None)
        if stream.tell() != len(datum):
            raise ValueError(f"{len(datum) - stream.tell()} bytes follow the datum")
        return value

    def decode(self, bodies: Iterable[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns a column of values and a column of errors. In each row exactly one of them is null."""
        values: list[Any] = []
        errors: list[str | None] = []
        for body in bodies:
            try:
                values.append(self._one(body) if body is not None else None)
                errors.append(None if body is not None else "no body")
            except Exception as error:  # noqa: BLE001  # bytes from anybody: whatever the reader raises is the answer
                values.append(None)
                errors.append(f"{type(error).__name__}: {error}"[:200])
        try:
            column = pa.array(values, self.arrow_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # One value does not fit its column (an int beyond 32 bits). Find it and keep the others.
            for number, value in enumerate(values):
                try:
                    pa.array([value], self.arrow_type)
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    values[number] = None
                    errors[number] = f"{type(error).__name__}: {error}"[:200]
            column = pa.array(values, self.arrow_type)
        return column, pa.array(errors, pa.string())


def _decimal(node: dict[str, Any]) -> pa.DataType:
    precision, scale = int(node.get("precision", 0)), int(node.get("scale", 0))
    if not 1 <= precision <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        raise SpecError(
            "",
            f"the Avro schema has a decimal of {precision} digits; 1 to {_DECIMAL_DIGITS_MAX} are supported",
        )
    return pa.decimal128(precision, scale)


def _kind(node: Any) -> str:
    return str(node if isinstance(node, str) else node.get("name") or node["type"])


def _refuse_empty(items: Any) -> None:
    """Rejects arrays of zero-byte items, with which a body of ten bytes could claim 2**60 items."""
    if items == "null" or (isinstance(items, dict) and items["type"] == "record" and not items["fields"]):
        raise SpecError("", "the Avro schema has an array of items without content")
