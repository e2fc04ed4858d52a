"""Puts: no message is acknowledged, and no cursor is saved, before it is as durable as configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import talking
from tests.unit.broker.kit import CONFIG, door, message, open_store, safe_file

from orbitmq.broker.delivery.put import PENDING_ACKS_MAX
from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.codes import ResponseCode
from orbitmq.errors import SystemBusy
from orbitmq.kernel import sends_of
from orbitmq.model.names import SCHEDULE_TOPIC
from orbitmq.record.properties import encode_properties
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.types import FlushMode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.router import PARKED, Call, Reply
from orbitmq.wire.bodies.offsets import DelayOffsets
from orbitmq.wire.frame import Frame, FrameDecoder
from orbitmq.wire.header import Header


class Slave:
    """Replication whose responses the test controls."""

    required = True

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[int], None]]] = []

    def when_replicated(self, log_end: int, callback: Callable[[int], None]) -> None:
        self.waiting.append((log_end, callback))

    def answer(self, code: int) -> None:
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback(code)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (ResponseCode.SUCCESS, ResponseCode.SUCCESS),
        (ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SUCCESS),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SYSTEM_ERROR),
        (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_request_is_answered_when_its_message_is_safe(tmp_path: Path, outcome: int, code: int) -> None:
    slave, clock = Slave(), ManualClock()
    store = open_store(tmp_path, clock)
    puts = door(store, clock, replication=slave)
    fake, connection = talking()
    stored = puts.put(message("T"))
    assert stored.end == store.max_log_offset
    call = Call(Header(), Frame(36, 7), connection)
    assert puts.answer(call, stored.end, Reply()) is PARKED
    assert fake.sent == []
    assert [end for end, _ in slave.waiting] == [stored.end]
    slave.answer(outcome)
    (answer,) = FrameDecoder().feed(b"".join(fake.sent))
    assert (answer.code, answer.opaque) == (code, 7)
    assert (answer.remark or "") == ("" if code == 0 else ResponseCode(outcome).name)
    store.close()


def test_a_put_is_parked_and_counted_and_a_delivery_is_not_parked_again(tmp_path: Path) -> None:
    clock, stats = ManualClock(), BrokerStats()
    store = open_store(tmp_path, clock)
    puts = door(store, clock, stats=stats)
    sent = message("T", 3)
    sent = sent._replace(properties=encode_properties({"DELAY": "2"}))
    stored = puts.put(sent)
    assert (stored.message.topic, stored.message.queue_id) == (SCHEDULE_TOPIC, 1)
    puts.deliver((sent,))
    assert store.max_offset("T", 3) == 1
    assert stats.puts[SCHEDULE_TOPIC, 1].count == stats.puts["T", 3].count == 1
    store.close()


def test_puts_are_refused_while_sends_would_be(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    puts = door(store, clock)
    puts.gate.is_master = lambda: True
    puts.gate.refusal = "the in-sync replicas are not enough"
    with pytest.raises(StoreUnavailable, match="in-sync"):
        puts.deliver((message("T"),))
    puts.gate.refusal = ""
    puts.gate.waiting_count = PENDING_ACKS_MAX
    with pytest.raises(SystemBusy):
        puts.put(message("T"))
    assert store.max_log_offset == 0
    store.close()


def test_cursors_of_delay_levels_are_saved_when_what_they_passed_is_safe(tmp_path: Path) -> None:
    slave, clock = Slave(), ManualClock()
    store = open_store(tmp_path, clock)
    puts = door(store, clock, replication=slave)
    schedule = Schedule(
        config=CONFIG,
        store=store,
        puts=puts,
        stats=BrokerStats(),
        file=safe_file(tmp_path, "delayOffset.json"),
        clock=clock,
        events=BrokerEvents(),
    )
    saved = tmp_path / "delayOffset.json"

    async def save(outcome: int) -> None:
        saving = asyncio.create_task(schedule._save())
        await asyncio.sleep(0)  # it runs up to its wait
        assert slave.waiting
        assert not saved.exists()
        slave.answer(outcome)
        await saving

    async def run() -> None:
        sent = message("T")
        sent = sent._replace(properties=encode_properties({"DELAY": "1"}))
        puts.put(sent)
        clock.advance(1_000)
        await schedule.deliver_due()
        await save(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        assert not saved.exists()
        await save(ResponseCode.SUCCESS)

    asyncio.run(run())
    assert DelayOffsets.decode(saved.read_bytes()).offset_table == {1: 1}
    store.close()


def test_a_cursor_is_saved_when_what_it_passed_is_on_the_disk_under_async_flush_too(tmp_path: Path) -> None:
    """A power cut right after must not find a cursor that has passed a message whose delivered copy is lost."""
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    assert store.flush_mode is FlushMode.ASYNC
    puts = door(store, clock)
    schedule = Schedule(
        config=CONFIG,
        store=store,
        puts=puts,
        stats=BrokerStats(),
        file=safe_file(tmp_path, "delayOffset.json"),
        clock=clock,
        events=BrokerEvents(),
    )

    async def run() -> None:
        puts.put(message("T")._replace(properties=encode_properties({"DELAY": "1"})))
        clock.advance(1_000)
        await schedule.deliver_due()
        assert store.flushed_offset < store.max_log_offset
        await asyncio.wait_for(schedule._save(), 10)

    asyncio.run(run())
    assert DelayOffsets.decode((tmp_path / "delayOffset.json").read_bytes()).offset_table == {1: 1}
    assert store.flushed_offset == store.max_log_offset
    store.close()


def test_a_broker_without_its_office_stores_nothing_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    puts = door(store, clock)
    puts.gate.is_master = lambda: False
    with pytest.raises(StoreUnavailable, match="not the master"):
        puts.deliver((message("T"),))
    with pytest.raises(StoreUnavailable, match="not the master"):
        puts.put(message("T"))
    puts.gate.is_master = lambda: True
    puts.deliver((message("T"),))
    assert store.max_offset("T", 0) == 1
    store.close()


@pytest.mark.parametrize(
    ("failover", "outcome", "stays"),
    [
        (False, ResponseCode.SUCCESS, True),
        (False, ResponseCode.FLUSH_SLAVE_TIMEOUT, True),
        (True, ResponseCode.SUCCESS, True),
        (True, ResponseCode.FLUSH_SLAVE_TIMEOUT, False),
    ],
)
def test_with_failover_what_no_slave_has_may_be_cut_off(
    tmp_path: Path, failover: bool, outcome: int, stays: bool
) -> None:
    slave, clock = Slave(), ManualClock()
    store = open_store(tmp_path, clock)
    puts = door(store, clock, replication=slave)
    if failover:
        puts.gate.is_master = lambda: True
    puts.deliver((message("T"),))

    async def run() -> bool:
        asking = asyncio.create_task(puts.stays())
        await asyncio.sleep(0)  # it runs up to its wait
        slave.answer(outcome)
        return await asking

    assert asyncio.run(run()) is stays
    store.close()


@pytest.mark.parametrize("saved_before", [True, False])
def test_a_master_that_loses_its_office_goes_back_to_the_saved_cursors_of_delay_levels(
    tmp_path: Path, saved_before: bool
) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    puts = door(store, clock)
    masters = [True]
    puts.gate.is_master = lambda: masters[0]
    schedule = Schedule(
        config=CONFIG,
        store=store,
        puts=puts,
        stats=BrokerStats(),
        file=safe_file(tmp_path, "delayOffset.json"),
        clock=clock,
        events=BrokerEvents(),
    )

    async def deliver_one() -> None:
        puts.put(message("T")._replace(properties=encode_properties({"DELAY": "1"})))
        clock.advance(1_000)
        await schedule.deliver_due()

    async def run() -> None:
        schedule.start()
        if saved_before:
            await deliver_one()
            await schedule._save()
        end = store.max_log_offset
        await deliver_one()
        masters[0] = False
        await schedule.stop()
        store.truncate(end)

    asyncio.run(run())
    assert DelayOffsets.decode(schedule.encode()).offset_table == ({1: 1} if saved_before else {})
    assert (tmp_path / "delayOffset.json").exists() is saved_before
    store.close()


def test_a_send_is_refused_at_the_append_when_the_lease_ended_since_it_was_checked(tmp_path: Path) -> None:
    """A process may sleep between the check of a send and the end of the read, where it is appended."""
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    puts = door(store, clock)
    is_master = True
    puts.gate.is_master = lambda: is_master
    puts.append([message("T")])
    end = store.max_log_offset
    is_master = False
    with pytest.raises(StoreUnavailable, match="not the master any more"):
        puts.append([message("T")])
    with pytest.raises(StoreUnavailable, match="not the master any more"):
        puts.append_sends([sends_of(message("T"), False, (0, 1, 0), True, 0, b"", "")])
    assert store.max_log_offset == end
    store.close()
