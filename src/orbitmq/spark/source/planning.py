"""Decides what to read next, with pure functions that need no Spark, broker or clock.

An offset is that of the next message to read, and ranges exclude their ``end``. A checkpoint contains ``{topic:
{broker: {queue: offset}}}`` with all keys sorted, because Spark compares offsets as text, so a set of offsets must
have a single spelling.

Two further keys contain a space, so they cannot be names of topics. ``read at`` is the time at which the offsets were
taken, in milliseconds. ``restarted at`` holds the offsets at which queues were restarted because they ended before
the offset already read. A later format would store a number under ``version``; the value of a topic is never a
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from orbitmq.errors import ConfigError, OrbitError
from orbitmq.spark.options import EARLIEST, LATEST, Offsets

__all__ = [
    "DataLossError",
    "LostRange",
    "QueueKey",
    "QueueRange",
    "as_offsets",
    "from_offsets",
    "grouped_ranges",
    "limit_offsets",
    "loss_text",
    "ranges_between",
    "read_at",
    "resolve_offsets",
    "restarted_at",
    "split_ranges",
    "stamped",
]

_SHOWN_MAX: Final = 100
"""The most ranges to name in an error text."""


class QueueKey(NamedTuple):
    """One queue of a topic on one broker. Sorts by topic, broker, number."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


QueueOffsets = dict[QueueKey, int]


class QueueRange(NamedTuple):
    """A range of messages of one queue, ``end`` exclusive."""

    queue: QueueKey
    start: int
    end: int


class LostRange(NamedTuple):
    """Messages that should have been read but are missing."""

    queue: QueueKey
    start: int
    end: int | None
    """None if the number of messages is unknown."""
    ends_at: int | None = None
    """The queue's current end, if that is before ``start``."""

    def __str__(self) -> str:
        text = f"{self.queue}: {self.start} to {'?' if self.end is None else self.end}"
        if self.ends_at is None:
            return text
        return f"{text} (it ends at {self.ends_at} now: made again, or its last messages were lost)"


class DataLossError(OrbitError):
    """Messages were lost before the query read them, and ``failOnDataLoss`` is true."""

    def __init__(self, lost: Sequence[LostRange]) -> None:
        super().__init__(
            f"messages were lost before they were read (topic/broker/queue: first offset to end): {loss_text(lost)}. "
            "They expired, or their topic or store was removed. Set option failOnDataLoss to false to go on without "
            "them, or start a new query with a new checkpoint"
        )
        self.lost = tuple(lost)

    def __reduce__(self) -> tuple[Any, ...]:
        return DataLossError, (self.lost,)


def loss_text(lost: Sequence[LostRange]) -> str:
    """Returns the lost ranges as text for an error or a log line."""
    shown = "; ".join(map(str, lost[:_SHOWN_MAX]))
    return shown if len(lost) <= _SHOWN_MAX else f"{shown}; and {len(lost) - _SHOWN_MAX} more"


# -- offsets in Spark's form ---------------------------------------------------------------------------


def as_offsets(offsets: Mapping[QueueKey, int]) -> Offsets:
    """Returns the offsets in Spark's form: nested and sorted, so that a set of offsets has a single spelling."""
    nested: Offsets = {}
    for key in sorted(offsets):
        nested.setdefault(key.topic, {}).setdefault(key.broker, {})[str(key.queue_id)] = offsets[key]
    return nested


def from_offsets(nested: Mapping[str, Any]) -> QueueOffsets:
    """Parses offsets from Spark. Raises ``ConfigError`` for a checkpoint in another format."""
    offsets: QueueOffsets = {}
    try:
        for topic, brokers in nested.items():
            if topic in _BESIDE_TOPICS:
                continue
            for broker, queues in brokers.items():
                for queue, offset in queues.items():
                    offsets[QueueKey(topic, broker, int(queue))] = int(offset)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"the checkpoint holds an offset this version cannot read: {str(nested)[:200]}"
        ) from None
    return offsets


_READ_AT: Final = "read at"
_RESTARTED: Final = "restarted at"
_BESIDE_TOPICS: Final = frozenset({_READ_AT, _RESTARTED})


def stamped(
    offsets: Mapping[QueueKey, int], restarted: Mapping[QueueKey, int], now_ms: int
) -> dict[str, Any]:
    """Returns the offsets of a micro-batch in Spark's form, with the time when they were taken and the restarted
    queues."""
    nested: dict[str, Any] = dict(as_offsets(offsets))
    if restarted:
        nested[_RESTARTED] = as_offsets(restarted)
    return nested | {_READ_AT: now_ms}


def read_at(nested: Mapping[str, Any]) -> int | None:
    """Returns when the offsets of a checkpoint were taken, or None for initial offsets and those of older
    versions."""
    moment = nested.get(_READ_AT)
    return moment if isinstance(moment, int) else None


def restarted_at(nested: Mapping[str, Any]) -> QueueOffsets:
    """Returns the queues that the batch with this end restarts instead of continuing, with their start offsets."""
    return from_offsets(nested.get(_RESTARTED) or {})


def resolve_offsets(
    name: str, wanted: int | Offsets, low: Mapping[QueueKey, int], high: Mapping[QueueKey, int]
) -> QueueOffsets:
    """Returns the offsets that an option stands for, for all existing queues. Queues missing from its JSON start at
    the earliest and end at the latest message.

    Raises ``ConfigError`` for a queue that does not exist, or an offset after the end of its queue.
    """
    ends_default = name.startswith("ending")
    if isinstance(wanted, int):
        return dict(low if wanted == EARLIEST else high)
    resolved = dict(high if ends_default else low)
    for topic, brokers in wanted.items():
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                key = QueueKey(topic, broker, int(queue))
                if key not in resolved:
                    known = ", ".join(map(str, sorted(resolved)[:20]))
                    raise ConfigError(
                        f"option {name!r} names queue {key}, which does not exist; there are {known}"
                    )
                if offset > high[key]:
                    raise ConfigError(
                        f"option {name!r} asks for offset {offset} of queue {key}, which ends at {high[key]}"
                    )
                resolved[key] = low[key] if offset == EARLIEST else high[key] if offset == LATEST else offset
    return resolved


# -- ranges --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The ranges to read, and the ranges that are missing."""

    ranges: list[QueueRange]
    lost: list[LostRange]


def ranges_between(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], low: Mapping[QueueKey, int]
) -> RangePlan:
    """Returns the parts of the ranges from ``start`` to ``end`` that still exist, given the earliest offset ``low``
    of each queue.

    A queue missing from ``start`` starts at its earliest message. A queue missing from ``low`` cannot be queried now,
    so its range is kept unchanged.
    """
    ranges: list[QueueRange] = []
    lost: list[LostRange] = []
    for key in sorted(end):
        first = low.get(key)
        begin = start.get(key, first if first is not None else 0)
        stop = end[key]
        if first is not None and begin < min(first, stop):
            lost.append(LostRange(key, begin, min(first, stop)))
            begin = first
        if begin < stop:
            ranges.append(QueueRange(key, begin, stop))
    return RangePlan(ranges, lost)


def split_ranges(
    ranges: Sequence[QueueRange], partitions_min: int | None, records_max: int | None
) -> list[QueueRange]:
    """Splits ranges into more ranges of the same messages: at least ``partitions_min`` if there are as many messages,
    and none longer than ``records_max``.

    Longer ranges are split into more pieces. The sizes of one range's pieces differ by at most one message.
    """
    filled = [piece for piece in ranges if piece.end > piece.start]
    total = sum(piece.end - piece.start for piece in filled)
    if not total:
        return []
    counts = []
    for piece in filled:
        size = piece.end - piece.start
        count = 1
        if partitions_min is not None and partitions_min > len(filled):
            count = -(-size * partitions_min // total)
        if records_max is not None:
            count = max(count, -(-size // records_max))
        counts.append(min(count, size))
    pieces: list[QueueRange] = []
    for piece, count in zip(filled, counts, strict=True):
        size = piece.end - piece.start
        cuts = [piece.start + size * index // count for index in range(count + 1)]
        pieces += (QueueRange(piece.queue, a, b) for a, b in pairwise(cuts))
    return pieces


def grouped_ranges(
    ranges: Sequence[QueueRange], partitions_max: int, records_max: int | None
) -> list[list[QueueRange]]:
    """Returns the ranges of each task, normally one range per task.

    If there are more than ``partitions_max`` ranges, a task reads several small ones of the same broker, in order.
    Their messages are at most twice the average of ``partitions_max`` tasks, and at most ``records_max``. Each broker
    may add one task to ``partitions_max``.
    """
    if len(ranges) <= partitions_max:
        return [[piece] for piece in ranges]
    total = sum(piece.end - piece.start for piece in ranges)
    most = -(-2 * total // partitions_max)
    if records_max is not None:
        most = min(most, records_max)
    groups: list[list[QueueRange]] = []
    room = 0
    for piece in sorted(ranges, key=lambda piece: (piece.queue.broker, piece)):
        size = piece.end - piece.start
        if size > room or groups[-1][0].queue.broker != piece.queue.broker:
            groups.append([])
            room = most
        groups[-1].append(piece)
        room -= size
    return groups


def limit_offsets(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], most: int | None
) -> QueueOffsets:
    """Returns the end of a micro-batch of at most ``most`` messages, shared among the queues in proportion to their
    backlog.

    Queues without a backlog keep their position. The shares add up to exactly ``most`` if the backlog is large
    enough. The messages left over by rounding go to the queues that lost most by it, one each.
    """
    backlog = {key: max(end[key] - start.get(key, end[key]), 0) for key in end}
    total = sum(backlog.values())
    if most is None or total <= most:
        return dict(end)
    shares = {key: divmod(size * most, total) for key, size in backlog.items()}
    left = most - sum(share for share, _ in shares.values())
    by_loss = sorted((key for key in shares if shares[key][1]), key=lambda key: (-shares[key][1], key))
    extra = set(by_loss[:left])
    limited: QueueOffsets = {}
    for key in end:
        if backlog[key]:
            limited[key] = start.get(key, end[key]) + shares[key][0] + (key in extra)
        else:
            limited[key] = end[key]
    return limited


def missing_ranges(queue: QueueKey, offsets: Iterable[int], start: int, end: int) -> list[LostRange]:
    """Returns the gaps in the sorted ``offsets`` between ``start`` and ``end``."""
    lost: list[LostRange] = []
    expected = start
    for offset in offsets:
        if offset > expected:
            lost.append(LostRange(queue, expected, min(offset, end)))
        expected = max(expected, offset + 1)
    if expected < end:
        lost.append(LostRange(queue, expected, end))
    return lost
