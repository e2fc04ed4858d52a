"""A name server and a broker for a test: in this process, on free ports, with data that is deleted afterwards.

::

    from orbitmq.testing import run_broker

    with run_broker() as broker:
        producer = Producer("group", broker.name_server)

``broker.advance(timedelta(hours=1))`` moves the broker's clock ahead, so delays and retries take milliseconds.

The servers run on a thread of their own, for plain and asyncio tests alike.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from orbitmq.broker.broker import Broker
from orbitmq.cli.settings import read_broker_settings, read_config
from orbitmq.client.sync import LoopThread
from orbitmq.codes import Perm, ResponseCode
from orbitmq.errors import error_for_code
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode
from orbitmq.testing.turned_clock import TurnedClock
from orbitmq.transport.client import RpcClient
from orbitmq.wire.headers import UpdateAndCreateTopicRequest

__all__ = ["RunningBroker", "run_broker"]


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """The addresses and controls of the servers."""

    name_server: str
    """Address for producers and consumers."""
    address: str
    data: Path
    _loop: LoopThread = field(repr=False)
    _clock: TurnedClock = field(repr=False)
    _broker: Broker = field(repr=False)
    metrics: str | None = None
    """Address of the broker's metrics, with ``metricsExporterType="PROM"``."""

    def create_topic(self, topic: str, *, queue_count: int = 4) -> str:
        """Create a topic and return its name; it can be used immediately."""
        self._loop.run(self._create_topic(topic, queue_count))
        return topic

    def advance(self, by: timedelta | float) -> None:
        """Move the broker's clock ahead by a timedelta or by seconds. Delayed messages and retries that are then due
        are delivered immediately.

        The clients' clocks do not move. Delays of messages that are sent later count from the broker's new time.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self._loop.run(self._advance(round(seconds * 1000)))

    async def _advance(self, ms: int) -> None:
        self._clock.turn(ms)
        self._broker.schedule.look_again(ms)
        self._broker.timers.look_again()

    async def _create_topic(self, topic: str, queue_count: int) -> None:
        client = RpcClient()
        try:
            header = UpdateAndCreateTopicRequest(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                perm=int(Perm.READ | Perm.WRITE),
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
                order=False,
            )
            answer = await client.call(
                self.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_s=10.0
            )
            if answer.code != ResponseCode.SUCCESS:
                raise error_for_code(answer.code, answer.remark)
        finally:
            await client.close()


@contextlib.contextmanager
def run_broker(
    port: int = 0, *, name_server_port: int = 0, data: str | Path | None = None, **settings: str | int | bool
) -> Iterator[RunningBroker]:
    """Run both servers until the block ends. Port 0 chooses a free port.

    ``settings`` are broker options with Apache's names (``autoCreateTopicEnable=False``). With ``data``, the store is
    kept in that directory and reopened by the next run; otherwise it is deleted.
    """
    with contextlib.ExitStack() as stack:
        directory = (
            Path(data)
            if data is not None
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orbitmq-")))
        )
        directory.mkdir(parents=True, exist_ok=True)
        loop = LoopThread("orbitmq-broker")
        stack.callback(loop.close)
        servers = _servers(loop, directory, port, name_server_port, settings)
        try:
            yield loop.run(anext(servers))
        finally:
            loop.run(servers.aclose())


async def _servers(
    loop: LoopThread, directory: Path, port: int, name_server_port: int, settings: dict[str, str | int | bool]
) -> AsyncGenerator[RunningBroker, None]:
    clock = TurnedClock()
    name_server_config, _, _ = read_config(
        NameServerConfig,
        None,
        (
            f"listenPort={name_server_port}",
            "bindAddress=127.0.0.1",
            f"kvConfigPath={directory / 'kvConfig.json'}",
        ),
    )
    async with NameServer(name_server_config) as name_server:
        values: dict[str, str | int | bool] = {
            "listenPort": port,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": name_server.address,
            "storePathRootDir": str(directory / "store"),
            # Small files: a test stores little, and large ones take time to create.
            "mappedFileSizeCommitLog": 64 * 1024 * 1024,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            **settings,
        }
        texts = [f"{key}={_text(value)}" for key, value in values.items()]
        read = read_broker_settings(None, texts)
        async with Broker(read.config, read.store_config, clock=clock, more=read.more) as broker:
            metrics = None if broker.metrics is None else broker.metrics.address
            address = name_server.address
            yield RunningBroker(address, broker.address, directory, loop, clock, broker, metrics)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
