"""The store as a whole: life cycle, facts, replication, truncation, retention, deletion."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.support import (
    FILE_UNITS,
    HOST_V6,
    ROOT,
    SEGMENT_BYTES,
    START_MS,
    bodies,
    config,
    decoded,
    message,
    open_store,
)

from orbitmq.broker.config import change_option
from orbitmq.errors import CorruptionError
from orbitmq.record.codec import decode_record
from orbitmq.store.errors import BadAppend, MessageTooLarge, StoreLocked, StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

HOUR_MS = 3_600_000


def test_store_is_open_once_at_a_time_and_leaves_nothing_open() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    with pytest.raises(StoreLocked, match="another broker"):
        open_store(fs)
    store.append(message(0))
    store.read("TopicA", 0, 0, 1)
    store.close()
    store.close()
    assert fs.open_paths == []
    assert f"{ROOT}/abort" not in fs.paths()
    again = open_store(fs)
    assert bodies(again) == [b"body 0"]
    again.close()
    assert fs.open_paths == []


def test_close_that_the_disk_refuses_keeps_the_abort_file_and_unlocks() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    store.append(message(0))
    fs.sync_error = 5
    with pytest.raises(OSError, match="Input/output"):
        store.close()
    assert f"{ROOT}/abort" in fs.paths()
    assert fs.open_paths == []
    fs.heal()
    again = open_store(fs)
    assert again.recovery is not None
    assert not again.recovery.clean


def test_facts_of_queues_and_log() -> None:
    store = open_store(FaultyFileSystem())
    for number in range(5):
        store.append(message(number, queue_id=number % 2))
    store.append(message(9, topic="Other", queue_id=3))
    assert (store.topics(), store.queues("TopicA"), store.queues("Nothing")) == (
        ["Other", "TopicA"],
        [0, 1],
        [],
    )
    assert (store.max_offset("TopicA", 0), store.max_offset("TopicA", 9)) == (3, 0)
    assert (store.min_offset("TopicA", 0), store.min_offset("TopicA", 9)) == (0, -1)
    assert store.log_offset_at("TopicA", 1, 0) == store.units("TopicA", 1, 0, 1)[0][0]
    assert (store.log_offset_at("TopicA", 1, 2), store.units("TopicA", 1, 2, 1)) == (-1, [])
    assert store.confirm_offset == store.max_log_offset
    assert (store.flushed_offset, store.min_log_offset) == (0, 0)
    assert store.index_last_update.log_offset > 0


def test_record_is_found_only_at_its_own_offset() -> None:
    store = open_store(FaultyFileSystem())
    done = [store.append(message(number)) for number in range(40)]
    for one in done:
        record = store.record_at(one.log_offset)
        assert record is not None
        assert decode_record(record).queue_offset == one.queue_offset
        assert store.record_at(one.log_offset, one.size) == record
        assert store.record_at(one.log_offset, one.size - 1) is None
    starts = {one.log_offset for one in done}
    for offset in [*range(-3, 600), 1 << 40, store.max_log_offset, store.max_log_offset - 10]:
        if offset not in starts:
            assert store.record_at(offset) is None


def test_log_range_gives_raw_bytes_up_to_the_end_of_a_segment() -> None:
    store = open_store(FaultyFileSystem())
    for number in range(40):
        store.append(message(number))
    whole = b""
    while piece := bytes(store.log_range(len(whole), 1000)):
        whole += piece
    assert len(whole) == store.max_log_offset
    assert bytes(store.log_range(SEGMENT_BYTES - 5, 1000)) == whole[SEGMENT_BYTES - 5 : SEGMENT_BYTES]
    assert bytes(store.log_range(1 << 40, 10)) == b""
    assert bytes(store.log_range(-1, 10)) == b""


def test_scan_gives_every_record_in_log_order_from_a_boundary_on() -> None:
    store = open_store(FaultyFileSystem())
    done = [store.append(message(number, queue_id=number % 3)) for number in range(60)]
    assert [decode_record(piece).log_offset for piece in store.scan(0)] == [one.log_offset for one in done]
    assert len(list(store.scan(done[20].log_offset, done[30].log_offset))) == 10
    assert list(store.scan(store.max_log_offset)) == []
    with pytest.raises(CorruptionError):
        list(store.scan(7))


def test_query_finds_by_key_within_times_and_bounds_the_count() -> None:
    clock = ManualClock(START_MS)
    store = open_store(FaultyFileSystem(), clock, query_count_max=5)
    for number in range(20):
        clock.advance(1000)
        store.append(message(number, properties=b"KEYS\x01same k%d\x02" % number))
    hits, update = store.query("TopicA", "same", 100, 0, 1 << 60)
    assert [record.body for record in decoded(hits)] == [b"body %d" % number for number in range(15, 20)]
    assert update.timestamp_ms == START_MS + 20_000
    hits, _ = store.query("TopicA", "k7", 10, 0, 1 << 60)
    assert [record.body for record in decoded(hits)] == [b"body 7"]
    assert store.query("TopicA", "k7", 10, START_MS + 9000, 1 << 60)[0] == []
    assert store.query("TopicB", "k7", 10, 0, 1 << 60)[0] == []
    without = open_store(FaultyFileSystem(), index_enabled=False)
    without.append(message(1))
    assert without.query("TopicA", "k1", 10, 0, 1 << 60) == ([], (0, 0))
    assert without.index_last_update == (0, 0)


# Replication.


def replicated(source: MessageStore, piece_bytes: int) -> tuple[MessageStore, list[tuple[str, int]]]:
    """Returns a second store that received the first one's log in pieces."""
    arrived: list[tuple[str, int]] = []
    replica = open_store(
        FaultyFileSystem(), arrived=[lambda topic, queue_id: arrived.append((topic, queue_id))]
    )
    while replica.max_log_offset < source.max_log_offset:
        piece = source.log_range(replica.max_log_offset, piece_bytes)
        replica.append_raw(replica.max_log_offset, piece)
    return replica, arrived


def source_store() -> MessageStore:
    store = open_store(FaultyFileSystem())
    for number in range(80):
        store.append(message(number, queue_id=number % 3, sys_flag=4 if number % 10 == 9 else 0))
    return store


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 1000, 32768])
def test_replica_gets_the_same_bytes_and_queues_however_the_log_is_cut(piece_bytes: int) -> None:
    source = source_store()
    replica, arrived = replicated(source, piece_bytes)
    assert [bytes(piece) for piece in replica.scan(0)] == [bytes(piece) for piece in source.scan(0)]
    assert bytes(replica.log_range(0, 1 << 20)) == bytes(source.log_range(0, 1 << 20))
    for queue_id in range(3):
        assert bodies(replica, "TopicA", queue_id) == bodies(source, "TopicA", queue_id)
    hits, _ = replica.query("TopicA", f"{17:032X}", 3, 0, 1 << 60)
    assert len(hits) == 1
    assert {queue_id for _, queue_id in arrived} == {0, 1, 2}
    assert replica.writable


KINDS: dict[str, dict[str, Any]] = {
    "ordinary": {},
    "tag first": {"properties": b"TAGS\x01tag\x02UNIQ_KEY\x01%032X\x02" % 5},
    "name of a tag inside a value": {"properties": b"a\x01xTAGS\x01tag\x02"},
    "keys": {"properties": b"KEYS\x01k1 k2\x02TAGS\x01t\x02"},
    "no properties": {"properties": b""},
    "long properties": {"properties": b"a\x01" + b"v" * 900 + b"\x02"},
    "prepared": {"sys_flag": 4},
    "committed": {"sys_flag": 8},
    "rolled back": {"sys_flag": 12},
    "IPv6": {"born_host": HOST_V6},
    "long topic": {"topic": "T" * 200},
    "another topic": {"topic": "TopicB", "queue_id": 3},
    "delayed": {"topic": "SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x013\x02"},
    "no body": {"body": b""},
}


@pytest.mark.parametrize("piece_bytes", [64, 700, 32768])
@pytest.mark.parametrize("kind", KINDS)
def test_replica_has_the_files_of_its_master_whatever_the_messages_are(kind: str, piece_bytes: int) -> None:
    def files(fs: FaultyFileSystem, store: MessageStore) -> dict[str, bytes]:
        store.close()
        parts = ("commitlog", "consumequeue", "index")
        return {path: fs.content(path) for path in fs.paths() if path.split("/")[2] in parts}

    fs, replica_fs = FaultyFileSystem(), FaultyFileSystem()
    source, replica = open_store(fs), open_store(replica_fs)
    for number in range(60):
        source.append(message(number, queue_id=number % 3))
        source.append(message(number, **KINDS[kind]))
    while replica.max_log_offset < source.max_log_offset:
        piece = source.log_range(replica.max_log_offset, piece_bytes)
        replica.append_raw(replica.max_log_offset, piece)
    assert files(replica_fs, replica) == files(fs, source)


def test_replica_that_stops_inside_a_record_goes_on_there_or_drops_it() -> None:
    source = source_store()
    cut = source.log_offset_at("TopicA", 0, 5) + 50
    fs = FaultyFileSystem()
    replica = open_store(fs)
    replica.append_raw(0, source.log_range(0, cut))
    whole_end = source.log_offset_at("TopicA", 0, 5)
    assert replica.max_log_offset == cut
    assert replica.unwritable_reason != ""
    with pytest.raises(StoreUnavailable, match="replicated"):
        replica.append(message(1))
    replica.flush()
    killed = open_store(fs.kill())
    assert killed.max_log_offset == whole_end
    replica.append_raw(cut, source.log_range(cut, 500))
    assert replica.max_log_offset > cut
    replica.end_replication()
    assert replica.writable
    done = replica.append(message(1000))
    assert done.queue_offset == replica.max_offset("TopicA", 0) - 1
    replica.close()
    assert bodies(open_store(fs))[-1] == b"body 1000"


def test_bytes_that_do_not_continue_the_log_are_refused() -> None:
    source = source_store()
    replica = open_store(FaultyFileSystem())
    with pytest.raises(BadAppend):
        replica.append_raw(10, source.log_range(10, 100))
    replica.append_raw(0, source.log_range(0, 1000))
    with pytest.raises(BadAppend):
        replica.append_raw(0, source.log_range(0, 1000))


def test_bytes_that_are_no_records_are_an_error() -> None:
    replica = open_store(FaultyFileSystem())
    with pytest.raises(CorruptionError, match="offset 0"):
        replica.append_raw(0, b"\x00\x00\x00\x20garbage that is long enough to be a record....")


def test_empty_replica_may_start_at_any_segment() -> None:
    source = source_store()
    replica = open_store(FaultyFileSystem())
    start = SEGMENT_BYTES
    while start < source.max_log_offset:
        piece = source.log_range(start, 1 << 20)
        replica.append_raw(start, piece)
        start += len(piece)
    assert replica.min_log_offset == SEGMENT_BYTES
    assert bodies(replica)[-1] == bodies(source)[-1]
    assert replica.max_offset("TopicA", 0) == source.max_offset("TopicA", 0)
    assert replica.min_offset("TopicA", 0) > 0


def test_reset_starts_an_empty_log_elsewhere() -> None:
    source = source_store()
    fs = FaultyFileSystem()
    replica = open_store(fs)
    replica.append_raw(0, source.log_range(0, 1000))
    with pytest.raises(BadAppend):
        replica.reset(5)
    replica.reset(2 * SEGMENT_BYTES)
    assert (replica.topics(), replica.max_log_offset) == ([], 2 * SEGMENT_BYTES)
    replica.append_raw(2 * SEGMENT_BYTES, source.log_range(2 * SEGMENT_BYTES, 1 << 20))
    replica.close()
    again = open_store(fs)
    assert again.min_log_offset == 2 * SEGMENT_BYTES
    assert bodies(again)[-1] == bodies(replica)[-1] if replica.writable else True


# Cuts.


@pytest.mark.parametrize("kept", [0, 1, 20, 26, 27, 60, 79])
def test_truncate_forgets_everything_behind_a_boundary_for_good(kept: int) -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    done = [store.append(message(number)) for number in range(80)]
    store.flush()
    store.truncate(done[kept].log_offset)
    assert store.max_log_offset == done[kept].log_offset
    for each in (store, open_store(fs.power_cut())):
        assert bodies(each) == [b"body %d" % number for number in range(kept)]
        assert each.query("TopicA", f"{kept:032X}", 3, 0, 1 << 60)[0] == []
    store.append(message(1000))
    assert bodies(store)[-1] == b"body 1000"
    assert bodies(open_store(fs.kill()))[-1] == b"body 1000"


def test_truncate_that_a_full_disk_stops_is_finished_when_there_is_space() -> None:
    """At every write: of the checkpoint, the log, the queue, the index, and the note of deleted topics."""
    kept = [b"body %d" % number for number in range(20)]
    for after in itertools.count():
        fs = FaultyFileSystem()
        store = open_store(fs)
        done = [store.append(message(number)) for number in range(80)]
        store.append(message(topic="Gone"))
        store.flush()
        store.delete_topic("Gone")
        fs.fail_writes(after)
        try:
            store.truncate(done[20].log_offset)
        except StoreUnavailable:
            store.tick()
            with pytest.raises(StoreUnavailable, match="could not be cut"):
                store.append(message(1000))
            fs.heal()
            store.tick()
        else:
            break
        assert store.writable, after
        for each in (store, open_store(fs.kill()), open_store(fs.power_cut())):
            assert bodies(each) == kept, after
            assert [len(each.query("TopicA", f"{number:032X}", 3, 0, 1 << 60)[0]) for number in (19, 20)] == [
                1,
                0,
            ]
        store.append(message(1000))
        assert bodies(store) == [*kept, b"body 1000"], after
    assert after == 9, "one write each of checkpoint, log and queue, three of the index, three of the note"


def test_truncate_that_a_full_disk_stops_may_be_told_to_cut_more() -> None:
    for after in itertools.count():
        fs = FaultyFileSystem()
        store = open_store(fs)
        done = [store.append(message(number)) for number in range(80)]
        store.flush()
        fs.fail_writes(after)
        try:
            store.truncate(done[50].log_offset)
        except StoreUnavailable:
            with pytest.raises(StoreUnavailable):
                store.truncate(done[20].log_offset)
            fs.heal()
            store.tick()
        else:
            break
        assert store.writable, after
        for each in (store, open_store(fs.power_cut())):
            assert bodies(each) == [b"body %d" % number for number in range(20)], after
            found = [each.query("TopicA", f"{number:032X}", 3, 0, 1 << 60)[0] for number in range(80)]
            assert [len(records) for records in found] == [1] * 20 + [0] * 60, after


def test_truncate_behind_the_end_is_nothing() -> None:
    store = open_store(FaultyFileSystem())
    store.append(message(0))
    store.truncate(1 << 30)
    assert bodies(store) == [b"body 0"]


# Retention.


def store_of_segments(
    count: int, clock: ManualClock, **changes: object
) -> tuple[MessageStore, FaultyFileSystem]:
    fs = FaultyFileSystem(clock=clock.now_ms)
    store = open_store(fs, clock, **changes)  # type: ignore[arg-type]  # values of several types by name
    number = 0
    while store.max_log_offset < count * SEGMENT_BYTES:
        store.append(message(number))
        number += 1
    store.flush()
    return store, fs


def test_expired_segments_go_and_queues_and_index_follow() -> None:
    clock = ManualClock(START_MS)
    store, fs = store_of_segments(6, clock, retention_hours=1)
    before = store.max_offset("TopicA", 0)
    files = len(fs.paths(f"{ROOT}/consumequeue/")), len(fs.paths(f"{ROOT}/index/"))
    assert store.clean_expired(force=True) == 0
    clock.advance(HOUR_MS + 1)
    assert store.clean_expired(force=True) == 6
    assert store.min_log_offset == 6 * SEGMENT_BYTES
    assert store.max_offset("TopicA", 0) == before
    first = store.min_offset("TopicA", 0)
    assert first > 100
    assert store.log_offset_at("TopicA", 0, first) >= store.min_log_offset
    assert store.log_offset_at("TopicA", 0, first - 1) == -1
    assert len(fs.paths(f"{ROOT}/consumequeue/")) < files[0]
    assert len(fs.paths(f"{ROOT}/index/")) < files[1]
    left = bodies(store)
    assert left == [b"body %d" % number for number in range(first, before)]
    store.close()
    again = open_store(fs)
    assert (again.min_offset("TopicA", 0), bodies(again)) == (first, left)


def test_segment_being_read_stays_readable_while_it_goes() -> None:
    clock = ManualClock(START_MS)
    store, _ = store_of_segments(3, clock, retention_hours=1)
    found = store.read("TopicA", 0, 0, 4)
    clock.advance(HOUR_MS + 1)
    assert store.clean_expired(force=True) > 0
    assert [record.body for record in decoded(found.slices)] == [b"body %d" % number for number in range(4)]


def test_retention_runs_by_itself_at_the_hour() -> None:
    clock = ManualClock(START_MS)
    store, _ = store_of_segments(
        3, clock, retention_hours=1, delete_when=";".join(f"{hour:02d}" for hour in range(24))
    )
    clock.advance(2 * HOUR_MS)
    store.tick()
    assert store.min_log_offset == 3 * SEGMENT_BYTES


def test_full_disk_forbids_writes_until_there_is_room() -> None:
    clock = ManualClock(START_MS)
    store, fs = store_of_segments(3, clock, force_clean_enabled=False)
    fs.capacity_bytes = fs.used_bytes + 4096
    clock.advance(70_000)
    store.tick()
    with pytest.raises(StoreUnavailable, match="above the limit"):
        store.append(message(1))
    fs.capacity_bytes = 1 << 40
    clock.advance(11_000)
    store.tick()
    store.append(message(1))


def test_largest_message_follows_the_option_of_a_running_store() -> None:
    store = open_store(FaultyFileSystem(), message_bytes_max=10)
    change_option(store.config, "maxMessageSize", "20")
    store.append(message(body=bytes(20)))
    change_option(store.config, "maxMessageSize", "5")
    with pytest.raises(MessageTooLarge):
        store.append(message(body=bytes(6)))


def test_topics_that_nobody_keeps_are_dropped() -> None:
    store = open_store(FaultyFileSystem())
    for topic in ("A", "B", "C"):
        store.append(message(topic=topic))
    assert store.keep_topics(["B", "X"]) == ["A", "C"]
    assert store.topics() == ["B"]


def test_log_may_lie_in_several_directories() -> None:
    fs = FaultyFileSystem()
    places: dict[str, object] = {"commit_log_path": "/disk1/log, /disk2/log"}
    store = open_store(fs, **places)  # type: ignore[arg-type]  # values of several types by name
    for number in range(100):
        store.append(message(number))
    store.close()
    assert fs.paths("/disk1/log/")
    assert fs.paths("/disk2/log/")
    assert len(bodies(open_store(fs, **places))) == 100  # type: ignore[arg-type]  # values of several types by name


def test_real_disk_serves_what_was_just_written_and_many_queues_with_few_handles(tmp_path: Path) -> None:
    store = MessageStore(
        config(
            root=str(tmp_path),
            segment_bytes=1 << 20,
            open_queue_files_max=8,
            queue_file_bytes=20 * FILE_UNITS,
        )
    )
    store.open()
    for number in range(400):
        store.append(message(number, queue_id=number % 100))
    store.flush()
    for queue_id in range(100):
        assert bodies(store, "TopicA", queue_id) == [
            b"body %d" % number for number in range(queue_id, 400, 100)
        ]
    store.close()
    again = MessageStore(store.config)
    again.open()
    assert len(again.queues("TopicA")) == 100
    again.close()


def test_post_is_used_for_every_report_of_the_worker(tmp_path: Path) -> None:
    posted: list[Callable[[], None]] = []
    store = MessageStore(config(root=str(tmp_path)), post=posted.append)
    store.open()
    done = store.append(message(0))
    store.when_flushed(done.size, lambda ok: None)
    store._flusher.drain()
    assert store.flushed_offset == 0, "only what runs on the caller's thread may change the store"
    for work in posted:
        work()
    assert store.flushed_offset == done.size
    store.close()


# A master whose log is damaged.


def refusal(replica: MessageStore, start: int, data: bytes) -> str:
    """Appends bytes like a slave; returns the reason when a record in them is damaged."""
    try:
        replica.append_raw(start, data)
    except CorruptionError as error:
        replica.truncate(replica.whole_log_offset)
        return str(error)
    return ""


@pytest.mark.parametrize("piece_bytes", [1, 100, 1000, 32768])
@pytest.mark.parametrize("position", [0, 1, 3, 5, 10, 30, 35, 60, 86, 90], ids=lambda at: f"byte {at}")
def test_replica_refuses_a_damaged_record_and_keeps_what_precedes_it(position: int, piece_bytes: int) -> None:
    source = source_store()
    place = source.log_offset_at("TopicA", 0, 5)
    starts = range(0, source.max_log_offset, SEGMENT_BYTES)
    log = bytearray().join(bytes(source.log_range(start, SEGMENT_BYTES)) for start in starts)
    log[place + position] ^= 0x41
    fs = FaultyFileSystem()
    replica = open_store(fs)
    reasons: list[str] = []
    while replica.max_log_offset < len(log) and len(reasons) < 3:
        start = replica.max_log_offset
        if reason := refusal(replica, start, bytes(log[start : start + piece_bytes])):
            reasons.append(reason)
            assert f"log offset {place}" in reason
            assert replica.max_log_offset == place
    unchecked = position == 60  # the store time is under no checksum
    assert len(reasons) == (0 if unchecked else 3)
    assert replica.integrity.refused_count == len(reasons)
    assert bodies(replica, "TopicA", 0) == bodies(source, "TopicA", 0)[: None if unchecked else 5]
    if not unchecked:
        assert replica.writable
        replica.append_raw(place, source.log_range(place, 1000))
        replica.close()
        assert b"body 15" in bodies(open_store(fs), "TopicA", 0)


def test_replica_does_not_wait_for_the_bytes_of_a_damaged_size() -> None:
    source, replica = (open_store(FaultyFileSystem(), segment_bytes=1 << 20) for _ in range(2))
    places = [source.append(message(number)).log_offset for number in range(20)]
    log = bytearray(source.log_range(0, 1 << 20))
    log[places[5] + 1] ^= 0x04  # 256 KiB more: the following bytes would be read as part of this record
    assert not refusal(replica, 0, bytes(log[: places[5] + 80]))
    assert f"log offset {places[5]}" in refusal(replica, places[5] + 80, bytes(log[places[5] + 80 :]))
    assert replica.max_log_offset == places[5]
