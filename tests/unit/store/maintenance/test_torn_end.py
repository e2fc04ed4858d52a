"""Bytes after the last whole record following an unclean stop: a torn write is truncated, damage is refused."""

from __future__ import annotations

import pytest
from tests.unit.store.support import ROOT, SEGMENT_BYTES, START_MS, bodies, message, open_store

from orbitmq.errors import CorruptionError
from orbitmq.kernel.layout import IDENTITY
from orbitmq.store.log.torn_end import complete_size
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

COUNT = 4
FIRST_SEGMENT = f"{ROOT}/commitlog/{0:020d}"
BODIES = [b"body %d" % number for number in range(COUNT)]


def killed() -> tuple[FaultyFileSystem, list[tuple[int, int]]]:
    """Returns a store that was killed before its first flush, and log offset and size of each record."""
    fs = FaultyFileSystem()
    store = open_store(fs, ManualClock(START_MS))
    results = [store.append(message(number, queue_id=0)) for number in range(COUNT)]
    assert store.flushed_offset == 0
    assert results[-1].log_offset + results[-1].size < SEGMENT_BYTES
    return fs.kill(), [(one.log_offset, one.size) for one in results]


@pytest.mark.parametrize("number", [1, COUNT - 1], ids=["in the middle", "last"])
@pytest.mark.parametrize("bit", range(8))
def test_flipped_bit_before_the_first_flush_is_refused(number: int, bit: int) -> None:
    """Any bit of what a start can check: size, magic, checksum, own offset, body and the lengths of the parts."""
    fs, records = killed()
    log_offset = records[number][0]
    content = fs.content(FIRST_SEGMENT)
    body = content.index(BODIES[number], log_offset) - log_offset
    covered = [*range(12), *range(28, 36), *range(body - 4, body + len(BODIES[number]))]
    for position in covered:
        damaged = fs.kill()
        damaged.flip(FIRST_SEGMENT, log_offset + position, 1 << bit)
        with pytest.raises(CorruptionError, match=f"damaged at offset {log_offset} .*not restarted"):
            open_store(damaged)
        assert damaged.content(FIRST_SEGMENT)[: records[-1][0] + records[-1][1]].rstrip(b"\0"), (
            "nothing is cut"
        )
        # After a power cut the same bytes may be what the disk had not written yet.
        assert bodies(open_store(damaged.power_cut(lambda path, page: True)), "TopicA", 0) == BODIES[:number]


def test_every_torn_last_write_is_cut() -> None:
    fs, records = killed()
    log_offset, size = records[-1]
    for kept in range(size):
        torn = fs.kill()
        torn.overwrite(FIRST_SEGMENT, log_offset + kept, bytes(size - kept))
        assert bodies(open_store(torn), "TopicA", 0) == BODIES[:-1], kept


def test_zeros_before_a_whole_record_are_refused() -> None:
    fs, records = killed()
    log_offset, size = records[1]
    fs.overwrite(FIRST_SEGMENT, log_offset, bytes(size))
    with pytest.raises(CorruptionError, match=f"damaged at offset {log_offset} "):
        open_store(fs)


def test_store_of_another_writer_is_not_judged_by_the_cache() -> None:
    """Apache's abort file does not contain the boot id of the machine."""
    fs, records = killed()
    handle = fs.open(f"{ROOT}/abort", write=True)
    fs.truncate(handle, 3)
    fs.close(handle)
    fs.flip(FIRST_SEGMENT, records[1][0] + 4)
    assert bodies(open_store(fs), "TopicA", 0) == BODIES[:1]


def test_size_of_a_complete_record_is_found_by_its_field_or_by_its_parts() -> None:
    fs, records = killed()
    log_offset, size = records[1]
    record = bytearray(fs.content(FIRST_SEGMENT)[log_offset : log_offset + size])
    assert IDENTITY.unpack_from(record)[0] == size
    assert complete_size(bytes(record)) == size
    assert complete_size(bytes(record[:-1])) == 0
    record[2] ^= 0x40
    assert complete_size(bytes(record)) == size
    assert complete_size(b"") == 0
