"""The byte layout of a message, a queue unit and a frame, as constants; ``kernel/src/layout.rs`` has the same ones.

A record is the same on disk and in the body of a pull response (Apache: ``MessageExtEncoder``,
``MessageDecoder``), big-endian throughout::

    total size 4 | magic 4 | body CRC 4 | queue id 4 | flag 4 | queue offset 8 | log offset 8 | sys flag 4
    born time 8 | born host 8 or 20 | store time 8 | store host 8 or 20 | reconsume times 4 | prepared offset 8
    body size 4 | body | topic size 1 (V1) or 2 (V2) | topic | properties size 2 | properties

Everything here is persisted or sent: every store directory and every client depends on it. Never renumber. No other
file of the package defines a Struct for these.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = [
    "BATCH_ENTRY",
    "BINARY_FIXED",
    "BINARY_KEY_LENGTH",
    "BINARY_MIN",
    "BLANK",
    "BLANK_BYTES",
    "BORN_HOST_AT",
    "BORN_V6",
    "CRC_MASK",
    "FIXED",
    "FIXED_FIELDS",
    "FIXED_V4",
    "FIXED_V6",
    "FIXED_V6_BORN",
    "FIXED_V6_STORE",
    "FLAG_AND_STORE_TIME",
    "FRAME_LENGTH",
    "FRAME_PREFIX",
    "HEADER_LENGTH_MASK",
    "HOLE_BYTES",
    "HOST_V4",
    "HOST_V4_BYTES",
    "HOST_V6",
    "HOST_V6_BYTES",
    "HOST_V6_MORE_BYTES",
    "IDENTITY",
    "INDEX_ENTRY",
    "INDEX_KEY",
    "INT",
    "LENGTH_16",
    "LONG",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "OVERHEAD_BYTES_V1",
    "PROPERTIES_BYTES_MAX",
    "QUEUE_OFFSET",
    "RECORD_BYTES_MIN",
    "SIZE_AND_MAGIC",
    "SLICE",
    "STORE_TIME_AT",
    "STORE_V6",
    "SYS_FLAG_AT",
    "TOPIC_BYTES_MAX",
    "TOPIC_BYTES_MAX_V1",
    "UNIT",
]

# Records.
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
"""Marks the unused rest of a log segment: size 4, magic 4, then anything."""

CRC_MASK: Final = 0x7FFFFFFF
"""Apache keeps checksums non-negative by clearing the top bit."""

BORN_V6: Final = 0x10
STORE_V6: Final = 0x20
"""Bits of the system flag: the host takes 20 bytes."""

HOST_V4: Final = Struct(">4si")
HOST_V6: Final = Struct(">16si")
HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
HOST_V6_MORE_BYTES: Final = HOST_V6_BYTES - HOST_V4_BYTES
assert (HOST_V4.size, HOST_V6.size) == (HOST_V4_BYTES, HOST_V6_BYTES), "persisted"

FIXED_FIELDS: Final = (
    "size",
    "magic",
    "body_crc",
    "queue_id",
    "flag",
    "queue_offset",
    "log_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_offset",
    "body_size",
)
FIXED_V4: Final = Struct(">iIIiiqqiq8sq8siqi")
"""From the total size through the body size, with two IPv4 hosts. The magic and the CRC are read unsigned."""
FIXED_V6_BORN: Final = Struct(">iIIiiqqiq20sq8siqi")
FIXED_V6_STORE: Final = Struct(">iIIiiqqiq8sq20siqi")
FIXED_V6: Final = Struct(">iIIiiqqiq20sq20siqi")
FIXED: Final = {
    0: FIXED_V4,
    BORN_V6: FIXED_V6_BORN,
    STORE_V6: FIXED_V6_STORE,
    BORN_V6 | STORE_V6: FIXED_V6,
}
"""Layouts by the host bits of the system flag."""
assert [layout.size for layout in FIXED.values()] == [88, 100, 100, 112], "persisted: every record on disk"

IDENTITY: Final = Struct(">iI20xq")
"""Size, magic and the record's own log offset."""
SIZE_AND_MAGIC: Final = Struct(">iI")
QUEUE_OFFSET: Final = Struct(">20xq")
"""The queue offset, unpacked from the start of a record."""
SYS_FLAG_AT: Final = 36
BORN_HOST_AT: Final = 48
STORE_TIME_AT: Final = 56
"""Position with an IPv4 born host; an IPv6 one adds ``HOST_V6_MORE_BYTES``."""
FLAG_AND_STORE_TIME: Final = Struct(">i16xq")
"""Unpacked from ``SYS_FLAG_AT``, with an IPv4 born host."""
INT: Final = Struct(">i")
LONG: Final = Struct(">q")
"""A single field."""
assert SYS_FLAG_AT + FLAG_AND_STORE_TIME.size == STORE_TIME_AT + LONG.size

BLANK: Final = SIZE_AND_MAGIC
BLANK_BYTES: Final = 8
"""Bytes that must stay free in the segment after every record."""
assert BLANK.size == BLANK_BYTES, "persisted: every full log segment ends with it"

LENGTH_16: Final = Struct(">h")
assert LENGTH_16.size == 2, "persisted"

OVERHEAD_BYTES_V1: Final = FIXED_V4.size + 1 + LENGTH_16.size
assert OVERHEAD_BYTES_V1 == 91
RECORD_BYTES_MIN: Final = OVERHEAD_BYTES_V1
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 255
"""%RETRY% and %DLQ% topics may be this long; they need V2 beyond 127."""
PROPERTIES_BYTES_MAX: Final = 32767

HOLE_BYTES: Final = 512
"""A disk sector. That many consecutive zeros inside the properties mean a lost write, so they are never stored."""


BATCH_ENTRY: Final = Struct(">iiiii")
"""One entry of a SEND_BATCH_MESSAGE body: total size, magic 0, CRC 0, flag, body size; then the body, properties
size 2, properties."""
assert BATCH_ENTRY.size == 20, "every client sends it"

# Queue units.
SLICE: Final = Struct(">qq")
"""Start and end of a slice within a piece of the log; neither persisted nor sent."""
UNIT: Final = Struct(">qiq")
"""One consume queue unit: log offset, record size, tag code (or due time, or extension address)."""
assert UNIT.size == 20, "persisted: every consume queue on disk depends on it"

# Index.
INDEX_KEY: Final = Struct(">iqq")
"""A key to be added to the index: hash (not negative), log offset, store time."""
INDEX_ENTRY: Final = Struct(">iqii")
"""An index file entry: key hash, log offset, seconds since the begin time, number of the slot's previous entry."""
assert INDEX_KEY.size == INDEX_ENTRY.size == 20, "persisted: every index file on disk depends on it"

# Frames.
FRAME_LENGTH: Final = Struct(">i")
FRAME_PREFIX: Final = Struct(">ii")
"""Length of the rest of the frame, and the header word."""
HEADER_LENGTH_MASK: Final = 0xFFFFFF
"""Mask of the header word; its top byte is the header's form."""
BINARY_FIXED: Final = Struct(">hBhiii")
"""Start of a binary header: code, language, version, opaque, flag, remark length."""
BINARY_KEY_LENGTH: Final = Struct(">h")
BINARY_MIN: Final = BINARY_FIXED.size + FRAME_LENGTH.size
assert BINARY_MIN == 21, "wire format: the shortest binary header"
