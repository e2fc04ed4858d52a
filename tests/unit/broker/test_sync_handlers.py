"""Tables copied by slaves and tools: 21, 43, 45, 60, 61, 201, 402, 906, 907."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.golden import data
from tests.unit.broker.kit import Asker, safe_file

from orbitmq.broker.config import BrokerConfig, BrokerRole, change_option, change_role
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.sync import SyncHandlers, SyncSources
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.model.data_version import DataVersion
from orbitmq.requests import Request, RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.router import PARKED, Answer, Call, Reply
from orbitmq.wire import bodies
from orbitmq.wire.frame import Frame, encode_request
from orbitmq.wire.headers import (
    ExchangeBrokerHaInfoRequest,
    ExchangeBrokerHaInfoResponse,
    GetAllSubscriptiongroupConfigRequest,
    GetAllTopicConfigRequest,
)


class World:
    def __init__(self, directory: Path, sources: SyncSources | None = None) -> None:
        clock = ManualClock()
        self.config = BrokerConfig(broker_name="broker-a", cluster_name="DefaultCluster")
        self.topics = TopicTable(
            self.config, clock, safe_file(directory, "topics.json"), events=BrokerEvents()
        )
        self.groups = GroupTable(
            self.config, clock, safe_file(directory, "groups.json"), events=BrokerEvents()
        )
        self.offsets = ConsumerOffsets(self.config, clock, safe_file(directory, "offsets.json"))
        self.asker = Asker(
            SyncHandlers(
                config=self.config,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                sources=sources if sources is not None else SyncSources(),
            ).routes()
        )

    def topic_page(self, start: int | None, version: str | None, count: int | None) -> tuple[list[str], int]:
        header = GetAllTopicConfigRequest(topic_seq=start, data_version=version, max_topic_num=count)
        answer = self.asker.ask(RequestCode.GET_ALL_TOPIC_CONFIG, header)
        assert answer.code == 0, answer.remark
        table = bodies.TopicConfigWrapper.decode(answer.body).topic_config_table
        return list(table), int(answer.ext_fields["totalTopicNum"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def recorded(code: int) -> Any:
    for exchange in data.frames():
        if exchange["code"] == code and exchange["server"].startswith("broker"):
            return exchange["response"]
    raise AssertionError(f"no frame of code {code} was recorded")


def shape(value: Any) -> Any:
    """Returns the names of members, down to the first entry of each table."""
    if not isinstance(value, dict):
        return type(value).__name__
    return {key: shape(item) for key, item in value.items()}


def test_an_asker_without_fields_gets_every_topic(world: World) -> None:
    names, total = world.topic_page(None, None, None)
    assert names == list(world.topics.configs)
    assert total == len(names)


def test_the_answer_has_the_members_of_a_real_one(world: World) -> None:
    answer = world.asker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    ours, real = json.loads(answer.body), json.loads(recorded(21)["bodyText"])
    assert list(ours) == list(real)
    assert shape(ours["topicConfigTable"]["TBW102"]) == shape(real["topicConfigTable"]["TBW102"])
    assert shape(ours["dataVersion"]) == shape(ours["mappingDataVersion"]) == shape(real["dataVersion"])
    built_in = ours["topicConfigTable"]
    assert {name: config for name, config in real["topicConfigTable"].items() if name in built_in} == built_in
    groups = json.loads(world.asker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    real = json.loads(recorded(201)["bodyText"])
    assert list(groups) == list(real)
    table = groups["subscriptionGroupTable"]
    assert {name: config for name, config in real["subscriptionGroupTable"].items() if name in table} == table


def test_topics_come_in_pages_by_name(world: World) -> None:
    everything = sorted(world.topics.configs)
    version = bodies.encode_body(world.topics.data_version).decode()
    pages = [world.topic_page(start, version if start else "", 4)[0] for start in range(0, 20, 4)]
    assert [name for page in pages for name in page] == everything
    assert pages[-1] == []
    assert world.topic_page(4, None, None)[0] == everything, "no version: from the start"


def test_an_asker_with_an_old_version_starts_over(world: World) -> None:
    old = bodies.encode_body(world.topics.data_version).decode()
    world.topics.touch()
    assert world.topic_page(4, old, 2)[0] == sorted(world.topics.configs)[:2]


def test_pages_are_bounded_by_the_broker(world: World) -> None:
    change_option(world.config, "splitMetadataSize", "3")
    assert len(world.topic_page(0, "", 2_000)[0]) == 3
    assert world.topic_page(0, "", -5)[0] == []
    change_option(world.config, "enableSplitMetadata", "false")
    assert len(world.topic_page(0, "", 2)[0]) == len(world.topics.configs)


@pytest.mark.parametrize("version", ["{", " ", "null", "[]"])
def test_a_version_that_cannot_be_read_is_not_ours(world: World, version: str) -> None:
    assert world.topic_page(4, version, 2)[0] == sorted(world.topics.configs)[:2]


def test_groups_come_in_pages_with_their_bars(world: World) -> None:
    for name in ("a", "b"):
        world.groups.find(name)
        world.groups.forbid_reading(name, "T", forbidden=True)
    names = sorted(world.groups.configs)
    first = names.index("b")
    version = bodies.encode_body(world.groups.data_version).decode()
    header = GetAllSubscriptiongroupConfigRequest(group_seq=first, data_version=version, max_group_num=1)
    answer = world.asker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
    body = bodies.SubscriptionGroupWrapper.decode(answer.body)
    assert list(body.subscription_group_table) == ["b"]
    assert body.forbidden_table == {"b": {"T": 4}}
    assert body.data_version == world.groups.data_version
    assert answer.ext_fields == {"totalGroupNum": str(len(names))}


def test_consumer_offsets_are_copied(world: World) -> None:
    world.offsets.commit("host", "g", "T", 3, 4)
    body = world.asker.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body
    assert b'"offsetTable":{"T@g":{"3":4}}' in body, "an Apache slave cannot read keys without quotes"
    assert list(shape(json.loads(body.replace(b"{3:", b'{"3":')))) == [
        "dataVersion",
        "groupTopicMap",
        "offsetTable",
        "pullOffsetTable",
    ]


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
    ],
)
def test_cursors_are_given_when_what_moved_them_is_safe(tmp_path: Path, code: int) -> None:
    waiting: list[Reply] = []

    def when_safe(_call: Call[Any], reply: Reply) -> Answer:
        waiting.append(reply)
        return PARKED

    world = World(tmp_path, SyncSources(when_safe=when_safe))
    assert world.asker.dispatch(encode_request(code, 7, None, b"")) is None
    [reply] = waiting
    change_role(world.config, BrokerRole.SLAVE, 1)
    assert world.asker.ask(code).body == reply.body
    assert len(waiting) == 1


def test_absent_parts_answer_with_empty_tables(world: World) -> None:
    def ask(code: Request) -> Frame:
        return world.asker.ask(code)

    assert bodies.DelayOffsets.decode(ask(RequestCode.GET_ALL_DELAY_OFFSET).body).offset_table == {}
    modes = ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(modes.body) == {"messageRequestModeMap": {}}
    assert ask(RequestCode.GET_TIMER_CHECK_POINT).body == bytes(56)
    assert json.loads(ask(RequestCode.GET_TIMER_METRICS).body)["timingCount"] == {}
    assert ask(RequestCode.GET_BROKER_HA_STATUS).code == 1
    assert ask(RequestCode.EXCHANGE_BROKER_HA_INFO).ext_fields == {}


def test_parts_that_exist_give_the_answers(tmp_path: Path) -> None:
    told: list[ExchangeBrokerHaInfoRequest] = []
    info = ExchangeBrokerHaInfoResponse(master_ha_address="h:2", master_address="h:1", master_flush_offset=77)
    world = World(
        tmp_path,
        SyncSources(
            delay_offsets=lambda: b"{delay}",
            message_request_modes=lambda: b"{modes}",
            timer_check_point=lambda: b"check",
            timer_metrics=lambda: b"{metrics}",
            master_info=lambda: info,
            on_master_info=told.append,
            ha_status=lambda: bodies.HaRuntimeInfo(master=True),
        ),
    )
    ask = world.asker.ask
    assert ask(RequestCode.GET_ALL_DELAY_OFFSET).body == b"{delay}"
    assert ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body == b"{modes}"
    assert ask(RequestCode.GET_TIMER_CHECK_POINT).body == b"check"
    assert ask(RequestCode.GET_TIMER_METRICS).body == b"{metrics}"
    assert json.loads(ask(RequestCode.GET_BROKER_HA_STATUS).body)["master"] is True
    answer = ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert answer.ext_fields == {"masterHaAddress": "h:2", "masterAddress": "h:1", "masterFlushOffset": "77"}
    assert told == []
    request = ExchangeBrokerHaInfoRequest(
        master_ha_address="m:2", master_address="m:1", master_flush_offset=5
    )
    assert ask(RequestCode.EXCHANGE_BROKER_HA_INFO, request).ext_fields == {}
    assert told == [request]


def test_an_empty_delay_table_is_what_a_slave_of_apache_expects() -> None:
    ours = json.loads(SyncSources().delay_offsets())
    real = json.loads(recorded(45)["bodyText"].replace("{1:4}", "{}"))
    assert shape(ours) == shape(real)
    assert msgspec.convert(ours["dataVersion"], DataVersion) == DataVersion()
