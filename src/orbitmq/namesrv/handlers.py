"""Handles requests to the name server (Apache: DefaultRequestProcessor, ClientRequestProcessor, ZoneRouteRPCHook)."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from orbitmq.codes import ResponseCode, TopicSysFlag, Version
from orbitmq.errors import BodyError, ConnectionLostError, QueryNotFound, RequestTimeoutError, ServerError
from orbitmq.model.data_version import DataVersion
from orbitmq.namesrv.advertised import advertised_broker
from orbitmq.namesrv.config import render_config
from orbitmq.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from orbitmq.namesrv.live_config import LiveConfig
from orbitmq.namesrv.registration import BrokerKey, MinIdNotice, Registered, Registration
from orbitmq.namesrv.route_cache import QueryCache, RouteCache, RouteQuery
from orbitmq.namesrv.route_table import RouteTable, route_in_zone
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Call, RawRoute, Reply, Route, refuse
from orbitmq.wire import javajson
from orbitmq.wire.bodies.base import encode_body
from orbitmq.wire.bodies.registration import decode_registration
from orbitmq.wire.bodies.route import (
    BrokerMemberGroup,
    ClusterInfo,
    KvTable,
    MemberGroup,
    TopicList,
    decode_route,
    encode_route,
)
from orbitmq.wire.frame import Frame, encode_response
from orbitmq.wire.header import Header
from orbitmq.wire.headers import namesrv as headers

__all__ = ["NameServerHandlers"]

_OK: Final = Reply()
_STANDARD_JSON_VERSION: Final = Version.V4_9_4
_UNIT: Final = int(TopicSysFlag.UNIT)
_UNIT_SUB: Final = int(TopicSysFlag.UNIT_SUB)
_UPSTREAM_TIMEOUT_S: Final = 3.0
_CRC_MASK: Final = 0x7FFFFFFF


@dataclass(slots=True, kw_only=True)
class NameServerHandlers:
    """Answers every request to a name server."""

    table: RouteTable
    kv: KvConfig
    config: LiveConfig
    cache: RouteCache
    advertised: Mapping[str, str]
    """Registered addresses and the addresses shown to clients instead; see ``advertised.py``."""
    clock: Clock
    client: RpcClient
    """Queries the production name servers in a test environment."""
    send_notice: Callable[[MinIdNotice], None]
    _queries: QueryCache = field(default_factory=QueryCache)
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self.clock.monotonic()

    def routes(self) -> list[Route | RawRoute]:
        """Returns the routes of all handlers, for the router."""
        code = RequestCode
        return [
            RawRoute(code.GET_ROUTEINFO_BY_TOPIC, self.route),
            Route(code.REGISTER_BROKER, self.register_broker, headers.RegisterBrokerRequest),
            Route(code.UNREGISTER_BROKER, self.unregister_broker, headers.UnregisterBrokerRequest),
            Route(code.QUERY_DATA_VERSION, self.query_data_version, headers.QueryDataVersionRequest),
            Route(code.BROKER_HEARTBEAT, self.broker_heartbeat, headers.BrokerHeartbeatRequest),
            Route(code.GET_BROKER_MEMBER_GROUP, self.member_group, headers.GetBrokerMemberGroupRequest),
            Route(code.REGISTER_TOPIC_IN_NAMESRV, self.add_topic, headers.RegisterTopicInNamesrvRequest),
            Route(code.GET_BROKER_CLUSTER_INFO, self.cluster_info),
            Route(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.all_topics),
            Route(code.GET_TOPICS_BY_CLUSTER, self.topics_of_cluster, headers.GetTopicsByClusterRequest),
            Route(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.system_topics),
            Route(code.GET_UNIT_TOPIC_LIST, self.unit_topics),
            Route(code.GET_HAS_UNIT_SUB_TOPIC_LIST, self.unit_sub_topics),
            Route(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.unit_sub_only_topics),
            Route(code.DELETE_TOPIC_IN_NAMESRV, self.delete_topic, headers.DeleteTopicInNamesrvRequest),
            Route(code.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_perm, headers.WipeWritePermOfBrokerRequest),
            Route(code.ADD_WRITE_PERM_OF_BROKER, self.add_write_perm, headers.AddWritePermOfBrokerRequest),
            Route(code.PUT_KV_CONFIG, self.put_kv, headers.PutKvConfigRequest),
            Route(code.GET_KV_CONFIG, self.get_kv, headers.GetKvConfigRequest),
            Route(code.DELETE_KV_CONFIG, self.delete_kv, headers.DeleteKvConfigRequest),
            Route(code.GET_KVLIST_BY_NAMESPACE, self.kv_table, headers.GetKvlistByNamespaceRequest),
            Route(code.UPDATE_NAMESRV_CONFIG, self.update_config),
            Route(code.GET_NAMESRV_CONFIG, self.show_config),
        ]

    # -- routes -------------------------------------------------------------------------------------------

    def route(self, frame: Frame, connection: Connection) -> bytes | None:
        """GET_ROUTEINFO_BY_TOPIC. The hot path, so it works on raw bytes."""
        query = self._queries.query(frame)
        config = self.config.current
        if config.need_wait_for_service and self._is_warming_up():
            return refuse(
                frame, ResponseCode.SYSTEM_ERROR, "name server not ready: brokers may still be missing"
            )
        standard = query.standard_json or frame.version >= _STANDARD_JSON_VERSION
        body = self.cache.body(query.topic, standard=standard)
        if body is None:
            if config.cluster_test and config.product_namesrv_addr and not frame.is_oneway:
                return connection.start_slow_request(frame, self._ask_production(query, standard=standard))
            return refuse(frame, ResponseCode.TOPIC_NOT_EXIST, _no_route(query.topic))
        if query.zone_name:
            # Apache sends these with unquoted ids to all brokers; their parsers read quoted ids as well.
            body = encode_route(route_in_zone(decode_route(body), query.zone_name), standard=standard)
        if frame.is_oneway:
            return None
        return _ok_with(frame, body)

    def _is_warming_up(self) -> bool:
        return self.clock.monotonic() - self._started_s < self.config.current.wait_for_service_s

    async def _ask_production(self, query: RouteQuery, *, standard: bool) -> Reply:
        header = headers.GetRouteinfoByTopicRequest(topic=query.topic, accept_standard_json_only=True)
        for address in self.config.current.product_namesrv_addr.split(";"):
            try:
                answer = await self.client.call(
                    address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_s=_UPSTREAM_TIMEOUT_S
                )
            except (ConnectionLostError, RequestTimeoutError):
                continue
            if answer.code != ResponseCode.SUCCESS:
                break
            return Reply(body=encode_route(decode_route(answer.body), standard=standard))
        return Reply(ResponseCode.TOPIC_NOT_EXIST, _no_route(query.topic))

    # -- brokers ------------------------------------------------------------------------------------------

    def register_broker(self, call: Call[headers.RegisterBrokerRequest]) -> Reply:
        """REGISTER_BROKER. Adds or renews a broker. Answers a slave with the addresses of its live master."""
        header = call.header
        key = BrokerKey(header.cluster_name, header.broker_addr)
        fingerprint = _fingerprint(call.frame)
        if self.table.renew(key, call.peer, fingerprint):
            return self._registered(Registered())
        if header.body_crc32 and zlib.crc32(call.body) & _CRC_MASK != header.body_crc32:
            raise ServerError("crc32 not match")
        body = decode_registration(
            call.body, compressed=header.compressed is True, version=call.frame.version
        )
        wrapper = body.topic_config_serialize_wrapper
        registration = Registration(
            key=key,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            ha_address=header.ha_server_addr or "",
            zone_name=header.zone_name,
            timeout_ms=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
            data_version=wrapper.data_version,
            topics=wrapper.topic_config_table,
            mappings=_mappings(wrapper.topic_queue_mapping_info_map or {}),
            # Brokers before 3.0.11 had no filter servers to report.
            filter_servers=body.filter_server_list if call.frame.version >= Version.V3_0_11 else None,
            connection=call.peer,
        )
        registered = self.table.register(registration)
        self.table.note_renewal(registration, fingerprint)
        if registered.notice is not None:
            self.send_notice(registered.notice)
        return self._registered(registered)

    def _registered(self, registered: Registered) -> Reply:
        order_topics = self.kv.table(ORDER_TOPIC_CONFIG)
        with_orders = self.config.current.return_order_topic_config_to_broker and order_topics is not None
        return Reply(
            header=headers.RegisterBrokerResponse(
                ha_server_addr=registered.ha_address, master_addr=registered.master_address
            ),
            body=KvTable(table=dict(order_topics or {})).encode() if with_orders else b"",
        )

    def unregister_broker(self, call: Call[headers.UnregisterBrokerRequest]) -> Reply:
        """UNREGISTER_BROKER. The broker is removed before the answer; Apache only queues the request."""
        header = call.header
        notice = self.table.unregister(BrokerKey(header.cluster_name, header.broker_addr), header.broker_name)
        if notice is not None:
            self.send_notice(notice)
        return _OK

    def query_data_version(self, call: Call[headers.QueryDataVersionRequest]) -> Reply:
        """QUERY_DATA_VERSION. Answers whether the broker has to register again. Also counts as a heartbeat."""
        key = BrokerKey(call.header.cluster_name, call.header.broker_addr)
        asked = javajson.decode(call.body, DataVersion) if call.body else None
        known = self.table.data_version(key)
        self.table.heartbeat(key)
        return Reply(
            header=headers.QueryDataVersionResponse(changed=known is None or known != asked),
            body=encode_body(known) if known is not None else b"",
        )

    def broker_heartbeat(self, call: Call[headers.BrokerHeartbeatRequest]) -> Reply:
        """BROKER_HEARTBEAT. Records that a broker is alive."""
        self.table.heartbeat(BrokerKey(call.header.cluster_name, call.header.broker_addr))
        return _OK

    def member_group(self, call: Call[headers.GetBrokerMemberGroupRequest]) -> Reply:
        """GET_BROKER_MEMBER_GROUP. Answers with the addresses of a broker name by broker id."""
        group = BrokerMemberGroup(
            broker_addrs=self.table.members(call.header.broker_name),
            broker_name=call.header.broker_name,
            cluster=call.header.cluster_name,
        )
        return Reply(body=MemberGroup(broker_member_group=group).encode())

    def cluster_info(self, call: Call[Header]) -> Reply:
        """GET_BROKER_CLUSTER_INFO. Answers with all brokers, and with the broker names of each cluster."""
        brokers = self.table.brokers()
        if self.advertised:
            brokers = {name: advertised_broker(data, self.advertised) for name, data in brokers.items()}
        info = ClusterInfo(broker_addr_table=brokers, cluster_addr_table=self.table.clusters())
        return Reply(body=info.encode())

    def wipe_write_perm(self, call: Call[headers.WipeWritePermOfBrokerRequest]) -> Reply:
        """WIPE_WRITE_PERM_OF_BROKER. Answers with the number of topics of the broker name."""
        count = self.table.wipe_write_perm(call.header.broker_name)
        return Reply(header=headers.WipeWritePermOfBrokerResponse(wipe_topic_count=count))

    def add_write_perm(self, call: Call[headers.AddWritePermOfBrokerRequest]) -> Reply:
        """ADD_WRITE_PERM_OF_BROKER. Answers with the number of topics of the broker name."""
        count = self.table.add_write_perm(call.header.broker_name)
        return Reply(header=headers.AddWritePermOfBrokerResponse(add_topic_count=count))

    # -- topics -------------------------------------------------------------------------------------------

    def add_topic(self, call: Call[headers.RegisterTopicInNamesrvRequest]) -> Reply:
        """REGISTER_TOPIC_IN_NAMESRV. Adds queues of a topic before the brokers register it."""
        if call.body:
            self.table.add_topic(call.header.topic, decode_route(call.body).queue_datas)
        return _OK

    def delete_topic(self, call: Call[headers.DeleteTopicInNamesrvRequest]) -> Reply:
        """DELETE_TOPIC_IN_NAMESRV. Without a topic it does nothing, like Apache, because a 4.9.7 tool sends such
        requests."""
        if call.header.topic is not None:
            self.table.delete_topic(call.header.topic, call.header.cluster_name)
        return _OK

    def all_topics(self, call: Call[Header]) -> Reply:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER. Refused if ``enableAllTopicList`` is false."""
        if not self.config.current.enable_all_topic_list:
            raise ServerError("disable: enableAllTopicList is false")
        return Reply(body=TopicList(topic_list=self.table.topics()).encode())

    def topics_of_cluster(self, call: Call[headers.GetTopicsByClusterRequest]) -> Reply:
        """GET_TOPICS_BY_CLUSTER. Answers with the topics that brokers of the cluster hold."""
        return self._topic_list(lambda: self.table.topics_of_cluster(call.header.cluster))

    def system_topics(self, call: Call[Header]) -> Reply:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS. Returns the names of clusters and brokers, and the address of a broker that
        knows the other system topics."""
        clusters = self.table.clusters()
        names = [name for cluster, brokers in clusters.items() for name in (cluster, *brokers)]
        addresses = (data.broker_addrs for data in self.table.brokers().values())
        first = next((next(iter(by_id.values())) for by_id in addresses), None)
        return Reply(body=TopicList(broker_addr=first, topic_list=list(dict.fromkeys(names))).encode())

    def unit_topics(self, call: Call[Header]) -> Reply:
        """GET_UNIT_TOPIC_LIST. Answers with the topics that have the unit flag."""
        return self._topic_list(lambda: self.table.topics_with(lambda flag: flag & _UNIT != 0))

    def unit_sub_topics(self, call: Call[Header]) -> Reply:
        """GET_HAS_UNIT_SUB_TOPIC_LIST. Answers with the topics that have the unit subscription flag."""
        return self._topic_list(lambda: self.table.topics_with(lambda flag: flag & _UNIT_SUB != 0))

    def unit_sub_only_topics(self, call: Call[Header]) -> Reply:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST. Answers with the topics that have the unit subscription flag but not
        the unit flag."""
        return self._topic_list(
            lambda: self.table.topics_with(lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB)
        )

    def _topic_list(self, topics: Callable[[], list[str]]) -> Reply:
        if not self.config.current.enable_topic_list:
            raise ServerError("disable: enableTopicList is false")
        return Reply(body=TopicList(topic_list=topics()).encode())

    # -- configuration ------------------------------------------------------------------------------------

    async def put_kv(self, call: Call[headers.PutKvConfigRequest]) -> Reply:
        """PUT_KV_CONFIG. The change is on disk before it is answered."""
        header = call.header
        if header.namespace is None or header.key is None:
            raise ServerError("namespace or key is null")
        await self.kv.put(header.namespace, header.key, header.value)
        return _OK

    def get_kv(self, call: Call[headers.GetKvConfigRequest]) -> Reply:
        """GET_KV_CONFIG. Raises ``QueryNotFound`` for a missing key."""
        value = self.kv.value(call.header.namespace, call.header.key)
        if value is None:
            raise QueryNotFound(f"no key {call.header.key} in namespace {call.header.namespace}")
        return Reply(header=headers.GetKvConfigResponse(value=value))

    async def delete_kv(self, call: Call[headers.DeleteKvConfigRequest]) -> Reply:
        """DELETE_KV_CONFIG. A missing key is not an error."""
        await self.kv.delete(call.header.namespace, call.header.key)
        return _OK

    def kv_table(self, call: Call[headers.GetKvlistByNamespaceRequest]) -> Reply:
        """GET_KVLIST_BY_NAMESPACE. Raises ``QueryNotFound`` for a namespace that never existed."""
        table = self.kv.table(call.header.namespace)
        if table is None:
            raise QueryNotFound(f"no namespace {call.header.namespace}")
        return Reply(body=KvTable(table=dict(table)).encode())

    async def update_config(self, call: Call[Header]) -> Reply:
        """UPDATE_NAMESRV_CONFIG. Applies the properties text in the body; see ``LiveConfig.update``."""
        try:
            text = call.body.decode()
        except UnicodeDecodeError:
            raise ServerError("the properties in the body are not UTF-8") from None
        await self.config.update(text)
        return _OK

    def show_config(self, call: Call[Header]) -> Reply:
        """GET_NAMESRV_CONFIG. Answers with the configuration as properties text."""
        return Reply(body=render_config(self.config.current).encode())


def _fingerprint(frame: Frame) -> bytes:
    """Returns a digest that identifies a registration. Takes 0.10 ms for 500 topics; parsing alone takes 0.24 ms."""
    digest = hashlib.blake2b(frame.body, digest_size=16)
    digest.update(b"%d %d " % (frame.version, frame.serialize_type))
    digest.update(frame.ext_raw)
    return digest.digest()


def _mappings(by_topic: Mapping[str, msgspec.Raw]) -> dict[str, dict[str, Any]]:
    """Returns the mapping of each static topic, by topic. Raises ``BodyError``."""
    found: dict[str, dict[str, Any]] = {}
    for topic, raw in by_topic.items():
        # A copy: a raw part would keep the whole registration in memory.
        mapping = javajson.loads(bytes(raw))
        if not isinstance(mapping, dict) or not isinstance(mapping.get("bname"), str):
            raise BodyError(f"the mapping of static topic {topic} has no bname")
        found[topic] = mapping
    return found


def _no_route(topic: str) -> str:
    return f"no route for topic {topic}: no live broker holds it"


_MARK: Final = 1_111_111_111
_OK_HEAD, _, _OK_TAIL = encode_response(ResponseCode.SUCCESS, _MARK)[8:].partition(str(_MARK).encode())
assert _OK_TAIL, "the opaque of a JSON header is written as a number"
_OK_LENGTH: Final = len(_OK_HEAD) + len(_OK_TAIL)


def _ok_with(frame: Frame, body: bytes) -> bytes:
    """Like ``encode_response`` for a plain success, but faster: 0.6 us instead of 1.0, because such answers differ
    only in the opaque and the body."""
    if frame.serialize_type:
        return encode_response(ResponseCode.SUCCESS, frame.opaque, None, body, None, frame.serialize_type)
    opaque = b"%d" % frame.opaque
    header_length = _OK_LENGTH + len(opaque)
    prefix = ((4 + header_length + len(body)) << 32 | header_length).to_bytes(8, "big")
    return b"".join((prefix, _OK_HEAD, opaque, _OK_TAIL, body))
