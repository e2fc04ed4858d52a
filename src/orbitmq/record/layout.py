"""The bytes of one message, as numbers. Nothing else in the package knows a position or a magic number.

A record is the same on disk and in the body of a pull response (Apache: ``MessageExtEncoder``,
``MessageDecoder``), big-endian throughout::

    total size 4 | magic 4 | body CRC 4 | queue id 4 | flag 4 | queue offset 8 | log offset 8 | sys flag 4
    born time 8 | born host 8 or 20 | store time 8 | store host 8 or 20 | reconsume times 4 | prepared offset 8
    body size 4 | body | topic size 1 (V1) or 2 (V2) | topic | properties size 2 | properties

Everything here is persisted: every store directory and every client depends on it. Never renumber.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = [
    "BATCH_ENTRY",
    "BLANK",
    "BLANK_BYTES",
    "BODY_SIZE_MAX",
    "BYTE_AT_END_OF_NAME",
    "BYTE_AT_END_OF_PAIR",
    "CRC_MASK",
    "FIXED_V4",
    "FIXED_V6",
    "FIXED_V6_BORN",
    "FIXED_V6_STORE",
    "HOLE_BYTES",
    "HOST_V4",
    "HOST_V4_BYTES",
    "HOST_V6",
    "HOST_V6_BYTES",
    "LENGTH_16",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "OVERHEAD_BYTES_V1",
    "PROPERTIES_BYTES_MAX",
    "RECORD_BYTES_MIN",
    "TOPIC_BYTES_MAX",
    "TOPIC_BYTES_MAX_V1",
]

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
"""Marks the unused rest of a log segment: size 4, magic 4, then anything."""

CRC_MASK: Final = 0x7FFFFFFF
"""Apache keeps checksums non-negative by clearing the top bit."""

FIXED_V4: Final = Struct(">iIIiiqqiq8sq8siqi")
"""Total size up to and including the body size, both hosts IPv4. The magic and the CRC are read unsigned."""
FIXED_V6_BORN: Final = Struct(">iIIiiqqiq20sq8siqi")
FIXED_V6_STORE: Final = Struct(">iIIiiqqiq8sq20siqi")
FIXED_V6: Final = Struct(">iIIiiqqiq20sq20siqi")
assert FIXED_V4.size == 88, "persisted: every record on disk depends on it"
assert FIXED_V6_BORN.size == FIXED_V6_STORE.size == 100, "persisted"
assert FIXED_V6.size == 112, "persisted"

BLANK: Final = Struct(">iI")
BLANK_BYTES: Final = 8
"""A record is only placed where this many bytes stay free behind it in its segment."""
assert BLANK.size == BLANK_BYTES, "persisted: every full log segment ends with it"

LENGTH_16: Final = Struct(">h")
assert LENGTH_16.size == 2, "persisted"

HOST_V4: Final = Struct(">4si")
HOST_V6: Final = Struct(">16si")
HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
assert (HOST_V4.size, HOST_V6.size) == (HOST_V4_BYTES, HOST_V6_BYTES), "persisted"

BATCH_ENTRY: Final = Struct(">iiiii")
"""One entry of a SEND_BATCH_MESSAGE body: total size, magic 0, CRC 0, flag, body size; then the body, properties
size 2, properties."""
assert BATCH_ENTRY.size == 20, "every client sends it"

OVERHEAD_BYTES_V1: Final = FIXED_V4.size + 1 + 2
assert OVERHEAD_BYTES_V1 == 91

RECORD_BYTES_MIN: Final = OVERHEAD_BYTES_V1
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 255
"""%RETRY% and %DLQ% topics may be this long; they need V2 beyond 127."""
PROPERTIES_BYTES_MAX: Final = 32767
BODY_SIZE_MAX: Final = 0x7FFFFFFF - 65536

HOLE_BYTES: Final = 512
"""A disk sector. That many zeroes in a row inside the properties are a lost write: they are never stored."""

BYTE_AT_END_OF_NAME: Final = 0x01
BYTE_AT_END_OF_PAIR: Final = 0x02
