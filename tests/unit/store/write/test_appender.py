"""Appending: where data is written, what is refused, and that a refusal leaves nothing behind."""

from __future__ import annotations

import errno

import pytest
from tests.unit.store.support import (
    HOST,
    HOST_V6,
    SEGMENT_BYTES,
    START_MS,
    bodies,
    decoded,
    message,
    open_store,
)

from orbitmq.codes import ResponseCode
from orbitmq.kernel.layout import BLANK, MAGIC_BLANK, MAGIC_V2
from orbitmq.record.codec import decode_record, encode_record
from orbitmq.record.hashing import java_hash
from orbitmq.store.errors import (
    BadMessage,
    BadQueueName,
    MessageTooLarge,
    PropertiesTooLarge,
    StoreError,
    StoreUnavailable,
)
from orbitmq.store.types import Appended, NewMessage
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

LOG = "/store/commitlog/"


def test_append_gives_offsets_and_stores_the_record_the_codec_defines() -> None:
    store = open_store(FaultyFileSystem())
    first, second = message(1), message(2)
    done = store.append(first)
    assert done == Appended(0, len(encode_record(first, 0, 0, START_MS, HOST)), 0, START_MS)
    assert store.append(second).queue_offset == 1
    expected = encode_record(first, 0, 0, START_MS, HOST) + encode_record(
        second, 1, done.size, START_MS, HOST
    )
    assert bytes(store.log_range(0, 4096)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"born_host": HOST_V6},
        {"topic": "T" * 130},
        {"properties": b""},
        {"properties": b"TAGS\x01first\x02"},
        {"properties": b"A\x01" + b"v" * 1100 + b"\x02"},
        {"properties": b"TAGS\x01open end"},
        {"sys_flag": 0x8, "flag": -1, "reconsume_times": 3, "prepared_offset": 77},
        {"sys_flag": 0x34},
        {"body": b""},
    ],
)
@pytest.mark.parametrize("store_host", [HOST, HOST_V6])
def test_batch_writes_the_same_bytes_and_units_as_single_appends(
    changes: dict[str, object], store_host: bytes
) -> None:
    messages = [message(number, **changes) for number in range(3)]  # type: ignore[arg-type]  # values of several types by name
    one_by_one = open_store(FaultyFileSystem(), store_host=store_host)
    singles = [one_by_one.append(each) for each in messages]
    at_once = open_store(FaultyFileSystem(), store_host=store_host)
    assert at_once.append_batch(messages) == singles
    assert bytes(at_once.log_range(0, 8192)) == bytes(one_by_one.log_range(0, 8192))
    topic = messages[0].topic
    assert at_once.units(topic, 0, 0, 9) == one_by_one.units(topic, 0, 0, 9)


def test_unit_holds_the_hash_of_the_tag_and_zero_without_one() -> None:
    store = open_store(FaultyFileSystem())
    store.append(message(properties=b"A\x01b\x02TAGS\x01tag\x02"))
    store.append(message(properties=b"A\x01b\x02"))
    store.append(message(properties="TAGS\x01ключ\x02".encode()))
    assert [unit[2] for unit in store.units("TopicA", 0, 0, 3)] == [java_hash("tag"), 0, java_hash("ключ")]


def test_unit_of_a_delayed_message_holds_its_due_time() -> None:
    store = open_store(FaultyFileSystem(), delay_levels="1s 1m")
    for properties in (
        b"DELAY\x012\x02",
        b"DELAY\x0199\x02",
        b"TAGS\x01a\x02",
        b"DELAY\x01x\x02TAGS\x01a\x02",
    ):
        store.append(message(topic="SCHEDULE_TOPIC_XXXX", properties=properties))
    store.append_batch([message(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x011\x02")])
    codes = [unit[2] for unit in store.units("SCHEDULE_TOPIC_XXXX", 0, 0, 9)]
    hashed = java_hash("a")
    assert codes == [START_MS + 60_000, START_MS + 60_000, hashed, hashed, START_MS + 1000]


@pytest.mark.parametrize("kind", [0x4, 0xC])
def test_prepared_and_rolled_back_messages_have_no_number_and_no_unit(kind: int) -> None:
    store = open_store(FaultyFileSystem())
    store.append(message(0))
    assert store.append(message(1, sys_flag=kind)).queue_offset == 0
    assert [done.queue_offset for done in store.append_batch([message(2, sys_flag=kind), message(3)])] == [
        0,
        1,
    ]
    assert bodies(store) == [b"body 0", b"body 3"]


def test_record_that_does_not_fit_goes_to_the_next_segment_behind_a_marker() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    done = [store.append(message(number)) for number in range(40)]
    rolled = next(one for one in done if one.log_offset >= SEGMENT_BYTES)
    assert rolled.log_offset == SEGMENT_BYTES
    before = done[done.index(rolled) - 1]
    end = before.log_offset + before.size
    assert before.size + 8 > SEGMENT_BYTES - end >= 8
    marker = fs.content(f"{LOG}{0:020d}")[end:]
    assert BLANK.unpack(marker[:8]) == (SEGMENT_BYTES - end, MAGIC_BLANK)
    assert not any(marker[8:])
    assert bodies(store) == [b"body %d" % number for number in range(40)]


def test_batch_that_does_not_fit_moves_to_the_next_segment_as_a_whole() -> None:
    store = open_store(FaultyFileSystem())
    for number in range(20):
        store.append(message(number))
    done = store.append_batch([message(number) for number in range(20, 30)])
    assert done[0].log_offset == SEGMENT_BYTES
    assert [one.queue_offset for one in done] == list(range(20, 30))
    assert bodies(store) == [b"body %d" % number for number in range(30)]


def test_batch_larger_than_a_segment_is_stored_whole_and_announced_once() -> None:
    arrived: list[tuple[str, int]] = []
    store = open_store(
        FaultyFileSystem(), arrived=[lambda topic, queue_id: arrived.append((topic, queue_id))]
    )
    store.append_batch([message(number) for number in range(100)])
    assert bodies(store) == [b"body %d" % number for number in range(100)]
    assert arrived == [("TopicA", 0)]


def test_batch_larger_than_a_segment_leaves_nothing_when_its_end_is_refused() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    store.append(message(0))
    end = store.max_log_offset
    with pytest.raises(MessageTooLarge):
        store.append_batch([message(number) for number in range(1, 100)] + [message(body=bytes(2001))])
    assert store.max_log_offset == end
    assert bodies(store) == [b"body 0"]
    store.append(message(1))
    assert bodies(store) == [b"body 0", b"body 1"]
    # When the disk does not even allow the first part to be undone, the store stops; a restart finds a whole log.
    fs.fail_writes(after=60)
    with pytest.raises(StoreUnavailable):
        store.append_batch([message(number) for number in range(2, 100)])
    assert bodies(store) == [b"body 0", b"body 1"]
    assert store.unwritable_reason != ""
    fs.heal()
    found = bodies(open_store(fs.kill()))
    assert found == [b"body %d" % number for number in range(len(found))]


def test_arrival_is_told_once_per_queue_of_a_batch() -> None:
    arrived: list[tuple[str, int]] = []
    store = open_store(
        FaultyFileSystem(), arrived=[lambda topic, queue_id: arrived.append((topic, queue_id))]
    )
    store.append_batch([message(number, queue_id=number % 2) for number in range(6)])
    store.append(message(7, topic="TopicB"))
    assert arrived == [("TopicA", 0), ("TopicA", 1), ("TopicB", 0)]


def test_store_times_never_go_back() -> None:
    clock = ManualClock(START_MS)
    store = open_store(FaultyFileSystem(), clock)
    clock.jump(START_MS + 10)
    store.append(message(0))
    clock.jump(START_MS - 5000)
    assert store.append(message(1)).store_timestamp_ms == START_MS + 10
    assert store.append_batch([message(2)])[0].store_timestamp_ms == START_MS + 10


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (message(body=bytes(2001)), MessageTooLarge),
        (message(properties=b"A\x01" + b"b" * 32767 + b"\x02"), PropertiesTooLarge),
        (message(topic="T" * 256), StoreError),
        (message(topic=""), BadQueueName),
        (message(topic="../up"), BadQueueName),
        (message(topic=".."), BadQueueName),
        (message(queue_id=-1), BadQueueName),
        (message(queue_id=1 << 31), BadQueueName),
        (message(born_host=b"123"), BadMessage),
        (message(flag=1 << 40), BadMessage),
        (message(body=None), None),
        (NewMessage("TopicA", 0, None, b"", 0, HOST), BadMessage),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_message_that_cannot_be_stored_is_refused_and_leaves_nothing(
    bad: NewMessage, error: type[StoreError] | None
) -> None:
    store = open_store(FaultyFileSystem())
    if error is None:
        store.append(bad)
        return
    with pytest.raises(error) as single:
        store.append(bad)
    with pytest.raises(error):
        store.append_batch([message(1), bad, message(2)])
    assert single.value.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR)
    assert store.max_log_offset == 0
    assert store.max_offset("TopicA", 0) == 0
    assert bodies(store) == []


def test_record_larger_than_a_segment_is_refused() -> None:
    store = open_store(FaultyFileSystem(), message_bytes_max=10_000)
    with pytest.raises(MessageTooLarge, match="segment"):
        store.append(message(body=bytes(5000)))
    with pytest.raises(MessageTooLarge, match="segment"):
        store.append_batch([message(body=bytes(5000))])
    store.append(message(1))
    assert bodies(store) == [b"body 1"]


def test_long_topic_is_written_as_version_two_or_refused_by_configuration() -> None:
    store = open_store(FaultyFileSystem())
    store.append(message(topic="T" * 128))
    record = decode_record(store.record_at(0) or b"")
    assert (record.topic, record.magic) == ("T" * 128, MAGIC_V2)
    strict = open_store(FaultyFileSystem(), long_topic_allowed=False)
    with pytest.raises(MessageTooLarge):
        strict.append(message(topic="T" * 128))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_refused_write_says_why_and_the_next_append_continues(error: int) -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    store.append(message(0))
    fs.fail_writes(error=error)
    with pytest.raises(
        StoreUnavailable, match="disk is full" if error != errno.EIO else "append failed"
    ) as found:
        store.append(message(1))
    assert found.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreUnavailable):
        store.append_batch([message(1), message(2)])
    fs.heal()
    store.append(message(3))
    assert [record.queue_offset for record in decoded(store.read("TopicA", 0, 0, 9).slices)] == [0, 1]
    assert bodies(store) == [b"body 0", b"body 3"]


def test_write_cut_short_by_a_full_disk_is_erased() -> None:
    fs = FaultyFileSystem(capacity_bytes=40 * 4096)
    store = open_store(fs, segment_bytes=65536, message_bytes_max=32768)
    store.append(message(0))
    end = store.max_log_offset
    fs.capacity_bytes = fs.used_bytes + 2 * 4096
    with pytest.raises(StoreUnavailable, match="full"):
        store.append_batch([message(number, body=b"x" * 4000) for number in range(1, 9)])
    assert store.max_log_offset == end
    assert not any(fs.content(f"{LOG}{0:020d}")[end:])
    assert fs.used_bytes == fs.capacity_bytes, "the write should have got some of its blocks"
    killed = open_store(fs.kill(), segment_bytes=65536, message_bytes_max=32768)
    assert bodies(killed) == [b"body 0"]


def test_units_that_cannot_be_written_stay_readable_and_stop_further_appends() -> None:
    fs = FaultyFileSystem()
    clock = ManualClock(START_MS)
    store = open_store(fs, clock, segment_bytes=1 << 20, index_enabled=False)
    store.append(message(0))
    # The log has its segment; only the first file of the queue still has to be created.
    fs.on_operation = lambda name, path: _refuse_queues(path)
    for number in range(1, 300):
        try:
            store.append(message(number))
        except StoreUnavailable:
            break
    assert "queue units" in store.unwritable_reason
    count = store.max_offset("TopicA", 0)
    assert bodies(store) == [b"body %d" % number for number in range(count)]
    clock.advance(2000)
    store.tick()
    assert store.unwritable_reason != ""
    fs.on_operation = None
    clock.advance(100)
    store.tick()
    assert store.writable
    store.append(message(count))
    assert bodies(store) == [b"body %d" % number for number in range(count + 1)]


def _refuse_queues(path: str) -> None:
    if "consumequeue" in path:
        raise OSError(errno.ENOSPC, "no space")


def test_closed_store_refuses_appends() -> None:
    store = open_store(FaultyFileSystem())
    store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        store.append(message())
    with pytest.raises(StoreUnavailable, match="not open"):
        store.append_batch([message()])


def test_empty_batch_is_nothing() -> None:
    store = open_store(FaultyFileSystem())
    assert store.append_batch([]) == []
    assert store.max_log_offset == 0
