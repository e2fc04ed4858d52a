"""Registers this broker and its topics with the name servers (Apache: BrokerOuterAPI, registerBrokerAll).

Theory of operation
1. Every name server has a link with its own task, so a dead or slow name server does not delay the others.
2. A link registers the whole table at start, after 10 s and then every period. A changed topic is sent immediately,
   on its own; changes made in the same turn of the event loop are sent together.
3. Failed changes are not queued. After a failure or a lost connection, a link soon registers the whole table again
   and backs off up to the period. A name server that restarts therefore has our registration within a second or
   two, whereas with Apache clients wait for the next period.
4. A response may name our master (if we are a slave), and lists the ordered topics.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import zlib
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConfigError, OrbitError, error_for_code
from orbitmq.model.data_version import DataVersion
from orbitmq.model.route import BrokerData, QueueData, TopicRoute
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.client import RpcClient, Signer
from orbitmq.transport.connection import Connection
from orbitmq.wire import bodies
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header, decode_header
from orbitmq.wire.headers import (
    Empty,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisterTopicInNamesrvRequest,
    UnregisterBrokerRequest,
)

__all__ = ["SECOND_MASTER", "Registration"]

logger = logging.getLogger(__name__)
N = TypeVar("N", QueryDataVersionRequest, UnregisterBrokerRequest)

SECOND_MASTER: Final = "orbitmqSecondMaster"
"""A field of GET_BROKER_HA_STATUS, with the address of a starting master that checks for another master with its
name."""
_SECOND_S: Final = 10.0
"""Delay between the first and the second registration."""
_RETRY_S: Final = 1.0
_SHORT_TIMEOUT_S: Final = 3.0
_HEARTBEAT_S: Final = 1.0
_ASK_S: Final = 1.0
_CLIENT_WAIT_S: Final = 1.0
"""How long a topic's first send, or a group's first heartbeat, waits for name servers. Clients wait longer than this
for the answer."""
_CRC_MASK: Final = 0x7FFFFFFF


class _Link:
    """The connection to one name server, and the work pending for it."""

    __slots__ = (
        "address",
        "asked",
        "attempted",
        "connection",
        "due",
        "failures",
        "forced",
        "settled",
        "topics",
        "wake",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.topics: dict[str, TopicConfig] = {}
        """Changed topics that are not sent yet."""
        self.due = 0.0
        """When to register everything, on the event loop's clock."""
        self.asked = False
        """Whether to register everything now, before it is due."""
        self.forced = True
        """Whether to register even if the name server would report no change."""
        self.failures = 0
        """Consecutive failures."""
        self.connection: Connection | None = None
        self.wake = asyncio.Event()
        self.settled = asyncio.Event()
        """Set while every change has been sent, or sending it has been attempted."""
        self.attempted = asyncio.Event()
        """Set once the first registration has succeeded or failed."""


class Registration:
    """Keeps this broker registered with every name server."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        events: BrokerEvents,
        *,
        tls: ssl.SSLContext | None = None,
        sign: Signer | None = None,
        filter_servers: Callable[[], list[str]] = list,
    ) -> None:
        """``filter_servers`` returns the addresses that routes list in addition to this broker's own."""
        self._config = config
        self._topics = topics
        self._rpc = RpcClient(tls=tls, sign=sign, on_close=self._connection_closed)
        self._tasks = TaskOwner("registration", watched=True)
        self._links: list[_Link] = []
        self._address = ""
        self._ha_address = ""
        self._encoded: tuple[object, list[bytes]] | None = None
        self._stopping = False
        self._master_known = events.master_known
        self._filter_servers = filter_servers
        events.topic_changed.append(self._topic_changed)
        events.options_changed.append(self._options_changed)
        events.role_changed.append(self.refresh)
        events.announcement_changed.append(self.refresh)

    async def refuse_second_master(self, own_address: str) -> None:
        """Raise ``ConfigError`` if name servers know another live master with our name. Called before this broker
        serves requests.

        Registering would take the name from that master, and producers would write to two logs. This happens when a
        master fails, an operator promotes its slave, and the old master is restarted with its old configuration.
        Addresses that do not respond are ignored, because they belong to a dead master.
        """
        config = self._config
        if config.is_slave or config.failover_enabled or not config.name_server_list:
            return
        found = await asyncio.gather(
            *(self._known_master(name_server) for name_server in config.name_server_list)
        )
        for address in sorted(set(found) - {"", own_address}):
            if await self._says_it_is_master(address, own_address):
                await self._rpc.close()
                raise ConfigError(
                    f"{config.broker_name} already has a master, at {address}. If that one was promoted while this "
                    "broker was down, start this one with brokerRole=SLAVE and a brokerId above 0 (it then follows "
                    "the new master; see haTruncateSlave for what only its own log has); else stop the other one, or "
                    "give this one a brokerName of its own"
                )

    async def group_addresses(self) -> list[str]:
        """Returns the addresses of all brokers with our name that name servers know, the master's first."""
        addresses: dict[str, None] = {}
        for known in await asyncio.gather(*map(self._known_group, self._config.name_server_list)):
            if known is not None:
                addresses |= {known.broker_addrs[number]: None for number in sorted(known.broker_addrs)}
        return list(addresses)

    async def _known_master(self, name_server: str) -> str:
        known = await self._known_group(name_server)
        return "" if known is None else known.master_address or ""

    async def _known_group(self, name_server: str) -> BrokerData | None:
        """Returns the brokers with our name and cluster, or None if there are none or if the name server does not
        respond."""
        try:
            answer = await self._rpc.call(
                name_server, RequestCode.GET_BROKER_CLUSTER_INFO, Empty(), timeout_s=_ASK_S
            )
            if answer.code != ResponseCode.SUCCESS:
                return None
            known = bodies.ClusterInfo.decode(answer.body).broker_addr_table.get(self._config.broker_name)
        except OrbitError:
            return None
        return known if known is not None and known.cluster in (None, self._config.cluster_name) else None

    async def _says_it_is_master(self, address: str, own_address: str) -> bool:
        try:
            answer = await self._rpc.call(
                address,
                RequestCode.GET_BROKER_HA_STATUS,
                timeout_s=_ASK_S,
                ext={SECOND_MASTER: own_address},
            )
            return answer.code == ResponseCode.SUCCESS and bodies.HaRuntimeInfo.decode(answer.body).master
        except OrbitError:
            return False

    async def start(self, address: str, ha_address: str, *, wait_s: float = _SHORT_TIMEOUT_S) -> None:
        """Register with all name servers and keep the registrations current. Returns when every name server has been
        tried, after ``wait_s`` seconds at most, because a name server that is down must not keep the broker from
        serving."""
        self._address = address
        self._ha_address = ha_address
        self._links = [_Link(name_server) for name_server in self._config.name_server_list]
        for link in self._links:
            self._tasks.start(self._run(link), f"link-{link.address}")
            if self._config.acting_master_enabled:
                beat = functools.partial(self._heartbeat, link)
                self._tasks.start(every(_HEARTBEAT_S, beat), f"heartbeat-{link.address}")
        try:
            async with asyncio.timeout(wait_s):
                for link in self._links:
                    await link.attempted.wait()
        except TimeoutError:
            logger.warning("not every name server answered yet waited_s=%g", wait_s)

    def _topic_changed(self, topic: TopicConfig) -> None:
        """Register one topic immediately, in the background."""
        for link in self._links:
            link.topics[topic.topic_name] = topic
            link.settled.clear()
            link.wake.set()

    async def settled(self, *, wait_s: float = _SHORT_TIMEOUT_S) -> None:
        """Wait until all changes so far have been sent to every name server, at most ``wait_s`` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                for link in self._links:
                    await link.settled.wait()
        except TimeoutError:
            logger.warning("the last change is not yet registered with every name server waited_s=%g", wait_s)

    async def settled_soon(self) -> None:
        """Like ``settled``, but with a short time limit, because a client waits for the answer."""
        await self.settled(wait_s=_CLIENT_WAIT_S)

    def when_settled(self, work: Callable[[], None]) -> None:
        """Call ``work`` once the name servers know all changes so far, or after a short wait if they do not."""

        async def later() -> None:
            await self.settled_soon()
            work()

        if self._tasks.closed:
            work()
        else:
            self._tasks.start(later(), "topic-routed")

    @property
    def known_count(self) -> int:
        """The number of name servers that accepted the last registration and are still connected."""
        return sum(
            1
            for link in self._links
            if link.connection is not None and link.attempted.is_set() and not link.failures
        )

    def _options_changed(self, keys: frozenset[str]) -> None:
        if "brokerPermission" in keys:
            self.refresh()

    def refresh(self) -> None:
        """Register everything again immediately, in the background. After a change of the broker's permission, call
        ``TopicTable.touch`` as well, because name servers keep the old data unless the table has a new version."""
        for link in self._links:
            link.forced = True
            link.asked = True
            link.wake.set()

    async def stop(self, *, wait_s: float = _SHORT_TIMEOUT_S) -> None:
        """Unregister from all name servers concurrently, within ``wait_s`` seconds, and close the connections."""
        self._stopping = True
        await self._tasks.close()
        await asyncio.gather(*(self._unregister(link, wait_s) for link in self._links))
        self._links = []
        await self._rpc.close()

    # -- one link --------------------------------------------------------------------------------------

    async def _run(self, link: _Link) -> None:
        loop = asyncio.get_running_loop()
        first = True
        while True:
            if link.asked or loop.time() >= link.due:
                link.asked = False
                done = await self._register_all(link)
                link.due = loop.time() + self._pause_s(link, first=first, done=done)
                link.attempted.set()
                first = False
            elif link.topics and not await self._register_changes(link):
                link.due = min(link.due, loop.time() + self._pause_s(link, first=False, done=False))
            if not link.topics:
                link.settled.set()
            try:
                async with asyncio.timeout_at(link.due):
                    await link.wake.wait()
            except TimeoutError:
                pass
            link.wake.clear()

    def _pause_s(self, link: _Link, *, first: bool, done: bool) -> float:
        if done:
            return _SECOND_S if first else self._config.register_period_s
        pause_s: float = _RETRY_S * 2 ** min(link.failures - 1, 10)
        return min(self._config.register_period_s, pause_s)

    async def _register_all(self, link: _Link) -> bool:
        """Bring a name server up to date. Returns False if that failed."""
        link.topics.clear()
        forced, link.forced = link.forced, False
        try:
            if forced or self._config.register_always or await self._outdated(link):
                for body in self._table_bodies():
                    await self._send_registration(link, body)
        except OrbitError as error:
            link.forced = link.forced or forced
            self._failed(link, error)
            return False
        self._succeeded(link)
        return True

    async def _register_changes(self, link: _Link) -> bool:
        topics = [self._topics.seen_outside(topic) for topic in link.topics.values()]
        link.topics.clear()
        try:
            if self._config.register_single_topic:
                for topic in topics:
                    await self._register_single(link, topic)
            else:
                await self._send_registration(link, self._body(topics))
        except OrbitError as error:
            self._failed(link, error)
            return False
        self._succeeded(link)
        return True

    def _succeeded(self, link: _Link) -> None:
        if link.failures or not link.attempted.is_set():
            logger.info("registered name_server=%s address=%s", link.address, self._address)
        link.failures = 0

    def _failed(self, link: _Link, error: OrbitError) -> None:
        link.failures += 1
        # Warn once per outage because a name server may be down for days.
        level = logging.WARNING if link.failures == 1 else logging.DEBUG
        logger.log(level, "registration failed name_server=%s error=%s", link.address, error)

    def _connection_closed(self, connection: Connection) -> None:
        for link in self._links:
            if link.connection is connection and not self._stopping:
                link.connection = None
                # The name server dropped us or died, so register again soon.
                link.due = min(link.due, asyncio.get_running_loop().time() + _RETRY_S)
                link.wake.set()

    # -- requests --------------------------------------------------------------------------------------

    async def _call(self, link: _Link, code: int, header: Header, body: bytes, timeout_s: float) -> Frame:
        answer = await self._rpc.call(link.address, code, header, body, timeout_s=timeout_s)
        link.connection = await self._rpc.connection(link.address)
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return answer

    async def _send_registration(self, link: _Link, body: bytes) -> None:
        config = self._config
        header = RegisterBrokerRequest(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
            ha_server_addr=self._ha_address,
            enable_acting_master=config.acting_master_enabled,
            heartbeat_timeout_millis=config.not_active_timeout_ms if config.acting_master_enabled else None,
            compressed=config.register_compressed,
            body_crc32=zlib.crc32(body) & _CRC_MASK,
        )
        timeout_s = config.register_timeout_ms / 1000
        answer = await self._call(link, RequestCode.REGISTER_BROKER, header, body, timeout_s)
        learnt = decode_header(RegisterBrokerResponse, answer)
        if learnt.master_addr and config.is_slave:
            self._master_known(learnt.master_addr, learnt.ha_server_addr or "")
        if answer.body:
            self._topics.mark_ordered(bodies.KvTable.decode(answer.body).table)

    async def _register_single(self, link: _Link, topic: TopicConfig) -> None:
        queues = QueueData(
            broker_name=self._config.broker_name,
            perm=topic.perm,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            topic_sys_flag=topic.topic_sys_flag,
        )
        header = RegisterTopicInNamesrvRequest(topic=topic.topic_name)
        body = bodies.encode_route(TopicRoute(queue_datas=[queues]), standard=True)
        await self._call(link, RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, body, _SHORT_TIMEOUT_S)

    async def _outdated(self, link: _Link) -> bool:
        """Whether the name server has a different version of our table. The query also serves as a heartbeat."""
        body = bodies.encode_body(self._topics.data_version)
        timeout_s = self._config.register_timeout_ms / 1000
        header = self._identity(QueryDataVersionRequest)
        answer = await self._call(link, RequestCode.QUERY_DATA_VERSION, header, body, timeout_s)
        if decode_header(QueryDataVersionResponse, answer).changed or not answer.body:
            return True
        return bodies.decode_body(DataVersion, answer.body) != self._topics.data_version

    def _heartbeat(self, link: _Link) -> None:
        if link.connection is not None and not link.connection.closed:
            link.connection.notify(
                RequestCode.QUERY_DATA_VERSION,
                self._identity(QueryDataVersionRequest),
                bodies.encode_body(self._topics.data_version),
            )

    async def _unregister(self, link: _Link, wait_s: float) -> None:
        header = self._identity(UnregisterBrokerRequest)
        try:
            await self._call(link, RequestCode.UNREGISTER_BROKER, header, b"", wait_s)
        except OrbitError as error:
            logger.warning("not unregistered name_server=%s error=%s", link.address, error)
        else:
            logger.info("unregistered name_server=%s", link.address)

    def _identity(self, header_type: type[N]) -> N:
        return header_type(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.cluster_name,
            broker_id=self._config.broker_id,
        )

    # -- bodies ----------------------------------------------------------------------------------------

    def _table_bodies(self) -> list[bytes]:
        """Returns the request bodies with the whole table. They are encoded once for all links, and cached until the
        table changes."""
        config = self._config
        split_count = config.split_registration_count if config.split_registration else 0
        filter_servers = tuple(self._filter_servers())
        key = (
            self._topics.data_version,
            config.permission,
            config.register_compressed,
            split_count,
            filter_servers,
        )
        if self._encoded is None or self._encoded[0] != key:
            topics = [self._topics.seen_outside(topic) for topic in self._topics.configs.values()]
            count = split_count or max(1, len(topics))
            chunks = [topics[start : start + count] for start in range(0, len(topics), count)]
            self._encoded = (key, [self._body(chunk) for chunk in chunks])
        return self._encoded[1]

    def _body(self, topics: Iterable[TopicConfig]) -> bytes:
        wrapper = bodies.TopicConfigWrapper(
            data_version=self._topics.data_version,
            mapping_data_version=self._topics.mapping_version,
            topic_config_table={topic.topic_name: topic for topic in topics},
            topic_queue_mapping_detail_map={},
            topic_queue_mapping_info_map={},
        )
        return bodies.encode_registration(
            bodies.RegisterBrokerBody(
                filter_server_list=self._filter_servers(), topic_config_serialize_wrapper=wrapper
            ),
            compressed=self._config.register_compressed,
        )
