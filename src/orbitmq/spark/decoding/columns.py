"""``decode(frame, registry, subject=...)`` decodes bodies with Confluent's header into columns.

A body begins with a zero byte and a schema id of four bytes. The columns are those of the subject's latest version
when the query is planned. Bodies written with other versions are converted by the rules of their format (Avro's
schema resolution, Protobuf's field numbers, names in JSON).
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.errors import ConfigError
from orbitmq.spark.decoding.avro import AvroDecoder
from orbitmq.spark.decoding.json_schema import columns_of
from orbitmq.spark.decoding.proto_files import descriptor_set, message_at
from orbitmq.spark.decoding.protobuf import ProtobufDecoder
from orbitmq.spark.decoding.registry import (
    RegisteredSchema,
    Registry,
    RegistryAccess,
    SchemaNotFound,
    registry_of,
)
from orbitmq.spark.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Writers", "decode", "inlined"]

_HEADER_BYTES: Final = 5
_MISSING: Final = "there is no header with a schema id before the content"
_DECODED: Final = "_orbitmq_decoded"
_CORRUPT: Final = "_orbitmq_corrupt"
_DECODERS_MAX: Final = 32
_INDEXES_MAX: Final = 64


def decode(
    frame: DataFrame,
    registry: str | RegistryAccess,
    *,
    subject: str,
    column: str = "body",
    into: str = "value",
    errors: str = "decode_error",
    message: str = "",
) -> DataFrame:
    """Returns ``frame`` with two more columns: ``into`` has the decoded value of ``column``, and ``errors`` has the
    error.

    In each row one of the two is null. ``message`` names the Protobuf message; if it is empty, the first one of the
    schema is used. Raises ``ConfigError`` for columns and schemas that do not match, and ``RegistryError`` if the
    registry has no answer.
    """
    access = RegistryAccess.parse(registry) if isinstance(registry, str) else registry
    kinds = dict(frame.dtypes)
    if kinds.get(column) != "binary":
        raise ConfigError(f"column {column!r} is {kinds.get(column, 'not there')}; binary can be decoded")
    for name in (into, errors):
        if name in kinds:
            raise ConfigError(f"the frame has a column {name!r} already")
    schema = registry_of(access).latest(subject)
    if message and schema.form != "PROTOBUF":
        raise ConfigError(f"{subject} is {schema.form}: only Protobuf schemas hold several messages")
    try:
        if schema.form == "JSON":
            return _json(frame, schema, column, into, errors)
        return _arrow(frame, (access, schema, message), column, into, errors)
    except SpecError as error:
        raise ConfigError(f"{subject}: {error.problem}") from error


# -- Avro and Protobuf, in Arrow batches on the executors ----------------------------------------------


class Writers:
    """A cache of the schemas with which bodies were written. Each schema is requested once."""

    def __init__(self, registry: Registry, make: Callable[[RegisteredSchema], Any]) -> None:
        self._registry = registry
        self._make = make
        self._known: dict[int, Any] = {}
        self._problems: dict[int, str] = {}
        """Problems of the current batch. Not kept, because a missing schema may be registered later."""

    def learn(self, bodies: Iterable[bytes | None]) -> None:
        """Fetches the schemas that some bodies name. Raises ``RegistryUnavailable`` if that fails for reasons
        unrelated to the bodies."""
        self._problems = {}
        heads = {body[:_HEADER_BYTES] for body in bodies if body is not None and body[:1] == b"\0"}
        for head in heads:
            schema_id = int.from_bytes(head[1:], "big")
            if len(head) < _HEADER_BYTES or schema_id in self._known:
                continue
            try:
                self._known[schema_id] = self._make(self._registry.by_id(schema_id))
            except (SchemaNotFound, SpecError) as error:
                self._problems[schema_id] = str(error)

    def of(self, body: bytes) -> Any:
        """Returns the object created from the schema that a body names. Raises ``ValueError`` if there is none."""
        if len(body) < _HEADER_BYTES or body[0] != 0:
            raise ValueError(_MISSING)
        schema_id = int.from_bytes(body[1:_HEADER_BYTES], "big")
        if schema_id not in self._known:
            raise ValueError(f"schema {schema_id}: {self._problems.get(schema_id)}")
        return self._known[schema_id]


class RegistryAvro(AvroDecoder):
    """Decodes data written with any registered schema, and converts it to one of them."""

    def __init__(self, registry: Registry, schema: RegisteredSchema) -> None:
        super().__init__(inlined(registry, schema))
        self._writers = Writers(registry, lambda one: self._parsed_writer(registry, one))

    @staticmethod
    def _parsed_writer(registry: Registry, schema: RegisteredSchema) -> Any:
        if schema.form != "AVRO":
            raise SpecError("", f"is {schema.form}, not AVRO")
        return AvroDecoder(inlined(registry, schema))._schema

    def _one(self, body: bytes) -> Any:
        writer = self._writers.of(body)
        stream = io.BytesIO(body)
        stream.seek(_HEADER_BYTES)
        value = self._read(stream, writer, self._schema)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the datum")
        return value

    def decode(self, bodies: Iterable[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns values and errors like any Avro decoder. Raises ``RegistryUnavailable``."""
        listed = list(bodies)
        self._writers.learn(listed)
        return super().decode(listed)


class RegistryProtobuf(ProtobufDecoder):
    """Decodes one message type, written with any version of its schema."""

    def __init__(self, registry: Registry, schema: RegisteredSchema, message: str) -> None:
        files = descriptor_set(registry, schema)
        self._name = message or message_at(files, (0,))
        super().__init__(files, self._name)
        self._writers = Writers(registry, lambda one: self._files_of(registry, one))
        self._names: dict[tuple[bytes, tuple[int, ...]], str] = {}

    @staticmethod
    def _files_of(registry: Registry, schema: RegisteredSchema) -> bytes:
        if schema.form != "PROTOBUF":
            raise SpecError("", f"is {schema.form}, not PROTOBUF")
        return descriptor_set(registry, schema)

    def _parsed(self, body: bytes) -> Any:
        path, start = message_indexes(body)
        key = (self._writers.of(body), path)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = message_at(*key)
        if name != self._name:
            raise ValueError(f"the message is {name}, not {self._name}")
        return super()._parsed(body[start:])

    def decode(self, bodies: Iterable[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns values and errors like any Protobuf decoder. Raises ``RegistryUnavailable``."""
        listed = list(bodies)
        self._writers.learn(listed)
        return super().decode(listed)


def message_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the index path of a Protobuf body's message within its schema, and where the message begins in the
    body. Raises ``ValueError``.

    After the header comes the number of indexes and then the indexes, as zigzag varints. A single zero means the
    first message.
    """
    count, at = _zigzag(body, _HEADER_BYTES)
    if not 0 <= count <= _INDEXES_MAX:
        raise ValueError(f"the header lists {count} message numbers")
    found = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        found.append(index)
    return tuple(found) or (0,), at


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        if at >= len(body):
            raise ValueError("the list of message numbers is truncated")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise ValueError("a message number is too long")


def inlined(registry: Registry, schema: RegisteredSchema) -> str:
    """Returns an Avro schema with referenced definitions inlined where they are first named."""
    if not schema.references:
        return schema.text
    definitions: dict[str, Any] = {}
    pending = list(schema.references)
    seen: set[tuple[str, int]] = set()
    while pending:
        name, subject, version = pending.pop()
        if (subject, version) in seen:
            continue
        seen.add((subject, version))
        found = registry.version(subject, version)
        definitions[name] = json.loads(found.text)
        pending += found.references
    return json.dumps(_replaced(json.loads(schema.text), "", definitions))


def _replaced(node: Any, space: str, definitions: dict[str, Any]) -> Any:
    if isinstance(node, str):
        for name in (f"{space}.{node}", node):
            if name in definitions:
                return _replaced(definitions.pop(name), "", definitions)
        return node
    if isinstance(node, list):
        return [_replaced(one, space, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("name", ""))
    space = name.rpartition(".")[0] or str(node.get("namespace", space))
    clean = dict(node)
    for part in ("type", "items", "values"):
        if part in node:
            clean[part] = _replaced(node[part], space, definitions)
    if isinstance(node.get("fields"), list):
        clean["fields"] = [
            {**one, "type": _replaced(one.get("type"), space, definitions)} for one in node["fields"]
        ]
    return clean


_Key = tuple[RegistryAccess, RegisteredSchema, str]


@functools.lru_cache(_DECODERS_MAX)
def _decoder(
    access: RegistryAccess, schema: RegisteredSchema, message: str
) -> RegistryAvro | RegistryProtobuf:
    """Returns the decoder of a schema. It is created once in each Python worker, which Spark keeps from batch to
    batch."""
    registry = registry_of(access)
    if schema.form == "AVRO":
        return RegistryAvro(registry, schema)
    return RegistryProtobuf(registry, schema, message)


def _decoding(key: _Key) -> Callable[[pa.Array], pa.Array]:
    def decode_batch(bodies: pa.Array) -> pa.Array:
        values, problems = _decoder(*key).decode(bodies.to_pylist())
        return pa.StructArray.from_arrays([values, problems], names=["value", "error"])

    return decode_batch


def _arrow(frame: DataFrame, key: _Key, column: str, into: str, errors: str) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructType

    result = StructType().add("value", from_arrow_type(_decoder(*key).arrow_type)).add("error", StringType())
    decode_column = arrow_udf(_decoding(key), result)  # type: ignore[call-overload]  # by its hints
    decoded = frame.withColumn(_DECODED, decode_column(f.col(column)))
    value, problem = f.col(f"{_DECODED}.value"), f.col(f"{_DECODED}.error")
    return decoded.select(*frame.columns, value.alias(into), problem.alias(errors))


# -- JSON, with Spark itself ---------------------------------------------------------------------------


def _json(frame: DataFrame, schema: RegisteredSchema, column: str, into: str, errors: str) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    columns = StructType.fromDDL(columns_of(schema.text))
    assert isinstance(columns, StructType)
    body = f.col(column)
    headed = (f.length(body) >= _HEADER_BYTES) & (f.substring(body, 1, 1) == f.lit(bytes(1)))
    content = f.expr(f"cast(substring(`{column}`, {_HEADER_BYTES + 1}) AS string)")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    whole = f.from_json(content, StructType([*columns.fields]).add(_CORRUPT, StringType()), options)
    problem = (
        f.when(body.isNull(), "no body")
        .when(~headed, _MISSING)
        .when(f.col(_DECODED).isNull(), "empty")
        .when(f.col(_DECODED)[_CORRUPT].isNotNull(), "not JSON with these columns")
    )
    value = f.when(f.col(errors).isNull(), f.col(_DECODED).dropFields(_CORRUPT))
    decoded = frame.withColumn(_DECODED, whole).withColumn(errors, problem).withColumn(into, value)
    return decoded.select(*frame.columns, into, errors)
