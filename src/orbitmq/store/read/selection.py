"""Reading a queue through a predicate on whole records: subscriptions by SQL92 (Apache: ``isMatchedByCommitLog``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from orbitmq.record.layout import RECORD_BYTES_MIN
from orbitmq.store.layout import UNIT, UNIT_BYTES
from orbitmq.store.log.commit_log import CommitLog
from orbitmq.store.queues.queue_ext import ADDRESS_MAX

__all__ = ["select"]

Predicate = Callable[[memoryview], bool]
BlockSelect = Callable[[bytes, Sequence[int], Sequence[int], int, int], list[int]]
"""Judges neighbours in one go: a piece of the log, log offsets and sizes of records in it, the piece's log offset,
and how many records are wanted. Gives the places of the first that many which match."""

BLOCK_COUNT_MAX: Final = 128
"""The first block is as long as a pull may be, for everything may match; the following ones double up to this."""
BLOCK_BYTES_MAX: Final = 1 << 20


class _Taken:
    """What has been looked at and taken so far."""

    __slots__ = ("count", "looked", "total")

    def __init__(self) -> None:
        self.looked = self.count = self.total = 0


def select(
    log: CommitLog,
    units: bytes,
    limits: tuple[int, int, int],
    matching: tuple[frozenset[int] | None, Predicate],
    slices: list[memoryview],
) -> tuple[int, int, int, bool]:
    """Add the records of ``units`` that have one of the codes (None: any) and satisfy the predicate to ``slices``.

    ``limits``: most records, most bytes (the first record is taken in any case), and the log offset behind which
    nothing is given. A predicate with a ``select_block`` (see ``BlockSelect``) is asked for many records at a time.
    Gives the units looked at, the records taken, their bytes, and whether the last unit's record is gone or damaged.
    """
    taken = _Taken()
    block_select: BlockSelect | None = getattr(matching[1], "select_block", None)
    if block_select is not None and matching[0] is None and not log.damaged:
        _by_block(log, units, limits, block_select, slices, taken)
    rest = units[taken.looked * UNIT_BYTES :]
    if taken.count == limits[0] or not rest:
        return taken.looked, taken.count, taken.total, False
    return _one_by_one(log, rest, limits, matching, slices, taken)


def _by_block(
    log: CommitLog,
    units: bytes,
    limits: tuple[int, int, int],
    block_select: BlockSelect,
    slices: list[memoryview],
    taken: _Taken,
) -> None:
    """As far as the records are neighbours in one segment and far from every limit."""
    count_max, bytes_max, log_limit = limits
    block_bytes, position = min(count_max, BLOCK_COUNT_MAX) * UNIT_BYTES, 0
    while taken.count < count_max and position < len(units):
        block = units[position : position + block_bytes]
        fields = _units_struct(len(block) // UNIT_BYTES).unpack(block)
        log_offsets, sizes = fields[0::2], fields[1::2]
        first, end, size = log_offsets[0], log_offsets[-1] + sizes[-1], sum(sizes)
        start = first - first % log.segment_bytes
        if (
            first < 0
            or min(sizes) < RECORD_BYTES_MIN
            or not size <= end - first <= min(2 * size, BLOCK_BYTES_MAX)
            # Records of other queues lie between them. Units are in order, or the queue is damaged.
            or (size != end - first and (first, log_offsets[-1]) != (min(log_offsets), max(log_offsets)))
            or end > min(start + log.segment_bytes, log_limit, log.end)
            or taken.total + size > bytes_max
        ):
            return
        view = log.segments.view(start)
        if view is None:
            return
        wanted = count_max - taken.count
        found = block_select(bytes(view[first - start : end - start]), log_offsets, sizes, first, wanted)
        for at in found:
            at_start = log_offsets[at] - start
            slices.append(view[at_start : at_start + sizes[at]])
            taken.total += sizes[at]
        taken.count += len(found)
        taken.looked += found[-1] + 1 if len(found) == wanted else len(sizes)
        position += block_bytes
        block_bytes = min(2 * block_bytes, BLOCK_COUNT_MAX * UNIT_BYTES)


@lru_cache(maxsize=64)
def _units_struct(count: int) -> Struct:
    """Reads log offsets and record sizes."""
    return Struct(">" + "qi8x" * count)


def _one_by_one(
    log: CommitLog,
    units: bytes,
    limits: tuple[int, int, int],
    matching: tuple[frozenset[int] | None, Predicate],
    slices: list[memoryview],
    taken: _Taken,
) -> tuple[int, int, int, bool]:
    """The definition; ``units`` are those not yet looked at."""
    # Hot: a pull looks at 800 units for the 32 messages it may give. Beside the predicate a record in the segment at
    # hand costs three comparisons and a slice; counters are local, and the rare cases stand in the other branch.
    count_max, bytes_max, log_limit = limits
    tag_codes, predicate = matching
    view: memoryview | None = None
    looked, count, total = taken.looked, taken.count, taken.total
    start = stop = gone_at = 0
    for log_offset, size, tag_code in UNIT.iter_unpack(units):
        end = log_offset + size
        if total and total + size > bytes_max:
            break
        if tag_codes is not None and tag_code not in tag_codes and tag_code > ADDRESS_MAX:
            looked += 1
            continue
        if not (view is not None and start <= log_offset < end <= stop):
            if log_limit < end <= log.end:
                break
            start = log_offset - log_offset % log.segment_bytes
            view = None
            if size > 0 and end <= log.end and end <= start + log.segment_bytes:
                view = None if log.damaged and log.in_damage(log_offset) else log.segments.view(start)
            if view is None:
                looked += 1
                gone_at = looked
                continue
            # With damage about every record goes this way, to be checked on its own.
            stop = min(start + log.segment_bytes, log_limit, log.end) if not log.damaged else 0
        looked += 1
        record = view[log_offset - start : end - start]
        if predicate(record):
            slices.append(record)
            total += size
            count += 1
            if count == count_max:
                break
    return looked, count, total, looked > 0 and gone_at == looked
