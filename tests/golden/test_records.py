"""Every record a real Apache 5.5.0 wrote: decoded to what is known of it, and encoded to the same bytes.

All of it on both kernels.
"""

from __future__ import annotations

import hashlib
from struct import iter_unpack
from typing import Any

import pytest
from tests.apache.kernels import Kernel
from tests.golden.data import STORES, log_segments, messages

from orbitmq.kernel import KEYS_AND_TAG
from orbitmq.kernel.layout import BLANK, MAGIC_BLANK
from orbitmq.record import codec
from orbitmq.record.codec import Record, decode_record, encode_record
from orbitmq.record.hashing import index_hash, java_hash, tags_code
from orbitmq.record.hosts import host_text
from orbitmq.record.ids import parse_offset_message_id, parse_unique_key
from orbitmq.record.properties import find_property
from orbitmq.record.scan import EndKind, is_zero, scan

pytestmark = pytest.mark.usefixtures("kernel")


def stored_records(store: str) -> list[tuple[bytes, dict[str, Any]]]:
    """The bytes of each record with what ``messages.json`` says about it."""
    log = b"".join(content for _, content in log_segments(store))
    return [
        (log[known["commitLogOffset"] : known["commitLogOffset"] + known["size"]], known)
        for known in messages(store)["records"]
    ]


def body_facts(body: bytes) -> dict[str, Any]:
    if len(body) <= 4096:
        return {"bodyHex": body.hex()}
    return {
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "bodyHexStart": body[:64].hex(),
    }


def facts(record: Record) -> dict[str, Any]:
    """A record in the words of ``messages.json``."""
    properties = record.property_map()
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.log_offset,
        "size": record.size,
        "magic": f"{record.magic:08x}",
        "bodyCrc": record.body_crc,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_timestamp_ms,
        "storeHost": host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_offset,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": properties,
        "propertiesHex": record.properties.hex(),
        "offsetMsgId": record.offset_message_id,
        **body_facts(record.body),
    }


@pytest.mark.parametrize("store", STORES)
def test_every_record_decodes_to_what_is_known_of_it(store: str) -> None:
    for data, known in stored_records(store):
        assert facts(decode_record(data)) == known


@pytest.mark.parametrize("store", STORES)
def test_every_record_encodes_to_the_same_bytes(store: str) -> None:
    for data, _ in stored_records(store):
        record = decode_record(data)
        encoded = encode_record(
            record, record.queue_offset, record.log_offset, record.store_timestamp_ms, record.store_host
        )
        assert encoded == data


@pytest.mark.parametrize("store", STORES)
def test_every_id_reads_back(store: str) -> None:
    for data, known in stored_records(store):
        record = decode_record(data)
        address, port, log_offset = parse_offset_message_id(known["offsetMsgId"])
        assert (f"{address}:{port}", log_offset) == (known["storeHost"], known["commitLogOffset"])
        if record.unique_key is not None:
            assert parse_unique_key(record.unique_key).address == bytes([127, 0, 0, 1])


@pytest.mark.parametrize("store", STORES)
def test_properties_are_found_without_parsing(store: str) -> None:
    for data, known in stored_records(store):
        raw = decode_record(data).properties
        for name, value in known["properties"].items():
            assert find_property(raw, name.encode()) == value.encode()


def test_compressed_bodies_inflate() -> None:
    compressed = [data for data, known in stored_records("store-clean") if known["sysFlag"] & 1]
    assert compressed
    for data in compressed:
        assert len(decode_record(data, decompress=True).body) > len(decode_record(data).body)


@pytest.mark.parametrize("store", STORES)
def test_scan_finds_every_record_and_every_end(store: str) -> None:
    known = messages(store)
    blanks = {int(blank["file"]): blank for blank in known["blanks"]}
    offsets = []
    for base, content in log_segments(store):
        found = scan(content, 0, len(content), log_base=base)
        offsets += [record.log_offset for record in found]
        assert found.end is not None
        if base in blanks:
            assert (found.end.kind, found.end.position) == (EndKind.BLANK, blanks[base]["position"])
            assert BLANK.unpack_from(content, found.end.position) == (blanks[base]["length"], MAGIC_BLANK)
        else:
            assert found.end.kind is EndKind.ZEROES
            assert base + found.end.position == max(known["commitLogEnd"], base)
            assert is_zero(content, found.end.position, len(content))
    assert offsets == [record["commitLogOffset"] for record in known["records"]]


@pytest.mark.parametrize("store", STORES)
def test_tag_codes_are_those_of_the_consume_queues(store: str) -> None:
    known = messages(store)
    records = {record["commitLogOffset"]: record for record in known["records"]}
    for queue, content in known["consumeQueues"].items():
        for log_offset, size, code in content["units"]:
            assert records[log_offset]["size"] == size
            if not queue.startswith("SCHEDULE_TOPIC_XXXX/"):
                assert tags_code(records[log_offset]["tags"]) == code


@pytest.mark.parametrize("store", STORES)
def test_key_hashes_are_those_of_the_index(store: str) -> None:
    known = messages(store)
    records = {record["commitLogOffset"]: record for record in known["records"]}
    for content in known["index"].values():
        for item in content["items"]:
            record = records[item["phys"]]
            properties = record["properties"]
            keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
            keys.append(f"T#{properties.get('TAGS')}")
            assert item["hash"] in {index_hash(java_hash(f"{record['topic']}#{key}")) for key in keys}


def test_kernel_of_the_case_is_the_one_that_encodes(kernel: Kernel) -> None:
    assert codec.kernel_encode_record is kernel.encode_record  # type: ignore[attr-defined]  # not exported


def units_of(known: dict[str, Any]) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """The units of every queue that Apache wrote, but for those that hold a due time."""
    return {
        (topic, int(number)): [tuple(unit) for unit in content["units"]]
        for queue, content in known["consumeQueues"].items()
        for topic, _, number in [queue.rpartition("/")]
        if topic != "SCHEDULE_TOPIC_XXXX"
    }


def index_of(known: dict[str, Any]) -> list[tuple[int, int]]:
    """Log offset and hash of every key that Apache indexed."""
    return sorted(
        (item["phys"], item["hash"]) for content in known["index"].values() for item in content["items"]
    )


@pytest.mark.parametrize("store", STORES)
def test_kernel_walks_every_record(store: str, kernel: Kernel) -> None:
    walked = []
    for base, content in log_segments(store):
        records, _ = kernel.walk_records(content, 0, len(content), True, base)
        # fmt: off
        for (position, size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, store_ms, body, body_size,
             topic, properties) in records:
            walked.append({
                "topic": topic.decode(), "queueId": queue_id, "queueOffset": queue_offset,
                "commitLogOffset": log_offset, "size": size, "magic": f"{magic:08x}", "bodyCrc": crc,
                "sysFlag": sys_flag, "storeTimestamp": store_ms, "propertiesHex": properties.hex(),
                **body_facts(content[body : body + body_size]),
            })
            assert log_offset == base + position
        # fmt: on
    recorded = messages(store)["records"]
    assert walked == [
        {name: known[name] for name in found} for found, known in zip(walked, recorded, strict=True)
    ]


@pytest.mark.parametrize("store", STORES)
def test_kernel_dispatches_the_units_and_keys_of_apache(store: str, kernel: Kernel) -> None:
    units: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    keys: list[tuple[int, int]] = []
    for base, content in log_segments(store):
        dispatched = kernel.dispatch_records(content, 0, len(content), True, base, KEYS_AND_TAG, len(content))
        assert dispatched is not None
        groups, _, _, _, found = dispatched
        for topic, queue_id, first, raw in groups:
            queue = units.setdefault((topic.decode(), queue_id), [])
            assert first == len(queue)
            queue += iter_unpack(">qiq", raw)
        keys += [(offset, hashed) for hashed, offset, _ in iter_unpack(">iqq", found)]
    known = messages(store)
    expected = units_of(known)
    assert {queue: found for queue, found in units.items() if queue in expected} == expected
    assert {topic for topic, _ in units.keys() - expected.keys()} <= {"SCHEDULE_TOPIC_XXXX"}
    assert sorted(keys) == index_of(known)


@pytest.mark.parametrize("store", STORES)
def test_kernel_encodes_records_units_and_keys_of_apache(store: str, kernel: Kernel) -> None:
    known = messages(store)
    by_offset = {unit[0]: unit for units in units_of(known).values() for unit in units}
    keys: list[tuple[int, int]] = []
    for data, _ in stored_records(store):
        (values,) = kernel.record_values(data, True)
        message, (queue_offset, log_offset, store_ms, store_host, *_) = values[:10], values[10:]
        records, log_offsets, queue_offsets, (unit,), found = kernel.encode_records(
            [message], [0], [queue_offset], log_offset, store_ms, store_host, KEYS_AND_TAG
        )
        assert (records, log_offsets, queue_offsets) == (data, [log_offset], [queue_offset])
        assert kernel.encode_record(message, queue_offset, log_offset, store_ms, store_host) == data
        if log_offset in by_offset:
            assert list(iter_unpack(">qiq", unit)) == [by_offset[log_offset]]
        keys += [(offset, hashed) for hashed, offset, _ in iter_unpack(">iqq", found)]
    assert sorted(keys) == index_of(known)
