"""Distinguishes the torn end of a log from damage, after a stop that the page cache survived.

A killed process leaves everything it wrote. Only its last write may be incomplete, and then it is a prefix: zeros
follow its last byte. So bytes that are not a record are damage if their record was written to its end, or if anything
was written after it. After a power cut this proves nothing, because the disk writes pages in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orbitmq.kernel.layout import (
    BORN_V6,
    FIXED,
    INT,
    LENGTH_16,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    STORE_V6,
    SYS_FLAG_AT,
)
from orbitmq.runtime.filesystem import FileSystem

__all__ = ["complete_size", "written_end"]

_CHUNK_BYTES: Final = 1 << 20


def written_end(fs: FileSystem, handle: int, position: int) -> int:
    """Returns the position after a segment's last byte that is not zero; ``position`` if only zeros follow it."""
    end = position
    at = fs.next_data(handle, position)
    while at is not None:
        chunk = fs.pread(handle, _CHUNK_BYTES, at)
        if not chunk:
            break
        length = len(chunk.rstrip(b"\0"))
        end = max(end, at + length) if length else end
        at = fs.next_data(handle, at + len(chunk))
    return end


def complete_size(data: bytes) -> int:
    """Returns the size of the damaged record at the start of ``data``, if ``data`` contains the whole record;
    otherwise 0.

    ``data`` ends with the last byte written. A record contains its size twice, as a field and as the sum of its
    parts, so one flipped bit leaves one of them correct. The parts of a torn record never add up, because missing
    lengths read as zero and the fields themselves reach beyond the last byte written.
    """
    return next((size for size in _sizes(data) if RECORD_BYTES_MIN <= size <= len(data)), 0)


def _sizes(data: bytes) -> Iterator[int]:
    if len(data) < RECORD_BYTES_MIN:
        return
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    yield size
    (sys_flag,) = INT.unpack_from(data, SYS_FLAG_AT)
    layout = FIXED[sys_flag & (BORN_V6 | STORE_V6)]
    (body_size,) = INT.unpack_from(data, layout.size - INT.size)
    at = layout.size + body_size
    if magic not in (MAGIC_V1, MAGIC_V2) or body_size < 0 or at + LENGTH_16.size > len(data):
        return
    if magic == MAGIC_V1:
        at += 1 + data[at]
    else:
        at += LENGTH_16.size + max(0, LENGTH_16.unpack_from(data, at)[0])
    if at + LENGTH_16.size <= len(data):
        yield at + LENGTH_16.size + LENGTH_16.unpack_from(data, at)[0]
