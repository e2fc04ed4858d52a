"""Builds all request handlers of a broker with the collaborators they need, and their routes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orbitmq.broker.context import BrokerContext
from orbitmq.broker.delivery.deliveries import Deliveries
from orbitmq.broker.failover.coordinator import Failover
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
from orbitmq.broker.handlers.query import QueryHandlers
from orbitmq.broker.handlers.recall import RecallHandlers
from orbitmq.broker.handlers.reply import ReplyHandlers
from orbitmq.broker.handlers.send import SendHandlers
from orbitmq.broker.handlers.send_back import SendBackHandlers
from orbitmq.broker.handlers.send_checks import SendChecks
from orbitmq.broker.handlers.sync import SyncHandlers, SyncSources
from orbitmq.broker.handlers.topic_state import TopicInspection
from orbitmq.broker.handlers.topics import TopicHandlers
from orbitmq.broker.handlers.transactions import TransactionHandlers
from orbitmq.broker.live_config import LiveConfig
from orbitmq.broker.quotas import LimitsConfig
from orbitmq.broker.registration import Registration
from orbitmq.broker.replication.metadata_sync import KeptTable
from orbitmq.broker.roles import RoleSwitch
from orbitmq.broker.security import Security
from orbitmq.broker.statistics.runtime_info import RuntimeInfo, RuntimeSources
from orbitmq.broker.tables.consumer_filters import compile_subscription
from orbitmq.record.ids import UniqueKeys
from orbitmq.runtime.clock import month_of
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.transport.client import RpcClient
from orbitmq.transport.router import RawRoute, Route

__all__ = ["RequestHandlers", "ServedParts"]


class HasRoutes(Protocol):
    """The handlers of an area."""

    def routes(self) -> Sequence[Route | RawRoute]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedParts:
    """The parts of the broker on which requests act, apart from those in its context."""

    deliveries: Deliveries
    roles: RoleSwitch
    failover: Failover | None
    security: Security
    registration: Registration
    live_config: LiveConfig
    timer_counts: KeptTable


class RequestHandlers:
    """Builds all handlers. Those of sends, pulls and pops are kept as attributes, because they also finish work in
    bulk."""

    def __init__(
        self,
        context: BrokerContext,
        parts: ServedParts,
        *,
        limits: LimitsConfig,
        rpc: RpcClient,
        fs: FileSystem,
        address: str,
    ) -> None:
        """``address`` is the broker's own address. Raises ``ConfigError``."""
        self._context = context
        self._parts = parts
        self._rpc = rpc
        self._fs = fs
        self._address = address
        self._unique_keys = UniqueKeys(
            address=context.store.host[:-4],
            process_id=os.getpid(),
            process_constant=id(self) & 0x7FFFFFFF,
            now_ms=context.clock.now_ms,
            month_of=month_of,
        )
        self._checks = SendChecks(
            context.config, context.tables.topics, context.puts.gate, context.clock, limits, context.events
        )
        self.send = self._send_handlers()
        self.pull = self._pull_handlers()
        self._ends = TransactionHandlers(parts.deliveries.transactions)
        self.pop = PopHandlers(
            service=parts.deliveries.pop,
            consumers=context.tables.consumers,
            sql_filters=context.tables.filters,
            revocation=parts.security.revocation,
        )

    def append_pending(self) -> None:
        """Append and answer the sends and commits that arrived in this turn of the event loop."""
        self.send.append_pending()
        self._ends.append_pending()

    def routes(self) -> list[Route | RawRoute]:
        """Returns the routes of all requests."""
        routes: list[Route | RawRoute] = [*self.send.routes(), *self.pull.routes(), *self.pop.routes()]
        for handlers in (
            *self._of_clients(),
            *self._of_messages(),
            *self._of_tables(),
            *self._of_operators(),
        ):
            routes += handlers.routes()
        return routes + self._parts.security.routes(self._context.config, self._address)

    # -- the paths of messages -------------------------------------------------------------------------

    def _send_handlers(self) -> SendHandlers:
        context, tables = self._context, self._context.tables
        return SendHandlers(
            config=context.config,
            store=context.store,
            store_host=context.store.host,
            topics=tables.topics,
            groups=tables.groups,
            locks=tables.locks,
            stats=context.stats,
            puts=context.puts,
            checks=self._checks,
            unique_keys=self._unique_keys,
            clock=context.clock,
            events=context.events,
            when_routed=self._parts.registration.when_settled,
        )

    def _pull_handlers(self) -> PullHandlers:
        context, tables = self._context, self._context.tables
        return PullHandlers(
            config=context.config,
            store=context.store,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            consumers=tables.consumers,
            stats=context.stats,
            clock=context.clock,
            events=context.events,
            revocation=self._parts.security.revocation,
            sql_filters=tables.filters,
        )

    def _of_messages(self) -> tuple[HasRoutes, ...]:
        context, tables = self._context, self._context.tables
        config, puts = context.config, context.puts
        return (
            SendBackHandlers(
                config=config,
                store=context.store,
                topics=tables.topics,
                groups=tables.groups,
                puts=puts,
                stats=context.stats,
            ),
            self._ends,
            RecallHandlers(config=config, topics=tables.topics, puts=puts, clock=context.clock),
            ReplyHandlers(
                config=config,
                store_host=context.store.host,
                producers=tables.producers,
                puts=puts,
                checks=self._checks,
                clock=context.clock,
            ),
            QueryHandlers(store=context.store, store_config=context.store.config, consumers=tables.consumers),
        )

    # -- clients ---------------------------------------------------------------------------------------

    def _of_clients(self) -> tuple[HasRoutes, ...]:
        context, tables = self._context, self._context.tables
        config, pop = context.config, self._parts.deliveries.pop
        return (
            ClientHandlers(
                config=config,
                clock=tables.lease_clock,
                topics=tables.topics,
                groups=tables.groups,
                consumers=tables.consumers,
                producers=tables.producers,
                known_elsewhere=(self._parts.registration.settled_soon,),
                compile_filter=compile_subscription,
                signer_of=self._parts.security.signer_of,
            ),
            OffsetHandlers(
                config=config,
                topics=tables.topics,
                groups=tables.groups,
                offsets=tables.offsets,
                store=context.store,
            ),
            LockHandlers(tables.locks),
            AssignmentHandlers(
                config=config,
                topics=tables.topics,
                groups=tables.groups,
                consumers=tables.consumers,
                modes=tables.modes,
                queues_of=RouteQueues(config, tables.topics, context.clock, self._rpc).of,
                on_pull=pop.move_retries,
            ),
            tables.filter_servers,
        )

    # -- tables ----------------------------------------------------------------------------------------

    def _of_tables(self) -> tuple[HasRoutes, ...]:
        context, tables, parts = self._context, self._context.tables, self._parts
        copied: list[Callable[[], Awaitable[None]]] = []
        if parts.failover is not None:
            copied.append(parts.failover.tables_copied)
        return (
            TopicHandlers(
                config=context.config,
                topics=tables.topics,
                offsets=tables.offsets,
                store=context.store,
                events=context.events,
                known_elsewhere=(parts.registration.settled, *copied),
            ),
            GroupHandlers(
                groups=tables.groups, offsets=tables.offsets, events=context.events, known_elsewhere=copied
            ),
            SyncHandlers(
                config=context.config,
                topics=tables.topics,
                groups=tables.groups,
                offsets=tables.offsets,
                sources=SyncSources(
                    delay_offsets=parts.deliveries.schedule.encode,
                    message_request_modes=tables.modes.encode,
                    timer_metrics=parts.timer_counts.encode,
                    timer_check_point=parts.deliveries.timers.encode,
                    master_info=parts.roles.master_info,
                    on_master_info=parts.roles.take_master_info,
                    on_tables_copied=parts.roles.take_copied,
                    on_slave=parts.security.slave_asked,
                    ha_status=parts.roles.status,
                    when_safe=context.puts.answer_when_all_safe,
                ),
            ),
        )

    # -- operators -------------------------------------------------------------------------------------

    def _of_operators(self) -> tuple[HasRoutes, ...]:
        context, tables, deliveries = self._context, self._context.tables, self._parts.deliveries
        config, store, stats = context.config, context.store, context.stats
        runtime_info = RuntimeInfo(
            config=config,
            store=store,
            stats=stats,
            clock=context.clock,
            fs=self._fs,
            sources=RuntimeSources(schedule=deliveries.schedule.progress, timer=deliveries.timers.facts),
        )
        return (
            *self._inspections(),
            StatsInspection(config=config, stats=stats, runtime_info=runtime_info.table),
            ResetHandlers(
                config=config,
                topics=tables.topics,
                groups=tables.groups,
                offsets=tables.offsets,
                consumers=tables.consumers,
                store=store,
                readable=context.events.readable,
            ),
            ConsumerCallHandlers(
                broker_name=config.broker_name,
                topics=tables.topics,
                groups=tables.groups,
                consumers=tables.consumers,
                store=store,
            ),
            MaintenanceHandlers(
                live_config=self._parts.live_config,
                topics=tables.topics,
                offsets=tables.offsets,
                consumers=tables.consumers,
                store=store,
            ),
        )

    def _inspections(self) -> tuple[HasRoutes, ...]:
        context, tables = self._context, self._context.tables
        broker_name, store, stats = context.config.broker_name, context.store, context.stats
        lags = Lags(
            broker_name=broker_name,
            offsets=tables.offsets,
            consumers=tables.consumers,
            store=store,
            popped=self._parts.deliveries.pop.log.table.in_flight,
        )
        return (
            ClientInspection(
                consumers=tables.consumers,
                producers=tables.producers,
                offsets=tables.offsets,
                topics=tables.topics,
                address=self._address,
            ),
            GroupInspection(
                address=self._address,
                lags=lags,
                topics=tables.topics,
                groups=tables.groups,
                offsets=tables.offsets,
                stats=stats,
            ),
            TopicInspection(
                broker_name=broker_name,
                topics=tables.topics,
                offsets=tables.offsets,
                store=store,
                stats=stats,
                clock=context.clock,
            ),
        )
