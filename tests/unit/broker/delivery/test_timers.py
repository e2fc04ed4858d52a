"""Timer messages: when they fire, what survives a stop or a kill, and the files that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.broker.kit import door, open_store

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.parking import out_ms
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.recall import RecallHandle, recall_handle
from orbitmq.codes import ResponseCode
from orbitmq.errors import BrokerError, IllegalOperation
from orbitmq.model.names import TIMER_TOPIC
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.properties import encode_properties, find_property
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.types import Appended, NewMessage
from orbitmq.testing.manual_clock import ManualClock

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_S = 86_400


class Bench:
    """A timer on a real store under a separate clock."""

    def __init__(self, directory: Path, **options: int) -> None:
        self.directory = directory
        self.clock = ManualClock(START_MS)
        self.options = {"timer_log_file_bytes": 4_096, **options}
        self.store = open_store(directory, self.clock)
        self.timers = self.new_timers()

    def new_timers(self) -> Timers:
        config = BrokerConfig(broker_name="broker-a", **self.options)  # type: ignore[arg-type]  # values of several types by name
        self.puts = door(self.store, self.clock, config)
        return Timers(
            config=config,
            store=self.store,
            puts=self.puts,
            fs=LOCAL_FILE_SYSTEM,
            clock=self.clock,
            events=BrokerEvents(),
        )

    def send(self, body: bytes, topic: str = "T", **properties: str) -> NewMessage:
        message = NewMessage(
            topic,
            2,
            body,
            encode_properties({"UNIQ_KEY": body.decode(), **properties}),
            self.clock.now_ms(),
            b"\x7f\x00\x00\x01\x00\x00\x00\x01",
        )
        placed = self.puts.parking.of_producer(message)
        self.store.append(placed)
        return placed

    def delivered(self) -> list[Record]:
        units = self.store.units("T", 2, 0, 10_000)
        return [decode_record(self.store.record_at(offset, size) or b"") for offset, size, _ in units]

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.delivered()]

    async def work_until(self, ms: int) -> None:
        """Lets time pass, waking the timer whenever it asked for it."""
        while True:
            look_at_ms = await self.timers.work()
            if look_at_ms > ms:
                break
            self.clock.advance(max(1, look_at_ms - self.clock.now_ms()))
        self.clock.advance(max(0, ms - self.clock.now_ms()))
        await self.timers.work()

    def kill(self) -> None:
        """Simulates the death of the process: nothing is saved, files are reopened."""
        self.timers._close()
        self.timers = self.new_timers()

    async def restart(self) -> None:
        """Restarts cleanly; the running second is completed."""
        stopping = asyncio.ensure_future(self.timers.stop())
        await asyncio.sleep(0.01)
        if not stopping.done():
            self.clock.advance(1_000)
        await stopping
        self.timers = self.new_timers()
        self.start()

    def start(self) -> None:
        self.timers.start()
        # The test drives the work itself.
        assert self.timers._tasks is not None
        for task in list(self.timers._tasks._tasks):
            task.cancel()


def run(test: Callable[[Bench], Awaitable[None]], bench: Bench) -> None:
    async def main() -> None:
        bench.start()
        await test(bench)
        await bench.timers.stop()

    asyncio.run(main())
    bench.store.close()


def test_the_second_of_a_time_is_the_one_that_ends_with_it() -> None:
    assert [out_ms(ms) for ms in (5_001, 5_300, 5_999, 6_000)] == [5_000, 5_000, 5_000, 5_000]


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("TIMER_DELAY_MS", "1300", 1_300),
        ("TIMER_DELAY_SEC", "3", 3_000),
        ("TIMER_DELIVER_MS", str(START_MS + 2_500), 2_500),
        ("TIMER_DELAY_MS", "1", 1),
        ("TIMER_DELIVER_MS", str(START_MS - 5), 0),
        ("TIMER_DELAY_MS", "0", 0),
    ],
)
def test_a_message_fires_at_its_millisecond(tmp_path: Path, name: str, value: str, due_ms: int) -> None:
    async def test(bench: Bench) -> None:
        stored = bench.send(b"a", **{name: value})
        if due_ms == 0:
            assert (stored.topic, stored.queue_id) == ("T", 2)
            return
        assert (stored.topic, stored.queue_id) == (TIMER_TOPIC, 0)
        assert find_property(stored.properties, b"TIMER_OUT_MS") == b"%d" % out_ms(START_MS + due_ms)
        await bench.work_until(START_MS + due_ms - 1)
        assert bench.bodies() == []
        await bench.work_until(START_MS + due_ms)
        [record] = bench.delivered()
        assert record.store_timestamp_ms == START_MS + due_ms
        assert record.property_map()["TIMER_DEQUEUE_MS"] == str(START_MS + due_ms)

    run(test, Bench(tmp_path))


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TIMER_DELAY_SEC": str(3 * DAY_S + 1)}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "soon"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "x"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_times_nobody_can_keep_are_refused(tmp_path: Path, properties: dict[str, str], code: int) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(BrokerError) as caught:
        bench.send(b"a", **properties)
    assert caught.value.response_code == code
    bench.store.close()


def test_a_delay_level_outranks_a_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stored = bench.send(b"a", TIMER_DELAY_SEC="3", DELAY="2")
    assert (stored.topic, stored.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert find_property(stored.properties, b"TIMER_DELAY_SEC") is None
    bench.store.close()


def test_messages_fire_in_the_order_of_their_times_over_several_log_files(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        delays = [(number * 7_919) % 30_000 + 1 for number in range(300)]
        for delay_ms in delays:
            bench.send(b"%d" % delay_ms, TIMER_DELAY_MS=str(delay_ms))
        await bench.work_until(START_MS + 15_000)
        early = [int(body) for body in bench.bodies()]
        assert early == sorted(delay for delay in delays if delay <= 15_000)
        await bench.restart()
        await bench.work_until(START_MS + 31_000)
        assert [int(body) for body in bench.bodies()] == sorted(delays)
        assert len(list((tmp_path / "store" / "timerlog").iterdir())) > 2
        assert bench.timers.facts()["timerCongestNum"] == "0"

    run(test, Bench(tmp_path))


def test_a_clean_stop_within_a_second_repeats_and_loses_nothing(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for ms in (100, 200, 600, 700):
            bench.send(b"%d" % ms, TIMER_DELAY_MS=str(ms))
        await bench.work_until(START_MS + 650)
        assert bench.bodies() == [b"100", b"200", b"600"]
        stopping = asyncio.ensure_future(bench.timers.stop())
        await asyncio.sleep(0.01)
        assert bench.bodies() == [b"100", b"200", b"600"]
        bench.clock.advance(50)
        await stopping
        assert bench.bodies() == [b"100", b"200", b"600", b"700"]
        bench.timers = bench.new_timers()
        bench.start()
        bench.send(b"800", TIMER_DELAY_MS="100")
        await bench.work_until(START_MS + 999)
        assert bench.bodies() == [b"100", b"200", b"600", b"700"]
        await bench.work_until(START_MS + 2_000)
        assert bench.bodies() == [b"100", b"200", b"600", b"700", b"800"]

    run(test, Bench(tmp_path))


@pytest.mark.parametrize("saved", [True, False])
def test_a_kill_loses_nothing_and_repeats_only_what_was_not_saved(tmp_path: Path, saved: bool) -> None:
    async def test(bench: Bench) -> None:
        for ms in (500, 1_500, 2_500, 9_500):
            bench.send(b"%d" % ms, TIMER_DELAY_MS=str(ms))
        await bench.work_until(START_MS + 1_600)
        await bench.timers._save()
        bench.send(b"9600", TIMER_DELAY_MS="8000")
        await bench.work_until(START_MS + 2_600)
        if saved:
            await bench.timers._save()
        bench.kill()
        bench.start()
        await bench.work_until(START_MS + 11_000)
        times = [int(body) for body in bench.bodies()]
        assert set(times) == {500, 1_500, 2_500, 9_500, 9_600}
        # An unfinished second is repeated, those before it never.
        assert times.count(500) == 1
        assert times.count(1_500) == (1 if saved else 2)
        assert times.count(9_500) == times.count(9_600) == 1

    run(test, Bench(tmp_path))


def test_without_its_files_the_wheel_is_made_again_from_the_queue(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for ms in (500, 1_500, 60_000):
            bench.send(b"%d" % ms, TIMER_DELAY_MS=str(ms))
        await bench.work_until(START_MS + 5_000)
        state = bench.timers.encode()
        await bench.timers.stop()
        bench.send(b"late", TIMER_DELAY_MS="1000")
        bench.timers = bench.new_timers()
        bench.timers.take(state)
        assert not (tmp_path / "store" / "timerlog").exists()
        bench.clock.advance(10_000)
        bench.start()
        await bench.work_until(START_MS + 20_000)
        assert bench.bodies() == [b"500", b"1500", b"late"]
        await bench.work_until(START_MS + 60_000)
        assert bench.bodies() == [b"500", b"1500", b"late", b"60000"]

    run(test, Bench(tmp_path))


def test_a_master_that_loses_its_office_delivers_again_what_was_cut_off(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for ms in (500, 1_500, 2_300, 60_000):
            bench.send(b"%d" % ms, TIMER_DELAY_MS=str(ms))
        await bench.work_until(START_MS + 1_400)
        await bench.timers._save()
        end = bench.store.max_log_offset
        bench.send(b"cut", TIMER_DELAY_MS="100")
        await bench.work_until(START_MS + 2_100)
        assert bench.bodies() == [b"500", b"1500", b"cut"]
        assert bench.timers._running
        bench.puts.gate.is_master = lambda: False
        await asyncio.wait_for(bench.timers.stop(), 1.0)  # it waits for no second it cannot deliver
        bench.store.truncate(end)
        assert bench.bodies() == [b"500"]
        bench.timers = bench.new_timers()
        bench.start()
        await bench.work_until(START_MS + 60_000)
        assert bench.bodies() == [b"500", b"1500", b"2300", b"60000"]

    run(test, Bench(tmp_path))


def test_files_that_do_not_fit_together_are_made_again(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.send(b"a", TIMER_DELAY_MS="3000")
        await bench.work_until(START_MS + 1_000)
        await bench.timers.stop()
        for file in (tmp_path / "store" / "timerlog").iterdir():
            file.write_bytes(b"\xff" * 100)
        bench.timers = bench.new_timers()
        bench.start()
        await bench.work_until(START_MS + 3_000)
        assert bench.bodies() == [b"a"]

    run(test, Bench(tmp_path))


def test_a_long_wait_is_rolled_and_still_fires_on_time_and_once(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for seconds in (99, 100, 120, 250):
            bench.send(b"%d" % seconds, TIMER_DELAY_SEC=str(seconds))
        await bench.work_until(START_MS + 99_000)
        assert bench.bodies() == [b"99"]
        await bench.restart()
        await bench.work_until(START_MS + 249_999)
        assert bench.bodies() == [b"99", b"100", b"120"]
        await bench.work_until(START_MS + 251_000)
        *_, last = bench.delivered()
        assert (last.body, last.property_map()["TIMER_ROLL_TIMES"]) == (b"250", "2")
        assert len(bench.bodies()) == 4

    run(test, Bench(tmp_path, timer_roll_window_s=100))


@pytest.mark.parametrize("key", ["a", "T+a"])
def test_a_message_taken_back_never_fires(tmp_path: Path, key: str) -> None:
    async def test(bench: Bench) -> None:
        sent = bench.send(b"a", TIMER_DELAY_MS="5300")
        bench.send(b"b", TIMER_DELAY_MS="5300")
        handle = RecallHandle.decode(recall_handle(sent, "broker-a") or "")
        assert handle[:2] == ("T", "broker-a")
        bench.send(b"gone", TIMER_DELIVER_MS=str(handle.deliver_ms), TIMER_DEL_UNIQKEY=key)
        await bench.work_until(START_MS + 4_100)
        await bench.restart()
        await bench.work_until(START_MS + 8_000)
        assert bench.bodies() == [b"b"]

    run(test, Bench(tmp_path))


@pytest.mark.parametrize("key", ["a", "T+a"])
def test_message_of_another_topic_takes_nothing_back(tmp_path: Path, key: str) -> None:
    async def test(bench: Bench) -> None:
        sent = bench.send(b"a", TIMER_DELAY_MS="5300")
        due_ms = RecallHandle.decode(recall_handle(sent, "broker-a") or "").deliver_ms
        bench.send(b"gone", "other", TIMER_DELIVER_MS=str(due_ms), TIMER_DEL_UNIQKEY=key)
        await bench.work_until(START_MS + 8_000)
        assert bench.bodies() == [b"a"]

    run(test, Bench(tmp_path))


@pytest.mark.parametrize("text", ["", "%%%", "djIgYSBiIDEgYw==", "djEgYSBi"])
def test_handles_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(IllegalOperation):
        RecallHandle.decode(text)


def test_a_store_that_refuses_is_tried_again_without_skipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        for ms in (100, 200):
            bench.send(b"%d" % ms, TIMER_DELAY_MS=str(ms))

        def refuse(_messages: object) -> list[Appended]:
            raise StoreUnavailable("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(bench.store, "append_batch", refuse)
            bench.clock.advance(150)
            assert await bench.timers.work() == START_MS + 250
            bench.clock.advance(2_000)
            await bench.timers.work()
        assert bench.bodies() == []
        await bench.work_until(bench.clock.now_ms() + 100)
        assert bench.bodies() == [b"100", b"200"]

    run(test, Bench(tmp_path))


def test_a_record_that_says_nothing_useful_is_passed_over(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
        for raw in (b"", b"TIMER_OUT_MS\x01x\x02", b"TIMER_OUT_MS\x01%d\x02" % (START_MS + 1_000)):
            bench.store.append(NewMessage(TIMER_TOPIC, 0, b"junk", raw, 1, host))
        bench.send(b"a", TIMER_DELAY_MS="1500")
        await bench.work_until(START_MS + 2_000)
        assert bench.bodies() == [b"a"]

    run(test, Bench(tmp_path))
