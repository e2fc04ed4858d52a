"""The texts of POP: both kernels parse the same as the typed readers, and write the same as Apache."""

from __future__ import annotations

import json

import pytest
from tests.apache.kernels import Kernel

from orbitmq.broker.pop.checkpoints import Checkpoint
from orbitmq.broker.pop.receipts import parse_receipt
from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError, ServerError
from orbitmq.kernel.layout import SLICE
from orbitmq.wire.frame import Frame, FrameDecoder, encode_binary_fields
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.pop import AckMessageRequest

FIELDS = {
    "consumerGroup": "G_popA",
    "topic": "PopGoldA",
    "queueId": "3",
    "extraInfo": "5 1794814731195 15000 7 0 broker-a 3 8",
    "offset": "8",
    "bname": "broker-a",
}
READ = (("PopGoldA", 3), ("PopGoldA", "G_popA", 3, 5, 1794814731195), 8, 7)


def both_forms(fields: dict[str, str]) -> list[tuple[bytes, bool]]:
    return [(encode_binary_fields(fields), True), (json.dumps(fields).encode(), False)]


def typed(raw: bytes, *, is_binary: bool) -> object:
    frame = Frame(code=200051, opaque=1, serialize_type=SerializeType(is_binary), ext_raw=raw)
    try:
        request = decode_header(AckMessageRequest, frame)
        receipt = parse_receipt(request.extra_info)
    except (HeaderFieldError, ServerError):
        return None
    key = (request.topic, request.consumer_group, request.queue_id, receipt.start_offset, receipt.pop_time_ms)
    return (request.topic, request.queue_id), key, request.offset, receipt.revive_queue_id


def test_acknowledgement_is_read_in_both_forms(kernel: Kernel) -> None:
    for raw, is_binary in both_forms(FIELDS):
        assert kernel.ack_fields(raw, is_binary) == READ == typed(raw, is_binary=is_binary)


def test_acknowledgement_cut_or_damaged_anywhere_is_read_alike(kernel: Kernel) -> None:
    for raw, is_binary in both_forms(FIELDS | {"lo": "true"}):
        for position in range(len(raw)):
            for byte in (b"", b"\x00", b" ", b'"', b"0", b"-", b"\xff"):
                changed = raw[:position] + byte + raw[position + len(byte) :] if byte else raw[:position]
                found = kernel.ack_fields(changed, is_binary)
                assert found is None or found == typed(changed, is_binary=is_binary), changed


@pytest.mark.parametrize(
    "changes",
    [
        {"extraInfo": ""},
        {"extraInfo": "5 1794814731195 15000 7 0"},
        {"extraInfo": "5 1794814731195 15000 7 0x b"},
        {"extraInfo": "-5 1794814731195 15000 7 0 b 0 0"},
        {"extraInfo": "9999999999999999999 1 1 1 0 b 0 0"},
        {"extraInfo": "\u0663 1 1 1 0 b 0 0"},
        {"offset": "x"},
        {"queueId": "2147483648"},
        {"nsd": "maybe"},
        {"topic": None},
    ],
)
def test_unusual_acknowledgement_is_left_to_the_typed_reader_or_read_alike(
    kernel: Kernel, changes: dict[str, str | None]
) -> None:
    fields = {name: value for name, value in (FIELDS | changes).items() if value is not None}
    for raw, is_binary in both_forms(fields):
        found = kernel.ack_fields(raw, is_binary)
        assert found is None or found == typed(raw, is_binary=is_binary)


def test_answer_has_the_fields_and_records_of_every_queue(kernel: Kernel) -> None:
    pieces = [(b"-first-second", SLICE.pack(1, 6)), (memoryview(b"third"), SLICE.pack(0, 5))]
    parts = [(0, 2, 10, range(10, 13)), (1, 0, 5, [6, 8])]
    answer = kernel.pop_answer(7, 0, "FOUND", (60_000, 4, 1794814731195, 3), None, parts, pieces)
    assert answer[8:-10] == (
        b'{"code":0,"extFields":{"invisibleTime":"60000","startOffsetInfo":"0 2 10;1 0 5","restNum":"4",'
        b'"popTime":"1794814731195","reviveQid":"3","msgOffsetInfo":"0 2 10,11,12;1 0 6,8"},"flag":1,'
        b'"language":"PYTHON","opaque":7,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":513}'
    )
    assert answer[-10:] == b"firstthird"
    [frame] = FrameDecoder().feed(answer)
    assert frame.body == b"firstthird"


@pytest.mark.parametrize("counts", ["", "0 0 0;0 1 0"])
def test_ordered_answer_has_order_counts_even_without_messages(kernel: Kernel, counts: str) -> None:
    [frame] = FrameDecoder().feed(
        kernel.pop_answer(7, 210, "NO_MESSAGE_IN_QUEUE", (1, 2, 3, 999), counts, (), ())
    )
    assert list(frame.ext_fields) == [
        "invisibleTime",
        "startOffsetInfo",
        "restNum",
        "orderCountInfo",
        "popTime",
        "reviveQid",
        "msgOffsetInfo",
    ]
    assert (frame.ext_fields["orderCountInfo"], frame.ext_fields["msgOffsetInfo"]) == (counts, "")


def handed_out(**changes: object) -> Checkpoint:
    fields = {
        "topic": "PopGoldA",
        "group": "G_popA",
        "queue_id": 0,
        "start_offset": 0,
        "pop_time_ms": 1794814711833,
        "invisible_ms": 15_000,
        "revive_queue_id": 1,
        "offsets": range(5),
    }
    return Checkpoint(**(fields | changes))  # type: ignore[arg-type]  # each field has its own type


def test_checkpoints_are_written_as_apache_writes_them(kernel: Kernel) -> None:
    asked = [
        handed_out(),
        handed_out(
            offsets=[7, 9, 20], start_offset=5, acked=0b101, suspended=True, topic='q"\n', group="\u4e2d"
        ),
        handed_out(offsets=range(32), acked=2**32 - 1),
    ]
    bodies = kernel.checkpoint_bodies(asked, "broker-a")
    assert bodies[0] == (
        b'{"bm":0,"bn":"broker-a","c":"G_popA","d":[0,1,2,3,4],"it":15000,"n":5,"pt":1794814711833,"q":0,'
        b'"reviveTime":1794814726833,"ro":0,"so":0,"sp":false,"t":"PopGoldA"}'
    )
    gaps, full = map(json.loads, bodies[1:])
    assert (gaps["d"], gaps["n"], gaps["bm"], gaps["sp"]) == ([2, 4, 15], 3, 5, True)
    assert (gaps["t"], gaps["c"]) == ('q"\n', "\u4e2d")
    assert full["bm"] == -1
    assert kernel.checkpoint_bodies([], "b") == []


def test_acknowledgements_are_written_as_apache_writes_them(kernel: Kernel) -> None:
    one = handed_out(offsets=range(5))
    assert kernel.ack_bodies([(one, 0b1), (one, 0b11110), (one, 0), (one, 1 << 100)], "broker-a") == [
        (1, b'{"ao":0,"bn":"broker-a","c":"G_popA","pt":1794814711833,"q":0,"so":0,"t":"PopGoldA"}'),
        (
            4,
            b'{"ao":-1,"aol":[1,2,3,4],"bn":"broker-a","c":"G_popA","pt":1794814711833,"q":0,"so":0,'
            b'"t":"PopGoldA"}',
        ),
        (0, b""),
        (0, b""),
    ]
    with pytest.raises(OverflowError):
        kernel.checkpoint_bodies([handed_out(pop_time_ms=2**63 - 1)], "broker-a")
    with pytest.raises(OverflowError):
        kernel.ack_bodies([(one, 1 << 128)], "broker-a")
