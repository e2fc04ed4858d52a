"""Defects to be planted: a checker that does not find them is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.failover.coordinator import Failover
from orbitmq.broker.failover.in_sync import InSyncSet
from orbitmq.broker.replication.slave import MasterLink
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.codes import ResponseCode
from orbitmq.runtime.clock import ClockSteps

__all__ = ["PLANTS", "planted"]


def _ack_before_flush(stack: ExitStack) -> None:
    """A send is acknowledged as soon as it is in the log."""

    def wait(self: AckGate, log_end: int, callback: Callable[[int], None]) -> None:
        callback(ResponseCode.SUCCESS)

    stack.enter_context(mock.patch.object(AckGate, "wait", wait))


def _lost_unlock(stack: ExitStack) -> None:
    """A lock is never given up and never ends."""
    lock = QueueLocks.lock

    def for_ever(self: QueueLocks, group: str, client_id: str, queues: Any) -> Any:
        got = lock(self, group, client_id, queues)
        for queue in got:
            self._groups[group][queue].renewed_ms = 1 << 60
        return got

    stack.enter_context(mock.patch.object(QueueLocks, "lock", for_ever))
    stack.enter_context(mock.patch.object(QueueLocks, "unlock", return_value=None))


def _offset_ahead(stack: ExitStack) -> None:
    """A consumer commits what it has pulled, not what it has handled."""
    remove = ProcessQueue.remove

    def ahead(self: ProcessQueue, messages: Any) -> int:
        return -1 if remove(self, messages) < 0 else self.max_offset + 1

    stack.enter_context(mock.patch.object(ProcessQueue, "remove", ahead))


def _double_master(stack: ExitStack) -> None:
    """A master whose lease has ended goes on."""
    stack.enter_context(mock.patch.object(Failover, "holds", lambda self: self.acting))
    stack.enter_context(mock.patch.object(Failover, "_watch_lease", return_value=None))


def _report_before_flush(stack: ExitStack) -> None:
    """A member of a group under SYNC_FLUSH reports what it has written, and leaves the flush to its own interval."""

    def written(self: MasterLink) -> None:
        if self._store.max_log_offset > self._reported and not self._tables_due:
            self._report(self._store.max_log_offset)

    stack.enter_context(mock.patch.object(MasterLink, "_report_progress", written))


def _no_doubt(stack: ExitStack) -> None:
    """A member that lost its power under ASYNC_FLUSH is elected as if it had everything."""
    stack.enter_context(mock.patch.object(Failover, "_doubt", return_value=""))


def _early_delivery(stack: ExitStack) -> None:
    """Delayed messages come half a second before their time."""
    stack.enter_context(mock.patch.object(ClockSteps, "shift_ms", return_value=-500))


def _ack_without_the_set(stack: ExitStack) -> None:
    """Rule 1: a send is acknowledged when the master has it."""
    stack.enter_context(mock.patch.object(InSyncSet, "safe_end", lambda self: self._store.max_log_offset))


PLANTS: Final[dict[str, Callable[[ExitStack], None]]] = {
    "ack-before-flush": _ack_before_flush,
    "lost-unlock": _lost_unlock,
    "offset-ahead": _offset_ahead,
    "double-master": _double_master,
    "early-delivery": _early_delivery,
    "report-before-flush": _report_before_flush,
    "no-doubt": _no_doubt,
    "ack-without-the-set": _ack_without_the_set,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With that defect, if any."""
    with ExitStack() as stack:
        if name is not None:
            PLANTS[name](stack)
        yield
