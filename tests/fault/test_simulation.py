"""Compares random histories with a list: append, read, flush, restart, crash, truncate, delete, expire, in any order.

A failing seed is in the test's name; ``pytest tests/fault/test_simulation.py -k 'seed-17'`` repeats it exactly.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from tests.fault.workload import FOREVER, Writer, message, number_of, read_queue

from orbitmq.record.codec import decode_record
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.types import ReadStatus
from orbitmq.testing.faulty_fs import FaultyFileSystem

SEEDS = 150
STEPS = 60


class Model:
    """The expected content of a store: message numbers in log order, with the log offsets they were given."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int, int]] = []
        """(number, log offset, end of record)."""
        self.safe_end = 0
        self.first: dict[tuple[str, int], int] = defaultdict(int)
        """Queue offset of the first message a queue has had since its topic was made."""
        self.numbers: dict[tuple[str, int], list[int]] = defaultdict(list)

    def append(self, number: int, log_offset: int, size: int, queue_offset: int) -> None:
        sent = message(number)
        key = sent.topic, sent.queue_id
        assert queue_offset == len(self.numbers[key]), "queue offsets are dense"
        assert not self.log or log_offset >= self.log[-1][2], "the log grows"
        self.numbers[key].append(number)
        self.log.append((number, log_offset, log_offset + size))

    def cut(self, log_end: int) -> None:
        gone = {number for number, _, end in self.log if end > log_end}
        self.log = [entry for entry in self.log if entry[2] <= log_end]
        for numbers in self.numbers.values():
            while numbers and numbers[-1] in gone:
                numbers.pop()
        self.safe_end = min(self.safe_end, log_end)

    def delete(self, topic: str) -> None:
        for key in [key for key in self.numbers if key[0] == topic]:
            del self.numbers[key]


class Simulation:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fs = FaultyFileSystem()
        self.model = Model()
        self.next_number = 0
        # A quarter of the histories keeps filter extensions.
        self.options: dict[str, Any] = (
            {"queue_ext_enabled": True, "queue_ext_file_bytes": 4096} if seed % 4 == 3 else {}
        )
        self.writer = Writer(self.fs, **self.options)
        self.expired_until = 0

    def run(self) -> None:
        actions = [
            (30, self.append),
            (15, self.append_batch),
            (15, self.read),
            (8, self.query),
            (10, self.tick),
            (6, self.sync),
            (3, self.flush),
            (4, self.restart),
            (4, self.kill),
            (4, self.power_cut),
            (2, self.truncate),
            (2, self.delete_topic),
            (2, self.full_disk),
        ]
        for _ in range(STEPS):
            self.chance.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()
        self.restart()
        self.check_all()
        self.writer.store.close()

    # Actions.
    def append(self) -> None:
        for _ in range(self.chance.randrange(1, 12)):
            self.writer.clock.advance(self.chance.randrange(5))
            number = self.next_number
            self.next_number += 1
            done = self.writer.store.append(message(number, padding=self.chance.choice([0, 40, 200])))
            self.model.append(number, done.log_offset, done.size, done.queue_offset)

    def append_batch(self) -> None:
        numbers = range(self.next_number, self.next_number + self.chance.randrange(1, 30))
        self.next_number = numbers.stop
        results = self.writer.store.append_batch([message(number) for number in numbers])
        for number, done in zip(numbers, results, strict=True):
            self.model.append(number, done.log_offset, done.size, done.queue_offset)

    def read(self) -> None:
        store = self.writer.store
        for (topic, queue_id), numbers in self.model.numbers.items():
            if not numbers:
                continue
            offset = self.chance.randrange(len(numbers))
            count = self.chance.randrange(1, 40)
            found = store.read(topic, queue_id, offset, count)
            assert found.status is ReadStatus.FOUND
            got = [number_of(decode_record(bytes(piece))) for piece in single_records(found.slices)]
            assert got == numbers[offset : offset + len(got)]
            assert 1 <= len(got) <= count
            assert (found.min_offset, found.max_offset) == (0, len(numbers))
            assert store.read(topic, queue_id, len(numbers), 1).status is ReadStatus.OFFSET_OVERFLOW_ONE
            assert store.read(topic, queue_id, len(numbers) + 5, 1).status is ReadStatus.OFFSET_OVERFLOW_BADLY

    def query(self) -> None:
        for number, log_offset, _ in self.chance.sample(self.model.log, min(5, len(self.model.log))):
            hits, _ = self.writer.store.query(message(number).topic, f"k{number}", 32, *FOREVER)
            assert log_offset in [decode_record(hit).log_offset for hit in hits]

    def tick(self) -> None:
        self.writer.clock.advance(self.chance.choice([1, 500, 1100, 11_000, 61_000]))
        self.writer.store.tick()
        self.note_flushed()

    def sync(self) -> None:
        self.writer.sync_log()
        self.note_flushed()
        assert self.model.safe_end == self.writer.store.max_log_offset

    def flush(self) -> None:
        self.writer.flush_all()
        self.note_flushed()

    def note_flushed(self) -> None:
        self.model.safe_end = self.writer.store.flushed_offset

    def restart(self) -> None:
        self.writer.store.close()
        self.open(self.fs, clean=True)

    def kill(self) -> None:
        end = self.writer.store.max_log_offset
        self.open(self.fs.kill(), clean=False)
        assert self.writer.store.max_log_offset == end
        self.check_all()

    def power_cut(self) -> None:
        share = self.chance.choice([0.0, 0.5, 1.0])
        self.open(self.fs.power_cut(lambda path, page: self.chance.random() < share), clean=False)
        end = self.writer.store.max_log_offset
        assert end >= self.model.safe_end, "what was flushed is there"
        self.model.cut(end)
        self.check_all()

    def truncate(self) -> None:
        if not self.model.log:
            return
        number, log_offset, _ = self.chance.choice(self.model.log[-20:])
        first = min((numbers[0] for numbers in self.model.numbers.values() if numbers), default=0)
        if number < first:
            return
        self.writer.store.truncate(log_offset)
        self.model.cut(log_offset)
        self.check_all()

    def delete_topic(self) -> None:
        topic = self.chance.choice(["TopicA", "TopicB"])
        self.writer.store.delete_topic(topic)
        self.model.delete(topic)

    def full_disk(self) -> None:
        self.fs.fail_writes(after=self.chance.randrange(4))
        while True:
            number = self.next_number
            try:
                done = self.writer.store.append(message(number))
            except StoreUnavailable as error:
                reason = str(error)
                break
            self.next_number += 1
            self.model.append(number, done.log_offset, done.size, done.queue_offset)
        assert "full" in reason or "No space" in reason
        self.fs.heal()
        self.writer.clock.advance(11_000)  # the time after which disk space decides
        self.writer.store.tick()
        self.note_flushed()
        assert self.writer.store.writable, self.writer.store.unwritable_reason

    # Checks.
    def open(self, fs: FaultyFileSystem, *, clean: bool) -> None:
        clock = self.writer.clock
        self.fs = fs
        self.writer = Writer(fs, **self.options)
        self.writer.clock.jump(clock.now_ms())
        assert self.writer.report.clean is clean
        self.model.safe_end = self.writer.store.flushed_offset

    def check_all(self) -> None:
        store = self.writer.store
        expected = {key: numbers for key, numbers in self.model.numbers.items() if numbers}
        found = {
            (topic, queue_id): [number_of(record) for record in read_queue(store, topic, queue_id)]
            for topic in store.topics()
            for queue_id in store.queues(topic)
        }
        assert {key: numbers for key, numbers in found.items() if numbers} == expected
        assert [decode_record(record).log_offset for record in store.scan(store.min_log_offset)] == [
            log_offset for _, log_offset, _ in self.model.log
        ]
        for number, log_offset, _ in self.model.log[-10:]:
            hits, _ = store.query(message(number).topic, f"k{number}", 32, *FOREVER)
            assert log_offset in [decode_record(hit).log_offset for hit in hits], number


def single_records(slices: list[memoryview]) -> list[memoryview]:
    found: list[memoryview] = []
    for piece in slices:
        position = 0
        while position < len(piece):
            size = int.from_bytes(piece[position : position + 4], "big")
            found.append(piece[position : position + size])
            position += size
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed-{seed}")
def test_store_behaves_like_a_list(seed: int) -> None:
    Simulation(seed).run()
