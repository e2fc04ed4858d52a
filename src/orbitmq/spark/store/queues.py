"""Finds the records of some topics through the consume queues of a store, without reading the log in between.

A consume queue lists the log positions of one queue's messages. The store's checkpoint says up to which log offset
all queues are on disk. Records after that offset are found by scanning the log. A unit may be stale if a topic was
deleted and recreated, so each record's own log offset and topic are checked.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.errors import ConfigError, CorruptionError
from orbitmq.kernel.layout import UNIT
from orbitmq.spark.arrow import Positions
from orbitmq.spark.store.checkpoint import store_root
from orbitmq.spark.store.files import Block, Segment, list_segments, open_segment
from orbitmq.store.layout import offset_of_name

__all__ = ["UnitBlock", "positions_of", "prune"]

_UNITS: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tag", ">i8")])
assert _UNITS.itemsize == UNIT.size
_SAMPLE: Final = 256
_WORTHWHILE: Final = 0.5
"""Part of the log. If the topics are more than this, reading the log sequentially is cheaper."""
_BATCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UnitBlock:
    """Units of one consume queue file that a task reads."""

    location: str
    """Location of the store."""
    path: str
    start: int
    end: int
    log_start: int
    log_end: int
    """Units outside of these log offsets are skipped."""


def prune(
    location: str,
    blocks: Sequence[Block],
    topics: frozenset[str],
    block_bytes: int,
    frontier: int | None,
) -> tuple[list[UnitBlock], list[Block]] | None:
    """Returns the queue units to read for some topics, and the blocks after them, or None if reading only blocks is
    cheaper.

    ``blocks`` are the blocks to read without queues. ``frontier`` is the log offset up to which queues are known to
    be complete.
    """
    root = store_root(location)
    if root is None or not blocks or not all((root / "consumequeue" / topic).is_dir() for topic in topics):
        return None
    low = _log_start(blocks[0])
    if frontier is None or frontier <= low:
        return None
    high = min(frontier, max(block.segment.log_offset + block.end for block in blocks))
    files = [file for file in _files(root, topics) if file.holds(low, high)]
    expected = sum(file.count * file.record_bytes for file in files)
    if expected > _WORTHWHILE * (high - low):
        return None
    units: list[UnitBlock] = []
    for file in files:
        step = max(1, (block_bytes or 1024**3) // file.record_bytes)
        for start in range(0, file.count, step):
            end = min(start + step, file.count)
            units.append(UnitBlock(location, str(file.path), start, end, low, high))
    return units, _behind(blocks, frontier)


def _log_start(block: Block) -> int:
    return block.segment.log_offset + block.start


def _behind(blocks: Sequence[Block], frontier: int) -> list[Block]:
    """Returns the parts of the blocks at or after log offset ``frontier``."""
    found = []
    for block in blocks:
        at = frontier - block.segment.log_offset
        if at < block.end or block.open_end:
            found.append(replace(block, start=max(block.start, min(at, block.end))))
    return [block for block in found if block.start < block.end]


# -- queue files ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _QueueFile:
    path: Path
    count: int
    """Number of written units."""
    first: int
    last: int
    """Log offsets of the first and the last unit."""
    record_bytes: int
    """Average record size, sampled."""

    def holds(self, low: int, high: int) -> bool:
        return self.first < high and self.last >= low


def _files(root: Path, topics: frozenset[str]) -> Iterator[_QueueFile]:
    for topic in sorted(topics):
        for path in sorted((root / "consumequeue" / topic).glob("*/*")):
            if offset_of_name(path.name) is not None and (file := _queue_file(path)) is not None:
                yield file


def _queue_file(path: Path) -> _QueueFile | None:
    units = _mapped_units(path)
    count = _written(units)
    if not count:
        return None
    valid = units[: count : max(1, count // _SAMPLE)]["size"]
    mean = int(valid[valid > 0].mean()) if (valid > 0).any() else 1
    offsets = units["log_offset"]
    return _QueueFile(path, count, int(offsets[0]), int(offsets[count - 1]), max(1, mean))


def _mapped_units(path: Path) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        size = file.seek(0, 2) // UNIT.size * UNIT.size
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    return np.frombuffer(data, _UNITS)


def _written(units: npt.NDArray[Any]) -> int:
    """Returns the number of written units, which are at the beginning of a file."""
    low, high = 0, len(units)
    while low < high:
        middle = (low + high) // 2
        if units["size"][middle] > 0:
            low = middle + 1
        else:
            high = middle
    return low


# -- on the executors ----------------------------------------------------------------------------------

Rows = Callable[[Segment, memoryview, Positions, Positions], Iterator[pa.RecordBatch]]


def positions_of(block: UnitBlock, decode: Rows) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a block of units. ``decode`` receives a segment, its bytes, and the start and end positions
    of some of its records.

    Raises ``CorruptionError`` if a segment or a record is missing.
    """
    units = _mapped_units(Path(block.path))[block.start : block.end]
    offsets = units["log_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    chosen = (sizes > 0) & (offsets >= block.log_start) & (offsets < block.log_end)
    offsets, first = np.unique(offsets[chosen], return_index=True)
    sizes = sizes[chosen][first]
    try:
        segments = list_segments(block.location)
    except ConfigError as error:
        raise CorruptionError(f"{block.location} is missing: {error}") from None
    done = 0
    for segment in segments:
        low, high = np.searchsorted(offsets, [segment.log_offset, segment.log_offset + segment.size_bytes])
        if low == high:
            continue
        done += int(high - low)
        with open_segment(segment) as data:
            view = data.read(0, segment.size_bytes)
            positions = offsets[low:high] - segment.log_offset
            ends = positions + sizes[low:high]
            cuts = np.flatnonzero(np.diff(np.cumsum(sizes[low:high]) // _BATCH_BYTES)) + 1
            for part, part_ends in zip(np.split(positions, cuts), np.split(ends, cuts), strict=True):
                yield from decode(segment, view, part, part_ends)
    if done < len(offsets):
        raise CorruptionError(
            f"{block.location}: {len(offsets) - done} records of {block.path} are missing; were they "
            f"deleted by retention after the read was planned?"
        )
