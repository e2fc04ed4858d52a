"""Repairs the store of a stopped broker: its log with bytes from another broker of its group, then its queues.

Master and slaves have the same log, byte for byte, so a damaged range of one is fetched from another. The fetched
bytes are verified. They include some whole records on each side of the damage, and on each side at least one of these
must equal ours. The range itself must consist of whole records with valid checksums, from its first byte to its last.
A range that fails either test is left unchanged and reported. Records between the damage and the nearest matching
ones are replaced as well: a checksum covers only the body, so this comparison is the only way to detect damage to a
header.

A range is one of:

* bytes in the middle of a segment that are not a record, up to the next record;
* the rest of a segment that ends without its marker although another segment follows;
* the end of the log, if the checkpoint, a queue or the bytes themselves show that it was longer.

Queue units that disagree with the log are then rewritten from it (``repair_queues``), which needs no other broker.
Only if an earlier start skipped damage (``damagedRanges.json``) and all of it is repaired, queues and index lack the
lost messages. They are then removed, and the next start rebuilds them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec

from orbitmq.errors import OrbitError
from orbitmq.record.scan import EndKind, ScanEnd, ScannedRecord, is_zero, scan
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.layout import RECORD_EXTRA_BYTES
from orbitmq.store.log.torn_end import complete_size
from orbitmq.store.maintenance.checkpoint import Checkpoint
from orbitmq.store.maintenance.lock_files import AbortFile, StoreLock
from orbitmq.store.tools.offline import OfflineSegment, OfflineStore
from orbitmq.store.tools.repair_queues import RepairedQueue, repair_queues
from orbitmq.store.tools.verify import next_record

__all__ = ["FetchFailed", "RepairReport", "RepairedRange", "find_damage", "repair"]

Fetch = Callable[[int, int], bytes]
"""Returns the other broker's log bytes between two log offsets. Raises ``FetchFailed``."""
NEIGHBOURS: Final = 16
"""Records compared on each side of the damage, nearest first, until one matches."""
_DAMAGE_NOTES: Final = "damagedRanges.json"


class FetchFailed(OrbitError):
    """The other broker is unreachable or cannot supply matching bytes."""


class RepairedRange(msgspec.Struct):
    """One damaged range and the outcome of its repair."""

    start: int
    end: int
    reason: str
    repaired: bool = False
    problem: str = ""
    """Why the range was not repaired."""


class RepairReport(msgspec.Struct):
    """The result of a repair."""

    root: str
    ranges: list[RepairedRange] = []
    rebuild: bool = False
    """Whether queues and index were removed, so that the next start rebuilds them from the log."""
    queues: list[RepairedQueue] = []
    """Queues whose units disagreed with the log; the units were rewritten, or would be without ``dry_run``."""

    @property
    def ok(self) -> bool:
        return all(one.repaired for one in self.ranges)


def repair(
    root: str,
    fetch: Fetch | None,
    config: StoreConfig | None = None,
    *,
    fs: FileSystem = LOCAL_FILE_SYSTEM,
    dry_run: bool = False,
) -> RepairReport:
    """Repair the store below ``root``. With ``dry_run``, damage is fetched and verified, but nothing is written.

    Without ``fetch``, damage to the log is only reported. Raises ``StoreLocked`` if a broker has the store open,
    ``CorruptionError`` if the list of deleted topics cannot be read, and ``OSError``.
    """
    chosen = StoreConfig(root=root) if config is None else dataclasses.replace(config, root=root)
    lock = StoreLock(fs, chosen.path("lock"))
    lock.acquire()
    try:
        store = OfflineStore(chosen, fs)
        try:
            report = RepairReport(root, find_damage(store))
            for one in report.ranges:
                try:
                    if fetch is None:
                        raise FetchFailed("no broker was given to fetch it from")
                    _repair_range(store, one, fetch, dry_run=dry_run)
                except FetchFailed as error:
                    one.problem = str(error)
        finally:
            store.close()
        if report.ok and not dry_run and fs.stat(chosen.path(_DAMAGE_NOTES)) is not None:
            _forget_derived(chosen, fs)
            report.rebuild = True
        else:
            store = OfflineStore(chosen, fs)
            try:
                report.queues = repair_queues(store, dry_run=dry_run)
            finally:
                store.close()
        return report
    finally:
        lock.release()


def _forget_derived(config: StoreConfig, fs: FileSystem) -> None:
    for name in ("consumequeue", "consumequeue_ext", "index"):
        fs.remove_tree(config.path(name))
    for name in ("checkpoint", _DAMAGE_NOTES):
        fs.remove(config.path(name))
    fs.sync_directory(config.root)


# -- finding -----------------------------------------------------------------------------------------------


def find_damage(store: OfflineStore) -> list[RepairedRange]:
    """Returns every damaged range of the log, in log order."""
    found: list[RepairedRange] = []
    segments = store.segments()
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1 or _is_unused(store, segments[number + 1])
        end = _walk(store, segment, found)
        if end.kind in (EndKind.BLANK, EndKind.LIMIT) and not end.reason:
            continue
        start = segment.start + end.position
        if not is_last:
            end_offset = segment.start + store.config.segment_bytes
            reason = end.reason or "the segment ends without its marker"
            found.append(RepairedRange(start, end_offset, reason))
            continue
        known_end = max(
            _known_end(store, segment), segment.start + _complete_end(store, segment, end.position)
        )
        if known_end > start:
            found.append(RepairedRange(start, known_end, end.reason or "the end of the log is missing"))
        break
    return found


def _is_unused(store: OfflineStore, segment: OfflineSegment) -> bool:
    """Whether the segment was only created ahead and contains no records, whatever its bytes are."""
    view = store.view(segment)
    return is_zero(view, 0, len(view)) or next_record(store, segment, 0) is None


def _walk(store: OfflineStore, segment: OfflineSegment, found: list[RepairedRange]) -> ScanEnd:
    """Scan a segment, continuing after damage in its middle, and add the damage to ``found``. Returns how the segment
    ends."""
    position = 0
    while True:
        scanned = store.scan(segment, position)
        for _ in scanned:
            pass
        end = scanned.end
        assert end is not None
        if end.kind in (EndKind.BLANK, EndKind.LIMIT) and not end.reason:
            return end
        following = next_record(store, segment, end.position + 1)
        if following is None:
            return end
        found.append(
            RepairedRange(segment.start + end.position, segment.start + following, end.reason or "zeros")
        )
        position = following


def _known_end(store: OfflineStore, last: OfflineSegment) -> int:
    """Returns the end of the log according to the checkpoint and the queues, but at most the end of the last
    segment."""
    limit = last.start + store.config.segment_bytes
    checkpoint = Checkpoint(store.fs, store.config.path("checkpoint"))
    if store.fs.stat(store.config.path("checkpoint")) is not None:
        checkpoint.load()
    known = checkpoint.confirm_offset if checkpoint.confirm_offset <= limit else 0
    for queue in store.queues():
        for _, log_offset, size, _ in store.units(queue):
            if last.start <= log_offset and log_offset + size <= limit:
                known = max(known, log_offset + size)
    return known


def _complete_end(store: OfflineStore, last: OfflineSegment, position: int) -> int:
    """Returns the end of a damaged last record if the record was written completely (see ``torn_end``); otherwise
    0."""
    if not AbortFile(store.fs, store.config.path("abort")).cache_survived:
        return 0
    view = store.view(last)
    stop = min(len(view), position + store.config.message_bytes_max + RECORD_EXTRA_BYTES)
    return position + complete_size(bytes(view[position:stop]).rstrip(b"\0"))


# -- repairing ---------------------------------------------------------------------------------------------


def _repair_range(store: OfflineStore, one: RepairedRange, fetch: Fetch, *, dry_run: bool) -> None:
    size = store.config.segment_bytes
    base = one.start - one.start % size
    segment = next(each for each in store.segments() if each.start == base)
    view = store.view(segment)
    before = _records_before(store, segment, one.start - base)
    after = list(islice(store.scan(segment, min(one.end - base, len(view))), NEIGHBOURS))
    low = before[0].position if before else one.start - base
    high = after[-1].position + after[-1].size if after else one.end - base
    data = fetch(base + low, base + high)
    if len(data) != high - low:
        raise FetchFailed(f"{len(data)} bytes arrived instead of {high - low}")

    def agrees(record: ScannedRecord) -> bool:
        begin, end = record.position, record.position + record.size
        return data[begin - low : end - low] == view[begin:end]

    last = next((record for record in reversed(before) if agrees(record)), None)
    first = next((record for record in after if agrees(record)), None)
    if (before and last is None) or (after and first is None):
        raise FetchFailed("the other broker's log differs next to the damage, so it has another history")
    start = one.start - base if last is None else last.position + last.size
    end = one.end - base if first is None else first.position
    problem = _problem(data, start - low, end - low, base + low, ends_segment=end == size)
    if problem:
        raise FetchFailed(f"the other broker's records there are damaged too: {problem}")
    if not dry_run:
        _write(store.fs, segment, size, start, data[start - low : end - low])
    one.start, one.end, one.repaired = base + start, base + end, True


def _records_before(store: OfflineStore, segment: OfflineSegment, position: int) -> list[ScannedRecord]:
    """Returns the last whole records before a position, in order."""
    found: deque[ScannedRecord] = deque(maxlen=NEIGHBOURS)
    at: int | None = 0
    while at is not None and at < position:
        scanned = store.scan(segment, at)
        for record in scanned:
            if record.position >= position:
                return list(found)
            found.append(record)
        assert scanned.end is not None
        if scanned.end.position >= position:
            break
        found.clear()  # keep only records directly before the position, without damage in between
        at = next_record(store, segment, scanned.end.position + 1)
    return list(found)


def _problem(data: bytes, low: int, high: int, log_base: int, *, ends_segment: bool) -> str:
    """Returns why the bytes from ``low`` to ``high`` are not whole records; empty if they are."""
    scanned = scan(data, low, len(data), log_base=log_base)
    for record in scanned:
        if record.position + record.size == high:
            return ""
        if record.position + record.size > high:
            return f"a record goes past log offset {log_base + high}"
    end = scanned.end
    assert end is not None
    if ends_segment and end.kind is EndKind.BLANK:
        return ""
    return end.reason or f"they end at log offset {log_base + end.position}"


def _write(fs: FileSystem, segment: OfflineSegment, size: int, position: int, data: bytes) -> None:
    handle = fs.open(segment.path, write=True)
    try:
        if fs.file_size(handle) < size:
            fs.truncate(handle, size)
        written = 0
        while written < len(data):
            written += fs.pwrite(handle, data[written:], position + written)
        fs.sync_data(handle)
    finally:
        fs.close(handle)
