"""Checkpoints during recovery: if the process is killed again, it repeats only the work since the last one.

Order of a checkpoint: the scanned part of the log is synced, then the queue files with the units dispatched so far,
their directories and the index, then the checkpoint file. So it never claims more than the disk holds.

A checkpoint covers only what the scan alone can restore. None is written for a log with damaged ranges, for a store
whose checkpoint another writer left, or while a queue waits to be rebuilt from the whole log.
"""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.store.components import StoreParts
from orbitmq.store.maintenance.checkpoint import MORE_THAN_EXIST
from orbitmq.store.maintenance.flush import directories_of, sync_file

__all__ = ["RecoveryProgress"]

logger = logging.getLogger(__name__)

PROGRESS_BYTES: Final = 64 << 20
"""Bytes of log scanned between checkpoints: 1 to 2 s of work for small messages."""
PROGRESS_FILE_BYTES: Final = 256 << 10
"""Minimum bytes scanned per queue file to sync, so that a store with many queues does not spend its start in
fsync."""


class RecoveryProgress:
    """Writes the checkpoints of one recovery."""

    def __init__(self, parts: StoreParts, start: int) -> None:
        self._parts = parts
        self._synced_until = start
        self._stopped = False
        self.claimed = start
        """Log offset up to which the queues may be recorded as flushed."""
        self.sync_failed = False
        """Whether a queue file failed to sync. It is unknown which data it lost, and no later sync can reveal
        that."""

    def is_due(self, log_offset: int) -> bool:
        """Whether enough of the log was scanned for another checkpoint."""
        walked = log_offset - self._synced_until
        if self._stopped or walked < PROGRESS_BYTES:
            return False
        queues = self._parts.queues
        return walked >= PROGRESS_FILE_BYTES * sum(len(queue.unsynced) + bool(queue.tail) for queue in queues)

    def save(self, log_offset: int, store_ms: int) -> None:
        """Sync the scanned part of the log, up to the record boundary ``log_offset``, and write a checkpoint.
        ``store_ms`` is the store time of the last record.

        Raises ``OSError`` if the log cannot be synced. After any other failure this recovery writes no more
        checkpoints.
        """
        parts, checkpoint = self._parts, self._parts.checkpoint
        parts.log.sync(self._synced_until, log_offset)
        self._synced_until = log_offset
        try:
            parts.queues.write_tails()
            self._sync_queues()
            if parts.index is not None:
                parts.index.flush()
                checkpoint.index_ms = max(checkpoint.index_ms, parts.index.synced_ms)
            checkpoint.confirm_offset = max(checkpoint.confirm_offset, log_offset)
            checkpoint.log_ms = max(checkpoint.log_ms, store_ms)
            checkpoint.queues_log_offset = max(checkpoint.queues_log_offset, log_offset)
            checkpoint.queues_ms = max(checkpoint.queues_ms, store_ms)
            checkpoint.verified_offset = log_offset
            checkpoint.verified_queues = parts.queues.filled_count
            self.claimed = log_offset
            checkpoint.flush()
        except OSError as error:
            # An old checkpoint is still correct: the next recovery only takes longer.
            self._stopped = True
            logger.warning("no more checkpoints in this recovery log_offset=%d error=%s", log_offset, error)
            return
        logger.info("recovery in progress log_offset=%d", log_offset)

    def _sync_queues(self) -> None:
        parts = self._parts
        paths = parts.queues.take_unsynced()
        try:
            for path in paths:
                sync_file(parts, path)
            for directory in directories_of(paths):
                parts.fs.sync_directory(directory)
            if parts.queues.extensions is not None:
                parts.queues.extensions.flush()
        except OSError:
            self.sync_failed = True
            raise

    def withdraw(self, start: int) -> None:
        """Reset the queue checkpoint to the start of the scan, before queues are rebuilt. Raises ``OSError``."""
        self._stopped = True
        self.claimed = min(self.claimed, start)
        checkpoint = self._parts.checkpoint
        checkpoint.queues_log_offset = min(checkpoint.queues_log_offset, start)
        checkpoint.queues_ms = 0  # consulted when the offset is zero
        checkpoint.verified_offset = 0
        # If this recovery is interrupted, queues may be half rebuilt, and the next one must not trust their number.
        checkpoint.verified_queues = MORE_THAN_EXIST
        checkpoint.flush()
