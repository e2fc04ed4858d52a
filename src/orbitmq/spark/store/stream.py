"""``spark.readStream.format("rocketmq-store")``: the log of a store as a stream, while a broker writes it.

An offset contains the log offset of the next record for each path. The driver scans the bytes appended since the last
batch and takes only whole records. A record that is still being written is left to the next scan. A micro-batch is a
range of the log, whatever topics are selected, so its content does not depend on when it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from orbitmq.errors import CorruptionError
from orbitmq.record.scan import EndKind, scan
from orbitmq.spark.arrow import scan_records
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.store.batch import BlockPartition
from orbitmq.spark.store.checkpoint import indexed_until
from orbitmq.spark.store.files import (
    Block,
    Segment,
    begins_with_record,
    cut_segment,
    list_segments,
    open_segment,
    walked_records,
)
from orbitmq.spark.store.options import StoreOptions
from orbitmq.spark.store.reading import read_block
from orbitmq.spark.worker import leave_modules_uncollected

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

__all__ = ["StoreStreamReader", "blocks_between", "end_of_log", "limited_end"]

logger = logging.getLogger(__name__)

_RECORD_ROOM_BYTES: Final = 64 * 1024
"""How many bytes to search for a record's end when not even one record fits the limit; doubled until it does."""


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's reader for the stream of one query."""

    def __init__(self, options: StoreOptions, columns: Sequence[str] = COLUMNS) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._ends: dict[str, int] = {}
        """How far each log has been scanned."""
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # PySpark's name, like the others below
        if self._options.starting_latest:
            return self._walked()
        return {path: list_segments(path)[0].log_offset for path in sorted(self._options.paths)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.bytes_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._walked()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        ends = self._walked() if self._target is None else self._target
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        found: dict[str, Any] = {}
        for path in sorted(self._options.paths):
            begin = self._begin(path, start, ends[path])
            share = None if most is None else max(1, most // len(self._options.paths))
            found[path] = limited_end(list_segments(path), begin, max(begin, ends[path]), share)
        return start if found == start else found

    def _begin(self, path: str, start: dict[str, Any], end: int) -> int:
        """Returns the log offset at which to resume. If unread parts of the log were lost, raises
        ``CorruptionError``, or logs a warning and skips them."""
        first = list_segments(path)[0].log_offset
        begin = int(start.get(path, first))
        if begin < first:
            self._report(f"{path}: log offsets {begin} to {first} were deleted before they were read")
            return first
        if begin > end:
            self._report(f"{path}: the log ends at {end}, before {begin}, which was read: is it another one?")
            self._ends.pop(path, None)
            return end
        return begin

    def _report(self, problem: str) -> None:
        if self._options.fail_on_data_loss:
            raise CorruptionError(f"{problem}. failOnDataLoss=false continues")
        logger.warning("%s", problem)

    def _walked(self) -> dict[str, int]:
        for path in sorted(self._options.paths):
            segments = list_segments(path)
            known = max(self._ends.get(path, 0), segments[0].log_offset)
            self._ends[path] = end_of_log(segments, known, indexed_until(path, segments) or 0)
        return dict(sorted(self._ends.items()))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return dict(self._ends) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        blocks: list[Block] = []
        for path in sorted(end):
            segments = list_segments(path)
            begin = max(int(start.get(path, 0)), segments[0].log_offset)
            blocks += blocks_between(segments, begin, int(end[path]), self._options.partition_bytes)
        return [BlockPartition(block) for block in blocks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, BlockPartition):
            yield from read_block(partition.block, self._options, self._columns)
        leave_modules_uncollected()

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing, because the position is kept only in the checkpoint."""


def _holding(segments: Sequence[Segment], log_offset: int) -> Segment | None:
    for segment in reversed(segments):
        if segment.log_offset <= log_offset < segment.log_offset + segment.size_bytes:
            return segment
    return None


def end_of_log(segments: Sequence[Segment], log_offset: int, written_until: int = 0) -> int:
    """Returns the log offset where the whole records that begin at ``log_offset`` end. The log is known to be written
    up to ``written_until``."""
    while (segment := _holding(segments, log_offset)) is not None:
        following = segment.log_offset + segment.size_bytes
        behind = _holding(segments, following)
        if behind is not None and begins_with_record(behind):
            log_offset = following  # damage before it is detected by the reader of the segment
            continue
        with open_segment(segment) as data:
            begin = log_offset - segment.log_offset
            _, end = walked_records(segment, data, begin, written_until)
            view = data.read(end, segment.size_bytes)
            log_offset = segment.log_offset + end
            is_over = not len(view) or _is_blank(view)
        if not is_over or behind is None:
            return log_offset
        log_offset = following
    return log_offset


def _is_blank(view: memoryview) -> bool:
    """Returns whether ``view`` begins with the marker of a segment's end."""
    walk = scan(view, 0, len(view), check_crc=False)
    if next(iter(walk), None) is not None:
        return False
    return walk.end is not None and walk.end.kind is EndKind.BLANK


def limited_end(segments: Sequence[Segment], start: int, end: int, most: int | None) -> int:
    """Returns ``end``, or the end of the last record within ``most`` bytes of ``start`` if that is earlier. At least
    one record is included."""
    if most is None or end - start <= most:
        return end
    while (segment := _holding(segments, start)) is not None:
        following = segment.log_offset + segment.size_bytes
        room = most
        with open_segment(segment) as data:
            while True:
                stop = min(start + room, end, following)
                view = data.read(start - segment.log_offset, stop - segment.log_offset)
                starts = scan_records(view, 0, len(view))
                if len(starts):
                    last = int(starts[-1] if room == most else starts[0])
                    return start + last + int.from_bytes(view[last : last + 4], "big")
                if stop >= min(end, following) or _is_blank(view):
                    break
                room = max(2 * room, _RECORD_ROOM_BYTES)
        if following >= end:
            return end
        start = following  # only the marker was left in this segment
    return end


def blocks_between(segments: Sequence[Segment], start: int, end: int, block_bytes: int) -> list[Block]:
    """Returns the records between two log offsets as blocks of about ``block_bytes``. If that is 0, there is one
    block per segment."""
    blocks: list[Block] = []
    for segment in segments:
        begin = max(start, segment.log_offset) - segment.log_offset
        stop = min(end - segment.log_offset, segment.size_bytes)
        if begin < stop:
            blocks += cut_segment(segment, begin, stop, block_bytes)
    return blocks
