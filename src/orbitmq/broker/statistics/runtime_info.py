"""The state of the broker as a table of strings, for GET_BROKER_RUNTIME_INFO (28).

Corresponds to Apache's prepareRuntimeInfo, StoreStatsService and RunningStats. Tools print the table unchanged and
look up some keys by name (``clusterList`` needs putTps, getTransferredTps and the msg...Total... keys).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orbitmq import __version__
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.statistics.stats import BrokerStats, PutTimes, Rates
from orbitmq.codes import Version, version_name
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import DiskUsage, FileSystem
from orbitmq.store.message_store import MessageStore

__all__ = ["RuntimeInfo", "RuntimeSources", "human_bytes", "java_double"]

_NO_TRANSIENT_POOL: Final = str(2**31 - 1)
"""The value Apache reports without a transient store pool, which this broker never has."""
_UNKNOWN_RATIO: Final = -1.0
_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
_NO_TIMER: Final = {
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSources:
    """Callbacks to other parts of the broker. Each default is used when that part is absent."""

    schedule: Callable[[], Mapping[int, tuple[int, int]]] = dict
    """Returns, for each delay level, the next queue offset to deliver and the end of the queue."""
    timer: Callable[[], Mapping[str, str]] = lambda: _NO_TIMER
    """Returns the five ``timer...`` keys."""
    active: Callable[[], bool] | None = None
    """Returns whether this broker serves delayed messages and transactions. Without this callback, every role except
    slave does."""


class RuntimeInfo:
    """Builds the table of the runtime info."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        stats: BrokerStats,
        clock: Clock,
        fs: FileSystem,
        sources: RuntimeSources | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._stats = stats
        self._clock = clock
        self._fs = fs
        self._sources = RuntimeSources() if sources is None else sources

    def table(self) -> dict[str, str]:
        active = self._sources.active
        return {
            "brokerVersionDesc": version_name(Version.OURS),
            "orbitmqKernel": KERNEL,
            "orbitmqRelease": f"orbitmq {__version__}",
            "orbitmqDamage": self._damage(),
            "brokerActive": _text(not self._config.is_slave if active is None else active()),
            "startAcceptSendRequestTimeStamp": str(self._config.accept_sends_from_ms),
            **self._life(),
            **self._traffic(),
            **self._rates(),
            **self._days(),
            **self._log(),
            **self._disks(),
            **self._schedule(),
            **self._sources.timer(),
            **self._pools(),
        }

    def _damage(self) -> str:
        """Returns the damage found since the start, as ``messages N, queue units repaired N, found in the background
        N``."""
        integrity, scrubber = self._store.integrity, self._store.scrubber
        return (
            f"messages {integrity.damaged_count}, queue units repaired {integrity.repaired_count}, "
            f"found in the background {scrubber.damage_count}"
        )

    def _life(self) -> dict[str, str]:
        elapsed_s = max(0, self._clock.now_ms() - self._stats.started_ms) // 1000
        minutes, seconds = divmod(elapsed_s, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        return {
            "bootTimestamp": str(self._stats.started_ms),
            "runtime": f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        }

    def _traffic(self) -> dict[str, str]:
        stats, times = self._stats, self._stats.put_times
        # Apache reports at least one, to avoid a division by zero.
        count = max(1, stats.put_count)
        return {
            "putMessageTimesTotal": str(count),
            "putMessageFailedTimes": str(stats.put_failures),
            "putMessageSizeTotal": str(stats.put_bytes),
            "putMessageAverageSize": java_double(stats.put_bytes / count),
            "putMessageDistributeTime": "".join(
                f"[{label}]:{count} "
                for label, count in zip(PutTimes.LABELS, times.distribution(), strict=True)
            ),
            "putMessageEntireTimeMax": str(times.max_ms),
            "getMessageEntireTimeMax": str(int(stats.get_time_max_s * 1000)),
            "putLatency99": f"{times.percentile_ms(0.99):.2f}",
            "putLatency999": f"{times.percentile_ms(0.999):.2f}",
        }

    def _rates(self) -> dict[str, str]:
        now_ms, stats = self._clock.now_ms(), self._stats
        hits, misses = stats.hit_rates(now_ms), stats.miss_rates(now_ms)
        total = Rates(*(hit + miss for hit, miss in zip(hits, misses, strict=True)))
        return {
            "putTps": _three(stats.put_rates(now_ms)),
            "getFoundTps": _three(hits),
            "getMissTps": _three(misses),
            "getTotalTps": _three(total),
            "getTransferredTps": _three(stats.get_rates(now_ms)),
        }

    def _days(self) -> dict[str, str]:
        stats = self._stats
        return {
            "msgPutTotalYesterdayMorning": str(stats.puts_before_yesterday),
            "msgPutTotalTodayMorning": str(stats.puts_before_today),
            "msgPutTotalTodayNow": str(stats.user_put_count),
            "msgGetTotalYesterdayMorning": str(stats.gets_before_yesterday),
            "msgGetTotalTodayMorning": str(stats.gets_before_today),
            "msgGetTotalTodayNow": str(stats.user_get_count),
        }

    def _log(self) -> dict[str, str]:
        store = self._store
        return {
            "commitLogMinOffset": str(store.min_log_offset),
            "commitLogMaxOffset": str(store.max_log_offset),
            "earliestMessageTimeStamp": str(store.earliest_log_time()),
            "remainHowManyDataToFlush": human_bytes(max(0, store.max_log_offset - store.flushed_offset)),
            "remainTransientStoreBufferNumbs": _NO_TRANSIENT_POOL,
            # Every append is dispatched before it returns and holds the log no longer than that, so a request never
            # sees a lag.
            "dispatchBehindBytes": "0",
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
        }

    def _disks(self) -> dict[str, str]:
        table: dict[str, str] = {}
        ratios: list[float] = []
        for directory in self._store.config.log_directories:
            ratios.append(_used_ratio(self._usage(directory)))
            table[f"commitLogDiskRatio_{directory}"] = java_double(ratios[-1])
        table["commitLogDiskRatio"] = java_double(min(ratios))
        root = self._usage(self._store.config.root)
        table["consumeQueueDiskRatio"] = java_double(_used_ratio(root))
        if root is not None:
            total, free = human_bytes(root.total_bytes), human_bytes(root.total_bytes - root.used_bytes)
            table["commitLogDirCapacity"] = f"Total : {total}, Free : {free}."
        return table

    def _usage(self, path: str) -> DiskUsage | None:
        try:
            return self._fs.disk_usage(path)
        except OSError:
            return None

    def _schedule(self) -> dict[str, str]:
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{end}"
            for level, (offset, end) in self._sources.schedule().items()
        }

    def _pools(self) -> dict[str, str]:
        """Returns the keys about thread pools. They show empty pools, because no request waits for a thread: each is
        served in the turn of the event loop that reads it."""
        config = self._config
        capacities = (
            config.send_queue_capacity,
            config.pull_queue_capacity,
            config.lite_pull_queue_capacity,
            config.query_queue_capacity,
            config.ack_queue_capacity,
        )
        table = {
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": str(config.transaction_queue_capacity),
        }
        for pool, capacity in zip(_POOLS, capacities, strict=True):
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return table


def _text(value: bool) -> str:
    return "true" if value else "false"


def _three(rates: Rates) -> str:
    return " ".join(java_double(rate) for rate in rates)


def _used_ratio(usage: DiskUsage | None) -> float:
    """Returns the used fraction of a disk, rounded up to a whole per cent, or ``_UNKNOWN_RATIO`` if the usage is
    unknown."""
    if usage is None or usage.used_bytes + usage.available_bytes <= 0:
        return _UNKNOWN_RATIO
    return math.ceil(usage.used_bytes * 100 / (usage.used_bytes + usage.available_bytes)) / 100


def human_bytes(count: int) -> str:
    """Formats a size like Apache's tools, for example ``1.5 KiB``."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in "KMGTPE":
        size /= 1024
        if size < 1024 or unit == "E":
            return f"{size:.1f} {unit}iB"
    raise AssertionError("the last unit takes everything")


def java_double(value: float) -> str:
    """Formats a number like Java, for example ``0.5`` or ``1.0E7``."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        mantissa, _, exponent = f"{value:.16e}".partition("e")
        mantissa = repr(float(mantissa))
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}"
