"""The decode step for Debezium's change events. Arrow batches are decoded on the executors to one row per change."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.errors import ConfigError
from orbitmq.pipeline.changes import RESERVED
from orbitmq.pipeline.spec import DebeziumOptions
from orbitmq.spark.decoding.debezium import ChangeDecoder, ChangeForm
from orbitmq.spark.decoding.debezium_values import BadValue, Reading
from orbitmq.spark.decoding.registry import RegistryAccess
from orbitmq.spark.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.spec import DecodeStep

__all__ = ["decode_changes"]

_DECODED: Final = "_orbitmq_change"
_ORIGIN: Final = ("topic", "broker", "queue_id", "queue_offset", "store_timestamp")
_DECODERS_MAX: Final = 32


@functools.lru_cache(_DECODERS_MAX)
def _decoder(packed: bytes) -> ChangeDecoder:
    """Returns the decoder for a pickled schema and form. It is created once in each Python worker, which Spark keeps
    from batch to batch."""
    schema, form = pickle.loads(packed)  # packed below, by the driver of this query
    return ChangeDecoder(schema, form)


def _decoding(packed: bytes) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def decode(bodies: pa.Array, keys: pa.Array) -> pa.Array:
        values, errors = _decoder(packed).decode(bodies.to_pylist(), keys.to_pylist())
        return pa.StructArray.from_arrays([values, errors], names=["value", "error"])

    return decode


def _form(options: DebeziumOptions, registry: RegistryAccess | None) -> ChangeForm:
    reading = Reading(
        units=dict(options.units),
        decimals=options.decimals,
        binary=options.binary if registry is None else "base64",
        placeholder=options.placeholder,
    )
    return ChangeForm(
        table=options.table,
        order_by=tuple(options.order_by),
        unknown_fields=options.unknown_fields,
        reading=reading,
        registry=registry,
    )


def decode_changes(frame: DataFrame, step: DecodeStep, columns: StructType, path: str) -> DataFrame:
    """Returns the changes described by a column of events, one row per change.

    A row has ``columns``, then ``_op``, ``_position``, ``_changed_at`` and ``_unavailable``, the place of the
    message, and ``decode_error``. Raises ``SpecError`` for options that do not match the columns.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
    from pyspark.sql.types import StringType, StructType

    options = step.debezium or DebeziumOptions()
    types = dict(frame.dtypes)
    if types.get(step.column) not in ("binary", "string"):
        found = types.get(step.column)
        text = f"column {step.column!r} is {found}" if found else f"there is no column {step.column!r}"
        raise SpecError(f"{path}.column", f"{text}; a binary or string column can be decoded")
    if reserved := [name for name in columns.names if name in RESERVED or name.startswith("_orbitmq")]:
        raise SpecError(
            f"{path}.schema", f"column {reserved[0]!r} is one of our own; rename it in the source"
        )
    for name in options.units:
        if name not in columns.names:
            raise SpecError(
                f"{path}.debezium.units", f"there is no column {name!r}{did_you_mean(name, columns.names)}"
            )
    if options.key_column != "keys" and options.key_column not in types:
        raise SpecError(f"{path}.debezium.keyColumn", f"there is no column {options.key_column!r}")
    schema = to_arrow_schema(columns, timezone="UTC")
    try:
        registry = RegistryAccess.parse(step.registry) if step.registry else None
    except ConfigError as bad:
        raise SpecError(f"{path}.registry", str(bad)) from bad
    packed = pickle.dumps((schema, _form(options, registry)))
    try:
        arrow = _decoder(packed).arrow_type
    except BadValue as bad:
        raise SpecError(f"{path}.schema", str(bad)) from bad
    result = StructType().add("value", from_arrow_type(arrow)).add("error", StringType())
    udf = arrow_udf(_decoding(packed), result)  # type: ignore[call-overload]  # by its hints
    key = (
        f.col(options.key_column).cast("string")
        if options.key_column in types
        else f.lit(None).cast("string")
    )
    # Marked as not deterministic, so that the filter after it does not decode everything a second time.
    change = udf.asNondeterministic()(f.col(step.column).cast("binary"), key)
    decoded = frame.withColumn(_DECODED, change)
    value, error = f.col(f"{_DECODED}.value"), f.col(f"{_DECODED}.error")
    origin = [f.col(name).alias(f"_{name}") for name in _ORIGIN if name in types]
    return decoded.where(value.isNotNull() | error.isNotNull()).select(
        *[value["row"][name].cast(columns[name].dataType).alias(name) for name in columns.names],
        value["op"].alias("_op"),
        value["position"].alias("_position"),
        value["changed_at"].alias("_changed_at"),
        value["unavailable"].alias("_unavailable"),
        *origin,
        error.alias("decode_error"),
    )
