"""Sends that wait for slaves (Apache: GroupTransferService, handleHA).

Waiting sends are queued in log order, so a report always answers those at the front of the queue. ``inSyncReplicas``
sets the number of slaves that must have a message. With 0, a SYNC_MASTER behaves like 4.x: it waits for one slave,
and answers SLAVE_NOT_AVAILABLE immediately if none is connected and close enough. With n, it behaves like 5.x: it
waits for n - 1 slaves, and answers FLUSH_SLAVE_TIMEOUT after ``slaveTimeout``, no matter how many are connected. With
failover it waits for every member of the in-sync set, which may be the master alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.codes import ResponseCode

__all__ = ["AckWaiters", "InSync"]

AckCallback = Callable[[int], None]


class InSync(Protocol):
    """The in-sync set of a failover group."""

    @property
    def members(self) -> frozenset[int]:
        """The numbers of the members."""

    def safe_end(self) -> int:
        """Returns the log offset up to which every member has the log; -1 if a member is missing."""

    def progressed(self) -> None:
        """Called when a slave reports progress."""


class _Waiter(NamedTuple):
    log_end: int
    deadline: float
    callback: AckCallback


class AckWaiters:
    """Sends that a SYNC_MASTER answers after replication. Implements ``durability.Replication``."""

    def __init__(
        self,
        config: BrokerConfig,
        acknowledged: Callable[[], Iterable[int]],
        send_now: Callable[[], None],
        in_sync: InSync | None = None,
    ) -> None:
        """``acknowledged`` returns the log end that each connected slave has reported. ``send_now`` sends unsent
        bytes immediately when a request starts to wait. ``in_sync``, used only with failover, is the set whose
        members must have a message."""
        self._config = config
        self._acknowledged = acknowledged
        self._waiters: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.in_sync = in_sync
        self._send_now = send_now

    @property
    def required(self) -> bool:
        """See ``Replication.required``."""
        return self._config.role is BrokerRole.SYNC_MASTER and (
            self._config.in_sync_replicas != 1 or self.in_sync is not None
        )

    @property
    def needed_count(self) -> int:
        """Number of slaves that must have a message."""
        return max(1, self._config.in_sync_replicas - 1)

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    def when_replicated(self, log_end: int, callback: AckCallback) -> None:
        """See ``Replication.when_replicated``."""
        if self._config.in_sync_replicas == 0 and self.in_sync is None:
            newest = max(self._acknowledged(), default=-1)
            if newest < 0 or log_end - newest >= self._config.slave_gap_bytes_max:
                callback(ResponseCode.SLAVE_NOT_AVAILABLE)
                return
        if self.safe_end() >= log_end:
            callback(ResponseCode.SUCCESS)
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.slave_timeout_ms / 1000
        self._waiters.append(_Waiter(log_end, deadline, callback))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire)
        self._send_now()

    def reported(self) -> None:
        """Release waiting sends after a slave has reported progress."""
        if self.in_sync is not None:
            self.in_sync.progressed()
        if not self._waiters:
            return
        safe = self.safe_end()
        while self._waiters and self._waiters[0].log_end <= safe:
            self._waiters.popleft().callback(ResponseCode.SUCCESS)

    def safe_end(self) -> int:
        """Returns the log offset up to which enough slaves have the log; -1 if too few are connected."""
        if self.in_sync is not None:
            return self.in_sync.safe_end()
        ends = sorted(self._acknowledged(), reverse=True)
        needed = self.needed_count
        return ends[needed - 1] if len(ends) >= needed else -1

    def release_all(self) -> None:
        """Release all waiters because the broker is stopping or no longer master, so no report will arrive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiters:
            self._waiters.popleft().callback(ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        while self._waiters and self._waiters[0].deadline <= now:
            self._waiters.popleft().callback(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        if self._waiters:
            self._timer = loop.call_at(self._waiters[0].deadline, self._expire)
