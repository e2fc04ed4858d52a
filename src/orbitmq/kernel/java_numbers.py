"""SQL92: converts a property's text to a number, and compares two values (Apache: ``ComparisonExpression``).

The type of the other operand decides the conversion. If a property is compared with an integer literal, its text must
be a Java ``int``; with a long literal, a ``long``; with a fraction or another property, a ``double``. Text that
cannot be converted ends the evaluation of the whole expression, not only of the comparison, because Apache throws an
exception. The message is then not delivered.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

__all__ = ["Kind", "Unreadable", "Value", "compare", "compare_doubles", "read_double", "read_integer"]

Value = str | int | float | bool | None


class Kind(Enum):
    """The Java class of a value."""

    TEXT = "text"
    BOOL = "bool"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    NULL = "null"


class Unreadable(Exception):
    """A property's text does not have the type of the value it is compared with. The message is then not
    delivered."""


INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_DECIMAL: Final = re.compile(
    r"[\0-\x20]*(?P<number>[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))"
    r"(?P<suffix>[fFdD]?)[\0-\x20]*"
)
_HEXADECIMAL: Final = re.compile(
    r"[\0-\x20]*(?P<number>[+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)"
    r"[fFdD]?[\0-\x20]*"
)


def read_integer(text: str, limit: int) -> int:
    """Parse an integer like ``Integer.valueOf`` or ``Long.valueOf``: a sign and digits of any script, no blanks,
    within the range.

    ``limit`` is the largest value. Raises ``Unreadable``.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java examines single UTF-16 units, so it does not accept digits outside the Basic Multilingual Plane.
    if digits.isdecimal() and max(digits) <= "\uffff" and len(short := digits.lstrip("0")) <= 19:
        value = int(short or "0")
        value = -value if text[0] == "-" else value
        if -limit - 1 <= value <= limit:
            return value
    raise Unreadable(f"{text!r} is not an integer of at most {limit}")


def read_double(text: str) -> float:
    """Parse a number like ``Double.valueOf``, which accepts surrounding blanks, exponents, ``NaN``, ``Infinity``, a
    type suffix and hexadecimal numbers. Raises ``Unreadable``."""
    if found := _DECIMAL.fullmatch(text):
        if found["suffix"] and found["number"][-1] in "Ny":
            raise Unreadable(f"{text!r} is not a number")
        return float(found["number"])
    if found := _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(found["number"])
        except OverflowError:
            return float("-inf") if found["number"].startswith("-") else float("inf")
    raise Unreadable(f"{text!r} is not a number")


def compare_doubles(left: float, right: float) -> int:
    """Compare like ``Double.compareTo``: NaN equals itself and is greater than all other values; -0.0 is less than
    0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    a, b = _order(left), _order(right)
    return (a > b) - (a < b)


def _order(value: float) -> int:
    if value != value:  # NaN
        return 2
    return -1 if value == 0 and str(value)[0] == "-" else 0


def compare(left: Value, left_kind: Kind, right: Value, right_kind: Kind) -> int:
    """Returns a negative number, zero or a positive number, and -1 for types that cannot be converted to a common
    one. Neither operand may be null. Raises ``Unreadable``."""
    if left_kind is right_kind:
        if left_kind is Kind.DOUBLE:
            return compare_doubles(_double(left), _double(right))
        return _sign(left, right)
    if left_kind is Kind.BOOL:
        if right_kind is Kind.TEXT:
            # Apache casts the wrong side here, which throws an exception.
            raise Unreadable("a boolean cannot be compared with text")
        return -1
    if right_kind is Kind.BOOL:
        if left_kind is Kind.TEXT:
            return _sign(str(left).lower() == "true", right)
        return -1
    if Kind.DOUBLE in (left_kind, right_kind):
        return compare_doubles(_double(left), _double(right))
    # Integers of either size, at most one of them a text: the type of the other sets the limit.
    limit = LONG_MAX if Kind.LONG in (left_kind, right_kind) else INT_MAX
    return _sign(
        read_integer(left, limit) if isinstance(left, str) else left,
        read_integer(right, limit) if isinstance(right, str) else right,
    )


def _double(value: Value) -> float:
    assert value is not None
    return read_double(value) if isinstance(value, str) else float(value)


def _sign(left: Value, right: Value) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]  # same kind on both sides
