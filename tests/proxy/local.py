"""A name server, a broker and a proxy inside it, in this process, on a loop of their own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitmq.broker.broker import Broker
from orbitmq.cli.local_proxy import BrokerAndProxy, broker_and_proxy
from orbitmq.cli.servers import read_broker_settings, read_config
from orbitmq.client.sync import LoopThread
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.proxy.config import read_proxy_config
from orbitmq.proxy.server import Proxy

__all__ = ["LocalStack", "local_stack"]


@dataclass(frozen=True, slots=True)
class LocalStack:
    name_server: str
    broker: str
    endpoint: str
    proxy: Proxy
    inside: Broker
    loop: LoopThread


@contextlib.contextmanager
def local_stack(
    directory: Path, proxy: dict[str, str] | None = None, **settings: Any
) -> Iterator[LocalStack]:
    """``proxy`` has settings of the proxy, ``settings`` are the broker's."""
    loop = LoopThread()
    servers = _servers(directory, proxy or {}, settings)
    try:
        name_server, broker, both = loop.run(anext(servers))
        try:
            assert both.proxy is not None
            yield LocalStack(name_server, broker, both.proxy.address, both.proxy, both.broker, loop)
        finally:
            loop.run(servers.aclose())
    finally:
        loop.close()


async def _servers(
    directory: Path, proxy: dict[str, str], settings: dict[str, Any]
) -> AsyncGenerator[tuple[str, str, BrokerAndProxy], None]:
    name_server_config, _, _ = read_config(
        NameServerConfig,
        None,
        ("listenPort=0", "bindAddress=127.0.0.1", f"kvConfigPath={directory / 'kvConfig.json'}"),
    )
    async with NameServer(name_server_config) as name_server:
        values = {
            "listenPort": 0,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": name_server.address,
            "storePathRootDir": str(directory / "store"),
            "mappedFileSizeCommitLog": 64 * 1024 * 1024,
            **settings,
        }
        texts = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in values.items()
        ]
        read = read_broker_settings(None, texts)
        config, _ = read_proxy_config(None, {"grpcServerPort": "0", "bindAddress": "127.0.0.1", **proxy})
        make = functools.partial(Broker, read.config, read.store_config, more=read.more)
        async with broker_and_proxy(make, config) as both:
            yield name_server.address, both.broker.address, both
