"""Loads and saves the tables that clients and operators fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.last_saves import LastSaves
from orbitmq.broker.tables.clients import ConsumerTable, ProducerTable
from orbitmq.broker.tables.consumer_filters import ConsumerFilters
from orbitmq.broker.tables.filter_servers import FilterServers
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.broker.tables.request_modes import RequestModes
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.runtime.clock import Clock, SteadyClock
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.connection import Connection

__all__ = ["BrokerTables"]


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """All tables of one broker."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    filters: ConsumerFilters
    modes: RequestModes
    consumers: ConsumerTable
    producers: ProducerTable
    locks: QueueLocks
    filter_servers: FilterServers
    lease_clock: SteadyClock
    """The clock of all leases, which setting the machine's clock must not end."""

    @classmethod
    def load(
        cls,
        config: BrokerConfig,
        clock: Clock,
        file: Callable[[str], SafeFile],
        events: BrokerEvents,
        tasks: TaskOwner,
    ) -> BrokerTables:
        """Returns the tables, loaded from their files. ``file`` maps a name to a file of the configuration folder.
        Raises ``CorruptionError`` and ``OSError``."""
        steady = SteadyClock(clock)
        tables = cls(
            topics=TopicTable(config, clock, file("topics.json"), events, tasks),
            groups=GroupTable(config, clock, file("subscriptionGroup.json"), events, tasks),
            offsets=ConsumerOffsets(config, clock, file("consumerOffset.json")),
            filters=ConsumerFilters(config, clock, file("consumerFilter.json"), events),
            modes=RequestModes(config, file("messageRequestMode.json")),
            consumers=ConsumerTable(config, steady, events),
            producers=ProducerTable(config, steady),
            locks=QueueLocks(config, steady),
            filter_servers=FilterServers(config, steady, events),
            lease_clock=steady,
        )
        for table in (tables.topics, tables.offsets, tables.groups, tables.filters, tables.modes):
            table.load()
        return tables

    def expire(self) -> None:
        """Remove clients and filter servers that have been silent too long, and expired queue locks."""
        for table in (self.producers, self.consumers, self.locks, self.filter_servers):
            table.expire()

    def connection_closed(self, connection: Connection) -> None:
        for table in (self.producers, self.consumers, self.filter_servers):
            table.connection_closed(connection)

    def save_again(self) -> None:
        """Retry failed saves of the tables that are saved whenever they change."""
        self.topics.persist()
        self.groups.persist()

    def save_last(self, saves: LastSaves) -> None:
        saves.save("topics.json", self.topics.persist)
        saves.save("subscriptionGroup.json", self.groups.persist)
        saves.save("consumerOffset.json", self.offsets.persist)
        saves.save("consumerFilter.json", self.filters.persist)
