"""Sends that wait for slaves (Apache: GroupTransferService, handleHA).

Waiting sends stand in the order of the log, so those a report answers are always the first ones. The number of slaves
that must have a message comes from ``inSyncReplicas``; left at 0 a SYNC_MASTER does what 4.x does: one slave, and the
code SLAVE_NOT_AVAILABLE at once when none is connected or none is near enough. Set to n it does what 5.x does: n - 1
slaves, and FLUSH_SLAVE_TIMEOUT after ``slaveTimeout`` however many are there. With failover it is every member of the
in-sync set, which may be the master alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.codes import ResponseCode

__all__ = ["AckWaiters"]

AckCallback = Callable[[int], None]


class InSync(Protocol):
    """The in-sync set of a failover group."""

    @property
    def members(self) -> frozenset[int]:
        """Their numbers."""

    def safe_end(self) -> int:
        """Every member has the log up to here; -1 when one is missing."""

    def progressed(self) -> None:
        """A slave has more than before."""


class _Waiter(NamedTuple):
    log_end: int
    deadline: float
    callback: AckCallback


class AckWaiters:
    """What a SYNC_MASTER has promised to know before it answers; implements ``durability.Replication``."""

    def __init__(
        self,
        config: BrokerConfig,
        acknowledged: Callable[[], Iterable[int]],
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        """``acknowledged`` returns the log end each connected slave has reported. ``on_wait``: called when a request
        begins to wait; what is not yet on its way should go now."""
        self._config = config
        self._acknowledged = acknowledged
        self._waiters: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.in_sync: InSync | None = None
        """With failover: whose having a message counts."""
        self._on_wait = on_wait

    @property
    def required(self) -> bool:
        """See ``Replication.required``."""
        return self._config.role is BrokerRole.SYNC_MASTER and (
            self._config.in_sync_replicas != 1 or self.in_sync is not None
        )

    @property
    def needed_count(self) -> int:
        """Slaves that must have a message."""
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
        if self._on_wait is not None:
            self._on_wait()

    def reported(self) -> None:
        """A slave has more than before."""
        if self.in_sync is not None:
            self.in_sync.progressed()
        if not self._waiters:
            return
        safe = self.safe_end()
        while self._waiters and self._waiters[0].log_end <= safe:
            self._waiters.popleft().callback(ResponseCode.SUCCESS)

    def safe_end(self) -> int:
        """As many slaves as needed have the log up to here; -1 when there are not that many."""
        if self.in_sync is not None:
            return self.in_sync.safe_end()
        ends = sorted(self._acknowledged(), reverse=True)
        needed = self.needed_count
        return ends[needed - 1] if len(ends) >= needed else -1

    def release_all(self) -> None:
        """The broker stops or is not the master any more: no report will come, so all waiters are released."""
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
