"""The process killed by test_kill_minus_9. It appends forever and prints every acknowledged message.

Arguments: root, flush mode, first message number. One line per acknowledged append: ``number queue_id queue_offset
log_offset``. Nothing is printed before the store has acknowledged: in SYNC_FLUSH that is after the flush.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable

from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, FlushMode, NewMessage

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
QUEUES = 4
IN_FLIGHT_MAX = 2000


def config(root: str, mode: FlushMode) -> StoreConfig:
    """Small files, so that a short run crosses their boundaries; periodic work as often as possible."""
    return StoreConfig(
        root=root,
        segment_bytes=256 * 1024,
        queue_file_bytes=20 * 1000,
        index_slots=2000,
        index_entries=5000,
        flush_mode=mode,
        flush_interval_ms=5,
        queue_flush_interval_ms=10,
        queue_flush_thorough_interval_ms=40,
    )


def message(number: int) -> NewMessage:
    return NewMessage(
        topic="Kill",
        queue_id=number % QUEUES,
        body=b"%d:" % number + b"x" * (number % 300),
        properties=b"KEYS\x01k%d\x02" % number,
        born_timestamp_ms=1,
        born_host=HOST,
    )


def main() -> None:
    root, mode, number = sys.argv[1], FlushMode(sys.argv[2]), int(sys.argv[3])
    posted: deque[Callable[[], None]] = deque()
    store = MessageStore(config(root, mode), store_host=HOST, post=posted.append)
    store.open()
    os.write(1, b"open\n")
    in_flight = 0
    lines: list[bytes] = []

    def acknowledge(number: int, done: Appended) -> Callable[[bool], None]:
        def flushed(ok: bool) -> None:
            nonlocal in_flight
            in_flight -= 1
            assert ok, "a flush failed"
            lines.append(b"%d %d %d %d\n" % (number, number % QUEUES, done.queue_offset, done.log_offset))

        return flushed

    while True:
        while posted:
            posted.popleft()()
        if lines:
            os.write(1, b"".join(lines))
            lines.clear()
        store.tick()
        if in_flight > IN_FLIGHT_MAX:
            time.sleep(0)
            continue
        numbers = range(number, number + 1 + number % 40)
        number = numbers.stop
        batch = [message(one) for one in numbers]
        results = store.append_batch(batch) if number % 2 else [store.append(one) for one in batch]
        for one, done in zip(numbers, results, strict=True):
            in_flight += 1
            if mode is FlushMode.SYNC:
                store.when_flushed(done.log_offset + done.size, acknowledge(one, done))
            else:
                acknowledge(one, done)(True)


if __name__ == "__main__":
    main()
