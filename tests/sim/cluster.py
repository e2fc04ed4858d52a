"""Simulated machines that run our name servers and brokers, on the simulated network, disks and clocks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.sim.etcd import SimEtcd, SimEtcdClient
from tests.sim.loop import Process, SimClock, SimLoop
from tests.sim.network import Network

from orbitmq.broker.broker import Broker
from orbitmq.cli.settings import read_broker_settings
from orbitmq.codes import Perm
from orbitmq.errors import CorruptionError
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode
from orbitmq.store.maintenance.flush import SyncWorker
from orbitmq.testing.faulty_fs import PAGE, FaultyFileSystem
from orbitmq.transport.client import RpcClient
from orbitmq.wire.headers import UpdateAndCreateTopicRequest

NAME_SERVER_HOSTS = ("10.0.0.1", "10.0.0.8")
NAME_SERVER = ";".join(f"{host}:9876" for host in NAME_SERVER_HOSTS)
SECTOR = 512
SEGMENT_BYTES = 128 * 1024
SUPERVISOR_S = 5.0
"""As in ``packaging/systemd``."""


class SimSyncWorker(SyncWorker):
    """Syncs the log without a thread; each sync takes as long as on a disk."""

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self._planned = False

    def want_sync(self) -> None:
        self._wanted = True
        self._plan()

    def submit(self, job: Iterator[None]) -> None:
        self._submitted += 1
        self._jobs.append(job)
        self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_later(self._loop.disk_delay(0.008), self._turn)

    def _turn(self) -> None:
        self._planned = False
        if self._wanted or self._jobs:  # otherwise ``drain`` has already done it
            self._guarded_step()
        if self._wanted or self._jobs:
            self._plan()

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:  # noqa: BLE001 - as at the edge of the thread
            self._failed(error)

    def drain(self) -> None:
        while self._wanted or self._jobs:
            self._guarded_step()

    def stop(self) -> None:
        self.drain()


class Machine:
    """A host with a disk and a clock; its process can be restarted any number of times."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.fs = FaultyFileSystem()
        self.clock = SimClock(world.loop)
        self.process: Process | None = None
        self.program: Callable[[Machine], Any] | None = None
        self.server: Any = None
        """The broker or name server that runs now."""
        self.incarnation = 0
        self.on_damage: Callable[[], None] | None = None
        """Called a while after a start refused the log as damaged."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Starts the program; it runs until it is killed or stops."""
        assert self.program is not None
        self.incarnation += 1
        self.world.network.host_is_back(self.host)
        self.process = Process(self.world.loop, f"{self.name}.{self.incarnation}", self.host)
        self.process.start(self._run(), "main")

    async def _run(self) -> None:
        assert self.program is not None
        try:
            await self.program(self)
        except Exception as error:  # noqa: BLE001 - a server that cannot start is a finding
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                # A broker does not start on a full disk, and is restarted as by systemd.
                process = self.process
                self.world.loop.call_later(SUPERVISOR_S, lambda: self._start_again(process))
                return
            if isinstance(error, CorruptionError) and self.on_damage is not None:
                self.world.loop.call_later(SUPERVISOR_S, self.on_damage)
                return
            self.world.failures.append(f"{self.name} did not start or died: {type(error).__name__}: {error}")

    def _start_again(self, process: Process | None) -> None:
        if self.process is process and process is not None and process.alive:
            self.kill()
            self.start()

    def kill(self) -> None:
        """Simulates kill -9: all written data is in the files."""
        self._end(silent=False)
        self.fs = self.fs.kill()

    def power_cut(self, share: float | None = None) -> None:
        """Drops unsynced data page by page; of some pages only the first sectors are on the disk. ``share`` of the
        unsynced pages survives; by default it is random.
        """
        chance = self.world.loop.chance
        share = chance.choice([0.0, 0.5, 0.9]) if share is None else share

        def survives(path: str, page: int) -> bool | int:
            if chance.random() >= share:
                return False
            return chance.randrange(SECTOR, PAGE, SECTOR) if page >= 0 and chance.random() < 0.2 else True

        if self.running:
            self._end(silent=True)
        self.fs = self.fs.power_cut(survives)

    def _end(self, *, silent: bool) -> None:
        process = self.process
        assert process is not None
        process.kill()
        self.world.network.process_died(process, silent=silent)
        self.server = None


class World:
    """The whole cluster."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.network = Network(self.loop)
        self.etcd = SimEtcd(self.loop, self.network)
        self.machines: dict[str, Machine] = {}
        self.failures: list[str] = []

    def machine(self, name: str, host: str, program: Callable[[Machine], Any]) -> Machine:
        machine = Machine(self, name, host)
        machine.program = program
        self.machines[name] = machine
        return machine

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Patches the few places that would touch the real machine."""
        with ExitStack() as stack:
            for place in (
                "orbitmq.transport.ports.bind_port",
                "orbitmq.transport.server.bind_port",
                "orbitmq.broker.ports.bind_port",
            ):
                stack.enter_context(mock.patch(place, self.network.bind))
            stack.enter_context(mock.patch("orbitmq.store.maintenance.flush.SyncWorker", SimSyncWorker))
            stack.enter_context(
                mock.patch(
                    "orbitmq.broker.failover.parts.EtcdClient",
                    lambda *args, **named: SimEtcdClient(self.etcd, named["timeout_s"]),
                )
            )
            yield


async def run_name_server(machine: Machine) -> None:
    config = NameServerConfig(
        listen_port=9876,
        bind_address=machine.host,
        kv_config_path="/data/kv.json",
        config_store_path="/data/c",
    )
    server = NameServer(config, clock=machine.clock, fs=machine.fs)
    await server.start()
    machine.server = server
    await asyncio.get_running_loop().create_future()


def broker_program(**settings: str | int | bool) -> Callable[[Machine], Any]:
    async def run(machine: Machine) -> None:
        values: dict[str, str | int | bool] = {
            "listenPort": 10911,
            "bindAddress": machine.host,
            "brokerIP1": machine.host,
            "brokerIP2": machine.host,
            "namesrvAddr": NAME_SERVER,
            "storePathRootDir": "/data/store",
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "mappedFileSizeConsumeQueue": 20 * 500,
            "mappedFileSizeTimerLog": 52 * 1000,
            "maxHashSlotNum": 200,
            "maxIndexNum": 800,
            "brokerFastFailureEnable": False,
            **settings,
        }
        texts = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in values.items()
        ]
        read = read_broker_settings(None, texts)
        broker = Broker(read.config, read.store_config, clock=machine.clock, fs=machine.fs, more=read.more)
        await broker.start()
        machine.server = broker
        error = await broker.failure()
        machine.world.failures.append(f"{machine.name} died: {error!r}")

    return run


async def create_topic(address: str, topic: str, queue_count: int) -> None:
    """Works like mqadmin's ``updateTopic``."""
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
        answer = await client.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_s=10.0)
        assert answer.code == 0, answer.remark
    finally:
        await client.close()
