"""A batch stored directly from its row must leave the same state as storing its messages one by one."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.support import HOST, HOST_V6, START_MS, bodies, message, open_store

from orbitmq.errors import RecordError
from orbitmq.kernel import sends_of
from orbitmq.record.batch import encode_batch, split_batch
from orbitmq.store.errors import BadMessage, MessageTooLarge, StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage
from orbitmq.testing.faulty_fs import FaultyFileSystem

Entry = tuple[int, bytes, bytes]
TOPIC = "TopicA"


def entries(count: int, *, properties: bytes = b"") -> list[Entry]:
    return [
        (number, b"body %d" % number, b"UNIQ_KEY\x01%032X\x02" % number + properties)
        for number in range(count)
    ]


def begun(fs: FaultyFileSystem, **changes: Any) -> MessageStore:
    """Returns a store with one message in it: the first message of a segment takes the general path."""
    store = open_store(fs, **changes)
    store.append(message(0, topic="Other"))
    return store


def template(row: bytes, **changes: Any) -> NewMessage:
    fields: dict[str, Any] = {
        "topic": TOPIC,
        "queue_id": 1,
        "body": row,
        "properties": b"",
        "born_timestamp_ms": START_MS - 5,
        "born_host": HOST,
        "sys_flag": 0,
        "reconsume_times": 2,
    }
    return NewMessage(**fields | changes)


def append_row(store: MessageStore, wanted: NewMessage) -> int:
    """Returns how many messages were stored."""
    row = sends_of(wanted, True, (0, 1, 0), True, wanted.queue_id, b"", "")
    ((place, (count, size, times)),) = store.append_sends([row])
    assert (place, times) == ((wanted.topic, wanted.queue_id), 1)
    assert size > 0
    return count


def one_by_one(store: MessageStore, wanted: NewMessage) -> None:
    store.append_batch(
        [
            NewMessage(
                wanted.topic,
                wanted.queue_id,
                body,
                properties,
                wanted.born_timestamp_ms,
                wanted.born_host,
                flag,
                wanted.sys_flag,
                wanted.reconsume_times,
            )
            for flag, body, properties in split_batch(wanted.body)
        ]
    )


def content(fs: FaultyFileSystem, store: MessageStore) -> dict[str, bytes]:
    """Returns every byte of a closed store: log, queues, index, checkpoint."""
    store.close()
    return {path: fs.content(path) for path in fs.paths()}


ROWS = {
    "unique keys only": entries(5),
    "tags": entries(5, properties=b"TAGS\x01tag\x02"),
    "tags first": [(0, b"x", b"TAGS\x01tag\x02UNIQ_KEY\x01%032X\x02" % 1)],
    "keys": entries(5, properties=b"KEYS\x01k1 shared\x02"),
    "name of a property inside a body": [(0, b"TAGS\x01tag\x02", b"UNIQ_KEY\x01%032X\x02" % 1)],
    "name of a property inside a value": [(0, b"x", b"a\x01xTAGS\x01tag\x02")],
    "no properties": [(0, b"x", b""), (1, b"y", b"")],
    "long properties": [(0, b"x", b"a\x01" + b"v" * 1500 + b"\x02")],
    "empty body": [(0, b"", b"a\x01b\x02")],
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("sys_flag", [0, 1, 0x30, 0x8])
def test_row_leaves_what_its_messages_leave(row: list[Entry], sys_flag: int) -> None:
    wanted = template(encode_batch(row), sys_flag=sys_flag)
    fast, slow = FaultyFileSystem(), FaultyFileSystem()
    fast_store, slow_store = begun(fast), begun(slow)
    for turn in range(2):
        assert append_row(fast_store, wanted) == len(row)
        assert fast_store.max_offset(TOPIC, 1) == (turn + 1) * len(row)
        one_by_one(slow_store, wanted)
    assert content(fast, fast_store) == content(slow, slow_store)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**31), 2**31 - 1),
            st.binary(max_size=40),
            st.lists(
                st.sampled_from([b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"tag", b"k1 ", b"\x02", b"\x00"])
            ).map(b"".join),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_row_leaves_what_its_messages_leave(row: list[Entry]) -> None:
    wanted = template(encode_batch(row))
    fast, slow = FaultyFileSystem(), FaultyFileSystem()
    fast_store, slow_store = begun(fast), begun(slow)
    append_row(fast_store, wanted)
    one_by_one(slow_store, wanted)
    assert content(fast, fast_store) == content(slow, slow_store)


def even(count: int, *, before: bytes = b"", behind: bytes = b"", first: int = 0) -> list[Entry]:
    """Returns messages that differ only in body and unique key, like those of a producer."""
    return [
        (
            7,
            b"%05d" % number,
            before + b"UNIQ_KEY\x017F0000014676C0DEE0B0%012X\x02" % (first + number) + behind,
        )
        for number in range(count)
    ]


def changed(row: list[Entry], at: int, entry: Entry) -> list[Entry]:
    return [*row[:at], entry, *row[at + 1 :]]


KEY = b"UNIQ_KEY\x017F0000014676C0DEE0B0%012X\x02"
EVEN_ROWS = {
    "keys only": even(32),
    "two": even(2),
    "something behind the key": even(5, behind=b"WAIT\x01true\x02"),
    "something before the key": even(5, before=b"WAIT\x01true\x02"),
    "a tag": even(5, behind=b"TAGS\x01tag\x02"),
    "keys and a tag": even(5, before=b"TAGS\x01tag\x02KEYS\x01k1 k2\x02"),
    "last digits carried over": even(32, first=0xFFF0),
    "small letters in the key": [(f, b, p.replace(b"F", b"f")) for f, b, p in even(5)],
    "letters of no alphabet": [(f, b, p.replace(b"7F00", b"\xc3\xa4\xc3\xa4")) for f, b, p in even(5)],
    "another end of the key": changed(even(5), 3, (7, b"00003", (KEY % 3)[:-4] + b"x-y\x02")),
    "one tag of many": changed(
        even(5, behind=b"TAGS\x01tag\x02"), 2, (7, b"00002", KEY % 2 + b"TAGS\x01gat\x02")
    ),
    "one flag of many": changed(even(5), 2, (8, b"00002", KEY % 2)),
    "one order of many": changed(even(5, behind=b"a\x01b\x02"), 2, (7, b"00002", b"a\x01b\x02" + KEY % 2)),
    "sizes that only add up": [(7, b"123", KEY % 1 + b"a\x01b\x02"), (7, b"1234567", KEY % 2)],
    "a key twice": even(5, behind=KEY % 99),
    "a longer name": even(5, before=b"MY"),
    "an unfinished key": [(f, b, p[:-1]) for f, b, p in even(5)],
    "long properties": even(5, behind=b"a\x01" + b"v" * 1500 + b"\x02"),
}


@pytest.mark.parametrize("row", EVEN_ROWS.values(), ids=EVEN_ROWS.keys())
def test_even_row_leaves_what_its_messages_leave(row: list[Entry]) -> None:
    fast, slow = FaultyFileSystem(), FaultyFileSystem()
    fast_store, slow_store = (begun(fs, segment_bytes=1 << 17) for fs in (fast, slow))
    # The first turn teaches the shape. Single messages in between must keep their place in the index.
    for turn in range(4):
        wanted = template(encode_batch(row))
        append_row(fast_store, wanted)
        one_by_one(slow_store, wanted)
        for store in (fast_store, slow_store):
            store.append(message(turn, topic="Other"))
    for key in ("7F0000014676C0DEE0B0000000000001", "k2"):
        asked = (TOPIC, key, 32, 0, START_MS * 2)
        assert fast_store.query(*asked) == slow_store.query(*asked)
    assert content(fast, fast_store) == content(slow, slow_store)


def test_even_rows_are_found_after_cut_and_after_a_crash() -> None:
    fs = FaultyFileSystem()
    store = begun(fs, segment_bytes=1 << 17)
    ends = []
    for turn in range(4):
        append_row(store, template(encode_batch(even(8, first=8 * turn))))
        ends.append(store.max_log_offset)
    store.truncate(ends[2])

    def found(where: MessageStore) -> list[int]:
        keys = [f"7F0000014676C0DEE0B0{number:012X}" for number in range(32)]
        return [len(where.query(TOPIC, key, 9, 0, START_MS * 2)[0]) for key in keys]

    assert found(store) == [1] * 24 + [0] * 8
    append_row(store, template(encode_batch(even(8, first=24))))
    after = open_store(fs.kill(), segment_bytes=1 << 17)
    assert found(after) == [1] * 32
    after.close()


def test_properties_with_lost_sectors_in_them_are_not_stored_from_a_row() -> None:
    store = begun(FaultyFileSystem())
    before = store.max_log_offset
    hole = b"a\x01b" + bytes(512) + b"\x02"
    with pytest.raises(BadMessage):
        append_row(store, template(encode_batch(even(3, behind=hole))))
    assert store.max_log_offset == before
    store.close()


def test_row_cut_or_damaged_anywhere_is_refused_whole_or_stored_whole() -> None:
    whole = encode_batch(entries(3))
    for position in range(len(whole)):
        for row in (whole[:position], whole[:position] + b"\xff" + whole[position + 1 :]):
            store = begun(FaultyFileSystem())
            before = store.max_log_offset
            try:
                split_batch(row)
                readable = True
            except RecordError:
                readable = False
            if readable:
                append_row(store, template(row))
            else:
                with pytest.raises(RecordError):
                    append_row(store, template(row))
            if not readable:
                assert (store.max_log_offset, store.max_offset(TOPIC, 1)) == (before, 0)
            store.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"born_host": HOST_V6},
        {"topic": "T" * 130},
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        {"sys_flag": 4},
        {"sys_flag": 12},
    ],
    ids=["IPv6", "long topic", "units that are times", "prepared", "rolled back"],
)
def test_unusual_row_leaves_what_its_messages_leave(changes: dict[str, Any]) -> None:
    wanted = template(**{"row": encode_batch(entries(3, properties=b"DELAY\x012\x02")), **changes})
    fast, slow = FaultyFileSystem(), FaultyFileSystem()
    fast_store, slow_store = begun(fast), begun(slow)
    assert append_row(fast_store, wanted) == 3
    one_by_one(slow_store, wanted)
    assert content(fast, fast_store) == content(slow, slow_store)


def test_row_with_a_body_over_the_limit_is_refused_whole() -> None:
    store = begun(FaultyFileSystem())
    before = store.max_log_offset
    with pytest.raises(MessageTooLarge):
        append_row(store, template(encode_batch([(0, b"x", b""), (0, b"x" * 2001, b"")])))
    assert store.max_log_offset == before
    store.close()


def test_rows_cross_the_ends_of_segments_whole() -> None:
    store = begun(FaultyFileSystem())
    wanted = template(encode_batch(entries(5)))
    for _ in range(60):
        count = append_row(store, wanted)
        last = store.max_offset(TOPIC, 1)
        starts = [at for at, _, _ in store.units(TOPIC, 1, last - count, count)]
        assert len({start // store.config.segment_bytes for start in starts}) == 1
    assert store.max_log_offset > 2 * store.config.segment_bytes
    assert bodies(store, TOPIC, 1) == [body for _, body, _ in entries(5)] * 60
    store.close()


def test_full_disk_refuses_the_row_and_leaves_nothing_of_it() -> None:
    fs = FaultyFileSystem()
    store = begun(fs)
    wanted = template(encode_batch(entries(3)))
    append_row(store, wanted)
    before = store.max_log_offset
    fs.fail_writes(error=errno.ENOSPC)
    with pytest.raises(StoreUnavailable):
        append_row(store, wanted)
    assert (store.max_log_offset, store.max_offset(TOPIC, 1)) == (before, 3)
    fs.heal()
    store.tick()
    append_row(store, wanted)
    assert store.max_offset(TOPIC, 1) == 6
    store.close()


def test_closed_store_refuses_and_arrival_is_told_once() -> None:
    arrived: list[tuple[str, int]] = []
    store = begun(FaultyFileSystem(), arrived=[lambda topic, queue_id: arrived.append((topic, queue_id))])
    arrived.clear()
    append_row(store, template(encode_batch(entries(4))))
    assert arrived == [(TOPIC, 1)]
    store.close()
    with pytest.raises(StoreUnavailable):
        append_row(store, template(encode_batch(entries(1))))
