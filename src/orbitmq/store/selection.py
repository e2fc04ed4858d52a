"""Reading a queue through a predicate on whole records: subscriptions by SQL92 (Apache: ``isMatchedByCommitLog``)."""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.store.commit_log import CommitLog
from orbitmq.store.layout import UNIT
from orbitmq.store.queue_ext import ADDRESS_MAX

__all__ = ["select"]


def select(
    log: CommitLog,
    units: bytes,
    limits: tuple[int, int, int],
    matching: tuple[frozenset[int] | None, Callable[[memoryview], bool]],
    slices: list[memoryview],
) -> tuple[int, int, int, bool]:
    """Add the records of ``units`` that have one of the codes (None: any) and satisfy the predicate to ``slices``.

    ``limits``: most records, most bytes (the first record is taken in any case), and the log offset behind which
    nothing is given. Gives the units looked at, the records taken, their bytes, and whether the last unit's record is
    gone or damaged.
    """
    # Hot: a pull looks at 800 units for the 32 messages it may give. Beside the predicate a record in the segment at
    # hand costs three comparisons and a slice; counters are local, and the rare cases stand in the other branch.
    count_max, bytes_max, log_limit = limits
    tag_codes, predicate = matching
    view: memoryview | None = None
    start = stop = looked = count = total = gone_at = 0
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
