"""The decode step. Spark itself decodes JSON. Avro and Protobuf are decoded from Arrow batches on the executors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.errors import ConfigError
from orbitmq.pipeline.debezium import decode_changes
from orbitmq.spark.decoding.avro import AvroDecoder
from orbitmq.spark.decoding.protobuf import ProtobufDecoder
from orbitmq.spark.errors import EnvironmentFault, SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.plan import Plan
    from orbitmq.pipeline.spec import DecodeStep

__all__ = ["ERROR_COLUMN", "apply_decode"]

ERROR_COLUMN: Final = "decode_error"
_CORRUPT: Final = "_orbitmq_corrupt"
_DECODED: Final = "_orbitmq_decoded"
_DECODERS_MAX: Final = 32


@functools.lru_cache(_DECODERS_MAX)
def _decoder(form: str, schema: bytes, detail: str) -> AvroDecoder | ProtobufDecoder:
    """Returns the decoder for a schema. It is created once in each Python worker, which Spark keeps from batch to
    batch."""
    return AvroDecoder(schema.decode(), detail) if form == "avro" else ProtobufDecoder(schema, detail)


def _decoding(form: str, schema: bytes, detail: str) -> Callable[[pa.Array], pa.Array]:
    def decode(bodies: pa.Array) -> pa.Array:
        values, errors = _decoder(form, schema, detail).decode(bodies.to_pylist())
        return pa.StructArray.from_arrays([values, errors], names=["value", "error"])

    return decode


def apply_decode(frame: DataFrame, step: DecodeStep, plan: Plan, path: str) -> DataFrame:
    """Returns ``frame`` with the decoded fields of one column as further columns. Raises ``SpecError`` for options
    that do not match the columns."""
    types = dict(frame.dtypes)
    if step.format == "debezium":
        return _settled(decode_changes(frame, step, _json_schema(_schema_text(step, plan), path), path), step)
    if types.get(step.column) not in ("binary", "string"):
        found = types.get(step.column)
        text = f"column {step.column!r} is {found}" if found else f"there is no column {step.column!r}"
        raise SpecError(f"{path}.column", f"{text}; a binary or string column can be decoded")
    for column in (step.into, ERROR_COLUMN):
        if column in types:
            raise SpecError(f"{path}.into", f"there is a column {column!r} already")
    if step.format == "registry":
        decoded = _registered(frame, step, path)
    else:
        decoded = _json(frame, step, plan, path) if step.format == "json" else _arrow(frame, step, plan, path)
    decoded = _settled(decoded, step)
    if not step.flatten:
        return decoded
    value: Any = decoded.schema[step.into].dataType
    if not hasattr(value, "names"):
        raise SpecError(f"{path}.flatten", f"the content is {value.simpleString()}, which has no fields")
    clash = sorted(set(value.names) & {*types, ERROR_COLUMN})
    if clash:
        raise SpecError(
            f"{path}.flatten", f"there are columns {', '.join(clash)} already; leave flatten out and use into"
        )
    return decoded.select(*types, f"{step.into}.*", ERROR_COLUMN)


def _settled(decoded: DataFrame, step: DecodeStep) -> DataFrame:
    """Drops bodies that cannot be decoded, fails the query, or keeps them, according to ``onError``."""
    from pyspark.sql import functions as f

    if step.on_error == "drop":
        decoded = decoded.where(f.col(ERROR_COLUMN).isNull())
    elif step.on_error == "fail":
        broken = f.raise_error(
            f.concat(f.lit(f"{step.name}: a body cannot be decoded ({step.format}): "), ERROR_COLUMN)
        )
        decoded = decoded.withColumn(
            ERROR_COLUMN, f.when(f.col(ERROR_COLUMN).isNotNull(), broken).otherwise(f.col(ERROR_COLUMN))
        )
    return decoded


def _schema_text(step: DecodeStep, plan: Plan) -> str:
    return Path(plan.located(step.schema_file)).read_text("utf-8") if step.schema_file else step.schema


def _json(frame: DataFrame, step: DecodeStep, plan: Plan, path: str) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    schema = _json_schema(_schema_text(step, plan), path)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    whole = f.from_json(f.col(step.column).cast("string"), schema.add(_CORRUPT, StringType()), options)
    error = (
        f.when(f.col(step.column).isNull(), "no body")
        .when(f.col(step.into).isNull(), "empty")
        .when(f.col(step.into)[_CORRUPT].isNotNull(), "not JSON with these columns")
    )
    value = f.when(f.col(ERROR_COLUMN).isNull(), f.col(step.into).dropFields(_CORRUPT))
    return (
        frame.withColumn(step.into, whole).withColumn(ERROR_COLUMN, error).withColumn(step.into, value)
    ).select(*frame.columns, step.into, ERROR_COLUMN)


def _registered(frame: DataFrame, step: DecodeStep, path: str) -> DataFrame:
    """Decodes with the schemas of a registry. Raises ``EnvironmentFault`` if the registry does not answer."""
    from orbitmq.spark.decoding.columns import decode
    from orbitmq.spark.decoding.registry import RegistryError, SchemaNotFound

    try:
        return decode(
            frame,
            step.registry,
            subject=step.subject,
            column=step.column,
            into=step.into,
            errors=ERROR_COLUMN,
            message=step.message,
        )
    except SchemaNotFound as error:
        raise SpecError(f"{path}.subject", str(error)) from error
    except RegistryError as error:
        raise EnvironmentFault(f"{path}.registry: {error}") from error
    except ConfigError as error:
        raise SpecError(path, str(error)) from error


def _json_schema(text: str, path: str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        if text.lstrip().startswith("{"):
            import json

            return StructType.fromJson(json.loads(text))
        parsed = StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise SpecError(f"{path}.schema", f"not a list of columns as in CREATE TABLE: {first}") from error
    if not isinstance(parsed, StructType):
        raise SpecError(f"{path}.schema", f"{text!r} is a type, not a list of columns")
    return parsed


def _arrow(frame: DataFrame, step: DecodeStep, plan: Plan, path: str) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructType

    detail: str
    if step.format == "avro":
        schema, detail = _schema_text(step, plan).encode(), step.framing
    else:
        schema, detail = Path(plan.located(step.schema_file)).read_bytes(), step.message
    try:
        arrow = _decoder(step.format, schema, detail).arrow_type
    except SpecError as error:
        where = "message" if "no message" in error.problem else "schema" if step.schema else "schemaFile"
        raise SpecError(f"{path}.{where}", error.problem) from error
    result = StructType().add("value", from_arrow_type(arrow)).add("error", StringType())
    # Not mapInArrow, which requires pandas and would move all other columns to Python and back.
    decode = arrow_udf(_decoding(step.format, schema, detail), result)  # type: ignore[call-overload]  # by its hints
    decoded = frame.withColumn(_DECODED, decode(f.col(step.column).cast("binary")))
    value, problem = f.col(f"{_DECODED}.value"), f.col(f"{_DECODED}.error")
    return decoded.select(*frame.columns, value.alias(step.into), problem.alias(ERROR_COLUMN))
