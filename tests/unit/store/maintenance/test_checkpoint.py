"""The checkpoint page."""

from __future__ import annotations

import errno
from struct import Struct

import pytest
from tests.golden.data import STORES, files, messages

from orbitmq.store.maintenance.checkpoint import CHECKPOINT_BYTES, Checkpoint
from orbitmq.testing.faulty_fs import FaultyFileSystem

PATH = "/store/checkpoint"
LONGS = Struct(">6q")
VALUES = (1_000_010_000, 1_000_007_000, 1_000_005_000, 40, 50, 60)


def disk(page: bytes | None = None) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.make_directories("/store")
    if page is not None:
        handle = fs.open(PATH, create=True)
        fs.pwrite(handle, page, 0)
        fs.close(handle)
    return fs


def loaded(fs: FaultyFileSystem) -> Checkpoint:
    checkpoint = Checkpoint(fs, PATH)
    checkpoint.load()
    return checkpoint


def filled(fs: FaultyFileSystem) -> Checkpoint:
    checkpoint = Checkpoint(fs, PATH)
    (
        checkpoint.log_ms,
        checkpoint.queues_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
        checkpoint.queues_log_offset,
    ) = VALUES
    return checkpoint


@pytest.mark.parametrize("store", STORES)
def test_checkpoint_of_apache_is_read(store: str) -> None:
    expected = messages(store)["checkpoint"]
    found = loaded(disk(files(store)["checkpoint"]))
    assert found.log_ms == expected["physicMsgTimestamp"]
    assert found.queues_ms == expected["logicsMsgTimestamp"]
    assert found.index_ms == expected["indexMsgTimestamp"]
    assert found.safe_ms == 0, "the queues were never flushed thoroughly"


def test_checkpoint_written_has_apaches_six_longs_and_size() -> None:
    fs = disk()
    filled(fs).flush()
    page = fs.content(PATH)
    assert len(page) == CHECKPOINT_BYTES
    assert LONGS.unpack_from(page) == VALUES
    assert loaded(fs).values == VALUES


def test_checkpoint_flushed_survives_a_power_cut() -> None:
    fs = disk()
    filled(fs).flush()
    fs.sync_directory("/store")
    assert loaded(fs.power_cut()).values == VALUES


def test_checkpoint_unchanged_is_not_written_again() -> None:
    fs = disk()
    checkpoint = filled(fs)
    checkpoint.flush()
    before = fs.operation_count
    checkpoint.flush()
    assert fs.operation_count == before
    checkpoint.log_ms += 1
    checkpoint.flush()
    assert fs.operation_count > before


@pytest.mark.parametrize("page", [None, b"", b"\0" * 47])
def test_checkpoint_missing_or_short_claims_nothing(page: bytes | None) -> None:
    assert loaded(disk(page)).values == (0,) * 6


def test_checkpoint_with_negative_values_claims_nothing() -> None:
    assert loaded(disk(LONGS.pack(*(-value for value in VALUES)))).values == (0,) * 6


def test_checkpoint_with_a_flipped_bit_never_claims_more() -> None:
    fs = disk()
    filled(fs).flush()
    used = [position for position, byte in enumerate(fs.content(PATH)) if position < 48 or byte]
    for position in used:
        for bit in range(8):
            fs.flip(PATH, position, 1 << bit)
            assert all(map(int.__le__, loaded(fs).values, VALUES)), (position, bit)
            fs.flip(PATH, position, 1 << bit)
    assert max(used) > 48, "the copy has been tried as well"


def test_checkpoint_written_on_by_apache_keeps_the_older_values() -> None:
    fs = disk()
    filled(fs).flush()
    newer = tuple(value + 5 for value in VALUES)
    fs.overwrite(PATH, 0, LONGS.pack(*newer))
    assert loaded(fs).values == VALUES
    older = tuple(value - 5 for value in VALUES)
    fs.overwrite(PATH, 0, LONGS.pack(*older))
    assert loaded(fs).values == older


def test_safe_time_steps_back_three_seconds_from_the_slower_of_log_and_queues() -> None:
    checkpoint = filled(disk())
    assert checkpoint.safe_ms == VALUES[1] - 3000
    assert checkpoint.index_safe_ms == VALUES[1] - 3000
    checkpoint.index_ms = 5
    assert checkpoint.index_safe_ms == 5
    checkpoint.log_ms = 10
    assert checkpoint.safe_ms == 0


def test_checkpoint_on_a_full_disk_raises_and_stays_dirty() -> None:
    fs = disk()
    checkpoint = filled(fs)
    fs.fail_writes()
    with pytest.raises(OSError) as caught:
        checkpoint.flush()
    assert caught.value.errno == errno.ENOSPC
    fs.heal()
    checkpoint.flush()
    assert loaded(fs).values == VALUES
    assert fs.open_paths == []
