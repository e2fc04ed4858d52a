"""One store directory, two kinds of broker: Apache 5.5.0 serves the messages ours wrote, and the other way round."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.apache.harness import (
    LATEST,
    ApacheBroker,
    ApacheNamesrv,
    JavaClients,
    Message,
    PullConsumer,
    Queue,
    Received,
    StartFailed,
    create_topic,
)
from tests.golden.data import extract, messages

from orbitmq.record.codec import Record, decode_record, decode_records
from orbitmq.record.property_crc import is_right
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import StoreLocked
from orbitmq.store.message_store import MessageStore
from orbitmq.store.tools.verify import verify
from orbitmq.store.types import NewMessage

SIZES = {
    "mappedFileSizeCommitLog": 1048576,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1000,
    "fileReservedTime": 100_000,
}
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
FOREVER = (0, 1 << 62)
NEW_COUNT = 400


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=str(root),
        segment_bytes=SIZES["mappedFileSizeCommitLog"],
        queue_file_bytes=SIZES["mappedFileSizeConsumeQueue"],
        index_slots=SIZES["maxHashSlotNum"],
        index_entries=SIZES["maxIndexNum"],
        retention_hours=SIZES["fileReservedTime"],
    )


def recorded(store: str, target: Path) -> Path:
    """Returns a recorded store, with file times as if it had been written now."""
    root = extract(store, target)
    for path in root.rglob("*"):
        os.utime(path)
    return root


def new_message(topic: str, number: int, queue_id: int) -> NewMessage:
    # Every 40th is large, so that the log grows by several segments.
    body = b"new %d " % number + b"x" * (60_000 if number % 40 == 7 else number % 200)
    properties = b"KEYS\x01new%d shared\x02UNIQ_KEY\x017F0000010001764C12A3%012X\x02TAGS\x01T%d\x02" % (
        number,
        number,
        number % 3,
    )
    return NewMessage(topic, queue_id, body, properties, 1_700_000_000_000 + number, HOST, flag=number)


def append_ours(store: MessageStore, topic: str = "GoldenT", count: int = NEW_COUNT) -> list[NewMessage]:
    """Appends messages singly and in batches, over four queues."""
    sent = [new_message(topic, number, number % 4) for number in range(count)]
    for start in range(0, count, 20):
        for message in sent[start : start + 10]:
            store.append(message)
        store.append_batch(sent[start + 10 : start + 20])
    return sent


@pytest.fixture(scope="module")
def namesrv() -> Iterator[ApacheNamesrv]:
    with ApacheNamesrv(LATEST) as server:
        yield server


def apache(namesrv: ApacheNamesrv, root: Path, **more: Any) -> ApacheBroker:
    options: dict[str, Any] = SIZES | more
    return ApacheBroker(LATEST, namesrv, root, **options)


def pull_all(consumer: PullConsumer, queue: Queue) -> list[Received]:
    """Returns everything a queue holds, through Apache's broker and Apache's client."""
    found: list[Received] = []
    offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
    while offset < end:
        result = consumer.pull(queue, offset)
        assert result.status == "FOUND", (queue, offset, result.status)
        found += result.messages
        offset = result.next_offset
    return found


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """Returns the same through our store."""
    found: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 32)
        found += [
            record for piece in result.slices for record in decode_records(bytes(piece), decompress=True)
        ]
        offset = result.next_offset
    return found


def check_recorded(bodies: list[bytes], golden: dict[str, Any], topic: str, queue_id: int) -> int:
    """Checks that a queue begins with the recorded messages; returns how many those are."""
    records = [one for one in golden["records"] if (one["topic"], one["queueId"]) == (topic, queue_id)]
    known = [
        one for one in records if one["queueOffset"] < golden["consumeQueues"][f"{topic}/{queue_id}"]["count"]
    ]
    for body, one in zip(bodies, known, strict=False):
        # The client has decompressed the bodies.
        if "bodyHex" in one and not one["sysFlag"] & 1:
            assert body == bytes.fromhex(one["bodyHex"])
        elif "bodyLength" in one:
            assert len(body) == one["bodyLength"]
    assert len(bodies) >= len(known)
    return len(known)


def test_store_goes_from_apache_to_ours_to_apache_and_back(
    tmp_path: Path, namesrv: ApacheNamesrv, java_latest: JavaClients
) -> None:
    golden = messages("store-clean")
    root = recorded("store-clean", tmp_path)
    store = MessageStore(config(root), store_host=HOST)
    assert store.open().clean
    sent = append_ours(store)
    store.close()
    report = verify(str(root))
    assert report.findings == []
    assert report.segment_count > 2

    with apache(namesrv, root) as broker:
        consumer = java_latest.pull_consumer("interop-readers", namesrv)
        for topic, queue_id in (("GoldenBulk", 0), ("GoldenBulk", 1), ("GoldenBig", 0), ("GoldenTx", 0)):
            bodies = [one.body for one in pull_all(consumer, Queue(topic, broker.broker_name, queue_id))]
            assert check_recorded(bodies, golden, topic, queue_id) == len(bodies)
        for queue_id in range(4):
            found = pull_all(consumer, Queue("GoldenT", broker.broker_name, queue_id))
            old = check_recorded([one.body for one in found], golden, "GoldenT", queue_id)
            ours = [one for one in sent if one.queue_id == queue_id]
            assert [one.body for one in found[old : old + len(ours)]] == [one.body for one in ours]
            assert [one.flag for one in found[old : old + len(ours)]] == [one.flag for one in ours]
            assert [one.queue_offset for one in found] == list(range(len(found)))
        for key, log_offsets in golden["served"]["keys"].items():
            topic, _, word = key.partition("#")
            if word != "tx-open":
                assert sorted(one.log_offset for one in consumer.query_by_key(topic, word)) == log_offsets
        for number in (0, 7, 13, NEW_COUNT - 1):
            assert sent[number].body in [one.body for one in consumer.query_by_key("GoldenT", f"new{number}")]
        assert len(consumer.query_by_key("GoldenT", "shared", max_count=64)) >= 32
        one = pull_all(consumer, Queue("GoldenT", broker.broker_name, 3))[-1]
        assert consumer.query_by_id("GoldenT", one.msg_id).body == one.body
        with pytest.raises(StoreLocked):
            MessageStore(config(root)).open()
        producer = java_latest.producer("interop-senders", namesrv)
        theirs = [
            producer.send(Message(topic="GoldenT", body=b"theirs %d" % number, keys=f"theirs{number}"))
            for number in range(60)
        ]
        assert {result.status for result in theirs} == {"SEND_OK"}
        broker.kill()

    store = MessageStore(config(root), store_host=HOST)
    assert not store.open().clean
    for queue_id in range(4):
        bodies = [record.body for record in read_all(store, "GoldenT", queue_id)]
        old = check_recorded(bodies, golden, "GoldenT", queue_id)
        expected = [one.body for one in sent if one.queue_id == queue_id]
        assert bodies[old : old + len(expected)] == expected
    for number, result in enumerate(theirs):
        hits, _ = store.query("GoldenT", f"theirs{number}", 32, *FOREVER)
        assert b"theirs %d" % number in [decode_record(hit).body for hit in hits]
        [piece] = store.read("GoldenT", result.queue.queue_id, result.queue_offset, 1).slices
        assert decode_record(piece).body == b"theirs %d" % number
    hits, _ = store.query("GoldenT", f"new{NEW_COUNT - 1}", 32, *FOREVER)
    assert hits
    store.close()
    assert verify(str(root)).ok


def test_store_of_our_killed_broker_is_recovered_by_apache(
    tmp_path: Path, namesrv: ApacheNamesrv, java_latest: JavaClients
) -> None:
    running = tmp_path / "running"
    store = MessageStore(config(running), store_host=HOST)
    store.open()
    sent = append_ours(store, "Killed", 200)
    store.flush()
    sent += append_ours(store, "Killed", 200)
    # The remains of a dead process: unwritten queue tails and index entries are gone, but the log is complete.
    root = tmp_path / "left"
    shutil.copytree(running, root)
    store.close()
    assert (root / "abort").exists()
    assert verify(str(root)).ok

    with apache(namesrv, root) as broker:
        create_topic(namesrv, broker, "Killed", queue_count=4)
        consumer = java_latest.pull_consumer("killed-readers", namesrv)
        for queue_id in range(4):
            found = pull_all(consumer, Queue("Killed", broker.broker_name, queue_id))
            assert [one.body for one in found] == [one.body for one in sent if one.queue_id == queue_id]
        assert len(consumer.query_by_key("Killed", "new199")) == 2


def test_checksums_of_whole_records_are_verified_by_both(
    tmp_path: Path, namesrv: ApacheNamesrv, java_latest: JavaClients
) -> None:
    """Apache truncates a log at a record whose property it does not accept (``forceVerifyPropCRC``)."""
    running = tmp_path / "running"
    ours = dataclasses.replace(config(running), property_crc_enabled=True)
    store = MessageStore(ours, store_host=HOST)
    store.open()
    sent = append_ours(store, "Sealed", 40)
    root = tmp_path / "left"
    shutil.copytree(running, root)
    store.close()

    with apache(namesrv, root, enabledAppendPropCRC=True, forceVerifyPropCRC=True) as broker:
        create_topic(namesrv, broker, "Sealed", queue_count=4)
        consumer = java_latest.pull_consumer("sealed-readers", namesrv)
        for queue_id in range(4):
            found = pull_all(consumer, Queue("Sealed", broker.broker_name, queue_id))
            assert [one.body for one in found] == [one.body for one in sent if one.queue_id == queue_id]
        producer = java_latest.producer("sealed-senders", namesrv)
        theirs = [Message(topic="Sealed", body=b"theirs %d" % number, tags="T") for number in range(6)]
        for message in theirs[:3]:
            producer.send(message)
        producer.send_batch(theirs[3:])
        broker.kill()

    store = MessageStore(dataclasses.replace(ours, root=str(root)), store_host=HOST)
    assert not store.open().clean
    records = [record for queue_id in range(4) for record in read_all(store, "Sealed", queue_id)]
    assert sorted(one.body for one in records) == sorted(
        [one.body for one in sent] + [one.body for one in theirs]
    )
    stored = [bytes(each) for each in store.scan(store.min_log_offset)]
    assert len(stored) >= len(records)
    assert all(is_right(each) for each in stored)
    assert sum(b"__CRC32#\x01" in each[-20:] for each in stored if b"Sealed" in each) >= len(records)
    store.close()


def test_apache_does_not_start_on_a_store_we_have_open(tmp_path: Path, namesrv: ApacheNamesrv) -> None:
    root = tmp_path / "store"
    store = MessageStore(config(root), store_host=HOST)
    store.open()
    append_ours(store, "Locked", 20)
    broker = apache(namesrv, root, workdir=tmp_path / "broker")
    with pytest.raises(StartFailed), broker:
        pass
    output = b"".join(path.read_bytes() for path in broker.workdir.rglob("*") if path.is_file())
    assert b"MQ already started" in output, "it failed for another reason"
    # It read and recovered the files before it tried the lock, and left its own index file behind.
    assert store.max_offset("Locked", 0) == 5
    append_ours(store, "Locked", 20)
    store.close()
    again = MessageStore(config(root), store_host=HOST)
    again.open()
    assert [len(read_all(again, "Locked", queue_id)) for queue_id in range(4)] == [10] * 4
    assert len(again.query("Locked", "new19", 32, *FOREVER)[0]) == 2
    again.close()
    assert verify(str(root)).findings == []


def test_store_of_a_killed_apache_broker_is_recovered_by_ours(
    tmp_path: Path, namesrv: ApacheNamesrv, java_latest: JavaClients
) -> None:
    root = tmp_path / "store"
    with apache(namesrv, root) as broker:
        create_topic(namesrv, broker, "Theirs", queue_count=4)
        producer = java_latest.producer("their-senders", namesrv)
        batch = [
            Message(
                topic="Theirs",
                body=b"m%d " % number + b"y" * (number * 40),
                keys=f"k{number}",
                tags="ab"[number % 2],
            )
            for number in range(300)
        ]
        results = producer.send_many(batch)
        assert {result.status for result in results} == {"SEND_OK"}
        delayed = producer.send(Message(topic="Theirs", body=b"later", delay_level=18))
        assert delayed.status == "SEND_OK"
        consumer = java_latest.pull_consumer("their-readers", namesrv)
        served = {
            queue_id: pull_all(consumer, Queue("Theirs", broker.broker_name, queue_id))
            for queue_id in range(4)
        }
        broker.kill()
    store = MessageStore(config(root), store_host=HOST)
    assert not store.open().clean
    for queue_id, found in served.items():
        ours = read_all(store, "Theirs", queue_id)
        assert [(one.queue_offset, one.log_offset, one.body) for one in ours] == [
            (one.queue_offset, one.log_offset, one.body) for one in found
        ]
        assert [one.offset_message_id for one in ours] == [one.offset_msg_id for one in found]
    for number in range(0, 300, 23):
        hits, _ = store.query("Theirs", f"k{number}", 32, *FOREVER)
        assert batch[number].body in [decode_record(hit, decompress=True).body for hit in hits]
    assert store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == 1
    store.close()
    assert verify(str(root)).ok
