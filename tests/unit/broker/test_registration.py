"""Registration with name servers, over real sockets on a free port."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.golden import data
from tests.support.ports import free_ports
from tests.support.waiting import until_async
from tests.unit.broker.kit import safe_file

from orbitmq.broker import registration
from orbitmq.broker.config import BrokerConfig, BrokerRole, change_option
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.registration import Registration
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode
from orbitmq.model.topic import TopicConfig
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.client import RpcClient
from orbitmq.transport.router import PARKED, Answer, Call, Reply, Route, Router
from orbitmq.transport.server import Listener, Server
from orbitmq.wire import bodies
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import (
    Empty,
    GetRouteinfoByTopicRequest,
    QueryDataVersionResponse,
    RegisterBrokerResponse,
)

ADDRESS, HA_ADDRESS = "10.0.0.9:10911", "10.0.0.9:10912"
DEADLINE_S = 60.0
CODES = (
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
)


def bounded(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(run())


class FakeNameServer:
    """Records requests and sends scripted responses."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Frame] = asyncio.Queue()
        self.answers: dict[int, Answer] = {}
        self._server: Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        routes = [Route(code, self._take, Empty) for code in CODES]
        self._server = Server([Listener("127.0.0.1", self.port, Router(routes))])
        await self._server.start()
        self.port = self._server.ports[0]

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.5)
            self._server = None

    def _take(self, call: Call[Empty]) -> Answer:
        self.requests.put_nowait(call.frame)
        return self.answers.get(call.frame.code, Reply())

    async def next(self, code: int = RequestCode.REGISTER_BROKER) -> Frame:
        frame = await self.requests.get()
        assert frame.code == code
        return frame


def wrapper_of(frame: Frame) -> bodies.TopicConfigWrapper:
    compressed = frame.ext_fields["compressed"] == "true"
    assert int(frame.ext_fields["bodyCrc32"]) == zlib.crc32(frame.body) & 0x7FFFFFFF
    body = bodies.decode_registration(frame.body, compressed=compressed, version=frame.version)
    return body.topic_config_serialize_wrapper


class World:
    def __init__(self, directory: Path, config: BrokerConfig) -> None:
        self.config = config
        self.masters: list[tuple[str, str]] = []
        self.events = BrokerEvents()
        self.topics = TopicTable(
            config,
            ManualClock(),
            safe_file(directory, "topics.json"),
            self.events,
        )
        self.registration = Registration(config, self.topics, self.events)
        self.events.master_known.append(lambda master, ha: self.masters.append((master, ha)))


@asynccontextmanager
async def registered(
    directory: Path, *servers: FakeNameServer, wait_s: float = 3.0, **options: Any
) -> AsyncIterator[World]:
    """A broker registered with fake name servers; the first registration is still in their queues."""
    for server in servers:
        if not server.port:
            await server.start()
    config = BrokerConfig(
        broker_name="broker-a",
        cluster_name="DefaultCluster",
        name_servers=";".join(server.address for server in servers),
        **options,
    )
    world = World(directory, config)
    await world.registration.start(ADDRESS, HA_ADDRESS, wait_s=wait_s)
    try:
        yield world
    finally:
        await world.registration.stop(wait_s=0.5)
        for server in servers:
            await server.stop()


def test_the_first_registration_is_what_a_real_broker_sends(tmp_path: Path) -> None:
    async def test() -> None:
        one, two = FakeNameServer(), FakeNameServer()
        async with registered(tmp_path, one, two) as world:
            for server in (one, two):
                frame = await server.next()
                recorded = next(exchange["request"] for exchange in data.frames() if exchange["code"] == 103)
                fields = frame.ext_fields
                assert fields.keys() == recorded["header"]["extFields"].keys()
                assert (fields["brokerAddr"], fields["haServerAddr"]) == (ADDRESS, HA_ADDRESS)
                assert (fields["brokerId"], fields["brokerName"]) == ("0", "broker-a")
                ours, real = json.loads(frame.body), json.loads(recorded["bodyText"])
                table = "topicConfigSerializeWrapper"
                assert list(ours) == list(real)
                assert list(ours[table]) == list(real[table])
                assert ours[table]["topicConfigTable"] == real[table]["topicConfigTable"]
                assert wrapper_of(frame).data_version == world.topics.data_version

    bounded(test)


def test_a_changed_topic_is_sent_at_once_and_alone(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeNameServer()
        async with registered(tmp_path, server) as world:
            await server.next()
            world.topics.create_in_send("New", "TBW102", 4)
            wrapper = wrapper_of(await server.next())
            assert wrapper.topic_config_table == {"New": world.topics.configs["New"]}
            assert wrapper.data_version == world.topics.data_version
            world.topics.update(TopicConfig(topic_name="A"))
            world.topics.update(TopicConfig(topic_name="B"))
            together = wrapper_of(await server.next())
            assert set(together.topic_config_table) == {"A", "B"}
            assert server.requests.empty()

    bounded(test)


def test_changes_while_a_registration_is_under_way_are_sent_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_RETRY_S", 0.02)

    async def test() -> None:
        server = FakeNameServer()
        server.answers[RequestCode.REGISTER_BROKER] = PARKED
        async with registered(tmp_path, server, wait_s=0.0, register_timeout_ms=100) as world:
            first = await server.next()
            world.topics.update(TopicConfig(topic_name="Late"))
            assert "Late" not in wrapper_of(first).topic_config_table
            server.answers.clear()
            assert "Late" in wrapper_of(await server.next()).topic_config_table
            world.registration.refresh()
            await server.next()
            # Now one is in progress: its end must not swallow the next request.
            world.registration.refresh()
            await server.next()

    bounded(test)


def test_dead_and_silent_name_servers_delay_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        dead, silent, good = FakeNameServer(), FakeNameServer(), FakeNameServer()
        for server in (dead, silent, good):
            await server.start()
        await dead.stop()
        silent.answers[RequestCode.REGISTER_BROKER] = PARKED
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with registered(tmp_path, dead, silent, good, wait_s=0.2) as world:
            assert 0.15 < loop.time() - started < 5.0, "waits for the silent one, but not long"
            await good.next()
            world.topics.update(TopicConfig(topic_name="T"))
            assert "T" in wrapper_of(await good.next()).topic_config_table

    bounded(test)


def test_unregisters_at_stop(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeNameServer()
        async with registered(tmp_path, server):
            await server.next()
        frame = await server.next(RequestCode.UNREGISTER_BROKER)
        assert frame.ext_fields == {
            "brokerName": "broker-a",
            "brokerAddr": ADDRESS,
            "clusterName": "DefaultCluster",
            "brokerId": "0",
        }

    bounded(test)


def test_without_name_servers_there_is_nothing_to_do(tmp_path: Path) -> None:
    async def test() -> None:
        async with registered(tmp_path) as world:
            world.topics.update(TopicConfig(topic_name="T"))
            world.registration.refresh()

    bounded(test)


@pytest.mark.parametrize(
    ("role", "broker_id", "told"), [(BrokerRole.SLAVE, 1, True), (BrokerRole.SYNC_MASTER, 0, False)]
)
def test_a_slave_learns_its_master(tmp_path: Path, role: BrokerRole, broker_id: int, told: bool) -> None:
    async def test() -> None:
        server = FakeNameServer()
        header = RegisterBrokerResponse(master_addr="m:1", ha_server_addr="m:2")
        server.answers[RequestCode.REGISTER_BROKER] = Reply(header=header)
        async with registered(tmp_path, server, wait_s=0.0, role=role, broker_id=broker_id) as world:
            await server.next()
            world.registration.refresh()
            await server.next()
            world.registration.refresh()
            await server.next()
        assert set(world.masters) == ({("m:1", "m:2")} if told else set())

    bounded(test)


def test_topics_listed_in_the_answer_become_ordered(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeNameServer()
        table = bodies.KvTable(table={"SELF_TEST_TOPIC": "broker-a:1", "elsewhere": "broker-b:1"})
        server.answers[RequestCode.REGISTER_BROKER] = Reply(body=table.encode())
        async with registered(tmp_path, server) as world:
            assert world.topics.configs["SELF_TEST_TOPIC"].order
            assert world.topics.data_version.counter == 1

    bounded(test)


def test_asks_before_it_registers_when_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_SECOND_S", 0.02)
    monkeypatch.setattr(BrokerConfig, "register_period_s", 0.02)

    async def test() -> None:
        server = FakeNameServer()
        async with registered(tmp_path, server, wait_s=0.0, register_always=False) as world:
            version = world.topics.data_version

            def knows(changed: bool, counter: int) -> Reply:
                known = msgspec.structs.replace(version, counter=counter)
                return Reply(header=QueryDataVersionResponse(changed=changed), body=bodies.encode_body(known))

            server.answers[RequestCode.QUERY_DATA_VERSION] = knows(False, version.counter)
            await server.next()
            for _ in range(3):
                asked = await server.next(RequestCode.QUERY_DATA_VERSION)
                assert json.loads(asked.body) == msgspec.to_builtins(version)
            for outdated in (knows(True, version.counter), knows(False, 99)):
                server.answers[RequestCode.QUERY_DATA_VERSION] = outdated
                await skip_until(server, RequestCode.REGISTER_BROKER)
                server.answers[RequestCode.QUERY_DATA_VERSION] = knows(False, version.counter)
            world.registration.refresh()
            await skip_until(server, RequestCode.REGISTER_BROKER)

    bounded(test)


async def skip_until(server: FakeNameServer, code: int) -> None:
    """Takes requests until one with ``code`` arrives."""
    while (await server.requests.get()).code != code:
        pass


def test_a_name_server_that_comes_back_is_told_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_RETRY_S", 0.02)

    async def test() -> None:
        server = FakeNameServer()
        server.port = free_ports()[0]  # it starts again on this port
        await server.start()
        async with registered(tmp_path, server):
            await server.next()
            await server.stop()
            await server.start()
            frame = await server.next()
            assert len(wrapper_of(frame).topic_config_table) > 10

    bounded(test)


def test_a_refused_registration_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "_RETRY_S", 0.01)

    async def test() -> None:
        server = FakeNameServer()
        server.answers[RequestCode.REGISTER_BROKER] = Reply(code=ResponseCode.SYSTEM_ERROR, remark="not now")
        async with registered(tmp_path, server) as world:
            for _ in range(4):
                await server.next()
            assert [r.levelname for r in caplog.records if "registration failed" in r.message] == ["WARNING"]
            server.answers.clear()
            await server.next()
            world.topics.update(TopicConfig(topic_name="T"))
            assert set(wrapper_of(await server.next()).topic_config_table) == {"T"}

    bounded(test)


def test_a_failed_change_is_followed_by_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_RETRY_S", 0.01)

    async def test() -> None:
        server = FakeNameServer()
        async with registered(tmp_path, server) as world:
            await server.next()
            server.answers[RequestCode.REGISTER_BROKER] = Reply(code=1, remark="crc32 not match")
            world.topics.update(TopicConfig(topic_name="T"))
            assert set(wrapper_of(await server.next()).topic_config_table) == {"T"}
            server.answers.clear()
            whole = wrapper_of(await server.next()).topic_config_table
            assert whole == world.topics.configs

    bounded(test)


def test_pauses_grow_up_to_the_period() -> None:
    config = BrokerConfig(register_period_ms=30_000)

    async def test() -> None:
        one = Registration(config, None, BrokerEvents())  # type: ignore[arg-type]  # wrong on purpose
        link = registration._Link("h:1")
        pauses = []
        for failures in (1, 2, 3, 4, 5, 6, 50):
            link.failures = failures
            pauses.append(one._pause_s(link, first=False, done=False))
        assert pauses == [1, 2, 4, 8, 16, 30, 30]
        assert one._pause_s(link, first=True, done=True) == 10
        assert one._pause_s(link, first=False, done=True) == 30

    bounded(test)


def test_large_tables_can_be_split_and_compressed(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeNameServer()
        options = {"split_registration": True, "split_registration_count": 7, "register_compressed": True}
        async with registered(tmp_path, server, **options) as world:
            wrappers = [wrapper_of(await server.next()) for _ in range(3)]
            assert [len(wrapper.topic_config_table) for wrapper in wrappers] == [7, 7, 1]
            names = {name for wrapper in wrappers for name in wrapper.topic_config_table}
            assert names == set(world.topics.configs)

    bounded(test)


def test_a_permission_taken_away_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeNameServer()
        async with registered(tmp_path, server) as world:
            before = wrapper_of(await server.next())
            change_option(world.config, "brokerPermission", "4")
            world.topics.touch()
            world.registration.refresh()
            after = wrapper_of(await server.next())
            assert before.topic_config_table["TBW102"].perm == 7
            assert after.topic_config_table["TBW102"].perm == 4
            assert after.data_version.counter == before.data_version.counter + 1
            world.topics.update(TopicConfig(topic_name="T", perm=6))
            assert wrapper_of(await server.next()).topic_config_table["T"].perm == 4

    bounded(test)


def test_single_topics_have_a_request_of_their_own(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeNameServer()
        async with registered(tmp_path, server, register_single_topic=True) as world:
            await server.next()
            world.topics.update(TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=2))
            frame = await server.next(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
            assert frame.ext_fields == {"topic": "T"}
            (queues,) = bodies.decode_route(frame.body).queue_datas
            assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == ("broker-a", 3, 2)

    bounded(test)


def test_a_broker_with_an_acting_master_beats_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_HEARTBEAT_S", 0.02)

    async def test() -> None:
        server = FakeNameServer()
        async with registered(tmp_path, server, acting_master_enabled=True):
            first = await server.next()
            assert first.ext_fields["enableActingMaster"] == "true"
            assert first.ext_fields["heartbeatTimeoutMillis"] == "10000"
            for _ in range(2):
                assert (await server.next(RequestCode.QUERY_DATA_VERSION)).is_oneway

    bounded(test)


def test_a_real_name_server_gives_the_routes(tmp_path: Path) -> None:
    async def test() -> None:
        settings = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")
        async with NameServer(settings) as server:
            config = BrokerConfig(broker_name="broker-a", name_servers=server.address)
            world = World(tmp_path, config)
            await world.registration.start(ADDRESS, HA_ADDRESS)
            client = RpcClient()

            async def route(topic: str) -> Frame:
                header = GetRouteinfoByTopicRequest(topic=topic)
                return await client.call(server.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)

            known = bodies.decode_route((await route("TBW102")).body)
            assert known.broker_datas[0].broker_addrs == {0: ADDRESS}
            world.topics.create_in_send("New", "TBW102", 4)
            answer = await answer_with(lambda: route("New"), ResponseCode.SUCCESS)
            assert bodies.decode_route(answer.body).queue_datas[0].write_queue_nums == 4
            await world.registration.stop()
            await answer_with(lambda: route("New"), ResponseCode.TOPIC_NOT_EXIST)
            await client.close()

    bounded(test)


async def answer_with(ask: Callable[[], Coroutine[Any, Any, Frame]], code: int) -> Frame:
    """Repeats the request until the response has ``code``: there is no event to wait for in another server."""
    answers: list[Frame] = []

    async def given() -> bool:
        answers.append(await ask())
        return answers[-1].code == code

    await until_async(given, f"an answer with {code}")
    return answers[-1]
