"""Keeps the filter servers of this broker (Apache up to 4.2: FilterServerManager).

A filter server registers every few seconds. Name servers include the addresses in routes, and consumers with a class
filter pull from one of these servers instead of the broker. ``filterServerNums`` limits how many may register; the
default is 0.
"""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.errors import ConnectionLostError, InvalidParameter, NoPermission
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.transport.client import split_address
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.headers.filtersrv import RegisterFilterServerRequest, RegisterFilterServerResponse

__all__ = ["FilterServers"]

logger = logging.getLogger(__name__)

SILENCE_MS_MAX: Final = 30_000


class FilterServers:
    """The filter servers that are registered with this broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, events: BrokerEvents) -> None:
        self._config = config
        self._clock = clock
        self._seen: dict[str, tuple[int, Connection]] = {}
        self._changed = events.announcement_changed

    def addresses(self) -> list[str]:
        return sorted(self._seen)

    def routes(self) -> list[Route]:
        return [Route(RequestCode.REGISTER_FILTER_SERVER, self.register, RegisterFilterServerRequest)]

    def register(self, call: Call[RegisterFilterServerRequest]) -> Reply:
        address = call.header.filter_server_addr
        if address not in self._seen:
            if len(self._seen) >= self._config.filter_servers_max:
                raise NoPermission(
                    f"at most {self._config.filter_servers_max} filter servers may register with this broker "
                    "(filterServerNums)"
                )
            try:
                split_address(address)
            except ConnectionLostError as error:
                raise InvalidParameter(f"filter server: {error}") from None
        is_new = address not in self._seen
        self._seen[address] = (self._clock.now_ms(), call.peer)
        if is_new:
            logger.info("filter server registered address=%s", address)
            self._changed()
        return Reply(
            header=RegisterFilterServerResponse(
                broker_name=self._config.broker_name, broker_id=self._config.broker_id
            )
        )

    def expire(self) -> None:
        """Remove filter servers that have been silent too long."""
        horizon_ms = self._clock.now_ms() - SILENCE_MS_MAX
        self._forget(
            [address for address, (seen_ms, _) in self._seen.items() if seen_ms < horizon_ms], "silent"
        )

    def connection_closed(self, connection: Connection) -> None:
        gone = [address for address, (_, peer) in self._seen.items() if peer is connection]
        self._forget(gone, "connection closed")

    def _forget(self, addresses: list[str], reason: str) -> None:
        for address in addresses:
            del self._seen[address]
            logger.info("filter server disconnected address=%s reason=%s", address, reason)
        if addresses:
            self._changed()
