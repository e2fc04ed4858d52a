"""Topics of a store read through their consume queues: the same rows as by walking the log, less of it read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orbitmq.errors import CorruptionError
from orbitmq.spark.store.batch import BlockPartition, StoreReader, UnitPartition
from orbitmq.spark.store.options import StoreOptions
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
COUNT = 4000
RARE = 40


def message(topic: str, number: int) -> NewMessage:
    return NewMessage(
        topic=topic,
        queue_id=number % 3,
        body=b"%d" % number + b"." * 200,
        properties=b"UNIQ_KEY\x01%d\x02" % number,
        born_timestamp_ms=1_794_773_001_075,
        born_host=HOST,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("queues") / "store"
    store = MessageStore(StoreConfig(root=str(root), segment_bytes=256 * 1024, queue_file_bytes=6000))
    store.open()
    try:
        for first in range(0, COUNT, 100):
            rows = range(first, first + 100)
            store.append_batch([message("rare" if row % RARE == 0 else "common", row) for row in rows])
    finally:
        store.close()
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store", ignore=shutil.ignore_patterns("index")))


def reader(root: Path, **options: Any) -> StoreReader:
    return StoreReader(StoreOptions(paths=(str(root),), **options), ("topic", "body", "log_offset"))


def kinds(found: StoreReader) -> set[type]:
    return {type(partition) for partition in found.partitions()}


def numbers(found: StoreReader) -> list[int]:
    rows = [row for part in found.partitions() for batch in found.read(part) for row in batch.to_pylist()]
    return sorted(int(row["body"].rstrip(b".")) for row in rows)


def test_rare_topic_is_read_through_its_queues_and_a_common_one_is_not(root: Path) -> None:
    rare = reader(root, topics=frozenset({"rare"}))
    assert kinds(rare) == {UnitPartition}
    assert numbers(rare) == list(range(0, COUNT, RARE))
    small = reader(root, topics=frozenset({"rare"}), partition_bytes=2000)
    assert len(small.partitions()) > len(rare.partitions())
    assert numbers(small) == numbers(rare)
    common = reader(root, topics=frozenset({"common"}))
    assert kinds(common) == {BlockPartition}
    walked = reader(root, topics=frozenset({"rare"}), use_queues=False)
    assert kinds(walked) == {BlockPartition}
    assert numbers(walked) == numbers(rare)
    assert len(numbers(reader(root, topics=frozenset({"rare", "common"})))) == COUNT


def test_what_queues_do_not_hold_yet_is_walked(root: Path) -> None:
    store = MessageStore(StoreConfig(root=str(root), segment_bytes=256 * 1024, queue_file_bytes=6000))
    store.open()
    try:
        store.append_batch([message("rare", COUNT + row) for row in range(10)])
        # The log is written at once, queues and checkpoint later: the store of a running broker.
        live = reader(root, topics=frozenset({"rare"}))
        assert numbers(live) == [*range(0, COUNT, RARE), *range(COUNT, COUNT + 10)]
    finally:
        store.close()
    assert numbers(reader(root, topics=frozenset({"rare"})))[-1] == COUNT + 9


@pytest.mark.parametrize("gone", ["checkpoint", "consumequeue/rare"])
def test_store_without_queues_or_checkpoint_is_walked(root: Path, gone: str) -> None:
    path = root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = reader(root, topics=frozenset({"rare"}))
    assert kinds(found) == {BlockPartition}
    assert numbers(found) == list(range(0, COUNT, RARE))


def test_stale_and_wrong_units_give_an_error_or_no_row_never_a_wrong_one(root: Path) -> None:
    [file, *_] = sorted((root / "consumequeue" / "rare").glob("0/*"))
    units = bytearray(file.read_bytes())
    other = next((root / "consumequeue" / "common").glob("0/*")).read_bytes()
    units[20:40] = other[20:40]  # a record of another topic
    file.write_bytes(units)
    found = numbers(reader(root, topics=frozenset({"rare"})))
    assert len(found) == COUNT // RARE - 1
    assert set(found) < set(range(0, COUNT, RARE))
    units[40:48] = (int.from_bytes(units[40:48], "big") + 1).to_bytes(8, "big")  # inside of a record
    file.write_bytes(units)
    with pytest.raises(Exception, match="failOnDataLoss"):
        numbers(reader(root, topics=frozenset({"rare"})))
    lenient = numbers(reader(root, topics=frozenset({"rare"}), fail_on_data_loss=False))
    assert lenient == [number for number in found if number in lenient]
    assert len(lenient) == len(found) - 1


def test_segment_deleted_after_the_plan_is_named(root: Path) -> None:
    found = reader(root, topics=frozenset({"rare"}))
    partitions = found.partitions()
    (root / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(CorruptionError, match="deleted by retention"):
        [list(found.read(partition)) for partition in partitions]
