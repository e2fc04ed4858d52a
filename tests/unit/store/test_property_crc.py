"""``enabledAppendPropCRC``: a checksum of the whole record, in the bytes Apache 5.5.0 writes."""

from __future__ import annotations

import logging

import pytest
from tests.unit.store.support import HOST, ROOT, START_MS, bodies, message, open_store

from orbitmq.errors import CorruptionError
from orbitmq.kernel import encode_send_answers, sends_of
from orbitmq.record.batch import encode_batch
from orbitmq.record.codec import decode_record
from orbitmq.record.property_crc import is_right, reserve, seal
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import FrameDecoder

COUNT = 5
LOG = f"{ROOT}/commitlog/{0:020d}"
FROM_APACHE = {
    b"": b"__CRC32#\x010000000000\x02",
    b"a": b"__CRC32#\x019522786571\x02",
    b"record of a message": b"__CRC32#\x010844344112\x02",
    b"123456789": b"__CRC32#\x014166924721\x02",
}
"""Bytes in front of the property, and what ``MessageDecoder.createCrc32(buffer, UtilAll.crc32(bytes))`` wrote."""


def with_crc(fs: FaultyFileSystem | None = None) -> MessageStore:
    return open_store(fs or FaultyFileSystem(), ManualClock(START_MS), property_crc_enabled=True)


def written() -> tuple[FaultyFileSystem, list[tuple[int, int]]]:
    """Returns the disk of a store that was closed, and log offset and size of each record."""
    fs = FaultyFileSystem()
    store = with_crc(fs)
    records = [store.append(message(number)) for number in range(COUNT)]
    store.close()
    return fs.kill(), [(one.log_offset, one.size) for one in records]


@pytest.mark.parametrize("covered", FROM_APACHE)
def test_property_has_the_bytes_of_apache(covered: bytes) -> None:
    assert is_right(covered + FROM_APACHE[covered])
    assert not is_right(covered + b"x" + FROM_APACHE[covered])
    size = 4 + len(covered) + 20
    record = size.to_bytes(4, "big") + covered + reserve(b"")
    assert is_right(seal(record * 2)[size:])
    assert seal(record) != record


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"", b""),
        (b"A\x011", b"A\x011\x02"),
        (b"A\x011\x02", b"A\x011\x02"),
        (b"__CRC32#\x010000000001\x02A\x011", b"A\x011\x02"),
    ],
)
def test_property_is_the_last_and_replaces_one_of_the_client(before: bytes, kept: bytes) -> None:
    assert reserve(before) == kept + b"__CRC32#\x010000000000\x02"


def test_single_messages_and_batches_get_the_checksum() -> None:
    fs = FaultyFileSystem()
    store = with_crc(fs)
    body = encode_batch([(0, b"one", b"A\x011"), (0, b"two", b"")])
    singles_and_batch = [message(0), message(1)._replace(body=body), message(2)]
    turn = [
        sends_of(one, is_batch, (0, 1, 0), True, one.queue_id, b"", "")
        for one, is_batch in zip(singles_and_batch, (False, True, False), strict=True)
    ]
    assert [count for _, (count, _, _) in store.append_sends(turn)] == [1, 2, 1]
    (answer,) = FrameDecoder().feed(encode_send_answers(turn[1:2], 0, None, HOST, "", True))
    assert (answer.ext_fields["queueOffset"], answer.ext_fields["msgId"].count(",")) == ("1", 1)
    assert bodies(store) == [b"body 0", b"one", b"two", b"body 2"]
    records = [bytes(each) for each in store.scan(0)]
    assert all(b"__CRC32#\x01" in record[-20:] and is_right(record) for record in records)
    assert decode_record(records[1]).property_map()["A"] == "1"
    assert bodies(with_crc(fs.kill())) == [b"body 0", b"one", b"two", b"body 2"]


def test_option_off_stores_no_checksum() -> None:
    store = open_store(FaultyFileSystem(), ManualClock(START_MS))
    store.append(message(0))
    assert b"__CRC32#" not in bytes(next(store.scan(0)))


def test_every_flipped_bit_of_an_old_record_is_found_by_readers(caplog: pytest.LogCaptureFixture) -> None:
    """The bytes of the property itself are the exception: a record without it is accepted."""
    caplog.set_level(logging.CRITICAL)
    fs, records = written()
    log_offset, size = records[1]
    whole = [b"body %d" % number for number in range(COUNT) if number != 1]
    for position in range(size - 20):
        damaged = fs.kill()
        store = with_crc(damaged)
        damaged.flip(LOG, log_offset + position, 1 << (position % 8))
        assert bodies(store) == whole, position
        assert store.record_at(log_offset) is None, position
        assert store.integrity.damaged_count, position


def test_flipped_property_is_refused_by_a_start_and_by_a_slave() -> None:
    fs, records = written()
    log_offset, size = records[1]
    original = fs.content(LOG)[: records[-1][0] + records[-1][1]]
    fs.flip(LOG, log_offset + size - 30, 1)
    with pytest.raises(CorruptionError, match=f"damaged at offset {log_offset} .*__CRC32#"):
        with_crc(fs)
    assert bodies(open_store(fs.kill())) != [], "without the option only bodies are verified"
    slave = with_crc()
    with pytest.raises(CorruptionError, match="__CRC32#"):
        slave.append_raw(0, fs.content(LOG)[: len(original)])
    assert slave.max_log_offset == log_offset
    slave.append_raw(log_offset, original[log_offset:])
    assert len(bodies(slave)) == COUNT


def test_scrubber_finds_a_flipped_property() -> None:
    fs, records = written()
    store = with_crc(fs)
    fs.flip(LOG, records[1][0] + records[1][1] - 30, 1)
    while (piece := store.scrubber.next_piece()) is not None:
        store.scrubber.check(piece, store.scrubber.read_piece(fs, piece))
    assert store.scrubber.damage_count == 1
