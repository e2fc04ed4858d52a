"""Batch bodies."""

from __future__ import annotations

import pytest
from tests.unit.record.messages import HOST, Sent

from orbitmq.codes import SysFlag
from orbitmq.errors import RecordError
from orbitmq.record.batch import encode_batch, is_inner_batch, split_batch, unwrap
from orbitmq.record.codec import decode_record, encode_record

# The first of two entries as Apache's client encodes them.
FIRST = bytes.fromhex(
    "0000002a00000000000000000000000000000002686900125741495401747275650254414753017467 02".replace(" ", "")
)
PROPERTIES = b"WAIT\x01true\x02TAGS\x01tg\x02"


def test_encode_gives_the_bytes_of_apaches_client() -> None:
    assert encode_batch([(0, b"hi", PROPERTIES)]) == FIRST


def test_split_reads_every_entry() -> None:
    entries = [(1, b"one", b""), (-2, b"", b"A\x011\x02"), (3, bytes(5000), PROPERTIES)]
    body = encode_batch(entries)
    assert split_batch(body) == split_batch(memoryview(body)) == entries


@pytest.mark.parametrize("cut", range(len(FIRST)))
def test_split_of_a_cut_batch_is_refused(cut: int) -> None:
    with pytest.raises(RecordError):
        split_batch(FIRST[:cut])
    if cut:
        with pytest.raises(RecordError):
            split_batch(FIRST + FIRST[:cut])


@pytest.mark.parametrize("size", [0, -1, 21, 41, 43, 2**31 - 1, -(2**31)])
def test_split_of_a_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(RecordError):
        split_batch(size.to_bytes(4, "big", signed=True) + FIRST[4:])


@pytest.mark.parametrize("size", [-1, 3, 100, 2**31 - 1, -(2**31)])
def test_split_of_a_wrong_body_size_is_refused(size: int) -> None:
    with pytest.raises(RecordError):
        split_batch(FIRST[:16] + size.to_bytes(4, "big", signed=True) + FIRST[20:])


@pytest.mark.parametrize("entry", [(0, b"x", b"p" * 32768), (2**31, b"x", b"")])
def test_encode_refuses_what_does_not_fit(entry: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(RecordError):
        encode_batch([entry])


def test_unwrap_numbers_the_messages_of_an_inner_batch() -> None:
    inner = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
    body = encode_batch([(1, b"one", b"A\x011\x02"), (2, b"two", b"A\x012\x02")])
    record = decode_record(
        encode_record(Sent(body=body, sys_flag=inner | SysFlag.MULTI_TAGS), 40, 5, 2, HOST)
    )
    assert is_inner_batch(record.sys_flag)
    first, second = unwrap(record)
    assert (first.body, first.flag, first.queue_offset, first.find(b"A")) == (b"one", 1, 40, b"1")
    assert (second.body, second.flag, second.queue_offset, second.find(b"A")) == (b"two", 2, 41, b"2")
    assert first.sys_flag == second.sys_flag == SysFlag.MULTI_TAGS
    assert (second.topic, second.log_offset, second.store_host) == (record.topic, 5, HOST)


@pytest.mark.parametrize("sys_flag", [0, SysFlag.NEED_UNWRAP, SysFlag.INNER_BATCH])
def test_unwrap_leaves_an_ordinary_record_alone(sys_flag: int) -> None:
    record = decode_record(encode_record(Sent(sys_flag=sys_flag), 40, 5, 2, HOST))
    assert unwrap(record) == [record]
