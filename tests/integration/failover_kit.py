"""A failover group in this process, with a bad network between its brokers and to etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from tests.apache.etcd import Etcd
from tests.integration.ha_kit import HOST, caught_up, gate_code, make_broker, put, until
from tests.support.ports import free_ports

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerRole
from orbitmq.broker.failover.coordinator import Failover
from orbitmq.codes import ResponseCode
from orbitmq.testing.chaos_proxy import ChaosProxy

PROXY_HOST = "127.0.0.2"
"""Where the proxies before the replication ports listen: the same port on another loopback address."""
TTL_S = 5
"""A group that nobody disturbs must stay whole when other processes hold the machine for two seconds."""
DEADLINE_S = 90.0
PATIENT: dict[str, Any] = {
    "lease_ttl_s": TTL_S,
    "replication_heartbeat_ms": 100,
    "replication_silence_ms": 3_000,
    "slave_timeout_ms": 2_000,
    "not_caught_up_ms": 3_000,
}
QUICK: dict[str, Any] = {
    "lease_ttl_s": 1,
    "replication_silence_ms": 600,
    "slave_timeout_ms": 300,
    "not_caught_up_ms": 1_000,
}
"""For tests of what holds whatever happens, and however often masters change."""


def on_uvloop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    unhandled: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(DEADLINE_S):
            await work()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
    assert not unhandled, unhandled


class Node:
    """One broker, the proxy in front of its replication port and the one to its etcd."""

    def __init__(self, number: int, root: Path, etcd: Etcd, options: dict[str, Any]) -> None:
        self.number = number
        self.root = root / f"b{number}"
        self._options = options
        self._ha_port = free_ports()[0]
        self.to_etcd = ChaosProxy(HOST, etcd.port)
        self.replication = ChaosProxy(HOST, self._ha_port, listen=(PROXY_HOST, self._ha_port))
        self.broker: Broker | None = None

    @property
    def running(self) -> Broker:
        assert self.broker is not None
        return self.broker

    @property
    def failover(self) -> Failover:
        assert self.running.failover is not None
        return self.running.failover

    @property
    def is_master(self) -> bool:
        return self.broker is not None and self.failover.acting and not self.broker.config.is_slave

    async def start(self) -> None:
        self.broker = make_broker(
            self.root,
            BrokerRole.SLAVE,
            self.number,
            failover_enabled=True,
            etcd_endpoints=self.to_etcd.address,
            ha_listen_port=self._ha_port,
            **self._options,
        )
        # Other brokers get the address of the proxy.
        object.__setattr__(self.broker.config, "ha_public_host", PROXY_HOST)
        await self.broker.start()

    async def stop(self) -> None:
        if self.broker is not None:
            broker, self.broker = self.broker, None
            await broker.stop()

    @property
    def proxies(self) -> tuple[ChaosProxy, ChaosProxy]:
        return self.to_etcd, self.replication

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.heal()

    def isolate(self) -> None:
        """Makes this broker's log unreachable, and etcd unreachable for it."""
        for proxy in self.proxies:
            proxy.accepting = False
            proxy.cut()


class Group:
    """The nodes of a group."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.acknowledged: list[bytes] = []
        self.sent = 0
        self.most_holders = 0

    @property
    def masters(self) -> list[Node]:
        return [node for node in self.nodes if node.is_master]

    async def master(self, timeout_s: float = 15.0) -> Node:
        await until(lambda: len(self.masters) == 1, "one master", timeout_s)
        return self.masters[0]

    async def send(self, node: Node, count: int, body: bytes = b"x" * 100) -> int:
        """Sends messages in bulk to one node, like a send handler; returns the code of the response."""
        broker = node.running
        if broker.config.is_slave:
            return ResponseCode.SYSTEM_BUSY
        bodies = [b"%d " % number + body for number in range(self.sent, self.sent + count)]
        put(broker, count, first=self.sent, body=body)
        self.sent += count
        code = await gate_code(broker)
        if code == ResponseCode.SUCCESS:
            self.acknowledged += bodies
        return code

    async def settled(self, timeout_s: float = 30.0) -> Node:
        """Waits for one master, with every member in sync and caught up."""
        numbers = {node.number for node in self.nodes if node.broker is not None}

        def whole() -> bool:
            masters = self.masters
            return (
                len(masters) == 1
                and masters[0].failover.in_sync.members == numbers
                and masters[0].failover.in_sync.safe_end() == masters[0].running.store.max_log_offset
                and all(
                    caught_up(masters[0].running, node.running)
                    for node in self.nodes
                    if node.broker is not None
                )
            )

        await until(whole, lambda: f"a whole group, is {[repr_of(node) for node in self.nodes]}", timeout_s)
        return self.masters[0]

    async def watch_holders(self) -> None:
        """Records how many brokers were certain to be master at the same time; all share one clock here."""
        while True:
            holders = sum(node.broker is not None and node.failover.holds() for node in self.nodes)
            self.most_holders = max(self.most_holders, holders)
            await asyncio.sleep(0.002)

    def fault(self, chance: random.Random) -> str:
        """Injects a random fault and returns its name. Some of the time it injects none, so that a master can be
        elected.
        """
        if chance.random() < 0.25:
            for node in self.nodes:
                node.heal()
            return "all well"
        node = chance.choice(self.nodes)
        proxy = chance.choice(node.proxies)
        what = "etcd" if proxy is node.to_etcd else "log"
        return f"{node.number}.{what}.{proxy.fault(chance)}"


def repr_of(node: Node) -> tuple[Any, ...]:
    if node.broker is None:
        return (node.number, "down")
    return (
        node.number,
        node.failover.acting,
        node.failover.epoch,
        sorted(node.failover.in_sync.members),
        node.broker.store.max_log_offset,
    )


@asynccontextmanager
async def group(root: Path, etcd: Etcd, *, count: int = 2, **options: Any) -> AsyncIterator[Group]:
    """A started group; its names in etcd are unique."""
    name = f"test-{random.getrandbits(64):x}"
    settings = {**PATIENT, "failover_group": name, **options}
    async with AsyncExitStack() as stack:
        nodes = [Node(number + 1, root, etcd, settings) for number in range(count)]
        for node in nodes:
            for proxy in node.proxies:
                await stack.enter_async_context(proxy)
        for node in nodes:
            stack.push_async_callback(node.stop)
            await node.start()
        yield Group(nodes)
