"""Consumer group requests: codes 200, 207, 225, 352 and 353."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.golden import data
from tests.unit.broker.kit import Asker, FakeConnection, safe_file

from orbitmq.broker.config import BrokerConfig, change_option
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.groups import GroupHandlers
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.codes import SerializeType
from orbitmq.requests import RequestCode
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import Frame, encode_request
from orbitmq.wire.header import Header, encode_ext
from orbitmq.wire.headers import (
    DeleteSubscriptiongroupRequest,
    GetSubscriptiongroupConfigRequest,
    UpdateAndGetGroupForbiddenRequest,
)


class World:
    def __init__(self, directory: Path, tasks: TaskOwner | None = None) -> None:
        clock = ManualClock()
        self.config = BrokerConfig()
        self.groups = GroupTable(
            self.config, clock, safe_file(directory, "groups.json"), BrokerEvents(), tasks
        )
        self.offsets = ConsumerOffsets(self.config, clock, safe_file(directory, "offsets.json"))
        self.deleted: list[str] = []
        events = BrokerEvents()
        events.group_deleted.append(self.deleted.append)
        handlers = GroupHandlers(groups=self.groups, offsets=self.offsets, events=events)
        self.asker = Asker(handlers.routes())

    def update(self, **members: Any) -> Frame:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return self.asker.ask(code, body=json.dumps(members).encode())

    def update_list(self, *groups: dict[str, Any]) -> Frame:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return self.asker.ask(code, body=json.dumps({"groupConfigList": groups}).encode())

    def delete(
        self, group: str, clean_offset: bool | None = None, remove_offset: bool | None = None
    ) -> Frame:
        header = DeleteSubscriptiongroupRequest(
            group_name=group, clean_offset=clean_offset, remove_offset=remove_offset
        )
        return self.asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    def forbidden(self, readable: bool | None = None) -> Any:
        header = UpdateAndGetGroupForbiddenRequest(group="g", topic="T", readable=readable)
        answer = self.asker.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
        assert answer.code == 0
        return json.loads(answer.body)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("code", "header", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"g","retryMaxTimes":3}'),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            None,
            b'{"groupConfigList":[{"groupName":"new"}]}',
        ),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptiongroupRequest(group_name="g"), b""),
        (
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
            UpdateAndGetGroupForbiddenRequest(group="g", topic="T", readable=False),
            b"",
        ),
    ],
    ids=["update", "list", "delete", "forbid"],
)
def test_a_change_is_saved_by_another_thread_and_not_answered_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, header: Header | None, body: bytes
) -> None:
    """A sync on the event loop holds every client for as long as the disk takes."""
    writers: list[int] = []
    save = SafeFile.save

    def noted(self: SafeFile, content: bytes) -> None:
        writers.append(threading.get_ident())
        save(self, content)

    async def scenario() -> None:
        tasks = TaskOwner("test")
        world = World(tmp_path, tasks)
        world.groups.find("g")
        await world.groups.saves.saved()
        writers.clear()
        ext = {} if header is None else encode_ext(header)
        request = encode_request(code, 7, ext, body, SerializeType.JSON)
        assert world.asker.dispatch(request) is None, "answered before the change is on disk"
        answer = await cast(FakeConnection, world.asker.connection).slow
        assert answer.code == 0
        assert writers, "answered before the save"
        await tasks.close()

    monkeypatch.setattr(SafeFile, "save", noted)
    asyncio.run(scenario())
    assert threading.get_ident() not in writers


def test_a_group_is_created_changed_and_shown(world: World) -> None:
    assert world.update(groupName="g", retryMaxTimes=3, consumeEnable=False).code == 0
    created = world.groups.configs["g"]
    assert (created.retry_max_times, created.consume_enable, created.retry_queue_nums) == (3, False, 1)
    header = GetSubscriptiongroupConfigRequest(group="g")
    answer = world.asker.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
    assert json.loads(answer.body) == msgspec.to_builtins(created)
    world.update(groupName="g", retryMaxTimes=4)
    assert world.groups.configs["g"].consume_enable, "a request replaces the whole config"


def test_an_unknown_group_is_created_on_sight_or_missing(world: World) -> None:
    header = GetSubscriptiongroupConfigRequest(group="new")
    assert world.asker.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header).code == 0
    change_option(world.config, "autoCreateSubscriptionGroup", "false")
    header = GetSubscriptiongroupConfigRequest(group="other")
    assert world.asker.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header).code == 26


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"groupName": " "}, 29),
        ({"groupName": "a b"}, 29),
        ({"groupName": "x" * 121}, 29),
        ({"groupName": "g", "retryQueueNums": 1 << 20}, 29),
        ({"groupName": "g", "attributes": {"+no.such": "1"}}, 1),
        ({"groupName": "g", "retryMaxTimes": "many"}, 1),
    ],
)
def test_bad_groups_are_refused(world: World, members: dict[str, Any], code: int) -> None:
    before = dict(world.groups.configs)
    for answer in (world.update(**members), world.update_list({"groupName": "good"}, members)):
        assert answer.code == code
        assert answer.remark
    assert world.groups.configs == before


def test_a_group_without_a_name_is_refused_by_name(world: World) -> None:
    answer = world.update(retryMaxTimes=3)
    assert answer.code == 29
    assert "name" in (answer.remark or "")
    assert world.update_list({"retryMaxTimes": 3}).code == 1


def test_a_list_is_taken_whole(world: World) -> None:
    assert world.update_list({"groupName": "a"}, {"groupName": "b", "retryMaxTimes": 2}).code == 0
    assert world.groups.configs["b"].retry_max_times == 2
    assert world.groups.data_version.counter == 2
    assert world.update_list().code == 0
    empty = world.asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    assert empty.code == 0, "no body, nothing to do: as Apache"


@pytest.mark.parametrize(
    ("flags", "left"),
    [({}, 1), ({"clean_offset": False}, 1), ({"clean_offset": True}, -1), ({"remove_offset": True}, -1)],
)
def test_deleting_takes_offsets_along_if_asked(world: World, flags: dict[str, bool], left: int) -> None:
    world.update(groupName="g")
    world.offsets.commit("host", "g", "T", 0, 1)
    assert world.delete("g", **flags).code == 0
    assert "g" not in world.groups.configs
    assert world.offsets.query("g", "T", 0) == left
    assert world.deleted == ["g"]
    assert world.delete("g").code == 0


def test_reading_is_forbidden_and_allowed(world: World) -> None:
    assert world.forbidden() == {"group": "g", "topic": "T", "readable": True}
    assert world.forbidden(readable=False) == {"group": "g", "topic": "T", "readable": False}
    assert world.groups.forbidden("g", "T")
    assert world.forbidden()["readable"] is False
    assert world.forbidden(readable=True)["readable"] is True
    assert world.groups.forbidden_table == {}


@pytest.mark.parametrize("form", list(SerializeType))
def test_recorded_requests_get_the_recorded_answers(world: World, form: SerializeType) -> None:
    compared = {200: 0, 207: 0}
    for exchange in data.frames():
        request = bytes.fromhex(exchange["request"]["hex"])
        if exchange["code"] not in compared or request[4] != form:
            continue
        answer = world.asker.dispatch(request)
        assert answer is not None
        recorded = exchange["response"]
        assert (answer.code, answer.remark, answer.ext_fields, answer.body) == (
            recorded["header"]["code"],
            recorded["header"]["remark"],
            recorded["header"]["extFields"],
            b"",
        )
        compared[exchange["code"]] += 1
    assert all(compared.values()), compared
