"""Shows clients of one network the addresses at which they reach the brokers (``advertisedAddresses``).

Each broker registers one address, which is valid in its own network. A name server for clients elsewhere answers with
other addresses instead. Only the answers for clients are translated: routes and the list of the cluster's brokers.
Brokers find their master through registrations and member lists, which contain the registered addresses.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from orbitmq.errors import ConfigError, ConnectFailedError
from orbitmq.model.route import BrokerData, TopicRoute
from orbitmq.transport.client import split_address

__all__ = ["advertised_broker", "advertised_route", "read_addresses"]


def read_addresses(text: str) -> dict[str, str]:
    """Parses ``registered=advertised;...``, where each address has the form host:port. Raises ``ConfigError``."""
    addresses: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(";"))):
        registered, _, advertised = (part.strip() for part in pair.partition("="))
        try:
            split_address(registered)
            split_address(advertised)
        except ConnectFailedError:
            raise ConfigError(
                f"advertisedAddresses: {pair!r} is not of the form host:port=host:port"
            ) from None
        addresses[registered] = advertised
    return addresses


def advertised_broker(broker: BrokerData, addresses: Mapping[str, str]) -> BrokerData:
    """Returns the broker with its advertised addresses. Addresses that are not listed stay unchanged."""
    shown = {number: addresses.get(address, address) for number, address in broker.broker_addrs.items()}
    return msgspec.structs.replace(broker, broker_addrs=shown)


def advertised_route(route: TopicRoute, addresses: Mapping[str, str]) -> TopicRoute:
    """Returns the route with its advertised addresses."""
    brokers = [advertised_broker(broker, addresses) for broker in route.broker_datas]
    return msgspec.structs.replace(route, broker_datas=brokers)
