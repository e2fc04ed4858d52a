"""The log of a store directory as blocks of whole records, for readers without a broker.

The directory may be a copy or belong to a running broker, on a local disk (where it is mapped into memory) or
anywhere that ``pyarrow.fs`` can reach. Nothing is locked or changed.

A segment can be split without reading it, because a record contains its own log offset. A position in the middle of a
file is a boundary if a whole record there has this very offset and a correct checksum. Bytes inside a body could only
match if someone put them there on purpose. To guard against that, the records of a block must end exactly where the
next block begins; otherwise the read fails instead of returning wrong rows.

The last segment is scanned, because its data may be followed by zeroes, half a record, or records from an earlier use
of the file. The scan starts at the segment's beginning, or at the last boundary before the position up to which the
store's checkpoint says the log is written. The table ends where the scan stops, however much is appended during the
read. On a remote file system a scan would read the segment twice, so there the last task finds the end.
"""

from __future__ import annotations

import logging
import mmap
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from pyarrow import fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.errors import ConfigError, CorruptionError
from orbitmq.kernel.layout import BLANK_BYTES, RECORD_BYTES_MIN
from orbitmq.record.scan import EndKind, ScannedRecord, scan
from orbitmq.spark.arrow import Positions, scan_records
from orbitmq.spark.store.damaged_log import MAGIC
from orbitmq.store.layout import FILE_NAME_DIGITS, offset_of_name

__all__ = [
    "Block",
    "Bytes",
    "Segment",
    "begins_with_record",
    "cut_segment",
    "end_of_data",
    "list_segments",
    "open_location",
    "open_segment",
    "plan_blocks",
    "walked_records",
]

logger = logging.getLogger(__name__)

RESYNC_BYTES: Final = 8 * 1024 * 1024
"""How far after an intended boundary to search for a record: twice the largest message of a default broker."""
_CHUNK_BYTES: Final = 1024 * 1024
_COPIED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Up to this much of a local file is copied. That is a sixth faster than the page faults of a mapping, and a file
truncated meanwhile gives fewer bytes instead of SIGBUS."""
CLOCK_SLACK_MS: Final = 60_000
"""How far the broker's clock may have been set back. Apart from that, store times only grow."""
_TAIL_BYTES: Final = 1024 * 1024
_BLOCKS_MIN: Final = 8
_BLOCK_BYTES_MIN: Final = 16 * 1024 * 1024
_S3A: Final = re.compile(r"^s3[an]://")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log."""

    location: str
    path: str
    log_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """The records of one segment that a task reads. Positions are relative to the file."""

    segment: Segment
    start: int
    end: int
    first_ms: int
    """Store time of the block's first record."""
    open_end: bool = False
    """``end`` is that of the file, and the end of the records is unknown."""
    last_of_segment: bool = False
    """The marker of the segment's end may be before ``end``."""


class Bytes(Protocol):
    """The content of an open segment."""

    def read(self, start: int, end: int) -> memoryview:
        """Returns the bytes between two positions, or fewer if the file ends earlier."""


def open_location(location: str) -> tuple[pafs.FileSystem, str]:
    """Returns the file system and path for a local path or a URI. Raises ``ConfigError``."""
    try:
        if "://" not in location:
            return pafs.LocalFileSystem(), location.removeprefix("file:")
        # Spark uses Hadoop's name for S3, Arrow its own.
        filesystem, path = pafs.FileSystem.from_uri(_S3A.sub("s3://", location))
    except (OSError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"cannot open {location!r}: {error}") from None
    return filesystem, path


def list_segments(location: str, filesystem: pafs.FileSystem | None = None) -> list[Segment]:
    """Returns the log files of a store, by offset. ``location`` is the store's root, its ``commitlog`` directory, or
    one file in it.

    Raises ``ConfigError`` if there is none.
    """
    if filesystem is None:
        filesystem, root = open_location(location)
    else:
        root = location
    log = posixpath.join(root, "commitlog")
    try:
        info = filesystem.get_file_info([log, root])
        directory = next((one.path for one in info if one.type == pafs.FileType.Directory), None)
        found = info[1:] if directory is None else filesystem.get_file_info(pafs.FileSelector(directory))
    except OSError as error:
        raise ConfigError(f"cannot list {location!r}: {error}") from None
    segments = [
        Segment(location, one.path, log_offset, one.size)
        for one in found
        if one.type == pafs.FileType.File and (log_offset := offset_of_name(one.base_name)) is not None
    ]
    if not segments:
        raise ConfigError(
            f"there is no commit log at {location!r}: give the root of a store, its commitlog directory or "
            f"one of the files in that (names of {FILE_NAME_DIGITS} digits)"
        )
    return sorted(segments, key=lambda segment: segment.log_offset)


class _Local:
    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 - closed by open_segment

    def read(self, start: int, end: int) -> memoryview:
        if end - start <= _COPIED_BYTES_MAX:
            return memoryview(os.pread(self._file.fileno(), max(0, end - start), start))
        if not self._file.seek(0, 2):
            return memoryview(b"")
        # Unmapped when the last array on it is released.
        return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))[start:end]

    def close(self) -> None:
        self._file.close()


class _Remote:
    def __init__(self, filesystem: pafs.FileSystem, path: str) -> None:
        self._file = filesystem.open_input_file(path)

    def read(self, start: int, end: int) -> memoryview:
        size = self._file.size()
        end = min(end, size)
        return memoryview(self._file.read_at(end - start, start) if end > start else b"")

    def close(self) -> None:
        self._file.close()


@contextmanager
def open_segment(segment: Segment, filesystem: pafs.FileSystem | None = None) -> Iterator[Bytes]:
    """Opens a segment until the block ends. Raises ``CorruptionError`` if the file is missing."""
    if filesystem is None:
        filesystem, _ = open_location(segment.location)
    opened: _Local | _Remote
    try:
        if isinstance(filesystem, pafs.LocalFileSystem):
            opened = _Local(segment.path)
        else:
            opened = _Remote(filesystem, segment.path)
    except FileNotFoundError:
        raise CorruptionError(
            f"{segment.path} is missing; was it deleted by retention after the read was planned?"
        ) from None
    try:
        yield opened
    finally:
        opened.close()


# -- planning ------------------------------------------------------------------------------------------


def plan_blocks(
    segments: Sequence[Segment],
    *,
    block_bytes: int,
    starting_ms: int | None = None,
    ending_ms: int | None = None,
    fail_on_data_loss: bool = True,
    filesystem: pafs.FileSystem | None = None,
    written_until: int = 0,
) -> list[Block]:
    """Returns the blocks that may contain records stored at or after ``starting_ms`` and before ``ending_ms``.

    Segments are not split if ``block_bytes`` is 0. The log is known to be written up to ``written_until``. If a
    segment does not begin with a record, raises ``CorruptionError``, or logs and skips that segment if
    ``fail_on_data_loss`` is off.
    """
    written = _written(segments, fail_on_data_loss, filesystem)
    blocks: list[Block] = []
    for index, (segment, first_ms) in enumerate(written):
        is_last = index == len(written) - 1
        following_ms = None if is_last else written[index + 1][1]
        if not _may_hold(first_ms, following_ms, starting_ms, ending_ms):
            continue
        with open_segment(segment, filesystem) as data:
            if is_last:
                blocks += _last_blocks(segment, data, first_ms, block_bytes, written_until)
            else:
                blocks += _blocks(segment, data, first_ms, block_bytes, segment.size_bytes)
    nexts = [*(block.first_ms for block in blocks[1:]), None]
    return [
        block
        for block, following_ms in zip(blocks, nexts, strict=False)
        if _may_hold(block.first_ms, following_ms, starting_ms, ending_ms)
    ]


def _written(
    segments: Sequence[Segment], fail_on_data_loss: bool, filesystem: pafs.FileSystem | None
) -> list[tuple[Segment, int]]:
    """Returns the non-empty segments, each with the store time of its first intact record."""
    firsts = [_first_record(segment, filesystem) for segment in segments]
    while firsts and firsts[-1] is None:
        firsts.pop()  # segments are created in advance, and the newest may begin with half a record
    written: list[tuple[Segment, int]] = []
    for segment, first in zip(segments, firsts, strict=False):
        if first is None or (first[0] > 0 and fail_on_data_loss):
            behind = (
                "no whole record" if first is None else f"the next one at {segment.log_offset + first[0]}"
            )
            problem = (
                f"{segment.path} ({segment.size_bytes} bytes) does not begin with a record of log offset "
                f"{segment.log_offset}; behind that stands {behind}"
            )
            if fail_on_data_loss:
                raise CorruptionError(problem)
            logger.warning("segment skipped: %s", problem)
        else:
            written.append((segment, first[1]))
    return written


def _may_hold(
    first_ms: int, following_ms: int | None, starting_ms: int | None, ending_ms: int | None
) -> bool:
    """Returns whether a segment may contain records of the requested time range. Its records are stored from
    ``first_ms`` up to ``following_ms``, or without an upper bound if that is None."""
    if ending_ms is not None and first_ms - CLOCK_SLACK_MS >= ending_ms:
        return False
    return starting_ms is None or following_ms is None or following_ms + CLOCK_SLACK_MS >= starting_ms


def _first_record(segment: Segment, filesystem: pafs.FileSystem | None) -> tuple[int, int] | None:
    """Returns the position and store time of a segment's first intact record, or None. The position is 0 unless the
    segment is damaged."""
    with open_segment(segment, filesystem) as data:
        record = _record_at(data, 0, segment)
        if record is not None:
            return 0, record.store_timestamp_ms
        return _resync(segment, data, 1, segment.size_bytes, within=segment.size_bytes)


def begins_with_record(segment: Segment) -> bool:
    """Returns whether a segment begins with an intact record, which means that the segments before it are full."""
    with open_segment(segment) as data:
        return _record_at(data, 0, segment) is not None


def _record_at(data: Bytes, position: int, segment: Segment) -> ScannedRecord | None:
    """Returns the intact record at a position whose log offset matches, or None."""
    size = int.from_bytes(data.read(position, position + 4), "big", signed=True)
    if size < RECORD_BYTES_MIN or position + size > segment.size_bytes:
        return None
    view = data.read(position, position + size)
    return next(iter(scan(view, 0, len(view), log_base=segment.log_offset + position)), None)


def _blocks(segment: Segment, data: Bytes, first_ms: int, block_bytes: int, end: int) -> list[Block]:
    """Splits a segment near each multiple of ``block_bytes``, where a record is found."""
    starts = [(0, first_ms)]
    if block_bytes:
        for wish in range(block_bytes, end, block_bytes):
            found = _resync(segment, data, max(wish, starts[-1][0] + 1), min(wish + block_bytes, end))
            if found is not None:
                starts.append(found)
    ends = [*(start for start, _ in starts[1:]), end]
    last = len(starts) - 1
    return [
        Block(segment, start, stop, first_ms, last_of_segment=index == last)
        for index, ((start, first_ms), stop) in enumerate(zip(starts, ends, strict=True))
    ]


def cut_segment(segment: Segment, start: int, end: int, block_bytes: int) -> list[Block]:
    """Returns part of a segment as blocks. Records begin at ``start``, and end at ``end`` or with the segment."""
    starts = [start]
    if block_bytes and end - start > block_bytes:
        with open_segment(segment) as data:
            for wish in range(start + block_bytes, end, block_bytes):
                found = _resync(segment, data, max(wish, starts[-1] + 1), min(wish + block_bytes, end))
                if found is not None:
                    starts.append(found[0])
    whole = end == segment.size_bytes
    return [
        Block(segment, begin, stop, 0, last_of_segment=whole and stop == end)
        for begin, stop in zip(starts, [*starts[1:], end], strict=True)
    ]


def _resync(
    segment: Segment, data: Bytes, start: int, end: int, *, within: int = RESYNC_BYTES
) -> tuple[int, int] | None:
    """Returns the position and store time of the first record that begins at or after ``start`` and before ``end``,
    or None."""
    end = min(end, start + within)
    position = start
    while position < end:
        # The magic follows the size. Chunks overlap so that none is cut.
        chunk = bytes(data.read(position, min(position + _CHUNK_BYTES, end) + BLANK_BYTES))
        if not chunk.strip(b"\0"):
            return None  # nothing is written here
        for match in MAGIC.finditer(chunk):
            candidate = position + match.start() - 4
            if start <= candidate < end and (record := _record_at(data, candidate, segment)) is not None:
                return candidate, record.store_timestamp_ms
        position += _CHUNK_BYTES
    return None


def _last_blocks(
    segment: Segment, data: Bytes, first_ms: int, block_bytes: int, written_until: int
) -> list[Block]:
    """Returns the blocks of the segment that is being written."""
    if isinstance(data, _Local):
        known = min(written_until - segment.log_offset, segment.size_bytes)
        step = _even_bytes(known, block_bytes) if known > 0 else 0
        cuts = _blocks(segment, data, first_ms, step, known) if step and block_bytes else []
        # The last block is scanned too, because a copy taken from a running broker may end before its checkpoint.
        begin = cuts[-1].start if cuts else 0
        return [
            *cuts[:-1],
            *_walked_blocks(segment, data, begin, step if begin else block_bytes, written_until),
        ]
    blocks = _blocks(segment, data, first_ms, block_bytes, segment.size_bytes)
    last = blocks.pop()
    return [*blocks, Block(segment, last.start, last.end, last.first_ms, open_end=True, last_of_segment=True)]


def _even_bytes(total: int, block_bytes: int) -> int:
    """Returns a block size of at most ``block_bytes`` with which all blocks are equally large, so that several cores
    finish together. A few large blocks become more, smaller ones."""
    if not block_bytes or not total:
        return max(total, 1)
    count = max(-(-total // block_bytes), min(_BLOCKS_MIN, total // _BLOCK_BYTES_MIN))
    return -(-total // count)


def walked_records(segment: Segment, data: Bytes, begin: int, written_until: int) -> tuple[Positions, int]:
    """Returns the positions of a segment's records from the one at ``begin``, and the end of the last whole record.
    Damaged parts followed by newer records are skipped here; the reader of the records detects them."""
    view = data.read(0, segment.size_bytes)
    chains: list[Positions] = []
    at: int | None = begin
    end, newest_ms = begin, 0
    while at is not None:
        starts = scan_records(view, at, len(view))
        if len(starts):
            chains.append(starts)
            end = end_of_data(segment.path, view, starts, segment.log_offset, quiet=True)
            last = _record_at(data, int(starts[-1]), segment)
            newest_ms = newest_ms if last is None else last.store_timestamp_ms
        at = _behind_damage(segment, data, end, newest_ms, written_until) if end < len(view) else None
    if chains:
        end_of_data(segment.path, view, chains[-1], segment.log_offset)
    return np.concatenate(chains) if chains else np.zeros(0, np.int64), end


def _behind_damage(segment: Segment, data: Bytes, end: int, newest_ms: int, written_until: int) -> int | None:
    """Returns where whole records resume after ``end``, at which no record begins, or None if the log ends there.

    The end of a log may be followed by records from an earlier use of the file, which are older than those before it.
    """
    found = _resync(segment, data, end + 1, segment.size_bytes, within=segment.size_bytes)
    if found is None:
        return None
    if _record_at(data, end, segment) is not None:
        return end  # a broker has appended meanwhile
    position, stored_ms = found
    return position if stored_ms >= newest_ms or segment.log_offset + position < written_until else None


def _walked_blocks(
    segment: Segment, data: Bytes, begin: int, block_bytes: int, written_until: int
) -> list[Block]:
    """Returns the blocks from the record at ``begin`` to the last whole record."""
    starts, end = walked_records(segment, data, begin, written_until)
    wishes = range(begin, end, block_bytes if begin else _even_bytes(end, block_bytes))
    chosen = np.unique(np.searchsorted(starts, list(wishes)))
    cuts = [int(starts[index]) for index in chosen.tolist() if index < len(starts) and starts[index] < end]
    blocks: list[Block] = []
    for start, stop in zip(cuts, [*cuts[1:], end], strict=True):
        record = _record_at(data, start, segment)
        # A damaged record may begin a block; the reader reports it with its offset.
        first_ms = record.store_timestamp_ms if record is not None else 0
        blocks.append(Block(segment, start, stop, first_ms))
    return blocks


def end_of_data(path: str, view: memoryview, starts: Positions, log_base: int, *, quiet: bool = False) -> int:
    """Returns the end of the last whole record of ``starts``. Logs a warning, unless ``quiet``, if half a record
    follows.

    The last record on disk may be incomplete although its size and magic are correct. This shows in its checksum, or
    as zeroes in its text.
    """
    last = int(starts[-1])
    walked_end = last + int.from_bytes(view[last : last + 4], "big")
    near = int(starts[int(np.searchsorted(starts, max(0, walked_end - _TAIL_BYTES)))])
    walk = scan(view, near, len(view), log_base=log_base)
    for _ in walk:
        pass
    assert walk.end is not None
    if walk.end.kind is EndKind.BAD and not quiet:
        logger.warning("the log ends with half a record path=%s at=%d: %s", path, *walk.end[1:])
    # Bad bytes followed by whole records are damage, not an end; the reader will detect them.
    return last if walk.end.position == last else walked_end
