"""Names and sizes of the store's own files. Records and units are in ``orbitmq.kernel.layout``.

Everything here is persisted: every store directory depends on it. Never renumber.
"""

from __future__ import annotations

from typing import Final

from orbitmq.kernel.layout import UNIT

__all__ = [
    "BLANK_UNIT_SIZE",
    "FILE_NAME_DIGITS",
    "PAGE_BYTES",
    "RECORD_EXTRA_BYTES",
    "SCHEDULE_TOPIC",
    "UNIT",
    "UNIT_BYTES",
    "file_name",
    "offset_of_name",
]

UNIT_BYTES: Final = UNIT.size

BLANK_UNIT_SIZE: Final = 0x7FFFFFFF
"""Record size of a unit without a message: before the first message of a queue whose offsets do not start at a file
(Apache: preBlank), and for messages lost in a damaged log."""

FILE_NAME_DIGITS: Final = 20
PAGE_BYTES: Final = 4096
RECORD_EXTRA_BYTES: Final = 128 << 10
"""Maximum size of a record without its body: 32 KiB of properties, a topic, the header."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic of delayed messages; its units hold the due time in place of the tag code."""


def file_name(offset: int) -> str:
    """Returns the name of a log segment or queue file: the offset of its first byte."""
    return f"{offset:020d}"


def offset_of_name(name: str) -> int | None:
    """Returns the offset in a file name; None if the name does not have the form of ``file_name``."""
    if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdecimal():
        return int(name)
    return None
