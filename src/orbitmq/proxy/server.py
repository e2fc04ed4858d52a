"""The proxy itself: wiring, startup and shutdown (Apache: ProxyStartup).

``Proxy(config)`` serves the brokers registered with a name server. ``Proxy(config, local=...)`` runs inside a broker.
"""

from __future__ import annotations

import functools
import logging
from types import TracebackType
from typing import Final, Self

import msgspec

from orbitmq.client.options import Credentials
from orbitmq.errors import ConfigError
from orbitmq.metrics.endpoint import MetricsEndpoint, Pages
from orbitmq.proxy.access import Access, Right, SignedCalls, SignedDates
from orbitmq.proxy.acking import Acking
from orbitmq.proxy.brokers import Brokers, LocalBroker
from orbitmq.proxy.certificate import file_times, server_tls
from orbitmq.proxy.clients import Client, Clients
from orbitmq.proxy.commands import Commands
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.handles import HandleSeal, seal_keys
from orbitmq.proxy.http2.limits import Http2Limits
from orbitmq.proxy.http2.proxy_protocol import Balancers
from orbitmq.proxy.http2.server import GrpcServer
from orbitmq.proxy.metrics import ProxyMetrics
from orbitmq.proxy.receiving import Receiving
from orbitmq.proxy.remote_users import RemoteUsers
from orbitmq.proxy.routes import RouteAnswers
from orbitmq.proxy.sending import Sending
from orbitmq.proxy.service import Parts, Service
from orbitmq.proxy.transactions import Transactions
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.tasks import TaskOwner, every

__all__ = ["Proxy"]

logger = logging.getLogger(__name__)

_EXPIRE_CLIENTS_S: Final = 5.0
_EXPIRE_TRANSACTIONS_S: Final = 1.0
_EXPIRE_USERS_S: Final = 30.0


def _every_producer(_client: Client, _topic: str) -> bool:
    return True


def _may_publish(access: Access, client: Client, topic: str) -> bool:
    return access.allows(client.key.owner, Right.pub_topic(topic), client.remote)


class Proxy:
    """The proxy. An async context manager."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        local: LocalBroker | None = None,
        access: Access | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.config = config
        self._clock = clock
        self._tasks = TaskOwner("proxy")
        self.clients = Clients(config, clock)
        inner = _inner_credentials(config)
        self.brokers = Brokers(
            config,
            clock=clock,
            tasks=self._tasks,
            local=local,
            credentials=inner,
        )
        self.users = self._remote_users() if local is None and access is None else None
        if self.users is not None:
            dates = SignedDates(config.signed_dates, clock)
            access = SignedCalls(self.users.control, dates, self.users.learn)
        may_publish = _every_producer if access is None else functools.partial(_may_publish, access)
        self.transactions = Transactions(
            config, self.clients, self.brokers, clock=clock, tasks=self._tasks, may_publish=may_publish
        )
        keys = seal_keys(config.handle_key, "" if inner is None else inner.secret_key)
        seal = HandleSeal(keys, accepts_plain=config.accepts_plain_handles)
        self.acking = Acking(config, self.brokers, self.clients, seal, clock=clock, tasks=self._tasks)
        self.renewal = self.acking.renewal
        self.sending = Sending(config, self.brokers, self.transactions, clock)
        self.receiving = Receiving(
            config, self.brokers, self.acking, self.renewal, clock=clock, tasks=self._tasks
        )
        self._routes = RouteAnswers(config, local=local is not None)
        parts = Parts(
            brokers=self.brokers,
            clients=self.clients,
            routes=self._routes,
            sending=self.sending,
            receiving=self.receiving,
            acking=self.acking,
            transactions=self.transactions,
            commands=Commands(),
        )
        self.service = Service(config, parts, access=access, clock=clock)
        self._balancers = Balancers(config.balancers)
        self._server: GrpcServer | None = None
        self._file_times = file_times(config)
        self.metrics: MetricsEndpoint | None = None

    def _remote_users(self) -> RemoteUsers | None:
        """Returns a source of the brokers' users, or None if calls need no signature. Raises ``ConfigError``."""
        config = self.config
        if not (config.authentication or config.authorization):
            if self.brokers.signs:
                logger.warning(
                    "the proxy signs the requests of all its clients and asks none of them for a signature: set"
                    " authenticationEnabled=true, or let only trusted clients reach its port"
                )
            return None
        if not self.brokers.signs:
            raise ConfigError(
                "authenticationEnabled is set: the proxy asks brokers for their users and needs"
                " innerClientAuthenticationCredentials for that, the same as the brokers have"
            )
        return RemoteUsers(config, self.brokers, clock=self._clock, tasks=self._tasks)

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.port

    @property
    def address(self) -> str:
        return f"{self.config.bind_address or '0.0.0.0'}:{self.port}"

    @property
    def connection_count(self) -> int:
        return 0 if self._server is None else len(self._server.connections)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of requests, headers and unread answers that the proxy holds for its clients."""
        return 0 if self._server is None else self._server.buffered_bytes

    async def start(self) -> None:
        """Start to listen and start the background jobs. Raises ``OSError`` or ``ConfigError``."""
        config = self.config
        self._server = GrpcServer(
            self.service.methods(),
            host=config.bind_address,
            port=config.port,
            tls=server_tls(config, self._clock),
            limits=Http2Limits(message_bytes=config.message_bytes_in),
            balancers=self._balancers,
            idle_s=config.idle_ms / 1000,
        )
        await self._server.start()
        self._routes.listens_on(self._server.port)
        start = self._tasks.start
        self.brokers.start()
        start(every(_EXPIRE_CLIENTS_S, self.clients.expire), "client-expiry")
        if self.users is not None:
            start(every(_EXPIRE_USERS_S, self.users.expire), "user-expiry")
        start(every(_EXPIRE_TRANSACTIONS_S, self.transactions.expire), "transaction-expiry")
        start(
            every(config.transaction_heartbeat_s, self.transactions.heartbeat, first_s=1.0),
            "transaction-heartbeat",
        )
        start(every(config.renew_period_ms / 1000, self.renewal.renew_due), "renewal")
        if self._file_times:
            start(every(config.tls_watch_ms / 1000, self._reload_certificate), "certificate")
        if config.metrics_exporter.upper() == "PROM":
            pages = Pages(ProxyMetrics(self).families, not_alive=lambda: "", not_ready=lambda: "")
            self.metrics = MetricsEndpoint(config.metrics_host, config.metrics_port, pages)
            await self.metrics.start()
        logger.info("proxy started address=%s", self.address)

    def _reload_certificate(self) -> None:
        times = file_times(self.config)
        if self._server is None or not times or times == self._file_times:
            return
        try:
            self._server.use_tls(server_tls(self.config, self._clock))
        except ConfigError as error:
            logger.warning("new certificate cannot be used error=%s", error)
            return
        self._file_times = times
        logger.info("certificate replaced file=%s", self.config.tls_certificate)

    async def stop(self) -> None:
        """Refuse new calls, let running ones end, and close.

        Messages held by clients stay hidden, so that clients can continue to process them.
        """
        if self._server is None:
            return
        await self._server.stop()
        if self.metrics is not None:
            await self.metrics.stop()
        await self._tasks.close()
        await self.brokers.stop()
        self._server = None
        logger.info("proxy stopped")

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _inner_credentials(config: ProxyConfig) -> Credentials | None:
    """Returns the credentials that sign calls to brokers, or None if there are none. Raises ``ConfigError``."""
    if not config.inner_credentials:
        return None
    try:
        found = msgspec.json.decode(config.inner_credentials, type=dict[str, str])
        return Credentials(access_key=found["accessKey"], secret_key=found["secretKey"])
    except (msgspec.DecodeError, KeyError):
        raise ConfigError(
            'innerClientAuthenticationCredentials is not {"accessKey": ..., "secretKey": ...}'
        ) from None
