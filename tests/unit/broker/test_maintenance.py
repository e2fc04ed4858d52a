"""Maintenance requests: 25, 26, 306, 314, 316, 329."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import World, ask_slowly
from tests.unit.broker.kit import Asker

from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.maintenance import MaintenanceHandlers
from orbitmq.broker.live_config import LiveConfig
from orbitmq.codes import ResponseCode
from orbitmq.model.data_version import DataVersion
from orbitmq.requests import Request, RequestCode
from orbitmq.runtime.options import parse_properties
from orbitmq.transport.router import Route
from orbitmq.wire import javajson
from orbitmq.wire.headers import CloneGroupOffsetRequest


class Kept(World):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.live = LiveConfig(self.config, (self.store.config,), clock=self.clock, events=BrokerEvents())
        self.asker = Asker(self.routes())

    def routes(self) -> list[Route]:
        return MaintenanceHandlers(
            live_config=self.live,
            topics=self.topics,
            offsets=self.offsets,
            consumers=self.consumers,
            store=self.store,
        ).routes()

    def update(self, body: bytes) -> tuple[int, str]:
        answer = ask_slowly(self.routes(), RequestCode.UPDATE_BROKER_CONFIG, None, body)
        return answer.code, answer.remark or ""

    def do(self, code: Request) -> None:
        assert self.asker.ask(code).code == ResponseCode.SUCCESS

    def clone(self, topic: str | None = None, *, offline: bool | None = None) -> None:
        header = CloneGroupOffsetRequest(src_group="from", dest_group="to", topic=topic, offline=offline)
        assert self.asker.ask(RequestCode.CLONE_GROUP_OFFSET, header).code == ResponseCode.SUCCESS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Kept]:
    world = Kept(tmp_path)
    yield world
    world.store.close()


def test_options_are_read_with_their_version(world: Kept) -> None:
    answer = world.asker.ask(RequestCode.GET_BROKER_CONFIG)
    assert parse_properties(answer.body.decode(), "answer").values["brokerName"] == "broker-a"
    version = javajson.decode(answer.ext_fields["version"].encode(), DataVersion)
    assert version == world.live.version


def test_options_are_changed_by_request(world: Kept) -> None:
    assert world.update(b"brokerPermission=4\n") == (ResponseCode.SUCCESS, "")
    assert world.config.permission == 4
    assert world.update(b"")[0] == ResponseCode.SUCCESS


def test_bad_changes_are_refused_with_the_code_of_apache(world: Kept) -> None:
    assert world.update(b"configBlackList=x")[0] == ResponseCode.NO_PERMISSION
    code, remark = world.update(b"brokerPermission=many")
    assert code == ResponseCode.SYSTEM_ERROR
    assert "brokerPermission" in remark
    assert world.update(b"\xff\xfe=1")[0] == ResponseCode.SYSTEM_ERROR


def test_queues_of_unconfigured_topics_are_dropped(world: Kept) -> None:
    world.topic("kept", 1)
    world.put("kept")
    world.put("gone")
    world.do(RequestCode.CLEAN_UNUSED_TOPIC)
    assert world.store.topics() == ["kept"]


def test_expired_segments_go_on_request_at_any_hour(world: Kept, tmp_path: Path) -> None:
    while world.store.max_log_offset < 3 << 20:
        world.put("T", body=bytes(60_000))
    world.store.flush()
    written_s = max(path.stat().st_mtime for path in (tmp_path / "store" / "commitlog").iterdir())
    world.clock.jump(int(written_s * 1000) + 1000 * 3600 * 24 * 365)
    world.do(RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert world.store.min_log_offset > 0
    assert world.store.min_offset("T", 0) > 0
    world.do(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


def test_offsets_are_cloned_topic_by_topic_or_all(world: Kept) -> None:
    for topic in ("T", "U"):
        world.topic(topic)
        world.offsets.commit("", "from", topic, 1, 7)
    world.clone("T")
    assert (world.offsets.query("to", "T", 1), world.offsets.query("to", "U", 1)) == (7, -1)
    world.clone()
    assert world.offsets.query("to", "U", 1) == 7


def test_clone_leaves_out_deleted_topics_and_those_no_longer_subscribed(world: Kept) -> None:
    world.topic("T")
    world.topic("U")
    for topic in ("T", "U", "deleted"):
        world.offsets.commit("", "from", topic, 0, 7)
    world.consumer("from", "T")
    world.clone()
    assert world.offsets.topics_of("to") == ["T"]
    world.clone(offline=True)
    assert world.offsets.topics_of("to") == ["T", "U"]
