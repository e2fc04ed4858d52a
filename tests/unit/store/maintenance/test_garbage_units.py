"""Queues are derived: units after the end of a queue that point beyond the log are dropped, and the store opens."""

from __future__ import annotations

import pytest
from tests.unit.store.support import bodies, message, open_store

from orbitmq.store.layout import UNIT, UNIT_BYTES
from orbitmq.testing.faulty_fs import FaultyFileSystem


@pytest.mark.parametrize("count", [1, 2])
def test_garbage_units_after_the_end_of_a_queue_do_not_stop_the_start(count: int) -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(3):
        store.append(message(number, topic="T", queue_id=0))
    before = bodies(store, "T", 0)
    store.close()
    path = next(path for path in fs.paths() if "/consumequeue/T/0/" in path)
    handle = fs.open(path, write=True)
    fs.pwrite(handle, UNIT.pack(1_000_000_001_704, 200, 7) * count, 3 * UNIT_BYTES)
    fs.close(handle)
    again = open_store(fs)
    assert again.max_offset("T", 0) == 3
    assert bodies(again, "T", 0) == before
    again.append(message(3, topic="T", queue_id=0))
    assert again.max_offset("T", 0) == 4
    again.close()
