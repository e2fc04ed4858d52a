"""Java's string hash and Apache's checksum."""

from __future__ import annotations

from zlib import crc32

__all__ = ["body_crc", "java_hash_bytes"]


def body_crc(data: bytes) -> int:
    """The checksum of a stored body: CRC-32 with the top bit cleared."""
    return crc32(data) & 0x7FFFFFFF


def java_hash_bytes(data: bytes) -> int:
    """``String.hashCode`` of the text these UTF-8 bytes stand for, as a signed 32-bit number.

    Computed over UTF-16 code units; what is not UTF-8 counts as U+FFFD, as in Java.
    """
    units = data.decode("utf-8", "replace").encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
