"""The fields of a pull and its response: the kernels read and write the same as the typed reader and writer."""

from __future__ import annotations

import json

import pytest
from tests.apache.kernels import Kernel
from tests.unit.wire.recorded import recorded_frames

from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.kernel import PullFields
from orbitmq.record.codec import Record, decode_record, encode_record
from orbitmq.requests import RequestCode
from orbitmq.store.types import NewMessage
from orbitmq.wire.frame import Frame, encode_binary_fields
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.consume import PullMessageRequest, PullMessageResponse
from orbitmq.wire.pulls import read_pull

FIELDS = {
    "consumerGroup": "readers",
    "topic": "T",
    "queueId": "3",
    "queueOffset": "12345",
    "maxMsgNums": "32",
    "sysFlag": "3",
    "commitOffset": "12300",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1794773003669",
    "expressionType": "TAG",
    "maxMsgBytes": "262144",
    "bname": "broker-a",
}
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
HOST_V6 = bytes(range(16)) + b"\0\0\x2a\x9f"
ROCKETMQ, JSON = SerializeType.ROCKETMQ, SerializeType.JSON


def typed(raw: bytes, form: SerializeType) -> PullFields | None:
    frame = Frame(code=11, opaque=1, serialize_type=form, ext_raw=raw)
    try:
        request = decode_header(PullMessageRequest, frame)
    except HeaderFieldError:
        return None
    return PullFields(*(getattr(request, name) for name in PullFields.__struct_fields__))


def assert_read_alike(
    kernel: Kernel, raw: bytes, *, form: SerializeType = ROCKETMQ, certain: bool = False
) -> None:
    """Checks that the kernel reads the same as the typed reader, or falls back to it; ``certain``: it must
    read it.
    """
    values = kernel.pull_fields(raw, form == ROCKETMQ)
    if certain:
        assert values is not None
    if values is not None:
        assert values == typed(raw, form)


def both_forms(fields: dict[str, str]) -> list[tuple[bytes, SerializeType]]:
    return [(encode_binary_fields(fields), ROCKETMQ), (json.dumps(fields).encode(), JSON)]


def test_recorded_pulls_of_every_client_are_read(kernel: Kernel) -> None:
    found = 0
    for recorded in recorded_frames():
        if recorded.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE) and (
            not recorded.is_response
        ):
            form = SerializeType(recorded.frame.serialize_type)
            assert_read_alike(kernel, recorded.frame.ext_raw, form=form, certain=True)
            assert recorded.frame.pull == typed(recorded.frame.ext_raw, form)
            assert read_pull(recorded.frame) == recorded.frame.pull
            found += 1
    assert found > 20


def test_fields_in_any_order_or_missing_are_read_alike(kernel: Kernel) -> None:
    for name in FIELDS:
        rest = {key: value for key, value in FIELDS.items() if key != name}
        for fields in (rest | {name: FIELDS[name]}, {name: FIELDS[name]} | rest):
            for raw, form in both_forms(fields):
                assert_read_alike(kernel, raw, form=form, certain=True)
        for raw, form in both_forms(rest):
            assert_read_alike(kernel, raw, form=form)
        for value in ("9", "", "x"):
            # Given twice: the later one counts, and the earlier may be anything.
            twice = encode_binary_fields(FIELDS) + encode_binary_fields({name: value})
            assert_read_alike(kernel, twice)
            assert_read_alike(
                kernel, encode_binary_fields({name: value}) + encode_binary_fields(FIELDS), certain=True
            )
            first = json.dumps({name: value}).encode()[:-1] + b"," + json.dumps(FIELDS).encode()[1:]
            assert_read_alike(kernel, first, form=JSON, certain=True)


@pytest.mark.parametrize(
    "name", ["queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "maxMsgBytes"]
)
@pytest.mark.parametrize(
    "value",
    [
        *(
            "-1",
            "",
            "x",
            "1.5",
            "00012",
            "2147483648",
            "-2147483649",
            "9223372036854775807",
            "9223372036854775808",
        ),
        *("+1", "+", " 1", "1_0", "\u0663", "999999999999999999", "-0", "1" * 50),
    ],
)
def test_odd_numbers_are_read_alike(kernel: Kernel, name: str, value: str) -> None:
    for raw, form in both_forms(FIELDS | {name: value}):
        assert_read_alike(kernel, raw, form=form)
        frame = Frame(code=11, opaque=1, serialize_type=form, ext_raw=raw)
        expected = typed(raw, form)
        if expected is not None:
            assert read_pull(frame) == expected
        else:
            with pytest.raises(HeaderFieldError):
                read_pull(frame)


@pytest.mark.parametrize("name", ["lo", "nsd", "oway", "requestSource"])
@pytest.mark.parametrize("value", ["true", "false", "TRUE", "1", "x", ""])
def test_fields_nobody_asks_for_are_checked_all_the_same(kernel: Kernel, name: str, value: str) -> None:
    for raw, form in both_forms(FIELDS | {name: value}):
        assert_read_alike(kernel, raw, form=form)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"{}",
        b"{ }",
        b"[]",
        b'{"a":1}',
        b'{"a":"1",}',
        b'{"a":"1"}}',
        b'{"a" "1"}',
        b'{"a":"\\u0041"}',
        b'{"a":"\x01"}',
        b'{"a":"\xff"}',
    ],
)
def test_other_json_is_left_to_the_typed_reader(kernel: Kernel, text: bytes) -> None:
    assert kernel.pull_fields(text, False) is None


def test_blanks_in_json_are_passed_over(kernel: Kernel) -> None:
    raw = b" " + json.dumps(FIELDS, indent=2).encode().replace(b":", b"\t:\r\n") + b"\n "
    assert_read_alike(kernel, raw, form=JSON, certain=True)


def test_region_cut_or_damaged_anywhere_is_read_alike(kernel: Kernel) -> None:
    for raw, form in both_forms(FIELDS):
        assert_read_alike(kernel, raw, form=form, certain=True)
        for position in range(len(raw)):
            assert_read_alike(kernel, raw[:position], form=form)
            for byte in (0x00, 0x01, 0x22, 0x30, 0xFF):
                assert_read_alike(kernel, raw[:position] + bytes([byte]) + raw[position + 1 :], form=form)


def test_recorded_answers_are_read(kernel: Kernel) -> None:
    found = 0
    for recorded in recorded_frames():
        if (
            recorded.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
            and recorded.is_response
        ):
            frame = recorded.frame
            if frame.code not in (0, 19, 20, 21):
                continue
            values = kernel.answer_fields(frame.ext_raw, frame.serialize_type == ROCKETMQ)
            header = decode_header(PullMessageResponse, frame)
            assert values == tuple(getattr(header, name) for name in header.__struct_fields__)
            found += 1
    assert found > 10


@pytest.mark.parametrize("host", [HOST, HOST_V6], ids=["v4", "v6"])
@pytest.mark.parametrize("store_host", [HOST, HOST_V6], ids=["stored on v4", "stored on v6"])
@pytest.mark.parametrize("topic", ["T", "T" * 200, "\u4e2d"])
def test_records_of_every_form_are_decoded(
    kernel: Kernel, host: bytes, store_host: bytes, topic: str
) -> None:
    messages = [
        NewMessage(topic, n, b"body" * n, b"a\x01%d\x02" % n, 1700000000000 + n, host, n, 0, n, n)
        for n in range(3)
    ]
    raw = [encode_record(message, 7 + n, 1 << 40, 1, store_host) for n, message in enumerate(messages)]
    for check_crc in (True, False):
        values = kernel.record_values(b"".join(raw), check_crc)
        assert [Record(*fields) for fields in values] == [decode_record(one) for one in raw]
    whole = b"".join(raw)
    assert kernel.record_values(b"", True) == []
    for cut in range(1, len(raw[0])):
        assert kernel.record_values(whole[:cut], False) is None, cut
    rotten = whole.replace(b"body", b"bodY", 1)
    assert kernel.record_values(rotten, True) is None
    assert kernel.record_values(rotten, False) is not None
