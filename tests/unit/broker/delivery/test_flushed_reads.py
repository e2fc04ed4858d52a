"""Readers under SYNC_FLUSH: when they see which messages, and which readers are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.waiting import until_async

from orbitmq.broker.config import BrokerConfig, BrokerRole, change_role
from orbitmq.broker.delivery import flushed_reads
from orbitmq.broker.delivery.flushed_reads import FlushedReads
from orbitmq.broker.events import BrokerEvents
from orbitmq.store.types import FlushMode


class Log:
    """The part of a store under test; the test flushes."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(flush_mode=FlushMode.SYNC)
        self.max_log_offset = self.flushed_offset = 100
        self.confirm_offset: int | None = None
        self.waiting: list[tuple[int, Callable[[bool], None]]] = []
        self.failed = False

    def limit_reads(self, log_offset: int | None) -> None:
        self.confirm_offset = log_offset

    def when_flushed(self, log_end: int, callback: Callable[[bool], None]) -> None:
        if self.failed:
            callback(False)
        else:
            self.waiting.append((log_end, callback))

    def flush(self, log_end: int) -> None:
        self.flushed_offset = log_end
        ready = [one for one in self.waiting if one[0] <= log_end]
        self.waiting = [one for one in self.waiting if one[0] > log_end]
        for _, callback in ready:
            callback(True)

    def fail(self) -> None:
        waiting, self.waiting, self.failed = self.waiting, [], True
        for _, callback in waiting:
            callback(False)


class World:
    def __init__(self) -> None:
        self.log = Log()
        self.config = BrokerConfig()
        self.woken: list[tuple[str, int]] = []
        self.events = BrokerEvents()
        self.events.readable.of_any.append(lambda topic, queue_id: self.woken.append((topic, queue_id)))
        FlushedReads(self.config, cast(Any, self.log), self.events)

    def put(self, topic: str, queue_id: int = 0) -> None:
        self.log.max_log_offset += 10
        self.events.arrived(topic, queue_id)

    def take_woken(self) -> list[tuple[str, int]]:
        woken, self.woken = self.woken, []
        return woken


@pytest.fixture
def world() -> World:
    return World()


def test_a_message_is_shown_when_it_is_flushed(world: World) -> None:
    world.put("A")
    world.put("B", 3)
    assert (world.log.confirm_offset, world.take_woken()) == (100, [])
    world.log.flush(110)
    assert (world.log.confirm_offset, world.take_woken()) == (110, [("A", 0)])
    world.log.flush(120)
    assert (world.log.confirm_offset, world.take_woken()) == (120, [("B", 3)])
    assert world.log.waiting == []


def test_what_comes_during_a_flush_waits_for_the_next(world: World) -> None:
    world.put("A")
    world.put("A")
    world.log.flush(110)
    assert world.take_woken() == [("A", 0)]
    world.put("A")
    assert world.log.confirm_offset == 110
    assert len(world.log.waiting) == 1, "one wait for all of them"
    world.log.flush(130)
    assert (world.log.confirm_offset, world.take_woken()) == (130, [("A", 0)])


def test_under_async_flush_and_on_a_slave_everything_is_shown_at_once(world: World) -> None:
    world.log.config.flush_mode = FlushMode.ASYNC
    world.put("A")
    assert (world.log.confirm_offset, world.take_woken(), world.log.waiting) == (None, [("A", 0)], [])
    world.log.config.flush_mode = FlushMode.SYNC
    world.put("A")
    assert (world.log.confirm_offset, world.take_woken()) == (100, [])
    change_role(world.config, BrokerRole.SLAVE, 1)
    world.put("B")
    assert (world.log.confirm_offset, world.take_woken()) == (None, [("A", 0), ("B", 0)])
    world.log.flush(130)
    assert (world.log.confirm_offset, world.take_woken()) == (None, [])


def test_a_flush_that_fails_is_waited_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushed_reads, "_RETRY_S", 0.01)

    async def run() -> None:
        world.put("A")
        world.log.fail()
        world.put("B")
        assert (world.log.confirm_offset, world.take_woken()) == (100, [])
        world.log.failed = False
        await until_async(lambda: world.log.waiting, "a waiter")
        world.log.flush(120)
        assert (world.log.confirm_offset, world.take_woken()) == (120, [("A", 0), ("B", 0)])

    asyncio.run(run())
