"""Assembles, starts and stops the broker (Apache: BrokerController).

It creates the events and all parts, and passes each part its collaborators. The order of start and stop is a
contract:

- start: bind ports, load metadata, open and recover the store, build handlers, serve, start jobs, register.
- stop: unregister, refuse new connections, answer waiting pulls, drain connections, stop jobs, save metadata, close
  the store (flush, checkpoint, remove the abort file).
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import socket
from types import TracebackType
from typing import Final, Self

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.context import BrokerContext
from orbitmq.broker.delivery.deliveries import Deliveries
from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.delivery.flushed_reads import FlushedReads
from orbitmq.broker.delivery.parking import Parking
from orbitmq.broker.delivery.pull_waiters import TICK_S
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.delivery.transactions import Transactions
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.failover.coordinator import Failover
from orbitmq.broker.failover.parts import FailoverParts
from orbitmq.broker.handlers.pull_runs import PullRuns
from orbitmq.broker.handlers.send import SEND_CODES
from orbitmq.broker.last_saves import LastSaves
from orbitmq.broker.live_config import LiveConfig
from orbitmq.broker.pop.service import PopService
from orbitmq.broker.ports import BrokerPorts
from orbitmq.broker.registration import Registration
from orbitmq.broker.replication.master import ReplicaServer
from orbitmq.broker.replication.metadata_sync import KeptTable, MetadataSync, SyncedTables
from orbitmq.broker.request_handlers import RequestHandlers, ServedParts
from orbitmq.broker.roles import Peers, RoleSwitch
from orbitmq.broker.scrubbing import ROUND_S, Scrubbing
from orbitmq.broker.security import MoreOptions, Security, Seen
from orbitmq.broker.statistics.metrics import SIZES_S, BrokerMetrics
from orbitmq.broker.statistics.slow_consumers import SLOW_CHECK_S, SlowConsumers
from orbitmq.broker.statistics.stats import SAMPLE_S, BrokerStats
from orbitmq.broker.tables.broker_tables import BrokerTables
from orbitmq.broker.tables.clients import PeerInfo
from orbitmq.metrics.endpoint import MetricsEndpoint, Pages
from orbitmq.metrics.requests import RequestTimes
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.record.hosts import encode_host
from orbitmq.requests import RequestCode, refusals
from orbitmq.requests import Server as RequestServer
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock, ClockSteps, ForwardClock
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.runtime.network import join_address, literal_address, own_address
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore, StoreOwner
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute, Route, Router
from orbitmq.transport.server import Listener, Server, ServerLimits
from orbitmq.transport.tls import ServerTls, client_tls, server_tls
from orbitmq.wire import bodies

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

_ACL_RELOAD_S: Final = 2.0
"""Seconds between checks of the access lists of 4.x for changes. Apache checks every 5 s."""


class Broker:
    """One broker process. ``async with Broker(...)`` starts and stops it."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        fs: FileSystem = LOCAL_FILE_SYSTEM,
        tls: ServerTls | None = None,
        config_file: str | None = None,
        more: MoreOptions | None = None,
    ) -> None:
        """Changes that requests make to options are saved in ``config_file``, if given. Raises ``ConfigError``."""
        self.config = config
        self.store_config = store_config
        self._clock = ForwardClock(clock)
        self._fs = fs
        self._more = more if more is not None else MoreOptions()
        self._tls = tls if tls is not None else server_tls(self._more.tls)
        self._client_tls = client_tls(self._more.tls)
        self._config_file = None if config_file is None else SafeFile(fs, config_file)
        self._tasks = TaskOwner("broker", on_failure=self._job_died, watched=True)
        self._failed: asyncio.Future[BaseException] | None = None
        self._started = False
        self.metrics: MetricsEndpoint | None = None
        """The metrics endpoint, or None if it is disabled."""

    # -- start -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind the ports, recover the store, and serve. Raises ``OSError``, ``ConfigError`` and
        ``CorruptionError``."""
        ports = BrokerPorts.take(self.config)
        self.config = self.config.with_ports(ports.listen_port, ports.ha_port)
        try:
            await self._open(ports)
        except BaseException:
            ports.close()
            if self.metrics is not None:
                await self.metrics.stop()
            raise

    async def _open(self, ports: BrokerPorts) -> None:
        config = self.config
        self._failed = asyncio.get_running_loop().create_future()
        host = config.public_host or own_address()
        self.address = join_address(host, config.listen_port)
        self.ha_address = join_address(config.ha_public_host or host, config.ha_listen_port)
        self.events = BrokerEvents()
        self._build_tables(encode_host(literal_address(host), config.listen_port))
        await self.registration.refuse_second_master(self.address)
        self.store.open()  # recovery of a large store takes seconds; no client is served yet
        self._clock.at_least(self.store.last_store_ms)
        self._build_replication()
        self._build_deliveries()
        self._build_roles()
        await self._serve(await self._measured(self._build_handlers(), ports.metrics), ports)
        self._start_jobs()
        await self.registration.start(self.address, self.ha_address)
        if self.failover is not None:
            self.failover.start()
        self._started = True
        logger.info(
            "broker started name=%s id=%d address=%s", config.broker_name, config.broker_id, self.address
        )

    def _metadata_file(self, name: str) -> SafeFile:
        return SafeFile(self._fs, posixpath.join(self.store_config.root, "config", name))

    def _build_tables(self, store_host: bytes) -> None:
        """Create the parts that exist before the store is opened: the tables, the statistics, the access control and
        the registration."""
        config, clock, events = self.config, self._clock, self.events
        self.tables = tables = BrokerTables.load(config, clock, self._metadata_file, events, self._tasks)
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        self.stats = BrokerStats(config.cluster_name, clock.now_ms(), is_system=tables.topics.is_system)
        events.topic_deleted.append(self.stats.forget_topic)
        events.group_deleted.append(self.stats.forget_group)
        self.store = MessageStore(
            self.store_config,
            store_host=store_host,
            fs=self._fs,
            clock=clock,
            post=asyncio.get_running_loop().call_soon_threadsafe,
            owner=StoreOwner(events.arrived, tables.filters.bitmap),
        )
        seen = Seen(self.store, tables.groups.configs, tables.topics.configs)
        self.security = Security.of(self._more.auth, config, seen, fs=self._fs, clock=clock)
        self.security.load()
        self.registration = Registration(
            config,
            tables.topics,
            events,
            tls=self._client_tls,
            sign=self.security.signer,
            filter_servers=tables.filter_servers.addresses,
        )

    def _build_replication(self) -> None:
        """Create the parts that decide when a message may be acknowledged and read."""
        config, store, events = self.config, self.store, self.events
        self._group: FailoverParts | None = None
        if config.failover_enabled:
            self._group = FailoverParts.of(config, store, self._metadata_file("failover.json"), events)
        else:
            FlushedReads(config, store, events)
        protection = self.security.stream_protection(config, self._more.tls, self._tls, self._clock)
        group = None if self._group is None else self._group.replicas()
        self._replicas = ReplicaServer(config, store, events, protection, group)
        mastership = None if self._group is None else self._group.mastership
        self.gate = AckGate(store, self._replicas.acks, mastership)

    def _build_deliveries(self) -> None:
        config, store, clock, events = self.config, self.store, self._clock, self.events
        levels = DelayLevels(self.store_config.delay_levels)
        steps = ClockSteps(clock, lambda: store.max_log_offset)
        self.puts = puts = WritePath(
            store=store, parking=Parking(config, levels, steps, clock), stats=self.stats, gate=self.gate
        )
        tables = self.tables
        self._context = BrokerContext(config, store, tables, puts, self.stats, clock, events)
        self.schedule = Schedule(
            config=config,
            store=store,
            puts=puts,
            stats=self.stats,
            file=self._metadata_file("delayOffset.json"),
            clock=clock,
            events=events,
        )
        self.schedule.load()
        self.transactions = Transactions(
            config=config,
            store=store,
            store_host=store.host,
            topics=tables.topics,
            offsets=tables.offsets,
            producers=tables.producers,
            puts=puts,
            stats=self.stats,
            clock=clock,
            may_check=self.security.may_publish,
        )
        self.timers = Timers(config=config, store=store, puts=puts, fs=self._fs, clock=clock, events=events)
        self.pop = PopService(
            config=config,
            store=store,
            store_host=store.host,
            puts=puts,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            stats=self.stats,
            order_file=self._metadata_file("consumerOrderInfo.json"),
            clock=clock,
            events=events,
            is_pulled=tables.modes.is_pulled,
        )
        self.pop.load()
        self._deliveries = Deliveries(
            schedule=self.schedule,
            timers=self.timers,
            transactions=self.transactions,
            pop=self.pop,
            store=store,
            clock=clock,
            events=events,
        )

    def _build_roles(self) -> None:
        config, store, events, tables = self.config, self.store, self.events, self.tables
        self._rpc = RpcClient(tls=self._client_tls, sign=self.security.signer)
        self._timer_counts = KeptTable(self._metadata_file("timermetrics"), bodies.TimerMetrics)
        self._timer_counts.load()
        synced = SyncedTables(
            tables.topics,
            tables.groups,
            tables.offsets,
            self.schedule,
            self.timers,
            self.security.table if self.security.copies_from_master else None,
            {
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: tables.modes,
                RequestCode.GET_TIMER_METRICS: self._timer_counts,
            },
        )
        group_log = None if self._group is None else self._group.alignment
        self.roles = RoleSwitch(
            config=config,
            store=store,
            clock=self._clock,
            sync=MetadataSync(config=config, tables=synced, rpc=self._rpc, store=store, events=events),
            peers=Peers(self._rpc, self._replicas, self.registration.group_addresses, group_log),
            deliveries=self._deliveries,
            events=events,
        )
        self.failover: Failover | None = None
        if self._group is not None:
            self.failover = Failover(config, store, self._group, self.roles, self.gate, events)

    def _build_handlers(self) -> list[Route | RawRoute]:
        parts = ServedParts(
            deliveries=self._deliveries,
            roles=self.roles,
            failover=self.failover,
            security=self.security,
            registration=self.registration,
            live_config=self._live_config(),
            timer_counts=self._timer_counts,
        )
        self._handlers = handlers = RequestHandlers(
            self._context,
            parts,
            limits=self._more.limits,
            rpc=self._rpc,
            fs=self._fs,
            address=self.address,
        )
        self._send, self._pull, self._pop = handlers.send, handlers.pull, handlers.pop
        return handlers.routes()

    def _live_config(self) -> LiveConfig:
        # Effective values of options that were left to the broker.
        effective = {
            "brokerIP1": self.address.rpartition(":")[0],
            "brokerIP2": self.ha_address.rpartition(":")[0],
            "storePathCommitLog": ",".join(self.store_config.log_directories),
            # Not options here, but exportConfigs and exportMetrics of mqadmin look them up.
            "useTLS": "true" if self._client_tls is not None else "false",
            "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
        }
        live = LiveConfig(
            self.config,
            (self.store_config, self._more.auth, self._more.tls, self._more.limits),
            clock=self._clock,
            file=self._config_file,
            effective=effective,
            events=self.events,
            change_role=self._change_role,
        )
        live.kept.update(self._more.kept)
        return live

    async def _change_role(self, role: BrokerRole, broker_id: int, accept_loss: bool) -> None:
        if self.failover is None:
            await self.roles.change(role, broker_id)
        else:
            await self.failover.change_role(role, broker_id, accept_loss=accept_loss)

    # -- serve -----------------------------------------------------------------------------------------

    async def _serve(self, routes: list[Route | RawRoute], ports: BrokerPorts) -> None:
        reasons = refusals(RequestServer.BROKER, {int(route.code) for route in routes})
        sends = (self._send.read_ended, self.security.guard, self._handlers.append_pending)
        pulls, accept = PullRuns(self._pull, self.store.reader, sends[1]), self._send.accept
        self.main_router = Router(routes, reasons, *sends, pulls.runs() | self._pop.runs(sends[1]), accept)
        fast = Router([route for route in routes if route.fast_port], reasons, *sends, {}, accept)
        self._server = Server(
            [
                Listener(self.config.bind_host, 0, router, bound)
                for router, bound in zip((self.main_router, fast), ports.served, strict=False)
            ],
            limits=ServerLimits(held_bytes=self._more.limits.connection_memory_bytes),
            tls=self._tls,
            on_open=self._opened,
            on_close=self.tables.connection_closed,
            awake_for=SEND_CODES,
        )
        await self._server.start()
        await self.roles.start(ports.ha, self.address, self.ha_address)

    def _opened(self, connection: Connection) -> None:
        connection.attachment = PeerInfo.of(connection)

    def local_connection(self) -> Connection:
        return self._server.local_connection()  # the broker's end of a connection inside this process

    async def _measured(
        self, routes: list[Route | RawRoute], bound: socket.socket | None
    ) -> list[Route | RawRoute]:
        """Serve the metrics if they are enabled. Returns the routes, which then also measure the duration of their
        requests."""
        config = self.config
        if config.metrics_exporter != "PROM":
            return routes
        requests, tables = RequestTimes(self._clock), self.tables
        metrics = BrokerMetrics(
            config=config,
            store=self.store,
            stats=self.stats,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            consumers=tables.consumers,
            producers=tables.producers,
            transactions=self.transactions,
            timers=self.timers,
            schedule=self.schedule,
            pop=self.pop,
            roles=self.roles,
            gate=self.gate,
            requests=requests,
            clock=self._clock,
            fs=self._fs,
            bounds=(tables.filters.bound, tables.locks.bound),
            connection_count=lambda: len(self._server.connections),
            waiting_pulls=lambda: self._pull.waiters.count,
        )
        pages = Pages(metrics.families, not_alive=self._not_alive, not_ready=self._not_ready)
        self.metrics = MetricsEndpoint(
            config.metrics_host, config.metrics_port, pages, bound, token=config.metrics_token
        )
        await self.metrics.start()
        self._tasks.start(every(SIZES_S, metrics.sizes.look), "message-sizes")
        return requests.timed(routes)

    def _not_alive(self) -> str:
        if self._failed is not None and self._failed.done():
            return f"a part of the broker died: {self._failed.result()}"
        return ""

    def _not_ready(self) -> str:
        if not self._started:
            return "the broker is starting or stopping"
        if not self.store.writable and not self.config.is_slave:
            return f"the store takes no messages: {self.store.unwritable_reason}"
        if self.config.name_server_list and not self.registration.known_count:
            return "this broker is not registered with any name server"
        return ""

    # -- jobs ------------------------------------------------------------------------------------------

    def _start_jobs(self) -> None:
        start, tables, config = self._tasks.start, self.tables, self.config
        start(every(TICK_S, self.store.tick), "store")
        start(every(TICK_S, self._pull.waiters.tick), "pull-waiters")
        start(every(config.offset_flush_interval_ms / 1000, self.pop.save_offsets, first_s=10.0), "offsets")
        start(every(10.0, tables.expire), "client-expiry")
        start(every(10.0, tables.save_again), "tables")
        start(every(10.0, tables.filters.persist), "filters")
        if self.security.acl_files is not None:
            start(every(_ACL_RELOAD_S, self.security.acl_files.reload), "access-lists")
        start(every(15.0, tables.consumers.send_collected_notices), "notices")
        start(every(SAMPLE_S, lambda: self.stats.sample(self._clock.now_ms())), "stats")
        slow = SlowConsumers(config=config, offsets=tables.offsets, groups=tables.groups, store=self.store)
        start(every(SLOW_CHECK_S, slow.check), "slow-consumers")
        scrubbing = Scrubbing(self.store, self._fs, self._metadata_file("scrub.json"), self._clock)
        start(every(ROUND_S, scrubbing.round), "scrubber")

    # -- stop ------------------------------------------------------------------------------------------

    def _job_died(self, error: BaseException) -> None:
        """Make ``failure`` return ``error``, because a background job must never end."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(error)

    async def failure(self) -> BaseException:
        """Wait until the broker cannot continue. Returns the cause."""
        assert self._failed is not None
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Stop all parts in order. Takes about a second, or at most ten if something hangs. Raises ``SaveRefused`` at
        the end if a final save failed."""
        if not self._started:
            return
        self._started = False
        await self.registration.stop()
        await self._server.stop_accepting()
        self._pull.waiters.release_all()
        self._pop.release_all()
        self._handlers.append_pending()
        await self._server.stop(wait_s=3.0)
        self._handlers.append_pending()  # oneway requests buffered until the connections closed
        saves = LastSaves()
        if self.failover is not None:
            await saves.stop("failover.json", self.failover.stop)
        await saves.stop("deliveries", self.roles.stop)
        if self.metrics is not None:
            await self.metrics.stop()
        await self._tasks.close()
        self.tables.save_last(saves)
        saves.save("store", self.store.close)
        logger.info("broker stopped name=%s address=%s", self.config.broker_name, self.address)
        saves.check()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
