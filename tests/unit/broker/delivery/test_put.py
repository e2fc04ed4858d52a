"""The door for puts: nobody is told of a message, and no cursor is saved, before it is as safe as configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import talking
from tests.unit.broker.kit import CONFIG, door, message, open_store, safe_file

from orbitmq.broker.delivery.put import PENDING_ACKS_MAX
from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.figures.stats import BrokerStats
from orbitmq.codes import ResponseCode
from orbitmq.errors import SystemBusy
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.names import SCHEDULE_TOPIC
from orbitmq.record.properties import encode_properties
from orbitmq.store.errors import StoreUnavailable
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.router import PARKED, Call, Reply
from orbitmq.wire.bodies.offsets import DelayOffsets
from orbitmq.wire.frame import Frame, FrameDecoder
from orbitmq.wire.header import Header


class Slave:
    """Replication whose answers the test gives."""

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
        levels=DelayLevels(),
        puts=puts,
        stats=BrokerStats(),
        file=safe_file(tmp_path, "delayOffset.json"),
        clock=clock,
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
