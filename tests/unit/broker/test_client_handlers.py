"""Heartbeats, unregistrations, members: 34, 35, 38, 46."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.golden import data
from tests.unit.broker.kit import CONFIG, Asker, FakeConnection, notices, peer, safe_file

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.clients import ClientHandlers
from orbitmq.broker.tables.clients import ConsumerTable, PeerInfo, ProducerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import SerializeType
from orbitmq.errors import SubscriptionParseFailed
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.connection import Connection
from orbitmq.wire.bodies import ConsumerIdList
from orbitmq.wire.frame import Frame, encode_request
from orbitmq.wire.headers import GetConsumerListByGroupRequest, UnregisterClientRequest


class World:
    def __init__(self, directory: Path, config: BrokerConfig = CONFIG) -> None:
        clock = ManualClock()
        self.topics = TopicTable(config, clock, safe_file(directory, "topics.json"), events=BrokerEvents())
        self.groups = GroupTable(config, clock, safe_file(directory, "groups.json"), events=BrokerEvents())
        self.consumers = ConsumerTable(config, clock, events=BrokerEvents())
        self.producers = ProducerTable(config, clock)
        self.compile_filter: Callable[[str, str], object] = lambda _kind, _expression: None
        self._config = config
        self._clock = clock

    def asker(self, connection: Connection | None = None, form: int = SerializeType.JSON) -> Asker:
        handlers = ClientHandlers(
            config=self._config,
            clock=self._clock,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            producers=self.producers,
            compile_filter=self.compile_filter,
        )
        return Asker(handlers.routes(), connection, form)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def consumer(group: str = "g", *topics: str, **more: Any) -> dict[str, Any]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics],
        "unitMode": False,
        **more,
    }


def beat(
    asker: Asker, *consumers: dict[str, Any], client: str = "c", producers: tuple[str, ...] = (), **more: Any
) -> tuple[bool, Frame]:
    """Sends a heartbeat; returns IS_SUB_CHANGE and the response."""
    body = {
        "clientID": client,
        "consumerDataSet": list(consumers),
        "producerDataSet": [{"groupName": group} for group in producers],
        **more,
    }
    answer = asker.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == 0, answer.remark
    assert answer.ext_fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    return answer.ext_fields["IS_SUB_CHANGE"] == "true", answer


def members(asker: Asker, group: str = "g") -> list[str]:
    answer = asker.ask(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequest(consumer_group=group)
    )
    if answer.code == 1:
        assert group in (answer.remark or "")
        return []
    assert answer.code == 0
    return ConsumerIdList.decode(answer.body).consumer_id_list


def test_a_heartbeat_registers_groups_and_creates_what_they_need(world: World) -> None:
    connection = peer(1)
    connection.attachment = PeerInfo.of(connection)
    asker = world.asker(connection)
    changed, _ = beat(asker, consumer("g", "T"), producers=("p", "CLIENT_INNER_PRODUCER"))
    assert changed, "always true for heartbeats of the first kind"
    assert members(asker) == ["c"]
    assert set(world.producers.groups) == {"p", "CLIENT_INNER_PRODUCER"}
    assert "g" in world.groups.configs
    retry = world.topics.configs["%RETRY%g"]
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm, retry.order) == (1, 1, 6, False)
    assert notices(connection) == ["g"]
    assert connection.attachment.client_ids == {"c"}
    found = world.consumers.channel_of("g", "c")
    assert found is not None
    assert (found.language, found.version) == ("PYTHON", 513)


def test_heartbeats_that_name_300_new_groups_save_each_table_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    save = SafeFile.save

    def counting(self: SafeFile, content: bytes) -> None:
        saved.append(self.path)
        save(self, content)

    monkeypatch.setattr(SafeFile, "save", counting)

    async def run() -> None:
        tasks = TaskOwner("test")
        world.topics.saves._tasks = world.groups.saves._tasks = tasks
        for first in range(0, 300, 50):
            beat(world.asker(peer(1)), *(consumer(f"g{first + number}", "T") for number in range(50)))
        assert saved == [], "not on the loop"
        await world.topics.saves.saved()
        await world.groups.saves.saved()
        await tasks.close()

    asyncio.run(run())
    assert len(saved) == 2
    again = World(tmp_path)
    again.topics.load()
    again.groups.load()
    assert all(f"g{number}" in again.groups.configs for number in range(300))
    assert all(f"%RETRY%g{number}" in again.topics.configs for number in range(300))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"producerDataSet": [{"groupName": "p"}] * 10_001}, "10,001 producer groups; the limit is 10,000"),
        ({"consumerDataSet": [consumer()] * 1_001}, "1,001 consumer groups; the limit is 1,000"),
        ({"consumerDataSet": [consumer("g", *["T"] * 5_001)]}, "5,001 subscriptions; the limit is 5,000"),
    ],
)
def test_a_heartbeat_of_very_many_groups_is_refused(world: World, body: dict[str, Any], told: str) -> None:
    heartbeat = json.dumps({"clientID": "c", **body}).encode()
    answer = world.asker(peer(1)).ask(RequestCode.HEART_BEAT, body=heartbeat)
    assert (answer.code, told in (answer.remark or "")) == (29, True), answer.remark
    assert not world.consumers.groups
    assert not world.producers.groups


@pytest.mark.parametrize("leaves", [False, True])
def test_a_heartbeat_of_many_groups_is_registered_in_turns(world: World, leaves: bool) -> None:
    connection = FakeConnection()
    asker = world.asker(cast(Connection, connection))
    heartbeat = {"clientID": "c", "producerDataSet": [{"groupName": f"p{number}"} for number in range(200)]}
    body = json.dumps(heartbeat).encode()
    asker.dispatch(encode_request(RequestCode.HEART_BEAT, 7, {}, body))
    assert 0 < len(world.producers.groups) < 200
    before = len(world.producers.groups)
    connection.closed = leaves
    asyncio.run(connection.slow)
    assert len(world.producers.groups) == (before if leaves else 200)


def test_a_group_above_the_limit_is_refused_and_the_others_are_registered(tmp_path: Path) -> None:
    room = len(
        GroupTable(CONFIG, ManualClock(), safe_file(tmp_path, "none.json"), events=BrokerEvents()).configs
    )
    world = World(tmp_path, BrokerConfig(groups_max=room + 1))
    body = {
        "clientID": "c",
        "consumerDataSet": [consumer("g", "T"), consumer("h", "T")],
        "producerDataSet": [{"groupName": "p"}, {"groupName": "x" * 1_025}],
    }
    answer = world.asker().ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == 29
    assert f"group h is not created: this broker has {room + 1} groups" in (answer.remark or "")
    assert set(world.consumers.groups) == {"g"}
    assert set(world.producers.groups) == {"p"}
    assert "%RETRY%h" not in world.topics.configs


def test_a_client_id_without_end_is_refused(world: World) -> None:
    answer = world.asker().ask(RequestCode.HEART_BEAT, body=json.dumps({"clientID": "c" * 1_025}).encode())
    assert answer.code == 29
    assert answer.remark == "the client id has 1,025 characters; the limit is 1024"


def test_the_retry_topic_follows_the_group_and_its_topics(world: World) -> None:
    world.groups.update(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3))
    world.topics.update(TopicConfig(topic_name="Ordered", order=True))
    asker = world.asker()
    beat(asker, consumer("g", "T", "Ordered", unitMode=True))
    retry = world.topics.configs["%RETRY%g"]
    assert (retry.write_queue_nums, retry.order, retry.topic_sys_flag) == (3, True, 2)


def test_a_second_member_is_announced_to_both(world: World) -> None:
    one, two = peer(1), peer(2)
    beat(world.asker(one), consumer("g", "T"), client="a")
    notices(one)
    beat(world.asker(two), consumer("g", "T"), client="b")
    assert (notices(one), notices(two)) == (["g"], ["g"])
    assert members(world.asker(one)) == ["a", "b"]
    goodbye = UnregisterClientRequest(client_id="b", consumer_group="g")
    assert world.asker(two).ask(RequestCode.UNREGISTER_CLIENT, goodbye).code == 0
    assert (notices(one), notices(two)) == (["g"], [])
    assert members(world.asker(one)) == ["a"]


def test_the_group_s_own_flag_stops_notices(world: World) -> None:
    world.groups.update(SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False))
    connection = peer(1)
    asker = world.asker(connection)
    beat(asker, consumer("g", "T"))
    asker.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest(client_id="c", consumer_group="g"))
    assert notices(connection) == []


def test_saying_goodbye_creates_nothing_and_knows_producers(world: World) -> None:
    asker = world.asker()
    beat(asker, producers=("p",))
    goodbye = UnregisterClientRequest(client_id="c", producer_group="p", consumer_group="stranger")
    assert asker.ask(RequestCode.UNREGISTER_CLIENT, goodbye).code == 0
    assert world.producers.groups == {}
    assert "stranger" not in world.groups.configs


def test_fingerprints_tell_whether_subscriptions_are_wanted_again(world: World) -> None:
    asker = world.asker()
    full = consumer("g", "T")
    assert not beat(asker, full, heartbeatFingerprint=7)[0], "first of its kind: nothing to compare with"
    assert not beat(asker, consumer("g"), heartbeatFingerprint=7, withoutSub=True)[0]
    assert world.consumers.subscription("g", "T") is not None, "left out is not unsubscribed"
    assert beat(asker, full, heartbeatFingerprint=8)[0]
    assert not beat(asker, consumer("g"), heartbeatFingerprint=8, withoutSub=True)[0]
    assert beat(asker, full, heartbeatFingerprint=0)[0]
    assert beat(asker, full, heartbeatFingerprint=8)[0]


def test_a_client_that_left_its_subscriptions_out_is_asked_after_a_restart(world: World) -> None:
    asker = world.asker()
    assert beat(asker, consumer("g"), heartbeatFingerprint=7, withoutSub=True)[0]
    assert world.consumers.subscription("g", "T") is None


def test_a_short_heartbeat_does_not_touch_the_order_of_the_retry_topic(world: World) -> None:
    world.topics.update(TopicConfig(topic_name="Ordered", order=True))
    asker = world.asker()
    beat(asker, consumer("g", "Ordered"), heartbeatFingerprint=7)
    version = world.topics.data_version
    beat(asker, consumer("g"), heartbeatFingerprint=7, withoutSub=True)
    assert world.topics.configs["%RETRY%g"].order
    assert world.topics.data_version == version


def test_groups_that_may_not_exist_are_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, BrokerConfig(auto_create_groups=False))
    asker = world.asker()
    beat(asker, consumer("g", "T"), consumer("TOOLS_CONSUMER", "T"), producers=("p",))
    assert members(asker) == []
    assert members(asker, "TOOLS_CONSUMER") == ["c"]
    assert "%RETRY%g" not in world.topics.configs
    assert set(world.producers.groups) == {"p"}


def test_pull_consumers_can_be_refused(tmp_path: Path) -> None:
    asker = World(tmp_path, BrokerConfig(pull_consumers_refused=True)).asker()
    beat(asker, consumer("pulls", "T", consumeType="CONSUME_ACTIVELY"), consumer("g", "T"))
    assert members(asker, "pulls") == []
    assert members(asker) == ["c"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"clientID":5}', b'{"clientID":"c","consumerDataSet":5}']
)
def test_a_broken_heartbeat_is_answered_and_changes_nothing(world: World, body: bytes) -> None:
    answer = world.asker().ask(RequestCode.HEART_BEAT, body=body)
    assert answer.code == 1
    assert answer.remark
    assert world.consumers.groups == {}


def test_missing_fields_are_named(world: World) -> None:
    for code, field in (
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "consumerGroup"),
        (RequestCode.UNREGISTER_CLIENT, "clientID"),
    ):
        answer = world.asker().ask_raw(code)
        assert answer.code == 1
        assert field in (answer.remark or "")


def subscription(kind: str, text: str) -> bytes:
    data = {"topic": "T", "expressionType": kind, "subString": text}
    return json.dumps({"clientId": "c", "group": "g", "subscriptionData": data}).encode()


def test_expressions_are_checked(tmp_path: Path) -> None:
    def compile_filter(kind: str, text: str) -> None:
        assert kind == "SQL92"
        if text != "a > 5":
            raise SubscriptionParseFailed("no")

    off, on = World(tmp_path), World(tmp_path, BrokerConfig(property_filter_enabled=True))
    code = RequestCode.CHECK_CLIENT_CONFIG
    assert off.asker().ask(code, body=subscription("TAG", "a || b")).code == 0
    assert off.asker().ask(code, body=b"{}").code == 0
    refused = off.asker().ask(code, body=subscription("SQL92", "a > 5"))
    assert refused.code == 1
    assert "SQL92" in (refused.remark or "")
    on.compile_filter = compile_filter
    assert on.asker().ask(code, body=subscription("SQL92", "a > 5")).code == 0
    assert on.asker().ask(code, body=subscription("SQL92", "a >")).code == 23


@pytest.mark.parametrize("form", list(SerializeType))
def test_recorded_requests_get_the_recorded_answers(tmp_path: Path, form: SerializeType) -> None:
    """Every request of the official clients to a real broker, on separate connections."""
    world = World(tmp_path)
    askers: dict[str, Asker] = {}
    compared = 0
    for exchange in data.frames():
        if exchange["code"] not in (34, 35, 38) or exchange["server"] != "broker":
            continue
        request = bytes.fromhex(exchange["request"]["hex"])
        if request[4] != form:
            continue
        who = exchange["label"] + str(exchange["request"].get("bodyText"))
        answer = askers.setdefault(who, world.asker(form=form)).dispatch(request)
        assert answer is not None
        recorded = exchange["response"]["header"]
        if exchange["code"] == 38:
            continue  # the online clients differ: only two exchanges of each kind were kept
        compared += 1
        assert (answer.code, answer.remark, answer.ext_fields) == (
            recorded["code"],
            recorded["remark"],
            recorded["extFields"],
        )
    assert compared >= 8
