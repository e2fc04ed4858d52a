"""Selecting records by queue units: limits, tags, programs, units outside of the window. Both kernels."""

from __future__ import annotations

from struct import Struct

import pytest
from tests.apache.kernels import Kernel

from orbitmq.filter import encode_program, parse
from orbitmq.kernel.layout import SLICE
from orbitmq.record.codec import encode_record
from orbitmq.store.types import NewMessage

UNIT = Struct(">qiq")
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
HOST_V6 = bytes(range(16)) + b"\0\0\x2a\x9f"
BASE = 1 << 40
FAR = 1 << 30
QUEUE = (b"T", 0, 0)
FAR_AWAY = 1 << 62
"""Nothing before this log offset is trusted."""


def log_of(count: int, *, host: bytes = HOST, topic: str = "T", gap: bytes = b"") -> tuple[bytes, bytes]:
    """Returns a window and the units of its records: record ``n`` has the tag code ``n % 3`` and the property ``a`` =
    n.
    """
    window, units = b"", b""
    for number in range(count):
        message = NewMessage(topic, 0, b"x" * (number % 7), b"a\x01%d\x02" % number, 1, host)
        record = encode_record(message, number, BASE + len(window), 1, HOST)
        units += UNIT.pack(BASE + len(window), len(record), number % 3)
        window += record + gap
    return window, units


def size_of(units: bytes, number: int) -> int:
    return int(UNIT.unpack_from(units, number * UNIT.size)[1])


def program(expression: str) -> bytes:
    return encode_program(parse(expression).tree)


def test_neighbours_share_a_slice(kernel: Kernel) -> None:
    window, units = log_of(10)
    assert kernel.select(units, 0, (window, BASE), (32, FAR), (0, 0), None, (*QUEUE, FAR_AWAY)) == (
        10,
        10,
        len(window),
        SLICE.pack(0, len(window)),
        False,
        (),
    )
    window, units = log_of(10, gap=b"-")
    at, count, total, bounds, is_outside, _ = kernel.select(
        units, 2, (window, BASE), (3, FAR), (0, 0), None, (*QUEUE, FAR_AWAY)
    )
    assert (at, count, total, is_outside) == (5, 3, sum(size_of(units, n) for n in (2, 3, 4)), False)
    slices = list(SLICE.iter_unpack(bounds))
    assert len(slices) == 3
    assert all(window[end] == ord("-") for _, end in slices)


def test_first_record_is_selected_however_large(kernel: Kernel) -> None:
    window, units = log_of(4)
    at, count, total, _, _, _ = kernel.select(
        units, 0, (window, BASE), (32, 1), (0, 0), None, (*QUEUE, FAR_AWAY)
    )
    assert (at, count, total) == (1, 1, size_of(units, 0))
    # The first of a whole read, that is: not of what follows in another segment.
    assert kernel.select(units, 1, (window, BASE), (32, 1), (1, total), None, (*QUEUE, FAR_AWAY)) == (
        1,
        1,
        total,
        b"",
        False,
        (),
    )


@pytest.mark.parametrize("room", [0, 1])
def test_bytes_are_counted_to_the_last(kernel: Kernel, room: int) -> None:
    window, units = log_of(8)
    three = sum(size_of(units, n) for n in range(3))
    at, count, total, _, _, _ = kernel.select(
        units, 0, (window, BASE), (32, three - room), (0, 0), None, (*QUEUE, FAR_AWAY)
    )
    assert (at, count) == ((3, 3) if room == 0 else (2, 2))
    assert total == sum(size_of(units, n) for n in range(count))


def test_tag_codes_are_compared_before_bytes_are_counted(kernel: Kernel) -> None:
    window, units = log_of(9)
    wanted = kernel.Filter({1, 77})
    assert (wanted.has_tags, wanted.node_count) == (True, 0)
    at, count, _, bounds, _, _ = kernel.select(
        units, 0, (window, BASE), (32, FAR), (0, 0), wanted, (*QUEUE, FAR_AWAY)
    )
    assert (at, count, len(bounds)) == (9, 3, 3 * SLICE.size)
    # The last unit that does not match is skipped, the next that matches is not.
    at, count, _, _, _, _ = kernel.select(
        units, 0, (window, BASE), (32, size_of(units, 1)), (0, 0), wanted, (*QUEUE, FAR_AWAY)
    )
    assert (at, count) == (4, 1)
    at, count, _, _, _, _ = kernel.select(
        units, 0, (window, BASE), (1, FAR), (0, 0), wanted, (*QUEUE, FAR_AWAY)
    )
    assert (at, count) == (2, 1)


def test_extension_address_passes_any_tags(kernel: Kernel) -> None:
    window, units = log_of(2)
    for code, passes in ((-(2**63), 1), (-(2**31) - 1, 1), (-(2**31), 0), (2**31, 0)):
        unit = units[:12] + code.to_bytes(8, "big", signed=True)
        assert (
            kernel.select(unit, 0, (window, BASE), (9, FAR), (0, 0), kernel.Filter({5}), (*QUEUE, FAR_AWAY))[
                1
            ]
            == passes
        ), code
        assert kernel.Filter({5}).matches_code(code) is bool(passes)


@pytest.mark.parametrize("host", [HOST, HOST_V6], ids=["v4", "v6"])
@pytest.mark.parametrize("topic", ["T", "T" * 200])
def test_program_and_tags_must_both_match(kernel: Kernel, host: bytes, topic: str) -> None:
    window, units = log_of(30, host=host, topic=topic)
    wanted = kernel.Filter({0}, program("a BETWEEN 6 AND 20"))
    at, count, _, bounds, _, _ = kernel.select(
        units, 0, (window, BASE), (4, FAR), (0, 0), wanted, (topic.encode(), 0, 0, FAR_AWAY)
    )
    assert (at, count, len(bounds)) == (16, 4, 4 * SLICE.size)  # 6, 9, 12, 15
    assert kernel.Filter(None, program("a = 5")).node_count == 3


@pytest.mark.parametrize(
    "unit",
    [
        (BASE - 1, 100, 0),
        (BASE, FAR, 0),
        (BASE, 0, 0),
        (BASE, -5, 0),
        (-(2**63), 100, 0),
        (2**63 - 1, 2**31 - 1, 0),
        (BASE + FAR, 1, 0),
    ],
)
def test_record_outside_of_the_window_ends_the_call(kernel: Kernel, unit: tuple[int, int, int]) -> None:
    window, units = log_of(3)
    for wanted in (None, kernel.Filter({9})):
        at, count, _, _, is_outside, _ = kernel.select(
            units + UNIT.pack(*unit) + units, 0, (window, BASE), (32, FAR), (0, 0), wanted, (*QUEUE, FAR_AWAY)
        )
        assert (at, count, is_outside) == (3, 3 if wanted is None else 0, True)
    # Nothing after the last selectable record is examined.
    assert not kernel.select(
        units + UNIT.pack(*unit), 0, (window, BASE), (3, FAR), (0, 0), None, (*QUEUE, FAR_AWAY)
    )[4]


def test_half_a_unit_and_places_behind_the_end_are_nothing(kernel: Kernel) -> None:
    window, units = log_of(2)
    assert kernel.select(units[:-1], 0, (window, BASE), (9, FAR), (0, 0), None, (*QUEUE, FAR_AWAY))[0] == 1
    assert kernel.select(units, 7, (window, BASE), (9, FAR), (1, 5), None, (*QUEUE, FAR_AWAY)) == (
        7,
        1,
        5,
        b"",
        False,
        (),
    )
    assert kernel.select(b"", 0, (b"", 0), (9, FAR), (0, 0), None, (*QUEUE, FAR_AWAY)) == (
        0,
        0,
        0,
        b"",
        False,
        (),
    )


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\x00",
        b"\x63",
        program("a = 5")[:-1],
        program("a = 5") + b"\x02",
        b"\x01\x00\x00\x00\x01a",  # a value
        b"\x0f" + b"\x01\x00\x00\x00\x01a",  # NOT of a value
        b"\x1a\x00\x00\x00\x00",  # without a name
        b"\x1a\x00\x00\x00\x02a\x01",
        b"\x0a\x02\x08\x00\x00\x00\x01\xff",  # not UTF-8
        b"\x10\xff\xff\xff\xff\x03",
        b"\x0f" * 300 + b"\x03",
    ],
    ids=lambda text: text[:8].hex(),
)
def test_broken_program_is_refused(kernel: Kernel, broken: bytes) -> None:
    with pytest.raises(ValueError, match="SQL program"):
        kernel.Filter(None, broken)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 100, 2000])
def test_long_values_are_searched(kernel: Kernel, size: int) -> None:
    wanted = kernel.Filter(None, program("a CONTAINS 'ell'"))
    assert not wanted.matches_properties(b"a\x01" + b"[" * size + b"\x02")
    assert wanted.matches_properties(b"a\x01" + b"[" * size + b"ell")


def test_window_may_be_any_contiguous_buffer(kernel: Kernel) -> None:
    window, units = log_of(3)
    wanted = kernel.Filter(None, program("a >= 1"))
    results = [
        kernel.select(units, 0, (buffer, BASE), (9, FAR), (0, 0), wanted, (*QUEUE, FAR_AWAY))
        for buffer in (window, bytearray(window), memoryview(window), memoryview(b"-" + window)[1:])
    ]
    assert results == [results[0]] * 4
    assert results[0][1] == 2


def flipped(window: bytes, position: int) -> bytes:
    return window[:position] + bytes([window[position] ^ 1]) + window[position + 1 :]


@pytest.mark.parametrize("trusted", [FAR_AWAY, BASE, 0])
def test_any_bit_that_is_checked_makes_a_record_damaged(kernel: Kernel, trusted: int) -> None:
    """Sizes, magic, checksum, place, queue and body; no checksum covers flag, times, hosts and properties. Where the
    log is trusted, only the head of the first record is looked at."""
    window, units = log_of(6)
    starts = [UNIT.unpack_from(units, n * UNIT.size)[0] - BASE for n in range(6)]
    size, body_size = size_of(units, 3), 3
    unchecked = {*range(16, 20), *range(36, 84), *range(88 + body_size + 1 + 1 + 2, size)}
    if trusted != FAR_AWAY:
        unchecked |= {*range(8, 12), *range(36, size)}
    damaged: set[int] = set()
    for position in range(size):
        changed = flipped(window, starts[3] + position)
        at, count, total, bounds, is_outside, found = kernel.select(
            units, 3, (changed, BASE), (32, FAR), (0, 0), None, (*QUEUE, trusted)
        )
        assert (at, is_outside) == (6, False)
        if found:
            assert (found, count, total) == ((3,), 2, len(window) - starts[4])
            assert list(SLICE.iter_unpack(bounds)) == [(starts[4], len(window))]
            damaged.add(position)
        if trusted != FAR_AWAY:
            assert (
                kernel.select(units, 2, (changed, BASE), (32, FAR), (0, 0), None, (*QUEUE, trusted))[1] == 4
            )
    # Host bits of the system flag move what follows them.
    assert (
        set(range(size)) - unchecked
        <= damaged
        <= set(range(size)) - unchecked | ({39} if trusted == FAR_AWAY else set())
    )


@pytest.mark.parametrize(
    "queue",
    [
        (b"T", 0, 1),
        (b"T", 0, -1),
        (b"T", 1, 0),
        (b"U", 0, 0),
        (b"", 0, 0),
        (b"T", 0, 2**63 - 1),
        (b"T", 2**62, 0),
    ],
)
def test_record_of_another_queue_or_number_is_damaged(kernel: Kernel, queue: tuple[bytes, int, int]) -> None:
    window, units = log_of(3)
    for wanted in (None, kernel.Filter({0, 1, 2})):
        found = kernel.select(units, 0, (window, BASE), (32, FAR), (0, 0), wanted, (*queue, FAR_AWAY))
        assert found == (3, 0, 0, b"", False, (0, 1, 2))
    # Records excluded by a tag are not examined.
    assert kernel.select(units, 0, (window, BASE), (32, FAR), (0, 0), kernel.Filter({1}), (*queue, FAR_AWAY))[
        5
    ] == (1,)


def test_unit_with_the_size_or_place_of_another_record_is_damaged(kernel: Kernel) -> None:
    window, units = log_of(3)
    offset, size, code = UNIT.unpack_from(units, UNIT.size)
    for unit in (
        (offset, size - 1, code),
        (offset, size + 1, code),
        (offset + 1, size, code),
        (BASE, size - 1, code),
    ):
        changed = units[: UNIT.size] + UNIT.pack(*unit) + units[2 * UNIT.size :]
        at, count, _, _, _, found = kernel.select(
            changed, 0, (window, BASE), (32, FAR), (0, 0), None, (*QUEUE, FAR_AWAY)
        )
        assert (at, count, found) == (3, 2, (1,)), unit


def test_damaged_record_counts_neither_as_a_message_nor_as_bytes(kernel: Kernel) -> None:
    window, units = log_of(3)
    changed = flipped(window, 4)
    size = size_of(units, 1)
    assert kernel.select(units, 0, (changed, BASE), (1, size), (0, 0), None, (*QUEUE, FAR_AWAY))[:3] == (
        2,
        1,
        size,
    )


def test_bodies_are_checked_up_to_the_trusted_offset(kernel: Kernel) -> None:
    window, units = log_of(6)
    starts = [UNIT.unpack_from(units, n * UNIT.size)[0] for n in range(6)]
    changed = window
    for number in (2, 3):
        changed = flipped(changed, starts[number] - BASE + 88)
    for trusted, damaged in ((starts[2], ()), (starts[2] + 1, (2,)), (starts[3], (2,)), (starts[4], (2, 3))):
        found = kernel.select(units, 0, (changed, BASE), (32, FAR), (0, 0), None, (*QUEUE, trusted))
        assert found[5] == damaged


@pytest.mark.parametrize("zeros", [511, 512, 600])
def test_properties_with_a_lost_sector_are_damaged(kernel: Kernel, zeros: int) -> None:
    message = NewMessage("T", 0, b"x", b"a\x01" + b"v" * 700 + b"\x02", 1, HOST)
    record = encode_record(message, 0, BASE, 1, HOST)
    at = record.index(b"v") + 10
    record = record[:at] + bytes(zeros) + record[at + zeros :]
    units = UNIT.pack(BASE, len(record), 0)
    found = kernel.select(units, 0, (record, BASE), (32, FAR), (0, 0), None, (*QUEUE, FAR_AWAY))
    assert found[5] == ((0,) if zeros >= 512 else ())


def test_trusted_record_that_does_not_follow_the_one_before_must_name_its_place(kernel: Kernel) -> None:
    window, units = log_of(6)
    for number in (0, 1, 2, 4, 5):
        wrong = units[number * UNIT.size : (number + 1) * UNIT.size]
        changed = units[: 3 * UNIT.size] + wrong + units[4 * UNIT.size :]
        at, count, _, _, _, found = kernel.select(
            changed, 0, (window, BASE), (32, FAR), (0, 0), None, (*QUEUE, BASE)
        )
        # A later one is accepted as it is, and detected at the next: the units of trusted records are trusted.
        assert (at, count, found) == ((6, 5, (3,)) if number < 3 else (6, 6, ())), number
    # The first record of a call: an old unit may point there.
    assert kernel.select(units, 0, (window, BASE), (1, FAR), (0, 0), None, (b"T", 0, 1, BASE))[5] == tuple(
        range(6)
    )
