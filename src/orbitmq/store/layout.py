"""Numbers of the store's own files: names, sizes. Records and units are in ``orbitmq.kernel.layout``.

Everything here is persisted: every store directory depends on it. Never renumber.
"""

from __future__ import annotations

from typing import Final

from orbitmq.kernel.layout import UNIT

__all__ = [
    "BLANK_UNIT_SIZE",
    "FILE_NAME_DIGITS",
    "PAGE_BYTES",
    "SCHEDULE_TOPIC",
    "UNIT",
    "UNIT_BYTES",
    "file_name",
    "offset_of_name",
]

UNIT_BYTES: Final = UNIT.size

BLANK_UNIT_SIZE: Final = 0x7FFFFFFF
"""Record size of a unit that stands for no message: the units before the first one of a queue whose numbering
does not start at a file (Apache: preBlank), and those of messages lost to a damaged log."""

FILE_NAME_DIGITS: Final = 20
PAGE_BYTES: Final = 4096
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages wait in this topic; the unit holds the due time in place of the tag code."""


def file_name(offset: int) -> str:
    """Log segments and queue files are named by the offset of their first byte."""
    return f"{offset:020d}"


def offset_of_name(name: str) -> int | None:
    """The offset a file name stands for; None for a name that is not one of ours."""
    if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdecimal():
        return int(name)
    return None
