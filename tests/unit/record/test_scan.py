"""Walking through a log segment."""

from __future__ import annotations

import mmap
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.record.messages import HOST, HOST_V6, Sent

from orbitmq.kernel.layout import BLANK, MAGIC_BLANK
from orbitmq.record.codec import encode_record, encode_records
from orbitmq.record.scan import EndKind, Scan, ScanEnd, is_zero, scan

MESSAGES = [
    Sent(body=b"one"),
    Sent(body=b"two" * 100, born_host=HOST_V6),
    Sent(topic="%RETRY%" + "g" * 150, properties=b""),
]
THREE = b"".join(encode_records(MESSAGES, [0, 1, 2], 0, 99, HOST))
FIRST_BYTES = len(encode_record(MESSAGES[0], 0, 0, 99, HOST))


def walk(found: Scan) -> tuple[list[int], ScanEnd]:
    positions = [record.position for record in found]
    assert found.end is not None
    return positions, found.end


def ends(store: bytes = HOST) -> list[int]:
    sizes = [len(encode_record(message, 0, 0, 99, store)) for message in MESSAGES]
    return [sum(sizes[:count]) for count in range(len(sizes) + 1)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("store", [HOST, HOST_V6])
def test_scan_gives_the_facts_of_every_record(kind: Any, store: bytes) -> None:
    data = b"".join(encode_records(MESSAGES, [10, 11, 12], 0, 99, store))
    buffer = kind(data)
    found = list(scan(buffer, 0, len(data), log_base=0))
    assert [record.position for record in found] == ends(store)[:-1]
    assert [record.log_offset for record in found] == ends(store)[:-1]
    assert [record.queue_offset for record in found] == [10, 11, 12]
    assert [record.topic.decode() for record in found] == [message.topic for message in MESSAGES]
    assert [record.properties for record in found] == [message.properties for message in MESSAGES]
    assert {record.store_timestamp_ms for record in found} == {99}
    assert {record.queue_id for record in found} == {3}
    for record, message in zip(found, MESSAGES, strict=True):
        assert data[record.body_position : record.body_position + record.body_size] == message.body
        assert type(record.topic) is type(record.properties) is bytes


def test_scan_over_a_map_releases_it_at_the_end() -> None:
    with mmap.mmap(-1, 8192) as mapped:
        mapped[: len(THREE)] = THREE
        positions, end = walk(scan(mapped, 0, 8192))
        assert (positions, end.kind, end.position) == (ends()[:-1], EndKind.ZEROES, len(THREE))
    # Leaving the block closes the map, which fails while anything still refers to it.


def test_scan_of_exactly_the_records_ends_at_the_limit() -> None:
    assert walk(scan(THREE, 0, len(THREE)))[1] == ScanEnd(EndKind.LIMIT, len(THREE), "")
    assert walk(scan(b"", 0, 0))[1].kind is EndKind.LIMIT


def test_scan_can_start_at_any_record() -> None:
    assert walk(scan(THREE, ends()[1], len(THREE), log_base=0))[0] == ends()[1:-1]


@pytest.mark.parametrize("tail", [1, 7, 8, 90, 91, 500])
def test_scan_of_zeroes_behind_the_records_is_a_clean_end(tail: int) -> None:
    end = walk(scan(THREE + bytes(tail), 0, len(THREE) + tail))[1]
    assert (end.kind, end.position) == (EndKind.ZEROES, len(THREE))


@pytest.mark.parametrize("room", [8, 50, 91, 1000])
def test_scan_of_the_end_marker_says_so(room: int) -> None:
    data = THREE + BLANK.pack(room, MAGIC_BLANK) + b"\xee" * (room - 8)
    positions, end = walk(scan(data, 0, len(data)))
    assert (positions, end) == (ends()[:-1], ScanEnd(EndKind.BLANK, len(THREE), ""))


def test_scan_of_an_end_marker_with_a_wrong_size_keeps_the_doubt() -> None:
    data = THREE + BLANK.pack(9, MAGIC_BLANK) + bytes(100)
    end = walk(scan(data, 0, len(data)))[1]
    assert (end.kind, end.reason) == (EndKind.BLANK, "the marker says 9 bytes, 108 are left")


def test_scan_after_a_power_cut_at_any_byte_gives_exactly_the_whole_records() -> None:
    for cut in range(len(THREE) + 1):
        data = THREE[:cut].ljust(len(THREE) + 200, b"\0")
        positions, end = walk(scan(data, 0, len(data), log_base=0))
        whole = [position for position, stop in pairwise(ends()) if stop <= cut]
        # A record whose lost bytes were zeroes anyway is whole.
        kept = ends()[len(positions)]
        assert positions[: len(whole)] == whole, cut
        assert data[:kept] == THREE[:kept], cut
        assert end.kind in (EndKind.ZEROES, EndKind.BAD), cut


@pytest.mark.parametrize("at", range(FIRST_BYTES))
def test_scan_with_a_flipped_byte_never_gives_another_body_or_size(at: int) -> None:
    damaged = bytearray(THREE)
    damaged[at] ^= 0x55
    found = scan(damaged, 0, len(damaged), log_base=0)
    records = list(found)
    assert found.end is not None
    if not records:
        assert found.end.position == 0
        assert found.end.kind is EndKind.BAD
        assert found.end.reason
    else:
        assert records[0].size == FIRST_BYTES
        assert bytes(damaged[records[0].body_position :][: records[0].body_size]) == b"one"


def test_scan_finds_a_lost_sector_inside_the_properties() -> None:
    data = bytearray(encode_record(Sent(properties=b"a\x01" + b"v" * 2000 + b"\x02"), 0, 0, 99, HOST))
    assert len(list(scan(data, 0, len(data)))) == 1
    data[512:1024] = bytes(512)
    end = walk(scan(data, 0, len(data)))[1]
    assert (end.kind, end.position) == (EndKind.BAD, 0)
    assert "not written whole" in end.reason


def test_scan_takes_zero_bytes_inside_a_property_value() -> None:
    data = encode_record(Sent(properties=b"a\x01x\0\0y\x02"), 0, 0, 99, HOST)
    assert len(list(scan(data, 0, len(data)))) == 1


def ending_with_zero(size: int) -> bytes:
    """Returns a record of that many bytes whose properties end with a zero, as only Apache stores it."""
    plain = encode_record(Sent(properties=b"a\x01"), 0, 0, 99, HOST)
    record = encode_record(Sent(properties=b"a\x01".ljust(2 + size - len(plain), b"v")), 0, 0, 99, HOST)
    assert len(record) == size
    return record[:-1] + b"\0"


@pytest.mark.parametrize(
    ("size", "behind", "kept"),
    [
        (300, b"", True),  # no evidence to the contrary
        (300, bytes(7), False),
        (300, bytes(1000), False),  # as a power cut leaves it
        (300, THREE, True),
        (300, BLANK.pack(8, MAGIC_BLANK), True),
        (300, b"garbage!" * 20, False),
        (512, THREE, False),  # as a lost sector leaves it
        (511, THREE, True),
    ],
)
def test_scan_takes_zeroes_at_the_end_for_a_lost_write_unless_what_follows_disproves_it(
    size: int, behind: bytes, kept: bool
) -> None:
    data = ending_with_zero(size) + behind
    positions, end = walk(scan(data, 0, len(data)))
    assert (0 in positions) is kept
    if not kept:
        assert end == ScanEnd(
            EndKind.BAD, 0, "topic or properties are zeroes: the record was not written whole"
        )


def test_scan_refuses_records_of_another_place_in_the_log() -> None:
    end = walk(scan(THREE, 0, len(THREE), log_base=4096))[1]
    assert (end.kind, end.position) == (EndKind.BAD, 0)
    assert end.reason == "the record names log offset 0, but it is at 4096"


def test_scan_without_the_checksum_does_not_look_at_bodies() -> None:
    damaged = THREE.replace(b"one", b"two")
    assert len(list(scan(damaged, 0, len(damaged), check_crc=False))) == 3
    end = walk(scan(damaged, 0, len(damaged)))[1]
    assert (end.kind, end.position) == (EndKind.BAD, 0)
    assert end.reason.startswith("body CRC")


def test_scan_names_the_cut_when_the_limit_lies_inside_a_record() -> None:
    end = walk(scan(THREE, 0, len(THREE) - 1))[1]
    assert (end.kind, end.position) == (EndKind.BAD, ends()[2])
    assert "are left" in end.reason


def test_is_zero_finds_one_byte_anywhere() -> None:
    data = bytearray(200_000)
    assert is_zero(data, 0, len(data))
    for at in (0, 65_535, 65_536, 199_999):
        data[at] = 1
        assert not is_zero(data, 0, len(data))
        assert is_zero(data, at + 1, len(data))
        data[at] = 0
