"""Filter extensions of the queues, when they are enabled."""

from __future__ import annotations

from tests.unit.store.support import ROOT, START_MS, bodies, message, open_store

from orbitmq.kernel import Filter
from orbitmq.record.hashing import java_hash
from orbitmq.store.message_store import MessageStore
from orbitmq.store.queues.consume_queue import ConsumeQueue
from orbitmq.store.queues.queue_ext import ExtUnit, is_ext_address
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

EXT = f"{ROOT}/consumequeue_ext/"
TAG1 = Filter({java_hash("tag1")})


def ext_store(fs: FaultyFileSystem, *, on: bool = True) -> MessageStore:
    return open_store(
        fs,
        filter_bitmap=lambda topic, properties: topic.encode() + properties[:4],
        queue_ext_enabled=on,
        queue_ext_file_bytes=4096,
    )


def extension(store: MessageStore, queue_offset: int) -> ExtUnit | None:
    queue: ConsumeQueue = store._parts.queues.by_key["TopicA", 0]
    assert store._parts.queues.extensions is not None
    ((_, _, code),) = store.units("TopicA", 0, queue_offset, 1)
    assert is_ext_address(code)
    return store._parts.queues.extensions._of(queue).read(code)


def matching(store: MessageStore, count: int) -> list[int]:
    """Returns the queue offsets that a subscription to one tag gets."""
    found: list[int] = []
    offset = 0
    while offset < count:
        result = store.read("TopicA", 0, offset, 1, wanted=TAG1)
        if result.count:
            found.append(result.next_offset - 1)
        offset = result.next_offset
    return found


def test_units_hold_addresses_of_tag_code_time_and_bitmap() -> None:
    fs = FaultyFileSystem()
    store = ext_store(fs)
    store.append(message(0))
    store.append_batch([message(1), message(2)])
    expected = ExtUnit(java_hash("tag1"), START_MS, b"TopicAUNIQ")
    assert extension(store, 1) == expected
    assert matching(store, 3) == [1]
    assert store.read("TopicA", 0, 0, 9, wanted=TAG1).count == 1
    store.close()
    again = ext_store(fs)
    assert extension(again, 1) == expected
    again.append(message(4))
    assert matching(again, 4) == [1, 3]
    assert extension(again, 1) == expected


def test_every_way_into_a_queue_writes_extensions() -> None:
    source = ext_store(FaultyFileSystem())
    fs = FaultyFileSystem()
    replica = ext_store(fs)
    for number in range(30):
        source.append(message(number))
    while replica.max_log_offset < source.max_log_offset:
        replica.append_raw(replica.max_log_offset, source.log_range(replica.max_log_offset, 1000))
    killed = ext_store(fs.kill())
    for store in (source, replica, killed):
        assert matching(store, 30) == list(range(1, 30, 3))
        assert len(bodies(store)) == 30


def test_address_is_never_given_out_twice_after_a_crash_or_a_cut() -> None:
    fs = FaultyFileSystem()
    store = ext_store(fs)
    done = [store.append(message(number)) for number in range(40)]
    store.flush()
    store.truncate(done[20].log_offset)
    for number in range(20, 60):
        store.append(message(number + 1))
    for each in (store, ext_store(fs.kill())):
        codes = [unit[2] for n in range(60) for unit in each.units("TopicA", 0, n, 1)]
        assert len(set(codes)) == 60
        assert matching(each, 60) == [n for n in range(60) if (n if n < 20 else n + 1) % 3 == 1]


def test_switched_off_store_still_reads_what_was_written_with_it() -> None:
    fs = FaultyFileSystem()
    store = ext_store(fs)
    for number in range(6):
        store.append(message(number))
    store.close()
    plain = ext_store(fs, on=False)
    # Without the extensions the tags are unknown, so nothing is filtered out.
    assert matching(plain, 6) == [0, 1, 2, 3, 4, 5]
    plain.append(message(6))
    plain.append(message(7))
    assert matching(plain, 8) == [0, 1, 2, 3, 4, 5, 7]
    plain.close()
    again = ext_store(fs)
    assert matching(again, 8) == [1, 4, 7]
    again.append(message(8))
    assert extension(again, 5) == ExtUnit(java_hash("tag2"), START_MS, b"TopicAUNIQ")


def test_extension_that_cannot_be_written_leaves_the_tag_code() -> None:
    fs = FaultyFileSystem()
    store = ext_store(fs)

    def refuse(name: str, path: str) -> None:
        if path.startswith(EXT):
            raise OSError(28, "no space")

    store.append(message(0))
    fs.on_operation = refuse
    store.append(message(1))
    fs.on_operation = None
    store.append(message(2))
    assert [is_ext_address(unit[2]) for unit in store.units("TopicA", 0, 0, 3)] == [True, False, True]
    assert matching(store, 3) == [1]


def test_extensions_go_with_their_topic_and_their_messages() -> None:
    clock = ManualClock(START_MS)
    fs = FaultyFileSystem(clock=clock.now_ms)
    store = open_store(fs, clock, queue_ext_enabled=True, queue_ext_file_bytes=4096, retention_hours=1)
    number = 0
    while store.max_log_offset < 20 * 4096:
        store.append(message(number))
        number += 1
    store.flush()
    files = len(fs.paths(EXT))
    assert files > 1
    clock.advance(2 * 3_600_000)
    for _ in range(3):
        store.clean_expired(force=True)
    assert 0 < len(fs.paths(EXT)) < files
    store.delete_topic("TopicA")
    assert fs.paths(EXT) == []
    store.close()
    assert fs.open_paths == []
