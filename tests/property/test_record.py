"""Whatever the bytes: round trips, and only the declared error."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.record.messages import HOST, HOST_V6, Sent
from tests.unit.record.test_hashing import by_definition

from orbitmq.errors import RecordError
from orbitmq.record.batch import encode_batch, split_batch, unwrap
from orbitmq.record.codec import decode_record, decode_records, encode_record, encode_records
from orbitmq.record.compression import Compression, compress_body, decompress_body
from orbitmq.record.hashing import java_hash, java_hash_bytes
from orbitmq.record.ids import offset_message_id, parse_offset_message_id, parse_unique_key
from orbitmq.record.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
    set_property,
)
from orbitmq.record.scan import EndKind, scan

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = (
    st.sampled_from([HOST, HOST_V6]) | st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
)
NAMES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)
VALUES = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1, max_size=40)
PROPERTY_BYTES = st.lists(st.sampled_from([b"TAGS", b"KEYS", b"a", b"\x01", b"\x02", b"\x02\x01", b"x"])).map(
    b"".join
)
TOPICS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
MESSAGES = st.builds(
    Sent,
    topic=TOPICS,
    queue_id=INT32,
    body=st.binary(max_size=300),
    properties=(st.binary(max_size=300) | PROPERTY_BYTES).filter(lambda raw: not raw.endswith(b"\0")),
    born_timestamp_ms=INT64,
    born_host=HOSTS,
    flag=INT32,
    sys_flag=st.integers(0, 0x7FF).map(lambda flag: flag & ~0x31),
    reconsume_times=INT32,
    prepared_offset=INT64,
)


@given(MESSAGES, INT64, INT64, INT64, HOSTS)
def test_record_reads_back_and_encodes_to_the_same_bytes(
    message: Sent, queue_offset: int, log_offset: int, stored_ms: int, store_host: bytes
) -> None:
    encoded = encode_record(message, queue_offset, log_offset, stored_ms, store_host)
    record = decode_record(encoded)
    for name in message.__struct_fields__:
        if name != "sys_flag":
            assert getattr(record, name) == getattr(message, name)
    assert record.sys_flag & ~0x30 == message.sys_flag
    assert (record.queue_offset, record.log_offset, record.store_timestamp_ms) == (
        queue_offset,
        log_offset,
        stored_ms,
    )
    assert encode_record(record, queue_offset, log_offset, stored_ms, record.store_host) == encoded


@given(st.lists(MESSAGES, max_size=8), st.integers(0, 2**40), HOSTS)
def test_records_lie_back_to_back_for_the_decoder_and_the_scan(
    messages: list[Sent], log_offset: int, host: bytes
) -> None:
    data = b"".join(encode_records(messages, range(len(messages)), log_offset, 7, host))
    records = decode_records(data)
    found = scan(data, 0, len(data), log_base=log_offset)
    scanned = list(found)
    assert found.end is not None
    assert found.end.kind is EndKind.LIMIT
    assert [(r.size, r.queue_offset, r.log_offset, r.topic.decode()) for r in scanned] == [
        (r.size, r.queue_offset, r.log_offset, r.topic) for r in records
    ]
    assert [r.body for r in records] == [m.body for m in messages]


def mutated(data: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    damaged = bytearray(data)
    for at, value in changes:
        if damaged:
            damaged[at % len(damaged)] = value
    return bytes(damaged[: len(damaged) - cut] if cut < len(damaged) else damaged)


CHANGES = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6)


@settings(max_examples=300)
@given(MESSAGES, HOSTS, CHANGES, st.integers(0, 40), st.booleans(), st.booleans())
def test_decoders_of_damaged_records_raise_only_the_declared_error(
    message: Sent, host: bytes, changes: list[tuple[int, int]], cut: int, crc: bool, inflate: bool
) -> None:
    data = mutated(encode_record(message, 1, 2, 3, host), changes, cut)
    for buffer in (data, memoryview(data)):
        try:
            record = decode_record(buffer, check_crc=crc, decompress=inflate)
        except RecordError:
            continue
        record.property_map()
        try:
            unwrap(record)
        except RecordError:
            pass
    found = scan(data, 0, len(data), check_crc=crc)
    scanned = list(found)
    assert found.end is not None
    assert found.end.position == sum(record.size for record in scanned)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_decoders_of_random_bytes_raise_only_the_declared_error(data: bytes) -> None:
    for decode in (decode_record, decode_records, split_batch):
        decoder: Any = decode
        try:
            decoder(data)
        except RecordError:
            pass
    list(scan(data, 0, len(data)))
    decode_properties(data)
    for text in (data.hex(), data.decode("latin-1")):
        for parse in (parse_offset_message_id, parse_unique_key):
            parser: Any = parse
            try:
                parser(text)
            except RecordError:
                pass


@given(st.binary(max_size=200) | st.binary(max_size=60).map(compress_body), st.integers(0, 7), CHANGES)
def test_inflating_anything_raises_only_the_declared_error(
    data: bytes, kind: int, changes: list[tuple[int, int]]
) -> None:
    try:
        assert len(decompress_body(mutated(data, changes, 0), kind << 8, 5000)) <= 5000
    except RecordError:
        pass


@given(st.binary(max_size=2000), st.sampled_from(Compression))
def test_compressed_bodies_read_back(body: bytes, compression: Compression) -> None:
    assert decompress_body(compress_body(body, compression), compression) == body


@given(st.lists(st.tuples(INT32, st.binary(max_size=50), st.binary(max_size=50)), min_size=1, max_size=10))
def test_batches_read_back(entries: list[tuple[int, bytes, bytes]]) -> None:
    assert split_batch(encode_batch(entries)) == entries


@given(
    st.lists(st.tuples(INT32, st.binary(max_size=20), st.binary(max_size=20)), min_size=1, max_size=4),
    CHANGES,
)
def test_split_of_damaged_batches_raises_only_the_declared_error(
    entries: list[tuple[int, bytes, bytes]], changes: list[tuple[int, int]]
) -> None:
    try:
        split_batch(mutated(encode_batch(entries), changes, 0))
    except RecordError:
        pass


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_properties_read_back(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == decode_properties(raw[:-1]) == properties
    for name, value in properties.items():
        assert find_property(raw, name.encode()) == value.encode()


@given(PROPERTY_BYTES | st.binary(max_size=60), st.sampled_from([b"TAGS", b"KEYS", b"a", b"x", b"xa"]))
def test_find_set_and_remove_agree_with_the_parser_on_any_bytes(raw: bytes, name: bytes) -> None:
    parsed = decode_properties(raw)
    found = find_property(raw, name)
    assert parsed.get(name.decode()) == (None if found is None else found.decode("utf-8", "replace"))
    others = {key: value for key, value in parsed.items() if key != name.decode()}
    assert decode_properties(remove_property(raw, name)) == others
    assert decode_properties(set_property(raw, name, b"new")) == {**others, name.decode(): "new"}
    assert decode_properties(set_property(raw, name, b"")) == others


@given(st.text(max_size=700), st.binary(max_size=60))
def test_java_hash_follows_its_definition(text: str, rest: bytes) -> None:
    assert java_hash(text) == by_definition(text)
    assert java_hash_bytes(rest) == by_definition(rest.decode("utf-8", "replace"))


@given(HOSTS, INT64)
def test_offset_ids_read_back(host: bytes, log_offset: int) -> None:
    assert parse_offset_message_id(offset_message_id(host, log_offset)).log_offset == log_offset
