"""Java's string hash and Apache's checksum."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import mul
from typing import Final
from zlib import crc32

from orbitmq.kernel.layout import CRC_MASK

__all__ = ["body_crc", "body_crcs", "java_hash_bytes"]

_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(256))
"""Java's hash is the sum of ``unit[i] * 31 ** (n - 1 - i)``, truncated to 32 bits."""


def body_crc(data: bytes) -> int:
    """Returns the checksum of a stored body: CRC-32 with the top bit cleared."""
    return crc32(data) & CRC_MASK


def body_crcs(data: bytes | bytearray | memoryview, ranges: bytes) -> bytes:
    """Returns the checksums of parts of ``data``, as native unsigned 32-bit numbers.

    ``ranges`` holds the start and the end of each part, as native signed 64-bit numbers. Raises ``ValueError`` for a
    range outside the data.
    """
    view = memoryview(data)
    if len(ranges) % 16:
        raise ValueError("ranges are pairs of 64-bit numbers")
    places = array("q", ranges)
    found = array("I")
    for start, end in zip(places[::2], places[1::2], strict=True):
        if not 0 <= start <= end <= len(view):
            raise ValueError("a range is outside of the data")
        found.append(crc32(view[start:end]) & CRC_MASK)
    return found.tobytes()


def java_hash_bytes(data: bytes) -> int:
    """Returns ``String.hashCode`` of UTF-8 text, as a signed 32-bit number.

    It is computed over UTF-16 code units. Invalid UTF-8 counts as U+FFFD, like in Java.
    """
    return _java_hash(data if data.isascii() else _units(data.decode("utf-8", "replace")))


def java_hash(text: str) -> int:
    """Like ``java_hash_bytes``, but for a ``str``, which may contain lone surrogates."""
    return _java_hash(_units(text))


def _units(text: str) -> Sequence[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(data[::2], data[1::2], strict=True)]


def _java_hash(units: Sequence[int]) -> int:
    powers: Sequence[int] = _POWERS
    if len(units) > len(powers):
        powers = [pow(31, n, 1 << 32) for n in range(len(units))]
    value: int = sum(map(mul, reversed(units), powers)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
