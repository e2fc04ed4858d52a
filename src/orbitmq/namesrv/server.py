"""A name server: the route table, its requests and a port (Apache: NamesrvController).

Usable as a library: ``async with NameServer(NameServerConfig(listen_port=0)) as server: server.address``. Name
servers do not communicate with each other; brokers register with all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import msgspec

from orbitmq.errors import ConnectionLostError
from orbitmq.metrics.endpoint import MetricsEndpoint, Pages
from orbitmq.metrics.requests import RequestTimes
from orbitmq.model.route import TopicRoute
from orbitmq.namesrv.advertised import advertised_route, read_addresses
from orbitmq.namesrv.config import NameServerConfig, client_tls, file_path, server_tls
from orbitmq.namesrv.handlers import NameServerHandlers
from orbitmq.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from orbitmq.namesrv.live_config import LiveConfig
from orbitmq.namesrv.metrics import NameServerMetrics
from orbitmq.namesrv.registration import MinIdNotice, RouteRules
from orbitmq.namesrv.route_cache import RouteCache
from orbitmq.namesrv.route_table import RouteTable
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.runtime.network import join_address
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Router
from orbitmq.transport.server import Listener, Server, ServerLimits
from orbitmq.wire.headers.namesrv import NotifyMinBrokerIdChangeRequest

__all__ = ["NameServer"]

logger = logging.getLogger(__name__)

_NOTICE_TIMEOUT_S: Final = 3.0


class NameServer:
    """A name server. ``start`` and ``stop`` are called once each; ``async with`` does both."""

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        fs: FileSystem = LOCAL_FILE_SYSTEM,
        stored: Mapping[str, str] | None = None,
    ) -> None:
        """``stored`` is the properties text that the config came from. Later changes are written over it."""
        config = config if config is not None else NameServerConfig()
        self._live_config = LiveConfig(
            config, _safe_file(fs, config.config_store_path), stored, self._config_changed
        )
        self._kv = KvConfig(_safe_file(fs, config.kv_config_path), self._kv_changed)
        self.table = RouteTable(clock, _rules(config), lambda topics: self._cache.forget(topics))
        self._cache = RouteCache(self._route, config.route_cache_bytes)
        self._advertised = read_addresses(config.advertised_addresses)
        port_tls = server_tls(config)  # first: what it refuses is said before anything else
        self._watched = port_tls.watched
        self._client = RpcClient(tls=client_tls(config))
        handlers = NameServerHandlers(
            table=self.table,
            kv=self._kv,
            config=self._live_config,
            cache=self._cache,
            advertised=self._advertised,
            clock=clock,
            client=self._client,
            send_notice=self._send_notice,
        )
        routes = handlers.routes()
        self.metrics: MetricsEndpoint | None = None
        """The metrics port, if there is one."""
        if config.metrics_exporter != "DISABLE":
            requests = RequestTimes(clock)
            routes = requests.timed(routes)
            self.metrics = self._metrics_endpoint(config, requests)
        self.router = Router(routes)
        self._server = Server(
            [Listener(config.bind_address, config.listen_port, self.router)],
            limits=ServerLimits(connections=config.connections_max, idle_s=float(config.channel_idle_s)),
            tls=port_tls,
            on_close=self._connection_closed,
        )
        self._tasks = TaskOwner("namesrv", watched=True)
        self._ready = False
        self._stopping = False

    def _metrics_endpoint(self, config: NameServerConfig, requests: RequestTimes) -> MetricsEndpoint:
        metrics = NameServerMetrics(config, self.table, requests, lambda: len(self._server.connections))
        pages = Pages(metrics.families, not_alive=lambda: "", not_ready=self._not_ready)
        endpoint = MetricsEndpoint(config.metrics_host, config.metrics_port, pages)
        endpoint.token = config.metrics_token
        return endpoint

    def _not_ready(self) -> str:
        return "" if self._ready and not self._stopping else "the name server is starting or stopping"

    @property
    def config(self) -> NameServerConfig:
        """The current configuration."""
        return self._live_config.current

    @property
    def port(self) -> int:
        """The bound port, once started."""
        return self._server.ports[0]

    @property
    def address(self) -> str:
        """``host:port`` for brokers and clients on this machine."""
        host = self.config.bind_address
        return join_address("127.0.0.1" if host in ("0.0.0.0", "::") else host, self.port)

    async def start(self) -> None:
        """Load stored data and listen. Raises ``OSError`` or ``CorruptionError`` after closing everything it has
        opened."""
        self._kv.load()
        if self.metrics is not None:
            await self.metrics.start()
        try:
            await self._server.start()
        except OSError:
            if self.metrics is not None:
                await self.metrics.stop()
            raise
        self._ready = True
        self._tasks.start(every(self.config.scan_interval_ms / 1000, self.remove_silent_brokers), "scan")
        logger.info("name server started address=%s:%d", self.config.bind_address, self.port)
        if self._watched:
            logger.info("certificate files watched files=%s", ",".join(map(str, self._watched)))

    async def stop(self) -> None:
        """Close the port and all connections."""
        self._stopping = True
        await self._server.stop()
        if self.metrics is not None:
            await self.metrics.stop()
        await self._tasks.close()
        await self._client.close()
        logger.info("name server stopped")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- what changes -------------------------------------------------------------------------------------

    def remove_silent_brokers(self) -> None:
        """Remove brokers that have timed out. Called by the scan job."""
        connections, notices = self.table.expire()
        for connection in connections:
            if isinstance(connection, Connection):
                connection.close()
        for notice in notices:
            self._send_notice(notice)

    def _connection_closed(self, connection: Connection) -> None:
        for notice in self.table.connection_lost(connection):
            self._send_notice(notice)

    def _config_changed(self, config: NameServerConfig) -> None:
        self.table.rules = _rules(config)
        self._cache.clear()

    def _kv_changed(self, namespace: str, key: str) -> None:
        if namespace == ORDER_TOPIC_CONFIG:
            self._cache.forget((key,))

    def _route(self, topic: str) -> TopicRoute | None:
        """Returns the route as clients see it, including the fixed queue order of an ordered topic if that is
        enabled."""
        route = self.table.route(topic)
        if route is not None and self._advertised:
            route = advertised_route(route, self._advertised)
        if route is None or not (self.config.order_message_enable or self.config.cluster_test):
            return route
        order = self._kv.value(ORDER_TOPIC_CONFIG, topic)
        return route if order is None else msgspec.structs.replace(route, order_topic_conf=order)

    # -- notices ------------------------------------------------------------------------------------------

    def _send_notice(self, notice: MinIdNotice) -> None:
        if self.config.notify_min_broker_id_changed and not self._stopping:
            self._tasks.start(self._deliver(notice), "notice")

    async def _deliver(self, notice: MinIdNotice) -> None:
        header = NotifyMinBrokerIdChangeRequest(
            min_broker_id=notice.min_broker_id,
            min_broker_addr=notice.min_broker_address,
            offline_broker_addr=notice.offline_address,
            ha_broker_addr=notice.ha_address,
        )
        logger.info(
            "smallest broker id changed id=%d address=%s told=%s",
            notice.min_broker_id,
            notice.min_broker_address,
            ",".join(notice.receivers),
        )
        for receiver in notice.receivers:
            try:
                async with asyncio.timeout(_NOTICE_TIMEOUT_S):
                    await self._client.notify(receiver, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
            except (ConnectionLostError, TimeoutError) as error:
                logger.warning("notification not delivered receiver=%s error=%s", receiver, error)


def _rules(config: NameServerConfig) -> RouteRules:
    return RouteRules(
        config.broker_timeout_ms, config.support_acting_master, config.delete_topic_with_broker_registration
    )


def _safe_file(fs: FileSystem, path: str) -> SafeFile | None:
    absolute = file_path(path)
    return None if absolute is None else SafeFile(fs, absolute)
