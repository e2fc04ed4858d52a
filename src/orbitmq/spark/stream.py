"""Topics as a stream: where it begins, what a micro-batch holds, what was lost on the way.

One reader lives on the driver for the whole life of a query and is asked for offsets; another is pickled to executors
and reads. So nothing that ``read`` needs may be state of this object: it travels in the partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.planning import (
    DataLossError,
    LostRange,
    QueueKey,
    QueueOffsets,
    as_offsets,
    from_offsets,
    limit_offsets,
    loss_text,
    ranges_between,
)
from orbitmq.spark.progress import GroupMirror
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.source import TopicPartition, planned_partitions, starting_offsets

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

__all__ = ["LOST_RANGES", "TopicStreamReader"]

logger = logging.getLogger(__name__)

LOST_RANGES = "lost ranges"
"""Where the progress of a query names what was lost, beside the topics; no topic can have a blank in its name."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of one query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str] = COLUMNS) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def _side(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # PySpark's name, like the others below
        return dict(self._side.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return dict(self._side.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._side.freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._side.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._side.partitions(from_offsets(start), from_offsets(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from orbitmq.spark.reading import read_range

        if isinstance(partition, TopicPartition):
            yield from read_range(self._options, partition.piece, partition.address, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        self._side.mirror.show(from_offsets(end))


class _Driver:
    """State on the driver: what is known of the cluster, of the query's end, and of losses."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self.mirror = GroupMirror(self._cluster, options.group)
        self._target: QueueOffsets | None = None
        self._waiting_since: float | None = None
        self._known_ends: QueueOffsets = {}
        self._lost: dict[QueueKey, list[list[int | None]]] = {}

    def initial(self) -> Mapping[str, Any]:
        return as_offsets(starting_offsets(self._cluster, self._options))

    def freeze(self) -> None:
        """Trigger.AvailableNow: read up to here and no further, whatever arrives or appears later."""
        self._target = self._cluster.latest(self._cluster.queues(expected=True))
        self._known_ends = dict(self._target)

    def latest(self, given: Mapping[str, Any], most: int | None) -> Mapping[str, Any]:
        """The end of the next micro-batch; ``given`` itself when there is none."""
        start = from_offsets(given)
        ends = self._ends(start)
        # Spark asks for the next batch when the one before is done: what lies before ``start`` is processed. Its own
        # ``commit`` comes one batch later, and for the last batch of a run not at all.
        self.mirror.show(start)
        begins = self._begins(start, ends)
        if not self._enough(begins, ends):
            return given
        if most is not None and self._backlog(begins, ends) > most:
            # What is gone must not use up the limit: a stream far behind would pass over it batch by batch, and an
            # error would name one batch of it.
            low = self._cluster.earliest(key for key in self._cluster.queues(expected=True) if key in begins)
            begins = begins | {key: min(max(low[key], begins[key]), ends[key]) for key in low}
        limited = limit_offsets(begins, ends, most)
        return given if limited == start else as_offsets(limited)

    def _ends(self, start: QueueOffsets) -> QueueOffsets:
        """The end of each queue, of those the query knows and of those that appeared since."""
        if self._target is not None:
            # Queues that are not in the target wait for the next run.
            return {key: max(self._target.get(key, offset), offset) for key, offset in start.items()} | {
                key: offset for key, offset in self._target.items() if key not in start
            }
        ends = self._cluster.latest(self._cluster.queues(expected=bool(start)))
        self._known_ends = dict(ends)
        back = [LostRange(key, start[key], None) for key in start if ends.get(key, start[key]) < start[key]]
        self._report(back)
        for key, offset in start.items():
            # A queue whose broker is gone from the route keeps its place until it is back.
            ends.setdefault(key, offset)
        return ends

    def _begins(self, start: QueueOffsets, ends: QueueOffsets) -> QueueOffsets:
        new = [key for key in ends if key not in start]
        return start if not new else start | self._cluster.earliest(new)

    @staticmethod
    def _backlog(begins: QueueOffsets, ends: QueueOffsets) -> int:
        return sum(max(ends[key] - begins[key], 0) for key in ends)

    def _enough(self, begins: QueueOffsets, ends: QueueOffsets) -> bool:
        """Whether ``minOffsetsPerTrigger`` is reached, or has been waited for long enough."""
        least = self._options.offsets_per_trigger_min
        if least is None or self._target is not None:
            return True
        now = SYSTEM_CLOCK.monotonic()
        available = self._backlog(begins, ends)
        if self._waiting_since is None or not available:
            self._waiting_since = now
        if available < least and now - self._waiting_since < self._options.trigger_delay_max_ms / 1000:
            return False
        self._waiting_since = now
        return True

    def partitions(self, start: QueueOffsets, end: QueueOffsets) -> list[InputPartition]:
        """What to read of a micro-batch. The same for the same offsets, but for what was lost since."""
        if start == end:
            return []
        known = set(self._cluster.queues(expected=True))
        moved = [key for key in end if key in known and start.get(key) != end[key]]
        plan = ranges_between(start, end, self._cluster.earliest(moved))
        self._report(plan.lost)
        return planned_partitions(self._cluster, self._options, plan.ranges)

    def report(self) -> dict[str, Any] | None:
        """For the progress of the query: where the queues end, and what was lost."""
        if not self._known_ends and not self._lost:
            return None
        report: dict[str, Any] = dict(as_offsets(self._known_ends))
        if self._lost:
            report[LOST_RANGES] = {str(key): ranges for key, ranges in sorted(self._lost.items())}
        return report

    def _report(self, lost: Sequence[LostRange]) -> None:
        """The one place on the driver where missing messages stop the query or are said and passed over."""
        new = [piece for piece in lost if [piece.start, piece.end] not in self._lost.get(piece.queue, ())]
        if not new:
            return
        if self._options.fail_on_data_loss:
            raise DataLossError(new)
        logger.warning("messages lost before they were read ranges=%s", loss_text(new))
        for piece in new:
            ranges = self._lost.setdefault(piece.queue, [])
            ranges.append([piece.start, piece.end])
            del ranges[:-_LOST_KEPT]


_LOST_KEPT = 20
"""Ranges of one queue that the progress goes on naming."""
