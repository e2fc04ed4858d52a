"""Converts the properties of many messages to columns: offsets and bytes, in Arrow's layout for variable-size values.

``ends`` is an array of 32-bit numbers in native byte order, with one number more than there are messages. The text of
message n is ``texts[ends[n]:ends[n + 1]]``. Results have the same form.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

__all__ = ["property_pairs", "property_values"]


def property_values(texts: bytes, ends: bytes, names: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Returns a column ``(ends, values)`` for each name, with the property's value in every message.

    If a message has several pairs with one name, the last non-empty one counts; without one the value is empty.
    Raises ``ValueError`` for ends that decrease or are outside the texts, and for a name that is empty or contains a
    separator.
    """
    if any(not name or b"\x01" in name or b"\x02" in name for name in names):
        raise ValueError("no property can have this name")
    rows = list(_cut(texts, ends))
    return [_column([_value(text, name + b"\x01") for text in rows]) for name in names]


def property_pairs(texts: bytes, ends: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Returns all pairs of every message: ``(pair_ends, name_ends, names, value_ends, values)``.

    ``pair_ends`` counts pairs, message by message. If a message has several pairs with one name, only the last one is
    returned, at its own position. Pairs without a name or a value are omitted. Raises ``ValueError`` like
    ``property_values``.
    """
    counts: list[int] = []
    names: list[bytes] = []
    values: list[bytes] = []
    for text in _cut(texts, ends):
        found = _pairs(text)
        counts.append(len(found))
        names += found
        values += found.values()
    return (_ends(counts), *_column(names), *_column(values))


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


def _value(text: bytes, head: bytes) -> bytes:
    """Returns the value of the last pair that begins with ``head`` and is not empty. Does not split the text into
    pairs, which would cost five times as much."""
    at = text.rfind(head)
    while at >= 0:
        if at == 0 or text[at - 1] == 2:
            start = at + len(head)
            end = text.find(b"\x02", start)
            if value := text[start : end if end >= 0 else None]:
                return value
        at = text.rfind(head, 0, at + len(head) - 1)
    return b""


def _pairs(text: bytes) -> dict[bytes, bytes]:
    """Returns values by name, in the order of the pairs that are kept."""
    found: dict[bytes, bytes] = {}
    for pair in text.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            found.pop(name, None)
            found[name] = value
    return found


def _column(parts: list[bytes]) -> tuple[bytes, bytes]:
    return _ends(map(len, parts)), b"".join(parts)


def _ends(lengths: Iterable[int]) -> bytes:
    return array("i", accumulate(lengths, initial=0)).tobytes()
