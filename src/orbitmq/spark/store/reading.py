"""Reads planned parts of store files into Arrow batches, without Spark."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same
from pyarrow import fs as pafs

from orbitmq.errors import CorruptionError, RecordError
from orbitmq.record.scan import EndKind, ScanEnd, ScannedRecord, scan
from orbitmq.spark.arrow import Positions, Records, scan_records
from orbitmq.spark.store.checkpoint import indexed_until
from orbitmq.spark.store.damaged_log import Damage, Whole, find_record, whole_records
from orbitmq.spark.store.files import (
    RESYNC_BYTES,
    Block,
    Bytes,
    Segment,
    end_of_data,
    list_segments,
    open_segment,
    plan_blocks,
)
from orbitmq.spark.store.options import StoreOptions
from orbitmq.spark.store.queues import UnitBlock, positions_of, prune

__all__ = ["BATCH_BYTES", "plan_parts", "read_block", "read_units"]

logger = logging.getLogger(__name__)

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Size of the records decoded into one Arrow batch."""


def plan_parts(options: StoreOptions) -> list[Block | UnitBlock]:
    """Returns the parts of a batch read, in file order. Each can be read independently."""
    parts: list[Block | UnitBlock] = []
    for path in options.paths:
        segments = list_segments(path)
        block_bytes = options.partition_bytes
        if block_bytes and options.partitions_min > 1:
            total = sum(segment.size_bytes for segment in segments)
            block_bytes = max(1, min(block_bytes, total // options.partitions_min))
        frontier = indexed_until(path, segments)
        blocks = plan_blocks(
            segments,
            block_bytes=block_bytes,
            starting_ms=options.starting_ms,
            ending_ms=options.ending_ms,
            fail_on_data_loss=options.fail_on_data_loss,
            written_until=frontier or 0,
        )
        if options.topics is not None and options.use_queues:
            pruned = prune(path, blocks, options.topics, block_bytes, frontier)
            if pruned is not None:
                parts += pruned[0]
                blocks = pruned[1]
        parts += blocks
    return parts


def read_units(units: UnitBlock, options: StoreOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the rows that some units of a consume queue point to. Raises like ``read_block``."""
    damage = Damage(units.path, fail=options.fail_on_data_loss)

    def decode(
        segment: Segment, view: memoryview, starts: Positions, ends: Positions
    ) -> Iterator[pa.RecordBatch]:
        yield from _Rows(segment, options, columns).readable(view, starts, ends, 0, damage)

    try:
        yield from positions_of(units, decode)
    except CorruptionError as error:
        if options.fail_on_data_loss:
            raise
        logger.warning("rows lost, skipping the rest of the queue file: %s", error)
    damage.tell()


def read_block(
    block: Block, options: StoreOptions, columns: Sequence[str], filesystem: pafs.FileSystem | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a block.

    Raises ``CorruptionError`` if the block does not consist of whole records from start to end, and ``RecordError``
    for an unreadable record. With ``fail_on_data_loss`` off, exactly the unreadable records are skipped and logged.
    """
    rows = _Rows(block.segment, options, columns)
    reached = block.start
    try:
        with open_segment(block.segment, filesystem) as data:
            windows = _windows(block, data)
            for view, starts, position in _trimmed(block, windows) if block.open_end else windows:
                try:
                    yield from rows.decode(view, starts, position)
                except RecordError:
                    if options.fail_on_data_loss:
                        damage = Damage(block.segment.path, fail=True)
                        yield from rows.readable(view, starts, _ends(view, starts), position, damage)
                    raise
                reached = position + int(_ends(view, starts[-1:])[0])
    except (CorruptionError, RecordError) as error:
        if options.fail_on_data_loss:
            raise
        yield from _salvaged(block, rows, reached, str(error), filesystem)


def _salvaged(
    block: Block, rows: _Rows, reached: int, reason: str, filesystem: pafs.FileSystem | None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a damaged block from position ``reached`` on, without damaged records."""
    log_base = block.segment.log_offset + block.start
    damage = Damage(block.segment.path, fail=False)
    try:
        with open_segment(block.segment, filesystem) as data:
            view = data.read(block.start, block.end)
            whole = rows.whole(block, view)
            for start, end, problem in whole.damaged:
                damage.add(log_base + start, log_base + end, problem, 0)
            damage.rows += whole.rows_missing
            if len(view) < block.end - block.start and not block.open_end:
                damage.add(log_base + len(view), log_base + block.end - block.start, "the file ends", 0)
            starts = whole.starts[whole.starts >= reached - block.start]
            for part in np.split(starts, np.flatnonzero(np.diff(starts // BATCH_BYTES)) + 1):
                yield from rows.readable(view, part, _ends(view, part), block.start, damage)
    except CorruptionError:
        damage.add(block.segment.log_offset + reached, block.segment.log_offset + block.end, reason, 0)
    damage.tell()


def _ends(view: memoryview, starts: Positions) -> Positions:
    """Returns the end of each record, according to the sizes in the records."""
    sizes = [int.from_bytes(view[start : start + 4], "big") for start in starts.tolist()]
    return starts + np.array(sizes, np.int64)


Window = tuple[memoryview, Positions, int]
"""Some bytes, where records begin in them, and the position of the bytes in the segment."""


def _windows(block: Block, data: Bytes) -> Iterator[Window]:
    """Yields the records of a block in windows of bytes."""
    position, size = block.start, BATCH_BYTES
    newest: ScannedRecord | None = None
    while position < block.end:
        end = min(position + size, block.end)
        view = data.read(position, end)
        starts = scan_records(view, 0, len(view))
        if len(starts):
            yield view, starts, position
            last = int(starts[-1])
            if block.open_end:
                newest = find_record(view, last, block.segment.log_offset + position) or newest
            position += last + int.from_bytes(view[last : last + 4], "big")
            size = BATCH_BYTES
        elif end < block.end and position + len(view) == end and not _at_end(view):
            size *= 2  # a record longer than the window
        else:
            _check_end(block, position, data.read(position, position + RESYNC_BYTES), newest)
            return


def _at_end(view: memoryview) -> bool:
    """Returns whether ``view`` begins with zeroes or with the marker of a segment's end."""
    walk = scan(view, 0, len(view), check_crc=False)
    assert next(iter(walk), None) is None
    return walk.end is not None and walk.end.kind in (EndKind.ZEROES, EndKind.BLANK)


def _trimmed(block: Block, windows: Iterator[Window]) -> Iterator[Window]:
    """Yields the windows without an incomplete record at the end of the last one."""
    held: Window | None = None
    for window in windows:
        if held is not None:
            yield held
        held = window
    if held is not None:
        view, starts, position = held
        end = end_of_data(block.segment.path, view, starts, block.segment.log_offset + position)
        yield view, starts[starts < end], position


def _check_end(block: Block, position: int, rest: memoryview, newest: ScannedRecord | None) -> None:
    """Raises ``CorruptionError`` unless the block's records may end before the block does. ``newest`` is the last of
    these records, if known."""
    log_base = block.segment.log_offset + position
    walk = scan(rest, 0, len(rest), check_crc=False, log_base=log_base)
    record = next(iter(walk), None)
    end = walk.end or ScanEnd(EndKind.BAD, 0, "the record runs over the end of its block")
    if record is None and end.kind is EndKind.BLANK and block.last_of_segment:
        return
    following = find_record(rest, 1, log_base) if block.open_end else None
    newer = following is not None and following.store_timestamp_ms >= (
        newest.store_timestamp_ms if newest else 0
    )
    if record is None and end.kind in (EndKind.ZEROES, EndKind.BAD) and block.open_end and not newer:
        if end.kind is EndKind.BAD:
            logger.warning("the log ends with half a record segment=%s: %s", block.segment.path, end.reason)
        return
    problem = end.reason or ("zeroes" if end.kind is EndKind.ZEROES else end.kind.value)
    raise CorruptionError(
        f"{block.segment.path}: no record at log offset {log_base}: {problem}. "
        f"Options: failOnDataLoss=false skips unreadable records, splitSegments=false reads a segment "
        f"from its beginning only"
    )


class _Rows:
    """Converts records to batches of the requested columns."""

    def __init__(self, segment: Segment, options: StoreOptions, columns: Sequence[str]) -> None:
        self._log_base = segment.log_offset
        self._options = options
        self._columns = tuple(columns)
        self._topics = None if options.topics is None else pa.array(sorted(options.topics), pa.string())
        self._pattern = None if options.topic_pattern is None else re.compile(options.topic_pattern)
        filters = ["log_offset"]
        if self._topics is not None or self._pattern is not None:
            filters.append("topic")
        if options.starting_ms is not None or options.ending_ms is not None:
            filters.append("store_timestamp")
        self._filters = tuple(filters) if len(filters) > 1 else ()

    def whole(self, block: Block, view: memoryview) -> Whole:
        """Returns the intact records of a block."""
        return whole_records(
            view,
            self._log_base + block.start,
            open_end=block.open_end,
            last_of_segment=block.last_of_segment,
            check_crc=self._options.verify_crc,
        )

    def readable(
        self, view: memoryview, starts: Positions, ends: Positions, position: int, damage: Damage
    ) -> Iterator[pa.RecordBatch]:
        """Like ``decode``, but leaves out unreadable records and adds them to ``damage``."""
        if not len(starts):
            return
        try:
            yield from self.decode(view, starts, position)
        except RecordError as error:
            if len(starts) == 1:
                base = self._log_base + position
                damage.add(base + int(starts[0]), base + int(ends[0]), str(error), 1)
                return
            # Bisects until the damaged record is isolated.
            middle = len(starts) // 2
            for half in (slice(middle), slice(middle, None)):
                yield from self.readable(view, starts[half], ends[half], position, damage)

    def decode(self, view: memoryview, starts: Positions, position: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows that pass the filters, in one batch. ``view`` begins at ``position`` in the segment.

        Raises ``RecordError`` before it yields any row if one of the records is damaged.
        """
        log_base = self._log_base + position
        records = Records(view, starts)
        if self._filters:
            facts = self._checked(records, starts, self._filters, log_base, verify_crc=False)
            passing = self._passing(facts)
            if not passing.all():
                starts = starts[passing]
                records = Records(view, starts)
        if len(starts):
            yield self._checked(records, starts, self._columns, log_base, verify_crc=self._options.verify_crc)

    def _checked(
        self, records: Records, starts: Positions, columns: Sequence[str], log_base: int, *, verify_crc: bool
    ) -> pa.RecordBatch:
        """Returns the decoded records. Raises ``RecordError`` for a record with another log offset, which is left
        over from an earlier use of the file."""
        wanted = columns if "log_offset" in columns else (*columns, "log_offset")
        batch = records.batch(wanted, broker=self._options.broker, verify_crc=verify_crc)
        says = np.asarray(batch.column("log_offset"))
        wrong = np.flatnonzero(says != starts + log_base)
        if len(wrong):
            row = int(wrong[0])
            raise RecordError(
                f"the record at log offset {int(starts[row]) + log_base} names offset {int(says[row])}"
            )
        return batch if wanted is columns else batch.select(list(columns))

    def _passing(self, facts: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        passing = np.ones(facts.num_rows, np.bool_)
        options = self._options
        if "store_timestamp" in self._filters:
            stored_ms = np.asarray(facts.column("store_timestamp").cast(pa.int64())) // 1000
            if options.starting_ms is not None:
                passing &= stored_ms >= options.starting_ms
            if options.ending_ms is not None:
                passing &= stored_ms < options.ending_ms
        if self._topics is not None:
            # A fifth of the cost of a dictionary of the topics.
            passing &= np.asarray(pc.is_in(facts.column("topic"), value_set=self._topics))
        elif self._pattern is not None:
            topics = facts.column("topic").dictionary_encode()
            judged = [self._pattern.fullmatch(topic) is not None for topic in topics.dictionary.to_pylist()]
            passing &= np.array(judged, np.bool_)[np.asarray(topics.indices)]
        return passing
