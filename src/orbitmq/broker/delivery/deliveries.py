"""Starts and stops everything that a master delivers later: delay levels, timers, transactions and POP
redeliveries."""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.delivery.transactions import Transactions
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.last_saves import LastSaves
from orbitmq.broker.pop.service import PopService
from orbitmq.runtime.clock import ForwardClock
from orbitmq.store.message_store import MessageStore

__all__ = ["Deliveries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliveries:
    """The delivery services of this broker, which run while it is master."""

    schedule: Schedule
    timers: Timers
    transactions: Transactions
    pop: PopService
    store: MessageStore
    clock: ForwardClock
    events: BrokerEvents

    def start(self) -> None:
        """Start all services at their saved cursors. Raises ``OSError``."""
        self.clock.at_least(self.store.last_store_ms)  # the previous master's clock may be ahead
        self.schedule.start()
        self.timers.start()
        self.transactions.start()
        self.pop.start(self.pop.offsets.saved_ms())

    async def stop(self) -> None:
        """Stop all services and save their cursors. Raises ``SaveRefused`` if a save failed, after all services have
        stopped."""
        self.events.deliveries_stopping()
        saves = LastSaves()
        await saves.stop("delayOffset.json", self.schedule.stop)
        await saves.stop("timers", self.timers.stop)
        await saves.stop("transactions", self.transactions.stop)
        await saves.stop("pop", self.pop.stop)
        saves.check()
