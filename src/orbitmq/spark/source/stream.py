"""Topics as a stream: where it starts, what each micro-batch contains, and which messages were lost.

One reader lives on the driver for the whole life of a query and returns offsets. Copies of it are pickled to the
executors, which read the messages. So ``read`` cannot depend on the state of this object, and everything that it
needs is in the partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from orbitmq.errors import ConfigError, ConnectionLostError
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.spark.cluster import Answers, Cluster
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.source.batch import TopicPartition, planned_partitions
from orbitmq.spark.source.bounds import starting_offsets
from orbitmq.spark.source.planning import (
    DataLossError,
    LostRange,
    QueueKey,
    QueueOffsets,
    as_offsets,
    from_offsets,
    limit_offsets,
    loss_text,
    ranges_between,
    read_at,
    restarted_at,
    stamped,
)
from orbitmq.spark.source.progress import GroupMirror
from orbitmq.spark.worker import leave_modules_uncollected

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

__all__ = ["LOST_RANGES", "TopicStreamReader"]

logger = logging.getLogger(__name__)

LOST_RANGES = "lost ranges"
"""Key of the lost ranges in the progress of a query, next to the topics. No topic can have a blank in its name."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's reader for the stream of one query."""

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
        return self._side.partitions(from_offsets(start), from_offsets(end), restarted_at(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from orbitmq.spark.source.reading import read_ranges

        if isinstance(partition, TopicPartition):
            yield from read_ranges(
                self._options,
                partition.pieces,
                partition.address,
                self._columns,
                from_master=partition.from_master,
            )
        leave_modules_uncollected()

    def commit(self, end: dict[str, Any]) -> None:
        self._side.mirror.show(from_offsets(end))


class _Driver:
    """The driver's state: what is known about the cluster, the ends of the queues, and losses."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self.mirror = GroupMirror(self._cluster, options.group)
        self._target: Answers | None = None
        self._frozen = False
        self._waiting_since: float | None = None
        self._silent_since: float | None = None
        self._answers = Answers()
        self._known_ends: QueueOffsets = {}
        self._begun_ms: int | None = None
        self._compared = False
        self._lost: dict[QueueKey, list[list[int | None]]] = {}
        self._hidden: QueueOffsets = {}
        self._gone: list[LostRange] = []

    def initial(self) -> Mapping[str, Any]:
        self._begun_ms = SYSTEM_CLOCK.now_ms()
        offsets = starting_offsets(self._cluster, self._options)
        self._cluster.check_filter(offsets)
        return as_offsets(offsets)

    def freeze(self) -> None:
        """Limits the query to the current ends for Trigger.AvailableNow, whatever messages or queues appear later."""
        self._frozen = True
        try:
            self._target = self._cluster.latest_of_all(self._cluster.queues())
        except ConfigError:
            # No such topic. Only the checkpoint, which Spark passes with the first batch, shows whether it existed.
            return

    def latest(self, given: Mapping[str, Any], most: int | None) -> Mapping[str, Any]:
        """Returns the end of the next micro-batch, or ``given`` itself if there is nothing to read."""
        start = from_offsets(given)
        ends = self._ends(start)
        now_ms = SYSTEM_CLOCK.now_ms()  # after the answers: messages stored from now on are after these ends
        # Spark requests the next batch when the previous one is done, so everything before ``start`` is processed.
        # Its own ``commit`` comes one batch later, and for the last batch of a run not at all.
        self.mirror.show(start)
        since = read_at(given)
        restarted = self._restarted(start, ends, self._begun_ms if since is None else since)
        self._note_ends()
        begins = self._begins(start, ends) | restarted
        if not self._enough(begins, ends):
            return given
        most = self._by_bytes(begins, ends, most)
        if most is not None and self._backlog(begins, ends) > most:
            # Lost ranges must not use up the limit: a stream far behind would step over them batch by batch, and an
            # error would name only one batch of them.
            low = self._cluster.earliest_known(key for key in self._cluster.queues() if key in ends)
            begins = begins | {key: min(max(low[key], begins[key]), ends[key]) for key in low}
        limited = limit_offsets(begins, ends, most)
        self._compared = True
        return given if limited == start and not restarted else stamped(limited, restarted, now_ms)

    def _ends(self, start: QueueOffsets) -> QueueOffsets:
        """Returns the end of each known or new queue. An end before its ``start`` means that this is not the queue
        that was read."""
        if self._frozen and self._target is None:
            self._target = self._cluster.latest_of_all(self._cluster.queues(expected=start))
        if self._target is not None:
            answers = self._target
            # Queues missing from the target wait for the next run.
            gone = self._cluster.deleted(key for key in start if key not in answers.offsets)
        else:
            queues = self._cluster.queues(expected=start)
            answers = self._cluster.latest_known(queues)
            self._check_silence(bool(answers.offsets) or not queues)
            listed = set(queues)
            gone = self._cluster.deleted(
                key for key in start if key not in answers.offsets and key not in listed
            )
        fewer, unsure = self._fewer_queues(start)
        gone |= fewer
        if fewer:
            self._compared = False  # the topic was recreated, so regrown queues must be found, too
        self._answers = answers
        held = {key[:2] for key in unsure}  # it will soon be known whether the topic was recreated
        ends = {key: end for key, end in answers.offsets.items() if key not in gone and key[:2] not in held}
        for key in answers.of_slaves & start.keys() & ends.keys():
            ends[key] = max(ends[key], start[key])  # a lagging slave has lost nothing
        self._note_deleted(start, gone)
        # Queues of an unavailable broker keep their position until it is back.
        return ends | {key: start[key] for key in start if key not in ends and key not in gone}

    def _fewer_queues(self, reached: QueueOffsets) -> tuple[set[QueueKey], set[QueueKey]]:
        """Returns the queues that no longer exist because their topic was recreated with fewer queues, and the queues
        for which this cannot be determined now.

        A topic that was only shrunk keeps the messages of its hidden queues, which keep their position.
        """
        found, unsure = self._cluster.removed(reached)
        ends = {key: end for key, end in found.offsets.items() if key in reached}
        for key, end in ends.items():
            if end > reached[key] and self._hidden.get(key) != end:
                self._hidden[key] = end
                logger.warning(
                    "topic has fewer queues, unread messages remain queue=%s from=%d to=%d",
                    key,
                    reached[key],
                    end,
                )
        lost = {key for key, end in ends.items() if end < reached[key] and key not in found.of_slaves}
        return lost, unsure

    def _restarted(self, start: QueueOffsets, ends: QueueOffsets, since_ms: int | None) -> QueueOffsets:
        """Returns where to restart queues that are not the ones that were read, either because their topic was
        deleted and recreated, or because their broker lost its last messages in a restart.

        Messages stored since ``since_ms`` are new; older ones were read.
        """
        wrong = {key for key in start if ends.get(key, start[key]) < start[key]}
        # One recreated queue means that the topic's other queues were recreated too, and may have regrown by now.
        if since_ms is not None and (wrong or not self._compared):
            wrong |= self._regrown(start, ends, since_ms)
        begins: QueueOffsets = {}
        if wrong:
            found = dict(ends) if since_ms is None else self._cluster.at_time_known(wrong, since_ms + 1)
            for key in wrong - found.keys():
                ends[key] = start[key]  # its broker is unavailable now; retry later
            begins = {key: min(found[key], ends[key]) for key in sorted(wrong & found.keys())}
        ended = [LostRange(key, start[key], self._unread_end(key, start[key]), ends[key]) for key in begins]
        self._report(
            sorted(self._gone + ended, key=lambda lost: lost.queue)
        )  # in one call, so that an error names all of them
        for key, begin in begins.items():
            logger.warning("queue restarted queue=%s reached=%d begin=%d", key, start[key], begin)
        return begins

    def _regrown(self, start: QueueOffsets, ends: QueueOffsets, since_ms: int) -> set[QueueKey]:
        """Returns recreated queues that already have at least as many messages as were read from the old ones.

        Their first message is younger than the checkpoint. This is checked when a query resumes, and when another
        queue was recreated.
        """
        answered = self._answers.offsets
        keys = [key for key, at in start.items() if key in answered and 0 < at <= ends.get(key, -1)]
        later = self._cluster.at_time_known(keys, since_ms + _CLOCK_SKEW_MS) if keys else {}
        first = [key for key, offset in later.items() if offset == 0]
        return (
            {key for key, low in self._cluster.earliest_known(first).items() if low == 0} if first else set()
        )

    def _note_ends(self) -> None:
        of_slaves = self._answers.of_slaves
        self._known_ends |= {
            key: max(end, self._known_ends.get(key, 0)) if key in of_slaves else end
            for key, end in self._answers.offsets.items()
        }

    def _check_silence(self, answered: bool) -> None:
        """Raises an error if no broker at all has answered for ``retryTimeoutMs``."""
        now = SYSTEM_CLOCK.monotonic()
        if answered:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > self._options.retry_timeout_ms / 1000:
            raise ConnectionLostError(
                f"no broker has answered for {self._options.retry_timeout_ms} ms (retryTimeoutMs)"
            )

    def _unread_end(self, key: QueueKey, start: int) -> int | None:
        """Returns the end of a queue when it was last seen, or None if that is not after ``start``."""
        known = self._known_ends.get(key)
        return known if known is not None and known > start else None

    def _note_deleted(self, start: QueueOffsets, gone: Iterable[QueueKey]) -> None:
        """Records the queues of deleted topics as lost, like Spark's Kafka reader, because their content is no longer
        known."""
        self._gone = [LostRange(key, start[key], self._unread_end(key, start[key])) for key in sorted(gone)]
        for key, offset, *_ in self._gone:
            logger.info("topic deleted, queue dropped queue=%s offset=%d", key, offset)
            self._known_ends.pop(key, None)

    def _begins(self, start: QueueOffsets, ends: QueueOffsets) -> QueueOffsets:
        """Returns the start of each queue of the micro-batch. New queues that cannot be queried now are removed from
        ``ends``."""
        new = [key for key in ends if key not in start]
        if not new:
            return start
        first = self._cluster.earliest_known(new)
        for key in new:
            if key not in first:
                del ends[key]
        return start | first

    @staticmethod
    def _backlog(begins: QueueOffsets, ends: QueueOffsets) -> int:
        return sum(max(ends[key] - begins[key], 0) for key in ends)

    def _by_bytes(self, begins: QueueOffsets, ends: QueueOffsets, most: int | None) -> int | None:
        """Returns the maximum number of messages, taking ``maxBytesPerTrigger`` into account with the size of the
        next few messages. None means unlimited."""
        limit = self._options.bytes_per_trigger_max
        waiting = {key: at for key, at in begins.items() if ends.get(key, at) > at}
        if limit is None or not waiting:
            return most
        size = self._cluster.message_bytes(waiting)
        if size is None:
            return most
        rows = max(limit // max(size, 1), 1)
        return rows if most is None else min(most, rows)

    def _enough(self, begins: QueueOffsets, ends: QueueOffsets) -> bool:
        """Returns whether there are ``minOffsetsPerTrigger`` messages, or the maximum delay has passed."""
        least = self._options.offsets_per_trigger_min
        if least is None or self._frozen:
            return True
        now = SYSTEM_CLOCK.monotonic()
        available = self._backlog(begins, ends)
        if self._waiting_since is None or not available:
            self._waiting_since = now
        if available < least and now - self._waiting_since < self._options.trigger_delay_max_ms / 1000:
            return False
        self._waiting_since = now
        return True

    def partitions(
        self, start: QueueOffsets, end: QueueOffsets, restarted: QueueOffsets
    ) -> list[InputPartition]:
        """Returns the partitions of a micro-batch. The same offsets always have the same partitions, except for
        messages lost since then."""
        if start == end and not restarted:
            return []
        start = start | restarted
        known = set(self._cluster.queues(expected=end))
        moved = [key for key in end if start.get(key) != end[key]]
        gone = self._cluster.deleted(key for key in moved if key not in known)
        gone |= self._fewer_queues({key: end[key] for key in moved})[0]
        low = self._cluster.earliest_known(key for key in moved if key in known)
        plan = ranges_between(start, {key: end[key] for key in end if key not in gone}, low)
        self._report([LostRange(key, start.get(key, 0), end[key]) for key in sorted(gone)] + plan.lost)
        return planned_partitions(self._cluster, self._options, plan.ranges)

    def report(self) -> dict[str, Any] | None:
        """Returns the ends of the queues and the losses, for the progress of the query, or None if there is nothing
        to report."""
        if not self._known_ends and not self._lost:
            return None
        report: dict[str, Any] = dict(as_offsets(self._known_ends))
        if self._lost:
            report[LOST_RANGES] = {str(key): ranges for key, ranges in sorted(self._lost.items())}
        return report

    def _report(self, lost: Sequence[LostRange]) -> None:
        """Fails the query because of missing messages, or logs and skips them. Nothing else on the driver does."""
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


_CLOCK_SKEW_MS = 10_000
"""Largest assumed clock difference between driver and brokers."""
_LOST_KEPT = 20
"""Number of lost ranges per queue to keep in the progress."""
