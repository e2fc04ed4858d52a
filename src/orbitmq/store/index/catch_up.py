"""Brings a paused index up to date from the log after a disk error, without blocking the store."""

from __future__ import annotations

from typing import Final

from orbitmq.record.scan import EndKind, scan
from orbitmq.store.index.index_keys import IndexedRecord
from orbitmq.store.index.index_service import IndexService
from orbitmq.store.log.commit_log import CommitLog

__all__ = ["IndexCatchUp"]

STEP_BYTES: Final = 4 << 20
"""Log bytes indexed per step: about 10,000 small records, some 20 ms."""


class IndexCatchUp:
    """Brings a paused index up to date. Each ``step`` indexes the next piece of the log, and the last one resumes the
    index.

    Runs on the store's thread, so no append can occur between the last piece and the resumption.
    """

    def __init__(self, log: CommitLog, index: IndexService) -> None:
        self._log = log
        self._index = index
        self._position = -1

    def step(self) -> None:
        """Index the next piece if the index is paused. Makes no progress while the disk still refuses writes."""
        index, log = self._index, self._log
        if not index.paused:
            self._position = -1
            return
        if not log.start <= self._position <= log.end:
            self._position = max(index.rebuild_from, log.start)
        until = min(self._position + STEP_BYTES, log.whole_end(log.end))
        while self._position < until:
            records, following = self._read(self._position, until)
            if not index.catch_up(records):
                return
            self._position = following
        if self._position >= log.whole_end(log.end):
            index.resume()
            self._position = -1

    def _read(self, log_offset: int, until: int) -> tuple[list[IndexedRecord], int]:
        """Returns the records up to ``until`` or the end of their segment, and the log offset where the next piece
        starts."""
        log = self._log
        records: list[IndexedRecord] = []
        segment_start = log_offset - log_offset % log.segment_bytes
        segment_end = segment_start + log.segment_bytes
        view = log.segments.view(segment_start)
        if view is None:
            return records, min(segment_end, log.end)
        limit = min(log.end - segment_start, log.segment_bytes)
        scanned = scan(view, log_offset - segment_start, limit, check_crc=False, log_base=segment_start)
        for record in scanned:
            topic = record.topic.decode("utf-8", "replace")
            records.append(
                (topic, record.properties, record.sys_flag, record.log_offset, record.store_timestamp_ms)
            )
            log_offset = record.log_offset + record.size
            if log_offset >= until:
                return records, log_offset
        assert scanned.end is not None
        if scanned.end.kind is EndKind.BLANK:
            return records, segment_end
        skipped = next((stop for start, stop in log.damaged if start <= log_offset < stop), None)
        return records, log.end if skipped is None else skipped
