"""The invariants of ARCHITECTURE.md, one test for each number. The suites they come from try many more cases."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest
from tests.tidy import rules
from tests.tidy.test_tree import sources
from tests.unit.broker.kit import safe_file
from tests.unit.store.support import ROOT, bodies, config, message, open_store

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.clients import ConsumerTable, ProducerTable
from orbitmq.broker.tables.consumer_filters import ConsumerFilters
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.limits import Bound, TableLimits
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import OrbitError
from orbitmq.record.codec import decode_record
from orbitmq.runtime.clock import ForwardClock
from orbitmq.runtime.options import options_of
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.components import StoreParts
from orbitmq.store.types import FlushMode
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import FrameDecoder, encode_request

TEXT = Path(__file__).parents[2] / "ARCHITECTURE.md"


def test_every_invariant_has_a_test_named_after_it() -> None:
    section = TEXT.read_text().partition("\n## Invariants\n")[2].partition("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
    tested = sorted(
        {int(found.group(1)) for name in globals() if (found := re.match(r"test_invariant_(\d+)_", name))}
    )
    assert numbers == tested == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("gone", ["consumequeue/", "index/", "checkpoint"])
def test_invariant_1_what_is_derived_from_the_log_is_rebuilt(gone: str) -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(30):
        store.append(message(number))
    wanted = bodies(store)
    store.close()
    removed = list(fs.paths(f"{ROOT}/{gone}"))
    assert removed
    for path in removed:
        fs.remove(path)
    again = open_store(fs)
    assert bodies(again) == wanted
    assert len(wanted) == 30


@pytest.mark.parametrize("seed", range(10))
def test_invariant_2_what_was_flushed_survives_a_power_cut(seed: int) -> None:
    chance = random.Random(seed)
    fs = FaultyFileSystem()
    store = open_store(fs, flush_mode=FlushMode.SYNC)
    for number in range(20):
        store.append(message(number))
    store.flush()
    wanted = bodies(store)
    for number in range(20, 40):
        store.append(message(number))
    again = open_store(fs.power_cut(lambda _path, _page: chance.random() < 0.5), flush_mode=FlushMode.SYNC)
    assert bodies(again)[: len(wanted)] == wanted
    assert len(wanted) == 20


def test_invariant_3_queue_offsets_are_dense_and_a_jump_is_damage_or_a_logged_gap() -> None:
    fs = FaultyFileSystem()
    store = open_store(fs)
    assert [store.append(message(number)).queue_offset for number in range(5)] == [0, 1, 2, 3, 4]
    parts = StoreParts.build(FaultyFileSystem(), config(), ManualClock())
    queue = parts.queues.create("TopicA", 0)
    queue.start_at(5)
    assert queue.max_offset == 5
    settle = parts.dispatcher.settle
    assert settle(queue, 8, 0, strict=True) == "queue offset 8 where 5 was expected"
    assert settle(queue, 5 + 100_001, 0, strict=False) != "", "more than a replica may lack"
    assert queue.max_offset == 5
    assert settle(queue, 8, 0, strict=False) == ""
    assert queue.max_offset == 8


@pytest.mark.parametrize("seed", range(20))
def test_invariant_4_damaged_input_raises_a_declared_error(seed: int) -> None:
    chance = random.Random(seed)
    frame = bytearray(encode_request(10, 1, {"topic": "T"}, b"body"))
    fs = FaultyFileSystem()
    store = open_store(fs)
    store.append(message())
    record = bytearray(next(iter(store.scan(0))))
    for data in (frame, record):
        for _ in range(4):
            data[chance.randrange(len(data))] = chance.randrange(256)
    for read in (
        lambda: FrameDecoder().feed(bytes(frame)),
        lambda: decode_record(bytes(record)),
    ):
        try:
            read()
        except OrbitError:
            pass


def test_invariant_5_every_table_that_clients_grow_has_a_limit(tmp_path: Path) -> None:
    limits, clock, events = BrokerConfig(), ManualClock(), BrokerEvents()
    tables = (
        TopicTable(limits, clock, safe_file(tmp_path, "topics.json"), events),
        GroupTable(limits, clock, safe_file(tmp_path, "groups.json"), events),
        ConsumerOffsets(limits, clock, safe_file(tmp_path, "offsets.json")),
        ConsumerTable(limits, clock, events),
        ProducerTable(limits, clock),
        ConsumerFilters(limits, clock, safe_file(tmp_path, "filters.json"), events),
        QueueLocks(limits, clock),
    )
    bounds = [value for table in tables for value in vars(table).values() if isinstance(value, Bound)]
    by_key = {declared.key: declared.default for declared in options_of(TableLimits)}
    assert {bound.key for bound in bounds} == {
        declared.key for declared in options_of(TableLimits) if declared.name in vars_of(TableLimits)
    }
    for bound in bounds:
        assert bound.size <= bound.limit == by_key[bound.key]


def vars_of(kind: type[object]) -> set[str]:
    """Returns the fields that a class declares itself."""
    return set(kind.__annotations__)


THREADS = {
    "src/orbitmq/broker/delivery/schedule.py": "writes delayOffset.json",
    "src/orbitmq/broker/delivery/timers.py": "syncs and saves the timer's files",
    "src/orbitmq/broker/live_config.py": "writes the file of options",
    "src/orbitmq/broker/scrubbing.py": "reads flushed segments with a descriptor of its own, writes scrub.json",
    "src/orbitmq/broker/tables/offsets.py": "writes consumerOffset.json",
    "src/orbitmq/broker/tables/table_file.py": "writes the tables of topics and groups",
    "src/orbitmq/namesrv/kv_config.py": "writes kvConfig.json",
    "src/orbitmq/namesrv/live_config.py": "writes the file of options",
    "src/orbitmq/store/maintenance/flush.py": "the sync worker of the store",
    "src/orbitmq/transport/tls.py": "reads certificates",
}


def test_invariant_6_threads_only_wait_for_the_disk() -> None:
    servers = tuple(f"src/orbitmq/{name}/" for name in ("broker", "namesrv", "store", "transport"))
    found = {
        source.path
        for source in sources()
        if source.path.startswith(servers)
        and re.search(r"\bThread\(|\bto_thread\(|\brun_in_executor\(|Executor\(", source.text)
    }
    assert found == set(THREADS)


def test_invariant_7_an_owner_ends_its_tasks() -> None:
    async def run() -> None:
        owner = TaskOwner("owner")
        task = owner.start(asyncio.Event().wait(), "work")
        await owner.close()
        assert task.cancelled()

    asyncio.run(run())


def test_invariant_8_stored_time_never_goes_back() -> None:
    machine = ManualClock(1_700_000_000_000)
    clock = ForwardClock(machine)
    times = []
    for step_ms in (0, 5_000, -60_000, 1_000, 120_000):
        machine.jump(machine.now_ms() + step_ms)
        times.append(clock.now_ms())
    assert times == sorted(times)


def test_invariant_9_records_units_and_frames_are_laid_out_in_one_place() -> None:
    assert list(rules.check_layouts(sources())) == []
