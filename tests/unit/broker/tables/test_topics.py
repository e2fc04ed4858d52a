"""The topic table."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.golden import data
from tests.unit.broker.kit import CONFIG, read_json, safe_file

from orbitmq.broker.config import BrokerConfig, change_option
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import CorruptionError, InvalidParameter
from orbitmq.model.topic import TopicConfig
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.testing.manual_clock import ManualClock

GOLDEN = data.APACHE / "config" / "topics.json"
SMALL = BrokerConfig(broker_name="broker-a", cluster_name="DefaultCluster", timer_wheel_enabled=False)


def table(
    directory: Path, config: BrokerConfig = CONFIG, told: Callable[[TopicConfig], None] | None = None
) -> TopicTable:
    events = BrokerEvents()
    if told is not None:
        events.topic_changed.append(told)
    return TopicTable(config, ManualClock(), safe_file(directory, "topics.json"), events)


def recorded_registration() -> dict[str, Any]:
    (body, *_) = [
        json.loads(frame["request"]["bodyText"])
        for frame in data.frames()
        if frame["code"] == 103 and frame["label"].startswith("broker")
    ]
    wrapper: dict[str, Any] = body["topicConfigSerializeWrapper"]
    return wrapper


def test_the_built_in_topics_are_those_a_real_broker_registers(tmp_path: Path) -> None:
    ours = msgspec.to_builtins(table(tmp_path).configs)
    assert ours == recorded_registration()["topicConfigTable"]


def test_apaches_file_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(GOLDEN.read_bytes())
    topics = table(tmp_path, SMALL)
    topics.load()
    assert topics.data_version.counter == 8
    topics.saves._dirty = True
    topics.persist()
    assert path.read_bytes() == GOLDEN.read_bytes()


def test_touching_makes_a_new_version_of_the_same_table(tmp_path: Path) -> None:
    topics = table(tmp_path)
    before = dict(topics.configs)
    topics.touch()
    assert topics.data_version.counter == 1
    assert topics.configs == before
    assert read_json(tmp_path / "topics.json")["dataVersion"]["counter"] == 1


def test_members_we_do_not_know_survive_a_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    content = json.loads(GOLDEN.read_bytes())
    content["topicConfigTable"]["GoldenT"] |= {"zeta": {"a": [1]}, "beta": "x"}
    content["topicConfigTable"]["GoldenTx"]["attributes"] = {"+message.type": "odd"}
    path.write_bytes(json.dumps(content).encode())
    topics = table(tmp_path, SMALL)
    topics.load()
    topics.update(TopicConfig(topic_name="GoldenT", read_queue_nums=9))
    saved = read_json(path)["topicConfigTable"]
    assert saved["GoldenT"]["zeta"] == {"a": [1]}
    assert saved["GoldenT"]["readQueueNums"] == 9
    assert list(saved["GoldenT"]) == sorted(saved["GoldenT"])
    assert saved["GoldenTx"]["attributes"] == {"+message.type": "odd"}
    topics.delete("GoldenT")
    topics.update(TopicConfig(topic_name="GoldenT"))
    assert "zeta" not in read_json(path)["topicConfigTable"]["GoldenT"]


def test_built_in_topics_come_back_and_the_file_wins(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(
        b'{"dataVersion":{"counter":3,"timestamp":5},"topicConfigTable":{"TBW102":{"topicName":"TBW102","perm":7,'
        b'"readQueueNums":2,"writeQueueNums":2,"attributes":null}}}'
    )
    topics = table(tmp_path)
    held = topics.configs
    topics.load()
    assert topics.configs is held, "the hot path holds this dict"
    assert topics.configs["TBW102"].write_queue_nums == 2
    assert topics.find("SCHEDULE_TOPIC_XXXX") is not None
    assert (topics.data_version.counter, topics.data_version.timestamp_ms) == (3, 5)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"topicConfigTable":{"T":5}}', b'{"topicConfigTable":{"T":{"topicName":5}}}']
)
def test_a_broken_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "topics.json").write_bytes(content)
    with pytest.raises(CorruptionError):
        table(tmp_path).load()


def test_an_unknown_topic_is_created_from_the_template(tmp_path: Path) -> None:
    told: list[TopicConfig] = []
    topics = table(tmp_path, told=told.append)
    before = topics.data_version
    created = topics.create_in_send("New", "TBW102", 4)
    assert created is not None
    assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (4, 4, 6)
    assert told == [created]
    assert topics.data_version.counter == before.counter + 1
    assert topics.create_in_send("New", "TBW102", 8) is created
    assert topics.data_version.counter == before.counter + 1
    many = topics.create_in_send("Many", "TBW102", 100)
    assert many is not None
    assert many.write_queue_nums == 8, "never more than the template has"
    assert read_json(tmp_path / "topics.json")["topicConfigTable"]["New"]["writeQueueNums"] == 4


def test_a_topic_is_not_created_from_what_may_not_be_inherited(tmp_path: Path) -> None:
    topics = table(tmp_path)
    assert topics.create_in_send("New", "BenchmarkTest", 4) is None
    assert topics.create_in_send("New", "Missing", 4) is None
    own = topics.create_in_send("New", "DefaultCluster", 4)
    assert own is not None


def test_auto_creation_can_be_switched_off(tmp_path: Path) -> None:
    off = BrokerConfig(auto_create_topics=False)
    topics = table(tmp_path, off)
    assert topics.find("TBW102") is None
    assert topics.create_in_send("New", "TBW102", 4) is None
    live = BrokerConfig()
    topics = TopicTable(live, ManualClock(), safe_file(tmp_path, "other.json"), events=BrokerEvents())
    change_option(live, "autoCreateTopicEnable", "false")
    assert topics.create_in_send("New", "TBW102", 4) is None


@pytest.mark.parametrize("asked", [0, -3])
def test_a_client_that_asks_for_no_queues_gets_none(tmp_path: Path, asked: int) -> None:
    created = table(tmp_path).create_in_send("New", "TBW102", asked)
    assert created is not None
    assert created.write_queue_nums == 0


def test_retry_topics_are_created_once_and_their_order_corrected(tmp_path: Path) -> None:
    told: list[TopicConfig] = []
    topics = table(tmp_path, told=told.append)
    first = topics.create_in_send_back("%RETRY%g", 1, 6, 2)
    assert (first.write_queue_nums, first.perm, first.topic_sys_flag, first.order) == (1, 6, 2, False)
    assert topics.create_in_send_back("%RETRY%g", 5, 6) is first
    ordered = topics.create_in_send_back("%RETRY%g", 1, 6, order=True)
    assert ordered.order
    assert topics.create_in_send_back("%RETRY%g", 1, 6) is ordered
    assert told == [first, ordered]


def test_attributes_are_altered_by_signed_changes(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.apply([(TopicConfig(topic_name="T"), {"+message.type": "FIFO", "+cleanup.policy": "DELETE"})])
    assert topics.configs["T"].attributes == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    topics.apply([(TopicConfig(topic_name="T", perm=4), {})])
    assert topics.configs["T"].perm == 4
    assert topics.configs["T"].attributes["message.type"] == "FIFO", "kept without being named"
    topics.apply([(TopicConfig(topic_name="T"), {"-message.type": ""})])
    assert topics.configs["T"].attributes == {"cleanup.policy": "DELETE"}


def test_attributes_without_effect_in_a_file_are_kept_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics = table(tmp_path)
    topics.update(TopicConfig(topic_name="T", attributes={"cleanup.policy": "COMPACTION"}))
    again = table(tmp_path)
    again.load()
    assert again.configs["T"].attributes == {"cleanup.policy": "COMPACTION"}
    assert "topic=T attribute=cleanup.policy=COMPACTION reason=topics are not compacted" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [{"+message.type": "NO"}, {"+no.such": "1"}, {"-message.type": ""}, {"+reserve.time": "x"}],
)
def test_bad_attributes_change_nothing(tmp_path: Path, changes: dict[str, str]) -> None:
    topics = table(tmp_path)
    before = topics.data_version
    with pytest.raises(InvalidParameter):
        topics.apply([(TopicConfig(topic_name="Good"), {}), (TopicConfig(topic_name="T"), changes)])
    assert topics.find("Good") is None
    assert topics.data_version == before


def test_deleting(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.update(TopicConfig(topic_name="T"))
    version = topics.data_version
    assert topics.delete("T")
    assert not topics.delete("T")
    assert topics.data_version.counter == version.counter + 1
    assert "T" not in read_json(tmp_path / "topics.json")["topicConfigTable"]


def test_topics_a_name_server_lists_become_ordered(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.update(TopicConfig(topic_name="T"))
    version = topics.data_version
    topics.mark_ordered(["T", "unknown"])
    assert topics.is_ordered("T")
    assert not topics.is_ordered("unknown")
    assert topics.data_version.counter == version.counter + 1
    topics.mark_ordered(["T"])
    assert topics.data_version.counter == version.counter + 1


def test_a_master_s_table_replaces_ours(tmp_path: Path) -> None:
    topics = table(tmp_path)
    held = topics.configs
    topics.update(TopicConfig(topic_name="Mine"))
    version = topics.data_version.next(7)
    topics.replace_all({"T": TopicConfig(topic_name="T")}, version)
    assert topics.configs is held
    assert set(held) == {"T"}
    assert topics.data_version == version


def test_system_topics_include_this_broker_s_own(tmp_path: Path) -> None:
    topics = table(tmp_path)
    for name in ("TBW102", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "rmq_sys_anything"):
        assert topics.is_system(name), name
    assert not topics.is_system("T")
    assert not topics.is_system("%RETRY%g")


@pytest.mark.parametrize(("permission", "seen"), [(6, 7), (4, 4), (2, 2), (0, 0), (7, 7)])
def test_a_broker_without_a_permission_narrows_its_topics(tmp_path: Path, permission: int, seen: int) -> None:
    topics = table(tmp_path, BrokerConfig(permission=permission))
    assert topics.seen_outside(TopicConfig(topic_name="T", perm=7)).perm == seen


def test_a_disk_that_refuses_does_not_undo_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics = table(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SafeFile, "save", _refuse)
        with caplog.at_level(logging.ERROR):
            topics.update(TopicConfig(topic_name="T"))
        assert "not saved" in caplog.text
        with pytest.raises(OSError, match="full"):
            topics.persist()
    assert topics.find("T") is not None
    topics.persist()
    assert "T" in read_json(tmp_path / "topics.json")["topicConfigTable"]


def _refuse(_self: SafeFile, _content: bytes) -> None:
    raise OSError("the disk is full")


def test_an_election_publishes_the_topics_under_its_epoch(tmp_path: Path) -> None:
    events = BrokerEvents()
    topics = TopicTable(CONFIG, ManualClock(), safe_file(tmp_path, "topics.json"), events)
    before = topics.data_version
    events.elected(3)
    assert topics.data_version.state_version == 3
    assert topics.data_version.newer_than(before)
