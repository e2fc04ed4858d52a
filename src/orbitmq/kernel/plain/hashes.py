"""Java's string hash and Apache's checksum."""

from __future__ import annotations

from array import array
from operator import mul
from sys import byteorder
from typing import Final
from zlib import crc32

from orbitmq.kernel.plain.layout import CRC_MASK

__all__ = ["body_crc", "java_hash_bytes"]

_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(256))
"""Java's hash is the sum of ``unit[i] * 31 ** (n - 1 - i)``, cut to 32 bits."""


def body_crc(data: bytes) -> int:
    """The checksum of a stored body: CRC-32 with the top bit cleared."""
    return crc32(data) & CRC_MASK


def java_hash_bytes(data: bytes) -> int:
    """``String.hashCode`` of the text these UTF-8 bytes stand for, as a signed 32-bit number.

    Computed over UTF-16 code units; what is not UTF-8 counts as U+FFFD, as in Java.
    """
    units = array("H", data.decode("utf-8", "replace").encode("utf-16-le"))
    if byteorder == "big":
        units.byteswap()
    value = 0
    for start in range(0, len(units), len(_POWERS)):
        piece = units[start : start + len(_POWERS)]
        value = value * pow(31, len(piece), 1 << 32) + sum(map(mul, reversed(piece), _POWERS))
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
