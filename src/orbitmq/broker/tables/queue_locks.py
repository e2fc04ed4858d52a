"""Locks that let one client of a group consume a queue in order (Apache: RebalanceLockManager).

Locks are kept only in memory. After a restart, clients lock their queues again. They renew locks every 20 s, long
before they expire.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.limits import Bound
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.clock import Clock

__all__ = ["QueueLocks"]


class _Lock(msgspec.Struct, gc=False):
    client_id: str
    renewed_ms: int


class QueueLocks:
    """The locks by group and queue."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self.bound = Bound(
            "queue locks", "maxQueueLocks", lambda: self._count, lambda: config.queue_locks_max
        )

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock every available queue, or renew its lock. Returns the queues that the client now holds, in the
        requested order. Raises ``InvalidParameter`` if there are too many locks; locks acquired before the error are
        kept, and expire unless they are renewed."""
        now_ms = self._clock.now_ms()
        horizon_ms = now_ms - self._config.lock_expiry_ms
        held = self._groups.get(group, {})
        got: dict[MessageQueue, None] = {}
        for queue in queues:
            lock = held.get(queue)
            if lock is None:
                self.bound.check(f"queue {queue.queue_id} of topic {queue.topic} is not locked")
                self._count += 1
                held = self._groups.setdefault(group, held)
                held[queue] = _Lock(client_id, now_ms)
            elif lock.client_id == client_id or lock.renewed_ms < horizon_ms:
                lock.client_id = client_id
                lock.renewed_ms = now_ms
            else:
                continue
            got[queue] = None
        return list(got)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks that the client holds. Queues that another client holds stay locked."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
                self._count -= 1
        if not held:
            del self._groups[group]

    def any_held(self, group: str) -> bool:
        """Whether the group holds a lock that has not expired."""
        held = self._groups.get(group)
        if not held:
            return False
        horizon_ms = self._clock.now_ms() - self._config.lock_expiry_ms
        return any(lock.renewed_ms >= horizon_ms for lock in held.values())

    def expire(self) -> None:
        """Remove expired locks, so that groups that no longer exist use no memory."""
        horizon_ms = self._clock.now_ms() - self._config.lock_expiry_ms
        for group, held in list(self._groups.items()):
            for queue, lock in list(held.items()):
                if lock.renewed_ms < horizon_ms:
                    del held[queue]
                    self._count -= 1
            if not held:
                del self._groups[group]
