"""The bytes of replication, compared with those of a real Apache pair, and in pieces of every size."""

from __future__ import annotations

import json

import pytest
from tests.golden.data import APACHE

from orbitmq.broker.replication.stream import (
    TRANSFER_BYTES_MAX,
    ReportReader,
    TransferReader,
    encode_greeting,
    encode_hello,
    encode_report,
    encode_safe_end,
    encode_transfer_head,
)
from orbitmq.errors import RemoteProtocolError

GOLDEN = json.loads((APACHE / "ha.json").read_text())


def transfers(reader: TransferReader, data: bytes) -> list[tuple[int, bytes]]:
    return [(offset, bytes(body)) for offset, body in reader.feed(data)]


def test_reports_of_an_apache_slave_are_read_and_written_alike() -> None:
    reports = [bytes.fromhex(entry["hex"]) for entry in GOLDEN if entry["way"] == "slave to master"]
    assert reports
    for report in reports:
        log_end = ReportReader().feed(report)
        assert log_end is not None
        assert encode_report(log_end) == report[-8:]


def test_transfers_of_an_apache_master_are_read_and_written_alike() -> None:
    sent = [bytes.fromhex(entry["hex"]) for entry in GOLDEN if entry["way"] == "master to slave"]
    assert sent
    stream = b"".join(sent)
    found = transfers(TransferReader(), stream)
    assert b"".join(encode_transfer_head(at, len(body)) + body for at, body in found) == stream
    assert any(body for _, body in found)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 7, 8, 12, 13, 64])
def test_pieces_of_any_size_give_the_same_transfers(piece_bytes: int) -> None:
    wanted = [(0, b"abc"), (3, b""), (3, b"x" * 40), (43, b""), (43, b"y")]
    stream = b"".join(encode_transfer_head(at, len(body)) + body for at, body in wanted)
    reader = TransferReader()
    found: list[tuple[int, bytes]] = []
    for start in range(0, len(stream), piece_bytes):
        found += transfers(reader, stream[start : start + piece_bytes])
    assert found == wanted


@pytest.mark.parametrize("piece_bytes", [1, 3, 8, 11, 200])
@pytest.mark.parametrize("greeting", [b"", encode_greeting(3, 9)])
def test_hello_and_greeting_come_before_the_first_report(piece_bytes: int, greeting: bytes) -> None:
    fields = {"AccessKey": "inner", "Signature": "x" * 28, "nonce": "0" * 32}
    stream = encode_hello(fields) + greeting + encode_report(7)
    reader = ReportReader()
    found = [reader.feed(stream[at : at + piece_bytes]) for at in range(0, len(stream), piece_bytes)]
    assert [end for end in found if end is not None] == [7]
    assert json.loads(reader.hello) == fields
    assert reader.greeting == ((3, 9) if greeting else None)


@pytest.mark.parametrize("size", [0, 4097, 0xFFFFFFFF])
def test_hello_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="greeting"):
        ReportReader().feed(encode_hello({})[:4] + size.to_bytes(4, "big"))


def test_second_hello_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        ReportReader().feed(encode_hello({}) + encode_hello({}))


@pytest.mark.parametrize("piece_bytes", [1, 3, 5, 8, 11])
def test_newest_whole_report_counts(piece_bytes: int) -> None:
    stream = b"".join(encode_report(end) for end in (0, 7, 1 << 40))
    reader = ReportReader()
    found = [reader.feed(stream[at : at + piece_bytes]) for at in range(0, len(stream), piece_bytes)]
    seen = [end for end in found if end is not None]
    assert seen[-1] == 1 << 40
    assert seen == sorted(seen)
    assert ReportReader().feed(stream) == 1 << 40
    assert ReportReader().feed(b"\0" * 7) is None


@pytest.mark.parametrize(
    "head",
    [
        encode_transfer_head(-1, 0),
        encode_transfer_head(0, -1),
        encode_transfer_head(0, TRANSFER_BYTES_MAX + 1),
        b"\xff" * 12,
    ],
)
def test_numbers_no_master_sends_are_refused(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        transfers(TransferReader(), head)


@pytest.mark.parametrize("piece_bytes", [1, 5, 12, 100])
def test_members_of_a_group_are_told_what_is_safe_between_transfers(piece_bytes: int) -> None:
    stream = encode_safe_end(0) + encode_transfer_head(0, 3) + b"abc" + encode_safe_end(3)
    stream += encode_transfer_head(3, 0)
    reader = TransferReader(for_member=True)
    assert reader.safe_end == -1
    found: list[tuple[int, bytes]] = []
    for start in range(0, len(stream), piece_bytes):
        found += transfers(reader, stream[start : start + piece_bytes])
    assert (found, reader.safe_end) == ([(0, b"abc"), (3, b"")], 3)
    with pytest.raises(RemoteProtocolError):
        transfers(TransferReader(), encode_safe_end(3))
    with pytest.raises(RemoteProtocolError):
        transfers(reader, encode_transfer_head(-5, 1))


def test_report_below_zero_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        ReportReader().feed(encode_report(-1))
