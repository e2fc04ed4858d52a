"""The bytes of one message and of one queue unit, as numbers; ``kernel/src/layout.rs`` has the same.

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
    "BORN_V6",
    "CRC_MASK",
    "FIXED",
    "HOLE_BYTES",
    "HOST_V4_BYTES",
    "HOST_V6_BYTES",
    "LENGTH_16",
    "LONG",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "PROPERTIES_BYTES_MAX",
    "RECORD_BYTES_MIN",
    "STORE_V6",
    "TOPIC_BYTES_MAX",
    "TOPIC_BYTES_MAX_V1",
    "UNIT",
]

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
"""Marks the unused rest of a log segment: size 4, magic 4, then anything."""

CRC_MASK: Final = 0x7FFFFFFF
"""Apache keeps checksums non-negative by clearing the top bit."""

BORN_V6: Final = 0x10
STORE_V6: Final = 0x20
"""Bits of the system flag: the host takes 20 bytes."""

FIXED: Final = {
    0: Struct(">iIIiiqqiq8sq8siqi"),
    BORN_V6: Struct(">iIIiiqqiq20sq8siqi"),
    STORE_V6: Struct(">iIIiiqqiq8sq20siqi"),
    BORN_V6 | STORE_V6: Struct(">iIIiiqqiq20sq20siqi"),
}
"""Total size up to and including the body size, by the host bits. The magic and the CRC are read unsigned."""
assert [layout.size for layout in FIXED.values()] == [88, 100, 100, 112], "persisted: every record on disk"

BLANK: Final = Struct(">iI")
BLANK_BYTES: Final = 8
"""A record is only placed where this many bytes stay free after it in its segment."""
assert BLANK.size == BLANK_BYTES, "persisted: every full log segment ends with it"

LENGTH_16: Final = Struct(">h")
LONG: Final = Struct(">q")
HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20

BATCH_ENTRY: Final = Struct(">iiiii")
"""One entry of a SEND_BATCH_MESSAGE body: total size, magic 0, CRC 0, flag, body size; then the body, properties
size 2, properties."""
assert BATCH_ENTRY.size == 20, "every client sends it"

UNIT: Final = Struct(">qiq")
"""One consume queue unit: log offset, record size, tag code (or due time, or extension address)."""
assert UNIT.size == 20, "persisted: every consume queue on disk depends on it"

RECORD_BYTES_MIN: Final = 91
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 255
"""%RETRY% and %DLQ% topics may be this long; they need V2 beyond 127."""
PROPERTIES_BYTES_MAX: Final = 32767

HOLE_BYTES: Final = 512
"""A disk sector. That many zeroes in a row inside the properties are a lost write: they are never stored."""
