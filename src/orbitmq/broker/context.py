"""The objects that most parts of a running broker need."""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.broker_tables import BrokerTables
from orbitmq.runtime.clock import ForwardClock
from orbitmq.store.message_store import MessageStore

__all__ = ["BrokerContext"]


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The options, the store, the tables, the write path, the statistics, the clock and the events of one broker."""

    config: BrokerConfig
    store: MessageStore
    tables: BrokerTables
    puts: WritePath
    stats: BrokerStats
    clock: ForwardClock
    events: BrokerEvents
