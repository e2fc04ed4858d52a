"""Cuts the power: the log is cut at every byte, and unsynced pages are lost in every combination."""

from __future__ import annotations

import random

import pytest
from tests.fault.workload import LOG, History, Writer, check_disk

from orbitmq.testing.faulty_fs import FaultyFileSystem


def written(count: int = 60, safe: int = 40) -> tuple[FaultyFileSystem, History]:
    """Returns a store with ``count`` messages, the first ``safe`` of them confirmed on the disk; not closed."""
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(safe))
    writer.sync_log()
    assert writer.history.safe == set(range(safe))
    writer.append(range(safe, count))
    return fs, writer.history


def test_log_cut_at_every_byte_of_the_last_records_keeps_exactly_the_whole_ones() -> None:
    fs, history = written(count=50, safe=43)
    last = history.appended[-1][1]
    first = history.appended[42][1]
    begin, end = first.log_offset + first.size, last.log_offset + last.size
    segment = begin - begin % 8192
    assert end <= segment + 8192, "choose the counts so that the last records share a segment"
    path = f"{LOG}{segment:020d}"
    whole = [done.log_offset + done.size for _, done in history.appended]
    for cut in range(begin, end + 1):
        disk = fs.kill()
        disk.overwrite(path, cut - segment, bytes(end - cut))
        count = check_disk(disk, history, go_on=cut % 50 == 0 or cut in whole)
        assert count == sum(offset <= cut for offset in whole), cut


@pytest.mark.parametrize("seed", range(200))
def test_unsynced_pages_lost_at_random_lose_nothing_confirmed(seed: int) -> None:
    chance = random.Random(seed)
    fs = FaultyFileSystem()
    writer = Writer(fs, flush_interval_ms=50)
    number = 0
    for _ in range(chance.randrange(4, 12)):
        for _ in range(chance.randrange(1, 5)):
            count = chance.randrange(1, 9)
            numbers = range(number, number + count)
            if chance.random() < 0.5:
                writer.append_batch(numbers, padding=chance.randrange(300))
            else:
                writer.append(numbers, padding=chance.randrange(300))
            number += count
        step = chance.random()
        if step < 0.4:
            writer.sync_log()
        elif step < 0.6:
            writer.clock.advance(chance.choice([10, 1000, 61_000]))
            writer.store.tick()
        elif step < 0.7:
            writer.flush_all()
    writer.append(range(number, number + chance.randrange(60)))
    share = chance.choice([0.0, 0.2, 0.5, 0.8, 1.0])
    check_disk(fs.power_cut(lambda path, page: chance.random() < share), writer.history)


def test_nothing_synced_leaves_an_empty_store_that_works() -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(30))
    assert check_disk(fs.power_cut(), writer.history) == 0


@pytest.mark.parametrize("count", [30, 90, 200])
def test_killed_process_loses_nothing_at_all(count: int) -> None:
    fs, history = written(count=count, safe=0)
    assert check_disk(fs.kill(), history) == count
