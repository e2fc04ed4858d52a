"""Limits consumers of a SYNC_FLUSH master to flushed messages. With failover, ``failover.in_sync`` does this instead.

A power failure loses unflushed messages, and the next message takes their queue offset. A group that had read a lost
message would skip the new one, even if that one is acknowledged. A message therefore becomes visible only when its
producer may be acknowledged. The readers of its queue are woken by the flush instead of the append. Apache lets
consumers read immediately.
"""

from __future__ import annotations

import asyncio
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.held_arrivals import HeldArrivals
from orbitmq.broker.events import BrokerEvents
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode

__all__ = ["FlushedReads"]

_SYNC: Final = FlushMode.SYNC
_RETRY_S: Final = 1.0
"""Delay after a flush that failed or timed out."""


class FlushedReads:
    """Emits ``readable`` for messages reported by ``arrived`` once they are flushed. The broker's own topics need not
    wait."""

    def __init__(self, config: BrokerConfig, store: MessageStore, events: BrokerEvents) -> None:
        self._config = config
        self._store = store
        self._readable = events.readable
        self._of_any, self._of_topic = events.readable.of_any, events.readable.of_topic
        self._held = HeldArrivals()
        self._waiting = False
        self._hides = False
        events.arrived.append(self.arrived)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Handle new messages in a queue. The role and the flush mode may have changed since the last call."""
        if self._store.config.flush_mode is not _SYNC or self._config.is_slave:
            if self._hides:
                self._show_all()
            # The same as calling ``readable``, in place because this runs for every append.
            for subscriber in self._of_any:
                subscriber(topic, queue_id)
            if topic in self._of_topic:
                self._of_topic[topic](queue_id)
            return
        store = self._store
        if topic in self._of_topic:
            self._readable(topic, queue_id)
            return
        self._hides = True
        store.limit_reads(store.flushed_offset)
        self._held.add(topic, queue_id, store.max_log_offset)
        self._wait()

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._store.when_flushed(self._store.max_log_offset, self._flushed)

    def _flushed(self, done: bool) -> None:
        self._waiting = False
        if not self._hides:
            return
        flushed = self._store.flushed_offset
        self._store.limit_reads(flushed)
        ready = self._held.take(flushed)
        if self._held and done:
            self._wait()  # more messages arrived during the flush
        elif self._held:
            self._waiting = True
            asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)
        for topic, queue_id in ready:
            self._readable(topic, queue_id)

    def _try_again(self) -> None:
        self._waiting = False
        if self._held:
            self._wait()

    def _show_all(self) -> None:
        self._hides = False
        self._store.limit_reads(None)
        for topic, queue_id in self._held.take(self._store.max_log_offset):
            self._readable(topic, queue_id)
