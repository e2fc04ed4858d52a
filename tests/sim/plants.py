"""Defects planted on purpose: a checker that does not find them is useless."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.failover.coordinator import Failover
from orbitmq.broker.failover.in_sync import InSyncSet
from orbitmq.broker.replication.slave import MasterLink
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.codes import ResponseCode
from orbitmq.runtime.clock import ClockSteps

__all__ = ["PLANTS", "Plant", "planted"]


def _ack_before_flush(stack: ExitStack) -> None:
    """A send is acknowledged as soon as it is in the log."""

    def wait(self: AckGate, log_end: int, callback: Callable[[int], None]) -> None:
        callback(ResponseCode.SUCCESS)

    stack.enter_context(mock.patch.object(AckGate, "wait", wait))


def _lost_unlock(stack: ExitStack) -> None:
    """A lock is never released and never expires."""
    lock = QueueLocks.lock

    def for_ever(self: QueueLocks, group: str, client_id: str, queues: Any) -> Any:
        got = lock(self, group, client_id, queues)
        for queue in got:
            self._groups[group][queue].renewed_ms = 1 << 60
        return got

    stack.enter_context(mock.patch.object(QueueLocks, "lock", for_ever))
    stack.enter_context(mock.patch.object(QueueLocks, "unlock", return_value=None))


def _offset_ahead(stack: ExitStack) -> None:
    """A consumer commits pulled messages, not handled ones."""
    remove = ProcessQueue.remove

    def ahead(self: ProcessQueue, messages: Any) -> int:
        return -1 if remove(self, messages) < 0 else self.max_offset + 1

    stack.enter_context(mock.patch.object(ProcessQueue, "remove", ahead))


def _double_master(stack: ExitStack) -> None:
    """A master whose lease has expired remains master."""
    stack.enter_context(mock.patch.object(Failover, "holds", lambda self: self.acting))
    stack.enter_context(mock.patch.object(Failover, "_watch_lease", return_value=None))


def _report_before_flush(stack: ExitStack) -> None:
    """A member of a group under SYNC_FLUSH reports written bytes, and leaves the flush to its own interval."""

    def written(self: MasterLink) -> None:
        if self._store.max_log_offset > self._reported and not self._tables_due:
            self._report(self._store.max_log_offset)

    stack.enter_context(mock.patch.object(MasterLink, "_report_progress", written))


def _no_doubt(stack: ExitStack) -> None:
    """A member that lost power under ASYNC_FLUSH is elected as if its log were complete."""
    stack.enter_context(mock.patch.object(Failover, "_doubt", return_value=""))


def _early_delivery(stack: ExitStack) -> None:
    """Delayed messages are delivered half a second early."""
    stack.enter_context(mock.patch.object(ClockSteps, "shift_ms", return_value=-500))


def _ack_without_the_set(stack: ExitStack) -> None:
    """Rule 1: a send is acknowledged when the master has it."""
    stack.enter_context(mock.patch.object(InSyncSet, "safe_end", lambda self: self._store.max_log_offset))


class Plant(NamedTuple):
    """A defect, and where to start searching for it."""

    put: Callable[[ExitStack], None]
    seeds: range = range(200)
    """Those whose cluster can show the defect."""
    faults: frozenset[str] = frozenset()
    """Faults that can show it, drawn ten times as often."""


_WITH_FAILOVER: Final = range(2, 602, 3)
_WITH_FAILOVER_AND_ASYNC_FLUSH: Final = range(8, 1808, 9)
PLANTS: Final[dict[str, Plant]] = {
    "ack-before-flush": Plant(_ack_before_flush, faults=frozenset({"_cut_power"})),
    "ack-without-the-set": Plant(
        _ack_without_the_set, _WITH_FAILOVER, frozenset({"_kill_broker", "_partition"})
    ),
    "double-master": Plant(_double_master, _WITH_FAILOVER, frozenset({"_partition", "_pause_broker"})),
    "early-delivery": Plant(_early_delivery),
    "lost-unlock": Plant(_lost_unlock, faults=frozenset({"_crash_consumer"})),
    "no-doubt": Plant(
        _no_doubt, _WITH_FAILOVER_AND_ASYNC_FLUSH, frozenset({"_cut_power", "_cut_power_of_several"})
    ),
    "offset-ahead": Plant(_offset_ahead, faults=frozenset({"_crash_consumer"})),
    "report-before-flush": Plant(
        _report_before_flush, _WITH_FAILOVER, frozenset({"cut_power_of_slow_disks"})
    ),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Enables that defect, if any."""
    with ExitStack() as stack:
        if name is not None:
            PLANTS[name].put(stack)
        yield
