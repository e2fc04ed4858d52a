"""When data reaches the disk: group commit, intervals, claims of the checkpoint, failing syncs."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.store.support import ROOT, START_MS, bodies, config, message, open_store

from orbitmq.runtime.filesystem import LocalFileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.maintenance.checkpoint import Checkpoint
from orbitmq.store.maintenance.flush import SyncWorker
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock


class SlowDisk(LocalFileSystem):
    """The local disk, except that a sync waits until the test releases it."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.syncs = 0
        self.error: int | None = None

    def sync_data(self, handle: int, /) -> None:  # type: ignore[override]  # wrong on purpose
        if threading.current_thread().name != "store-sync":
            return
        self.syncs += 1
        self.started.release()
        assert self.gate.acquire(timeout=10)
        if self.error is not None:
            raise OSError(self.error, "sync refused")


class Loop:
    """Runs posted callbacks on demand."""

    def __init__(self) -> None:
        self._posted: queue.Queue[Callable[[], None]] = queue.Queue()

    def post(self, work: Callable[[], None]) -> None:
        self._posted.put(work)

    def run_one(self) -> None:
        self._posted.get(timeout=10)()


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(tmp_path: Path, disk: SlowDisk, loop: Loop, clock: ManualClock) -> Iterator[MessageStore]:
    """Yields a store with a worker thread on a disk whose syncs the test releases."""
    store = MessageStore(
        StoreConfig(root=str(tmp_path), segment_bytes=1 << 20, flush_mode=FlushMode.SYNC),
        fs=disk,
        clock=clock,
        post=loop.post,
    )
    store.open()
    yield store
    disk.gate.release(1000)
    store.close()


def test_appends_that_wait_share_one_sync_and_later_ones_the_next(
    store: MessageStore, disk: SlowDisk, loop: Loop
) -> None:
    answers: list[tuple[int, bool]] = []

    def wait(number: int) -> None:
        done = store.append(message(number))
        store.when_flushed(done.log_offset + done.size, lambda ok: answers.append((number, ok)))

    wait(0)
    assert disk.started.acquire(timeout=10)
    for number in range(1, 50):
        wait(number)
    assert answers == []
    disk.gate.release()
    loop.run_one()
    assert answers == [(0, True)]
    assert disk.started.acquire(timeout=10)
    disk.gate.release()
    loop.run_one()
    assert answers == [(number, True) for number in range(50)]
    assert disk.syncs == 2
    assert store.flushed_offset == store.max_log_offset


def test_what_is_on_the_disk_already_is_answered_at_once(
    store: MessageStore, disk: SlowDisk, loop: Loop
) -> None:
    done = store.append(message(0))
    answers: list[bool] = []
    store.when_flushed(done.size, answers.append)
    disk.gate.release()
    loop.run_one()
    store.when_flushed(done.size, answers.append)
    assert answers == [True, True]
    assert disk.syncs == 1


def test_waiting_ends_with_false_after_the_time_allowed(
    store: MessageStore, disk: SlowDisk, clock: ManualClock
) -> None:
    done = store.append(message(0))
    answers: list[bool] = []
    store.when_flushed(done.size, answers.append)
    clock.advance(4999)
    store.tick()
    assert answers == []
    clock.advance(1)
    store.tick()
    assert answers == [False]
    disk.gate.release(10)


def test_failed_sync_answers_false_and_stops_the_store_for_good(
    store: MessageStore, disk: SlowDisk, loop: Loop
) -> None:
    done = store.append(message(0))
    answers: list[bool] = []
    store.when_flushed(done.size, answers.append)
    disk.error = errno.EIO
    disk.gate.release()
    loop.run_one()
    assert answers == [False]
    disk.error = None
    store.tick()
    with pytest.raises(StoreUnavailable, match="cannot be flushed"):
        store.append(message(1))
    store.when_flushed(done.size, answers.append)
    assert answers == [False, False]


def test_callbacks_come_in_log_order_whatever_the_order_of_asking() -> None:
    store = open_store(FaultyFileSystem())
    ends = [done.log_offset + done.size for done in (store.append(message(number)) for number in range(4))]
    answers: list[int] = []
    for index in (2, 0, 3, 1):
        store.when_flushed(ends[index], lambda ok, index=index: answers.append(index))  # type: ignore[misc]  # a default binds the loop's value
    assert answers == []
    store.flush()
    assert answers == [0, 1, 2, 3]


def test_closing_answers_those_who_wait(tmp_path: Path) -> None:
    posted: queue.Queue[Callable[[], None]] = queue.Queue()
    others = set(threading.enumerate())
    store = MessageStore(StoreConfig(root=str(tmp_path), segment_bytes=1 << 20), post=posted.put)
    store.open()
    mine = [
        thread for thread in threading.enumerate() if thread not in others and thread.name == "store-sync"
    ]
    assert mine
    answers: list[bool] = []
    done = store.append(message(0))
    store.when_flushed(done.size, answers.append)
    store.close()
    while not posted.empty():
        posted.get()()
    assert answers == [True]
    assert not any(thread.is_alive() for thread in mine)


def tick_after(store: MessageStore, clock: ManualClock, ms: int) -> None:
    clock.advance(ms)
    store.tick()


def test_asynchronous_flush_waits_for_interval_and_pages() -> None:
    clock = ManualClock(START_MS)
    store = open_store(FaultyFileSystem(), clock, flush_pages_min=4, segment_bytes=1 << 20)
    store.append(message(0))
    tick_after(store, clock, 499)
    tick_after(store, clock, 1)
    assert store.flushed_offset == 0, "a single page waits"
    tick_after(store, clock, 9500)
    assert store.flushed_offset == store.max_log_offset, "but not indefinitely"
    for number in range(100):
        store.append(message(number, body=bytes(200)))
    tick_after(store, clock, 499)
    assert store.flushed_offset < store.max_log_offset
    tick_after(store, clock, 1)
    assert store.flushed_offset == store.max_log_offset


def on_disk(fs: FaultyFileSystem) -> Checkpoint:
    checkpoint = Checkpoint(fs.power_cut(), f"{ROOT}/checkpoint")
    checkpoint.load()
    return checkpoint


def test_checkpoint_claims_the_log_after_its_sync_and_the_queues_after_theirs() -> None:
    clock = ManualClock(START_MS)
    fs = FaultyFileSystem()
    store = open_store(fs, clock)
    store.append(message(0))
    tick_after(store, clock, 100)
    assert on_disk(fs).confirm_offset == 0
    tick_after(store, clock, 1000)
    tick_after(store, clock, 1000)
    end = store.max_log_offset
    assert (on_disk(fs).confirm_offset, on_disk(fs).queues_log_offset) == (end, 0)
    assert on_disk(fs).log_ms == START_MS
    store.append(message(1))
    tick_after(store, clock, 58_000)
    tick_after(store, clock, 1000)
    assert on_disk(fs).queues_log_offset == store.max_log_offset
    assert on_disk(fs).queues_ms == START_MS + 2100
    queue = next(path for path in fs.paths(f"{ROOT}/consumequeue/"))
    assert any(fs.power_cut().content(queue)), "what the checkpoint claims must survive a power cut"


def test_failed_sync_of_queues_freezes_their_claim_and_nothing_else() -> None:
    clock = ManualClock(START_MS)
    fs = FaultyFileSystem()
    store = open_store(fs, clock)
    store.append(message(0))
    tick_after(store, clock, 2000)

    def refuse(name: str, path: str) -> None:
        if name == "sync" and "consumequeue" in path:
            raise OSError(errno.EIO, "bad sector")

    fs.on_operation = refuse
    tick_after(store, clock, 60_000)
    fs.on_operation = None
    store.append(message(1))
    for _ in range(3):
        tick_after(store, clock, 60_000)
    assert store.writable
    assert on_disk(fs).queues_log_offset == 0
    assert on_disk(fs).confirm_offset == store.max_log_offset


def test_tails_are_written_by_the_interval() -> None:
    clock = ManualClock(START_MS)
    fs = FaultyFileSystem()
    store = open_store(fs, clock)
    store.append(message(0))
    assert fs.paths(f"{ROOT}/consumequeue/") == []
    tick_after(store, clock, 1000)
    assert len(fs.paths(f"{ROOT}/consumequeue/")) == 1


def test_worker_runs_syncs_before_the_next_step_of_a_job() -> None:
    order: list[str] = []
    gate = threading.Event()
    worker = SyncWorker(lambda: order.append("sync"), lambda error: order.append(repr(error)))

    def job() -> Iterator[None]:
        order.append("first")
        worker.want_sync()
        yield
        order.append("second")
        gate.set()

    worker.start()
    worker.submit(job())
    assert gate.wait(10)
    worker.drain()
    worker.stop()
    assert order == ["first", "sync", "second"]


def test_worker_reports_a_job_that_fails_and_goes_on() -> None:
    failures: list[str] = []
    done = threading.Event()

    def bad() -> Iterator[None]:
        yield from ()
        raise ValueError("no")

    def good() -> Iterator[None]:
        done.set()
        yield

    worker = SyncWorker(lambda: None, lambda error: failures.append(repr(error)))
    worker.start()
    worker.submit(bad())
    worker.submit(good())
    assert done.wait(10)
    worker.stop()
    assert failures == ["ValueError('no')"]


def test_store_with_a_worker_makes_the_next_segment_ahead_and_rolls_into_it(tmp_path: Path) -> None:
    store = MessageStore(
        config(root=str(tmp_path), segment_bytes=4096, index_enabled=False), post=lambda work: None
    )
    store.open()
    for number in range(16):
        store.append(message(number))
    store._flusher.drain()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2
    for number in range(16, 60):
        store.append(message(number))
    assert bodies(store) == [b"body %d" % number for number in range(60)]
    store.close()
