"""The network side of one client: connections, timers, heartbeats, and the calls brokers make to it.

Corresponds to Apache's MQClientInstance and ClientRemotingProcessor. Each producer and consumer has its own instance;
nothing is shared through module state. Everything here runs on the event loop that started it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Final, Protocol

from orbitmq.client.checks import check_type
from orbitmq.client.errors import ClientClosedError, ClientStateError, ForkedError, NoMasterError, add_hint
from orbitmq.client.net.log_limits import LogLimits
from orbitmq.client.net.name_server_lookup import is_page, look_up
from orbitmq.client.net.routes import RouteBook, split_name_servers
from orbitmq.client.net.signing import sign
from orbitmq.client.options import ClientOptions
from orbitmq.client.surroundings import name_servers_given
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConnectFailedError, OrbitError, RequestTimeoutError, TopicNotFound, error_for_code
from orbitmq.model.names import AUTO_CREATE_TOPIC
from orbitmq.model.route import MASTER_ID
from orbitmq.record.ids import UniqueKeys
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock, month_of
from orbitmq.runtime.machine import process_id
from orbitmq.runtime.network import own_address
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute, Route, Router
from orbitmq.wire.bodies import ConsumerData, HeartbeatData, ProducerData
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header, encode_ext
from orbitmq.wire.headers import HeartBeatRequest, UnregisterClientRequest

__all__ = ["ClientInstance", "Member"]

logger = logging.getLogger(__name__)

_GREETING_WAITS_S: Final = (0.05, 0.2, 0.5, 1.0, 1.0, 2.0, 2.0, 5.0, 5.0, 10.0)
"""Waits before greeting a broker again after a lost connection; after these the heartbeat timer takes over."""
_REFRESH_SPACING_S: Final = 0.2
_READY_PAUSE_S: Final = 0.1
_serial: Final = itertools.count(1)
"""Makes the client ids of one process differ."""


class Member(Protocol):
    """A producer or consumer, as its instance sees it."""

    def topics(self) -> set[str]:
        """Returns the topics whose routes the member needs."""

    def producer_data(self) -> ProducerData | None:
        """Returns the producer part of its heartbeat; None if it has none."""

    def consumer_data(self) -> ConsumerData | None:
        """Returns the consumer part of its heartbeat; None if it has none."""


class ClientInstance:
    """The network side of one client, as the module describes it. ``start`` and ``stop`` may be called once each."""

    def __init__(
        self,
        member: Member,
        name_servers: str,
        options: ClientOptions,
        *,
        clock: Clock,
        fixed_instance: str = "",
    ) -> None:
        self.options = options
        self.clock = clock
        self._member = member
        check_type("name_servers", name_servers, str)
        given = name_servers or name_servers_given()
        self._page = given if is_page(given) else ""
        self.name_servers = [] if self._page else split_name_servers(given)
        self._process_id = process_id()
        address = options.client_ip or own_address()
        name = (
            options.instance_name or fixed_instance or f"{self._process_id}#{clock.now_ms()}{next(_serial)}"
        )
        self.client_id = f"{address}@{name}" + (f"@{options.unit_name}" if options.unit_name else "")
        self.unique_keys = UniqueKeys(
            address=_packed(address),
            process_id=self._process_id,
            process_constant=hash(self.client_id) & 0x7FFFFFFF,
            now_ms=clock.now_ms,
            month_of=month_of,
        )
        self._rpc: RpcClient | None = None
        self._stopped = self._warned = False
        self.tasks = TaskOwner("client")
        self.book = RouteBook(
            self.name_servers,
            self._ask_name_server,
            self.tasks,
            self._look_up_name_servers if self._page else None,
        )
        self.log_limits = LogLimits(clock.monotonic)
        self._refreshed_at: dict[str, float] = {}
        self.broker_versions: dict[str, int] = {}
        """The version each broker address returned with its last heartbeat."""
        self._unanswered: dict[str, OrbitError] = {}
        """By broker address: why its last heartbeat failed."""
        self._greeting: set[str] = set()
        self._greeted: set[str | None] = set()
        self._silent: set[str | None] = set()
        """Brokers that did not answer when a caller waited for them."""
        self._heartbeats: set[asyncio.Future[None]] = set()
        """One for each heartbeat in flight."""
        self.leaving = False
        """No heartbeat is sent and no queue taken any more."""
        self._on_routes: Callable[[], None] = _nothing

    # -- life ------------------------------------------------------------------------------------------

    def start(
        self, routes: Iterable[Route | RawRoute] = (), *, on_routes: Callable[[], None] | None = None
    ) -> None:
        """Accept calls from brokers and start the timers. ``on_routes`` is called when the topics' routes have been
        refreshed. Needs a running loop."""
        if self._rpc is not None or self._stopped:
            raise ClientStateError(f"client {self.client_id} was started before")
        options = self.options
        self._on_routes = on_routes or _nothing
        self._rpc = RpcClient(
            router=Router(list(routes)),
            tls=options.tls_context,
            connect_timeout_s=options.connect_timeout_s,
            serialize_type=options.serialize,
            on_close=self._connection_closed,
        )
        if self._page:
            self.tasks.start(every(options.name_server_lookup_s, self._look_up_name_servers), "name-servers")
        self.tasks.start(every(options.route_refresh_s, self.refresh_routes), "routes")
        self.tasks.start(
            every(options.heartbeat_s, self.heartbeat, first_s=min(1.0, options.heartbeat_s)), "heartbeat"
        )

    def begin_stop(self) -> None:
        """Stop sending heartbeats.

        If a broker handles a heartbeat after our goodbye, it keeps a member that no longer exists, and its queues are
        not read until the broker's timeout of two minutes. Apache's broker handles the two requests on different
        threads.
        """
        self.leaving = True

    async def stop(self) -> None:
        """Unregister from the brokers and close every connection."""
        self.begin_stop()
        if self._stopped or self._rpc is None:
            self._stopped = True
            return
        try:
            async with asyncio.timeout(self.options.call_timeout_s):
                while self._heartbeats:
                    await asyncio.wait(self._heartbeats)
                await self._unregister()
        except (OrbitError, TimeoutError) as error:
            logger.info("client not unregistered client=%s error=%s", self.client_id, error)
        self._stopped = True
        await self.tasks.close()
        await self._rpc.close()

    @property
    def name_server_sources(self) -> list[str]:
        """The addresses of the name servers, or the page they are read from."""
        return [self._page] if self._page else list(self.name_servers)

    def check_running(self) -> None:
        """Raise an error if the client is not running, or runs in another process."""
        if self._rpc is None or self._stopped:
            raise ClientClosedError(
                f"client {self.client_id} is {'stopped' if self._stopped else 'not started'}"
            )
        if self._process_id != process_id():
            raise ForkedError(f"client {self.client_id} was started in process {self._process_id}")

    @property
    def rpc(self) -> RpcClient:
        """The client's connections. Raises like ``check_running``."""
        self.check_running()
        assert self._rpc is not None
        return self._rpc

    @property
    def running(self) -> bool:
        return self._rpc is not None and not self._stopped

    def forget(self) -> None:
        """Suppress the warning about a client that was not stopped, because its owner has already logged one."""
        self._warned = True

    def __del__(self) -> None:
        if getattr(self, "_warned", False):
            return
        if getattr(self, "_rpc", None) is not None and not self._stopped and self._process_id == process_id():
            text = f"client {self.client_id} was not stopped: `async with` does it, or `await client.stop()`"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)

    # -- calls -----------------------------------------------------------------------------------------

    def fields(self, header: Header | None, body: bytes = b"") -> dict[str, str]:
        """Returns the extension fields of a request, signed if the client has keys."""
        fields = {} if header is None else encode_ext(header)
        credentials = self.options.credentials
        return fields if credentials is None else sign(fields, body, credentials)

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Frame:
        """Call a server. Returns the response, whatever its response code."""
        wait_s = self.options.call_timeout_s if timeout_s is None else timeout_s
        return await self.rpc.call(address, code, None, body, timeout_s=wait_s, ext=self.fields(header, body))

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Frame:
        """Call a server. Raises ``BrokerError`` if the server refuses the request."""
        answer = await self.call(address, code, header, body, timeout_s=timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise add_hint(error_for_code(answer.code, answer.remark))
        return answer

    async def tell(self, address: str, code: int, header: Header | None = None, body: bytes = b"") -> None:
        """Send a oneway request."""
        await self.rpc.notify(address, code, None, body, ext=self.fields(header, body))

    def _ask_name_server(self, address: str, code: int, header: Header) -> Awaitable[Frame]:
        return self.call(address, code, header)

    async def _look_up_name_servers(self) -> None:
        """Read the name server addresses from the page. Raises ``NameServerError``; the known addresses then stay in
        use."""
        found = split_name_servers(await look_up(self._page, self.options.call_timeout_s))
        if set(found) != set(self.name_servers):
            logger.info("name servers changed page=%s addresses=%s", self._page, ";".join(found))
            self.name_servers[:] = found

    def master(self, broker_name: str) -> str:
        """Returns the address of a broker's master. Raises ``NoMasterError`` if no route names one."""
        address = self.book.master_address(broker_name)
        if address is None:
            raise NoMasterError(f"no master of broker {broker_name} is known")
        return address

    async def address_for(self, broker_name: str, topic: str) -> str:
        """Returns the address of a broker's master or, without one, of a replica. Queries the name server if the
        broker is unknown."""
        address = self.book.any_address(broker_name)
        if address is None:
            await self.book.refresh(topic)
            address = self.book.any_address(broker_name)
        if address is None:
            raise ConnectFailedError(f"no address of broker {broker_name} is known")
        return address

    # -- routes and heartbeats -------------------------------------------------------------------------

    async def refresh_routes(self) -> None:
        """Fetch the route of every topic in use. Failures are logged, and the old routes stay."""
        for topic in self._member.topics() | set(self.book.topics):
            try:
                await self.book.refresh(topic)
            except TopicNotFound:
                logger.debug("name server has no route topic=%s", topic)
            except OrbitError as error:
                self._not_refreshed(topic, error)
        self._on_routes()

    def _not_refreshed(self, topic: str, error: OrbitError) -> None:
        key = ("route", type(error))
        self.log_limits.warning(logger, key, "route not refreshed topic=%s error=%s", topic, error)

    def refresh_soon(self, topic: str) -> None:
        """Fetch a route in the background, after a request failed as if the route were out of date. Fetches at most
        once per ``_REFRESH_SPACING_S``, however many requests fail."""
        now = self.clock.monotonic()
        if not self.running or now - self._refreshed_at.get(topic, -1e9) < _REFRESH_SPACING_S:
            return
        self._refreshed_at[topic] = now
        self.tasks.start(self._refresh_one(topic), "refresh-route")

    async def _refresh_one(self, topic: str) -> None:
        before = self.book.route(topic)
        try:
            await self.book.refresh(topic)
        except OrbitError as error:
            if not isinstance(error, TopicNotFound):
                self._not_refreshed(topic, error)
            return
        if self.book.route(topic) is not before:
            self.heartbeat_to_new_brokers()
            self._on_routes()

    async def wait_ready(self, topics: list[str], timeout_s: float, new_queues: int = 0) -> None:
        """Wait until the routes of the topics are known and a master of each topic answers. Raises
        ``RequestTimeoutError`` with the last failure as its cause."""
        self.check_running()
        deadline = asyncio.get_running_loop().time() + timeout_s
        failure: OrbitError | None = None
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        for topic in topics or [AUTO_CREATE_TOPIC]:
                            await self._check_ready(topic, new_queues)
                        return
                    except ClientStateError:
                        raise
                    except OrbitError as error:
                        failure = error
                    await asyncio.sleep(_READY_PAUSE_S)
        except TimeoutError:
            raise RequestTimeoutError(f"not ready within {timeout_s:g} s: {failure}") from failure

    async def _check_ready(self, topic: str, new_queues: int) -> None:
        if new_queues:
            await self.book.for_publish(topic, new_queues)
        route = self.book.route(topic) or await self.book.refresh(topic)
        masters = [data.master_address for data in route.broker_datas]
        body = self._heartbeat_body()
        asked = [
            self.tasks.start(self._failure_of(one, body), f"ready-{one}")
            for one in masters
            if one is not None
        ]
        failure: OrbitError = ConnectFailedError(f"no master of topic {topic} is known")
        try:
            for answered in asyncio.as_completed(asked):
                found = await answered
                if found is None:
                    return
                failure = found
        finally:
            for task in asked:
                task.cancel()
        raise failure

    async def _failure_of(self, address: str, body: bytes) -> OrbitError | None:
        """Returns the error if a broker does not answer; None if it does."""
        try:
            await self._greet(address, body)
        except OrbitError as error:
            return error
        return None

    async def heartbeat(self) -> None:
        """Send a heartbeat to every known broker."""
        consumer = self._member.consumer_data()
        if consumer is None and self._member.producer_data() is None:
            return  # a client that only asks questions is a member of nothing
        body = self._heartbeat_body()
        addresses = [
            address
            for data in self.book.brokers()
            for broker_id, address in data.broker_addrs.items()
            if consumer is not None or broker_id == MASTER_ID
        ]
        await asyncio.gather(*(self._heartbeat_to(address, body) for address in addresses))

    def _heartbeat_body(self) -> bytes:
        producer, consumer = self._member.producer_data(), self._member.consumer_data()
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[] if producer is None else [producer],
            consumer_data_set=[] if consumer is None else [consumer],
        ).encode()

    def heartbeat_to_new_brokers(self) -> None:
        """Send heartbeats in the background if a route names a broker that does not know us yet."""
        masters = {data.master_address for data in self.book.brokers()} - {None}
        if self.running and not masters <= self._greeted:
            self._greeted |= masters
            self.tasks.start(self.heartbeat(), "heartbeat-new-brokers")

    def _connection_closed(self, connection: Connection) -> None:
        """Register again with a broker as soon as it can be reached, because a broker forgets a client whose
        connection is lost."""
        address = connection.remote_text
        self._silent.discard(address)
        if self.running and address in self.broker_versions and address not in self._greeting:
            self._greeting.add(address)
            self.tasks.start(self._greet_again(address), f"greet-{address}")

    async def _greet_again(self, address: str) -> None:
        try:
            for wait_s in _GREETING_WAITS_S:
                await asyncio.sleep(wait_s)
                if not any(address in data.broker_addrs.values() for data in self.book.brokers()):
                    return  # no route names it any more
                before = self.broker_versions.pop(address, None)
                await self._heartbeat_to(address, self._heartbeat_body())
                if address in self.broker_versions:
                    self._on_routes()
                    return
                if before is not None:
                    self.broker_versions[address] = before
        finally:
            self._greeting.discard(address)

    async def ensure_known(self, wait_s: float | None = None) -> None:
        """Wait until every master of a known route has received a heartbeat, at most ``wait_s``.

        A broker that did not answer is not waited for again until it answers or its connection ends; the heartbeat
        timer keeps trying.
        """
        self.check_running()
        masters = {data.master_address for data in self.book.brokers()} - {None}
        if not masters <= self.broker_versions.keys() | self._silent:
            self._greeted |= masters
            greeting = self.tasks.start(self.heartbeat(), "heartbeat-unknown-brokers")
            await asyncio.wait([greeting], timeout=wait_s)
            self._silent |= masters - self.broker_versions.keys()

    async def _heartbeat_to(self, address: str, body: bytes) -> None:
        if self.leaving:
            return
        try:
            await self._greet(address, body)
        except OrbitError as error:
            key = ("heartbeat", address)
            self.log_limits.log(
                logger, logging.INFO, key, "heartbeat failed broker=%s error=%s", address, error
            )

    async def _greet(self, address: str, body: bytes) -> None:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heartbeats.add(answered)
        try:
            answer = await self.ask(address, RequestCode.HEART_BEAT, HeartBeatRequest(), body)
            self.broker_versions[address] = answer.version
            self._silent.discard(address)
            self._unanswered.pop(address, None)
        except OrbitError as error:
            self._unanswered[address] = error
            raise
        finally:
            self._heartbeats.discard(answered)
            answered.set_result(None)

    @property
    def membership_fault(self) -> str:
        """The reason why no broker has this client as a member; empty if a broker answered its last heartbeat."""
        known = {address for data in self.book.brokers() for address in data.broker_addrs.values()}
        if not known:
            return "no broker is known"
        if (known & self.broker_versions.keys()) - self._unanswered.keys():
            return ""
        failures = [
            f"{address}: {self._unanswered[address]}" for address in sorted(known & self._unanswered.keys())
        ]
        return f"no broker has answered the last heartbeat: {'; '.join(failures) or 'none failed yet'}"

    async def _unregister(self) -> None:
        producer, consumer = self._member.producer_data(), self._member.consumer_data()
        header = UnregisterClientRequest(
            client_id=self.client_id,
            producer_group=None if producer is None else producer.group_name,
            consumer_group=None if consumer is None else consumer.group_name,
        )
        # Only brokers that received a heartbeat: others do not have us registered.
        answers = await asyncio.gather(
            *(self.call(address, RequestCode.UNREGISTER_CLIENT, header) for address in self.broker_versions),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, OrbitError):
                raise answer


def _nothing() -> None:
    """Do nothing. Used if no caller waits for routes."""


def _packed(address: str) -> bytes:
    try:
        return ip_address(address).packed
    except ValueError:
        return b"\x7f\x00\x00\x01"
