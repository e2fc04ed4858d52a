from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.messages import QUEUE, received

from orbitmq.client.consume.process_queue import LOCK_EXPIRY_MS, ProcessQueue


def make(*offsets: int, count_max: int = 1000, span_max: int = 0) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, 0, count_max=count_max, bytes_max=10_000, span_max=span_max)
    queue.put(received(offset) for offset in offsets)
    return queue


def test_remove_gives_the_oldest_unfinished_offset() -> None:
    queue = make(5, 6, 7)
    assert queue.remove([received(6)]) == 5
    assert queue.remove([received(5)]) == 7
    assert queue.remove([received(7)]) == 8
    assert queue.remove([received(7)]) == -1, "nothing was there"


@given(
    st.lists(st.integers(0, 60), unique=True, min_size=1).flatmap(
        lambda offsets: st.tuples(st.just(sorted(offsets)), st.permutations(offsets))
    )
)
def test_committed_offset_never_passes_an_unfinished_message(case: tuple[list[int], list[int]]) -> None:
    offsets, finished_in_order = case
    queue = make(*offsets)
    left = set(offsets)
    for offset in finished_in_order:
        left.discard(offset)
        assert queue.remove([received(offset)]) == (min(left) if left else max(offsets) + 1)
    assert queue.size == 0
    assert queue.count == 0


def test_full_by_count_bytes_and_span() -> None:
    assert make(*range(11), count_max=10).full
    assert not make(*range(10), count_max=10).full
    assert make(0, 30, span_max=20).full
    large = ProcessQueue(QUEUE, 0, count_max=10, bytes_max=5)
    large.put([received(0, b"123456")])
    assert large.full


def test_waiting_for_room_ends_when_messages_finish_or_the_queue_is_dropped() -> None:
    async def run() -> None:
        queue = make(0, 1, 2, count_max=2)
        waiting = asyncio.ensure_future(queue.wait_for_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.remove([received(0)])
        await waiting
        queue.put([received(3)])
        waiting = asyncio.ensure_future(queue.wait_for_room())
        await asyncio.sleep(0)
        queue.drop()
        await waiting

    asyncio.run(run())


def test_taken_messages_are_committed_or_put_back_in_order() -> None:
    queue = make(0, 1, 2, 3)
    first = queue.take(2)
    assert [m.queue_offset for m in first] == [0, 1]
    queue.put_back(first)
    again = queue.take(3)
    assert [m.queue_offset for m in again] == [0, 1, 2]
    assert queue.commit() == 3
    assert queue.commit() == -1
    assert [m.queue_offset for m in queue.take(5)] == [3]


def test_lock_is_valid_for_half_a_minute() -> None:
    queue = make()
    queue.locked, queue.last_lock_ms = True, 1000
    assert queue.lock_valid(1000 + LOCK_EXPIRY_MS)
    assert not queue.lock_valid(1001 + LOCK_EXPIRY_MS)
