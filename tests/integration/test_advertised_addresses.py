"""Clients of two networks reach the same broker, each through its own name server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.test_namesrv import config
from tests.support.ports import free_ports

from orbitmq.admin import Admin
from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.client import Message, Producer
from orbitmq.errors import ConfigError
from orbitmq.namesrv.advertised import read_addresses
from orbitmq.namesrv.server import NameServer
from orbitmq.store.config import StoreConfig
from orbitmq.testing.chaos_proxy import ChaosProxy


def test_clients_inside_and_outside_reach_the_broker_by_different_addresses(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_ports(-2, 1)[0]
        registered = f"localhost:{port}"
        async with ChaosProxy("127.0.0.1", port) as gateway:
            advertised = f"{registered}={gateway.address};10.0.0.9:1=10.0.0.9:2"
            async with (
                NameServer(config()) as inside,
                NameServer(config(advertised_addresses=advertised)) as outside,
                Broker(
                    BrokerConfig(
                        name_servers=f"{inside.address};{outside.address}",
                        public_host="localhost",
                        bind_host="127.0.0.1",
                        listen_port=port,
                    ),
                    StoreConfig(root=str(tmp_path), segment_bytes=1 << 20),
                ),
            ):
                for names, address in ((inside, registered), (outside, gateway.address)):
                    async with Producer("g", names.address) as producer:
                        result = await producer.send(Message("T", "x"))
                        assert producer._instance.book.master_address(result.queue.broker_name) == address
                    async with Admin(names.address) as admin:
                        [broker] = (await admin.cluster_info()).broker_addr_table.values()
                        assert broker.broker_addrs == {0: address}

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["a:1", "a:1=b", "a=b:1", "a:1=b:x"])
def test_malformed_advertised_address_stops_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="advertisedAddresses"):
        read_addresses(f"a:1=b:2;{text}")
