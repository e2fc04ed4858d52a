"""A store killed again during or right after recovery: bytes that were read and are durable are not read again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest
from tests.unit.store.support import ROOT, SEGMENT_BYTES, START_MS, bodies, message, open_store

from orbitmq.errors import CorruptionError
from orbitmq.store.maintenance import progress, recovery
from orbitmq.store.maintenance.checkpoint import Checkpoint
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.faulty_fs import FaultyFileSystem, SimulatedCrash
from orbitmq.testing.manual_clock import ManualClock

COUNT = 300
BIG_SEGMENT = 1 << 20
STEP_BYTES = 4096
QUEUES = f"{ROOT}/consumequeue/"


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets chunks of a few records, and a checkpoint after each of them."""
    monkeypatch.setattr(recovery, "CHUNK_BYTES", STEP_BYTES)
    monkeypatch.setattr(recovery, "RECORD_EXTRA_BYTES", 0)
    monkeypatch.setattr(progress, "PROGRESS_BYTES", STEP_BYTES)
    monkeypatch.setattr(progress, "PROGRESS_FILE_BYTES", 0)


@pytest.fixture(params=[SEGMENT_BYTES, BIG_SEGMENT], ids=["many segments", "one segment"])
def segment_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def killed(segment_bytes: int, rare: tuple[int, ...] = ()) -> FaultyFileSystem:
    """Returns a disk with messages whose log is flushed and whose queues never were; those in ``rare`` are in queue
    3.
    """
    fs, clock = FaultyFileSystem(), ManualClock(START_MS)
    store = open_store(fs, clock, segment_bytes=segment_bytes)
    for number in range(COUNT):
        clock.advance(1)
        store.append(message(number, queue_id=3 if number in rare else number % 3))
    for _ in range(2):
        clock.advance(1000)
        store.tick()
    disk = fs.power_cut(lambda path, page: path.startswith(f"{ROOT}/commitlog"))
    assert checkpoint_of(disk).confirm_offset == store.max_log_offset
    assert checkpoint_of(disk).queues_log_offset == 0
    return disk


def checkpoint_of(fs: FaultyFileSystem) -> Checkpoint:
    checkpoint = Checkpoint(fs, f"{ROOT}/checkpoint")
    checkpoint.load()
    return checkpoint


def crashes_of_a_recovery(
    disk: FaultyFileSystem, segment_bytes: int, step: int = 1
) -> Iterator[FaultyFileSystem]:
    """Yields the disk's state before every ``step``-th operation of a recovery."""
    whole = disk.kill()
    open_store(whole, segment_bytes=segment_bytes)
    for operation in range(0, whole.operation_count, step):
        fs = disk.kill()

        def check(name: str, path: str, fs: FaultyFileSystem = fs, last: int = operation) -> None:
            if fs.operation_count > last:
                raise SimulatedCrash(f"{name} {path}")

        fs.on_operation = check
        with pytest.raises(SimulatedCrash):
            open_store(fs, segment_bytes=segment_bytes)
        fs.on_operation = None
        yield fs


def content(store: MessageStore) -> tuple[object, ...]:
    """Returns everything a client can see of the store."""
    queues = [
        (topic, queue_id, store.min_offset(topic, queue_id), bodies(store, topic, queue_id))
        for topic in store.topics()
        for queue_id in store.queues(topic)
    ]
    hits = [
        [bytes(hit) for hit in store.query("TopicA", f"{number:032X}", 8, 0, 1 << 60)[0]]
        for number in range(COUNT)
    ]
    return queues, hits, store.min_log_offset, store.max_log_offset


def files_after_close(store: MessageStore, fs: FaultyFileSystem) -> dict[str, bytes]:
    store.close()
    return {path: fs.content(path) for path in fs.paths(QUEUES)}


@pytest.mark.parametrize(
    "cut", [FaultyFileSystem.kill, FaultyFileSystem.power_cut], ids=["kill", "power cut"]
)
def test_killed_recovery_goes_on_where_it_was_on_the_disk(
    segment_bytes: int, cut: Callable[[FaultyFileSystem], FaultyFileSystem]
) -> None:
    disk = killed(segment_bytes)
    undisturbed_disk = disk.kill()
    undisturbed = open_store(undisturbed_disk, segment_bytes=segment_bytes)
    assert undisturbed.recovery is not None
    assert undisturbed.recovery.record_count == COUNT
    expected, end = content(undisturbed), undisturbed.max_log_offset
    expected_files = files_after_close(undisturbed, undisturbed_disk)
    claims: set[int] = set()
    for fs in crashes_of_a_recovery(disk, segment_bytes, step=13):
        left = cut(fs)
        claimed = checkpoint_of(left).queues_log_offset
        claims.add(claimed)
        half_made = any(not left.content(path) for path in left.paths(QUEUES))
        store = open_store(left, segment_bytes=segment_bytes)
        report = store.recovery
        assert report is not None
        assert claimed <= end
        # A queue file that was just being created makes its queue unusable, and then the whole log is read.
        assert report.start >= claimed or half_made
        assert report.record_count <= COUNT - COUNT * report.start // end + 2
        assert content(store) == expected
        assert files_after_close(store, left) == expected_files
        again = open_store(left, segment_bytes=segment_bytes)
        assert content(again) == expected
        again.close()
    assert len(claims) > 5, "no checkpoint was written on the way"


def test_second_kill_right_after_a_recovery_walks_only_what_came_after_its_last_checkpoint() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    expected = content(store)
    store = open_store(disk.power_cut(), segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert store.recovery.record_count < COUNT // 5
    assert content(store) == expected


def test_walk_begins_at_the_end_of_the_last_recovery_once_the_queues_are_flushed() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    recovered = store.max_log_offset
    store.flush()
    disk = disk.power_cut()
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert (store.recovery.start, store.recovery.record_count) == (recovered, 0)
    for number in range(COUNT, COUNT + 30):
        store.append(message(number, queue_id=number % 3))
    store.flush()
    expected = content(store)
    store = open_store(disk.power_cut(), segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    # Bytes written since are read again: only a recovery verifies them.
    assert (store.recovery.start, store.recovery.record_count) == (recovered, 30)
    assert content(store) == expected


def test_time_of_the_last_record_survives_a_walk_that_meets_none() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    store.flush()
    before = checkpoint_of(disk)
    disk = disk.power_cut()
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert store.recovery.record_count == 0
    assert checkpoint_of(disk).log_ms == before.log_ms == START_MS + COUNT
    number = store.append(message(COUNT)).queue_offset
    assert store.store_time_at("TopicA", 0, number) >= before.log_ms, "times in a log never go back"


@pytest.mark.parametrize("gone", [f"{QUEUES}TopicA/1/", QUEUES])
def test_queues_removed_after_a_recovery_are_rebuilt(gone: str) -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    store.flush()
    expected = content(store)
    disk = disk.kill()
    for path in disk.paths(gone):
        disk.remove(path)
    assert content(open_store(disk, segment_bytes=BIG_SEGMENT)) == expected


def test_index_removed_after_a_recovery_is_rebuilt() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    store.flush()
    expected = content(store)
    disk = disk.kill()
    for path in disk.paths(f"{ROOT}/index/"):
        disk.remove(path)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert store.recovery.start > 0
    assert content(store) == expected


@pytest.mark.parametrize("rare", [(5, 160), (5, 290)], ids=["met early", "met late"])
def test_queue_that_waits_to_be_rebuilt_is_not_claimed(rare: tuple[int, ...]) -> None:
    """It lacks units in front of the walk: whoever begins in the middle of the walk could not know."""
    disk = killed(SEGMENT_BYTES, rare)
    store = open_store(disk)
    store.flush()
    expected = content(store)
    half = store.max_log_offset // 2 // SEGMENT_BYTES * SEGMENT_BYTES
    disk = disk.kill()
    for path in disk.paths(f"{QUEUES}TopicA/3/"):
        disk.remove(path)
    disk.sync_directory(f"{QUEUES}TopicA/3")
    checkpoint = checkpoint_of(disk)
    checkpoint.queues_log_offset, checkpoint.verified_offset, checkpoint.verified_queues = half, 0, 0
    checkpoint.flush()
    rebuilt = 0
    for fs in crashes_of_a_recovery(disk, SEGMENT_BYTES, step=11):
        for left in (fs.kill(), fs.power_cut()):
            store = open_store(left)
            assert content(store) == expected
            assert store.recovery is not None
            if store.recovery.rebuilt_queues:
                rebuilt += 1
                assert checkpoint_of(left).queues_log_offset <= store.recovery.start
                assert checkpoint_of(left).verified_offset == 0
    assert rebuilt


def test_log_is_synced_before_it_is_claimed() -> None:
    """A killed process leaves its log in the page cache, which a power cut during the recovery would erase."""
    disk = killed(BIG_SEGMENT)
    log_synced = False
    claims: list[int] = []

    def watch(name: str, path: str) -> None:
        nonlocal log_synced
        if (name, path) == ("sync", f"{ROOT}/commitlog/{0:020d}"):
            log_synced = True
        elif (name, path) == ("pwrite", f"{ROOT}/checkpoint"):
            assert log_synced, f"claimed before it was synced, after {claims}"
            claims.append(checkpoint_of(disk).queues_log_offset)
            log_synced = False

    disk.on_operation = watch
    open_store(disk, segment_bytes=BIG_SEGMENT)
    assert len(claims) > 5
    assert claims == sorted(set(claims))


def test_damage_before_the_place_to_begin_is_found_by_a_recovery_that_looks_for_it() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    store.flush()
    offset = store.log_offset_at("TopicA", 0, 80)
    disk = disk.kill()
    disk.flip(f"{ROOT}/commitlog/{0:020d}", offset + 90)
    store = open_store(disk, segment_bytes=BIG_SEGMENT, recover_past_corruption=True)
    assert store.recovery is not None
    assert [start for start, _ in store.recovery.damaged] == [offset]


def test_log_that_was_cut_is_read_again_from_the_cut() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    cut = store.log_offset_at("TopicA", 0, 80)
    store.truncate(cut)
    for number in range(240, COUNT):
        store.append(message(number, queue_id=number % 3, body=b"other %d" % number))
    store.flush()
    expected = content(store)
    store = open_store(disk.power_cut(), segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert (store.recovery.start, store.recovery.record_count) == (cut, COUNT - 240)
    assert content(store) == expected


def test_place_where_no_record_begins_is_not_believed() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    store.flush()
    expected = content(store)
    disk = disk.kill()
    checkpoint = checkpoint_of(disk)
    checkpoint.verified_offset -= 1
    checkpoint.flush()
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert (store.recovery.start, store.recovery.record_count) == (0, COUNT)
    assert content(store) == expected


def test_damage_found_by_a_recovery_is_found_again_by_the_next() -> None:
    disk = killed(BIG_SEGMENT)
    sound = open_store(disk.kill(), segment_bytes=BIG_SEGMENT)
    offset = sound.log_offset_at("TopicA", 0, 80)
    disk.flip(f"{ROOT}/commitlog/{0:020d}", offset + 90)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"damaged at offset {offset} "):
            open_store(disk, segment_bytes=BIG_SEGMENT)
        assert 0 < checkpoint_of(disk).queues_log_offset <= offset
        disk = disk.power_cut()
    store = open_store(disk, segment_bytes=BIG_SEGMENT, recover_past_corruption=True)
    found = [body for queue_id in range(3) for body in bodies(store, "TopicA", queue_id)]
    assert len(found) == COUNT - 1
    disk = disk.kill()
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert [body for queue_id in range(3) for body in bodies(store, "TopicA", queue_id)] == found


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_queue_files_that_cannot_be_synced_are_never_claimed(error: int) -> None:
    disk = killed(BIG_SEGMENT)
    failed: list[str] = []

    def refuse(name: str, path: str) -> None:
        if name == "sync" and path.startswith(QUEUES) and not failed:
            failed.append(path)
            raise OSError(error, "refused")

    disk.on_operation = refuse
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert failed
    store.flush()
    assert checkpoint_of(disk).queues_log_offset == 0
    disk.on_operation = None
    expected = content(store)
    left = disk.power_cut(lambda path, page: not path.startswith(QUEUES))
    store = open_store(left, segment_bytes=BIG_SEGMENT)
    assert content(store) == expected


def test_full_disk_ends_the_checkpoints_but_not_the_recovery() -> None:
    disk = killed(BIG_SEGMENT)

    def refuse(name: str, path: str) -> None:
        if name == "pwrite" and path.startswith(QUEUES):
            raise OSError(errno.ENOSPC, "full")

    disk.on_operation = refuse
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert store.recovery.queue_fault
    assert checkpoint_of(disk).queues_log_offset == 0
    assert [len(bodies(store, "TopicA", queue_id)) for queue_id in range(3)] == [COUNT // 3] * 3


def test_checkpoint_of_another_writer_does_not_vouch_for_a_place_in_a_segment() -> None:
    disk = killed(BIG_SEGMENT)
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    store.flush()
    disk = disk.kill()
    page = disk.content(f"{ROOT}/checkpoint")
    disk.overwrite(f"{ROOT}/checkpoint", 0, (int.from_bytes(page[:8], "big") + 1).to_bytes(8, "big"))
    store = open_store(disk, segment_bytes=BIG_SEGMENT)
    assert store.recovery is not None
    assert (store.recovery.start, store.recovery.record_count) == (0, COUNT)


def test_many_queue_files_make_checkpoints_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PROGRESS_FILE_BYTES", 1 << 20)
    disk = killed(BIG_SEGMENT)
    open_store(disk, segment_bytes=BIG_SEGMENT)
    assert checkpoint_of(disk).queues_log_offset == 0
