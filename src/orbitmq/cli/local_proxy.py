"""A broker with a proxy inside its process (Apache: proxyMode LOCAL)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.proxy.config import ProxyConfig
    from orbitmq.proxy.server import Proxy

__all__ = ["BrokerAndProxy", "broker_and_proxy", "local_proxy_config", "proxy_text"]


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerAndProxy:
    """What runs."""

    broker: Broker
    proxy: Proxy | None


def local_proxy_config(file: str) -> ProxyConfig:
    """Settings of a proxy inside a broker. Raises ``ConfigError``."""
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
    """Run both, the proxy last and first to end: its calls need no socket to reach the broker."""
    async with broker() as running:
        if config is None:
            yield BrokerAndProxy(running, None)
            return
        from orbitmq.proxy.brokers import LocalBroker
        from orbitmq.proxy.server import Proxy

        local = LocalBroker(running.config.broker_name, running.address, running.local_connection)
        known = config.name_servers or running.config.name_servers
        proxy = Proxy(
            dataclasses.replace(config, name_servers=known, cluster_name=running.config.cluster_name),
            local=local,
        )
        async with proxy:
            yield BrokerAndProxy(running, proxy)


def proxy_text(proxy: Proxy | None) -> str:
    """What a ready line says of it."""
    return "" if proxy is None else f", gRPC {proxy.address}"
