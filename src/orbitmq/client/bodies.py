"""Converts message bodies to and from values: plain JSON values, msgspec structs, dataclasses and, if it is
installed, pydantic models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

from orbitmq.client.errors import BodyMismatch

__all__ = ["Decode", "decoder_for", "json_bytes", "json_value"]

T = TypeVar("T")
Decode = Callable[[bytes], Any]
"""A plain function from a body to a value. An exception means that the body does not match."""


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON. Raises ``TypeError`` for values that JSON cannot represent, and ``ValueError`` for NaN
    and infinity."""
    dump = getattr(value, "model_dump_json", None)
    encoded: bytes = dump().encode() if dump is not None else msgspec.json.encode(value, enc_hook=_nested)
    # msgspec writes NaN as null, so the reader would get another value. Few bodies need the second check.
    if b"null" in encoded:
        plain = value.model_dump() if dump is not None else msgspec.to_builtins(value, enc_hook=_numbers)
        if _has_no_number(plain):
            raise ValueError(
                "NaN and infinity cannot be written as JSON; send None, a string or a finite number"
            )
    return encoded


def _has_no_number(value: Any) -> bool:
    """Whether plain values contain a float that is NaN or infinite."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_no_number, value))


def _numbers(value: Any) -> float | None:
    """Returns a stand-in for a pydantic model inside another value: NaN if the model contains NaN or infinity,
    otherwise None."""
    return math.nan if _has_no_number(value.model_dump()) else None


def _nested(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return dump(mode="json")


@overload
def json_value(body: bytes, kind: type[T]) -> T: ...


@overload
def json_value(body: bytes, kind: Any = ...) -> Any: ...


def json_value(body: bytes, kind: Any = Any) -> Any:
    """Returns the value of a JSON body, checked against a type. Raises ``BodyMismatch``, which names the part that
    does not match."""
    return decoder_for(kind)(body)


def decoder_for(kind: Any) -> Decode:
    """Returns a function that converts JSON to values of a type: any type that msgspec supports, or a pydantic
    model."""
    validate = getattr(kind, "model_validate_json", None)
    if validate is None:
        validate = msgspec.json.Decoder(kind).decode
    name = getattr(kind, "__name__", str(kind))

    def decode(body: bytes) -> Any:
        try:
            return validate(body)
        except ValueError as error:  # msgspec's and pydantic's errors are both that
            reason = " ".join(str(error).split())
            raise BodyMismatch(f"the body is not a {name}: {reason}") from None

    return decode
