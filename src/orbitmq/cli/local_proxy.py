"""Runs a broker with a proxy inside its process (Apache: proxyMode LOCAL)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.proxy.access import Access
    from orbitmq.proxy.config import ProxyConfig
    from orbitmq.proxy.server import Proxy

__all__ = ["BrokerAndProxy", "broker_and_proxy", "local_proxy_config", "proxy_text"]


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerAndProxy:
    """A broker, and its proxy if it has one."""

    broker: Broker
    proxy: Proxy | None


def local_proxy_config(file: str) -> ProxyConfig:
    """Returns the settings of a proxy inside a broker. Raises ``ConfigError``."""
    try:
        from orbitmq.proxy.config import read_proxy_config
    except ImportError as error:
        raise ConfigError(f"a proxy needs the extra orbitmq[proxy]: {error}") from None
    config, _ = read_proxy_config(file)
    return config


@contextlib.asynccontextmanager
async def broker_and_proxy(
    broker: Callable[[], Broker], config: ProxyConfig | None
) -> AsyncIterator[BrokerAndProxy]:
    """Run a broker and its proxy. The proxy starts last and stops first, and calls the broker without a socket."""
    async with broker() as running:
        if config is None:
            yield BrokerAndProxy(running, None)
            return
        from orbitmq.proxy.brokers import LocalBroker
        from orbitmq.proxy.server import Proxy

        local = LocalBroker(running.config.broker_name, running.address, running.local_connection)
        proxy = Proxy(
            dataclasses.replace(
                config,
                name_servers=config.name_servers or running.config.name_servers,
                cluster_name=running.config.cluster_name,
                inner_credentials=_inner_credentials(running, config),
            ),
            local=local,
            access=_access(running, config),
        )
        async with proxy:
            yield BrokerAndProxy(running, proxy)


def _access(broker: Broker, config: ProxyConfig) -> Access | None:
    """Returns the broker's own access control for its proxy, or None without any.

    It consists of users and policies, or of 4.x access lists.
    """
    from orbitmq.proxy.access import ListedCalls, SignedCalls, SignedDates
    from orbitmq.runtime.clock import SYSTEM_CLOCK

    security = broker.security
    dates = SignedDates(config.signed_dates, SYSTEM_CLOCK)
    if security.control is not None:
        return SignedCalls(security.control, dates)
    return None if security.acl_files is None else ListedCalls(security.acl_files, dates)


def _inner_credentials(broker: Broker, config: ProxyConfig) -> str:
    """Returns the credentials for the proxy's own calls if the broker requires signatures. Raises ``ConfigError``."""
    if broker.security.guard is None or config.inner_credentials:
        return config.inner_credentials
    inner = broker.security.config.inner_user
    if inner is None:
        raise ConfigError(
            "a proxy inside a broker with access control needs innerClientAuthenticationCredentials for its own calls"
        )
    return json.dumps({"accessKey": inner.name, "secretKey": inner.secret})


def proxy_text(proxy: Proxy | None) -> str:
    """Returns the part of the ready line about the proxy; empty without one."""
    return "" if proxy is None else f", gRPC {proxy.address}"
