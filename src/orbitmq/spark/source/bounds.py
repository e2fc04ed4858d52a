"""The queue ranges of a batch read, computed from the options and the cluster's state, without Spark."""

from __future__ import annotations

import logging
from typing import NamedTuple

from orbitmq.errors import ConfigError
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.options import GROUP, Offsets, SourceOptions
from orbitmq.spark.source.planning import (
    DataLossError,
    QueueKey,
    QueueOffsets,
    QueueRange,
    from_offsets,
    loss_text,
    ranges_between,
    resolve_offsets,
)

__all__ = ["BatchPlan", "batch_plan", "starting_offsets"]

logger = logging.getLogger(__name__)


class BatchPlan(NamedTuple):
    """The plan of a batch read."""

    ranges: list[QueueRange]
    """Without the queues that have no message to read."""
    end: QueueOffsets
    """The end of every queue."""


def batch_plan(cluster: Cluster, options: SourceOptions) -> BatchPlan:
    """Returns the ranges of messages that a batch read contains, by queue.

    Raises ``DataLossError`` for missing messages unless ``failOnDataLoss`` is off, and ``ConfigError`` for bounds
    that do not match the queues.
    """
    queues = cluster.queues()
    cluster.check_filter(queues)
    low = cluster.earliest(queues)
    start = starting_offsets(cluster, options)
    if options.ending_times is not None:
        times = _times("endingOffsetsByTimestamp", options.ending_times, queues)
        end = cluster.latest(queues) | cluster.at_times(times)
    elif options.ending_timestamp_ms is not None:
        end = cluster.at_time(queues, options.ending_timestamp_ms)
    else:
        end = resolve_offsets("endingOffsets", options.ending, low, cluster.latest(queues))
    backwards = [key for key in queues if start[key] > end[key]]
    by_time = (
        options.starting_timestamp_ms,
        options.ending_timestamp_ms,
        options.starting_times,
        options.ending_times,
    )
    if backwards and not any(one is not None for one in by_time):
        key = backwards[0]
        raise ConfigError(f"queue {key} would be read from offset {start[key]} to {end[key]}, backwards")
    plan = ranges_between(start, end, low)
    if plan.lost:
        if options.fail_on_data_loss:
            raise DataLossError(plan.lost)
        logger.warning("messages lost before they were read ranges=%s", loss_text(plan.lost))
    return BatchPlan(plan.ranges, end)


def starting_offsets(cluster: Cluster, options: SourceOptions) -> QueueOffsets:
    """Returns the offset where a new query starts, for every existing queue."""
    queues = cluster.queues()
    cluster.check_assigned(queues)
    if options.starting_times is not None or options.starting_timestamp_ms is not None:
        return _starting_at(cluster, options, queues)
    low, high = cluster.earliest(queues), cluster.latest(queues)
    if options.starting == GROUP:
        assert options.group is not None, "checked with the options"
        committed = cluster.committed(options.group, queues)
        # Start at the group's offset, or at the beginning of a queue that the group has not read.
        return {key: min(max(committed.get(key, low[key]), low[key]), high[key]) for key in queues}
    return resolve_offsets("startingOffsets", options.starting, low, high)


def _starting_at(cluster: Cluster, options: SourceOptions, queues: list[QueueKey]) -> QueueOffsets:
    """Returns the start offsets for store times. Queues without a time start at the earliest message."""
    name, times = "startingTimestamp", dict.fromkeys(queues, options.starting_timestamp_ms or 0)
    if options.starting_times is not None:
        name, times = (
            "startingOffsetsByTimestamp",
            _times("startingOffsetsByTimestamp", options.starting_times, queues),
        )
    start = cluster.at_times(times) | cluster.earliest(key for key in queues if key not in times)
    if options.fail_on_late_time:
        high = cluster.latest(times)
        for key in sorted(times):
            if start[key] >= high[key]:
                raise ConfigError(
                    f"option {name!r}: queue {key} has no message stored at {times[key]} or later, and "
                    "startingOffsetsByTimestampStrategy is error"
                )
    return start


def _times(name: str, given: Offsets, queues: list[QueueKey]) -> dict[QueueKey, int]:
    """Returns the given times by queue. Raises ``ConfigError`` for a queue that does not exist."""
    times = from_offsets(given)
    for key in times:
        if key not in queues:
            raise ConfigError(f"option {name!r} names queue {key}, which does not exist")
    return times
