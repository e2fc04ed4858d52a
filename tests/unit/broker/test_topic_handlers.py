"""Topics by request: 17, 18, 215, 351."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.golden import data
from tests.unit.broker.kit import Asker, FakeConnection, message, open_store, safe_file

from orbitmq.broker.config import BrokerConfig, change_option
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.topics import TopicHandlers
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import SerializeType
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import Frame, encode_request
from orbitmq.wire.header import encode_ext
from orbitmq.wire.headers import (
    DeleteTopicInBrokerRequest,
    GetTopicConfigRequest,
    UpdateAndCreateTopicRequest,
)

TOPIC = UpdateAndCreateTopicRequest(
    topic="T",
    default_topic="TBW102",
    read_queue_nums=4,
    write_queue_nums=4,
    perm=6,
    topic_filter_type="SINGLE_TAG",
    topic_sys_flag=0,
    order=False,
)


class World:
    def __init__(self, directory: Path, tasks: TaskOwner | None = None) -> None:
        clock = ManualClock()
        self.config = BrokerConfig(broker_name="broker-a", cluster_name="DefaultCluster")
        self.told: list[TopicConfig] = []
        events = BrokerEvents()
        events.topic_changed.append(self.told.append)
        self.topics = TopicTable(
            self.config,
            clock,
            safe_file(directory, "topics.json"),
            events,
            tasks,
        )
        self.offsets = ConsumerOffsets(self.config, clock, safe_file(directory, "offsets.json"))
        self.store = open_store(directory, clock)
        self.deleted: list[str] = []
        events.topic_deleted.append(self.deleted.append)
        self.asker = Asker(
            TopicHandlers(
                config=self.config,
                topics=self.topics,
                offsets=self.offsets,
                store=self.store,
                events=events,
            ).routes()
        )

    def update(self, **changes: Any) -> Frame:
        header = msgspec.structs.replace(TOPIC, **changes)
        return self.asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def update_list(self, *configs: dict[str, Any]) -> Frame:
        body = json.dumps({"topicConfigList": configs}).encode()
        return self.asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    def delete(self, topic: str) -> Frame:
        return self.asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBrokerRequest(topic=topic))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()


def test_a_change_is_saved_by_another_thread_and_not_answered_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync on the event loop would block every client for as long as the disk takes."""
    writers: list[int] = []
    save = SafeFile.save

    def noted(self: SafeFile, content: bytes) -> None:
        writers.append(threading.get_ident())
        save(self, content)

    async def scenario() -> None:
        tasks = TaskOwner("test")
        world = World(tmp_path, tasks)
        request = encode_request(
            RequestCode.UPDATE_AND_CREATE_TOPIC, 7, encode_ext(TOPIC), b"", SerializeType.JSON
        )
        assert world.asker.dispatch(request) is None, "answered before the change is on disk"
        assert world.topics.saves.is_running
        answer = await cast(FakeConnection, world.asker.connection).slow
        assert answer.code == 0
        assert writers, "answered before the save"
        writers.clear()
        ext = encode_ext(DeleteTopicInBrokerRequest(topic=TOPIC.topic))
        request = encode_request(RequestCode.DELETE_TOPIC_IN_BROKER, 8, ext, b"", SerializeType.JSON)
        assert world.asker.dispatch(request) is None, "answered before the deletion is on disk"
        answer = await cast(FakeConnection, world.asker.connection).slow
        assert answer.code == 0
        await tasks.close()
        world.store.close()

    monkeypatch.setattr(SafeFile, "save", noted)
    asyncio.run(scenario())
    assert writers
    assert threading.get_ident() not in writers


def test_a_topic_is_created_registered_and_shown(world: World) -> None:
    assert world.update(order=True, topic_sys_flag=1, attributes="+message.type=FIFO").code == 0
    created = world.topics.configs["T"]
    assert (created.order, created.topic_sys_flag, created.attributes) == (True, 1, {"message.type": "FIFO"})
    assert world.told == [created]
    answer = world.asker.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequest(topic="T", logical=True))
    assert json.loads(answer.body) == msgspec.to_builtins(created)
    missing = world.asker.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequest(topic="U"))
    assert missing.code == 17
    assert "U" in (missing.remark or "")


def test_an_unchanged_topic_is_left_alone(world: World) -> None:
    world.update()
    version = world.topics.data_version
    assert world.update(attributes="").code == 0
    assert world.topics.data_version == version
    assert len(world.told) == 1
    assert world.update(perm=4).code == 0
    assert world.topics.data_version.counter == version.counter + 1
    assert world.told[-1].perm == 4


def test_attributes_are_kept_unless_changed(world: World) -> None:
    world.update(attributes="+message.type=DELAY,+cleanup.policy=DELETE")
    world.update(perm=4)
    assert world.topics.configs["T"].attributes == {"message.type": "DELAY", "cleanup.policy": "DELETE"}
    world.update(attributes="-message.type")
    assert world.topics.configs["T"].attributes == {"cleanup.policy": "DELETE"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": " "}, 29),
        ({"topic": "a b"}, 29),
        ({"topic": "x" * 128}, 29),
        ({"topic": "TBW102"}, 29),
        ({"topic": "DefaultCluster"}, 29),
        ({"topic": "rmq_sys_mine"}, 29),
        ({"read_queue_nums": -1}, 29),
        ({"write_queue_nums": 1 << 20}, 29),
        ({"perm": 9}, 29),
        ({"attributes": "+message.type=MIXED"}, 29),
        ({"attributes": "message.type=FIFO"}, 1),
        ({"attributes": "+message.type=NO"}, 1),
        ({"attributes": "+no.such=1"}, 1),
        ({"attributes": "+cleanup.policy=COMPACTION"}, 1),
        ({"attributes": "+queue.type=BatchCQ"}, 1),
        ({"attributes": "+message.type=LITE"}, 1),
        ({"attributes": "+reserve.time=100"}, 1),
        ({"attributes": "-message.type"}, 1),
        ({"topic_filter_type": "ODD"}, 1),
        ({"topic_filter_type": None}, 1),
    ],
)
def test_what_apache_refuses_is_refused(world: World, changes: dict[str, Any], code: int) -> None:
    before = dict(world.topics.configs)
    answer = world.update(**changes)
    assert answer.code == code
    assert answer.remark
    assert world.topics.configs == before
    assert world.told == []


def test_what_cannot_change_after_creation_is_refused(world: World) -> None:
    world.update()
    answer = world.update(attributes="+queue.type=SimpleCQ")
    assert answer.code == 1
    assert "queue.type" in (answer.remark or "")


def test_switches_loosen_the_rules(world: World) -> None:
    change_option(world.config, "enableMixedMessageType", "true")
    change_option(world.config, "validateSystemTopicWhenUpdateTopic", "false")
    assert world.update(attributes="+message.type=MIXED").code == 0
    assert world.update(topic="BenchmarkTest").code == 0
    assert world.delete("BenchmarkTest").code == 0


def test_a_list_is_taken_whole_or_not_at_all(world: World) -> None:
    good = {
        "topicName": "A",
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "attributes": {"+message.type": "FIFO"},
    }
    assert world.update_list(good, {"topicName": "a b"}).code == 29
    assert world.update_list(good, {"topicName": "B", "attributes": {"+no": "1"}}).code == 1
    assert world.told == []
    assert world.update_list(good, {"topicName": "B"}).code == 0
    assert [config.topic_name for config in world.told] == ["A", "B"]
    assert world.topics.configs["A"].attributes == {"message.type": "FIFO"}
    assert world.topics.configs["B"].read_queue_nums == 16
    assert world.update_list({"topicName": "B"}, {"topicName": "C"}).code == 0
    assert [config.topic_name for config in world.told] == ["A", "B", "C"], "B did not change"
    assert world.update_list().code == 0
    broken = world.asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=b"[")
    assert broken.code == 1


def test_deleting_takes_offsets_queues_and_pop_retries_along(world: World) -> None:
    world.update()
    for name in ("%RETRY%g_T", "%RETRY%g+T", "%RETRY%g"):
        world.topics.update(TopicConfig(topic_name=name))
    world.store.append(message("T"))
    world.offsets.commit("host", "g", "T", 0, 1)
    world.offsets.commit("host", "g", "U", 0, 1)
    assert world.delete("T").code == 0
    assert world.deleted == ["T", "%RETRY%g+T", "%RETRY%g_T"]
    assert world.topics.find("T") is None
    assert world.topics.find("%RETRY%g") is not None
    assert world.store.queues("T") == []
    assert world.offsets.topics_of("g") == ["U"]
    assert world.delete("T").code == 0, "gone already"


@pytest.mark.parametrize("topic", [" ", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "broker-a"])
def test_system_topics_cannot_be_deleted(world: World, topic: str) -> None:
    answer = world.delete(topic)
    assert answer.code == 29
    assert answer.remark
    assert world.deleted == []


def test_missing_fields_are_named(world: World) -> None:
    answer = world.asker.ask_raw(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T", "readQueueNums": "4"})
    assert answer.code == 1
    assert "writeQueueNums" in (answer.remark or "")


@pytest.mark.parametrize("form", list(SerializeType))
def test_recorded_requests_get_the_recorded_answers(world: World, form: SerializeType) -> None:
    """Every topic request of the official clients, in the order a real broker saw them."""
    compared = {17: 0, 215: 0, 351: 0}
    for exchange in data.frames():
        request = bytes.fromhex(exchange["request"]["hex"])
        if exchange["code"] not in compared or exchange["server"] != "broker" or request[4] != form:
            continue
        answer = world.asker.dispatch(request)
        assert answer is not None
        recorded = exchange["response"]
        assert (answer.code, answer.ext_fields) == (
            recorded["header"]["code"],
            recorded["header"]["extFields"],
        )
        assert answer.body.decode() == recorded.get("bodyText", ""), exchange["label"]
        compared[exchange["code"]] += 1
    assert all(compared.values()), compared
