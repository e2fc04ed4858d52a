"""Acknowledgements: the response code reports the outcome of the flush and of the replication."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from orbitmq.broker.delivery.durability import AckGate
from orbitmq.codes import ResponseCode
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode


class Disk:
    """A store under SYNC_FLUSH whose flushes the test completes."""

    flush_mode = FlushMode.SYNC

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[bool], None]]] = []

    def when_flushed(self, log_end: int, callback: Callable[[bool], None]) -> None:
        self.waiting.append((log_end, callback))


class Slave:
    """Replication whose outcome the test controls."""

    required = True

    def __init__(self) -> None:
        self.waiting: list[Callable[[int], None]] = []

    def when_replicated(self, log_end: int, callback: Callable[[int], None]) -> None:
        self.waiting.append(callback)


@pytest.mark.parametrize(
    ("flushed", "code"), [(True, ResponseCode.SUCCESS), (False, ResponseCode.FLUSH_DISK_TIMEOUT)]
)
def test_only_a_completed_flush_is_success(flushed: bool, code: ResponseCode) -> None:
    """Row G13."""
    disk = Disk()
    gate = AckGate(cast(MessageStore, disk))
    codes: list[int] = []
    gate.wait(700, codes.append)
    assert not gate.immediate
    assert (codes, gate.waiting_count) == ([], 1)
    [(log_end, done)] = disk.waiting
    assert log_end == 700
    done(flushed)
    assert (codes, gate.waiting_count) == ([code], 0)


@pytest.mark.parametrize("flush_first", [True, False])
@pytest.mark.parametrize(
    ("flushed", "replicated", "code"),
    [
        (True, ResponseCode.SUCCESS, ResponseCode.SUCCESS),
        (False, ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT),
        (True, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (False, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (False, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE),
    ],
)
def test_failed_replication_overrides_a_failed_flush_in_any_order(
    flushed: bool, replicated: ResponseCode, code: ResponseCode, flush_first: bool
) -> None:
    disk, slave = Disk(), Slave()
    gate = AckGate(cast(MessageStore, disk), slave)
    codes: list[int] = []
    gate.wait(700, codes.append)
    [(_, disk_done)] = disk.waiting
    [slave_done] = slave.waiting
    if flush_first:
        disk_done(flushed)
        assert codes == []
        slave_done(replicated)
    else:
        slave_done(replicated)
        assert codes == []
        disk_done(flushed)
    assert codes == [code]
