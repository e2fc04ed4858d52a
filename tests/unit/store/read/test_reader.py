"""Reading queues: statuses, limits, filters, slices, searches by time."""

from __future__ import annotations

import pytest
from tests.unit.store.support import (
    FILE_UNITS,
    HOST_V6,
    SEGMENT_BYTES,
    START_MS,
    decoded,
    message,
    open_store,
)

from orbitmq.broker.config import change_option
from orbitmq.filter import encode_program, parse
from orbitmq.kernel import Filter
from orbitmq.record.hashing import java_hash
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import ReadStatus
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock


def store_with(count: int, **changes: object) -> MessageStore:
    store = open_store(FaultyFileSystem(), **changes)  # type: ignore[arg-type]  # values of several types by name
    for number in range(count):
        store.append(message(number))
    return store


def numbers(slices: list[memoryview]) -> list[int]:
    return [int(record.body.split()[1]) for record in decoded(slices)]


def test_offsets_outside_the_queue_are_answered_with_the_right_one() -> None:
    store = store_with(10)
    for offset, status, following in (
        (10, ReadStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, ReadStatus.OFFSET_OVERFLOW_BADLY, 10),
        (1 << 50, ReadStatus.OFFSET_OVERFLOW_BADLY, 10),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ):
        found = store.read("TopicA", 0, offset, 32)
        assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (
            status,
            following,
            0,
            10,
        )
        assert (found.slices, found.count) == ([], 0)
    missing = store.read("TopicA", 7, 5, 32)
    assert (missing.status, missing.next_offset) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_queue_without_messages_says_so() -> None:
    store = store_with(1)
    store.append(message(topic="TopicB", sys_flag=4))
    assert store.read("TopicB", 0, 3, 32).status is ReadStatus.NO_MESSAGE_IN_QUEUE


def test_slave_leaves_the_offset_as_asked() -> None:
    store = store_with(10)
    store.correct_offsets(False)
    assert store.read("TopicA", 0, 99, 32).next_offset == 99
    assert store.read("TopicA", 0, -5, 32).next_offset == -5
    change_option(store.config, "offsetCheckInSlave", "true")
    assert store.read("TopicA", 0, 99, 32).next_offset == 10


def test_read_stops_at_the_asked_count_and_continues_where_it_stopped() -> None:
    store = store_with(50)
    seen: list[int] = []
    offset = 0
    while offset < 50:
        found = store.read("TopicA", 0, offset, 7)
        assert found.status is ReadStatus.FOUND
        assert found.count <= 7
        assert found.size_bytes == sum(len(piece) for piece in found.slices)
        seen += numbers(found.slices)
        offset = found.next_offset
    assert seen == list(range(50))


def test_read_gives_at_most_the_configured_count_and_bytes() -> None:
    store = store_with(30, memory_transfer_count_max=5, segment_bytes=1 << 16)
    store.append_batch([])
    assert store.read("TopicA", 0, 0, 32).count == 5
    size = store.read("TopicA", 0, 0, 1).size_bytes
    store = store_with(30, memory_transfer_bytes_max=3 * size + 1, segment_bytes=1 << 16)
    assert store.read("TopicA", 0, 0, 32).count == 3


def test_first_message_is_given_whatever_its_size() -> None:
    store = store_with(3)
    found = store.read("TopicA", 0, 0, 32, max_bytes=1)
    assert (found.status, found.count) == (ReadStatus.FOUND, 1)
    assert store.read("TopicA", 0, 0, 0).count == 1


def test_old_messages_come_in_small_batches_and_point_to_a_replica() -> None:
    clock = ManualClock(START_MS)
    store = MessageStore(
        open_store(FaultyFileSystem(), segment_bytes=1 << 16).config,
        fs=FaultyFileSystem(),
        clock=clock,
        memory_bytes=1000,
    )
    store.open()
    for number in range(40):
        store.append(message(number))
    old, new = store.read("TopicA", 0, 0, 32), store.read("TopicA", 0, 39, 32)
    assert (old.count, old.from_disk) == (8, True)
    assert (new.count, new.from_disk) == (1, False)
    filtered = store.read("TopicA", 0, 0, 32, wanted=Filter(java_hash(f"tag{n}") for n in range(3)))
    assert (filtered.count, filtered.from_disk) == (8, True)


def test_neighbours_in_the_log_share_a_slice_and_segments_do_not() -> None:
    store = store_with(40)
    found = store.read("TopicA", 0, 0, 8)
    assert (found.count, len(found.slices)) == (8, 1)
    border = next(n for n in range(40) if store.log_offset_at("TopicA", 0, n) == SEGMENT_BYTES)
    start = border - border % FILE_UNITS
    found = store.read("TopicA", 0, start, 8)
    assert len(found.slices) == (2 if border > start else 1)
    assert numbers(found.slices) == list(range(start, start + found.count))


def test_messages_of_other_queues_between_are_left_out() -> None:
    store = open_store(FaultyFileSystem(), segment_bytes=1 << 16)
    for number in range(30):
        store.append(message(number, queue_id=number % 3))
    for queue_id in range(3):
        found = store.read("TopicA", queue_id, 0, 32)
        assert numbers(found.slices) == list(range(queue_id, 30, 3))[: found.count]
        assert len(found.slices) == found.count


def test_tag_filter_gives_matching_records_and_moves_past_the_others() -> None:
    store = store_with(8, segment_bytes=1 << 16)
    found = store.read("TopicA", 0, 0, 32, wanted=Filter({java_hash("tag1")}))
    assert (numbers(found.slices), found.next_offset) == ([1, 4, 7], 8)
    nothing = store.read("TopicA", 0, 0, 32, wanted=Filter({12345}))
    assert (nothing.status, nothing.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 8)
    first = store.read("TopicA", 0, 0, 1, wanted=Filter({java_hash("tag1")}))
    assert (numbers(first.slices), first.next_offset) == ([1], 2)


ODD = encode_program(
    parse(" OR ".join(f"UNIQ_KEY ENDSWITH '{digit}'" for digit in "13579BDF")).tree  # as message() writes it
)
ANY = Filter(None, encode_program(parse("TRUE").tree))


def test_tags_and_program_are_both_required() -> None:
    store = store_with(8, segment_bytes=1 << 16)
    found = store.read("TopicA", 0, 0, 32, wanted=Filter({java_hash("tag1")}, ODD))
    assert numbers(found.slices) == [1, 7]
    assert numbers(store.read("TopicA", 0, 0, 32, wanted=Filter(None, ODD)).slices) == [1, 3, 5, 7]


def test_filter_looks_at_a_bounded_number_of_units() -> None:
    store = store_with(40, filter_window_bytes=100, queue_file_bytes=20_000)
    found = store.read("TopicA", 0, 0, 3, wanted=Filter({1}))
    assert (found.status, found.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 5)


@pytest.mark.parametrize("max_count", [1, 3, 32])
@pytest.mark.parametrize("max_bytes", [100, 700, 1 << 20])
@pytest.mark.parametrize("other", [0, 1, 3], ids=["neighbours", "every second", "every fourth"])
@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20], ids=["short segments", "one segment"])
def test_program_selects_what_the_limits_allow(
    max_count: int, max_bytes: int, other: int, segment_bytes: int
) -> None:
    store = open_store(FaultyFileSystem(), segment_bytes=segment_bytes, queue_file_bytes=20_000)
    sizes: list[int] = []
    for number in range(100):
        sizes.append(store.append(message(number)).size)
        for _ in range(other):
            store.append(message(number, topic="Other"))
    for end, confirmed in ((100, None), (90, store.log_offset_at("TopicA", 0, 90))):
        store.limit_reads(confirmed)
        for offset in range(0, 100, 7):
            found = store.read("TopicA", 0, offset, max_count, max_bytes=max_bytes, wanted=Filter(None, ODD))
            expected: list[int] = []
            total, at = 0, offset
            while at < end and len(expected) < max_count:
                if expected and total + sizes[at] > max_bytes:
                    break
                if at % 2:
                    expected.append(at)
                    total += sizes[at]
                at += 1
            assert (numbers(found.slices), found.next_offset) == (expected, at)
            assert (found.count, found.size_bytes) == (len(expected), total)


def test_program_of_many_nodes_looks_at_fewer_units() -> None:
    store = store_with(60, segment_bytes=1 << 16, queue_file_bytes=20_000)
    program = encode_program(parse(" OR ".join(["price > 5"] * 333)).tree)
    found = store.read("TopicA", 0, 0, 32, wanted=Filter(None, program))
    assert (found.status, found.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 40)


def test_records_behind_the_confirmed_offset_are_not_given() -> None:
    store = store_with(10, segment_bytes=1 << 16)
    store.limit_reads(store.log_offset_at("TopicA", 0, 6))
    assert numbers(store.read("TopicA", 0, 0, 32).slices) == [0, 1, 2, 3, 4, 5]
    assert numbers(store.read("TopicA", 0, 0, 32, wanted=ANY).slices) == [0, 1, 2, 3, 4, 5]
    waiting = store.read("TopicA", 0, 6, 32)
    assert (waiting.status, waiting.next_offset, waiting.count) == (ReadStatus.OFFSET_OVERFLOW_ONE, 6, 0)
    store.limit_reads(None)
    assert store.confirm_offset == store.max_log_offset
    assert numbers(store.read("TopicA", 0, 6, 32).slices) == [6, 7, 8, 9]


def test_units_that_point_nowhere_are_passed_over() -> None:
    store = store_with(3, segment_bytes=1 << 16)
    queue = store._parts.queues.by_key["TopicA", 0]
    for log_offset, size in ((1 << 40, 100), (0, 0x7FFFFFFF), (5, 0), (-7, 20), ((1 << 16) - 10, 100)):
        queue.append(log_offset, size, 0)
    store.append(message(8))
    for wanted in (None, ANY):
        seen: list[int] = []
        offset = 0
        while offset < 9:
            found = store.read("TopicA", 0, offset, 32, wanted=wanted)
            assert found.next_offset > offset
            seen += numbers(found.slices)
            offset = found.next_offset
        assert seen == [0, 1, 2, 8]
    assert store.read("TopicA", 0, 3, 1).status is ReadStatus.MESSAGE_WAS_REMOVING


def test_lost_queue_file_is_skipped_to_the_next() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs, open_queue_files_max=8)
    for number in range(30):
        store.append(message(number))
    store.flush()
    path = fs.paths("/store/consumequeue/TopicA/0/")[1]
    store._parts.queues._handles.forget(path)
    fs.remove(path)
    found = store.read("TopicA", 0, 9, 32)
    assert (found.status, found.next_offset) == (ReadStatus.OFFSET_FOUND_NULL, 2 * FILE_UNITS)


@pytest.mark.parametrize("born_host", [b"\x7f\x00\x00\x01\x00\x00\x30\x39", HOST_V6])
def test_offset_by_time_finds_the_first_at_or_after_or_the_last_at_or_before(born_host: bytes) -> None:
    clock = ManualClock(START_MS)
    store = open_store(FaultyFileSystem(), clock)
    for number in range(30):
        if number % 3 == 0:
            clock.advance(10)
        store.append(message(number, born_host=born_host))
    # Three messages each at +10, +20, ... +100.
    for asked, lower, upper in (
        (-1000, 0, 0),
        (9, 0, 0),
        (10, 0, 2),
        (11, 3, 2),
        (50, 12, 14),
        (55, 15, 14),
        (100, 27, 29),
        (101, 30, 29),
    ):
        assert store.offset_by_time("TopicA", 0, START_MS + asked) == lower, asked
        assert store.offset_by_time("TopicA", 0, START_MS + asked, upper=True) == upper, asked
    assert store.offset_by_time("TopicB", 0, START_MS) == 0
    assert store.earliest_store_time("TopicA", 0) == START_MS + 10
    assert store.store_time_at("TopicA", 0, 29) == START_MS + 100
    assert store.store_time_at("TopicA", 0, 30) == -1
    assert store.earliest_store_time("TopicB", 0) == -1
    assert store.earliest_log_time() == START_MS + 10


@pytest.mark.parametrize("count", [1, 2, 5, 32, 64, 65, 100])
def test_neighbours_in_the_log_come_as_one_slice(count: int) -> None:
    store = open_store(FaultyFileSystem(), segment_bytes=1 << 20, memory_transfer_count_max=200)
    store.append_batch([message(number) for number in range(count)])
    result = store.read("TopicA", 0, 0, 200)
    assert (result.status, result.count, result.next_offset) == (ReadStatus.FOUND, count, count)
    assert len(result.slices) == 1
    assert result.size_bytes == len(result.slices[0])
    assert [record.body for record in decoded(result.slices)] == [b"body %d" % n for n in range(count)]
    store.close()


def test_run_of_neighbours_ends_at_every_limit_like_single_records() -> None:
    store = open_store(FaultyFileSystem(), segment_bytes=4096)
    sizes = [store.append(message(number)).size for number in range(60)]  # several segments
    for start in range(0, 60, 7):
        for count in (1, 2, 10, 32):
            for max_bytes in (None, 100, sum(sizes[:3]), sum(sizes[:10]) - 1):
                result = store.read("TopicA", 0, start, count, max_bytes=max_bytes)
                found = [record.body for record in decoded(result.slices)]
                wanted = [b"body %d" % n for n in range(start, min(60, start + count))]
                limit = max(100, max_bytes or 1 << 20)
                while len(wanted) > 1 and sum(sizes[start : start + len(wanted)]) > limit:
                    wanted.pop()
                assert found == wanted, (start, count, max_bytes)
                assert result.next_offset == start + len(wanted)
    store.close()


def test_unconfirmed_neighbours_are_not_given_with_the_confirmed_ones() -> None:
    store = open_store(FaultyFileSystem())
    ends = []
    for number in range(6):
        done = store.append(message(number))
        ends.append(done.log_offset + done.size)
    store.limit_reads(ends[2])
    result = store.read("TopicA", 0, 0, 32)
    assert [record.body for record in decoded(result.slices)] == [b"body 0", b"body 1", b"body 2"]
    assert result.next_offset == 3
    store.close()
