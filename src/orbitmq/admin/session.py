"""The session with a cluster that all admin functions use: calls, name servers, addresses and routes."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from orbitmq.admin.base import Change, Changed
from orbitmq.admin.errors import NoNameServerError, PartlyDoneError, UnknownNameError, UnreachableError
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError, OrbitError, RequestTimeoutError, TopicNotFound, error_for_code
from orbitmq.model.names import retry_topic
from orbitmq.model.route import MASTER_ID, BrokerData, TopicRoute
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.transport.client import RpcClient
from orbitmq.wire.bodies import ClusterInfo, decode_route
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header, encode_ext
from orbitmq.wire.headers import GetRouteinfoByTopicRequest

if TYPE_CHECKING:
    from orbitmq.client.options import Credentials

__all__ = ["Admin", "AdminOptions", "Progress", "best_address"]

Progress = Callable[[str, int, int], None]
"""Called with the name of the current activity, how much of it is done, and the total."""

_SLOW: Final = 3
"""Factor by which the time limit is extended for calls in which a broker reads many queues, like in Apache's
tools.
"""


_MEMBERS_S: Final = 30.0
"""Seconds for which an ``Admin`` that is restricted to its cluster caches the list of brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """Settings of an ``Admin``: time limits, credentials and TLS."""

    timeout_s: float = 5.0
    connect_timeout_s: float = 3.0
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None
    """See ``orbitmq.transport.tls.client_context``."""


def _silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def best_address(data: BrokerData) -> str | None:
    """Returns the address of a broker's master, or of any replica if there is none, or None without replicas."""
    return data.master_address or next(iter(data.broker_addrs.values()), None)


class Admin:
    """A session with a cluster. An async context manager for use from one event loop."""

    def __init__(
        self,
        name_servers: str = "",
        options: AdminOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        progress: Progress = _silent,
    ) -> None:
        parts = name_servers.replace(",", ";").split(";")
        self.name_servers: Final = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
        self.options: Final = AdminOptions() if options is None else options
        self.clock: Final = clock
        self.progress: Final = progress
        self._rpc: RpcClient | None = None
        self._restricted = False
        self._members: frozenset[str] = frozenset()
        self._members_until_s = 0.0

    async def __aenter__(self) -> Self:
        # JSON headers, because codes above 32767 do not fit the binary form, and speed does not matter here.
        self._rpc = RpcClient(
            tls=self.options.tls,
            connect_timeout_s=self.options.connect_timeout_s,
            serialize_type=SerializeType.JSON,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._rpc is not None, "entered before"
        await self._rpc.close()

    @property
    def slow_s(self) -> float:
        """Time limit in seconds of a call in which a broker reads many queues."""
        return self.options.timeout_s * _SLOW

    def restrict_to_cluster(self) -> None:
        """Connect from now on only to the name servers and to the brokers they list.

        Used by callers that pass on addresses from others, because a signed request must not go to an invented
        address.
        """
        self._restricted = True

    async def _check_member(self, address: str) -> None:
        """Raise ``UnknownNameError`` if the server is not part of the cluster."""
        if address in self.name_servers:
            return
        if address not in self._members or self.clock.monotonic() >= self._members_until_s:
            await self.cluster_info()
        if address not in self._members:
            raise UnknownNameError("broker", address, self._members)

    # -- calls -----------------------------------------------------------------------------------------

    async def call(
        self,
        address: str,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        role: str = "broker",
    ) -> Frame:
        """Call a server and return its answer, whatever the response code.

        Raises ``UnreachableError``, and ``UnknownNameError`` for a server outside the cluster if restricted to it.
        """
        assert self._rpc is not None, "use `async with Admin(...)`"
        if self._restricted:
            await self._check_member(address)
        fields = encode_ext(header) if isinstance(header, Header) else dict(header or {})
        if self.options.credentials is not None:
            from orbitmq.client.net.signing import sign  # costs the import of the whole client

            fields = sign(fields, body, self.options.credentials)
        wait_s = self.options.timeout_s if timeout_s is None else timeout_s
        try:
            return await self._rpc.call(address, int(code), None, body, timeout_s=wait_s, ext=fields)
        except ConnectionLostError as error:
            raise UnreachableError(role, address, str(error)) from error
        except RequestTimeoutError as error:
            raise UnreachableError(role, address, f"no answer within {wait_s:g} s") from error

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        role: str = "broker",
    ) -> Frame:
        """Like ``call``, but raises ``BrokerError`` if the server refuses."""
        answer = await self.call(address, code, header, body, timeout_s=timeout_s, role=role)
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return answer

    async def ask_name_server(
        self, code: int, header: Header | dict[str, str] | None = None, body: bytes = b""
    ) -> Frame:
        """Call the name servers until one answers. Raises ``BrokerError`` if that one refuses."""
        failure: OrbitError | None = None
        for address in self.required_name_servers():
            try:
                return await self.ask(address, code, header, body, role="name server")
            except UnreachableError as error:
                failure = error
        assert failure is not None, "there is at least one"
        raise failure

    async def tell_name_servers(
        self, code: int, header: Header | dict[str, str] | None = None, body: bytes = b""
    ) -> dict[str, Frame]:
        """Call the name servers one after the other, because they do not exchange data. Returns the answers by
        address.

        Stops at the first failure and raises it.
        """
        return {
            address: await self.ask(address, code, header, body, role="name server")
            for address in self.required_name_servers()
        }

    async def change_each(
        self,
        addresses: Iterable[str],
        action: str,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        detail: str = "",
        timeout_s: float | None = None,
    ) -> Changed:
        """Request the same change from each server, even after one has failed.

        Raises ``PartlyDoneError`` if only some servers accepted it, or the first failure if none did.
        """
        done: list[str] = []
        failures: dict[str, OrbitError] = {}
        for address in self.each("servers", addresses):
            try:
                await self.ask(address, code, header, body, timeout_s=timeout_s)
                done.append(address)
            except OrbitError as error:
                failures[address] = error
        if failures and done:
            raise PartlyDoneError(done, failures)
        for failure in failures.values():
            raise failure
        return Changed(changes=[Change(target=address, action=action, detail=detail) for address in done])

    def required_name_servers(self) -> list[str]:
        """Returns the addresses of the name servers. Raises ``NoNameServerError`` if none was given."""
        if not self.name_servers:
            raise NoNameServerError("no name server is given")
        return self.name_servers

    # -- who is where ----------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """Returns clusters, broker names and addresses."""
        answer = await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = ClusterInfo.decode(answer.body)
        brokers = info.broker_addr_table.values()
        self._members = frozenset(address for data in brokers for address in data.broker_addrs.values())
        self._members_until_s = self.clock.monotonic() + _MEMBERS_S
        return info

    async def route(self, topic: str) -> TopicRoute:
        """Returns the route of a topic. Raises ``TopicNotFound``."""
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        answer = await self.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return decode_route(answer.body)

    async def addresses_of_topic(self, topic: str) -> list[tuple[str, str]]:
        """Returns the name and the best address of every broker that has the topic. Raises ``TopicNotFound``."""
        route = await self.route(topic)
        found = [(data.broker_name, best_address(data)) for data in route.broker_datas]
        return [(name, address) for name, address in found if address is not None]

    async def addresses_of_group(self, group: str) -> list[tuple[str, str]]:
        """Returns the name and the best address of every broker that has the group. Raises ``UnknownNameError``."""
        try:
            return await self.addresses_of_topic(retry_topic(group))
        except TopicNotFound:
            raise UnknownNameError("consumer group", group) from None

    async def broker_names(self, cluster: str) -> list[str]:
        """Returns the broker names of a cluster, sorted. Raises ``UnknownNameError``."""
        info = await self.cluster_info()
        names = info.cluster_addr_table.get(cluster)
        if not names:
            raise UnknownNameError("cluster", cluster, info.cluster_addr_table)
        return sorted(names)

    async def brokers_of_cluster(self, cluster: str) -> list[BrokerData]:
        """Returns the brokers of a cluster, sorted by name. Raises ``UnknownNameError``."""
        info = await self.cluster_info()
        names = info.cluster_addr_table.get(cluster)
        if not names:
            raise UnknownNameError("cluster", cluster, info.cluster_addr_table)
        return [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]

    async def broker_data(self, name: str) -> BrokerData:
        """Returns the addresses behind a broker name. Raises ``UnknownNameError``."""
        info = await self.cluster_info()
        data = info.broker_addr_table.get(name)
        if data is None:
            raise UnknownNameError("broker", name, info.broker_addr_table)
        return data

    async def address(self, broker: str) -> str:
        """Returns the address of a broker that is given by address or name.

        For a name it is the master's address, or that of any replica if there is no master. Raises
        ``UnknownNameError``.
        """
        if ":" in broker:
            return broker
        found = best_address(await self.broker_data(broker))
        if found is None:
            raise UnknownNameError("broker", broker)
        return found

    async def targets(self, broker: str | None, cluster: str | None, *, slaves: bool = False) -> list[str]:
        """Returns the addresses that a change applies to: one broker, the masters of a cluster, or with ``slaves``
        all its brokers.
        """
        if broker is not None:
            return [await self.address(broker)]
        assert cluster is not None, "a broker or a cluster is needed"
        addresses = [
            address
            for data in await self.brokers_of_cluster(cluster)
            for broker_id, address in sorted(data.broker_addrs.items())
            if slaves or broker_id == MASTER_ID
        ]
        if not addresses:
            raise UnreachableError("brokers of cluster", cluster, "none of them has a master")
        return addresses

    async def name_of(self, address: str) -> str:
        """Returns the broker name of an address. Raises ``UnknownNameError``."""
        info = await self.cluster_info()
        for name, data in info.broker_addr_table.items():
            if address in data.broker_addrs.values():
                return name
        known = [a for data in info.broker_addr_table.values() for a in data.broker_addrs.values()]
        raise UnknownNameError("broker", address, known)

    def each(self, what: str, items: Iterable[str]) -> Iterable[str]:
        """Iterate over ``items`` and report the progress of ``what``."""
        waiting = list(items)
        for done, item in enumerate(waiting):
            self.progress(what, done, len(waiting))
            yield item
        self.progress(what, len(waiting), len(waiting))
