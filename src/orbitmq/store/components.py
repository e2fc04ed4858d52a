"""The parts of one store, handed to code that works on several at once (recovery, flush)."""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.model.delay_levels import DelayLevels
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.index.index_service import IndexService
from orbitmq.store.log.commit_log import CommitLog
from orbitmq.store.log.damaged_ranges import DamagedRanges
from orbitmq.store.log.segment import SegmentList
from orbitmq.store.maintenance.checkpoint import Checkpoint
from orbitmq.store.queues.extensions import Bitmap
from orbitmq.store.queues.queue_table import DeletedTopics, QueueTable
from orbitmq.store.write.dispatch import Dispatcher

__all__ = ["StoreParts"]


@dataclass(slots=True)
class StoreParts:
    """The parts of an open store, each owned by the store."""

    fs: FileSystem
    config: StoreConfig
    """Replaced as a whole when a reloadable option changes, so read it where it is used."""
    log: CommitLog
    queues: QueueTable
    index: IndexService | None
    checkpoint: Checkpoint
    deleted: DeletedTopics
    damage: DamagedRanges
    dispatcher: Dispatcher

    @classmethod
    def build(
        cls, fs: FileSystem, config: StoreConfig, clock: Clock, filter_bitmap: Bitmap | None = None
    ) -> StoreParts:
        """Create the parts, with their paths but without reading any files."""
        segments = SegmentList(
            fs,
            config.log_directories,
            config.segment_bytes,
            maps_max=config.mapped_segments_max,
            warm_up=config.warm_up_enabled,
        )
        queues = QueueTable(fs, config, filter_bitmap)
        index = IndexService(fs, config.path("index"), config, clock=clock) if config.index_enabled else None
        return cls(
            fs=fs,
            config=config,
            log=CommitLog(fs, segments),
            queues=queues,
            index=index,
            checkpoint=Checkpoint(fs, config.path("checkpoint")),
            deleted=DeletedTopics(fs, config.path("deletedTopics.json")),
            damage=DamagedRanges(fs, config.path("damagedRanges.json")),
            dispatcher=Dispatcher(queues, index, DelayLevels(config.delay_levels), queues.extensions),
        )
