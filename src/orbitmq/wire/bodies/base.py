"""The base class of typed bodies, which are structs that read and write the JSON dialect of Apache's bodies.

Members that Java always writes (numbers, booleans, collections) have the default ``always(...)`` and are always
written. Members that Java omits if they are null, or that only some versions have, are ``None`` if absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import inspect

from orbitmq.wire import javajson

__all__ = ["Body", "always", "decode_body", "encode_body"]

T = TypeVar("T")


def always(make: Callable[[], T], *, name: str | None = None) -> T:
    """Returns a default that is written even if the value equals it. Pass ``name``, the wire name, if it is not camel
    case.

    msgspec omits only plain defaults and empty collections created by ``dict``, ``list`` or ``set`` itself.
    """
    default: T = msgspec.field(default_factory=lambda: make(), name=name)
    return default


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A JSON body. ``decode`` raises no error other than ``BodyError``."""

    def encode(self) -> bytes:
        return encode_body(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return javajson.decode(data, cls, expects_plain=_is_plain(cls))


_encode_plain: Final = msgspec.json.Encoder().encode


def encode_body(value: msgspec.Struct) -> bytes:
    """Returns the compact form of any struct. It is encoded by msgspec if it is plain JSON, otherwise by the writer
    of the dialect."""
    return _encode_plain(value) if _is_plain(type(value)) else javajson.encode(value)


def decode_body(wanted: type[T], data: bytes) -> T:
    """Decode a body whose type is a model value, not a ``Body``. Raises ``BodyError``."""
    kind: Any = wanted
    return javajson.decode(data, wanted, expects_plain=_is_plain(kind))


@lru_cache(maxsize=256)
def _is_plain(struct_type: Any) -> bool:
    """Whether msgspec's own encoder writes the same bytes as the dialect. That is so if the type has no special keys
    and no nulls."""
    return _plain_type(inspect.type_info(struct_type), set())


def _plain_type(info: inspect.Type, seen: set[type]) -> bool:
    match info:
        case inspect.StructType(cls=cls):
            if cls in seen:
                return True
            seen.add(cls)
            omits = cls.__struct_config__.omit_defaults
            return all(
                (omits or not _takes_none(field.type)) and _plain_type(field.type, seen)
                for field in info.fields
            )
        case inspect.DictType(key_type=key, value_type=value):
            return isinstance(key, inspect.StrType) and _plain_type(value, seen)
        case inspect.ListType(item_type=item) | inspect.SetType(item_type=item):
            return _plain_type(item, seen)
        case inspect.FrozenSetType(item_type=item) | inspect.VarTupleType(item_type=item):
            return _plain_type(item, seen)
        case inspect.UnionType(types=types):
            return all(_plain_type(member, seen) for member in types)
        case inspect.CustomType() | inspect.AnyType() | inspect.RawType():
            return False
    return True


def _takes_none(info: inspect.Type) -> bool:
    types: tuple[Any, ...] = info.types if isinstance(info, inspect.UnionType) else (info,)
    return any(isinstance(member, inspect.NoneType) for member in types)
