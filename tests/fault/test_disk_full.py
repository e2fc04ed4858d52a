"""Fills the disk: at every single write, and by running out of blocks."""

from __future__ import annotations

import errno

import pytest
from tests.fault.workload import History, Writer, check_disk, check_survivors, message, survivors

from orbitmq.store.errors import StoreUnavailable
from orbitmq.testing.faulty_fs import FaultyFileSystem


def write_some(writer: Writer) -> None:
    """Writes singles and batches over several segments, queue files and index files, with all periodic work."""
    for start in range(0, 96, 16):
        writer.append(range(start, start + 8))
        writer.append_batch(range(start + 8, start + 16))
        writer.sync_log()
        writer.clock.advance(1100)
        writer.store.tick()
    writer.clock.advance(61_000)
    writer.store.tick()


def writes_of_a_whole_run() -> int:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    before = fs.write_count
    write_some(writer)
    return fs.write_count - before


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_disk_that_refuses_from_any_write_on_stores_nothing_half_and_goes_on_afterwards(error: int) -> None:
    total = writes_of_a_whole_run()
    assert total > 100
    for failing in range(0, total, 1 if error == errno.ENOSPC else 7):
        fs = FaultyFileSystem()
        writer = Writer(fs)
        fs.fail_writes(after=failing, error=error)
        write_some(writer)
        assert writer.history.refused or failing > total - 40, failing
        # Refused messages are absent, accepted ones are present.
        taken = [number for number, _ in writer.history.appended]
        assert survivors(writer.store) == taken, failing
        killed = fs.kill()
        assert check_disk(killed, History(list(writer.history.appended)), go_on=False) == len(taken), failing
        fs.heal()
        recovers(writer)
        assert writer.store.writable, (failing, writer.store.unwritable_reason)
        writer.append(range(200, 210))
        assert check_survivors(writer.store, writer.history) == len(taken) + 10, failing
        writer.store.close()
        assert check_disk(fs, writer.history) == len(taken) + 10


def recovers(writer: Writer) -> None:
    """Lets periodic work notice that the disk is healthy again."""
    for _ in range(3):
        writer.clock.advance(11_000)
        writer.store.tick()


@pytest.mark.slow
@pytest.mark.parametrize("pages", range(20, 60, 8))
def test_disk_without_free_blocks_refuses_appends_with_a_reason(pages: int) -> None:
    fs = FaultyFileSystem(capacity_bytes=pages * 4096)
    writer = Writer(fs, disk_forbid_percent=100)
    number = 0
    while not writer.history.refused and number < 2000:
        writer.append(range(number, number + 1))
        number += 1
    assert writer.history.refused
    with pytest.raises(StoreUnavailable, match=r"full|No space"):
        writer.store.append(message(5000))
    taken = [one for one, _ in writer.history.appended]
    assert survivors(writer.store) == taken
    fs.capacity_bytes = 1 << 40
    recovers(writer)
    writer.append(range(5000, 5010))
    assert check_survivors(writer.store, writer.history) == len(taken) + 10
    writer.store.close()
    check_disk(fs, writer.history, disk_forbid_percent=100)


def test_refused_batch_leaves_no_trace() -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(10))
    ends = {queue: writer.store.max_offset("TopicA", queue) for queue in (0, 1)}
    log_end = writer.store.max_log_offset
    fs.fail_writes()
    writer.append_batch(range(10, 30))
    assert writer.history.refused == set(range(10, 30))
    assert {queue: writer.store.max_offset("TopicA", queue) for queue in (0, 1)} == ends
    assert writer.store.max_log_offset == log_end
    fs.heal()
    writer.append_batch(range(40, 50))
    assert check_survivors(writer.store, writer.history) == 20
    writer.store.close()


def test_write_that_is_torn_by_the_end_of_the_process_is_not_there_afterwards() -> None:
    for keep in range(0, 320, 3):
        fs = FaultyFileSystem()
        writer = Writer(fs)
        writer.append(range(10))
        writer.sync_log()
        fs.tear_write(0, keep)
        with pytest.raises(BaseException, match="torn"):
            writer.append([10])
        count = check_disk(fs.kill(), writer.history, go_on=False)
        assert count in (10, 11)


def test_failed_flush_confirms_nothing_and_stops_the_store() -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(10))
    writer.sync_log()
    assert len(writer.history.safe) == 10
    writer.append(range(10, 20))
    fs.sync_error = errno.EIO
    writer.sync_log()
    assert writer.history.safe == set(range(10))
    # The kernel has forgotten which pages it did not write, so a later successful sync would prove nothing.
    fs.heal()
    writer.append(range(20, 30))
    assert writer.history.refused == set(range(20, 30))
    writer.sync_log()
    assert writer.history.safe == set(range(10))
    check_disk(fs.power_cut(), writer.history)


def test_killed_store_opens_on_a_disk_without_a_free_block() -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(40))
    writer.flush_all()
    left = fs.kill()
    left.capacity_bytes = left.used_bytes
    again = Writer(left, writer.history)
    assert check_survivors(again.store, writer.history) == 40
    again.append([40])
    again.store.close()
    left.capacity_bytes *= 2
    assert check_disk(left, writer.history) == len(writer.history.appended)
