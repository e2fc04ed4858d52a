"""Opening after every kind of stop: where the walk starts, and what is truncated, refused or rebuilt."""

from __future__ import annotations

import pytest
from tests.unit.store.support import (
    FILE_UNITS,
    HOST_V6,
    ROOT,
    SEGMENT_BYTES,
    START_MS,
    bodies,
    message,
    open_store,
)

from orbitmq.errors import CorruptionError
from orbitmq.store.maintenance import progress, recovery
from orbitmq.store.maintenance.checkpoint import Checkpoint
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import ReadStatus
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

LOG = f"{ROOT}/commitlog/"
QUEUES = f"{ROOT}/consumequeue/"


def written(
    count: int, *, flushed: bool = False, log_flushed: bool = False, closed: bool = False
) -> FaultyFileSystem:
    """Returns a disk with ``count`` messages, as left by a killed (or ``closed``) process.

    With only the log flushed, the state of the queues is unknown, and a recovery walks the whole log.
    """
    fs = FaultyFileSystem()
    clock = ManualClock(START_MS)
    store = open_store(fs, clock)
    for number in range(count):
        store.append(message(number, queue_id=number % 2))
    if flushed:
        store.flush()
    if log_flushed:
        for _ in range(2):
            clock.advance(1000)
            store.tick()
    if closed:
        store.close()
    return fs.kill()


def expected(count: int, queue_id: int) -> list[bytes]:
    return [b"body %d" % number for number in range(queue_id, count, 2)]


def assert_holds(store: MessageStore, count: int) -> None:
    for queue_id in (0, 1):
        assert bodies(store, "TopicA", queue_id) == expected(count, queue_id)
    for number in range(count):
        hits, _ = store.query("TopicA", f"{number:032X}", 8, 0, 1 << 60)
        assert len(hits) == 1, number


def segment_of(offset: int) -> str:
    return f"{LOG}{offset - offset % SEGMENT_BYTES:020d}"


def offset_of(fs: FaultyFileSystem, number: int) -> int:
    """Returns the log offset of message ``number`` in a store that is not open."""
    store = open_store(fs.kill())
    return store.log_offset_at("TopicA", number % 2, number // 2)


def test_empty_directory_becomes_an_empty_store() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    assert (store.min_log_offset, store.max_log_offset, store.topics()) == (0, 0, [])
    assert len(fs.content(f"{ROOT}/checkpoint")) == 4096
    assert f"{ROOT}/abort" in fs.paths()


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("count", [0, 1, 30, 200])
def test_store_opens_with_everything_that_was_written(count: int, closed: bool) -> None:
    fs = written(count, closed=closed)
    store = open_store(fs)
    assert store.recovery is not None
    assert (store.recovery.clean, store.recovery.cut_reason) == (closed, "")
    assert_holds(store, count)
    store.append(message(count, queue_id=count % 2))
    assert_holds(store, count + 1)


def test_clean_store_walks_only_its_last_segment() -> None:
    store = open_store(written(200, closed=True))
    assert store.recovery is not None
    assert store.recovery.start == store.max_log_offset - store.max_log_offset % SEGMENT_BYTES
    assert store.recovery.dispatched_count == 0


def test_killed_store_walks_from_the_segment_its_checkpoint_vouches_for() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(100):
        store.append(message(number, queue_id=number % 2))
    store.flush()
    flushed = store.max_log_offset
    for number in range(100, 200):
        store.append(message(number, queue_id=number % 2))
    store = open_store(fs.kill())
    assert store.recovery is not None
    assert store.recovery.start == flushed - flushed % SEGMENT_BYTES
    assert_holds(store, 200)


@pytest.mark.parametrize("closed", [True, False])
def test_lost_queues_and_index_are_rebuilt_from_the_log(closed: bool) -> None:
    fs = written(100, closed=closed)
    untouched = {path: fs.content(path) for path in fs.paths(QUEUES)}
    for path in (*fs.paths(QUEUES), *fs.paths(f"{ROOT}/index/")):
        fs.remove(path)
    store = open_store(fs)
    assert_holds(store, 100)
    store.close()
    if closed:
        assert {path: fs.content(path) for path in fs.paths(QUEUES)} == untouched


@pytest.mark.parametrize("damage", ["gone", "short", "gap"])
@pytest.mark.parametrize("closed", [True, False])
def test_one_damaged_queue_is_rebuilt_from_the_whole_log(closed: bool, damage: str) -> None:
    fs = written(200, flushed=True, closed=closed)
    paths = fs.paths(f"{QUEUES}TopicA/1/")
    if damage == "gone":
        for path in paths:
            fs.remove(path)
    elif damage == "short":
        fs.resize(paths[0], 30)
    else:
        fs.remove(paths[2])
    store = open_store(fs)
    assert store.recovery is not None
    assert store.recovery.rebuilt_queues == ([] if damage == "gone" else [("TopicA", 1)])
    assert_holds(store, 200)


@pytest.mark.parametrize("closed", [True, False])
def test_lost_queue_without_records_in_the_newest_segments_is_rebuilt(
    closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start scans only the newest segments. The next message of the queue used to get the number 0 again."""
    for module, name in ((recovery, "CHUNK_BYTES"), (progress, "PROGRESS_BYTES")):
        monkeypatch.setattr(module, name, SEGMENT_BYTES // 4)
    monkeypatch.setattr(recovery, "RECORD_EXTRA_BYTES", 0)
    monkeypatch.setattr(progress, "PROGRESS_FILE_BYTES", 0)
    fs, clock = FaultyFileSystem(), ManualClock(START_MS)
    store = open_store(fs, clock)
    for number in range(200):
        store.append(message(number, queue_id=number % 2))
        if number < 3:
            store.append(message(1000 + number, topic="Seldom"))
    store.flush()
    assert store.max_log_offset > 3 * SEGMENT_BYTES
    if closed:
        store.close()
    fs = fs.kill()
    for path in fs.paths(f"{QUEUES}Seldom/"):
        fs.remove(path)
    for stop in range(0, 400, 2):
        interrupted = fs.kill()
        interrupted.on_operation = _stop_after(stop)
        try:
            open_store(interrupted)
        except InterruptedError:
            assert len(bodies(open_store(interrupted.kill()), "Seldom")) == 3
            continue
        assert stop > 9
        break
    store = open_store(fs)
    assert bodies(store, "Seldom") == [b"body 1000", b"body 1001", b"body 1002"]
    assert store.append(message(1003, topic="Seldom")).queue_offset == 3
    assert_holds(store, 200)
    store.delete_topic("Seldom")
    store.flush()
    store = open_store(fs.kill())
    assert store.recovery is not None
    assert store.recovery.start > 0, "a deleted queue is not missing"


def test_units_behind_the_log_are_dropped_and_zeroed() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(20):
        store.append(message(number))
    store.flush()
    queue = store._parts.queues.by_key["TopicA", 0]
    for number in range(20, 40):
        queue.append(100_000 + number, 100, 0)
    queue.write_tail()
    fs = fs.kill()
    store = open_store(fs)
    assert store.max_offset("TopicA", 0) == 20
    store.close()
    content = b"".join(fs.content(path) for path in fs.paths(f"{QUEUES}TopicA/0/"))
    assert not any(content[20 * 20 :])
    assert len(fs.paths(f"{QUEUES}TopicA/0/")) == -(-20 // FILE_UNITS)


def test_torn_tail_is_cut_and_no_byte_of_it_stays() -> None:
    fs = written(30)
    end = offset_of(fs, 29)
    path = segment_of(end)
    fs.overwrite(path, end % SEGMENT_BYTES + 60, bytes(200))
    store = open_store(fs)
    assert store.recovery is not None
    assert store.recovery.cut_reason
    assert store.max_log_offset == end
    assert_holds(store, 29)
    assert not any(fs.content(path)[end % SEGMENT_BYTES :])


def test_whole_records_behind_a_hole_are_not_taken_for_the_log() -> None:
    fs = written(30)
    start, end = offset_of(fs, 20), offset_of(fs, 21)
    assert start // SEGMENT_BYTES == end // SEGMENT_BYTES
    fs.overwrite(segment_of(start), start % SEGMENT_BYTES, bytes(end - start))
    fs.boot += 1  # a power cut may leave the log like this
    store = open_store(fs)
    assert store.max_log_offset == start
    assert_holds(store, 20)
    # If the old records still existed, this one would make them reachable again.
    store.append(message(20, queue_id=0))
    assert_holds(open_store(fs.kill()), 21)


@pytest.mark.parametrize("closed", [True, False])
def test_rot_in_what_was_flushed_is_an_error_that_names_offset_and_remedy(closed: bool) -> None:
    fs = written(30, log_flushed=True, closed=closed)
    offset = offset_of(fs, 29 if closed else 11)
    fs.flip(segment_of(offset), offset % SEGMENT_BYTES + 90)
    before = {path: fs.content(path) for path in fs.paths(LOG)}
    store = MessageStore(open_store(FaultyFileSystem()).config, fs=fs, clock=ManualClock(START_MS))
    with pytest.raises(CorruptionError, match=rf"offset {offset} .*recoverPastCorruption=true"):
        store.open()
    assert {path: fs.content(path) for path in fs.paths(LOG)} == before, "a log in doubt is not changed"
    assert fs.open_paths == []


def test_lost_end_of_what_was_flushed_is_an_error() -> None:
    fs = written(30, flushed=True)
    offset = offset_of(fs, 28)
    fs.overwrite(segment_of(offset), offset % SEGMENT_BYTES, bytes(SEGMENT_BYTES - offset % SEGMENT_BYTES))
    with pytest.raises(CorruptionError, match=f"offset {offset} .zeros"):
        open_store(fs)


def test_lost_log_is_an_error() -> None:
    fs = written(30, closed=True)
    for path in fs.paths(LOG):
        fs.remove(path)
    with pytest.raises(CorruptionError, match="no segment"):
        open_store(fs)


def test_damage_is_skipped_on_request_and_everything_else_served() -> None:
    fs = written(100, log_flushed=True)
    victims = [10, 11, 40]
    whole = open_store(fs.kill())
    offsets = {n: whole.log_offset_at("TopicA", n % 2, n // 2) for n in range(100)}
    for number in victims:
        fs.flip(segment_of(offsets[number]), offsets[number] % SEGMENT_BYTES + 90)
    with pytest.raises(CorruptionError):
        open_store(fs.kill())
    # Requested once; from then on the store knows what it lacks, whether or not the walk finds it.
    for option, closed in ((True, True), (False, True), (False, False), (False, True)):
        store = open_store(fs, recover_past_corruption=option)
        for queue_id in (0, 1):
            survivors = [n for n in range(queue_id, 100, 2) if n not in victims]
            assert bodies(store, "TopicA", queue_id) == [b"body %d" % number for number in survivors]
            assert store.max_offset("TopicA", queue_id) == 50, "lost messages keep their numbers"
        for number in victims:
            assert store.record_at(offsets[number]) is None
            assert store.read("TopicA", number % 2, number // 2, 1).status is not ReadStatus.FOUND
        assert len(list(store.scan(0))) == 97
        if closed:
            store.close()
        fs = fs.kill()
        for path in (*fs.paths(QUEUES), *fs.paths(f"{ROOT}/index/")) if not option and closed else ():
            fs.remove(path)  # the next walk has to cross the damage again


def test_damage_to_the_end_of_a_segment_is_skipped_to_the_next() -> None:
    fs = written(100, log_flushed=True)
    whole = open_store(fs.kill())
    first_of_second = next(
        n for n in range(100) if whole.log_offset_at("TopicA", n % 2, n // 2) == SEGMENT_BYTES
    )
    start = offset_of(fs, first_of_second - 2)
    fs.overwrite(segment_of(start), start + 5, b"\xee" * (SEGMENT_BYTES - start - 5))
    store = open_store(fs, recover_past_corruption=True)
    assert store.recovery is not None
    assert store.recovery.damaged == [(start, SEGMENT_BYTES)]
    lost = {first_of_second - 2, first_of_second - 1}
    for queue_id in (0, 1):
        survivors = [n for n in range(queue_id, 100, 2) if n not in lost]
        assert bodies(store, "TopicA", queue_id) == [b"body %d" % number for number in survivors]


@pytest.mark.parametrize("field", ["queue offset", "queue id", "topic"])
def test_rot_in_a_head_that_no_checksum_covers_is_found_by_the_numbers(field: str) -> None:
    fs = written(40, log_flushed=True)
    offset = offset_of(fs, 20)
    position = {"queue offset": 27, "queue id": 15, "topic": 88 + len(b"body 20") + 2}[field]
    fs.flip(segment_of(offset), offset % SEGMENT_BYTES + position, 0x04)
    with pytest.raises(CorruptionError, match="queue offset"):
        open_store(fs)


def test_topic_that_could_leave_the_store_is_never_a_directory() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(3):
        store.append(message(number, topic="Topic"))
    fs = fs.kill()
    content = fs.content(f"{LOG}{0:020d}")
    at = content.rindex(b"\x05Topic") + 1
    fs.overwrite(f"{LOG}{0:020d}", at, b"../up")
    fs.boot += 1
    store = open_store(fs)
    assert store.topics() == ["Topic"]
    assert bodies(store, "Topic") == [b"body 0", b"body 1"]
    assert not [path for path in fs.paths() if "up" in path]


def test_deleted_topic_stays_deleted_and_starts_anew_at_zero() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(10):
        store.append(message(number))
        store.append(message(number, topic="TopicB"))
    assert store.delete_topic("TopicA") == 1
    assert store.delete_topic("TopicA") == 0
    assert open_store(fs.kill()).topics() == ["TopicB"]
    assert store.append(message(100)).queue_offset == 0
    assert store.append(message(101)).queue_offset == 1
    killed = open_store(fs.kill())
    assert bodies(killed) == [b"body 100", b"body 101"]
    assert len(bodies(killed, "TopicB")) == 10
    store.close()
    assert bodies(open_store(fs)) == [b"body 100", b"body 101"]


def test_interrupted_deletion_is_finished() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(20):
        store.append(message(number))
    store.flush()
    store._parts.deleted.add("TopicA", store.max_log_offset)
    assert open_store(fs.kill()).topics() == []


def test_store_of_another_writer_may_restart_a_queue_without_a_note() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(5):
        store.append(message(number))
    store._parts.queues.delete_topic("TopicA")
    for number in range(10, 13):
        store.append(message(number))
    fs = fs.kill()
    forget_confirm_offset(fs)
    assert bodies(open_store(fs)) == [b"body 10", b"body 11", b"body 12"]


def forget_confirm_offset(fs: FaultyFileSystem) -> None:
    """Makes the checkpoint look like Apache's, which has no confirmed offset without a controller."""
    checkpoint = Checkpoint(fs, f"{ROOT}/checkpoint")
    checkpoint.load()
    checkpoint.confirm_offset = 0
    checkpoint.queues_log_offset = 0
    checkpoint.flush()


def test_apache_checkpoint_tells_rot_from_a_torn_tail_by_time() -> None:
    clock = ManualClock(START_MS)
    fs = FaultyFileSystem()
    store = open_store(fs, clock)
    for number in range(20):
        clock.advance(1)
        store.append(message(number))
    store.flush()
    middle, last = (store.log_offset_at("TopicA", 0, number) for number in (10, 19))
    for number in range(20, 25):
        clock.advance(1)
        store.append(message(number))
    torn = store.log_offset_at("TopicA", 0, 23)
    disk = fs.kill()
    forget_confirm_offset(disk)
    disk.boot += 1
    disk.flip(segment_of(torn), torn % SEGMENT_BYTES + 90)
    assert bodies(open_store(disk.kill())) == [b"body %d" % number for number in range(23)]
    for offset in (middle, last):
        rotten = disk.kill()
        rotten.flip(segment_of(offset), offset % SEGMENT_BYTES + 90)
        with pytest.raises(CorruptionError, match=f"offset {offset} "):
            open_store(rotten)


def test_uncommon_records_are_walked_as_well() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs, store_host=HOST_V6)
    kinds: list[dict[str, object]] = [
        {},
        {"born_host": HOST_V6},
        {"topic": "T" * 200},
        {"properties": b"A\x01" + b"x" * 700 + b"\x02TAGS\x01t\x02"},
        {"properties": b""},
        {"topic": "SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x013\x02"},
        {"sys_flag": 0x4},
    ]
    for number in range(70):
        store.append(message(number, **kinds[number % 7]))  # type: ignore[arg-type]  # values of several types by name
    fs = fs.kill()
    again = open_store(fs.kill())
    for path in fs.paths(QUEUES):
        fs.remove(path)
    rebuilt = open_store(fs)
    for other in (again, rebuilt):
        assert other.topics() == ["SCHEDULE_TOPIC_XXXX", "T" * 200, "TopicA"]
        for topic in other.topics():
            assert bodies(other, topic) == bodies(store, topic)
            for number in range(store.max_offset(topic, 0)):
                assert other.units(topic, 0, number, 1) == store.units(topic, 0, number, 1)


def test_queue_whose_beginning_expired_is_rebuilt_with_its_numbers() -> None:
    fs = written(200, flushed=True, closed=True)
    for path in fs.paths(LOG)[:3]:
        fs.remove(path)
    whole = open_store(fs.kill())
    first = {queue_id: whole.min_offset("TopicA", queue_id) for queue_id in (0, 1)}
    assert all(first.values())
    for path in fs.paths(QUEUES):
        fs.remove(path)
    store = open_store(fs)
    for queue_id in (0, 1):
        assert (store.min_offset("TopicA", queue_id), store.max_offset("TopicA", queue_id)) == (
            first[queue_id],
            100,
        )
        assert bodies(store, "TopicA", queue_id) == expected(200, queue_id)[first[queue_id] :]


def test_store_opens_on_a_full_disk_and_takes_writes_when_there_is_space() -> None:
    fs = written(50)
    for path in fs.paths(QUEUES):
        fs.remove(path)
    fs.on_operation = lambda name, path: _refuse(path)
    clock = ManualClock(START_MS)
    store = open_store(fs, clock)
    assert store.unwritable_reason != ""
    for queue_id in (0, 1):
        assert bodies(store, "TopicA", queue_id) == expected(50, queue_id)
    fs.on_operation = None
    clock.advance(2000)
    store.tick()
    assert store.writable
    store.append(message(50, queue_id=0))
    store.close()
    assert_holds(open_store(fs), 51)


def _refuse(path: str) -> None:
    if path.startswith(QUEUES):
        raise OSError(28, "no space")


def test_next_segment_made_ahead_is_removed_again() -> None:
    fs = written(20)
    assert len(fs.paths(LOG)) == 2, "the second half of the first segment should have made the next one"
    store = open_store(fs)
    assert fs.paths(LOG) == [f"{LOG}{0:020d}"]
    assert_holds(store, 20)


def test_recovery_is_repeatable_when_it_is_interrupted_anywhere() -> None:
    base = written(60)
    probe = base.kill()
    before = probe.operation_count
    open_store(probe)
    total = probe.operation_count - before
    assert total > 10
    for stop in range(total):
        fs = base.kill()
        fs.on_operation = _stop_after(stop)
        with pytest.raises(InterruptedError):
            open_store(fs)
        assert_holds(open_store(fs.kill()), 60)


def _stop_after(count: int):  # type: ignore[no-untyped-def]  # returns a hook of the store's own type
    left = [count]

    def check(name: str, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise InterruptedError(name, path)

    return check
