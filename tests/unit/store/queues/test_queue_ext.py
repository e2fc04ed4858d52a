"""Queue extension files."""

from __future__ import annotations

import pytest

from orbitmq.store.queues.queue_ext import (
    ADDRESS_MAX,
    ExtUnit,
    QueueExt,
    decode_ext_unit,
    encode_ext_unit,
    is_ext_address,
)
from orbitmq.testing.faulty_fs import FaultyFileSystem

DIRECTORY = "/store/consumequeue_ext/T/0"
UNIT = ExtUnit(tag_code=-5, store_ms=1_700_000_000_000, bitmap=b"\x01\x02\x03\x04")
ENCODED = bytes.fromhex("0018 fffffffffffffffb 0000018bcfe56800 0004 01020304")


def queue(fs: FaultyFileSystem, last: int | None = None, file_bytes: int = 128) -> QueueExt:
    ext = QueueExt(fs, DIRECTORY, file_bytes)
    ext.load(last)
    return ext


def unit(number: int) -> ExtUnit:
    return ExtUnit(number, 1000 + number, bytes([number] * 4))


def test_unit_is_stored_as_apache_does() -> None:
    assert encode_ext_unit(UNIT) == ENCODED
    assert decode_ext_unit(ENCODED + b"next") == UNIT
    assert decode_ext_unit(encode_ext_unit(ExtUnit(1, 2))) == ExtUnit(1, 2, b"")


@pytest.mark.parametrize("cut", range(len(ENCODED)))
def test_unit_cut_anywhere_is_none(cut: int) -> None:
    assert decode_ext_unit(ENCODED[:cut]) is None


@pytest.mark.parametrize("data", [b"\0" * 40, b"\xff\xff" + b"\0" * 40, b"\x00\x15" + b"\0" * 40])
def test_bytes_that_are_no_unit_are_none(data: bytes) -> None:
    assert decode_ext_unit(data) is None


def test_bitmap_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_ext_unit(ExtUnit(0, 0, bytes(32748)))


@pytest.mark.parametrize("code", [0, 1, -1, -(2**31), 2**31, 1_700_000_000_000])
def test_tag_codes_and_due_times_are_no_addresses(code: int) -> None:
    assert not is_ext_address(code)
    assert is_ext_address(ADDRESS_MAX)
    assert is_ext_address(-(2**63))


def test_units_are_read_back_across_files() -> None:
    fs = FaultyFileSystem()
    ext = queue(fs)
    addresses = [ext.append(unit(number)) for number in range(20)]
    # Five units of 24 bytes and 4 free bytes fill 128; the sixth starts the next file.
    assert [address + 2**63 for address in addresses[:7]] == [0, 24, 48, 72, 96, 128, 152]
    assert len(fs.paths(DIRECTORY)) == 4
    assert all(is_ext_address(address) for address in addresses)
    assert [ext.read(address) for address in addresses] == [unit(number) for number in range(20)]
    ext.close()
    again = queue(fs, addresses[-1])
    assert [again.read(address) for address in addresses] == [unit(number) for number in range(20)]
    assert again.end_address == ext.end_address
    again.close()
    assert fs.open_paths == []


def test_file_that_ends_early_carries_the_mark() -> None:
    fs = FaultyFileSystem()
    ext = queue(fs, file_bytes=100)
    for number in range(5):
        ext.append(unit(number))
    first = fs.content(fs.paths(DIRECTORY)[0])
    assert len(first) == 100
    assert first[96:98] == b"\xff\xff"
    ext.close()


def test_load_cuts_what_no_queue_unit_refers_to() -> None:
    fs = FaultyFileSystem()
    ext = queue(fs)
    addresses = [ext.append(unit(number)) for number in range(8)]
    ext.close()
    again = queue(fs, addresses[2])
    assert again.read(addresses[2]) == unit(2)
    assert again.read(addresses[3]) is None
    assert again.read(addresses[7]) is None
    assert again.append(unit(99)) == addresses[3]
    assert again.read(addresses[3]) == unit(99)
    again.close()
    none = queue(fs, None)
    assert none.read(addresses[0]) is None
    assert none.append(unit(1)) == addresses[0]
    none.close()


def test_unit_lost_in_a_power_cut_is_never_taken_for_another() -> None:
    fs = FaultyFileSystem()
    ext = queue(fs)
    kept = ext.append(unit(0))
    ext.flush()
    fs.sync_directory(DIRECTORY)
    lost = ext.append(unit(1))
    left = fs.power_cut()
    again = queue(left, lost)
    assert again.read(kept) == unit(0)
    assert again.read(lost) is None
    fresh = again.append(unit(2))
    assert fresh > lost
    assert again.read(lost) is None
    assert again.read(fresh) == unit(2)
    again.close()


def test_files_before_the_first_address_in_use_go() -> None:
    fs = FaultyFileSystem()
    ext = queue(fs)
    addresses = [ext.append(unit(number)) for number in range(12)]
    assert ext.drop_before(addresses[0]) == 0
    assert ext.drop_before(addresses[6]) == 1
    assert ext.read(addresses[0]) is None
    assert ext.read(addresses[5]) == unit(5)
    ext.destroy()
    assert fs.paths(DIRECTORY) == []


def test_full_disk_stores_nothing() -> None:
    fs = FaultyFileSystem()
    ext = queue(fs)
    first = ext.append(unit(0))
    fs.fail_writes()
    with pytest.raises(OSError, match="No space"):
        ext.append(unit(1))
    fs.heal()
    second = ext.append(unit(2))
    assert (ext.read(first), ext.read(second)) == (unit(0), unit(2))
    ext.close()
