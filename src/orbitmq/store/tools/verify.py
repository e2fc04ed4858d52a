"""Verifies a whole store without changing it: compares every record, every queue unit and every index entry with each
other.

In a damaged store not everything can be relied on. Records are found by a scan, which continues after a bad one at
the next record that contains its own offset. A queue is correct when each unit points to a whole record with this
queue and this queue offset, and there are as many units as records: then they correspond one to one.

A finding is an *error* or a *note*. Notes are normal for a running or killed broker and are repaired by the next
start: a torn last record, queue units not written yet, an index that lags.

A running broker is detected by the lock on its store. Then only settled data is compared: the log up to its end at
the time of the scan, and the queue units and index entries for that part. Bytes that may have been read while they
were written are read again before they are reported as damaged. Files that expire meanwhile are skipped, and the
checkpoint is not compared.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from orbitmq.codes import Property
from orbitmq.errors import CorruptionError
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.record.hashing import index_hash, java_hash, tags_code
from orbitmq.record.properties import find_property
from orbitmq.record.scan import EndKind, ScanEnd, ScannedRecord, is_zero, scan
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.index.index_file import IndexFile
from orbitmq.store.index.index_keys import index_keys
from orbitmq.store.layout import SCHEDULE_TOPIC
from orbitmq.store.maintenance.checkpoint import Checkpoint
from orbitmq.store.maintenance.lock_files import is_locked
from orbitmq.store.queues.queue_ext import is_ext_address
from orbitmq.store.tools.offline import OfflineQueue, OfflineSegment, OfflineStore
from orbitmq.store.write.dispatch import NO_UNIT, due_or_tag_code

__all__ = ["Finding", "Report", "next_record", "verify"]

FINDINGS_MAX: Final = 1000
"""Findings kept; further ones are only counted."""
PROGRESS_STEP: Final = 4096
SEARCH_BYTES: Final = 4 << 20
_TAGS: Final = Property.TAGS.encode()
_TRANSACTION: Final = 0xC
_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")

Progress = Callable[[str, int, int], None]
"""Called periodically with the current area, the position and the total."""


class Finding(msgspec.Struct, frozen=True):
    """One problem found in the store."""

    severity: str
    """``error`` or ``note``."""
    area: str
    """``log``, ``queue``, ``index`` or ``checkpoint``."""
    where: str
    text: str


class Report(msgspec.Struct):
    """The result of a check."""

    root: str
    clean: bool = True
    """Whether the last broker shut down cleanly."""
    live: bool = False
    """Whether a broker has the store open. Then only data settled at the time of the log scan is compared."""
    segment_count: int = 0
    log_start: int = 0
    log_end: int = 0
    record_count: int = 0
    body_bytes: int = 0
    queue_count: int = 0
    unit_count: int = 0
    index_file_count: int = 0
    index_entry_count: int = 0
    error_count: int = 0
    note_count: int = 0
    findings: list[Finding] = []

    @property
    def ok(self) -> bool:
        """Whether there are no errors; notes do not count."""
        return self.error_count == 0

    def add(self, severity: str, area: str, where: str, text: str) -> None:
        if severity == "error":
            self.error_count += 1
        else:
            self.note_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(severity, area, where, text))


def verify(
    root: str,
    config: StoreConfig | None = None,
    *,
    fs: FileSystem = LOCAL_FILE_SYSTEM,
    progress: Progress | None = None,
) -> Report:
    """Verify the store below ``root``. Raises ``OSError`` if files cannot be read at all."""
    chosen = StoreConfig(root=root) if config is None else dataclasses.replace(config, root=root)
    store = OfflineStore(chosen, fs)
    try:
        return _Verifier(store, Report(root), progress or (lambda what, done, total: None)).run()
    finally:
        store.close()


def next_record(store: OfflineStore, segment: OfflineSegment, position: int) -> int | None:
    """Returns the position of the next whole record of a segment, at or after ``position``; None if there is none."""
    view = store.view(segment)
    while position < len(view):
        content = bytes(view[position : position + SEARCH_BYTES])
        at = 4
        while found := [place for magic in _MAGICS if (place := content.find(magic, at)) >= 0]:
            candidate = position + min(found) - 4
            if next(iter(scan(view, candidate, len(view), log_base=segment.start)), None) is not None:
                return candidate
            at = min(found) + 1
        # Repeat the last seven bytes, because a size and a magic may span the border.
        position += max(1, len(content) - 7)
        if len(content) < SEARCH_BYTES:
            break
    return None


class _QueueFacts:
    """Facts about one queue, collected from the log's records."""

    __slots__ = ("count", "first", "last")

    def __init__(self, first: int) -> None:
        self.count = 0
        self.first = first
        self.last = first - 1


class _Verifier:
    def __init__(self, store: OfflineStore, report: Report, progress: Progress) -> None:
        self._store = store
        self._report = report
        self._progress = progress
        self._levels = DelayLevels(store.config.delay_levels)
        self._queues: dict[tuple[str, int], _QueueFacts] = {}
        self._last_ms = 0
        self._has_extensions = bool(store.fs.names(store.config.path("consumequeue_ext")))

    def run(self) -> Report:
        report = self._report
        report.clean = self._store.fs.stat(self._store.config.path("abort")) is None
        report.live = is_locked(self._store.fs, self._store.config.path("lock"))
        self._check_log()
        if report.live:
            self._store.look_again()
        self._check_queues()
        self._check_index()
        self._check_checkpoint()
        return report

    @property
    def _tail_severity(self) -> str:
        """The severity of a problem at the end of the data. It is an error only after a clean shutdown."""
        return "error" if self._report.clean else "note"

    # Log.
    def _check_log(self) -> None:
        report, size = self._report, self._store.config.segment_bytes
        segments = self._store.segments()
        report.segment_count = len(segments)
        if not segments:
            return
        report.log_start = report.log_end = segments[0].start
        total = sum(segment.size_bytes for segment in segments)
        ended = False
        for number, segment in enumerate(segments):
            is_last = number == len(segments) - 1
            if segment.size_bytes != size and not (is_last and segment.size_bytes == 0):
                report.add(
                    "error", "log", segment.path, f"{segment.size_bytes} bytes where {size} were expected"
                )
            if number and segment.start != segments[number - 1].start + size:
                report.add("error", "log", segment.path, "does not continue the segment before it")
            ended = self._check_segment(segment, number * size, total, ended=ended)

    def _check_segment(self, segment: OfflineSegment, done: int, total: int, *, ended: bool) -> bool:
        """Scan one segment. Returns whether the log ends in it or before it."""
        report, view = self._report, self._store.view(segment)
        if ended:
            if report.live:
                return True  # The log has grown since.
            if not is_zero(view, 0, len(view)):
                report.add(
                    "error", "log", segment.path, "holds bytes although the log ended in an earlier segment"
                )
            return True
        position, again = 0, -1
        while True:
            end = self._walk(segment, position, done, total)
            if end.kind is EndKind.BLANK or end.kind is EndKind.LIMIT:
                if end.reason:
                    report.add("error", "log", f"log offset {segment.start + end.position}", end.reason)
                report.log_end = segment.start + len(view)
                return False
            following = self._next_record(segment, end.position + 1)
            if following is None:
                report.log_end = segment.start + end.position
                self._judge_end(segment, end, view)
                return True
            if report.live and end.position != again:
                # It may have been written while it was read. Bytes that were complete do not change again.
                position = again = end.position
                continue
            reason = end.reason or "zeros"
            text = f"{following - end.position} bytes are damaged: {reason}"
            report.add("error", "log", f"log offset {segment.start + end.position}", text)
            position = following

    def _walk(self, segment: OfflineSegment, position: int, done: int, total: int) -> ScanEnd:
        scanned = self._store.scan(segment, position)
        for count, record in enumerate(scanned):
            self._take(record)
            if count % PROGRESS_STEP == 0:
                self._progress("log", done + record.position, total)
        assert scanned.end is not None
        return scanned.end

    def _take(self, record: ScannedRecord) -> None:
        report = self._report
        report.record_count += 1
        report.body_bytes += record.body_size
        where = f"log offset {record.log_offset}"
        if record.store_timestamp_ms < self._last_ms:
            report.add("note", "log", where, "was stored before the record in front of it, by its time")
        self._last_ms = record.store_timestamp_ms
        if record.sys_flag & _TRANSACTION in NO_UNIT:
            return
        topic = record.topic.decode("utf-8", "replace")
        facts = self._queues.get((topic, record.queue_id))
        if facts is None or (record.queue_offset == 0 and facts.last >= 0):
            # Offset 0 again: the topic was deleted and recreated, and no queue holds its first incarnation.
            facts = self._queues[topic, record.queue_id] = _QueueFacts(record.queue_offset)
        elif record.queue_offset != facts.last + 1:
            text = f"{topic}/{record.queue_id}: queue offset {record.queue_offset} follows {facts.last}"
            report.add("error", "log", where, text)
        facts.count += 1
        facts.last = record.queue_offset

    def _next_record(self, segment: OfflineSegment, position: int) -> int | None:
        return next_record(self._store, segment, position)

    def _judge_end(self, segment: OfflineSegment, end: ScanEnd, view: memoryview) -> None:
        where = f"log offset {segment.start + end.position}"
        if end.kind is EndKind.BAD:
            self._report.add(self._tail_severity, "log", where, f"torn end of the log: {end.reason}")
        elif not is_zero(view, end.position, len(view)):
            self._report.add(
                self._tail_severity, "log", where, "bytes that are not a record follow the end of the log"
            )

    # Queues.
    def _check_queues(self) -> None:
        queues = self._store.queues()
        self._report.queue_count = len(queues)
        seen: set[tuple[str, int]] = set()
        for number, queue in enumerate(queues):
            self._progress("queues", number, len(queues))
            seen.add((queue.topic, queue.queue_id))
            try:
                if self._check_queue_files(queue):
                    self._check_units(queue)
            except FileNotFoundError:
                if not self._report.live:
                    raise
                text = "its files were removed by the running broker; not compared"
                self._report.add("note", "queue", f"{queue.topic}/{queue.queue_id}", text)
        for (topic, queue_id), facts in self._queues.items():
            if (topic, queue_id) not in seen:
                text = f"{facts.count} records in the log, but no queue file"
                self._report.add(self._tail_severity, "queue", f"{topic}/{queue_id}", text)

    def _check_queue_files(self, queue: OfflineQueue) -> bool:
        report, size = self._report, self._store.config.queue_file_bytes
        before = report.error_count
        for number, (start, path, length) in enumerate(queue.files):
            if length != size:
                report.add("error", "queue", path, f"{length} bytes where {size} were expected")
            if start % size or (number and start != queue.files[number - 1][0] + size):
                report.add("error", "queue", path, "does not continue the file before it")
        return report.error_count == before

    def _check_units(self, queue: OfflineQueue) -> None:
        report, store = self._report, self._store
        name = f"{queue.topic}/{queue.queue_id}"
        facts = self._queues.get((queue.topic, queue.queue_id))
        matched, last = 0, -1
        for queue_offset, log_offset, size, code in store.units(queue):
            last = queue_offset
            report.unit_count += 1
            if log_offset < report.log_start or (report.live and log_offset >= report.log_end):
                continue
            record = store.record_at(log_offset)
            problem = (
                "no record lies there"
                if record is None
                else self._unit_problem(queue, queue_offset, size, code, record)
            )
            if problem:
                where = f"{name} queue offset {queue_offset}"
                report.add("error", "queue", where, f"points to log offset {log_offset}: {problem}")
            elif log_offset < report.log_end:
                matched += 1
            if report.unit_count % PROGRESS_STEP == 0:
                self._progress("units", report.unit_count, report.record_count)
        expected = facts.count if facts is not None else 0
        # A running broker may have added units meanwhile; if so, the next unit now exists.
        broken = (
            not store.is_zero_behind(queue, last + 1) and next(store.units(queue, last + 1), None) is None
        )
        if broken:
            report.add(
                "error", "queue", f"{name} queue offset {last + 1}", "no unit is there, but something follows"
            )
        if matched < expected and facts is not None:
            severity = "error" if last >= facts.last or broken else self._tail_severity
            text = f"{matched} of {expected} records in the log have a unit; the last unit is {last} of {facts.last}"
            report.add(severity, "queue", name, text)

    def _unit_problem(
        self, queue: OfflineQueue, queue_offset: int, size: int, code: int, record: ScannedRecord
    ) -> str:
        """Returns why a unit does not match the record it points to; empty if it does."""
        if record.size != size:
            return f"the record there has {record.size} bytes, the unit says {size}"
        topic = record.topic.decode("utf-8", "replace")
        if (topic, record.queue_id, record.queue_offset) != (queue.topic, queue.queue_id, queue_offset):
            return f"the record there is number {record.queue_offset} of {topic}/{record.queue_id}"
        if topic == SCHEDULE_TOPIC:
            expected = due_or_tag_code(record.properties, record.store_timestamp_ms, self._levels)
        else:
            expected = tags_code(find_property(record.properties, _TAGS))
        if is_ext_address(code) and self._has_extensions:
            return ""  # the extension unit holds the tag code; losing one is harmless
        if code != expected:
            return f"the tag code should be {expected}, it is {code}"
        return ""

    # Index.
    def _check_index(self) -> None:
        report, store = self._report, self._store
        paths = store.index_paths()
        report.index_file_count = len(paths)
        total = len(paths) * store.config.index_entries
        end = 0
        for number, path in enumerate(paths):
            try:
                file = store.index_file(path)
            except CorruptionError as error:
                gone = report.live and store.fs.stat(path) is None
                report.add("note" if gone else "error", "index", path, str(error))
                continue
            if file.end_log_offset < end or (number < len(paths) - 1 and not file.is_full):
                report.add("error", "index", path, "does not fit between its neighbours")
            end = file.end_log_offset
            self._check_entries(file, number * store.config.index_entries, total)
        if paths and report.record_count and end < report.log_start:
            report.add("note", "index", "end", "the index ends before the log begins")

    def _check_entries(self, file: IndexFile, done: int, total: int) -> None:
        report = self._report
        newest = array("i", bytes(4 * file.slot_count))
        last_offset, hashes = -1, frozenset[int]()
        for number, entry in file.entries():
            report.index_entry_count += 1
            where = f"{file.path} entry {number}"
            slot = entry.key_hash % file.slot_count if entry.key_hash >= 0 else 0
            if entry.previous != newest[slot] and entry.previous > 0:
                report.add(
                    "error", "index", where, f"previous entry {entry.previous}, expected {newest[slot]}"
                )
            newest[slot] = number
            if entry.log_offset < last_offset:
                report.add(
                    "error", "index", where, "points to an earlier log offset than the entry before it"
                )
            if report.live and entry.log_offset >= report.log_end:
                continue
            if entry.log_offset != last_offset:
                last_offset = entry.log_offset
                hashes = self._hashes_at(entry.log_offset)
            if entry.log_offset >= report.log_start and entry.key_hash not in hashes:
                text = f"no key of the record at log offset {entry.log_offset} has hash {entry.key_hash}"
                report.add("error", "index", where, text)
            if number % PROGRESS_STEP == 0:
                self._progress("index", done + number, total)
        # A running broker may have linked newer entries meanwhile, but an older entry is an error even then.
        wrong = sum(
            1
            for expected, stored in zip(newest, file.slots(), strict=True)
            if expected != (stored if 0 < stored < file.count else 0)
            and not (report.live and stored > expected)
        )
        if wrong:
            report.add("error", "index", file.path, f"{wrong} slots do not point to their newest entry")

    def _hashes_at(self, log_offset: int) -> frozenset[int]:
        record = self._store.record_at(log_offset)
        if record is None:
            return frozenset()
        keys = index_keys(record.topic.decode("utf-8", "replace"), record.properties, record.sys_flag)
        return frozenset(index_hash(java_hash(key)) for key in keys)

    # Checkpoint.
    def _check_checkpoint(self) -> None:
        report, config = self._report, self._store.config
        path = config.path("checkpoint")
        if self._store.fs.stat(path) is None:
            report.add("note", "checkpoint", path, "is missing: the next start reads the whole log")
            return
        checkpoint = Checkpoint(self._store.fs, path)
        checkpoint.load()
        if report.live:
            return  # The checkpoint advances with a log that has grown since the scan.
        for name, value in (
            ("the log", checkpoint.confirm_offset),
            ("the queues", checkpoint.queues_log_offset),
        ):
            if value > report.log_end and report.segment_count:
                text = f"says {name} are flushed up to {value}, but the log ends at {report.log_end}"
                report.add("error", "checkpoint", path, text)
        if self._last_ms and checkpoint.log_ms > self._last_ms:
            text = f"names a record stored at {checkpoint.log_ms}, the last one was at {self._last_ms}"
            report.add("error", "checkpoint", path, text)
