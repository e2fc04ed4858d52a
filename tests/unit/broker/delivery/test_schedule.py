"""Delay levels: order, timing, cursors, and the effects of a faulty store or record."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.kit import CONFIG, door, message, open_store, safe_file

from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.errors import MessageIllegal
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.properties import encode_properties, find_property
from orbitmq.runtime.clock import SYSTEM_CLOCK, ForwardClock
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import MessageTooLarge, StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, NewMessage
from orbitmq.testing.manual_clock import ManualClock

START_MS = 1_700_000_000_000


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock(START_MS)
        self.brokers_clock = ForwardClock(self.clock)
        self.levels = DelayLevels()
        self.store = open_store(directory, self.brokers_clock)
        self.puts = door(self.store, self.brokers_clock)
        self.schedule = self.new_schedule()

    def new_schedule(self) -> Schedule:
        schedule = Schedule(
            config=CONFIG,
            store=self.store,
            puts=self.puts,
            stats=BrokerStats(),
            file=safe_file(self.directory, "delayOffset.json"),
            clock=self.brokers_clock,
            events=BrokerEvents(),
        )
        schedule.load()
        return schedule

    def send(self, level: int | str, body: bytes = b"x", queue_id: int = 3) -> NewMessage:
        sent = message("T", queue_id, body)
        sent = sent._replace(properties=encode_properties({"DELAY": str(level), "own": "1"}))
        sent = sent._replace(reconsume_times=2)
        placed = self.puts.parking.of_producer(sent)
        self.store.append(placed)
        return placed

    def deliver(self) -> int | None:
        return asyncio.run(self.schedule.deliver_due())

    def delivered(self, topic: str = "T", queue_id: int = 3) -> list[Record]:
        units = self.store.units(topic, queue_id, 0, 10_000)
        return [decode_record(self.store.record_at(offset, size) or b"") for offset, size, _ in units]

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.delivered()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize(("level", "stored_level"), [(1, 1), (18, 18), (19, 18), (1_000, 18)])
def test_a_level_chooses_the_queue(bench: Bench, level: int, stored_level: int) -> None:
    placed = bench.send(level)
    assert (placed.topic, placed.queue_id) == (SCHEDULE_TOPIC, stored_level - 1)
    assert find_property(placed.properties, b"REAL_TOPIC") == b"T"
    assert find_property(placed.properties, b"REAL_QID") == b"3"
    assert find_property(placed.properties, b"DELAY") == b"%d" % stored_level
    [(_, _, due_ms)] = bench.store.units(SCHEDULE_TOPIC, stored_level - 1, 0, 1)
    assert due_ms == START_MS + bench.levels.delay_ms(stored_level)


@pytest.mark.parametrize("level", [0, -3])
def test_no_level_means_no_delay(bench: Bench, level: int) -> None:
    assert bench.send(level).topic == "T"


def test_a_signed_level_waits_as_long_as_the_plain_one(bench: Bench) -> None:
    assert bench.send("+3").queue_id == 2
    [(_, _, due_ms)] = bench.store.units(SCHEDULE_TOPIC, 2, 0, 1)
    assert due_ms == START_MS + bench.levels.delay_ms(3)
    bench.deliver()
    assert bench.bodies() == []


@pytest.mark.parametrize("level", ["soon", " 3", "1_0", "+", "2147483648"])
def test_a_level_that_java_cannot_parse_is_refused(bench: Bench, level: str) -> None:
    with pytest.raises(MessageIllegal, match="DELAY"):
        bench.send(level)


def test_a_message_is_delivered_when_due_and_not_before(bench: Bench) -> None:
    bench.send(1, b"a")
    bench.clock.advance(400)
    bench.send(1, b"b")
    assert bench.deliver() == START_MS + 1_000
    bench.clock.advance(599)
    assert (bench.deliver(), bench.bodies()) == (START_MS + 1_000, [])
    bench.clock.advance(1)
    assert (bench.deliver(), bench.bodies()) == (START_MS + 1_400, [b"a"])
    bench.clock.advance(400)
    assert (bench.deliver(), bench.bodies()) == (None, [b"a", b"b"])
    [first, _] = bench.delivered()
    # Like Apache's: the properties it waited with are kept.
    assert first.property_map() == {"DELAY": "1", "own": "1", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert (first.reconsume_times, first.store_timestamp_ms) == (2, START_MS + 1_000)


@pytest.mark.parametrize("step_ms", [-3_600_000, -2_000, 2_000, 3_600_000])
def test_a_clock_that_is_set_moves_no_message(bench: Bench, step_ms: int) -> None:
    bench.send(2, b"before")
    bench.clock.advance(1_000)
    bench.clock.jump(bench.clock.now_ms() + step_ms)
    bench.send(2, b"after")
    bench.clock.advance(3_999)
    bench.deliver()
    assert bench.bodies() == []
    bench.clock.advance(1)
    bench.deliver()
    assert bench.bodies() == [b"before"]
    bench.clock.jump(bench.clock.now_ms() - step_ms)
    bench.clock.advance(999)
    bench.deliver()
    assert bench.bodies() == [b"before"]
    bench.clock.advance(1)
    bench.deliver()
    assert bench.bodies() == [b"before", b"after"]


def test_a_clock_set_back_before_the_start_holds_messages_no_longer_than_their_level(bench: Bench) -> None:
    bench.send(2)
    bench.clock.jump(START_MS - 3_600_000)
    bench.brokers_clock = ForwardClock(bench.clock)
    bench.schedule = bench.new_schedule()
    bench.clock.advance(4_999)
    bench.deliver()
    assert bench.bodies() == []
    bench.clock.advance(1)
    bench.deliver()
    assert bench.bodies() == [b"x"]


def test_long_levels_do_not_hold_up_others(bench: Bench) -> None:
    for number in range(200):
        bench.send(1, b"one %d" % number)
    bench.send(2, b"two")
    bench.clock.advance(5_000)
    bench.deliver()
    bodies = bench.bodies()
    assert len(bodies) == 201
    assert bodies.index(b"two") < 100
    assert [body for body in bodies if body != b"two"] == [b"one %d" % number for number in range(200)]


def test_cursors_are_saved_as_apache_does_and_nothing_is_repeated(bench: Bench) -> None:
    for level in (1, 1, 2):
        bench.send(level)
    bench.clock.advance(1_000)
    bench.deliver()
    bench.schedule.persist()
    text = (bench.directory / "delayOffset.json").read_text()
    assert '\t"offsetTable":{\n\t\t1:2,\n\t\t2:0\n\t}' in text
    bench.schedule = bench.new_schedule()
    assert bench.schedule.progress() == {1: (2, 2), 2: (0, 1)}
    bench.clock.advance(4_000)
    bench.deliver()
    assert len(bench.bodies()) == 3


@pytest.mark.parametrize(("saved", "corrected"), [(-5, 0), (99, 2)])
def test_a_cursor_outside_its_queue_is_corrected(bench: Bench, saved: int, corrected: int) -> None:
    bench.send(1)
    bench.send(1)
    (bench.directory / "delayOffset.json").write_text(json.dumps({"offsetTable": {"1": saved}}))
    assert bench.new_schedule().progress() == {1: (corrected, 2)}


def test_a_store_that_refuses_is_tried_again_without_skipping(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(1, b"a")
    bench.send(1, b"b")
    bench.clock.advance(1_000)

    def refuse(_messages: object) -> list[Appended]:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "append_batch", refuse)
        assert bench.deliver() == START_MS + 1_100
    assert bench.deliver() is None
    assert bench.bodies() == [b"a", b"b"]


def test_one_message_the_store_never_takes_does_not_block_its_level(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in (b"a", b"too big", b"c"):
        bench.send(1, body)
    bench.clock.advance(1_000)
    append = bench.store.append_batch
    unavailable = True

    def picky(messages: list[NewMessage]) -> list[Appended]:
        nonlocal unavailable
        if any(one.body == b"too big" for one in messages):
            raise MessageTooLarge("the limit was lowered")
        if unavailable and [one.body for one in messages] == [b"c"]:
            unavailable = False
            raise StoreUnavailable("full for a moment")
        return append(messages)

    monkeypatch.setattr(bench.store, "append_batch", picky)
    assert bench.deliver() == START_MS + 1_100
    assert bench.deliver() is None
    # Messages stored before the refusal are not stored again.
    assert bench.bodies() == [b"a", b"c"]


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "T"},
        {"REAL_TOPIC": "T", "REAL_QID": "x"},
        {"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"},
        {"REAL_TOPIC": "a/b", "REAL_QID": "0"},
    ],
)
def test_a_record_that_cannot_be_delivered_is_passed_over(bench: Bench, properties: dict[str, str]) -> None:
    bad = message(SCHEDULE_TOPIC, 0, b"bad")
    bad = bad._replace(properties=encode_properties({"DELAY": "1", **properties}))
    bench.store.append(bad)
    bench.send(1, b"good")
    bench.clock.advance(1_000)
    bench.deliver()
    assert bench.bodies() == [b"good"]
    assert bench.store.max_offset(HALF_TOPIC, 0) == 0


def test_a_slave_takes_the_cursors_of_its_master(bench: Bench) -> None:
    bench.send(1)
    bench.schedule.take(b'{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":5},"offsetTable":{1:1}}')
    bench.clock.advance(1_000)
    bench.deliver()
    assert bench.bodies() == []
    assert read_json_offsets(bench.directory / "delayOffset.json") == {"1": 1}


def read_json_offsets(path: Path) -> dict[str, int]:
    text = path.read_text().replace("{1:", '{"1":')
    found = json.loads(text)["offsetTable"]
    assert isinstance(found, dict)
    return found


def test_running_it_sleeps_until_a_head_is_due_or_a_message_comes(tmp_path: Path) -> None:
    """With the real clock: an idle service notices a new message immediately, and delivers it when it is due."""
    events = BrokerEvents()
    store = open_store(tmp_path, arrived=[events.readable])
    puts = door(store, SYSTEM_CLOCK)

    async def main() -> float:
        schedule = Schedule(
            config=CONFIG,
            store=store,
            puts=puts,
            stats=BrokerStats(),
            file=safe_file(tmp_path, "delayOffset.json"),
            clock=SYSTEM_CLOCK,
            events=events,
        )
        schedule.load()
        arrived = asyncio.Event()
        events.readable.of_topic["T"] = lambda _queue_id: arrived.set()
        schedule.start()
        await asyncio.sleep(0.05)
        store._appender._now_ms = SYSTEM_CLOCK.now_ms
        sent = message("T")
        sent = sent._replace(properties=encode_properties({"DELAY": "1"}))
        started = SYSTEM_CLOCK.monotonic()
        store.append(puts.parking.of_producer(sent))
        await asyncio.wait_for(arrived.wait(), 5)
        took = SYSTEM_CLOCK.monotonic() - started
        await schedule.stop()
        return took

    took = asyncio.run(main())
    store.close()
    assert 0.999 <= took < 4.0, "not early; how late depends on the machine"


@pytest.mark.parametrize("extensions_lost", [False, True])
def test_a_delay_is_kept_with_filter_extensions(tmp_path: Path, extensions_lost: bool) -> None:
    """Units then hold the address of an extension, which contains the due time (or it follows from the record)."""
    clock = ManualClock(START_MS)

    def opened() -> MessageStore:
        config = StoreConfig(root=str(tmp_path / "store"), segment_bytes=1 << 20, queue_ext_enabled=True)
        store = MessageStore(config, clock=clock)
        store.open()
        return store

    store = opened()
    sent = message("T")._replace(properties=encode_properties({"DELAY": "2"}))
    door(store, clock).put(sent)
    if extensions_lost:
        store.close()
        shutil.rmtree(tmp_path / "store" / "consumequeue_ext")
        store = opened()
    schedule = Schedule(
        config=CONFIG,
        store=store,
        puts=door(store, clock),
        stats=BrokerStats(),
        file=safe_file(tmp_path, "delayOffset.json"),
        clock=clock,
        events=BrokerEvents(),
    )
    clock.advance(4_990)
    assert asyncio.run(schedule.deliver_due()) == START_MS + 5_000
    assert store.max_offset("T", 0) <= 0
    clock.advance(10)
    asyncio.run(schedule.deliver_due())
    assert store.max_offset("T", 0) == 1
    store.close()


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._manual = clock

    def time(self) -> float:
        return self._manual.monotonic()


async def settle() -> None:
    """Lets every task run up to its next wait."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_cursors_are_saved_every_ten_seconds_and_only_when_they_moved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row K08."""
    path = bench.directory / "delayOffset.json"
    written = threading.Event()
    saves = 0
    write, save = bench.schedule._write, bench.schedule._save

    def noticed(cursors: dict[int, int], content: bytes) -> None:
        write(cursors, content)
        written.set()

    async def counted() -> None:
        nonlocal saves
        await save()
        saves += 1

    monkeypatch.setattr(bench.schedule, "_write", noticed)
    monkeypatch.setattr(bench.schedule, "_save", counted)

    async def run() -> None:
        bench.send(1)
        bench.schedule.start()
        await settle()
        bench.clock.advance(1_000)
        await settle()
        assert bench.bodies() == [b"x"]
        bench.clock.advance(8_999)
        await settle()
        assert (saves, path.exists()) == (0, False), "ten seconds are not over"
        bench.clock.advance(1)
        assert await asyncio.get_running_loop().run_in_executor(None, written.wait, 10)
        assert "\t\t1:1" in path.read_text()
        await settle()
        path.unlink()
        bench.clock.advance(10_000)
        await settle()
        assert (saves, path.exists()) == (2, False), "nothing moved since"
        await bench.schedule.stop()

    with asyncio.Runner(loop_factory=lambda: ManualLoop(bench.clock)) as runner:
        runner.run(run())


@pytest.mark.parametrize(("cursor", "corrected", "delivered"), [(-5, 1, [b"first"]), (99, 1, [])])
def test_a_cursor_that_leaves_its_queue_while_running_is_corrected(
    bench: Bench, caplog: pytest.LogCaptureFixture, cursor: int, corrected: int, delivered: list[bytes]
) -> None:
    """Row K12. A cursor beyond the end would otherwise hold back every later message of its level."""
    bench.send(1, b"first")
    bench.clock.advance(1_000)
    bench.schedule._cursors[1] = cursor
    bench.deliver()
    assert "delay cursor outside its queue level=1" in caplog.text
    assert bench.schedule.progress() == {1: (corrected, 1)}
    assert bench.bodies() == delivered
    bench.send(1, b"next")
    bench.clock.advance(1_000)
    bench.deliver()
    assert bench.bodies() == [*delivered, b"next"]


def test_a_delayed_message_whose_record_is_gone_is_skipped_with_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(1, b"gone")
    bench.send(1, b"kept")
    bench.clock.advance(1_000)
    [(gone, _, _)] = bench.store.units(SCHEDULE_TOPIC, 0, 0, 1)
    record_at = bench.store.record_at
    monkeypatch.setattr(
        bench.store, "record_at", lambda offset, size: None if offset == gone else record_at(offset, size)
    )
    assert bench.deliver() is None
    assert bench.bodies() == [b"kept"]
    assert bench.schedule.progress() == {1: (2, 2)}
    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.getMessage() == f"delayed message is gone level=1 log_offset={gone}"


def test_round_that_fails_is_repeated_from_the_same_cursor_ten_seconds_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row K10."""
    bench.send(1)
    bench.clock.advance(1_000)

    def broken(*_: object) -> int:
        raise ValueError("a bug in the store")

    with monkeypatch.context() as patched:
        patched.setattr(bench.schedule, "_deliver_portion", broken)
        with pytest.raises(ValueError, match="a bug"):  # ``every`` logs it and continues
            asyncio.run(bench.schedule._wait_and_deliver())
    assert bench.schedule._look_at_ms == bench.clock.now_ms() + 10_000
    assert bench.bodies() == []
    assert 1 not in bench.schedule._cursors, "it has not moved"
    bench.clock.advance(10_000)
    asyncio.run(bench.schedule._wait_and_deliver())
    assert len(bench.bodies()) == 1


def test_deliveries_are_counted_for_the_schedule_group_and_the_real_topic(bench: Bench) -> None:
    """Row K17: counted as got from the schedule topic by its group, and as put into the message's real topic."""
    bench.send(2, b"x")
    bench.send(2, b"yy")
    assert ("T", 3) not in bench.puts._stats.puts
    bench.clock.advance(5_000)
    bench.deliver()
    got = bench.schedule._stats.gets[SCHEDULE_TOPIC, 1, "SCHEDULE_CONSUMER"]
    assert got.count == 2
    assert got.bytes > 0
    put = bench.puts._stats.puts["T", 3]
    assert (put.count, put.bytes) == (2, got.bytes)
    assert bench.puts._stats.put_count == 2


def test_counting_of_deliveries_can_be_turned_off(bench: Bench) -> None:
    """Row K17: enableScheduleMessageStats=false, as in Apache, leaves out both ends of a delivery."""
    bench.schedule._config = dataclasses.replace(CONFIG, schedule_stats_enabled=False)
    bench.send(2)
    bench.clock.advance(5_000)
    bench.deliver()
    assert bench.bodies() == [b"x"]
    assert bench.schedule._stats.gets == {}
    assert ("T", 3) not in bench.puts._stats.puts
    assert bench.puts._stats.put_count == 0
