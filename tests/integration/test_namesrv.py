"""The name server over real sockets: every request it answers, including Apache's recorded frames."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.golden import data
from tests.support.waiting import until_async
from tests.unit.namesrv.brokers import topic_config
from tests.unit.transport.certificates import make_certificates
from tests.unit.transport.loops import on_both_loops, run
from tests.unit.transport.peers import RawPeer

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError
from orbitmq.model.data_version import DataVersion
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute, Router
from orbitmq.transport.server import Listener, Server
from orbitmq.transport.tls import TlsMode, client_context
from orbitmq.wire.bodies.registration import RegisterBrokerBody, TopicConfigWrapper, encode_registration
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

HOST = "127.0.0.1"
code = RequestCode


def config(**changes: Any) -> NameServerConfig:
    """Returns the configuration of a separate name server, which writes no files."""
    defaults = {"listen_port": 0, "bind_address": HOST, "kv_config_path": "", "config_store_path": ""}
    return NameServerConfig(**{**defaults, **changes})


class Peer:
    """A broker, a client or a tool: one connection and short request methods."""

    def __init__(self, address: str, form: SerializeType = SerializeType.JSON) -> None:
        self.address = address
        self.client = RpcClient(serialize_type=form)

    async def ask(self, request: int, body: bytes = b"", **fields: Any) -> Frame:
        return await self.client.call(
            self.address, request, None, body, ext={name: str(value) for name, value in fields.items()}
        )

    async def ok(self, request: int, body: bytes = b"", **fields: Any) -> Frame:
        answer = await self.ask(request, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return answer

    async def register(
        self,
        *topics: str,
        name: str = "a",
        broker_id: int = 0,
        address: str = "10.0.0.1:1",
        version: int = 1,
        compressed: bool = False,
        **fields: Any,
    ) -> Frame:
        wrapper = TopicConfigWrapper(
            data_version=DataVersion(counter=version),
            topic_config_table={topic: topic_config(topic) for topic in topics or ("T", "U")},
        )
        raw = encode_registration(
            RegisterBrokerBody(topic_config_serialize_wrapper=wrapper), compressed=compressed
        )
        fields.setdefault("bodyCrc32", zlib.crc32(raw) & 0x7FFFFFFF)
        return await self.ask(
            code.REGISTER_BROKER,
            raw,
            brokerName=name,
            brokerAddr=address,
            clusterName="C",
            haServerAddr=address + "2",
            brokerId=broker_id,
            compressed=str(compressed).lower(),
            **fields,
        )

    async def route(self, topic: str, **fields: Any) -> dict[str, Any] | int:
        answer = await self.ask(code.GET_ROUTEINFO_BY_TOPIC, topic=topic, **fields)
        return json.loads(answer.body) if answer.code == 0 else answer.code


@asynccontextmanager
async def peer_of(server: NameServer, form: SerializeType = SerializeType.JSON) -> AsyncIterator[Peer]:
    peer = Peer(server.address, form)
    try:
        yield peer
    finally:
        await peer.client.close()


# -- brokers and routes ----------------------------------------------------------------------------------


@on_both_loops
async def test_registered_broker_is_found_in_both_header_forms() -> None:
    async with NameServer(config()) as server, peer_of(server) as broker:
        await broker.register()
        for form in SerializeType:
            async with peer_of(server, form) as client:
                answer = await client.ok(code.GET_ROUTEINFO_BY_TOPIC, topic="T")
                assert answer.serialize_type == form
                route = json.loads(answer.body)
                assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:1"}
                assert route["queueDatas"][0]["readQueueNums"] == 4
                missing = await client.ask(code.GET_ROUTEINFO_BY_TOPIC, topic="None")
                assert missing.code == ResponseCode.TOPIC_NOT_EXIST
                assert "None" in (missing.remark or "")


@pytest.mark.parametrize(
    ("version", "flag", "quoted"), [(399, "", False), (401, "", True), (399, "true", True)]
)
def test_route_dialect_follows_version_and_wish(version: int, flag: str, quoted: bool) -> None:
    async def scenario() -> None:
        async with NameServer(config()) as server, peer_of(server) as broker:
            await broker.register()
            async with await RawPeer.connect(server._server) as client:
                fields = {"topic": "T"} | ({"acceptStandardJsonOnly": flag} if flag else {})
                await client.send(encode_request(code.GET_ROUTEINFO_BY_TOPIC, 7, fields, version=version))
                answer = await client.frame()
                assert answer.opaque == 7
                expected = b'{"0":"10.0.0.1:1"}' if quoted else b'{0:"10.0.0.1:1"}'
                assert expected in answer.body

    run("uvloop", scenario)


@on_both_loops
async def test_compressed_registration_is_read() -> None:
    async with NameServer(config()) as server, peer_of(server) as broker:
        await broker.register("X", "Y", compressed=True)
        assert sorted(server.table.topics()) == ["X", "Y"]


def test_registration_of_a_broker_before_3_0_11_is_a_bare_topic_table() -> None:
    async def scenario() -> None:
        async with NameServer(config()) as server, await RawPeer.connect(server._server) as broker:
            table = TopicConfigWrapper(topic_config_table={name: topic_config(name) for name in ("T", "U")})
            fields = {"brokerName": "a", "brokerAddr": "x:1", "clusterName": "C", "brokerId": "0"}
            await broker.send(encode_request(code.REGISTER_BROKER, 1, fields, table.encode(), version=36))
            assert (await broker.frame()).code == ResponseCode.SUCCESS
            assert server.table.topics() == ["T", "U"]
            # No body at all is a broker without topics.
            fields |= {"brokerName": "b", "brokerAddr": "y:1"}
            await broker.send(encode_request(code.REGISTER_BROKER, 2, fields))
            assert (await broker.frame()).code == ResponseCode.SUCCESS
            assert server.table.clusters() == {"C": ["a", "b"]}

    run("uvloop", scenario)


@on_both_loops
async def test_registrations_that_are_refused() -> None:
    async with NameServer(config()) as server, peer_of(server) as broker:
        wrong_sum = await broker.register(bodyCrc32=1)
        assert (wrong_sum.code, wrong_sum.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
        lone_topic = await broker.register("T")
        assert lone_topic.code == ResponseCode.SYSTEM_ERROR
        nameless = await broker.ask(code.REGISTER_BROKER, b"{}", clusterName="C")
        assert nameless.code == ResponseCode.SYSTEM_ERROR
        assert "brokerName" in (nameless.remark or "")
        no_name = b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"S":{"bname":[]}}}}'
        for body in (b"{]", b"[]", b"{{" * 5_000, b"[" * 50_000, no_name):
            broken = await broker.ask(
                code.REGISTER_BROKER, body, clusterName="C", brokerName="a", brokerAddr="x:1", brokerId=0
            )
            assert broken.code == ResponseCode.SYSTEM_ERROR
            assert "internal error" not in (broken.remark or "")
        assert server.table.brokers() == {}


@on_both_loops
async def test_slave_learns_its_master_and_order_topics() -> None:
    async with NameServer(config()) as server, peer_of(server) as broker:
        first = await broker.register()
        assert (first.body, first.ext_fields) == (b"", {})
        await broker.ok(code.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
        slave = await broker.register(broker_id=1, address="10.0.0.2:1")
        assert slave.ext_fields == {"masterAddr": "10.0.0.1:1", "haServerAddr": "10.0.0.1:12"}
        assert json.loads(slave.body) == {"table": {"T": "a:4"}}


@on_both_loops
async def test_unregistered_broker_leaves_the_routes_before_the_answer() -> None:
    async with NameServer(config()) as server, peer_of(server) as broker:
        await broker.register()
        fields: dict[str, Any] = {
            "brokerName": "a",
            "brokerAddr": "10.0.0.1:1",
            "clusterName": "C",
            "brokerId": 0,
        }
        await broker.ok(code.UNREGISTER_BROKER, **fields)
        assert await broker.route("T") == ResponseCode.TOPIC_NOT_EXIST


@on_both_loops
async def test_lost_connection_removes_the_broker_at_once() -> None:
    async with NameServer(config()) as server, peer_of(server) as client:
        async with peer_of(server) as broker:
            await broker.register()
            assert isinstance(await client.route("T"), dict)
        await until_async(lambda: not server.table.brokers())
        assert await client.route("T") == ResponseCode.TOPIC_NOT_EXIST


@on_both_loops
async def test_silent_broker_is_removed_and_its_connection_closed() -> None:
    clock = ManualClock()
    async with NameServer(config(scan_interval_ms=10), clock=clock) as server, peer_of(server) as broker:
        await broker.register(heartbeatTimeoutMillis=1_000)
        clock.advance(900)
        fields = {"brokerName": "a", "brokerAddr": "10.0.0.1:1", "clusterName": "C"}
        await broker.client.notify(server.address, code.BROKER_HEARTBEAT, None, ext=fields)
        await broker.ok(code.GET_BROKER_CLUSTER_INFO)
        clock.advance(900)
        version = await broker.ok(code.QUERY_DATA_VERSION, b'{"counter":1}', brokerId=0, **fields)
        assert version.ext_fields == {"changed": "false"}
        assert json.loads(version.body) == {"counter": 1, "stateVersion": 0, "timestamp": 0}
        clock.advance(900)
        server.remove_silent_brokers()
        assert server.table.brokers() != {}
        connection = await broker.client.connection(server.address)
        clock.advance(200)
        await until_async(lambda: connection.closed)
        assert server.table.brokers() == {}


@on_both_loops
async def test_data_version_of_an_unknown_or_changed_broker_is_changed() -> None:
    async with NameServer(config()) as server, peer_of(server) as broker:
        fields: dict[str, Any] = {
            "brokerName": "a",
            "brokerAddr": "10.0.0.1:1",
            "clusterName": "C",
            "brokerId": 0,
        }
        unknown = await broker.ok(code.QUERY_DATA_VERSION, b'{"counter":1}', **fields)
        assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, b"")
        await broker.register(version=1)
        changed = await broker.ok(code.QUERY_DATA_VERSION, b'{"counter":2,"timestamp":5}', **fields)
        assert changed.ext_fields == {"changed": "true"}


@on_both_loops
async def test_cluster_members_and_topics() -> None:
    async with NameServer(config()) as server, peer_of(server) as tool:
        await tool.register("T", "U")
        await tool.register("T", "U", broker_id=1, address="10.0.0.2:1")
        info = await tool.ok(code.GET_BROKER_CLUSTER_INFO)
        assert info.body == (
            b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:1",1:"10.0.0.2:1"},"brokerName":"a",'
            b'"cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["a"]}}'
        )
        group = await tool.ok(code.GET_BROKER_MEMBER_GROUP, clusterName="C", brokerName="a")
        assert group.body == (
            b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:1",1:"10.0.0.2:1"},"brokerName":"a","cluster":"C"}}'
        )
        nobody = await tool.ok(code.GET_BROKER_MEMBER_GROUP, clusterName="C", brokerName="x")
        assert json.loads(nobody.body)["brokerMemberGroup"]["brokerAddrs"] == {}
        topics = await tool.ok(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert sorted(json.loads(topics.body)["topicList"]) == ["T", "U"]
        of_cluster = await tool.ok(code.GET_TOPICS_BY_CLUSTER, cluster="C")
        assert sorted(json.loads(of_cluster.body)["topicList"]) == ["T", "U"]
        assert json.loads((await tool.ok(code.GET_TOPICS_BY_CLUSTER, cluster="?")).body)["topicList"] == []
        system = json.loads((await tool.ok(code.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
        assert system == {"brokerAddr": "10.0.0.1:1", "topicList": ["C", "a"]}
        for unit_request in (311, 312, 313):
            assert json.loads((await tool.ok(unit_request)).body) == {"topicList": []}


@on_both_loops
async def test_write_permission_comes_and_goes() -> None:
    async with NameServer(config()) as server, peer_of(server) as tool:
        await tool.register()
        wiped = await tool.ok(code.WIPE_WRITE_PERM_OF_BROKER, brokerName="a")
        assert wiped.ext_fields == {"wipeTopicCount": "2"}
        route = await tool.route("T")
        assert isinstance(route, dict)
        assert route["queueDatas"][0]["perm"] == 4
        added = await tool.ok(code.ADD_WRITE_PERM_OF_BROKER, brokerName="a")
        assert added.ext_fields == {"addTopicCount": "2"}
        route = await tool.route("T")
        assert isinstance(route, dict)
        assert route["queueDatas"][0]["perm"] == 6


@on_both_loops
async def test_topic_is_added_and_deleted_by_request() -> None:
    async with NameServer(config()) as server, peer_of(server) as tool:
        await tool.register()
        queues = b'{"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
        await tool.ok(code.REGISTER_TOPIC_IN_NAMESRV, queues, topic="New")
        assert isinstance(await tool.route("New"), dict)
        await tool.ok(code.REGISTER_TOPIC_IN_NAMESRV, topic="Empty")
        assert await tool.route("Empty") == ResponseCode.TOPIC_NOT_EXIST
        await tool.ok(code.DELETE_TOPIC_IN_NAMESRV, clusterName="T")
        assert isinstance(await tool.route("T"), dict)
        await tool.ok(code.DELETE_TOPIC_IN_NAMESRV, topic="T", clusterName="C")
        assert await tool.route("T") == ResponseCode.TOPIC_NOT_EXIST
        await tool.ok(code.DELETE_TOPIC_IN_NAMESRV, topic="U")
        assert await tool.route("U") == ResponseCode.TOPIC_NOT_EXIST


@on_both_loops
async def test_static_topic_mapping_reaches_the_clients() -> None:
    body = (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1},"topicConfigTable":{"S":{"topicName":"S"},'
        b'"T":{"topicName":"T"}},"topicQueueMappingInfoMap":{"S":{"bname":"a","currIdMap":{0:0,1:1},"topic":"S"}}}}'
    )
    async with NameServer(config()) as server, peer_of(server) as client:
        await client.ok(
            code.REGISTER_BROKER, body, clusterName="C", brokerName="a", brokerAddr="x:1", brokerId=0
        )
        route = await client.route("S")
        assert isinstance(route, dict)
        mapping = {"bname": "a", "currIdMap": {"0": 0, "1": 1}, "topic": "S"}
        assert route["topicQueueMappingByBroker"] == {"a": mapping}


@on_both_loops
async def test_zone_filter_shows_the_near_brokers_only() -> None:
    async with NameServer(config()) as server, peer_of(server) as client:
        await client.register(name="a", address="10.0.0.1:1", __ZONE_NAME="east")
        await client.register(name="b", address="10.0.0.2:1", __ZONE_NAME="west")
        near = await client.route("T", __ZONE_MODE="true", __ZONE_NAME="west")
        assert isinstance(near, dict)
        assert [broker["brokerName"] for broker in near["brokerDatas"]] == ["b"]
        assert near["brokerDatas"][0]["zoneName"] == "west"
        everything = await client.route("T", __ZONE_MODE="false", __ZONE_NAME="west")
        assert isinstance(everything, dict)
        assert len(everything["brokerDatas"]) == 2


@on_both_loops
async def test_brokers_of_a_group_are_told_who_has_the_smallest_id() -> None:
    notices: list[dict[str, str]] = []

    def take(frame: Frame, peer: Connection) -> bytes | None:
        assert frame.is_oneway
        notices.append(frame.ext_fields)
        return None

    slave_port = Server([Listener(HOST, 0, Router([RawRoute(code.NOTIFY_MIN_BROKER_ID_CHANGE, take)]))])
    await slave_port.start()
    slave = f"{HOST}:{slave_port.ports[0]}"
    try:
        async with (
            NameServer(config(notify_min_broker_id_changed=True)) as server,
            peer_of(server) as master,
            peer_of(server) as other,
        ):
            await other.register(broker_id=1, address=slave, enableActingMaster="true")
            await master.register(enableActingMaster="true")
            await until_async(lambda: len(notices) == 1)
            await master.client.close()
            await until_async(lambda: len(notices) == 2)
    finally:
        await slave_port.stop(1.0)
    assert notices == [
        {"minBrokerId": "0", "minBrokerAddr": "10.0.0.1:1", "haBrokerAddr": "10.0.0.1:12"},
        {"minBrokerId": "1", "minBrokerAddr": slave, "offlineBrokerAddr": "10.0.0.1:1"},
    ]


@on_both_loops
async def test_notice_to_a_broker_that_is_gone_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    async with NameServer(config(notify_min_broker_id_changed=True)) as server, peer_of(server) as master:
        await master.register(broker_id=1, address="127.0.0.1:9", enableActingMaster="true")
        await master.register(enableActingMaster="true")
        await until_async(lambda: "notification not delivered" in caplog.text)
        assert isinstance(await master.route("T"), dict)


# -- configuration ---------------------------------------------------------------------------------------


@on_both_loops
async def test_kv_config_by_request() -> None:
    async with NameServer(config()) as server, peer_of(server) as tool:
        missing = await tool.ask(code.GET_KV_CONFIG, namespace="n", key="k")
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        assert (
            await tool.ask(code.GET_KVLIST_BY_NAMESPACE, namespace="n")
        ).code == ResponseCode.QUERY_NOT_FOUND
        assert (await tool.ask(code.PUT_KV_CONFIG, key="k", value="v")).code == ResponseCode.SYSTEM_ERROR
        await tool.ok(code.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        assert (await tool.ok(code.GET_KV_CONFIG, namespace="n", key="k")).ext_fields == {"value": "v"}
        assert json.loads((await tool.ok(code.GET_KVLIST_BY_NAMESPACE, namespace="n")).body) == {
            "table": {"k": "v"}
        }
        await tool.ok(code.DELETE_KV_CONFIG, namespace="n", key="k")
        assert (
            await tool.ask(code.GET_KV_CONFIG, namespace="n", key="k")
        ).code == ResponseCode.QUERY_NOT_FOUND


@on_both_loops
async def test_kv_config_survives_a_restart(tmp_path: Any) -> None:
    settings = config(kv_config_path=str(tmp_path / "deep" / "kv.json"))
    async with NameServer(settings) as server, peer_of(server) as tool:
        await tool.ok(code.PUT_KV_CONFIG, namespace="n", key="k", value="v")
    async with NameServer(settings) as server, peer_of(server) as tool:
        assert (await tool.ok(code.GET_KV_CONFIG, namespace="n", key="k")).ext_fields == {"value": "v"}


@on_both_loops
async def test_order_conf_is_in_the_route_only_where_switched_on() -> None:
    async with NameServer(config()) as server, peer_of(server) as tool:
        await tool.register()
        await tool.ok(code.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
        route = await tool.route("T")
        assert isinstance(route, dict)
        assert "orderTopicConf" not in route
        await tool.ok(code.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
        route = await tool.route("T")
        assert isinstance(route, dict)
        assert route["orderTopicConf"] == "a:4"
        await tool.ok(code.DELETE_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T")
        route = await tool.route("T")
        assert isinstance(route, dict)
        assert "orderTopicConf" not in route


@on_both_loops
async def test_config_is_shown_changed_and_guarded() -> None:
    async with NameServer(config()) as server, peer_of(server) as tool:
        shown = (await tool.ok(code.GET_NAMESRV_CONFIG)).body.decode()
        assert "enableTopicList=true\n" in shown
        await tool.ok(code.UPDATE_NAMESRV_CONFIG, b"enableTopicList=false\nenableAllTopicList=false")
        assert "enableTopicList=false\n" in (await tool.ok(code.GET_NAMESRV_CONFIG)).body.decode()
        for request in (206, 224, 311, 312, 313):
            refused = await tool.ask(request, cluster="C")
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert (refused.remark or "").startswith("disable")
        guarded = await tool.ask(code.UPDATE_NAMESRV_CONFIG, b"kvConfigPath=/x")
        assert guarded.code == ResponseCode.NO_PERMISSION
        no_text = await tool.ask(code.UPDATE_NAMESRV_CONFIG, b"\xff\xfe")
        assert no_text.code == ResponseCode.SYSTEM_ERROR


@on_both_loops
async def test_routes_wait_for_service_where_asked_to() -> None:
    clock = ManualClock()
    async with (
        NameServer(config(need_wait_for_service=True), clock=clock) as server,
        peer_of(server) as client,
    ):
        await client.register()
        assert await client.route("T") == ResponseCode.SYSTEM_ERROR
        clock.advance(45_000)
        assert isinstance(await client.route("T"), dict)


@on_both_loops
async def test_test_environment_asks_production_for_topics_it_does_not_have() -> None:
    async with NameServer(config()) as production, peer_of(production) as broker:
        await broker.register()
        upstream = f"127.0.0.1:9;{production.address}"
        settings = config(cluster_test=True, product_namesrv_addr=upstream)
        async with NameServer(settings) as server, peer_of(server) as client:
            route = await client.route("T")
            assert isinstance(route, dict)
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:1"}
            assert await client.route("None") == ResponseCode.TOPIC_NOT_EXIST


@on_both_loops
async def test_unknown_request_and_oneway_requests() -> None:
    async with NameServer(config()) as server, peer_of(server) as client:
        unknown = await client.ask(code.SEND_MESSAGE)
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "10" in (unknown.remark or "")
        for topic in ({"topic": "T"}, {}):
            await client.client.notify(server.address, code.GET_ROUTEINFO_BY_TOPIC, None, ext=topic)
        no_topic = await client.ask(code.GET_ROUTEINFO_BY_TOPIC)
        assert no_topic.code == ResponseCode.SYSTEM_ERROR
        assert "topic" in (no_topic.remark or "")


@on_both_loops
async def test_several_name_servers_know_nothing_of_each_other() -> None:
    async with (
        NameServer(config()) as one,
        NameServer(config()) as two,
        peer_of(one) as at_one,
        peer_of(two) as at_two,
    ):
        await at_one.register()
        assert isinstance(await at_one.route("T"), dict)
        assert await at_two.route("T") == ResponseCode.TOPIC_NOT_EXIST
        await at_two.register()
        await one.stop()
        assert isinstance(await at_two.route("T"), dict)


@on_both_loops
async def test_port_taken_is_an_os_error_and_leaves_nothing_open() -> None:
    async with NameServer(config()) as server:
        second = NameServer(config(listen_port=server.port))
        with pytest.raises(OSError, match="is in use"):
            await second.start()
        await second.stop()


@on_both_loops
async def test_tls_and_plain_on_one_port(tmp_path: Any) -> None:
    certificates = make_certificates(tmp_path)
    settings = config(tls_certificate=str(certificates.server), tls_key=str(certificates.server_key))
    async with NameServer(settings) as server, peer_of(server) as plain:
        await plain.register()
        secure = RpcClient(tls=client_context(trusted=certificates.authority))
        answer = await secure.call(server.address, code.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
        assert answer.code == ResponseCode.SUCCESS
        await secure.close()
    enforcing = config(
        tls_certificate=str(certificates.server),
        tls_key=str(certificates.server_key),
        tls_mode=TlsMode.ENFORCING,
    )
    async with NameServer(enforcing) as server, peer_of(server) as plain:
        with pytest.raises(ConnectionLostError):
            await plain.register()


# -- what Apache's own peers sent ------------------------------------------------------------------------


def recorded(label: str, request: int, topic: str | None = None) -> tuple[bytes, Frame]:
    """Returns the request bytes and Apache's response of one recorded exchange."""
    for exchange in data.frames():
        fields = exchange["request"]["header"]["extFields"]
        if (exchange["label"], exchange["code"]) == (label, request) and topic in (None, fields.get("topic")):
            [answer] = FrameDecoder().feed(bytes.fromhex(exchange["response"]["hex"]))
            return bytes.fromhex(exchange["request"]["hex"]), answer
    raise LookupError((label, request, topic))


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
def test_recorded_broker_and_clients_get_apaches_answers_byte_for_byte(form: str) -> None:
    async def scenario() -> None:
        async with (
            NameServer(config()) as server,
            await RawPeer.connect(server._server) as broker,
            await RawPeer.connect(server._server) as client,
        ):

            async def same(peer: RawPeer, label: str, request: int, topic: str | None = None) -> Frame:
                raw, apaches = recorded(f"{label} {form}", request, topic)
                await peer.send(raw)
                answer = await peer.frame()
                assert (answer.code, answer.opaque) == (apaches.code, apaches.opaque)
                assert answer.ext_fields == apaches.ext_fields
                if request != code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                    assert answer.body == apaches.body
                return answer

            await same(broker, "broker-5.5.0", code.REGISTER_BROKER)
            await same(broker, "broker-5.5.0", code.GET_BROKER_CLUSTER_INFO)
            for release in ("5.5.0", "4.9.7"):
                label = f"java-client-{release}"
                await same(client, label, code.GET_BROKER_CLUSTER_INFO)
                await same(client, label, code.GET_ROUTEINFO_BY_TOPIC, "NoSuchTopic")
                for request in (code.PUT_KV_CONFIG, code.GET_KV_CONFIG, code.DELETE_KV_CONFIG):
                    await same(client, label, request)
                topics = await same(client, label, code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                assert "SELF_TEST_TOPIC" in json.loads(topics.body)["topicList"]
                await same(client, label, code.DELETE_TOPIC_IN_NAMESRV)
            if form == "JSON":
                await same(client, "java-client-4.9.7", code.GET_ROUTEINFO_BY_TOPIC, "TBW102")

    run("uvloop", scenario)
