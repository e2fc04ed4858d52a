"""Decodes Protobuf bodies into Arrow columns, field by field, with a descriptor set. An unreadable body becomes
null."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.spark.errors import EnvironmentFault, SpecError, did_you_mean

__all__ = ["ProtobufDecoder"]

_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_FREE_FORM: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))

Build = Callable[[Sequence[Any]], pa.Array]
"""Builds a column from one Python value per row (None becomes null)."""


class ProtobufDecoder:
    """Decodes one message type. Raises ``SpecError`` for an unusable descriptor set or message name."""

    def __init__(self, descriptor_set: bytes, message: str) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
            from google.protobuf.message import DecodeError
        except ImportError:
            raise EnvironmentFault(
                "decoding Protobuf needs protobuf: pip install 'orbitmq[decode]'"
            ) from None
        files = descriptor_pb2.FileDescriptorSet()
        try:
            files.ParseFromString(descriptor_set)
        except DecodeError as error:
            raise SpecError("", "the file is not a descriptor set (protoc --descriptor_set_out)") from error
        pool = descriptor_pool.DescriptorPool()
        try:
            for one in files.file:
                pool.Add(one)
            descriptor = pool.FindMessageTypeByName(message)
        except KeyError:
            known = [
                f"{one.package}.{kind.name}".lstrip(".") for one in files.file for kind in one.message_type
            ]
            raise SpecError("", f"there is no message {message!r}{did_you_mean(message, known)}") from None
        except TypeError as error:
            raise SpecError(
                "", f"the descriptor set is not whole (protoc --include_imports): {error}"
            ) from error
        self._class: Any = message_factory.GetMessageClass(descriptor)
        self._to_json = json_format.MessageToJson
        self.arrow_type, self._build = self._message(descriptor, ())

    def _message(self, descriptor: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        name = descriptor.full_name
        if name == "google.protobuf.Timestamp":
            return _MICROSECONDS, _timestamps
        if name in _WRAPPERS:
            arrow, build = self._scalar(descriptor.fields_by_name["value"])
            return arrow, lambda rows: build([None if row is None else row.value for row in rows])
        if name in _FREE_FORM:
            return pa.string(), lambda rows: pa.array(
                [None if row is None else self._to_json(row, indent=None) for row in rows], pa.string()
            )
        if name in above:
            raise SpecError("", f"message {name} is recursive; Spark has no recursive types")
        parts = [(field.name, *self._field(field, (*above, name))) for field in descriptor.fields]
        columns = [pa.field(field, arrow) for field, arrow, _ in parts]
        struct = pa.struct(columns)
        if not parts:
            raise SpecError("", f"message {name} has no fields: Spark has no such type")

        def build_struct(rows: Sequence[Any]) -> pa.Array:
            children = [build(rows) for _, _, build in parts]
            return pa.StructArray.from_arrays(
                children, fields=columns, mask=pa.array([row is None for row in rows], pa.bool_())
            )

        return struct, build_struct

    def _field(self, field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        """Returns the type of one field and the function that builds its column from the messages that contain it."""
        name = field.name
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key_type, keys = self._scalar(entry.fields_by_name["key"])
            value_type, values = self._value(entry.fields_by_name["value"], above)

            def build_map(rows: Sequence[Any]) -> pa.Array:
                maps = [() if row is None else list(getattr(row, name).items()) for row in rows]
                pairs = [pair for one in maps for pair in one]
                return pa.MapArray.from_arrays(
                    _offsets(maps), keys([key for key, _ in pairs]), values([value for _, value in pairs])
                )

            return pa.map_(key_type, value_type), build_map
        arrow, build = self._value(field, above)
        if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
            element = pa.field("element", arrow)

            def build_list(rows: Sequence[Any]) -> pa.Array:
                lists = [() if row is None else getattr(row, name) for row in rows]
                items = build([item for one in lists for item in one])
                return pa.ListArray.from_arrays(_offsets(lists), items, type=pa.list_(element))

            return pa.list_(element), build_list
        if field.has_presence:
            return arrow, lambda rows: build(
                [getattr(row, name) if row is not None and row.HasField(name) else None for row in rows]
            )
        return arrow, lambda rows: build([None if row is None else getattr(row, name) for row in rows])

    def _value(self, field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        return self._scalar(field) if field.message_type is None else self._message(field.message_type, above)

    def _scalar(self, field: Any) -> tuple[pa.DataType, Build]:
        if field.enum_type is not None:
            names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
            return pa.string(), lambda rows: pa.array(
                [None if row is None else names.get(row, str(row)) for row in rows], pa.string()
            )
        arrow = {
            field.CPPTYPE_INT32: pa.int32(),
            field.CPPTYPE_INT64: pa.int64(),
            field.CPPTYPE_UINT32: pa.int64(),
            field.CPPTYPE_UINT64: pa.decimal128(20, 0),
            field.CPPTYPE_DOUBLE: pa.float64(),
            field.CPPTYPE_FLOAT: pa.float32(),
            field.CPPTYPE_BOOL: pa.bool_(),
            field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
        }[field.cpp_type]
        return arrow, lambda rows: pa.array(rows, arrow)

    def _parsed(self, body: bytes) -> Any:
        message = self._class()
        message.ParseFromString(body)
        if not message.IsInitialized():
            raise ValueError(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")
        return message

    def decode(self, bodies: Iterable[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns a column of values and a column of errors. In each row exactly one of them is null."""
        rows: list[Any] = []
        errors: list[str | None] = []
        for body in bodies:
            try:
                rows.append(self._parsed(body) if body is not None else None)
                errors.append(None if body is not None else "no body")
            except Exception as error:  # noqa: BLE001  # bytes from anybody: whatever the reader raises is the answer
                rows.append(None)
                errors.append(f"{type(error).__name__}: {error}"[:200])
        try:
            column = self._build(rows)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # Invalid UTF-8 is detected only when a text is accessed. Find it and keep the others.
            for number, row in enumerate(rows):
                try:
                    self._build([row])
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    rows[number] = None
                    errors[number] = f"{type(error).__name__}: {error}"[:200]
            column = self._build(rows)
        return column, pa.array(errors, pa.string())


def _offsets(lists: Sequence[Sequence[Any]]) -> pa.Array:
    offsets = [0]
    for one in lists:
        offsets.append(offsets[-1] + len(one))
    return pa.array(offsets, pa.int32())


def _timestamps(rows: Sequence[Any]) -> pa.Array:
    micros = [None if row is None else row.seconds * 1_000_000 + row.nanos // 1000 for row in rows]
    return pa.array(micros, pa.int64()).cast(_MICROSECONDS)
