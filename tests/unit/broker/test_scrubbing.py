"""The pace of the background verification, and its state across restarts."""

from __future__ import annotations

import asyncio
import errno

import pytest
from tests.unit.store.read.test_integrity import BAD, written
from tests.unit.store.support import ROOT, SEGMENT_BYTES, START_MS, open_store

from orbitmq.broker.scrubbing import Scrubbing
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.maintenance import scrub
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

HOUR_S = 3600


def scrubbing(fs: FaultyFileSystem, store: MessageStore, clock: ManualClock) -> Scrubbing:
    return Scrubbing(store, fs, SafeFile(fs, f"{ROOT}/config/scrub.json"), clock)


def rounds(one: Scrubbing, clock: ManualClock, seconds: int, step_s: int = 60) -> None:
    async def run() -> None:
        for _ in range(0, seconds, step_s):
            clock.advance(step_s * 1000)
            await one.round()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "PIECE_BYTES", 1000)
    monkeypatch.setattr("orbitmq.broker.scrubbing.PIECE_BYTES", 1000)


@pytest.mark.parametrize("hours", [1, 168])
def test_whole_log_is_verified_once_in_the_interval(hours: int) -> None:
    fs, _ = written()
    clock = ManualClock(START_MS)
    store = open_store(fs, clock, scrub_interval_hours=hours)
    store.scrubber._size = 1000
    one = scrubbing(fs, store, clock)
    rounds(one, clock, hours * HOUR_S // 2, hours * 60)
    assert store.scrubber.pass_count == 0
    assert 0.3 < store.scrubber.verified_bytes / store.max_log_offset < 0.6
    rounds(one, clock, hours * HOUR_S // 2 + hours * 600, hours * 60)
    assert store.scrubber.pass_count == 1


def test_nothing_is_read_when_it_is_switched_off() -> None:
    fs, _ = written()
    clock = ManualClock(START_MS)
    store = open_store(fs, clock, scrub_interval_hours=0)
    rounds(scrubbing(fs, store, clock), clock, 100 * HOUR_S, HOUR_S)
    assert store.scrubber.verified_bytes == 0


def test_pass_continues_after_a_restart() -> None:
    fs, _ = written()
    clock = ManualClock(START_MS)
    store = open_store(fs, clock, scrub_interval_hours=1)
    store.scrubber._size = 1000
    rounds(scrubbing(fs, store, clock), clock, HOUR_S * 2 // 3)
    position = store.scrubber.position
    assert position > SEGMENT_BYTES
    store.close()
    store = open_store(fs, clock, scrub_interval_hours=1)
    again = scrubbing(fs, store, clock)
    assert position - 1000 <= store.scrubber.position <= position
    rounds(again, clock, HOUR_S)
    assert store.scrubber.pass_count == 1
    assert again.passed_ms > START_MS


def test_segment_that_cannot_be_read_is_logged_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fs, units = written()
    clock = ManualClock(START_MS)
    store = open_store(fs, clock, scrub_interval_hours=1)
    store.scrubber._size = 1000
    pread, opened = fs.pread, fs._opened

    def failing(handle: int, size: int, offset: int) -> bytes:
        if opened(handle).path.endswith("commitlog/" + "0" * 20):
            raise OSError(errno.EIO, "Input/output error")
        return pread(handle, size, offset)

    monkeypatch.setattr(fs, "pread", failing)
    rounds(scrubbing(fs, store, clock), clock, 2 * HOUR_S)
    assert store.scrubber.damage_count >= 1
    assert store.scrubber.verified_bytes > 0
    assert "log segment cannot be read" in caplog.text
    assert units[BAD][0] < SEGMENT_BYTES
