"""A name server and several brokers in this process, on a loop of their own; proxies come in front of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.apache.process import wait_until
from tests.apache.servers import remoting_call

from orbitmq.broker.broker import Broker
from orbitmq.cli.servers import read_broker_settings, read_config
from orbitmq.client.sync import LoopThread
from orbitmq.model.topic import TopicConfig
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode

__all__ = ["Cluster", "running_cluster"]


@dataclass(frozen=True, slots=True)
class Cluster:
    name_server: str
    brokers: list[Broker]
    loop: LoopThread

    @property
    def broker_names(self) -> list[str]:
        return [broker.config.broker_name for broker in self.brokers]

    def create(self, topic: str, group: str, *, queue_count: int = 2, kind: str = "NORMAL") -> None:
        """Make a topic on every broker; ``group`` has read nothing of it and begins at its start."""

        async def make() -> None:
            for broker in self.brokers:
                broker.topics.update(
                    TopicConfig(
                        topic_name=topic,
                        read_queue_nums=queue_count,
                        write_queue_nums=queue_count,
                        attributes={"message.type": kind},
                    )
                )
                for queue_id in range(queue_count):
                    broker.offsets.commit("test", group, topic, queue_id, 0)

        self.loop.run(make())
        wait_until(lambda: self._is_routed(topic), timeout_s=10, what=f"a route of {topic} to all brokers")

    def _is_routed(self, topic: str) -> bool:
        code, _, body = remoting_call(
            self.name_server, int(RequestCode.GET_ROUTEINFO_BY_TOPIC), {"topic": topic}
        )
        return code == 0 and all(name.encode() in body for name in self.broker_names)

    def open_count(self, topic: str, group: str) -> int:
        """Messages handed out and not acknowledged, or waiting to be delivered again."""

        async def count() -> int:
            return sum(_open_count(broker, topic, group) for broker in self.brokers)

        return self.loop.run(count())


def _open_count(broker: Broker, topic: str, group: str) -> int:
    found = sum(
        count for (_, owner), count in broker.pop.log.table.in_flight_of_groups().items() if owner == group
    )
    for name in broker.pop.retry_topics(topic, group):
        config = broker.topics.configs.get(name)
        for queue_id in range(config.read_queue_nums) if config is not None else ():
            read = max(0, broker.offsets.query(group, name, queue_id))
            found += broker.store.max_offset(name, queue_id) - read
    return found


@contextlib.contextmanager
def running_cluster(directory: Path, broker_count: int, *settings: str) -> Iterator[Cluster]:
    """``settings`` of the brokers, each KEY=VALUE."""
    loop = LoopThread()
    servers = _servers(directory, broker_count, settings)
    try:
        name_server, brokers = loop.run(anext(servers))
        try:
            yield Cluster(name_server, brokers, loop)
        finally:
            loop.run(servers.aclose())
    finally:
        loop.close()


async def _servers(
    directory: Path, broker_count: int, settings: tuple[str, ...]
) -> AsyncGenerator[tuple[str, list[Broker]], None]:
    config, _, _ = read_config(
        NameServerConfig,
        None,
        ("listenPort=0", "bindAddress=127.0.0.1", f"kvConfigPath={directory / 'kvConfig.json'}"),
    )
    async with contextlib.AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(NameServer(config))
        brokers = []
        for number in range(broker_count):
            read = read_broker_settings(
                None,
                [
                    f"brokerName=broker-{number}",
                    "listenPort=0",
                    "bindAddress=127.0.0.1",
                    "brokerIP1=127.0.0.1",
                    "brokerIP2=127.0.0.1",
                    f"namesrvAddr={name_server.address}",
                    f"storePathRootDir={directory / f'store-{number}'}",
                    "mappedFileSizeCommitLog=67108864",
                    "brokerFastFailureEnable=false",
                    *settings,
                ],
            )
            broker = Broker(read.config, read.store_config, more=read.more)
            brokers.append(await stack.enter_async_context(broker))
        yield name_server.address, brokers
