"""Stores the checksum of a whole record in its last property (Apache: ``enabledAppendPropCRC``).

The CRC in a record's header covers only its body. The property ``__CRC32#`` covers everything in front of it: header,
body, topic and the other properties. It has 20 bytes: name, separator, ten digits with the lowest one first, and the
separator that ends a property. A record without the property, written while the option was off, is accepted.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from orbitmq.kernel.layout import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    SLICE,
)
from orbitmq.record.properties import remove_property

__all__ = ["PROPERTY_CRC_BYTES", "first_wrong", "is_right", "reserve", "right_slices", "seal"]

_NAME: Final = b"__CRC32#"
_START: Final = _NAME + b"\x01"
_END: Final = b"\x02"
_DIGITS: Final = 10
PROPERTY_CRC_BYTES: Final = len(_START) + _DIGITS + len(_END)
assert PROPERTY_CRC_BYTES == 20, "persisted"
_RESERVED: Final = _START + b"0" * _DIGITS + _END


def reserve(properties: bytes) -> bytes:
    """Returns a message's properties with room for the checksum. A checksum that the client sent is removed, as in
    Apache."""
    if _NAME in properties:
        properties = remove_property(properties, _NAME)
    if properties and not properties.endswith(_END):
        properties += _END
    return properties + _RESERVED


def seal(records: bytes) -> bytes:
    """Returns the records with their checksums filled in. The records must be adjacent, and their properties must
    come from ``reserve``."""
    sealed, start = bytearray(records), 0
    while start < len(sealed):
        end = start + SIZE_AND_MAGIC.unpack_from(sealed, start)[0]
        at = end - PROPERTY_CRC_BYTES
        sealed[at:end] = _property(crc32(memoryview(records)[start:at]))
        start = end
    return bytes(sealed)


def is_right(record: bytes | memoryview) -> bool:
    """Whether a whole record matches its checksum or has none."""
    at = len(record) - PROPERTY_CRC_BYTES
    found = bytes(record[at:]) if at >= 0 else b""
    if not (found.startswith(_START) and found.endswith(_END)):
        return True
    return found == _property(crc32(record[:at]))


def first_wrong(data: bytes | memoryview, start: int, end: int) -> int:
    """Returns the position of the first of several adjacent records that does not match its checksum; -1 if there is
    none.

    Stops silently at bytes that are not a record, or at a record that is cut off.
    """
    while start + RECORD_BYTES_MIN <= end:
        size, magic = SIZE_AND_MAGIC.unpack_from(data, start)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= end - start:
            return -1
        if not is_right(data[start : start + size]):
            return start
        start += size
    return -1


def right_slices(data: memoryview, slices: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the slices without the records that do not match their checksums, and the queue offset and size of each
    record left out. The records in a slice must be adjacent."""
    wrong: list[tuple[int, int]] = []
    kept: list[bytes] = []
    for start, end in SLICE.iter_unpack(slices):
        while (at := first_wrong(data, start, end)) >= 0:
            size = SIZE_AND_MAGIC.unpack_from(data, at)[0]
            wrong.append((QUEUE_OFFSET.unpack_from(data, at)[0], size))
            if at > start:
                kept.append(SLICE.pack(start, at))
            start = at + size
        if end > start:
            kept.append(SLICE.pack(start, end))
    return b"".join(kept) if wrong else slices, wrong


def _property(checksum: int) -> bytes:
    return _START + f"{checksum & CRC_MASK:010d}"[::-1].encode() + _END
