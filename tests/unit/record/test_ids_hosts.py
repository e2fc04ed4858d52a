"""Message ids and socket addresses."""

from __future__ import annotations

import pytest
from tests.unit.record.messages import HOST, HOST_V6

from orbitmq.errors import RecordError
from orbitmq.record.hosts import decode_host, encode_host, host_text
from orbitmq.record.ids import UniqueKeys, offset_message_id, parse_offset_message_id, parse_unique_key

MONTH_MS = 30 * 86_400_000


class Calendar:
    """Months of thirty days from 1,000 on."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def now(self) -> int:
        return self.now_ms

    def month_of(self, at_ms: int) -> tuple[int, int]:
        start = 1_000 + (at_ms - 1_000) // MONTH_MS * MONTH_MS
        return start, start + MONTH_MS


def unique_keys(calendar: Calendar, address: bytes = bytes([127, 0, 0, 1])) -> UniqueKeys:
    return UniqueKeys(
        address=address,
        process_id=0x14676,
        process_constant=0xC0DEE0B0,
        now_ms=calendar.now,
        month_of=calendar.month_of,
    )


def test_unique_key_has_apaches_layout() -> None:
    calendar = Calendar()
    keys = unique_keys(calendar)
    assert keys.next() == "7F0000014676C0DEE0B0000000000000"
    calendar.now_ms += 0x588B0000
    assert keys.next() == "7F0000014676C0DEE0B0588B00000001"
    assert parse_unique_key("7F0000014676C0DEE0B0588B00000001") == (
        bytes([127, 0, 0, 1]),
        0x4676,
        0xC0DEE0B0,
        0x588B0000,
        1,
    )


def test_unique_key_of_an_ipv6_host_has_56_digits() -> None:
    key = unique_keys(Calendar(), bytes(range(16))).next()
    assert len(key) == 56
    assert parse_unique_key(key).address == bytes(range(16))


def test_unique_key_starts_anew_with_the_month_and_survives_a_clock_set_back() -> None:
    calendar = Calendar()
    keys = unique_keys(calendar)
    calendar.now_ms = 1_000 + MONTH_MS + 5
    assert parse_unique_key(keys.next()).since_month_ms == 5
    calendar.now_ms = 2_000
    assert parse_unique_key(keys.next()).since_month_ms == 0


def test_unique_key_counter_wraps_at_two_bytes_and_keys_differ_until_then() -> None:
    keys = unique_keys(Calendar())
    made = [keys.next() for _ in range(65_537)]
    assert len(set(made)) == 65_536
    assert made[0] == made[-1]


def test_unique_keys_refuse_an_address_of_the_wrong_size() -> None:
    with pytest.raises(RecordError, match="4 or 16"):
        unique_keys(Calendar(), b"12345")


@pytest.mark.parametrize(
    ("host", "offset", "text"),
    [
        (bytes([6, 7, 8, 9, 0, 0, 0x2A, 0x9F]), 5, "0607080900002A9F0000000000000005"),
        (HOST_V6, 2**40, "20010DB800000000000000000000000100002A9F0000010000000000"),
    ],
)
def test_offset_id_reads_back(host: bytes, offset: int, text: str) -> None:
    assert offset_message_id(host, offset) == text
    assert parse_offset_message_id(text) == (*decode_host(host), offset)
    assert parse_offset_message_id(text.lower()).log_offset == offset


@pytest.mark.parametrize(
    "text", ["", "0", "xyz", "00" * 15, "00" * 17, "00" * 27, "0607080900002A9F 000000000000005"]
)
def test_ids_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RecordError):
        parse_offset_message_id(text)
    with pytest.raises(RecordError):
        parse_unique_key(text)


@pytest.mark.parametrize(
    ("address", "data", "text"),
    [
        ("127.0.0.1", HOST, "127.0.0.1:10911"),
        ("::ffff:127.0.0.1", HOST, "127.0.0.1:10911"),
        ("2001:db8::1", HOST_V6, "[2001:db8::1]:10911"),
        ("2001:db8::1%eth0", HOST_V6, "[2001:db8::1]:10911"),
    ],
)
def test_host_reads_back(address: str, data: bytes, text: str) -> None:
    assert encode_host(address, 10911) == data
    assert host_text(data) == text


@pytest.mark.parametrize(
    ("address", "port"), [("localhost", 1), ("", 1), ("1.2.3", 1), ("::g", 1), ("1.2.3.4", 65536)]
)
def test_hosts_that_are_none_are_refused(address: str, port: int) -> None:
    with pytest.raises(RecordError):
        encode_host(address, port)


@pytest.mark.parametrize("size", [0, 4, 7, 9, 19, 21])
def test_host_bytes_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(RecordError, match="8 or 20"):
        decode_host(bytes(size))
