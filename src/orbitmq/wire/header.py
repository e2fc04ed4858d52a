"""Typed headers: one struct parses, validates, encodes and documents a request.

Attribute names are ours; wire names are set by ``rename`` or ``msgspec.field(name=...)``. Every value is sent as
text; numbers and booleans are converted here. A missing or malformed field raises ``HeaderFieldError`` with the wire
name of the field. Unknown fields are ignored, like by every peer.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
import msgspec.inspect
import msgspec.structs

from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.wire.frame import Frame

__all__ = ["Header", "Int32", "Int64", "decode_header", "encode_ext"]

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_JAVA_NUMBER: Final = re.compile("[+-]?[0-9]+").fullmatch
_DIGITS_MAX: Final = 40


class Header(msgspec.Struct, kw_only=True, gc=False, rename="camel"):
    """The base class of all typed headers. ``None`` means that a field is absent."""


H = TypeVar("H", bound=Header)


@lru_cache(maxsize=512)
def _json_decoder(header_type: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(header_type, strict=False)


def decode_header(header_type: type[H], frame: Frame) -> H:
    """Decode the extension fields of ``frame`` as ``header_type``. Raises ``HeaderFieldError``."""
    try:
        if frame.serialize_type == _ROCKETMQ:
            return msgspec.convert(frame.ext_fields, header_type, strict=False)
        raw = frame.ext_raw
        if not raw or raw == b"null":
            raw = b"{}"
        decoded: H = _json_decoder(header_type).decode(raw)
        return decoded
    except msgspec.ValidationError as error:
        found = _with_java_numbers(header_type, frame)
        if found is None:
            raise HeaderFieldError(f"bad header field: {error}") from None
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderFieldError(f"bad header field: {error}") from None


def _with_java_numbers(header_type: type[H], frame: Frame) -> H | None:
    """Decode numbers with leading zeros or a plus sign, which Java accepts and msgspec does not. Returns None if
    those were not the problem."""
    fields = frame.ext_fields
    changed = {
        name: str(int(value))
        for name in _numbers(header_type)
        if (value := fields.get(name)) is not None and _JAVA_NUMBER(value) and len(value) <= _DIGITS_MAX
    }
    if not changed:
        return None
    try:
        return msgspec.convert(fields | changed, header_type, strict=False)
    except msgspec.MsgspecError:
        return None


@lru_cache(maxsize=512)
def _numbers(header_type: type[Any]) -> tuple[str, ...]:
    """Returns the wire names of the fields that are numbers."""
    names = []
    for field in msgspec.structs.fields(header_type):
        info = msgspec.inspect.type_info(field.type)
        kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
        if any(isinstance(kind, msgspec.inspect.IntType) for kind in kinds):
            names.append(field.encode_name)
    return tuple(names)


def encode_ext(header: Header) -> dict[str, str]:
    """Returns the extension fields of ``header``. Numbers are decimal, booleans ``true`` or ``false``, and fields
    that are None are omitted."""
    fields: dict[str, str] = {}
    for name, wire_name in zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True):
        value = getattr(header, name)
        if value is None:
            continue
        if value is True:
            fields[wire_name] = "true"
        elif value is False:
            fields[wire_name] = "false"
        else:
            fields[wire_name] = str(value)
    return fields
