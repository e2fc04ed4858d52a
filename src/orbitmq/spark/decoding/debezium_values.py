"""Converts values of Debezium's JSON to Arrow types.

If messages include schemas, the schema names the meaning of each value (``io.debezium.time.MicroTimestamp``,
Connect's ``Decimal``). Otherwise the column's type and the step's options decide, and an ambiguous value is rejected.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

__all__ = ["PLACEHOLDER", "BadValue", "Reading", "converter", "is_unavailable", "json_value"]

PLACEHOLDER: Final = "__debezium_unavailable_value"
Node = Mapping[str, Any] | None
"""The schema of a value; None if messages have no schemas."""
Convert = Callable[[Any, Node], Any]

_CONTEXT: Final = decimal.Context(prec=200)
_EXACT: Final = decimal.Context(prec=200, traps=[decimal.Inexact, decimal.InvalidOperation])
_CONNECT: Final = "org.apache.kafka.connect.data."
_TIME: Final = "io.debezium.time."
_DECIMAL: Final = f"{_CONNECT}Decimal"
_DAY_US: Final = 86_400_000_000
_DAYS: Final = frozenset({f"{_TIME}Date", f"{_CONNECT}Date"})
_UNITS: Final[Mapping[str, tuple[int, int]]] = {
    "s": (1_000_000, 1),
    "ms": (1000, 1),
    "us": (1, 1),
    "ns": (1, 1000),
}
_MOMENTS: Final[Mapping[str, str]] = {
    f"{_TIME}Timestamp": "ms",
    f"{_TIME}MicroTimestamp": "us",
    f"{_TIME}NanoTimestamp": "ns",
    f"{_CONNECT}Timestamp": "ms",
}
_TIMES: Final[Mapping[str, str]] = {
    f"{_TIME}Time": "ms",
    f"{_TIME}MicroTime": "us",
    f"{_TIME}NanoTime": "ns",
    f"{_CONNECT}Time": "ms",
}
_DAY_MIN: Final = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_DAY_MAX: Final = date(9999, 12, 31).toordinal() - date(1970, 1, 1).toordinal()
_WORDS: Final[Mapping[str, float]] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "+infinity": float("inf"),
    "-infinity": float("-inf"),
    "positive_infinity": float("inf"),
    "negative_infinity": float("-inf"),
}


class BadValue(ValueError):
    """A value that does not fit its column's type. The text gives the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The options for reading values that have no schema."""

    units: Mapping[str, str] = field(default_factory=dict)
    """Unit of integers in time columns: s, ms, us, ns or days."""
    decimals: str = "string"
    """``string`` (``decimal.handling.mode=string``) or ``base64`` (``precise``; the scale is that of the column)."""
    binary: str = "base64"
    placeholder: str = PLACEHOLDER


def json_value(text: bytes | str) -> Any:
    """Parses a JSON text. Numbers with a decimal point become decimals, so that no digit is lost."""
    return json.loads(text, parse_float=Decimal)


def is_unavailable(value: Any, placeholder: str) -> bool:
    """Returns whether a value is only the placeholder that Debezium sends for an unchanged value."""
    raw = placeholder.encode()
    if isinstance(value, str):
        return value in (placeholder, base64.b64encode(raw).decode(), raw.hex())
    if isinstance(value, list):
        return value in ([placeholder], list(raw))
    return isinstance(value, dict) and value == {placeholder: placeholder}


def converter(kind: pa.DataType, unit: str, reading: Reading) -> Convert:
    """Returns a function that converts a JSON value, given with its schema, to this type. It raises ``BadValue``."""
    types = pa.types
    if types.is_boolean(kind):
        return _boolean
    if types.is_integer(kind):
        return _integer(kind)
    if types.is_floating(kind):
        return _floating
    if types.is_decimal(kind):
        return _fixed(kind, reading)
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda value, node: _text(value, node, unit)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value, node: _bytes(value, reading.binary)
    if types.is_date(kind):
        return _date
    if types.is_timestamp(kind):
        return lambda value, node: _moment(value, node, unit, zoned=kind.tz is not None)
    if types.is_time(kind):
        return lambda value, node: _time_us(value, node, unit)
    return _nested(kind, unit, reading)


def _name(node: Node) -> str:
    return str(node.get("name") or "") if node else ""


# -- numbers -------------------------------------------------------------------------------------------


def _boolean(value: Any, node: Node) -> bool:
    if isinstance(value, bool):
        return value
    if value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadValue(f"{_shown(value)} is not a boolean")


def _unscaled(text: Any, scale: Any) -> Decimal:
    try:
        number = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
        return Decimal(number).scaleb(-int(scale), _CONTEXT)
    except (TypeError, ValueError, binascii.Error) as error:
        raise BadValue(f"{_shown(text)} is not a base64 decimal") from error


def _number(value: Any, node: Node) -> Decimal | float:
    """Converts a number in any of Debezium's representations."""
    if isinstance(value, dict) and set(value) == {"scale", "value"}:
        return _unscaled(value["value"], value["scale"])
    if (
        _name(node) == _DECIMAL
        and isinstance(value, str)
        and node is not None
        and node.get("type") == "bytes"
    ):
        return _unscaled(value, (node.get("parameters") or {}).get("scale", 0))
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise BadValue(f"{_shown(value)} is not a number")
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if isinstance(value, float):
        return value
    try:
        return Decimal(value)
    except decimal.InvalidOperation:
        raise BadValue(
            f"{_shown(value)} is not a number. If it is a decimal in base64, set decimal.handling.mode=string in "
            "Debezium, or debezium.decimals: base64 here"
        ) from None


def _integer(kind: pa.DataType) -> Convert:
    bits = kind.bit_width
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any, node: Node) -> int:
        if isinstance(value, bool):
            return int(value)
        number = _number(value, node)
        if number != number or number in (float("inf"), float("-inf")) or number != int(number):
            raise BadValue(f"{_shown(value)} is not an integer")
        if not low <= number <= high:
            raise BadValue(f"{_shown(value)} does not fit into {bits} bits")
        return int(number)

    return convert


def _floating(value: Any, node: Node) -> float:
    return float(_number(value, node))


def _fixed(kind: pa.DataType, reading: Reading) -> Convert:
    quantum = Decimal(1).scaleb(-kind.scale)
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: Any, node: Node) -> Decimal:
        if node is None and reading.decimals == "base64" and isinstance(value, str):
            number: Decimal | float = _unscaled(value, kind.scale)
        else:
            number = _number(value, node)
        if isinstance(number, float):
            if number != number or number in (float("inf"), float("-inf")):
                raise BadValue(f"{_shown(value)} has no decimal: make the column a double or a string")
            number = Decimal(repr(number))
        try:
            fitted = number.quantize(quantum, context=_EXACT)
        except decimal.DecimalException:
            raise BadValue(f"{_shown(value)} has more than {kind.scale} digits after the point") from None
        if abs(fitted) >= limit:
            raise BadValue(f"{_shown(value)} does not fit into decimal({kind.precision},{kind.scale})")
        return fitted

    return convert


# -- text and bytes ------------------------------------------------------------------------------------


def _text(value: Any, node: Node, unit: str) -> str:
    name = _name(node)
    if isinstance(value, str):
        return f"{_number(value, node):f}" if name == _DECIMAL else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if name in _DAYS or (node is None and unit == "days"):
            return _day_text(value)
        if name in _MOMENTS or name in _TIMES:
            unit = _MOMENTS.get(name) or _TIMES[name]
            return _moment_text(value, unit) if name in _MOMENTS else _clock_text(value, unit)
        return str(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict) and set(value) == {"scale", "value"}:
        return f"{_number(value, node):f}"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)


def _day_text(days: int) -> str:
    if not _DAY_MIN <= days <= _DAY_MAX:
        return str(days)  # infinity, or a year of five digits
    return date.fromordinal(days + date(1970, 1, 1).toordinal()).isoformat()


def _moment_text(value: int, unit: str) -> str:
    factor, divisor = _UNITS[unit]
    micros = value * factor // divisor
    if not _DAY_MIN * _DAY_US <= micros < (_DAY_MAX + 1) * _DAY_US:
        return str(value)
    days, rest = divmod(micros, _DAY_US)
    return f"{_day_text(days)}T{_clock_text(rest, 'us')}"


def _clock_text(value: int, unit: str) -> str:
    factor, divisor = _UNITS[unit]
    seconds, micros = divmod(value * factor // divisor, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{micros:06d}" if micros else text


def _bytes(value: Any, form: str) -> bytes:
    if not isinstance(value, str):
        raise BadValue(f"{_shown(value)} is not text with bytes")
    try:
        if form == "hex":
            return bytes.fromhex(value)
        plain = value.translate(str.maketrans("-_", "+/"))
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise BadValue(f"{_shown(value)} is not {form}") from None


# -- dates and times -----------------------------------------------------------------------------------


def _date(value: Any, node: Node) -> int:
    """Returns a date as days since 1970-01-01."""
    if isinstance(value, str):
        try:
            days = date.fromisoformat(value.removesuffix("Z")[:10]).toordinal() - date(1970, 1, 1).toordinal()
        except ValueError:
            raise BadValue(f"{_shown(value)} is not a date of the years 1 to 9999") from None
        return days
    days = _int_of(value)
    if _name(node) in _MOMENTS:
        factor, divisor = _UNITS[_MOMENTS[_name(node)]]
        days = days * factor // divisor // _DAY_US
    if not _DAY_MIN <= days <= _DAY_MAX:
        raise BadValue(
            f"day {days} is not in the years 1 to 9999 (infinity?): make the column a string or an int"
        )
    return days


def _moment(value: Any, node: Node, unit: str, *, zoned: bool) -> int:
    """Returns a time as microseconds since 1970-01-01."""
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            raise BadValue(f"{_shown(value)} is not a time of the years 1 to 9999") from None
        if found.tzinfo is None or not zoned:
            # Without a time zone the wall clock counts, whatever zone the text names.
            found = found.replace(tzinfo=UTC)
        delta = found - datetime(1970, 1, 1, tzinfo=UTC)
        return delta.days * _DAY_US + delta.seconds * 1_000_000 + delta.microseconds
    number, name = _int_of(value), _name(node)
    if name in _DAYS or (name not in _MOMENTS and unit == "days"):
        micros = number * _DAY_US
    else:
        micros = _micros(number, _MOMENTS.get(name) or unit)
    if not _DAY_MIN * _DAY_US <= micros < (_DAY_MAX + 1) * _DAY_US:
        raise BadValue(f"time {number} is not in the years 1 to 9999: make the column a string or a bigint")
    return micros


def _time_us(value: Any, node: Node, unit: str) -> int:
    """Returns a time of day as microseconds since midnight."""
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(f"1970-01-01T{value}")
        except ValueError:
            raise BadValue(f"{_shown(value)} is not a time of the day") from None
        return (found.hour * 3600 + found.minute * 60 + found.second) * 1_000_000 + found.microsecond
    micros = _micros(_int_of(value), _TIMES.get(_name(node)) or unit)
    if not 0 <= micros < _DAY_US:
        raise BadValue(f"{_shown(value)} is not a time of the day")
    return micros


def _micros(number: int, unit: str) -> int:
    if unit not in _UNITS:
        raise BadValue(
            f"{number} is a time without a schema, in an unknown unit: name it with debezium.units (ms, us, ns, s or "
            "days), or set time.precision.mode=isostring in Debezium"
        )
    factor, divisor = _UNITS[unit]
    return number * factor // divisor


def _int_of(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValue(f"{_shown(value)} is not a date or time")
    return value


# -- nested values -------------------------------------------------------------------------------------


def _nested(kind: pa.DataType, unit: str, reading: Reading) -> Convert:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        item = converter(kind.value_type, unit, reading)

        def many(value: Any, node: Node) -> list[Any]:
            value = _decoded(value, list)
            below = node.get("items") if node else None
            return [None if one is None else item(one, below) for one in value]

        return many
    if types.is_map(kind):
        key, content = converter(kind.key_type, unit, reading), converter(kind.item_type, unit, reading)

        def pairs(value: Any, node: Node) -> list[tuple[Any, Any]]:
            value = _decoded(value, dict)
            names, below = (node.get("keys"), node.get("values")) if node else (None, None)
            return [
                (key(one, names), None if two is None else content(two, below)) for one, two in value.items()
            ]

        return pairs
    if types.is_struct(kind):
        fields = {one.name: converter(one.type, unit, reading) for one in kind}

        def struct(value: Any, node: Node) -> dict[str, Any]:
            value = _decoded(value, dict)
            below = {one.get("field"): one for one in (node.get("fields") or ())} if node else {}
            return {
                name: None if value.get(name) is None else convert(value[name], below.get(name))
                for name, convert in fields.items()
            }

        return struct
    raise BadValue(f"columns of type {kind} are not supported")


def _decoded(value: Any, kind: type) -> Any:
    """Returns a list or dict, which may be given as JSON text, as in JSON columns and by default in hstore
    columns."""
    if isinstance(value, str):
        try:
            value = json_value(value)
        except ValueError:
            raise BadValue(f"{_shown(value)} is not JSON") from None
    if not isinstance(value, kind):
        raise BadValue(f"{_shown(value)} is not a JSON {'array' if kind is list else 'object'}")
    return value


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
