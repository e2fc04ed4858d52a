"""Bodies as values: JSON of plain values, msgspec structs, dataclasses and, if it is installed, pydantic models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

from orbitmq.client.errors import BodyMismatch

__all__ = ["Decode", "decoder_for", "json_bytes", "json_value"]

T = TypeVar("T")
Decode = Callable[[bytes], Any]
"""A plain function from a body to a value. What it raises means that the body does not fit."""


def json_bytes(value: Any) -> bytes:
    """A value as JSON. Raises ``TypeError`` for what JSON cannot hold."""
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        text: str = dump()
        return text.encode()
    return msgspec.json.encode(value, enc_hook=_nested)


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
    """The value of a JSON body, checked against a type. Raises ``BodyMismatch`` with the place that does not fit."""
    return decoder_for(kind)(body)


def decoder_for(kind: Any) -> Decode:
    """A function from JSON to values of a type: one of msgspec's, a dataclass, or a pydantic model."""
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
