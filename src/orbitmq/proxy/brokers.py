"""The brokers behind a proxy: routes, topic and group settings, and calls.

In cluster mode, brokers are found through name servers. In local mode, one broker runs in the same process, its
address refers to an in-memory connection (``transport/local.py``), and all sends and receives go to it. The rest of
the code is the same in both modes.

Corresponds to Apache's ClusterTopicRouteService, LocalTopicRouteService, MetadataService and MQClientAPIExt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from orbitmq.client.net.routes import RouteBook, split_name_servers
from orbitmq.client.net.signing import sign
from orbitmq.client.options import Credentials
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError, OrbitError, TopicNotFound, error_for_code
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.route import BrokerData, MessageQueue, QueueData, TopicRoute
from orbitmq.model.topic import MESSAGE_TYPE_ATTRIBUTE, TopicConfig, is_readable
from orbitmq.proxy.cache import Cache
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.client import RpcClient
from orbitmq.transport.local import LocalServer
from orbitmq.transport.router import PARKED, Answer, Call, Route, Router
from orbitmq.transport.tls import outgoing_context
from orbitmq.wire import javajson
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header, encode_ext
from orbitmq.wire.headers import (
    CheckTransactionStateRequest,
    GetSubscriptiongroupConfigRequest,
    GetTopicConfigRequest,
)

__all__ = ["Brokers", "LocalBroker", "TopicFacts"]

logger = logging.getLogger(__name__)

CALL_S: Final = 3.0
_EXPIRY_S: Final = 30.0


class LocalBroker(msgspec.Struct, frozen=True):
    """The broker that contains a proxy in local mode."""

    name: str
    address: str
    server: LocalServer


class TopicFacts(msgspec.Struct, frozen=True, gc=False):
    """The proxy's knowledge of one topic."""

    route: TopicRoute
    """The route sent to clients."""
    publish: list[MessageQueue]
    """Writable queues, sorted by broker and number."""
    readable: list[str]
    """Names of the readable brokers."""
    kind: str
    """The topic's message.type attribute, or UNSPECIFIED if it could not be read."""


TransactionCheck = Callable[[Call[CheckTransactionStateRequest]], None]


class Brokers:
    """Calls the brokers and caches their metadata. Owned by one event loop; start and stop it once each."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        clock: Clock,
        tasks: TaskOwner,
        local: LocalBroker | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._credentials = credentials
        self.local = local
        tls = outgoing_context(config) if config.tls_outgoing else None
        self.checks: list[TransactionCheck] = []
        """Called when a broker checks back for the outcome of a transaction."""
        routes = [Route(RequestCode.CHECK_TRANSACTION_STATE, self._check, CheckTransactionStateRequest)]
        self.rpc = RpcClient(router=Router(routes), serialize_type=SerializeType.JSON, tls=tls)
        if local is not None:
            self.rpc.reach_locally(local.address, local.server)
        self._servers = split_name_servers(config.name_servers)
        self._book = RouteBook(self._servers, self._ask_name_server, tasks)
        kept = {
            "tasks": tasks,
            "clock": clock,
            "refresh_s": float(config.cache_refresh_s),
            "expiry_s": float(config.cache_expiry_s),
            "entries_max": config.cache_entries,
        }
        self.topics: Cache[TopicFacts] = Cache(self._load_topic, **kept)  # type: ignore[arg-type]  # see above
        self.groups: Cache[SubscriptionGroupConfig] = Cache(self._load_group, **kept)  # type: ignore[arg-type]

    def _check(self, call: Call[CheckTransactionStateRequest]) -> Answer:
        for check in self.checks:
            check(call)
        return PARKED

    def start(self) -> None:
        self._tasks.start(every(_EXPIRY_S, self._expire), "cache-expiry")

    async def stop(self) -> None:
        await self.rpc.close()

    def _expire(self) -> None:
        self.topics.expire()
        self.groups.expire()

    # -- calls -----------------------------------------------------------------------------------------

    def address(self, broker_name: str) -> str:
        """Returns the address of a broker's master, or of any replica if the master is unknown.

        Raises ``ConnectionLostError`` if no address is known.
        """
        if self.local is not None:
            return self.local.address
        address = self._book.master_address(broker_name) or self._book.any_address(broker_name)
        if address is None:
            raise ConnectionLostError(f"no address of broker {broker_name} is known")
        return address

    def knows(self, broker_name: str) -> bool:
        return self.local is not None or self._book.broker(broker_name) is not None

    def masters(self) -> set[str]:
        """Returns the addresses of the masters in all known routes."""
        if self.local is not None:
            return {self.local.address}
        return {data.master_address for data in self._book.brokers() if data.master_address is not None}

    async def call(
        self, address: str, code: int, header: Header, body: bytes = b"", *, timeout_s: float = CALL_S
    ) -> Frame:
        """Send a request and return the response, whatever its code."""
        return await self.rpc.call(
            address, code, None, body, timeout_s=timeout_s, ext=self.fields(header, body)
        )

    async def ask(
        self, address: str, code: int, header: Header, body: bytes = b"", *, timeout_s: float = CALL_S
    ) -> Frame:
        """Send a request and return the response. Raises ``BrokerError`` if the broker refuses it."""
        answer = await self.call(address, code, header, body, timeout_s=timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return answer

    async def ask_fields(self, address: str, code: int, fields: dict[str, str]) -> Frame:
        """Like ``ask``, for requests without a declared header."""
        answer = await self.rpc.call(address, code, None, timeout_s=CALL_S, ext=self.signed(fields, b""))
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return answer

    async def tell(self, address: str, code: int, header: Header, body: bytes = b"") -> None:
        """Send a one-way request."""
        await self.rpc.notify(address, code, None, body, ext=self.fields(header, body))

    def fields(self, header: Header, body: bytes = b"") -> dict[str, str]:
        return self.signed(encode_ext(header), body)

    def signed(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        return fields if self._credentials is None else sign(fields, body, self._credentials)

    @property
    def signs(self) -> bool:
        return self._credentials is not None

    def _ask_name_server(self, address: str, code: int, header: Header) -> Awaitable[Frame]:
        return self.call(address, code, header)

    # -- cached metadata -------------------------------------------------------------------------------

    async def facts(self, topic: str) -> TopicFacts:
        """Returns the facts about a topic, loading them if necessary.

        Raises ``Refused`` for an unknown topic, or ``OrbitError`` if a server does not answer.
        """
        known = self.topics.known(topic)
        return known if known is not None else await self.topics.get(topic)

    async def refresh(self, topic: str) -> None:
        """Reload a topic's facts after a broker has contradicted them."""
        self.topics.forget(topic)
        await self.topics.get(topic)

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Returns a group's settings, or None if no broker has the group or they could not be loaded."""
        try:
            return await self.groups.get(group)
        except OrbitError as error:
            logger.debug("group not found group=%s error=%s", group, error)
            return None

    async def _load_topic(self, topic: str) -> TopicFacts:
        if self.local is not None:
            return await self._load_local(self.local, topic)
        route = await self._book.refresh(topic)
        kind = "UNSPECIFIED"
        for data in route.broker_datas:
            address = data.master_address or next(iter(data.broker_addrs.values()), None)
            if address is None:
                continue
            try:
                config = await self._topic_config(address, topic)
            except OrbitError as error:
                logger.info("settings of topic not read topic=%s broker=%s error=%s", topic, address, error)
                continue
            kind = _kind(config)
            break
        publish = sorted(route.publish_queues(topic))
        return TopicFacts(route, publish, _readable(route), kind)

    async def _load_local(self, local: LocalBroker, topic: str) -> TopicFacts:
        config = await self._topic_config(local.address, topic)
        own = TopicRoute(
            queue_datas=[
                QueueData(
                    broker_name=local.name,
                    perm=config.perm,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                )
            ],
            broker_datas=[BrokerData(broker_name=local.name, broker_addrs={0: local.address})],
        )
        told = own
        if self._servers:
            try:
                told = await self._book.refresh(topic)
            except OrbitError as error:
                logger.debug("route not read topic=%s error=%s", topic, error)
        return TopicFacts(told, own.publish_queues(topic), _readable(own), _kind(config))

    async def _topic_config(self, address: str, topic: str) -> TopicConfig:
        header = GetTopicConfigRequest(topic=topic)
        answer = await self.call(address, RequestCode.GET_TOPIC_CONFIG, header)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or (
            answer.code == ResponseCode.SUCCESS and not answer.body
        ):
            raise TopicNotFound(f"No topic route info in name server for the topic: {topic}")
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return javajson.decode(answer.body, TopicConfig)

    async def _load_group(self, group: str) -> SubscriptionGroupConfig:
        header = GetSubscriptiongroupConfigRequest(group=group)
        failure: OrbitError = ConnectionLostError("no broker is known")
        for address in sorted(await self._some_masters()):
            try:
                answer = await self.ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
                if answer.body:
                    return javajson.decode(answer.body, SubscriptionGroupConfig)
            except OrbitError as error:
                failure = error
        raise failure

    async def _some_masters(self) -> set[str]:
        masters = self.masters()
        if not masters:
            # No route has been queried yet. The topic named after the cluster exists on each of its brokers.
            try:
                await self._book.refresh(self._config.cluster_name)
            except OrbitError as error:
                logger.info("no broker of cluster %s found: %s", self._config.cluster_name, error)
            masters = self.masters()
        return masters

    async def find_brokers(self) -> set[str]:
        """Returns the addresses of all masters that the name servers know."""
        if self.local is None:
            try:
                await asyncio.wait_for(self._book.refresh(self._config.cluster_name), CALL_S)
            except (OrbitError, TimeoutError) as error:
                logger.debug("brokers of cluster not read error=%s", error)
        return self.masters()

    def pick_readable(self, facts: TopicFacts, broker_name: str) -> str:
        """Returns the name of the requested broker if it is readable, otherwise of any readable one. Raises
        ``Refused``.
        """
        if broker_name in facts.readable:
            return broker_name
        if not facts.readable:
            raise Refused(pb.FORBIDDEN, "no readable queue")
        return facts.readable[0]


def _kind(config: TopicConfig) -> str:
    return config.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "NORMAL")


def _readable(route: TopicRoute) -> list[str]:
    present = {data.broker_name for data in route.broker_datas}
    return [
        data.broker_name
        for data in route.queue_datas
        if is_readable(data.perm) and data.broker_name in present
    ]
