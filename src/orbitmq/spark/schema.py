"""The names and types of the columns of a topic or store in Spark, shared by all readers.

A user may select fewer columns (``.schema("topic string, body binary")``). Spark does not prune the columns of Python
sources, so this is the only way to avoid decoding them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "SCHEMA_DDL", "arrow_schema", "selected_columns"]

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_TYPES: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "topic": ("string", pa.string()),
    "broker": ("string", pa.string()),
    "queue_id": ("int", pa.int32()),
    "queue_offset": ("bigint", pa.int64()),
    "log_offset": ("bigint", pa.int64()),
    "msg_id": ("string", pa.string()),
    "keys": ("string", pa.string()),
    "tags": ("string", pa.string()),
    "body": ("binary", pa.binary()),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "born_timestamp": ("timestamp", _TIMESTAMP),
    "store_timestamp": ("timestamp", _TIMESTAMP),
    "born_host": ("string", pa.string()),
    "store_host": ("string", pa.string()),
    "reconsume_times": ("int", pa.int32()),
    "sys_flag": ("int", pa.int32()),
    "flag": ("int", pa.int32()),
}

COLUMNS: Final = tuple(_TYPES)
"""All columns, in order. Users depend on the names, so add at the end and never rename."""

SCHEMA_DDL: Final = ", ".join(f"{name} {ddl}" for name, (ddl, _) in _TYPES.items())


def arrow_schema(columns: Iterable[str] = COLUMNS) -> pa.Schema:
    """Returns the schema of batches with these columns. Spark compares it with its own, type by type."""
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in columns])


def selected_columns(schema: StructType) -> Sequence[str]:
    """Returns the column names of a user's schema. Raises ``ConfigError`` for a column or type that the reader does
    not support."""
    for field in schema.fields:
        known = _TYPES.get(field.name)
        if known is None:
            raise ConfigError(
                f"the schema names a column {field.name!r} that messages do not have; "
                f"they have {', '.join(COLUMNS)}"
            )
        if field.dataType.simpleString() != known[0]:
            raise ConfigError(
                f"the schema gives column {field.name!r} the type {field.dataType.simpleString()}; it is {known[0]}"
            )
        if not field.nullable:
            raise ConfigError(f"the schema makes column {field.name!r} NOT NULL; leave that out")
    if not schema.fields:
        raise ConfigError("the schema has no columns")
    return tuple(field.name for field in schema.fields)
