"""One round of a slave's copying from a master that answers, refuses, or sends garbage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.unit.broker.kit import CONFIG, safe_file

from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.replication import metadata_sync
from orbitmq.broker.replication.metadata_sync import CopiedTable, KeptTable, MetadataSync, SyncedTables
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.model.data_version import DataVersion
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.client import RpcClient
from orbitmq.wire import bodies
from orbitmq.wire.frame import Frame

VERSION = DataVersion(timestamp_ms=5, counter=7)
ORDER = [
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_TIMER_CHECK_POINT,
]
ANSWERS: dict[int, bytes] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: bodies.TopicConfigWrapper(
        data_version=VERSION, topic_config_table={"T": TopicConfig(topic_name="T")}
    ).encode(),
    # As written by an Apache master: numbers as keys without quotes.
    RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"dataVersion":{"counter":7},"offsetTable":{"T@g":{0:4,1:5}}}',
    RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:9}}',
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: bodies.SubscriptionGroupWrapper(
        data_version=VERSION, subscription_group_table={"g": SubscriptionGroupConfig(group_name="g")}
    ).encode(),
    RequestCode.GET_TIMER_CHECK_POINT: bodies.TimerCheckPoint(timer_queue_offset=3).encode(),
    RequestCode.GET_BROKER_RUNTIME_INFO: bodies.KvTable(table={"commitLogMaxOffset": "700"}).encode(),
}
POSITIONS = (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET)


def with_log_ends(codes: Sequence[int]) -> list[int]:
    """Inserts the query for the end of the master's log after each table of positions."""
    return [
        one
        for code in codes
        for one in ((code, RequestCode.GET_BROKER_RUNTIME_INFO) if code in POSITIONS else (code,))
    ]


class Log:
    """Our copy of the master's log: when the newest message of each queue was stored."""

    whole_log_offset = 700

    def __init__(self) -> None:
        self.newest_ms: dict[str, dict[int, int]] = {}

    def topics(self) -> list[str]:
        return list(self.newest_ms)

    def queues(self, topic: str) -> list[int]:
        return list(self.newest_ms[topic])

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 1

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return self.newest_ms[topic][queue_id]


class Taken:
    """The destination of delay cursors and the timers' check point."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def take(self, content: bytes) -> None:
        self.contents.append(content)


class Master:
    """Sends scripted responses, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers = dict(ANSWERS)
        self.refused: set[int] = set()

    async def call(self, address: str, code: int, *, timeout_s: float) -> Frame:
        assert address == "master:1"
        self.asked.append(code)
        if code in self.refused:
            return Frame(1, 0, remark="no")
        return Frame(0, 0, body=self.answers[code])


class World:
    def __init__(self, directory: Path) -> None:
        clock = ManualClock()
        self.master = Master()
        self.log = Log()
        self.delays, self.timers = Taken(), Taken()
        self.kept: dict[int, CopiedTable] = {}
        self.events = BrokerEvents()
        self.topics = TopicTable(CONFIG, clock, safe_file(directory, "topics.json"), events=BrokerEvents())
        self.groups = GroupTable(
            CONFIG, clock, safe_file(directory, "subscriptionGroup.json"), events=BrokerEvents()
        )
        self.offsets = ConsumerOffsets(CONFIG, clock, safe_file(directory, "consumerOffset.json"))
        self.sync = MetadataSync(
            config=CONFIG,
            tables=SyncedTables(
                self.topics,
                self.groups,
                self.offsets,
                cast(Schedule, self.delays),
                cast(Timers, self.timers),
                kept=self.kept,
            ),
            rpc=cast(RpcClient, self.master),
            store=cast(MessageStore, self.log),
            events=self.events,
        )
        self.sync.master_address = "master:1"

    def round(self) -> None:
        asyncio.run(self.sync.run_once())

    def copied(self) -> list[bool]:
        return [
            set(self.topics.configs) == {"T"},
            self.offsets.query("g", "T", 1) == 5,
            bool(self.delays.contents),
            set(self.groups.configs) == {"g"},
            bool(self.timers.contents),
        ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_round_copies_everything_in_order_and_saves_it(world: World, tmp_path: Path) -> None:
    world.round()
    assert world.master.asked == with_log_ends(ORDER)
    assert all(world.copied())
    assert world.topics.data_version == world.groups.data_version == VERSION
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        assert (tmp_path / name).exists()


def test_same_versions_replace_nothing_and_same_cursors_are_written_once(world: World) -> None:
    world.round()
    topics = world.topics.configs["T"]
    world.round()
    assert world.topics.configs["T"] is topics
    assert len(world.delays.contents) == 1


def test_own_change_of_the_same_version_is_replaced(world: World) -> None:
    """Master and slave changed their tables in the same millisecond."""
    world.topics.update(TopicConfig(topic_name="OnlyHere"))
    world.topics.data_version = world.groups.data_version = VERSION
    world.round()
    assert (set(world.topics.configs), set(world.groups.configs)) == ({"T"}, {"g"})


def test_news_of_the_master_copy_topics_and_groups_at_once(world: World) -> None:
    async def run() -> None:
        world.sync.start()
        world.sync.master_address = "master:1"
        world.events.master_tables_changed()
        world.events.master_tables_changed()
        async with asyncio.timeout(2):  # the first round would come after 3 s
            while world.copied() != [True, False, False, True, False]:  # noqa: ASYNC110  # a sync tells nobody
                await asyncio.sleep(0)
        assert world.master.asked == [ORDER[0], ORDER[3]]
        await world.sync.stop()
        world.events.master_tables_changed()
        await asyncio.sleep(0)
        assert len(world.master.asked) == 2, "a promoted broker copies nothing"

    asyncio.run(run())


def test_without_a_master_nobody_is_asked(world: World) -> None:
    world.sync.master_address = ""
    world.round()
    assert world.master.asked == []


def test_sync_that_was_stopped_forgets_its_master_and_asks_no_more(world: World) -> None:
    """Row I05: the behaviour of a slave when it is promoted."""

    async def run() -> None:
        world.sync.start()
        world.sync.master_address = "master:1"
        await world.sync.run_once()
        asked = len(world.master.asked)
        assert asked
        await world.sync.stop()
        assert world.sync.master_address == ""
        await world.sync.run_once()
        assert len(world.master.asked) == asked
        world.sync.start()
        assert world.sync.master_address == "", "an address of before is not used again"
        await world.sync.stop()

    asyncio.run(run())


def all_but(code: int) -> list[bool]:
    return [other != code for other in ORDER]


@pytest.mark.parametrize("code", ORDER)
def test_part_that_is_refused_is_logged_once_and_the_others_are_copied(
    world: World, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.master.refused.add(code)
    with caplog.at_level(logging.WARNING):
        world.round()
        world.round()
    assert world.copied() == all_but(code)
    assert sum("not copied" in record.message for record in caplog.records) == 1, "once per outage"
    world.master.refused.clear()
    world.round()
    assert all(world.copied())


@pytest.mark.parametrize("code", ORDER)
def test_bug_in_one_part_is_logged_once_with_its_traceback_and_the_others_are_copied(
    world: World, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Row I19."""
    del world.master.answers[code]  # the call raises KeyError
    world.round()
    world.round()
    assert world.copied() == all_but(code)
    [line] = [record for record in caplog.records if "not copied" in record.message]
    assert line.exc_info is not None
    assert line.exc_info[0] is KeyError
    world.master.answers[code] = ANSWERS[code]
    world.round()
    assert all(world.copied())


def test_log_end_that_is_no_sane_number_holds_up_positions_only(world: World) -> None:
    world.master.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = bodies.KvTable(
        table={"commitLogMaxOffset": "9" * 5_000}  # more digits than int() accepts
    ).encode()
    world.round()
    assert world.copied() == [True, False, False, True, True]


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    ],
)
@pytest.mark.parametrize("rubbish", [b"", b"{", b"[]", b'{"offsetTable":7,"dataVersion":"x"}'])
def test_part_that_cannot_be_read_changes_nothing(world: World, code: int, rubbish: bytes) -> None:
    world.master.answers[code] = rubbish
    world.round()
    assert world.copied() == all_but(code)


def test_positions_wait_until_the_log_has_followed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it were promoted before, this broker would skip messages that the positions mark as done and its
    log lacks.
    """
    monkeypatch.setattr(metadata_sync, "_FOLLOW_S", 0.001)
    world.log.whole_log_offset = 699
    world.round()
    assert world.copied() == [True, False, False, True, True]
    # A later round applies the same positions: newer ones might wait indefinitely for a busy master.
    world.master.answers[RequestCode.GET_ALL_CONSUMER_OFFSET] = b'{"offsetTable":{"T@g":{0:40,1:50}}}'
    world.master.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = b'{"table":{"commitLogMaxOffset":"9000"}}'
    world.log.whole_log_offset = 701
    world.round()
    assert all(world.copied())
    world.round()
    assert world.offsets.query("g", "T", 1) == 5
    world.log.whole_log_offset = 9000
    world.round()
    assert world.offsets.query("g", "T", 1) == 50


@pytest.mark.parametrize("answer", [b"{}", b'{"table":{"commitLogMaxOffset":"-"}}'])
def test_master_that_does_not_tell_the_end_of_its_log_is_not_waited_for(world: World, answer: bytes) -> None:
    world.master.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = answer
    world.round()
    assert all(world.copied())


MODES = b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"T"}}}}'


def test_table_that_means_nothing_here_is_kept_as_it_came(world: World, tmp_path: Path) -> None:
    def table() -> KeptTable:
        return KeptTable(safe_file(tmp_path, "messageRequestMode.json"), bodies.MessageRequestModes)

    kept = table()
    kept.load()
    assert kept.encode() == b'{"messageRequestModeMap":{}}'
    code = int(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    world.kept[code] = kept
    world.master.answers[code] = MODES
    world.round()
    assert world.master.asked == with_log_ends([*ORDER[:-1], code, ORDER[-1]])
    world.master.answers[code] = b"[rubbish"
    world.round()
    assert kept.encode() == MODES
    again = table()
    again.load()
    assert again.encode() == (tmp_path / "messageRequestMode.json").read_bytes() == MODES


def test_new_master_has_topics_and_queues_whose_messages_are_newer_than_its_table(world: World) -> None:
    topics = world.topics
    topics.update(TopicConfig(topic_name="Wider", read_queue_nums=2, write_queue_nums=2, perm=2))
    topics.update(TopicConfig(topic_name="Shrunk", read_queue_nums=2, write_queue_nums=2))
    copied_ms = topics.data_version.timestamp_ms
    world.log.newest_ms = {
        "Wider": {0: copied_ms, 1: copied_ms - 9, 4: copied_ms + 1, 6: copied_ms - 1},
        "Shrunk": {0: copied_ms, 3: copied_ms - 1},
        "New": {1: copied_ms},
        "%RETRY%g": {0: copied_ms},
        "Deleted": {0: copied_ms - 1},
    }
    world.sync.adopt_topics()
    found = {
        name: (config.read_queue_nums, config.write_queue_nums, config.perm)
        for name, config in topics.configs.items()
        if not topics.is_system(name)
    }
    assert found == {
        "Wider": (5, 5, 2),
        "Shrunk": (2, 2, 6),
        "New": (CONFIG.default_queue_count, CONFIG.default_queue_count, 6),
        "%RETRY%g": (1, 1, 6),
    }
