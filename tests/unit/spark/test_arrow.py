"""Records to Arrow columns: equal to the plain decoder, row by row, for any messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.codes import SysFlag
from orbitmq.errors import RecordError
from orbitmq.record.batch import encode_batch
from orbitmq.record.codec import decode_record, encode_record
from orbitmq.record.compression import Compression, compress_body
from orbitmq.record.hosts import encode_host, host_text
from orbitmq.spark.arrow import decode_records, expand_batches, read_numbers, scan_records
from orbitmq.spark.schema import COLUMNS, arrow_schema

V4 = encode_host("127.0.0.1", 10911)
V6 = encode_host("fe80::1", 10911)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record(number: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 3,
        "body": b"body",
        "properties": b"KEYS\x01k1\x02TAGS\x01a\x02UNIQ_KEY\x017F0000010000\x02",
        "born_timestamp_ms": 1_700_000_000_123 + number,
        "born_host": V4,
        "flag": 5,
        "sys_flag": 0,
        "reconsume_times": 2,
        "prepared_offset": 0,
        "store_host": V4,
    } | changes
    return encode_record(
        SimpleNamespace(**fields), number, 1000 + number, 1_700_000_001_000, fields["store_host"]
    )


def row_of(record_bytes: bytes, broker: str | None) -> dict[str, Any]:
    """Returns the expected row, from the plain decoder."""
    plain = decode_record(record_bytes)
    whole = decode_record(record_bytes, decompress=True)
    properties = plain.property_map()
    return {
        "topic": plain.topic,
        "broker": broker,
        "queue_id": plain.queue_id,
        "queue_offset": plain.queue_offset,
        "log_offset": plain.log_offset,
        "msg_id": properties.get("UNIQ_KEY") or plain.offset_message_id,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": whole.body,
        "properties": properties,
        "born_timestamp": EPOCH + timedelta(milliseconds=plain.born_timestamp_ms),
        "store_timestamp": EPOCH + timedelta(milliseconds=plain.store_timestamp_ms),
        "born_host": host_text(plain.born_host),
        "store_host": host_text(plain.store_host),
        "reconsume_times": plain.reconsume_times,
        "sys_flag": plain.sys_flag,
        "flag": plain.flag,
    }


def rows(records: list[bytes], broker: str | None = "broker-a") -> list[dict[str, Any]]:
    buffer = b"".join(records)
    starts = scan_records(buffer, 0, len(buffer))
    assert len(starts) == len(records)
    batch = decode_records(buffer, starts, broker=broker, columns=COLUMNS, verify_crc=True)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema())
    found = batch.to_pylist()
    for row in found:
        pairs = row["properties"]
        row["properties"] = dict(pairs)
        assert len(row["properties"]) == len(pairs), "a map of Spark must not have a key twice"
    return found  # type: ignore[no-any-return]  # pyarrow has no types of its own


_PAIRS = st.sampled_from(
    [
        b"KEYS\x01a b",
        b"TAGS\x01t",
        b"TAGS\x01other",
        b"UNIQ_KEY\x01ABC",
        b"value\x01with\x01marks",
        b"\x01no name",
        b"no value\x01",
        b"no mark",
        b"",
        b"long-name-A\x01x",
        b"long-name-B\x01y",
        b"long-name-A\x01z",
        "größe\x01ü".encode(),
        b"broken\x01\xff\xfe",
        b"\xe2\x82\x01cut",
    ]
)


@st.composite
def records(draw: st.DrawFn, number: int) -> bytes:
    text = b"\x02".join(draw(st.lists(_PAIRS, max_size=6))) + draw(st.sampled_from([b"", b"\x02"]))
    body, flags = draw(st.binary(max_size=60)), 0
    compression = draw(st.sampled_from([None, None, *Compression]))
    if compression is not None:
        body, flags = compress_body(body, compression), int(SysFlag.COMPRESSED) | compression
    return record(
        number,
        properties=text,
        body=body,
        sys_flag=flags,
        topic="t" * draw(st.sampled_from([1, 127, 128, 255])),
        born_host=draw(st.sampled_from([V4, V6, encode_host("10.0.0.9", 0)])),
        store_host=draw(st.sampled_from([V4, V6])),
    )


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, max_examples=60)
def test_columns_of_any_records_equal_the_plain_decoder(data: st.DataObject) -> None:
    made = [data.draw(records(number)) for number in range(data.draw(st.integers(1, 8)))]
    assert rows(made) == [row_of(one, "broker-a") for one in made]


def test_columns_of_many_like_records_equal_the_plain_decoder() -> None:
    # Enough of them for the scan to process whole runs.
    made = [record(number, body=b"%08d" % number) for number in range(1500)]
    made += [record(9000, body=b"longer than the others")]
    made += [record(number, body=b"%08d" % number) for number in range(300)]
    assert rows(made, None) == [row_of(one, None) for one in made]


def test_properties_more_than_are_compared_pair_by_pair_keep_the_later_of_one_name() -> None:
    text = b"".join(b"name%d\x01%d\x02" % (number % 20, number) for number in range(40))
    [row] = rows([record(properties=text)])
    assert row["properties"] == {f"name{number}": str(number + 20) for number in range(20)}


def test_columns_wanted_alone_are_the_same_in_the_order_asked() -> None:
    buffer = record(7) + record(8, sys_flag=0, properties=b"")
    starts = scan_records(buffer, 0, len(buffer))
    everything = decode_records(buffer, starts, broker="b", columns=COLUMNS, verify_crc=False)
    for name in COLUMNS:
        batch = decode_records(buffer, starts, broker="b", columns=[name], verify_crc=False)
        assert batch.column(0).equals(everything.column(COLUMNS.index(name)))
    pair = decode_records(buffer, starts, broker="b", columns=["body", "topic"], verify_crc=False)
    assert pair.schema.names == ["body", "topic"]


def test_no_records_give_an_empty_batch() -> None:
    batch = decode_records(b"", np.array([], np.int64), broker=None, columns=COLUMNS, verify_crc=True)
    assert batch.num_rows == 0
    assert batch.schema.equals(arrow_schema())


def test_scan_stops_before_what_is_no_whole_record() -> None:
    whole = record(1) + record(2)
    for tail in (b"\0" * 200, b"\x00\x00\x00\x64\xcb\xd4\x31\x94" + b"\0" * 100, record(3)[:-1], b"\x01"):
        starts = scan_records(whole + tail, 0, len(whole + tail))
        assert starts.tolist() == [0, len(record(1))]
    assert scan_records(whole, 0, len(whole) - 1).tolist() == [0]


def test_a_body_that_changed_is_found_by_its_checksum_when_asked() -> None:
    buffer = bytearray(record(1) + record(2, body=b"another body"))
    buffer[-len(record(2, body=b"another body")) + 90] ^= 1
    starts = scan_records(buffer, 0, len(buffer))
    decode_records(buffer, starts, broker=None, columns=["body"], verify_crc=False)
    with pytest.raises(RecordError, match="record at log offset 1002"):
        decode_records(buffer, starts, broker=None, columns=["body"], verify_crc=True)


@pytest.mark.slow
def test_any_flipped_byte_is_an_error_of_the_record_or_no_error() -> None:
    one = record(1, born_host=V6, body=compress_body(b"x" * 40), sys_flag=int(SysFlag.COMPRESSED))
    buffer = one + record(2)
    starts = np.array([0, len(one)], np.int64)
    refused = 0
    for place in range(len(buffer)):
        for bit in (1, 0x80):
            broken = bytearray(buffer)
            broken[place] ^= bit
            try:
                decode_records(broken, starts, broker=None, columns=COLUMNS, verify_crc=True)
            except RecordError:
                refused += 1
    assert refused > 80  # sizes, magic, checksums and bodies; the other fields are unprotected


@pytest.mark.parametrize("starts", [[-1], [10_000], [0, 50], [5]])
def test_starts_that_are_none_are_refused(starts: list[int]) -> None:
    buffer = record(1) + record(2)
    with pytest.raises(RecordError):
        decode_records(buffer, np.array(starts, np.int64), broker=None, columns=COLUMNS, verify_crc=False)


def test_a_record_that_holds_several_messages_becomes_several() -> None:
    row = encode_batch([(0, b"one", b"TAGS\x01a\x02"), (1, b"two", b"")])
    flags = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
    buffer = record(10, body=row, sys_flag=flags)
    expanded = expand_batches(buffer, scan_records(buffer, 0, len(buffer)))
    starts = scan_records(expanded, 0, len(expanded))
    assert read_numbers(expanded, starts, "queue_offset").tolist() == [10, 11]
    batch = decode_records(expanded, starts, broker=None, columns=["body", "tags"], verify_crc=True)
    assert batch.to_pylist() == [{"body": b"one", "tags": "a"}, {"body": b"two", "tags": None}]
