"""Measures the cost of the store on one core: appends, reads, recovery, key lookups, memory.

    python -m benchmarks.micro_store [--messages N] [--recovery-mib N] [--keys N] [--big-gib N] [--json FILE]

Results are process CPU per message (best of three rounds, since other work on the machine disturbs the wall clock),
except where a name says "wall". The store is in a temporary directory (``TMPDIR``) and is removed afterwards.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from orbitmq.kernel import Filter, sends_of
from orbitmq.record.batch import encode_batch
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
TOPIC = "BenchmarkTest"
BATCH = 32
ROUNDS = 3
CHUNK = 4096
PROPERTIES = (
    b"UNIQ_KEY\x017F0000014676C0DEE0B0%012X\x02TAGS\x01TagA\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster\x02"
    b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
)
ROW_PROPERTIES = b"UNIQ_KEY\x017F0000014676C0DEE0B0%012X\x02WAIT\x01true\x02"
Figures = dict[str, float]


def messages(count: int, body_bytes: int, queue_count: int, first: int = 0) -> list[NewMessage]:
    """Returns the messages that a broker passes on for sends of a typical producer."""
    body = b"x" * body_bytes
    return [
        NewMessage(
            topic=TOPIC,
            queue_id=number % queue_count,
            body=body,
            properties=PROPERTIES % number,
            born_timestamp_ms=1_794_773_001_075,
            born_host=HOST,
        )
        for number in range(first, first + count)
    ]


@contextmanager
def new_store(**options: Any) -> Iterator[MessageStore]:
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as root:
        store = MessageStore(StoreConfig(root=root, **options))
        store.open()
        try:
            yield store
        finally:
            store.close()


def cpu_us(work: Callable[[], object], count: int) -> float:
    """Returns CPU microseconds of ``work`` per item."""
    gc.disable()
    try:
        start = time.process_time()
        work()
        return (time.process_time() - start) / count * 1e6
    finally:
        gc.enable()


def measure_machine() -> Figures:
    """Times a fixed piece of work, to distinguish a slow machine from a slow store: about 40 on an idle 3
    GHz core.
    """

    def loop() -> None:
        total = 0
        for number in range(1_000_000):
            total += number & 7

    return {"one million additions, for scale: ms": min(cpu_us(loop, 1000) for _ in range(ROUNDS))}


def append_singly(store: MessageStore, sent: list[NewMessage]) -> None:
    append = store.append
    for message in sent:
        append(message)


def append_in_batches(store: MessageStore, sent: list[NewMessage]) -> None:
    append_batch = store.append_batch
    for start in range(0, len(sent), BATCH):
        append_batch(sent[start : start + BATCH])


def note_only(store: MessageStore) -> None:
    """Skips the building of index entries, so that an append shows its own cost."""
    index = store._parts.index
    assert index is not None
    index.build = index._waiting.clear  # type: ignore[method-assign]  # leaves the index out of this figure


def measure_appends(count: int) -> Figures:
    figures: Figures = {}
    for body_bytes in (128, 1024):
        for name, append in (("single", append_singly), (f"batch of {BATCH}", append_in_batches)):
            for label, prepare in (("index noted", note_only), ("index built", lambda store: None)):
                best = 1e9
                for _ in range(ROUNDS):
                    with new_store() as store:
                        prepare(store)
                        best = min(best, append_us(store, append, count, body_bytes))
                figures[f"append {body_bytes} B, {name}, {label}: us"] = best
    return figures


def append_us(
    store: MessageStore, append: Callable[[MessageStore, list[NewMessage]], None], count: int, body_bytes: int
) -> float:
    """Creates and then stores a few messages at a time, like a broker: they are still in the processor's cache."""
    spent = 0.0
    for first in range(0, count, CHUNK):
        sent = messages(CHUNK, body_bytes, 8, first)
        spent += cpu_us(partial(append, store, sent), 1)
    return spent / (-(-count // CHUNK) * CHUNK)


def measure_rows(count: int) -> Figures:
    """Appends batches directly from the row a producer sends, like the broker."""
    figures: Figures = {}
    for name, tails in (("alike", [b""]), ("uneven", [b"", b"a\x01b\x02", b"TAGS\x01TagA\x02"])):
        rows = [
            encode_batch(
                (0, b"x" * 128, ROW_PROPERTIES % (first + n) + tails[n % len(tails)]) for n in range(BATCH)
            )
            for first in range(0, count, BATCH)
        ]
        wanted = [NewMessage(TOPIC, at % 8, row, b"", 1_794_773_001_075, HOST) for at, row in enumerate(rows)]
        sends = [[sends_of(one, True, (0, 1, 0), True, one.queue_id, b"", "")] for one in wanted]
        best = 1e9
        for _ in range(ROUNDS):
            with new_store() as store:
                append = store.append_sends
                append_singly(store, messages(1, 128, 1))
                best = min(best, cpu_us(lambda: [append(one) for one in sends], len(rows) * BATCH))  # noqa: B023  called at once
        figures[f"append 128 B, row of {BATCH}, {name}: us"] = best
    return figures


def measure_replica(count: int) -> Figures:
    """Measures how a slave processes the bytes of its master's log."""
    figures: Figures = {}
    for body_bytes in (128, 1024):
        with new_store() as source:
            append_in_batches(source, messages(count, body_bytes, 8))
            end = source.max_log_offset
            pieces = [bytes(source.log_range(at, 200_000)) for at in range(0, end, 200_000)]
        best = 1e9
        for _ in range(ROUNDS):
            with new_store() as replica:

                def copy(replica: MessageStore = replica, pieces: list[bytes] = pieces) -> None:
                    for piece in pieces:
                        replica.append_raw(replica.max_log_offset, piece)

                best = min(best, cpu_us(copy, count))
        figures[f"replicated {body_bytes} B: us"] = best
    return figures


def read_all(store: MessageStore, queue_count: int, **filters: Any) -> int:
    found = 0
    for queue_id in range(queue_count):
        offset, end = 0, store.max_offset(TOPIC, queue_id)
        while offset < end:
            result = store.read(TOPIC, queue_id, offset, BATCH, **filters)
            found += result.count
            offset = result.next_offset
    return found


def measure_reads(count: int) -> Figures:
    figures: Figures = {}
    for name, queue_count, filters in (
        ("one queue", 1, {}),
        ("8 queues interleaved", 8, {}),
        ("8 queues, all tags asked for", 8, {"wanted": Filter({*range(-5, 5), 2598919})}),
    ):
        with new_store(index_enabled=False) as store:
            append_in_batches(store, messages(count, 128, queue_count))
            assert read_all(store, queue_count, **filters) == count
            read = partial(read_all, store, queue_count, **filters)
            best = min(cpu_us(read, count) for _ in range(ROUNDS))
            figures[f"read by slices, {name}: M messages/s"] = 1 / best
    return figures


def fill(store: MessageStore, log_bytes: int, body_bytes: int, queue_count: int = 8) -> int:
    count = 0
    while store.max_log_offset < log_bytes:
        append_in_batches(store, messages(CHUNK, body_bytes, queue_count, count))
        count += CHUNK
    return count


def measure_recovery(log_bytes: int) -> Figures:
    """Returns seconds per GiB of 363-byte records: small records are the worst case."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as root:
        config = StoreConfig(root=root)
        store = MessageStore(config)
        store.open()
        figures["recovery: records"] = fill(store, log_bytes, 128)
        store.close()
        abort = Path(root, "abort")

        def reopen(label: str) -> None:
            opened = MessageStore(config)
            wall, cpu = time.perf_counter(), time.process_time()
            opened.open()
            scale = (1 << 30) / log_bytes
            figures[f"recovery {label}: CPU s/GiB"] = (time.process_time() - cpu) * scale
            figures[f"recovery {label}: wall s/GiB"] = (time.perf_counter() - wall) * scale
            opened.close()

        # The crash first: a second recovery would begin where the previous one ended.
        abort.write_text("1")
        reopen("after a crash")
        reopen("after a clean stop")
        shutil.rmtree(Path(root, "consumequeue"))
        reopen("with all queues lost")
        shutil.rmtree(Path(root, "index"))
        reopen("with the index lost")
    return figures


def measure_lookups(key_count: int) -> Figures:
    with new_store() as store:
        start = time.process_time()
        for first in range(0, key_count, 65536):
            append_in_batches(store, messages(min(65536, key_count - first), 128, 8, first))
        built = (time.process_time() - start) / key_count * 1e6
        random = Random(1)
        keys = [f"7F0000014676C0DEE0B0{random.randrange(key_count):012X}" for _ in range(5000)]
        store.query(TOPIC, keys[0], 32, 0, 1 << 60)

        def look_up() -> None:
            for key in keys:
                assert store.query(TOPIC, key, 32, 0, 1 << 60)[0]

        return {
            f"append with keys up to {key_count}, making the messages included: us": built,
            f"key lookup among {key_count}: us": min(cpu_us(look_up, len(keys)) for _ in range(ROUNDS)),
        }


def memory_mb() -> tuple[float, float]:
    """Returns this process's private memory, and its pages of mapped files, which the kernel may reclaim."""
    own = mapped = 0
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Anonymous":
            own = int(rest.split()[0])
        elif name == "Rss":
            mapped = int(rest.split()[0])
    return own / 1000, (mapped - own) / 1000


def touch(store: MessageStore, queue_count: int) -> int:
    """Reads every queue and accesses every record, as sending them would."""
    total = 0
    for queue_id in range(queue_count):
        offset, end = 0, store.max_offset(TOPIC, queue_id)
        while offset < end:
            result = store.read(TOPIC, queue_id, offset, BATCH)
            for piece in result.slices:
                total += sum(piece[::4096])
            offset = result.next_offset
    return total


def measure_memory(big_gib: int) -> Figures:
    """Returns the memory of this process before and after a store of that size was written, opened and read."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as root:
        config = StoreConfig(root=root)
        store = MessageStore(config)
        store.open()
        before = memory_mb()[0]
        fill(store, big_gib << 30, 32_000, 64)
        figures[f"own memory, growth while {big_gib} GiB were written: MB"] = memory_mb()[0] - before
        store.close()
        del store
        opened = MessageStore(config)
        wall = time.perf_counter()
        opened.open()
        figures[f"open of {big_gib} GiB: wall s"] = time.perf_counter() - wall
        figures[f"own memory, {big_gib} GiB open: MB"] = memory_mb()[0]
        touch(opened, 64)
        own, mapped = memory_mb()
        figures[f"own memory, {big_gib} GiB open and all of it read: MB"] = own
        figures["mapped file pages then, until the next tick: MB"] = mapped
        opened._parts.log.segments.release_maps()
        figures["mapped file pages after it: MB"] = memory_mb()[1]
        opened.close()
    return figures


def run(
    count: int = 100_000, recovery_mib: int = 256, key_count: int = 1_000_000, big_gib: int = 0
) -> Figures:
    """Returns all results by name."""
    figures = measure_machine() | measure_appends(count) | measure_rows(count)
    figures |= measure_reads(count) | measure_replica(min(count, 50_000))
    if recovery_mib:
        figures |= measure_recovery(recovery_mib << 20)
    if key_count:
        figures |= measure_lookups(key_count)
    if big_gib:
        figures |= measure_memory(big_gib)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=100_000, help="messages per append and read round")
    parser.add_argument("--recovery-mib", type=int, default=256, help="log to recover; figures are per GiB")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in the index for the lookups")
    parser.add_argument(
        "--big-gib", type=int, default=0, help="also write, open and read a store of this size"
    )
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    figures = run(options.messages, options.recovery_mib, options.keys, options.big_gib)
    for name, value in figures.items():
        print(f"{name:75s} {value:10.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
