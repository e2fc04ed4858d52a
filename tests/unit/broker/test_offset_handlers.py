"""Offsets and bounds of queues: 14, 15, 29-32, over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.kit import Asker, message, open_store, safe_file

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.offsets import OffsetHandlers
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import Request, RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import (
    GetEarliestMsgStoretimeRequest,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    QueryConsumerOffsetRequest,
    SearchOffsetByTimestampRequest,
    UpdateConsumerOffsetRequest,
)


class World:
    def __init__(self, directory: Path, form: int) -> None:
        self.clock = ManualClock()
        self.config = BrokerConfig()
        self.topics = TopicTable(
            self.config, self.clock, safe_file(directory, "topics.json"), events=BrokerEvents()
        )
        self.groups = GroupTable(
            self.config, self.clock, safe_file(directory, "groups.json"), events=BrokerEvents()
        )
        self.offsets = ConsumerOffsets(self.config, self.clock, safe_file(directory, "offsets.json"))
        self.store = open_store(directory, self.clock)
        self.asker = Asker(
            OffsetHandlers(
                config=self.config,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                store=self.store,
            ).routes(),
            serialize_type=form,
        )

    def query(self, queue_id: int = 0, *, zero: bool | None = None) -> Frame:
        header = QueryConsumerOffsetRequest(
            consumer_group="g", topic="T", queue_id=queue_id, set_zero_if_not_found=zero
        )
        return self.asker.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)

    def commit(self, offset: int, *, group: str = "g", topic: str = "T", queue_id: int = 0) -> Frame:
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        return self.asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def search(self, timestamp_ms: int, boundary: str | None = None, queue_id: int = 0) -> int:
        header = SearchOffsetByTimestampRequest(
            topic="T", queue_id=queue_id, timestamp=timestamp_ms, boundary_type=boundary
        )
        return offset(self.asker.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header))


def offset(answer: Frame) -> int:
    assert answer.code == 0, answer.remark
    return int(answer.ext_fields["offset"])


@pytest.fixture(params=list(SerializeType))
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param)
    yield world
    world.store.close()


def test_a_committed_offset_is_answered(world: World) -> None:
    world.groups.find("g")
    world.topics.update(TopicConfig(topic_name="T"))
    assert world.commit(5).code == 0
    assert offset(world.query()) == 5
    world.asker.tell(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=6),
    )
    assert offset(world.query()) == 6


def test_a_new_group_starts_at_zero_only_when_nothing_was_lost(world: World) -> None:
    assert world.query().code == 22, "nobody wrote to the queue yet"
    world.store.append(message("T"))
    assert offset(world.query()) == 0
    assert offset(world.query(zero=True)) == 0
    assert world.query(zero=False).code == 22
    assert world.query(queue_id=1).code == 22


def test_commits_for_what_does_not_exist_are_refused(world: World) -> None:
    world.topics.update(TopicConfig(topic_name="T"))
    assert world.commit(5).code == 26
    world.groups.find("g")
    assert world.commit(5, topic="U").code == 17
    for answer in (world.commit(-1), world.commit(1, queue_id=-1)):
        assert answer.code == 29
        assert "must be 0 or more" in (answer.remark or "")
    for missing in ("queueId", "commitOffset"):
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
        del fields[missing]
        answer = world.asker.ask_raw(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == 29
        assert missing in (answer.remark or "")
    assert world.offsets.committed == {}


def test_a_queue_beyond_the_read_queues_is_refused(world: World) -> None:
    world.groups.find("g")
    world.topics.update(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8))
    assert world.commit(5, queue_id=3).code == 0
    for queue_id in (4, 7, 2**31 - 1):
        answer = world.commit(5, queue_id=queue_id)
        assert answer.code == 29
        assert f"queueId {queue_id} is not one of the 4 read queues of topic T" in (answer.remark or "")
    assert world.offsets.committed == {"T@g": {3: 5}}


def test_a_topic_that_shrank_keeps_the_offsets_of_its_old_queues(world: World) -> None:
    world.groups.find("g")
    world.topics.update(TopicConfig(topic_name="T", read_queue_nums=8))
    world.commit(5, queue_id=7)
    world.topics.update(TopicConfig(topic_name="T", read_queue_nums=4))
    assert world.commit(6, queue_id=7).code == 0, "a member that has not noticed yet"
    assert world.commit(6, queue_id=6).code == 29
    assert world.offsets.committed == {"T@g": {7: 6}}


def test_the_one_queue_of_a_retry_topic_is_committed(world: World) -> None:
    world.groups.find("g")
    world.topics.create_in_send_back("%RETRY%g", 1, 6)
    assert world.commit(1, topic="%RETRY%g").code == 0
    assert world.commit(1, topic="%RETRY%g", queue_id=1).code == 29


def test_commits_are_ignored_while_a_reset_is_pending(world: World) -> None:
    world.groups.find("g")
    world.topics.update(TopicConfig(topic_name="T"))
    world.commit(50)
    world.offsets.assign_reset("g", "T", 0, 10)
    answer = world.commit(51)
    assert answer.code == 0
    assert "reset" in (answer.remark or "")
    assert offset(world.query()) == 10
    assert world.offsets.take_reset("g", "T", 0) == 10
    assert world.commit(11).remark is None
    assert offset(world.query()) == 11


def test_bounds_of_a_queue(world: World) -> None:
    ask = world.asker.ask
    biggest, smallest = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET
    assert offset(ask(biggest, GetMaxOffsetRequest(topic="T", queue_id=0))) == 0
    assert offset(ask(smallest, GetMinOffsetRequest(topic="T", queue_id=0))) == 0
    earliest = GetEarliestMsgStoretimeRequest(topic="T", queue_id=0)
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME, earliest).ext_fields == {"timestamp": "-1"}
    first_ms = world.clock.now_ms()
    for _ in range(3):
        world.store.append(message("T"))
        world.clock.advance(10)
    assert offset(ask(biggest, GetMaxOffsetRequest(topic="T", queue_id=0, committed=True))) == 3
    assert offset(ask(smallest, GetMinOffsetRequest(topic="T", queue_id=0))) == 0
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME, earliest).ext_fields == {"timestamp": str(first_ms)}


def test_search_by_time(world: World) -> None:
    start_ms = world.clock.now_ms()
    for _ in range(3):
        world.store.append(message("T"))
        world.clock.advance(10)
    assert world.search(start_ms - 5) == 0
    assert world.search(start_ms + 10) == 1
    assert world.search(start_ms + 11, "LOWER") == 2
    assert world.search(start_ms + 10, "UPPER") == 1
    assert world.search(start_ms + 1_000) == 3
    assert world.search(start_ms, queue_id=9) == 0


def test_search_in_a_lite_topic_is_refused(world: World) -> None:
    header = SearchOffsetByTimestampRequest(topic="T", queue_id=0, timestamp=0, lite_topic="room-1")
    answer = world.asker.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (RequestCode.QUERY_CONSUMER_OFFSET, "consumerGroup"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, "topic"),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "timestamp"),
        (RequestCode.GET_MAX_OFFSET, "queueId"),
    ],
)
def test_missing_and_malformed_fields_are_named(world: World, code: Request, field: str) -> None:
    whole = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1", "timestamp": "1"}
    for fields in ({k: v for k, v in whole.items() if k != field}, {**whole, "queueId": "many"}):
        answer = world.asker.ask_raw(code, fields)
        assert answer.code == 1
        assert (field if field not in fields else "queueId") in (answer.remark or "")
