"""Assembles, starts and stops the broker (Apache: BrokerController, without the god object).

Imports all parts and passes each the two or three collaborators it needs. The order of start and stop is a contract:

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
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.delivery.flushed_reads import FlushedReads
from orbitmq.broker.delivery.parking import Parking
from orbitmq.broker.delivery.pull_waiters import TICK_S
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.delivery.transactions import Transactions
from orbitmq.broker.failover.coordinator import Failover
from orbitmq.broker.failover.in_sync import InSyncSet
from orbitmq.broker.handlers.assignment import AssignmentHandlers, RouteQueues
from orbitmq.broker.handlers.broker_state import StatsInspection
from orbitmq.broker.handlers.client_connections import ClientInspection
from orbitmq.broker.handlers.clients import ClientHandlers
from orbitmq.broker.handlers.consumer_calls import ConsumerCallHandlers, ResetHandlers
from orbitmq.broker.handlers.group_progress import GroupInspection, Lags
from orbitmq.broker.handlers.groups import GroupHandlers
from orbitmq.broker.handlers.locks import LockHandlers
from orbitmq.broker.handlers.maintenance import MaintenanceHandlers
from orbitmq.broker.handlers.offsets import OffsetHandlers
from orbitmq.broker.handlers.pop import PopHandlers
from orbitmq.broker.handlers.pull import PullHandlers
from orbitmq.broker.handlers.pull_runs import PullRuns
from orbitmq.broker.handlers.query import QueryHandlers
from orbitmq.broker.handlers.recall import RecallHandlers
from orbitmq.broker.handlers.reply import ReplyHandlers
from orbitmq.broker.handlers.send import SEND_CODES, SendHandlers
from orbitmq.broker.handlers.send_back import SendBackHandlers
from orbitmq.broker.handlers.send_checks import SendChecks
from orbitmq.broker.handlers.sync import SyncHandlers, SyncSources
from orbitmq.broker.handlers.topic_state import TopicInspection
from orbitmq.broker.handlers.topics import TopicHandlers
from orbitmq.broker.handlers.transactions import TransactionHandlers
from orbitmq.broker.last_saves import LastSaves
from orbitmq.broker.live_config import LiveConfig
from orbitmq.broker.pop.service import PopService
from orbitmq.broker.ports import BrokerPorts
from orbitmq.broker.quotas import Quotas
from orbitmq.broker.registration import Registration
from orbitmq.broker.replication.master import ReplicaServer
from orbitmq.broker.replication.metadata_sync import Delays, KeptTable, MetadataSync
from orbitmq.broker.replication.protection import StreamProtection
from orbitmq.broker.roles import RoleSwitch
from orbitmq.broker.scrubbing import ROUND_S, Scrubbing
from orbitmq.broker.security import MoreOptions, Security
from orbitmq.broker.statistics.metrics import SIZES_S, BrokerMetrics
from orbitmq.broker.statistics.runtime_info import RuntimeInfo, RuntimeSources
from orbitmq.broker.statistics.slow_consumers import SLOW_CHECK_S, SlowConsumers
from orbitmq.broker.statistics.stats import SAMPLE_S, BrokerStats
from orbitmq.broker.tables.clients import ConsumerTable, PeerInfo, ProducerTable
from orbitmq.broker.tables.consumer_filters import ConsumerFilters, compile_subscription
from orbitmq.broker.tables.filter_servers import FilterServers
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.broker.tables.request_modes import RequestModes
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.metrics.endpoint import MetricsEndpoint, Pages
from orbitmq.metrics.requests import RequestTimes
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from orbitmq.record.hosts import encode_host
from orbitmq.record.ids import UniqueKeys
from orbitmq.requests import RequestCode, refusals
from orbitmq.requests import Server as RequestServer
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock, ForwardClock, SteadyClock, month_of
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM, FileSystem
from orbitmq.runtime.network import join_address, literal_address, own_address
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import RawRoute, Route, Router
from orbitmq.transport.server import Listener, Server, ServerLimits
from orbitmq.transport.tls import ServerTls, client_tls, server_tls
from orbitmq.wire import bodies

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

_ROUTED_S: Final = 1.0
"""How long a topic's first send, or a group's first heartbeat, waits for name servers. Clients wait longer."""
_ACL_RELOAD_S: Final = 2.0
"""Interval at which the access lists of 4.x are checked for changes; Apache's is 5 s."""


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
        """Options changed by requests are saved in ``config_file``. Raises ``ConfigError``."""
        self.config = config
        self.store_config = store_config
        self._clock = ForwardClock(clock)
        self._fs = fs
        self._more = more if more is not None else MoreOptions()
        self._tls = tls if tls is not None else server_tls(self._more.tls)
        self._client_tls = client_tls(self._more.tls)
        self._stream = StreamProtection()
        if config.replication_tls:
            self._stream = StreamProtection.of(self._more.tls, self._tls, self._more.auth)
        self._config_file = None if config_file is None else SafeFile(fs, config_file)
        self._tasks = TaskOwner("broker", on_failure=self._job_died, watched=True)
        self._failed: asyncio.Future[BaseException] | None = None
        self._started = False
        self.metrics: MetricsEndpoint | None = None
        """The metrics endpoint, if enabled."""

    async def start(self) -> None:
        """Bind the ports, recover the store, and serve. Raises ``OSError``, ``ConfigError``, ``CorruptionError``."""
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
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        host = config.public_host or own_address()
        self.address = join_address(host, config.listen_port)
        self.ha_address = join_address(config.ha_public_host or host, config.ha_listen_port)
        store_host = encode_host(literal_address(host), config.listen_port)
        self._load_metadata()
        self.stats = BrokerStats(config.cluster_name, self._clock.now_ms(), is_system=self.topics.is_system)
        await self.registration.refuse_second_master(self.address)
        self.store = MessageStore(
            self.store_config,
            store_host=store_host,
            fs=self._fs,
            clock=self._clock,
            post=loop.call_soon_threadsafe,
            on_arrival=self._arrived_in_group if config.failover_enabled else self._arrived,
        )
        self.store.filter_bitmap = self.filters.bitmap
        self.store.open()  # recovery of a large store takes seconds; no client is served yet
        self._clock.at_least(self.store.last_store_ms)
        self._flushed_reads = FlushedReads(config, self.store, self._readable)
        self.security.protect(self._stream, config, self._clock)
        self._replicas = ReplicaServer(config, self.store, self._stream)
        self.gate = AckGate(self.store, self._replicas.acks)
        levels = DelayLevels(self.store_config.delay_levels)
        self.puts = WritePath(
            store=self.store,
            parking=Parking(config, levels, self._clock),
            stats=self.stats,
            gate=self.gate,
        )
        self._build_deliveries(store_host, levels)
        self._build_roles()
        self._on_arrival = {
            SCHEDULE_TOPIC: self.schedule.arrived,
            TIMER_TOPIC: self.timers.arrived,
            self.pop.log.topic: self.pop.log.arrived,
        }
        self._build_hot_handlers(store_host)
        routes = await self._measured(self._build_handlers(store_host), ports.metrics)
        await self._serve(routes, ports)
        self._start_jobs()
        await self.registration.start(self.address, self.ha_address)
        if self.failover is not None:
            self.failover.start()
        self._started = True
        logger.info(
            "broker started name=%s id=%d address=%s", config.broker_name, config.broker_id, self.address
        )

    def _build_deliveries(self, store_host: bytes, levels: DelayLevels) -> None:
        config = self.config
        self.schedule = Schedule(
            config=config,
            store=self.store,
            levels=levels,
            puts=self.puts,
            stats=self.stats,
            file=self._metadata_file("delayOffset.json"),
            clock=self._clock,
        )
        self.schedule.load()
        self.transactions = Transactions(
            config=config,
            store=self.store,
            store_host=store_host,
            topics=self.topics,
            offsets=self.offsets,
            producers=self.producers,
            puts=self.puts,
            stats=self.stats,
            clock=self._clock,
            may_check=self.security.may_publish,
        )
        self.timers = Timers(config=config, store=self.store, puts=self.puts, fs=self._fs, clock=self._clock)
        self._modes = RequestModes(config, self._metadata_file("messageRequestMode.json"))
        self._modes.load()
        self.pop = PopService(
            config=config,
            store=self.store,
            store_host=store_host,
            puts=self.puts,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            stats=self.stats,
            order_file=self._metadata_file("consumerOrderInfo.json"),
            clock=self._clock,
            is_pulled=self._modes.is_pulled,
        )
        self.pop.load()

    async def _serve(self, routes: list[Route | RawRoute], ports: BrokerPorts) -> None:
        reasons = refusals(RequestServer.BROKER, {int(route.code) for route in routes})
        self.security.see(self.store, self.groups.configs, self.topics.configs, self.config)
        self.security.recheck(self._pull.waiters, self._pop.waiters, self._pop.notified)
        sends = (self._send.read_ended, self.security.guard, self._append_pending)
        pulls = PullRuns(self._pull, self.store.reader, sends[1])
        self.main_router = Router(routes, reasons, *sends, pulls.runs() | self._pop.runs(sends[1]))
        fast = Router([route for route in routes if route.fast_port], reasons, *sends)
        self._server = Server(
            [
                Listener(self.config.bind_host, 0, router, bound)
                for router, bound in zip((self.main_router, fast), ports.served, strict=False)
            ],
            limits=ServerLimits(held_bytes=self._more.limits.connection_memory_bytes),
            tls=self._tls,
            on_open=self._opened,
            on_close=self._closed,
            awake_for=SEND_CODES,
        )
        await self._server.start()
        await self.roles.start(ports.ha, self.address, self.ha_address)

    async def _measured(
        self, routes: list[Route | RawRoute], bound: socket.socket | None
    ) -> list[Route | RawRoute]:
        """Serve the metrics if they are enabled; returns the routes, which then also measure their requests."""
        if self.config.metrics_exporter != "PROM":
            return routes
        requests = RequestTimes(self._clock)
        metrics = BrokerMetrics(
            config=self.config,
            store=self.store,
            stats=self.stats,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            consumers=self.consumers,
            producers=self.producers,
            transactions=self.transactions,
            timers=self.timers,
            schedule=self.schedule,
            pop=self.pop,
            roles=self.roles,
            gate=self.gate,
            requests=requests,
            clock=self._clock,
            fs=self._fs,
            bounds=(self.filters.bound, self.locks.bound),
            connection_count=lambda: len(self._server.connections),
            waiting_pulls=lambda: self._pull.waiters.count,
        )
        pages = Pages(metrics.families, not_alive=self._not_alive, not_ready=self._not_ready)
        self.metrics = MetricsEndpoint(self.config.metrics_host, self.config.metrics_port, pages, bound)
        self.metrics.token = self.config.metrics_token
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

    def _build_roles(self) -> None:
        self._rpc = rpc = RpcClient(tls=self._client_tls)
        rpc.sign = self.security.signer
        self._timer_counts = KeptTable(self._metadata_file("timermetrics"), bodies.TimerMetrics)
        self._timer_counts.load()
        sync = MetadataSync(
            config=self.config,
            topics=self.topics,
            offsets=self.offsets,
            delays=Delays(self.schedule, self.timers),
            groups=self.groups,
            rpc=rpc,
            store=self.store,
        )
        sync.kept[RequestCode.GET_ALL_MESSAGE_REQUEST_MODE] = self._modes
        sync.kept[RequestCode.GET_TIMER_METRICS] = self._timer_counts
        sync.users = self.security.table if self.security.copies_from_master else None
        self.roles = RoleSwitch(
            config=self.config,
            store=self.store,
            clock=self._clock,
            rpc=rpc,
            sync=sync,
            replicas=self._replicas,
            listener=self,
        )
        self.roles.follower.protection = self._replicas.protection
        self.roles.group_addresses = self.registration.group_addresses
        self.roles.repair.wake = self._readable
        self.topics.on_version = self.groups.on_version = self._replicas.tables_changed
        self.failover: Failover | None = None
        if self.config.failover_enabled:
            in_sync = InSyncSet(self.config, self.store, lambda: self._replicas.links, self._readable)
            self.failover = Failover(
                config=self.config,
                store=self.store,
                roles=self.roles,
                gate=self.gate,
                in_sync=in_sync,
                file=self._metadata_file("failover.json"),
                on_elected=self._elected,
            )

    def _elected(self, epoch: int) -> None:
        """Publish the topics under the new epoch, which lets name servers distinguish the new master from the old."""
        self.topics.state_version = epoch
        self.topics.touch()

    async def _change_role(self, role: BrokerRole, broker_id: int, accept_loss: bool) -> None:
        if self.failover is None:
            await self.roles.change(role, broker_id)
        else:
            await self.failover.change_role(role, broker_id, accept_loss=accept_loss)

    def role_changed(self) -> None:
        """Register under the new role and drop everything derived from the old one."""
        self._send.options_changed()
        self.registration.refresh()

    def _metadata_file(self, name: str) -> SafeFile:
        return SafeFile(self._fs, posixpath.join(self.store_config.root, "config", name))

    def _load_metadata(self) -> None:
        config = self.config
        file = self._metadata_file
        self.topics = TopicTable(
            config,
            self._clock,
            file("topics.json"),
            on_change=lambda topic: self.registration.topic_changed(topic),
            registered=lambda: self.registration.settled(wait_s=_ROUTED_S),
        )
        self.groups = GroupTable(config, self._clock, file("subscriptionGroup.json"))
        self.offsets = ConsumerOffsets(config, self._clock, file("consumerOffset.json"))
        for table in (self.topics, self.offsets, self.groups):
            table.load()
        self.security = Security.of(
            self._more.auth, config, self.store_config, fs=self._fs, clock=self._clock
        )
        self.security.load()
        self.filters = ConsumerFilters(config, self._clock, file("consumerFilter.json"))
        self.filters.load()
        self._steady = steady = SteadyClock(self._clock)  # setting the clock must not end leases
        self.consumers = ConsumerTable(
            config,
            steady,
            on_subscribe=self.filters.subscribed,
            on_group_gone=self.filters.group_gone,
        )
        self.producers = ProducerTable(config, steady)
        self.locks = QueueLocks(config, steady)
        self.filter_servers = FilterServers(config, steady, on_change=lambda: self.registration.refresh())
        self.registration = Registration(
            config,
            self.topics,
            tls=self._client_tls,
            sign=self.security.signer,
            on_master=lambda address, ha_address: self.roles.master_announced(address, ha_address),
            filter_servers=self.filter_servers.addresses,
        )

    def _build_hot_handlers(self, store_host: bytes) -> None:
        config = self.config
        unique_keys = UniqueKeys(
            address=store_host[:-4],
            process_id=os.getpid(),
            process_constant=id(self) & 0x7FFFFFFF,
            now_ms=self._clock.now_ms,
            month_of=month_of,
        )
        self._send_checks = SendChecks(config, self.topics, self.gate, self._clock)
        self._quotas = Quotas(self._more.limits, self._clock.monotonic)
        self._send_checks.quotas = self._quotas if self._quotas.enabled else None
        self._send = SendHandlers(
            config=config,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            stats=self.stats,
            puts=self.puts,
            checks=self._send_checks,
            locks=self.locks,
            store_host=store_host,
            unique_keys=unique_keys,
            clock=self._clock,
            when_routed=self._when_routed,
        )
        self._pull = PullHandlers(
            config=config,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            consumers=self.consumers,
            stats=self.stats,
            clock=self._clock,
            sql_filters=self.filters,
        )
        self._pop = PopHandlers(service=self.pop, consumers=self.consumers, sql_filters=self.filters)

    def _build_handlers(self, store_host: bytes) -> list[Route | RawRoute]:
        config = self.config
        self._transaction_ends = TransactionHandlers(self.transactions)
        handlers = (
            ClientHandlers(
                config=config,
                clock=self._steady,
                topics=self.topics,
                groups=self.groups,
                consumers=self.consumers,
                producers=self.producers,
                compile_filter=compile_subscription,
                signer_of=self.security.signer_of,
            ),
            OffsetHandlers(
                config=config,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                store=self.store,
            ),
            LockHandlers(self.locks),
            SendBackHandlers(
                config=config,
                store=self.store,
                topics=self.topics,
                groups=self.groups,
                puts=self.puts,
                stats=self.stats,
            ),
            self._transaction_ends,
            RecallHandlers(config=config, topics=self.topics, puts=self.puts, clock=self._clock),
            ReplyHandlers(
                config=config,
                store_host=store_host,
                producers=self.producers,
                puts=self.puts,
                checks=self._send_checks,
                clock=self._clock,
            ),
            TopicHandlers(
                config=config,
                topics=self.topics,
                offsets=self.offsets,
                store=self.store,
                on_deleted=self._topic_deleted,
                registered=lambda: self.registration.settled(),
                copied=None if self.failover is None else self.failover.tables_copied,
            ),
            self._group_handlers(),
            self._sync_handlers(),
            self._assignment_handlers(),
            self.filter_servers,
        )
        routes: list[Route | RawRoute] = [*self._send.routes(), *self._pull.routes(), *self._pop.routes()]
        for handler in handlers:
            routes += handler.routes()
        routes += self.security.routes(config, self.address)
        return routes + self._admin_routes()

    def _group_handlers(self) -> GroupHandlers:
        handlers = GroupHandlers(groups=self.groups, offsets=self.offsets, on_deleted=self.stats.forget_group)
        handlers.copied = None if self.failover is None else self.failover.tables_copied
        return handlers

    def _topic_deleted(self, topic: str) -> None:
        self.stats.forget_topic(topic)
        self._pull.waiters.topic_deleted(topic)

    def _assignment_handlers(self) -> AssignmentHandlers:
        return AssignmentHandlers(
            config=self.config,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            modes=self._modes,
            queues_of=RouteQueues(self.config, self.topics, self._clock, self._rpc).of,
            on_pull=self.pop.move_retries,
        )

    def _sync_handlers(self) -> SyncHandlers:
        return SyncHandlers(
            config=self.config,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            sources=SyncSources(
                delay_offsets=self.schedule.encode,
                message_request_modes=self._modes.encode,
                timer_metrics=self._timer_counts.encode,
                timer_check_point=self.timers.encode,
                master_info=self.roles.master_info,
                on_master_info=self.roles.take_master_info,
                on_tables_copied=self.roles.take_copied,
                on_slave=self.security.slave_asked,
                ha_status=self.roles.status,
                when_safe=self.puts.answer_when_all_safe,
            ),
        )

    def _admin_routes(self) -> list[Route]:
        """Routes of requests from operators: queries, inspection, maintenance."""
        config = self.config
        lags = Lags(
            broker_name=config.broker_name,
            offsets=self.offsets,
            consumers=self.consumers,
            store=self.store,
            popped=self.pop.log.table.in_flight,
        )
        runtime_info = RuntimeInfo(
            config=config,
            store=self.store,
            stats=self.stats,
            clock=self._clock,
            fs=self._fs,
            sources=RuntimeSources(schedule=self.schedule.progress, timer=self.timers.facts),
        )
        handlers = (
            QueryHandlers(store=self.store, store_config=self.store_config, consumers=self.consumers),
            ClientInspection(
                consumers=self.consumers,
                producers=self.producers,
                offsets=self.offsets,
                topics=self.topics,
                address=self.address,
            ),
            GroupInspection(
                address=self.address,
                lags=lags,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                stats=self.stats,
            ),
            TopicInspection(
                broker_name=config.broker_name,
                topics=self.topics,
                offsets=self.offsets,
                store=self.store,
                stats=self.stats,
                clock=self._clock,
            ),
            StatsInspection(config=config, stats=self.stats, runtime_info=runtime_info.table),
            ResetHandlers(
                config=config,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                consumers=self.consumers,
                store=self.store,
                wake=self._pull.waiters.arrived,
            ),
            ConsumerCallHandlers(
                broker_name=config.broker_name,
                topics=self.topics,
                groups=self.groups,
                consumers=self.consumers,
                store=self.store,
            ),
            MaintenanceHandlers(
                live_config=self._live_config(),
                topics=self.topics,
                offsets=self.offsets,
                consumers=self.consumers,
                store=self.store,
            ),
        )
        return [route for handler in handlers for route in handler.routes()]

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
            on_change=self._options_changed,
            on_role=self._change_role,
        )
        live.kept.update(self._more.kept)
        return live

    def _options_changed(self, keys: frozenset[str]) -> None:
        self._send.options_changed()
        if any(key.startswith("quota") for key in keys):
            self._quotas.options_changed()
            self._send_checks.quotas = self._quotas if self._quotas.enabled else None
        if "brokerPermission" in keys:
            self.topics.touch()
            self.registration.refresh()

    def _arrived(self, topic: str, queue_id: int) -> None:
        (self._readable if topic in self._on_arrival else self._flushed_reads.arrived)(topic, queue_id)
        if self._replicas.links:
            self._replicas.wake()

    def _arrived_in_group(self, topic: str, queue_id: int) -> None:
        """Like ``_arrived``, with failover: messages that are not safe yet are sent to slaves but not readable."""
        assert self.failover is not None
        self._replicas.wake()
        self.failover.in_sync.arrived(topic, queue_id)

    def _readable(self, topic: str, queue_id: int) -> None:
        self._pull.waiters.arrived(topic, queue_id)
        self._pop.arrived(topic, queue_id)
        listener = self._on_arrival.get(topic)
        if listener is not None:
            listener(queue_id)

    def _when_routed(self, work: Callable[[], None]) -> None:
        """Call ``work`` once the name servers know the current topics, or after a short wait in any case."""

        async def later() -> None:
            await self.registration.settled(wait_s=_ROUTED_S)
            work()

        self._tasks.start(later(), "topic-routed")

    def _start_jobs(self) -> None:
        start = self._tasks.start
        self.topics.saves.tasks = self.groups.saves.tasks = self._tasks
        start(every(TICK_S, self.store.tick), "store")
        start(every(TICK_S, self._pull.waiters.tick), "pull-waiters")
        start(
            every(self.config.offset_flush_interval_ms / 1000, self.offsets.persist_aside, first_s=10.0),
            "offsets",
        )
        start(every(10.0, self._expire_clients), "client-expiry")
        start(every(10.0, self._save_again), "tables")
        start(every(10.0, self.filters.persist), "filters")
        if self.security.acl_files is not None:
            start(every(_ACL_RELOAD_S, self.security.acl_files.reload), "access-lists")
        start(every(15.0, self.consumers.send_collected_notices), "notices")
        start(every(SAMPLE_S, lambda: self.stats.sample(self._clock.now_ms())), "stats")
        slow = SlowConsumers(config=self.config, offsets=self.offsets, groups=self.groups, store=self.store)
        start(every(SLOW_CHECK_S, slow.check), "slow-consumers")
        scrubbing = Scrubbing(self.store, self._fs, self._metadata_file("scrub.json"), self._clock)
        start(every(ROUND_S, scrubbing.round), "scrubber")

    def start_deliveries(self) -> None:
        """Start the deliveries of a master: delayed messages, transactions, redeliveries. Raises ``OSError``."""
        self._clock.at_least(self.store.last_store_ms)  # the previous master's clock may be ahead
        self.schedule.start()
        self.timers.start()
        self.transactions.start()
        self.pop.start(self.offsets.saved_ms())

    async def stop_deliveries(self) -> None:
        """Stop the deliveries of a master. Raises ``SaveRefused`` after all have stopped."""
        self._pop.release_all()
        saves = LastSaves()
        await saves.stop("delayOffset.json", self.schedule.stop)
        await saves.stop("timers", self.timers.stop)
        await saves.stop("transactions", self.transactions.stop)
        await saves.stop("pop", self.pop.stop)
        saves.check()

    def _save_again(self) -> None:
        """Retry failed saves of tables, which are otherwise saved when they change."""
        self.topics.persist()
        self.groups.persist()

    def _expire_clients(self) -> None:
        for table in (self.producers, self.consumers, self.locks, self.filter_servers):
            table.expire()

    # -- connections -----------------------------------------------------------------------------------

    def _opened(self, connection: Connection) -> None:
        connection.attachment = PeerInfo.of(connection)

    def _closed(self, connection: Connection) -> None:
        for table in (self.producers, self.consumers, self.filter_servers):
            table.connection_closed(connection)

    def local_connection(self) -> Connection:
        return self._server.local_connection()  # the broker's end of a connection inside this process

    # -- stop ------------------------------------------------------------------------------------------

    def _job_died(self, error: BaseException) -> None:
        """Take the broker down because a background job must never end; keeps the reason."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(error)

    async def failure(self) -> BaseException:
        """Wait until the broker cannot continue; returns the cause."""
        assert self._failed is not None
        return await asyncio.shield(self._failed)

    def _append_pending(self) -> None:
        """Append and answer the sends and commits of this turn."""
        self._send.append_pending()
        self._transaction_ends.append_pending()

    async def stop(self) -> None:
        """Stop in order, in about a second when nothing hangs, at most ten. Raises ``SaveRefused`` at the end."""
        if not self._started:
            return
        self._started = False
        await self.registration.stop()
        await self._server.stop_accepting()
        self._pull.waiters.release_all()
        self._pop.release_all()
        self._append_pending()
        await self._server.stop(wait_s=3.0)
        self._append_pending()  # oneway requests buffered until the connections closed
        saves = LastSaves()
        if self.failover is not None:
            await saves.stop("failover.json", self.failover.stop)
        await saves.stop("deliveries", self.roles.stop)
        if self.metrics is not None:
            await self.metrics.stop()
        await self._tasks.close()
        saves.save("topics.json", self.topics.persist)
        saves.save("subscriptionGroup.json", self.groups.persist)
        saves.save("consumerOffset.json", self.offsets.persist)
        saves.save("consumerFilter.json", self.filters.persist)
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
