"""The process or the machine dies between any two disk operations: while writing, closing, recovering."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.fault.workload import History, Writer, check_disk

from orbitmq.testing.faulty_fs import FaultyFileSystem, SimulatedCrash


def crash_before(fs: FaultyFileSystem, operation: int) -> None:
    """Lets the process die instead of performing that operation (counted from now)."""
    last = fs.operation_count + operation

    def check(name: str, path: str) -> None:
        if fs.operation_count > last:
            raise SimulatedCrash(f"{name} {path}")

    fs.on_operation = check


def write_everything(fs: FaultyFileSystem, history: History) -> None:
    """Singles, batches, every kind of flush, a clean restart in between, a clean stop at the end."""
    writer = Writer(fs, history)
    writer.append(range(20))
    writer.sync_log()
    writer.append_batch(range(20, 30))
    writer.clock.advance(61_000)
    writer.store.tick()
    writer.append(range(30, 45))
    writer.store.close()
    writer = Writer(fs, history)
    writer.append_batch(range(45, 60))
    writer.sync_log()
    writer.append(range(60, 75))
    writer.store.close()


def operations_of(work: Callable[[FaultyFileSystem, History], None]) -> int:
    fs = FaultyFileSystem()
    work(fs, History())
    return fs.operation_count


def crashes(step: int = 1) -> list[int]:
    return list(range(0, operations_of(write_everything), step))


def crashed_at(operation: int) -> tuple[FaultyFileSystem, History]:
    fs, history = FaultyFileSystem(), History()
    crash_before(fs, operation)
    with pytest.raises(SimulatedCrash):
        write_everything(fs, history)
    return fs, history


def half(seed: int) -> Callable[[str, int], bool]:
    """Every second page survives, at random."""
    chance = random.Random(seed)
    return lambda path, page: chance.random() < 0.5


@pytest.mark.slow
def test_process_killed_before_any_operation_loses_no_append() -> None:
    for operation in crashes():
        fs, history = crashed_at(operation)
        count = check_disk(fs.kill(), history)
        assert count >= len(history.appended), operation


@pytest.mark.slow
def test_power_cut_before_any_operation_loses_nothing_confirmed() -> None:
    for operation in crashes():
        fs, history = crashed_at(operation)
        check_disk(fs.power_cut(), history, go_on=False)
        for seed in range(2):
            check_disk(fs.power_cut(half(1000 * operation + seed)), history, go_on=False)


@pytest.mark.slow
def test_recovery_killed_before_any_of_its_operations_can_be_repeated() -> None:
    for first in crashes(step=17):
        fs, history = crashed_at(first)
        left = fs.power_cut(lambda path, page: (page + len(path)) % 3 > 0)
        probe = left.kill()
        expected = check_disk(probe, history, go_on=False)
        second = 0
        while True:
            disk = left.kill()
            crash_before(disk, second)
            try:
                Writer(disk)
            except SimulatedCrash:
                assert check_disk(disk.kill(), history, go_on=False) == expected
                assert check_disk(disk.power_cut(), history, go_on=False) == expected
                second += 1
            else:
                break
        assert second > 3
