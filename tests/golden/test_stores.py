"""Stores that a real Apache 5.5.0 broker wrote: opened, read back equal, appended to, opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.golden.data import STORES, extract, files, messages

from orbitmq.record.codec import Record, decode_record
from orbitmq.record.hosts import decode_host
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage, ReadStatus

pytestmark = pytest.mark.usefixtures("kernel")

FOREVER = (0, 1 << 60)
HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"


def config_of(store: str, root: Path) -> StoreConfig:
    sizes = messages(store)["brokerConf"]
    return StoreConfig(
        root=str(root),
        segment_bytes=sizes["mappedFileSizeCommitLog"],
        queue_file_bytes=sizes["mappedFileSizeConsumeQueue"],
        index_slots=sizes["maxHashSlotNum"],
        index_entries=sizes["maxIndexNum"],
    )


def opened(config: StoreConfig) -> MessageStore:
    store = MessageStore(config)
    store.open()
    return store


def units(store: MessageStore, topic: str, queue_id: int, end: int) -> list[list[int]]:
    found: list[list[int]] = []
    while len(found) < end:
        piece = store.units(topic, queue_id, len(found), end - len(found))
        assert piece, (topic, queue_id, len(found))
        found += [list(unit) for unit in piece]
    return found


def read_all(store: MessageStore, topic: str, queue_id: int, start: int = 0) -> list[Record]:
    """Every message of a queue through the read path, as a consumer gets them."""
    records: list[Record] = []
    offset = start
    while offset < store.max_offset(topic, queue_id):
        found = store.read(topic, queue_id, offset, 32)
        assert found.status is ReadStatus.FOUND
        data = b"".join(found.slices)
        assert len(data) == found.size_bytes
        position = 0
        for _ in range(found.count):
            record = decode_record(data, position)
            records.append(record)
            position += record.size
        assert position == len(data)
        assert found.next_offset == offset + found.count
        offset = found.next_offset
    return records


def assert_equal_to_recording(record: Record, recorded: dict[str, Any]) -> None:
    assert record.topic == recorded["topic"]
    assert record.queue_id == recorded["queueId"]
    assert record.queue_offset == recorded["queueOffset"]
    assert record.log_offset == recorded["commitLogOffset"]
    assert record.size == recorded["size"]
    assert record.flag == recorded["flag"]
    assert record.sys_flag == recorded["sysFlag"]
    assert record.born_timestamp_ms == recorded["bornTimestamp"]
    assert record.store_timestamp_ms == recorded["storeTimestamp"]
    assert "{}:{}".format(*decode_host(record.store_host)) == recorded["storeHost"]
    assert record.reconsume_times == recorded["reconsumeTimes"]
    assert record.prepared_offset == recorded["preparedTransactionOffset"]
    assert record.properties.hex() == recorded["propertiesHex"]
    if "bodyHex" in recorded:
        assert record.body.hex() == recorded["bodyHex"]
    else:
        assert len(record.body) == recorded["bodyLength"]
        assert record.body[:64].hex() == recorded["bodyHexStart"]


def assert_holds_recording(store: MessageStore, name: str) -> None:
    known = messages(name)
    for recorded in known["records"]:
        stored = store.record_at(recorded["commitLogOffset"])
        assert stored is not None
        assert_equal_to_recording(decode_record(stored), recorded)
    by_queue: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for recorded in known["records"]:
        by_queue.setdefault((recorded["topic"], recorded["queueId"]), []).append(recorded)
    for key, queue in known["consumeQueues"].items():
        topic, _, number = key.rpartition("/")
        assert units(store, topic, int(number), queue["count"]) == queue["units"]
        for record, recorded in zip(
            read_all(store, topic, int(number)), by_queue[topic, int(number)], strict=False
        ):
            assert_equal_to_recording(record, recorded)
    for key, offsets in known["served"]["keys"].items():
        topic, _, word = key.partition("#")
        hits, _ = store.query(topic, word, 32, *FOREVER)
        assert [decode_record(hit).log_offset for hit in hits] == sorted(offsets)
    search = known["served"]["searchOffset"]
    assert store.offset_by_time(search["topic"], search["queueId"], search["timestamp"]) == search["offset"]


@pytest.mark.parametrize("name", STORES)
def test_recorded_store_reads_back_every_message_unit_and_key(name: str, tmp_path: Path) -> None:
    store = opened(config_of(name, extract(name, tmp_path)))
    known = messages(name)
    assert store.recovery is not None
    assert store.recovery.clean is not known["abortFile"]
    assert store.recovery.cut_reason == ""
    assert store.max_log_offset == known["commitLogEnd"]
    for facts, asked in (("maxOffset", store.max_offset), ("minOffset", store.min_offset)):
        for key, offset in known["served"][facts].items():
            topic, _, queue_id = key.rpartition("/")
            assert asked(topic, int(queue_id)) == offset
    assert {f"{topic}/{queue_id}" for topic in store.topics() for queue_id in store.queues(topic)} == set(
        known["consumeQueues"]
    )
    assert_holds_recording(store, name)
    store.close()


@pytest.mark.parametrize("name", STORES)
def test_recorded_store_opened_and_closed_keeps_log_and_queues_to_the_byte(name: str, tmp_path: Path) -> None:
    root = extract(name, tmp_path)
    opened(config_of(name, root)).close()
    end = messages(name)["commitLogEnd"]
    for path, content in files(name).items():
        if path.startswith("consumequeue/") or (path.startswith("commitlog/") and int(path[10:]) < end):
            assert (root / path).read_bytes() == content, path
    assert not (root / "abort").exists()


@pytest.mark.parametrize("name", STORES)
def test_recorded_store_takes_appends_and_opens_again_with_old_and_new(name: str, tmp_path: Path) -> None:
    config = config_of(name, extract(name, tmp_path))
    store = opened(config)
    starts = {queue: store.max_offset("GoldenT", queue) for queue in range(4)}
    old_end = store.max_log_offset
    for number in range(3000):
        store.append(
            NewMessage(
                topic="GoldenT",
                queue_id=number % 4,
                body=b"new %d" % number + bytes(400),
                properties=b"UNIQ_KEY\x01%032X\x02KEYS\x01new%d\x02TAGS\x01TagB\x02" % (number, number),
                born_timestamp_ms=1,
                born_host=HOST,
            )
        )
    assert store.max_log_offset > old_end + store.config.segment_bytes, "the appends should roll a segment"
    for _ in range(2):
        assert_holds_recording(store, name)
        for queue, start in starts.items():
            bodies = [record.body for record in read_all(store, "GoldenT", queue, start)]
            assert bodies == [b"new %d" % number + bytes(400) for number in range(queue, 3000, 4)]
        for number in (0, 1499, 2999):
            hits, _ = store.query("GoldenT", f"new{number}", 32, *FOREVER)
            assert [decode_record(hit).body[:8].rstrip(b"\0") for hit in hits] == [b"new %d" % number]
        store.close()
        store = opened(config)
        assert store.recovery is not None
        assert store.recovery.clean
    store.close()


def test_killed_store_rebuilds_equal_queues_when_they_are_gone(tmp_path: Path) -> None:
    root = extract("store-crashed", tmp_path)
    for path in files("store-crashed"):
        if path.startswith(("consumequeue/", "index/")) or path == "checkpoint":
            (root / path).unlink()
    store = opened(config_of("store-crashed", root))
    assert_holds_recording(store, "store-crashed")
    store.close()


def test_clean_store_rebuilds_one_lost_queue_from_the_whole_log(tmp_path: Path) -> None:
    root = extract("store-clean", tmp_path)
    for file in (root / "consumequeue" / "GoldenBig" / "0").iterdir():
        file.unlink()
    store = opened(config_of("store-clean", root))
    assert store.recovery is not None
    assert store.recovery.rebuilt_queues == [("GoldenBig", 0)]
    assert_holds_recording(store, "store-clean")
    store.close()
