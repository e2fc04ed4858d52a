"""The table of GET_BROKER_RUNTIME_INFO."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tests.unit.broker.admin_kit import World

from orbitmq.broker.config import BrokerRole
from orbitmq.broker.statistics.runtime_info import RuntimeInfo, RuntimeSources, human_bytes, java_double
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, DiskUsage, LocalFileSystem

# Every key that a 5.5.0 broker without delayed messages returns, except the one that ends with a path.
APACHE_KEYS: Final = """\
EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersionDesc
commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio
dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps
getTotalTps getTransferredTps litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills
litePullThreadPoolQueueSize msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning
msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills
pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99
putLatency999 putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes
putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps
timerOffsetBehind timerReadBehind"""


class FullDisk(LocalFileSystem):
    def __init__(self, usage: DiskUsage | None) -> None:
        self.usage = usage

    def disk_usage(self, path: str) -> DiskUsage:
        if self.usage is None:
            raise OSError(5, "no disk")
        return self.usage


def table_of(
    world: World, sources: RuntimeSources | None = None, fs: LocalFileSystem = LOCAL_FILE_SYSTEM
) -> dict[str, str]:
    return RuntimeInfo(
        config=world.config, store=world.store, stats=world.stats, clock=world.clock, fs=fs, sources=sources
    ).table()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_table_has_exactly_the_keys_of_apache_and_three_of_ours(world: World) -> None:
    table = table_of(world)
    log_directory = world.store.config.log_directories[0]
    assert table.keys() == {
        *APACHE_KEYS.split(),
        "orbitmqDamage",
        "orbitmqKernel",
        "orbitmqRelease",
        f"commitLogDiskRatio_{log_directory}",
    }
    assert all(isinstance(value, str) for value in table.values())


def test_values_follow_the_traffic(world: World) -> None:
    world.put("T", body=bytes(1000))
    world.stats.put("T", 0, 4, 1000)
    world.stats.put("rmq_sys_wheel_timer", 0, 1, 10)
    world.stats.get("g", "T", 0, 2, 500)
    world.stats.misses += 6
    world.clock.advance(2_000)
    table = table_of(world)
    assert table["putMessageTimesTotal"] == "5"
    assert table["putMessageSizeTotal"] == "1010"
    assert table["putMessageAverageSize"] == "202.0"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("4", "2")
    assert table["putTps"] == "2.5 2.5 2.5"
    assert table["getTransferredTps"] == "1.0 1.0 1.0"
    assert table["getFoundTps"].split()[0] == "0.5"
    assert table["getTotalTps"].split()[0] == "3.5"
    assert table["commitLogMaxOffset"] == str(world.store.max_log_offset)
    assert table["earliestMessageTimeStamp"] == str(world.clock.now_ms() - 2_000)
    assert table["remainHowManyDataToFlush"] == "1.1 KiB"
    assert table["bootTimestamp"] == str(world.clock.now_ms() - 2_000)


def test_empty_broker_counts_as_one_message_for_the_sake_of_averages(world: World) -> None:
    table = table_of(world)
    assert (table["putMessageTimesTotal"], table["putMessageAverageSize"]) == ("1", "0.0")
    assert table["earliestMessageTimeStamp"] == "-1"


def test_runtime_is_told_in_days(world: World) -> None:
    world.clock.advance(((1234 * 24 + 5) * 3600 + 6 * 60 + 7) * 1000)
    assert table_of(world)["runtime"] == "[ 1,234 days, 5 hours, 6 minutes, 7 seconds ]"


def test_delay_levels_and_timer_come_from_their_owners(world: World) -> None:
    sources = RuntimeSources(
        schedule=lambda: {1: (3, 5), 18: (0, 1)}, timer=lambda: {"timerReadBehind": "9"}, active=lambda: False
    )
    table = table_of(world, sources)
    assert table["scheduleMessageOffset_1"] == "3,5"
    assert table["scheduleMessageOffset_18"] == "0,1"
    assert (table["timerReadBehind"], table["brokerActive"]) == ("9", "false")


def test_slave_is_not_active(tmp_path: Path) -> None:
    assert table_of(World(tmp_path, role=BrokerRole.SLAVE, broker_id=2))["brokerActive"] == "false"


def test_disk_is_told_as_the_share_that_is_used(world: World) -> None:
    table = table_of(world, fs=FullDisk(DiskUsage(1000 << 30, 501 << 30, 499 << 30)))
    assert table["commitLogDiskRatio"] == "0.51", "rounded up to whole per cent"
    assert table["commitLogDirCapacity"] == "Total : 1000.0 GiB, Free : 499.0 GiB."


def test_disk_nobody_can_ask_is_told_as_minus_one(world: World) -> None:
    table = table_of(world, fs=FullDisk(None))
    assert (table["commitLogDiskRatio"], table["consumeQueueDiskRatio"]) == ("-1.0", "-1.0")
    assert "commitLogDirCapacity" not in table


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (2**63 - 1, "8.0 EiB")],
)
def test_sizes_are_told_as_apache_does(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.5, "-0.5"),
        (1234567.0, "1234567.0"),
        (12345678.0, "1.2345678E7"),
        (1e7, "1.0E7"),
        (0.001, "0.001"),
        (0.0009, "9.0E-4"),
        (1.5e-10, "1.5E-10"),
        (1e22, "1.0E22"),
    ],
)
def test_numbers_are_told_as_java_does(value: float, text: str) -> None:
    assert java_double(value) == text
