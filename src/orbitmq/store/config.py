"""Options of the store, with Apache's keys and defaults (``MessageStoreConfig``)."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from orbitmq.errors import ConfigError
from orbitmq.runtime.options import option
from orbitmq.store.types import FlushMode

__all__ = ["StoreConfig", "delete_hours"]

_MIB = 1 << 20


def delete_hours(text: str) -> frozenset[int]:
    """Returns the hours of the day in a ``deleteWhen`` value such as ``04`` or ``04;16``. Raises ``ConfigError``."""
    hours: set[int] = set()
    for word in text.split(";"):
        if not word.strip():
            continue
        if not (word.strip().isdecimal() and int(word) < 24):
            raise ConfigError(f"deleteWhen={text!r} is not a list of hours from 00 to 23 separated by ';'")
        hours.add(int(word))
    return frozenset(hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """All options of the store."""

    root: str = option("store", apache="storePathRootDir", doc="Directory of the store.")
    commit_log_path: str = option(
        "",
        apache="storePathCommitLog",
        doc="Directory of the log, or several separated by commas; empty means <root>/commitlog.",
    )

    # Sizes. They are part of the format: a store must be opened with the sizes it was written with.
    segment_bytes: int = option(
        1024 * _MIB, apache="mappedFileSizeCommitLog", low=4096, high=2**31 - 1, doc="Bytes of a log segment."
    )
    queue_file_bytes: int = option(
        6_000_000,
        apache="mappedFileSizeConsumeQueue",
        low=20,
        high=2**31 - 1,
        doc="Bytes of a consume queue file; rounded up to a multiple of 20 as Apache does.",
    )
    queue_ext_enabled: bool = option(
        False, apache="enableConsumeQueueExt", doc="Write filter bitmaps next to the consume queues."
    )
    queue_ext_file_bytes: int = option(
        48 * _MIB, apache="mappedFileSizeConsumeQueueExt", low=4096, doc="Bytes of a filter extension file."
    )
    queue_ext_bitmap_bits: int = option(
        64,
        apache="bitMapLengthConsumeQueueExt",
        low=8,
        doc="Bits of a filter bitmap.",
        without_effect="expectConsumerNumUseFilter and maxErrorRateOfBloomFilter give the bitmap its size",
    )
    index_slots: int = option(5_000_000, apache="maxHashSlotNum", low=1, doc="Hash slots of an index file.")
    index_entries: int = option(
        20_000_000, apache="maxIndexNum", low=2, doc="Entries of an index file (entry 0 is unused)."
    )

    # Limits.
    message_bytes_max: int = option(
        4 * _MIB, apache="maxMessageSize", low=1, high=512 * _MIB, reload=True, doc="Largest message body."
    )
    long_topic_allowed: bool = option(
        True,
        apache="autoMessageVersionOnTopicLen",
        doc="Write topics longer than 127 bytes as version 2 records.",
    )

    # Flush.
    flush_mode: FlushMode = option(  # noqa: RUF009  (an enum member is immutable)
        FlushMode.ASYNC, apache="flushDiskType", doc="Whether a send waits for the disk."
    )
    flush_interval_ms: int = option(
        500, apache="flushIntervalCommitLog", low=1, reload=True, doc="Longest time between log flushes."
    )
    flush_pages_min: int = option(
        4, apache="flushCommitLogLeastPages", low=0, reload=True, doc="Fewer dirty 4 KiB pages wait longer."
    )
    flush_thorough_interval_ms: int = option(
        10_000, apache="flushCommitLogThoroughInterval", low=1, reload=True, doc="Then flush however little."
    )
    sync_flush_timeout_ms: int = option(
        5_000, apache="syncFlushTimeout", low=1, reload=True, doc="Longest a synchronous send waits."
    )
    queue_flush_interval_ms: int = option(
        1_000,
        apache="flushIntervalConsumeQueue",
        low=1,
        reload=True,
        doc="Queue tails are written this often.",
    )
    queue_flush_thorough_interval_ms: int = option(
        60_000,
        apache="flushConsumeQueueThoroughInterval",
        low=1,
        reload=True,
        doc="Queues are forced to the disk and the checkpoint moves on this often.",
    )
    warm_up_enabled: bool = option(
        False,
        apache="warmMapedFileEnable",
        doc="Give a new segment its disk blocks ahead of use.",  # sic
    )

    # Index.
    index_enabled: bool = option(True, apache="messageIndexEnable", doc="Keep an index of message keys.")
    index_safe: bool = option(
        False, apache="messageIndexSafe", doc="After a crash also distrust the log beyond the index."
    )
    index_tags_enabled: bool = option(
        True, apache="indexTagEnable", doc="Also index topic#T#tag, as Apache 5.5 does."
    )
    query_count_max: int = option(
        64, apache="maxMsgsNumBatch", low=1, reload=True, doc="Most hits of a query."
    )
    unique_key_query_count: int = option(
        32, apache="defaultQueryMaxNum", low=1, reload=True, doc="Most hits of a query by unique key."
    )

    # Recovery.
    check_crc_on_recover: bool = option(
        True, apache="checkCRCOnRecover", doc="Check each body against its CRC while recovering."
    )
    property_crc_enabled: bool = option(
        False,
        apache="enabledAppendPropCRC",
        doc="Store a checksum of each whole record in its property __CRC32#, and verify it wherever the body's is.",
    )
    recover_past_corruption: bool = option(
        False,
        apache="recoverPastCorruption",
        doc="Open a log with rot in the middle: skip the damaged range (it is logged) and serve what follows.",
    )

    scrub_interval_hours: int = option(
        168,
        apache="scrubIntervalHours",
        low=0,
        reload=True,
        doc="Hours in which the whole commit log is read and verified once in the background; 0 switches that off.",
    )

    # Delayed messages: the due time is stored in place of the tag code.
    delay_levels: str = option(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        apache="messageDelayLevel",
        doc="Delay of each level, from level 1.",
    )

    # Reads.
    memory_transfer_bytes_max: int = option(
        262_144,
        apache="maxTransferBytesOnMessageInMemory",
        low=1,
        reload=True,
        doc="Bytes of a recent batch.",
    )
    memory_transfer_count_max: int = option(
        32, apache="maxTransferCountOnMessageInMemory", low=1, reload=True, doc="Messages of a recent batch."
    )
    disk_transfer_bytes_max: int = option(
        65_536, apache="maxTransferBytesOnMessageInDisk", low=1, reload=True, doc="Bytes of an old batch."
    )
    disk_transfer_count_max: int = option(
        8, apache="maxTransferCountOnMessageInDisk", low=1, reload=True, doc="Messages of an old batch."
    )
    memory_ratio_percent: int = option(
        40,
        apache="accessMessageInMemoryMaxRatio",
        clamp=True,
        low=0,
        high=100,
        reload=True,
        doc="Share of the machine's memory counted as page cache of the log.",
    )
    filter_window_bytes: int = option(
        16_000, apache="maxFilterMessageSize", low=20, reload=True, doc="Queue bytes one read may look at."
    )
    check_offset_on_slave: bool = option(
        False, apache="offsetCheckInSlave", reload=True, doc="Correct a consumer's offset on a slave as well."
    )

    # Retention.
    retention_hours: int = option(
        72, apache="fileReservedTime", low=0, reload=True, doc="Hours a full log segment is kept."
    )
    delete_when: str = option(
        "04", apache="deleteWhen", reload=True, doc="Hours of the day, separated by ';', for expiry."
    )
    clean_interval_ms: int = option(
        10_000, apache="cleanResourceInterval", low=1, reload=True, doc="Time between retention rounds."
    )
    disk_used_percent_max: int = option(
        75,
        apache="diskMaxUsedSpaceRatio",
        clamp=True,
        low=10,
        high=95,
        reload=True,
        doc="Above: expire at any hour.",
    )
    disk_force_percent: int = option(
        85,
        apache="diskSpaceCleanForciblyRatio",
        clamp=True,
        low=0,
        high=100,
        reload=True,
        doc="Above: drop the oldest.",
    )
    disk_forbid_percent: int = option(
        90,
        apache="diskSpaceWarningLevelRatio",
        clamp=True,
        low=0,
        high=100,
        reload=True,
        doc="Above: refuse writes.",
    )
    force_clean_enabled: bool = option(
        True,
        apache="cleanFileForciblyEnable",
        reload=True,
        doc="Whether segments not yet expired may be dropped.",
    )
    delete_batch_count_max: int = option(
        10, apache="deleteFileBatchMax", low=1, reload=True, doc="Most segments removed in one round."
    )

    # Our own limits.
    open_queue_files_max: int = option(
        512, apache="openQueueFilesMax", low=8, doc="Consume queue files kept open at once."
    )
    mapped_segments_max: int = option(
        64, apache="mappedSegmentsMax", low=2, doc="Log segments kept mapped for reading at once."
    )

    def __post_init__(self) -> None:
        delete_hours(self.delete_when)

    @property
    def queue_file_units(self) -> int:
        """Units per consume queue file."""
        return -(-self.queue_file_bytes // 20)

    @property
    def log_directories(self) -> list[str]:
        """Directories of the log segments; new segments are spread over all of them."""
        chosen = [part.strip() for part in self.commit_log_path.split(",") if part.strip()]
        return chosen or [posixpath.join(self.root, "commitlog")]

    def path(self, *parts: str) -> str:
        """Returns a path below the root."""
        return posixpath.join(self.root, *parts)
