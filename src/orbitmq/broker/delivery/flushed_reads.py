"""Under SYNC_FLUSH consumers of a master read what is on its disk; with failover see ``failover.in_sync``.

What is not flushed is lost with the power of the machine, and its place in the queue goes to the next message. A
group that had read it would pass over that one, although it may be acknowledged. So a message is shown when its
producer may be told that it is stored: the flush wakes the readers of its queue, and not the append. Apache's
consumers read at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.held_arrivals import HeldArrivals
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode

__all__ = ["FlushedReads"]

_SYNC: Final = FlushMode.SYNC
_RETRY_S: Final = 1.0
"""After a flush that failed or took too long."""


class FlushedReads:
    """Between the arrivals of a store and those who wait for them."""

    def __init__(self, config: BrokerConfig, store: MessageStore, wake: Callable[[str, int], None]) -> None:
        """``wake`` is called for a queue with messages that consumers may read now."""
        self._config = config
        self._store = store
        self._wake = wake
        self._held = HeldArrivals()
        self._waiting = False
        self._hides = False

    def arrived(self, topic: str, queue_id: int) -> None:
        """A queue got messages. The role and the way of flushing may have changed since the last ones."""
        store = self._store
        if self._config.is_slave or store.flush_mode is not _SYNC:
            if self._hides:
                self._show_all()
            self._wake(topic, queue_id)
            return
        self._hides = True
        store.confirm_offset = store.flushed_offset
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
        flushed = self._store.confirm_offset = self._store.flushed_offset
        ready = self._held.take(flushed)
        if self._held and done:
            self._wait()  # more came during the flush
        elif self._held:
            self._waiting = True
            asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)
        for topic, queue_id in ready:
            self._wake(topic, queue_id)

    def _try_again(self) -> None:
        self._waiting = False
        if self._held:
            self._wait()

    def _show_all(self) -> None:
        self._hides = False
        self._store.confirm_offset = None
        for topic, queue_id in self._held.take(self._store.max_log_offset):
            self._wake(topic, queue_id)
