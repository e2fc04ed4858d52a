"""The record functions on both kernels: known cases on each, any input with equal results."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apache.kernels import Kernel, load
from tests.fuzz.record_pairs import FUNCTIONS, compare

from orbitmq.errors import RecordError
from orbitmq.kernel.layout import HOLE_BYTES, INDEX_KEY

V4 = bytes((127, 0, 0, 1, 0, 0, 0x1F, 0x90))
V6 = bytes(15) + b"\x01" + b"\0\0\x1f\x90"
PROPERTIES = b"UNIQ_KEY\x01AC110001\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02"


def message(**changes: Any) -> tuple[Any, ...]:
    fields = {
        "topic": "orders",
        "queue_id": 3,
        "body": b"hello",
        "properties": PROPERTIES,
        "born_ms": 1_700_000_000_000,
        "born_host": V4,
        "flag": 0,
        "sys_flag": 0,
        "times": 0,
        "prepared": 0,
    }
    return tuple({**fields, **changes}.values())


def outcome(function: Any, *arguments: Any) -> Any:
    """Returns the result of a call, or the class of its exception."""
    try:
        return function(*arguments)
    except RecordError as error:
        return type(error)


def test_messages_of_two_queues_get_dense_numbers_and_units_of_their_own(kernel: Kernel) -> None:
    messages = [message(queue_id=n % 2) for n in range(5)]
    records, log_offsets, queue_offsets, units, keys = kernel.encode_records(
        messages, [0, 1, 0, 1, 0], [7, 100], 1000, 5, V4, 2
    )
    assert queue_offsets == [7, 100, 8, 101, 9]
    assert [len(each) for each in units] == [60, 40]
    walked, end = kernel.walk_records(records, 0, len(records), True, 1000)
    assert end == len(records)
    assert [each[6] for each in walked] == log_offsets
    assert [each[5] for each in walked] == queue_offsets
    assert [key[1:] for key in INDEX_KEY.iter_unpack(keys)] == [
        (at, 5) for at in log_offsets for _ in range(4)
    ]
    assert int.from_bytes(units[0][12:20], "big") == 2598919


def test_prepared_and_rolled_back_messages_have_no_unit(kernel: Kernel) -> None:
    messages = [message(sys_flag=0x4), message(sys_flag=0xC), message(sys_flag=0x8)]
    _, _, queue_offsets, units, keys = kernel.encode_records(messages, [0] * 3, [9], 0, 5, V4, 2)
    assert queue_offsets == [0, 0, 9]
    assert len(units[0]) == 20
    assert len(keys) == 2 * 4 * INDEX_KEY.size


@pytest.mark.parametrize(
    "changes",
    [
        {"body": None},
        {"topic": ""},
        {"topic": "a\0b"},
        {"topic": "t" * 256},
        {"topic": "\ud800"},
        {"properties": b"x" * 32768},
        {"properties": b"a\x01" + bytes(512) + b"b\x02"},
        {"born_host": b"1234567"},
        {"queue_id": 1 << 31},
        {"born_ms": 1 << 63},
        {"sys_flag": "0"},
        {"body": 7},
    ],
    ids=repr,
)
def test_message_that_cannot_be_stored_is_refused(kernel: Kernel, changes: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        kernel.encode_records([message(**changes)], [0], [0], 0, 5, V4, 2)


@pytest.mark.parametrize("slot", [-1, 1])
def test_slot_that_is_not_there_is_refused(kernel: Kernel, slot: int) -> None:
    for flags in (0, 0x4):
        with pytest.raises(RecordError):
            kernel.encode_records([message(sys_flag=flags)], [slot], [0], 0, 5, V4, 2)


@pytest.mark.parametrize(
    "arguments",
    [([1 << 63], 0, 5, V4), ([0], 1 << 63, 5, V4), ([0], 0, "5", V4), ([0], 0, 5, V4[:7]), ([0], 0, 5, None)],
    ids=repr,
)
def test_call_that_says_what_no_record_can_hold_is_refused(
    kernel: Kernel, arguments: tuple[Any, ...]
) -> None:
    (next_offset,), *rest = arguments
    calls: list[tuple[Any, ...]] = [
        (kernel.encode_records, [], [], [next_offset], *rest, 2),
        (kernel.encode_record, message(), next_offset, *rest),
    ]
    for function, *given_arguments in calls:
        with pytest.raises(RecordError):
            function(*given_arguments)


def test_last_numbers_there_are_can_be_stored_once(kernel: Kernel) -> None:
    last = (1 << 63) - 1
    found = kernel.encode_records([message()], [0], [last], last, 5, V4, 0)
    assert (found[1], found[2]) == ([last], [last])
    dispatched = kernel.dispatch_records(found[0], 0, len(found[0]), True, last, 0, 9)
    assert dispatched[0] == [(b"orders", 3, last, found[3][0])]
    for offsets in ((last, 0), (0, last)):
        with pytest.raises(RecordError):
            kernel.encode_records([message()] * 2, [0, 0], [offsets[0]], offsets[1], 5, V4, 0)


@pytest.mark.parametrize(("start", "end"), [(-1, 500), (0, -1), (600, 500), (1 << 62, 1 << 62)])
def test_walk_outside_of_the_data_finds_nothing(kernel: Kernel, start: int, end: int) -> None:
    records = kernel.encode_records([message()] * 3, [0] * 3, [0], 0, 5, V4, 0)[0]
    assert kernel.walk_records(records, start, end, True, None) == ([], start)
    assert kernel.dispatch_records(records, start, end, True, 0, 2, 9) == ([], 0, 0, start, b"")


def test_lone_surrogate_in_a_topic_counts_as_a_question_mark(kernel: Kernel) -> None:
    assert kernel.hash_keys([("a\ud800", PROPERTIES, 0, 1, 2)], 2) == kernel.hash_keys(
        [("a?", PROPERTIES, 0, 1, 2)], 2
    )


def test_text_that_ends_with_a_zero_gets_a_terminator(kernel: Kernel) -> None:
    records = kernel.encode_records([message(properties=b"a\x01b\0")], [0], [0], 0, 5, V4, 0)[0]
    assert kernel.walk_records(records, 0, len(records), True, 0)[0][0][12] == b"a\x01b\0\x02"


@pytest.mark.parametrize("log_base", [0, 100, 1 << 30])
@pytest.mark.parametrize("extra", [0, 1])
def test_text_that_ends_with_a_zero_and_a_sector_of_the_log_was_not_written_whole(
    kernel: Kernel, log_base: int, extra: int
) -> None:
    """A sector of the log, not of the piece that is walked; elsewhere Apache's text may end with a zero."""

    def record(body: bytes) -> bytes:
        return bytes(kernel.encode_record(message(body=body), 0, log_base, 5, V4))

    padding = -(log_base + len(record(b""))) % HOLE_BYTES
    torn = record(bytes(padding + extra))[:-1] + b"\0"
    walked, _ = kernel.walk_records(torn + record(b"next"), 0, 1 << 20, False, log_base)
    assert len(walked) == extra


def test_dispatch_groups_units_by_queue_and_refuses_numbers_that_jump(kernel: Kernel) -> None:
    messages = [message(queue_id=n % 3) for n in range(9)]
    slots = [n % 3 for n in range(9)]
    records, log_offsets, _, units, keys = kernel.encode_records(messages, slots, [5, 6, 7], 512, 5, V4, 2)
    groups, count, newest_ms, end, found = kernel.dispatch_records(records, 0, len(records), True, 512, 2, 9)
    assert groups == [(b"orders", n, 5 + n, units[n]) for n in range(3)]
    assert (count, newest_ms, end) == (9, 5, len(records))
    assert found == keys
    first = kernel.dispatch_records(records, 0, len(records), True, 512, 2, 1)
    assert first[:4] == ([(b"orders", 0, 5, units[0][:20])], 1, 5, log_offsets[1] - 512)
    jumping = kernel.encode_records(messages[:2], [0, 1], [5, 9], 512, 5, V4, 2)[0]
    again = kernel.encode_records([message(queue_id=0)], [0], [8], 512 + len(jumping), 5, V4, 2)[0]
    assert kernel.dispatch_records(jumping + again, 0, 1 << 20, True, 512, 2, 9) is None


_texts = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([PROPERTIES, PROPERTIES[:-1], b"TAGS\x01\x02TAGS\x01a", "KEYS\x01é x\x02".encode()]),
)
_messages = st.builds(
    message,
    topic=st.one_of(st.text(max_size=10), st.just("t" * 200)),
    queue_id=st.integers(-1, 1 << 32),
    body=st.one_of(st.none(), st.binary(max_size=50)),
    properties=_texts,
    born_ms=st.integers(-1, 1 << 62),
    born_host=st.sampled_from([V4, V6, b""]),
    flag=st.integers(-5, 1 << 31),
    sys_flag=st.integers(0, 0x3F),
    times=st.integers(0, 16),
    prepared=st.integers(0, 1 << 40),
)


@given(messages=st.lists(_messages, max_size=4), host=st.sampled_from([V4, V6]), with_keys=st.integers(0, 2))
def test_encode_records_is_the_same_in_both(
    messages: list[tuple[Any, ...]], host: bytes, with_keys: int
) -> None:
    arguments = (messages, [n % 2 for n in range(len(messages))], [3, 4], 700, 5, host, with_keys)
    assert outcome(load("fast").encode_records, *arguments) == outcome(
        load("plain").encode_records, *arguments
    )


@given(data=st.binary(max_size=300), properties=_texts)
def test_property_functions_are_the_same_in_both(data: bytes, properties: bytes) -> None:
    plain, fast = load("plain"), load("fast")
    for text in (data, properties):
        assert fast.tag_code(text) == plain.tag_code(text)
        assert fast.find_property(text, b"TAGS") == plain.find_property(text, b"TAGS")
        assert fast.hash_keys([("top", text, 0, 1, 2)], 2) == plain.hash_keys([("top", text, 0, 1, 2)], 2)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_damaged_input_is_treated_alike_by_both_kernels(name: str) -> None:
    results = [compare(name, random.Random(seed)) for seed in range(1_500)]
    assert any(result and not isinstance(result, type) for result in results), "every input was refused"


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_100_000_damaged_inputs_are_treated_alike_by_both_kernels(name: str) -> None:
    for seed in range(1_000_000, 1_100_000):
        compare(name, random.Random(seed))


def starts_of(kernel: Kernel, data: bytes | memoryview, start: int, end: int) -> tuple[list[int], int]:
    found, position = kernel.record_starts(data, start, end)
    return list(array("q", found)), position


def test_starts_of_records_end_where_no_whole_record_lies(kernel: Kernel) -> None:
    sizes = [100, 91, 300]
    records = [
        size.to_bytes(4, "big") + magic.to_bytes(4, "big") + bytes(size - 8)
        for size, magic in zip(sizes, (0xDAA320A7, 0xDAA320AB, 0xDAA320A7), strict=True)
    ]
    data = b"".join(records)
    assert starts_of(kernel, data, 0, len(data)) == ([0, 100, 191], 491)
    assert starts_of(kernel, memoryview(data), 100, len(data)) == ([100, 191], 491)
    assert starts_of(kernel, data, 0, 10**6) == ([0, 100, 191], 491)
    assert starts_of(kernel, data, 0, 490) == ([0, 100], 191)
    assert starts_of(kernel, data, 1, 491) == ([], 1)
    assert starts_of(kernel, data, 600, 491) == ([], 600)
    assert starts_of(kernel, b"", 0, 0) == ([], 0)
    for broken in (bytes(8), b"\xff" * 8, (90).to_bytes(4, "big") + records[0][4:8]):
        assert starts_of(kernel, data + broken + bytes(100), 0, 10**6) == ([0, 100, 191], 491)


@given(data=st.data())
def test_starts_in_any_bytes_are_the_same_in_both(data: st.DataObject) -> None:
    head = st.builds(
        lambda size, magic, rest: size.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big") + rest,
        st.sampled_from([91, 120, 90, 0, -1, 2**31 - 1]),
        st.sampled_from([0xDAA320A7, 0xDAA320AB, 0xCBD43194, 0]),
        st.sampled_from([bytes(83), bytes(112), b""]),
    )
    raw = b"".join(data.draw(st.lists(head, max_size=6)))
    start, end = data.draw(st.integers(0, len(raw) + 9)), data.draw(st.integers(0, len(raw) + 9))
    assert load("fast").record_starts(raw, start, end) == load("plain").record_starts(raw, start, end)
