"""Checkpoints while a store recovers: a process that is killed again repeats only what came after the last one.

Order of a checkpoint: the walked part of the log is synced, then the queue files with what the walk dispatched, their
directories and the index, then the checkpoint file. So at any moment it claims no more than the disk holds.

Only what the walk alone can restore is claimed. Nothing is written for a log with damaged ranges, for a store whose
checkpoint another writer left, or while a queue waits to be rebuilt from the whole log.
"""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.store.components import StoreParts
from orbitmq.store.upkeep.flush import directories_of, sync_file

__all__ = ["RecoveryProgress", "filled_queue_count"]

logger = logging.getLogger(__name__)

PROGRESS_BYTES: Final = 64 << 20
"""A checkpoint is due when this much of the log was walked: 1 to 2 s of work for small messages."""
PROGRESS_FILE_BYTES: Final = 256 << 10
"""The same for each queue file to be synced, so that a store with many queues does not spend its start in fsync."""


class RecoveryProgress:
    """Writes the checkpoints of one recovery."""

    def __init__(self, parts: StoreParts, start: int) -> None:
        self._parts = parts
        self._synced_until = start
        self._stopped = False
        self.claimed = start
        """Log offset up to which the queues may be called flushed."""
        self.sync_failed = False
        """A queue file could not be synced: what it lost is not known, and no later sync can tell."""

    def is_due(self, log_offset: int) -> bool:
        """Whether enough of the log was walked for another checkpoint."""
        walked = log_offset - self._synced_until
        if self._stopped or walked < PROGRESS_BYTES:
            return False
        queues = self._parts.queues
        return walked >= PROGRESS_FILE_BYTES * sum(len(queue.unsynced) + bool(queue.tail) for queue in queues)

    def save(self, log_offset: int, store_ms: int) -> None:
        """Put on the disk what was walked, up to a record boundary; ``store_ms`` is the time of the last record.

        Raises ``OSError`` when the log cannot be synced. Other failures only end the checkpoints of this recovery.
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
            checkpoint.verified_queues = filled_queue_count(parts)
            self.claimed = log_offset
            checkpoint.flush()
        except OSError as error:
            # An old checkpoint is a true one: the next recovery only takes longer.
            self._stopped = True
            logger.warning("no more checkpoints in this recovery log_offset=%d error=%s", log_offset, error)
            return
        logger.info("recovery goes on log_offset=%d", log_offset)

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
        """Queues are about to be rebuilt: claim no more of them than the walk began with. Raises ``OSError``."""
        self._stopped = True
        self.claimed = min(self.claimed, start)
        checkpoint = self._parts.checkpoint
        checkpoint.queues_log_offset = min(checkpoint.queues_log_offset, start)
        checkpoint.verified_offset = checkpoint.verified_queues = 0
        checkpoint.flush()


def filled_queue_count(parts: StoreParts) -> int:
    """How many queues point into the log. Fewer at the next start: one was removed by hand."""
    return sum(queue.log_end >= 0 for queue in parts.queues)
