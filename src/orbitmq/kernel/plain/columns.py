"""The properties of many messages as columns: offsets and bytes, as Arrow lays out variable-size values.

Here ``ends`` is a row of 32-bit numbers in the machine's byte order, one more than there are messages: the texts of
message n are ``texts[ends[n]:ends[n + 1]]``. Results have the same form.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["property_pairs", "property_values"]


def property_values(texts: bytes, ends: bytes, names: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """For each name its value in every message: ``(ends, values)``.

    Of several pairs with one name the last that is not empty counts; a message without one has an empty value. Raises
    ``ValueError`` for ends that decrease or lie outside of the texts, and for a name that is empty or holds a
    separator.
    """
    if any(not name or b"\x01" in name or b"\x02" in name for name in names):
        raise ValueError("no property can have this name")
    rows = [_pairs(text) for text in _cut(texts, ends)]
    return [_column(row.get(name, b"") for row in rows) for name in names]


def property_pairs(texts: bytes, ends: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """All pairs of every message: ``(pair_ends, name_ends, names, value_ends, values)``.

    ``pair_ends`` counts pairs, message by message. Of several pairs with one name the last stays, in its place; those
    without a name or a value are left out. Raises ``ValueError`` as ``property_values``.
    """
    rows = [_pairs(text) for text in _cut(texts, ends)]
    names = _column(name for row in rows for name in row)
    values = _column(value for row in rows for value in row.values())
    return (_ends(map(len, rows)), *names, *values)


def _cut(texts: bytes, ends: bytes) -> Iterator[bytes]:
    numbers = array("i")
    if not ends or len(ends) % numbers.itemsize:
        raise ValueError("the ends of the texts are cut short")
    numbers.frombytes(ends)
    before = numbers[0]
    if before < 0:
        raise ValueError("a text begins before the first byte")
    for end in numbers[1:]:
        if not before <= end <= len(texts):
            raise ValueError("a text ends before it begins, or behind the last byte")
        yield texts[before:end]
        before = end


def _pairs(text: bytes) -> dict[bytes, bytes]:
    """Values by name, in the order of the pairs that count."""
    found: dict[bytes, bytes] = {}
    for pair in text.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            found.pop(name, None)
            found[name] = value
    return found


def _column(parts: Iterable[bytes]) -> tuple[bytes, bytes]:
    whole = list(parts)
    return _ends(map(len, whole)), b"".join(whole)


def _ends(lengths: Iterable[int]) -> bytes:
    ends = array("i", [0])
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends.tobytes()
