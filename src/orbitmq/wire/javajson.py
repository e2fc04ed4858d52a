"""Reads and writes the JSON dialect of Apache's bodies and config files.

Apache's libraries (fastjson) write two things that JSON parsers refuse: bare integer keys, ``{0:"a"}``, and objects
as keys, ``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``. They also omit null members.

Theory of operation
1. Standard JSON is tried first, with one call into C, and most bodies need nothing else.
2. Only if that fails as malformed, ``standardize`` turns the two peculiarities into standard JSON: an integer key is
   quoted, an object key becomes a string key with the object's text. One pass, linear in the input, no recursion: a
   regular expression skips everything harmless inside C.
3. A ``null`` where a value is expected means "absent", like in Java.
4. Every failure is a ``BodyError``, whatever the input: malformed text, wrong types, deep nesting.

A map with object keys is an ``ObjectMap`` in a typed body; everything else is decoded by msgspec.
"""

from __future__ import annotations

import json.encoder
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec

from orbitmq.errors import BodyError

__all__ = [
    "BODY_BYTES_MAX",
    "ObjectMap",
    "decode",
    "encode",
    "encode_pretty",
    "encode_standard",
    "loads",
    "standardize",
]

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest text that is read; no body of a frame can be longer."""

_PECULIAR_KEYS_MAX: Final = 1_000_000
"""Each costs about a microsecond of the event loop; the largest known body has one per group and queue."""
_UNEXPECTED_KEYS_MAX: Final = 5_000
"""For a body whose type has no such keys."""
_NULLS_BYTES_MAX: Final = 256 * 1024
"""For a body whose type has no such keys, because removing nulls scans all of it."""

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ObjectMap(dict[K, V]):
    """A map whose keys are objects on the wire. ``K`` is a frozen struct."""


# Reading. Possessive quantifiers keep every match linear: no position is tried twice.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT_OBJECT: Final = rb'\{(?:[^"{}]++|' + _STRING + rb")*+\}"
_INTEGER_KEY: Final = rb"\s*+-?\d++\s*+:"
_HARMLESS: Final = re.compile(
    rb'(?:[^"{,]++|'
    + _STRING
    + rb"|,(?!"
    + _INTEGER_KEY
    + rb")|(?!"
    + _FLAT_OBJECT
    + rb"\s*+:)\{(?!"
    + _INTEGER_KEY
    + rb"))*+",
    re.DOTALL,
)
_PECULIAR: Final = re.compile(
    rb"(" + _FLAT_OBJECT + rb")(?=\s*+:)|([{,]\s*+)(-?\d++)(?=\s*+:)",
    re.DOTALL,
)

_decode_any: Final = msgspec.json.Decoder().decode
_encode_any: Final = msgspec.json.Encoder().encode
_READ_ERRORS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


def _quote_object(text: bytes) -> bytes:
    try:
        return _encode_any(text.decode())
    except UnicodeDecodeError as error:
        raise BodyError(f"body has a key that is not UTF-8: {error}") from None


def standardize(data: bytes, *, keys_max: int = _PECULIAR_KEYS_MAX) -> bytes:
    """Returns ``data`` with bare integer keys quoted, and each object key replaced by a string of its text.

    Returns ``data`` itself if there are none. Malformed text stays malformed. Raises ``BodyError`` for too many such
    keys, or for a key that is not UTF-8.
    """
    pieces: list[bytes] = []
    position = 0
    for _ in range(keys_max):
        harmless = _HARMLESS.match(data, position)
        assert harmless is not None, "the pattern matches the empty text"
        end = harmless.end()
        found = _PECULIAR.match(data, end)
        if found is None:
            break
        pieces.append(data[position:end])
        whole, before, integer = found.groups()
        if whole is not None:
            pieces.append(_quote_object(whole))
        else:
            pieces.append(b'%b"%b"' % (before, integer))
        position = found.end()
    else:
        raise BodyError(f"body has more than {keys_max} bare or object keys")
    if not pieces:
        return data
    pieces.append(data[position:])
    return b"".join(pieces)


@lru_cache(maxsize=256)
def _object_map_types(map_type: Any) -> tuple[Callable[[str], Any], Any]:
    key_type, value_type = get_args(map_type)
    return msgspec.json.Decoder(key_type, strict=False).decode, types.GenericAlias(dict, (str, value_type))


def _decode_custom(wanted: Any, value: Any) -> Any:
    assert get_origin(wanted) is ObjectMap, wanted
    decode_key, plain_type = _object_map_types(wanted)
    plain = msgspec.convert(value, plain_type, strict=False, str_keys=True, dec_hook=_decode_custom)
    return ObjectMap({decode_key(key): item for key, item in plain.items()})


@lru_cache(maxsize=512)
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    # Not strict: numbers and booleans given as text are accepted, like in fastjson.
    return msgspec.json.Decoder(wanted, strict=False, dec_hook=_decode_custom)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _read_any(data: bytes, keys_max: int) -> Any:
    try:
        return _decode_any(data)
    except msgspec.DecodeError:
        standard = standardize(data, keys_max=keys_max)
        if standard is data:
            raise
        return _decode_any(standard)


def _read(data: bytes, wanted: Any, *, keys_max: int) -> Any:
    read = _decoder(wanted).decode
    try:
        return read(data)
    except msgspec.ValidationError as error:
        failure = error
    except msgspec.DecodeError:
        standard = standardize(data, keys_max=keys_max)
        if standard is data:
            raise
        data = standard
        try:
            return read(data)
        except msgspec.ValidationError as error:
            failure = error
    if "got `null`" not in str(failure):
        raise failure
    if keys_max < _PECULIAR_KEYS_MAX and len(data) > _NULLS_BYTES_MAX:
        raise failure
    return read(_encode_any(_without_nulls(_read_any(data, keys_max))))


def decode(
    data: bytes, wanted: type[T], *, bytes_max: int = BODY_BYTES_MAX, expects_plain: bool = False
) -> T:
    """Decode ``data`` as ``wanted``, which is any type that msgspec supports and may contain ``ObjectMap``.

    Raises ``BodyError``. Unknown members are ignored. ``bytes_max`` is for files, which are not limited by a frame.
    ``expects_plain`` limits the work spent on special keys and nulls, which a body of this type does not have.
    """
    keys_max = _UNEXPECTED_KEYS_MAX if expects_plain else _PECULIAR_KEYS_MAX
    if len(data) > bytes_max:
        raise BodyError(f"body of {len(data)} bytes is longer than {bytes_max}")
    try:
        value: T = _read(data, wanted, keys_max=keys_max)
    except _READ_ERRORS as error:
        name = getattr(wanted, "__name__", str(wanted))
        raise BodyError(f"body cannot be read as {name}: {error}") from None
    return value


def loads(data: bytes, *, bytes_max: int = BODY_BYTES_MAX, expects_plain: bool = False) -> Any:
    """Returns the JSON as plain Python values. The keys of a map with object keys are the original texts of the
    objects."""
    return decode(data, Any, bytes_max=bytes_max, expects_plain=expects_plain)


# Writing.
_quote: Final = json.encoder.encode_basestring
_quote_ascii: Final = json.encoder.encode_basestring_ascii
_EMPTY_FACTORIES: Final = (dict, list, set)


class _Member(msgspec.Struct, frozen=True):
    attribute: str
    text: str
    """The quoted wire name with its colon."""
    default: Any
    empty_type: type | None
    """Omitted if it is an empty value of this type."""


@lru_cache(maxsize=512)
def _members(struct_type: type[msgspec.Struct]) -> tuple[_Member, ...]:
    omit = struct_type.__struct_config__.omit_defaults
    members = []
    for info in msgspec.structs.fields(struct_type):
        # Only these two rules of msgspec's ``omit_defaults`` matter here; values of other factories are always
        # written.
        default = info.default if omit else msgspec.NODEFAULT
        factory = info.default_factory if omit else None
        members.append(
            _Member(
                info.name,
                _quote(info.encode_name) + ":",
                default,
                factory if factory in _EMPTY_FACTORIES else None,
            )
        )
    return tuple(sorted(members, key=lambda member: member.text))


class _Writer:
    """Writes one value. ``newline`` is empty for the compact form, otherwise a line break with indentation."""

    __slots__ = ("_out", "_standard")

    def __init__(self, *, standard: bool) -> None:
        self._out: list[str] = []
        self._standard = standard

    def text(self) -> bytes:
        # Java writes a question mark for half a surrogate pair, and so does this writer.
        return "".join(self._out).encode(errors="replace")

    def write(self, value: Any, newline: str) -> None:
        out = self._out
        if isinstance(value, str):
            out.append(_quote_ascii(value) if self._standard else _quote(value))
        elif value is None:
            out.append("null")
        elif isinstance(value, bool):
            out.append("true" if value else "false")
        elif isinstance(value, int):
            out.append(int.__repr__(value))
        elif isinstance(value, float):
            out.append(float.__repr__(value) if math.isfinite(value) else "null")
        elif isinstance(value, msgspec.Struct):
            self._write_struct(value, newline)
        elif isinstance(value, Mapping):
            self._write_map(value, newline)
        elif isinstance(value, list | tuple | set | frozenset):
            self._write_array(value, newline)
        elif isinstance(value, Enum):
            self.write(value.value, newline)
        elif isinstance(value, msgspec.Raw):
            out.append(bytes(value).decode())
        else:
            raise TypeError(f"{type(value).__name__} has no form in a body")

    def _write_struct(self, value: msgspec.Struct, newline: str) -> None:
        out = self._out
        inner = newline + "\t" if newline else ""
        separator = "{" + inner
        for member in _members(type(value)):
            item = getattr(value, member.attribute)
            if item is None or item is msgspec.UNSET or item == member.default:
                continue
            if member.empty_type is not None and type(item) is member.empty_type and not item:
                continue
            out.append(separator)
            out.append(member.text)
            self.write(item, inner)
            separator = "," + inner
        out.append("{}" if separator[0] == "{" else newline + "}")

    def _write_map(self, value: Mapping[Any, Any], newline: str) -> None:
        out = self._out
        if not value:
            out.append("{}")
            return
        inner = newline + "\t" if newline else ""
        separator = "{" + inner
        for key, item in value.items():
            out.append(separator)
            if self._standard and not isinstance(key, str):
                # The same text that ``standardize`` would make of the bare form.
                out.append(_quote_ascii(encode(key).decode()))
            else:
                # An object key is written on one line even in the indented form.
                self.write(key, "")
            out.append(":")
            self.write(item, inner)
            separator = "," + inner
        out.append(newline + "}")

    def _write_array(self, value: Iterable[Any], newline: str) -> None:
        out = self._out
        inner = newline + "\t" if newline else ""
        separator = "[" + inner
        for item in value:
            out.append(separator)
            self.write(item, inner)
            separator = "," + inner
        out.append("[]" if separator[0] == "[" else newline + "]")


def _encode(value: Any, newline: str, *, standard: bool = False) -> bytes:
    writer = _Writer(standard=standard)
    try:
        writer.write(value, newline)
    except RecursionError:
        raise BodyError("value is nested too deeply to be written") from None
    return writer.text()


def encode(value: Any) -> bytes:
    """Returns compact JSON: struct members sorted by name, map entries in map order, integer keys unquoted, nulls
    omitted."""
    return _encode(value, "")


def encode_standard(value: Any) -> bytes:
    """Like ``encode``, but returns standard JSON in ASCII with all keys quoted, which some peers request."""
    return _encode(value, "", standard=True)


def encode_pretty(value: Any) -> bytes:
    """Like ``encode``, but returns the form of Apache's config files: one member per line, tabs, no final line
    break."""
    return _encode(value, "\n")
