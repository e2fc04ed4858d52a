"""Frames and sends: every case on both kernels, and the fields as the typed reader reads them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apache.kernels import Kernel, load
from tests.fuzz.frame_pairs import FUNCTIONS, compare
from tests.unit.wire.recorded import recorded_frames

from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError, RecordError
from orbitmq.kernel.plain import frames as plain
from orbitmq.kernel.plain.frames import Frame, SendFields, SendOrigin, SendTarget
from orbitmq.record.properties import decode_properties, encode_properties
from orbitmq.wire.frame import (
    FRAME_BYTES_MAX,
    FrameDecoder,
    encode_binary_fields,
    encode_request,
    encode_response,
    whole_frame,
)
from orbitmq.wire.headers.send import send_fields

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
ADDED = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
FIELDS = {
    "a": "group",
    "b": "topic",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1794773001075",
    "h": "0",
    "i": "UNIQ_KEY\x01FD0000\x02TAGS\x01A\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
LONG = dict(zip(plain._LONG_NAMES, [FIELDS.get(key, "2") for key in "abcdefghijklm"], strict=True))
FORMS = list(SerializeType)


def split(kernel: Kernel, data: bytes, limit: int = FRAME_BYTES_MAX) -> tuple[list[Frame], int, int, str]:
    frames, end, needed, error = kernel.split_frames(data, limit)
    return frames, end, needed, error


def one(kernel: Kernel, data: bytes) -> Frame:
    (frame,), end, _, error = split(kernel, data)
    assert (end, error) == (len(data), "")
    return frame


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", [10, 310, 320])
def test_fields_of_a_send_are_read_with_its_frame(kernel: Kernel, code: int, form: SerializeType) -> None:
    fields = LONG if code == 10 else FIELDS
    frame = one(kernel, encode_request(code, 7, fields, b"body", form))
    assert frame.send is not None
    assert frame.send == send_fields(frame)
    assert (frame.opaque, frame.body, frame.send.topic) == (7, b"body", "topic")
    assert one(kernel, encode_response(code, 7, fields, b"", None, form)).send is None, (
        "an answer is not a send"
    )


def test_recorded_frames_of_apache_and_its_clients_are_read_alike() -> None:
    fast = load("fast")
    sends = 0
    for recorded in recorded_frames():
        expected = one(plain, recorded.raw)
        assert one(fast, recorded.raw) == expected
        if expected.code in (10, 310, 320) and not expected.is_response:
            assert expected.send == send_fields(expected)
            sends += 1
    assert sends > 0


def test_any_chunking_and_every_cut_give_the_same(kernel: Kernel) -> None:
    data = b"".join(encode_request(310, n, FIELDS, b"x" * n, FORMS[n % 2]) for n in range(4))
    whole = split(kernel, data)[0]
    for cut in range(len(data) + 1):
        frames, end, needed, error = split(kernel, data[:cut])
        assert error == ""
        assert frames == whole[: len(frames)]
        assert end <= cut < end + needed
        assert split(kernel, data[end:])[0] == whole[len(frames) :]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x00\x00\x00\x03", "frame length 3 is outside 4..1020"),
        (b"\xff\xff\xff\xff", "frame length -1 is outside 4..1020"),
        (b"\x00\x00\x04\x00", "frame length 1024 is outside 4..1020"),
        (b"\x00\x00\x00\x05\x00\x00\x00\x09", "header length 9 is longer than its frame of 5 bytes"),
        (b"\x00\x00\x00\x04\x07\x00\x00\x00", "unknown header serialization 7"),
        (b"\x00\x00\x00\x05\x01\x00\x00\x01\x00", "binary header of 1 bytes is shorter than 21"),
    ],
)
def test_broken_frame_ends_the_split_after_the_frames_before_it(
    kernel: Kernel, data: bytes, error: str
) -> None:
    before = encode_request(1, 1, {"a": "b"})
    frames, end, _, found = split(kernel, before + data, 1024)
    assert ([frame.opaque for frame in frames], end, found) == ([1], len(before), error)


@pytest.mark.parametrize(
    "header",
    [
        b'{ "opaque" : 5 , "code":310,"extFields" : {"b":"t\\u00e9\\n\\ud83d\\ude00\\/"} }',
        b'{"code":310,"opaque":5,"extFields":null,"language":"GO","remark":"a\\"b"}',
        b'{"code":310,"opaque":5,"extFields":{"a":{"b":1}}}',
        b'{"code":1.5}',
        b'{"code":99999999999}',
        b'{"code":1,"code":2,"language":12,"x":[1,{"y":2}]}',
        b'{"code":-0,"language":"KLINGON","version":null}',
        b'{"code":1}x',
        b'{"code":01}',
        b'{"remark":"\\ud800"}',
        b'{"remark":"\x01"}',
        b'{"remark":"\xff"}',
        b'{"\\u0063ode":7}',
        b"[]",
        b"",
    ],
)
def test_json_headers_of_any_kind_are_read_alike(header: bytes) -> None:
    data = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    assert split(load("fast"), data) == split(plain, data)


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(
    overrides=st.dictionaries(st.sampled_from(sorted(FIELDS)), text | st.integers(-(2**63), 2**63).map(str)),
    dropped=st.sets(st.sampled_from(sorted(FIELDS)), max_size=3),
    order=st.permutations(sorted(FIELDS)),
    form=st.sampled_from(FORMS),
)
def test_any_send_is_read_as_the_typed_reader_says(
    overrides: dict[str, str], dropped: set[str], order: list[str], form: SerializeType
) -> None:
    merged = FIELDS | overrides
    data = encode_request(310, 1, {key: merged[key] for key in order if key not in dropped}, b"", form)
    frame = one(plain, data)
    assert one(load("fast"), data) == frame
    try:
        expected: SendFields | None = send_fields(frame)
    except HeaderFieldError:
        expected = None
    assert frame.send in (None, expected)
    if dropped.isdisjoint("befgh") and not overrides:
        assert frame.send is not None


@pytest.mark.parametrize("value", ["", " 5", "5 ", "0x5", "1e3", "\u0665", "5.0", "2147483648", "+-1", "-"])
def test_number_not_written_in_digits_is_left_to_the_typed_reader(kernel: Kernel, value: str) -> None:
    data = encode_request(310, 1, FIELDS | {"e": value}, b"", SerializeType.JSON)
    assert one(kernel, data).send is None


@pytest.mark.parametrize(("value", "number"), [("007", 7), ("+3", 3), ("-1", -1), ("2147483647", 2**31 - 1)])
def test_number_as_java_reads_it(kernel: Kernel, value: str, number: int) -> None:
    send = one(kernel, encode_request(310, 1, FIELDS | {"e": value}, b"", SerializeType.JSON)).send
    assert send is not None
    assert send.queue_id == number


# -- properties ----------------------------------------------------------------------------------------


def by_dictionary(raw: bytes) -> bytes:
    """Returns the text as a dictionary of properties would produce it."""
    properties = decode_properties(raw)
    properties.pop("POP_CK", None)
    return encode_properties({**properties, **decode_properties(ADDED)})


@pytest.mark.parametrize(
    ("raw", "key", "waits", "asks"),
    [
        (b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02WAIT\x01true\x02", b"A" * 32, True, False),
        (b"KEYS\x01k\x02UNIQ_KEY\x01" + b"F" * 56 + b"\x02WAIT\x01false\x02", b"F" * 56, False, False),
        (b"", b"", True, False),
        (b"WAIT\x01false", b"", False, False),
        (b"A\x01b\x02A\x01c\x02", b"", True, False),
        (b"CLUSTER\x01mine\x02UNIQ_KEY\x01k\x02POP_CK\x01x\x02", b"k", True, False),
        (b"\x01\x02\x02x\x01\x02y\x01a\x01b\x02z", b"", True, False),
        (b"DELAY\x013\x02", b"", True, True),
        (b"TRAN_MSG\x01true\x02", b"", True, True),
        (b"TIMER_DELIVER_MS\x0199\x02", b"", True, True),
        (b"XDELAY\x013\x02DELAYX\x013\x02", b"", True, False),
        (b"p\x01\x00\x02q\x01\xc3\xa9\x02bad\x01\xff\x02", b"", True, False),
        (b"".join(b"n%d\x01v\x02" % number for number in range(40)), b"", True, False),
    ],
)
def test_properties_are_stored_as_a_dictionary_would_be(
    kernel: Kernel, raw: bytes, key: bytes, waits: bool, asks: bool
) -> None:
    assert tuple(kernel.stored_properties(raw, ADDED)) == (by_dictionary(raw), key, waits, asks)


def test_properties_beyond_their_length_are_refused(kernel: Kernel) -> None:
    fits = b"a\x01" + b"x" * (32_767 - 3 - len(ADDED)) + b"\x02"
    assert len(kernel.stored_properties(fits, ADDED)[0]) == 32_767
    with pytest.raises(RecordError, match="at most 32767"):
        kernel.stored_properties(b"b" + fits, ADDED)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fields", [{"queueId": "x"}, {"queueOffset": "1.5"}, {"queueId": "99999999999"}])
def test_answer_with_a_queue_that_is_not_a_number_is_refused(
    kernel: Kernel, form: SerializeType, fields: dict[str, str]
) -> None:
    frame = one(kernel, encode_response(0, 5, fields, b"", None, form))
    with pytest.raises(HeaderFieldError, match="not a number"):
        kernel.read_send_answer(form, frame.ext_raw)


def test_fields_a_producer_writes_are_the_ones_a_broker_reads(kernel: Kernel) -> None:
    origin, target = SendOrigin("group", "TBW102", 4), SendTarget("topic", "broker-a", 3)
    properties = FIELDS["i"].encode()
    raw = kernel.encode_send_fields(origin, target, properties, 1794773001075, 0, 0, False)
    assert raw == encode_binary_fields(FIELDS)
    frame = Frame(310, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=raw)
    assert kernel.read_send(310, 1, raw) == send_fields(frame)
    assert kernel.encode_send_fields(origin, target, b"", 1, 0, 0, True) == encode_binary_fields(
        FIELDS | {"g": "1", "i": "", "m": "true"}
    )


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_damaged_input_is_read_alike_by_both_kernels(name: str) -> None:
    fast: Any = load("fast")
    for seed in range(1_500):
        compare(name, fast, random.Random(seed))


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_100_000_damaged_inputs_are_read_alike_by_both_kernels(name: str) -> None:
    fast: Any = load("fast")
    for seed in range(1_000_000, 1_100_000):
        compare(name, fast, random.Random(seed))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("remark", [None, "busy"])
def test_whole_frame_is_what_the_decoder_gives(remark: str | None, form: SerializeType) -> None:
    data = encode_response(14, 77, {"msgId": "7F"}, b"body", remark=remark, serialize_type=form)
    assert [whole_frame(data)] == FrameDecoder().feed(data)
    for cut in range(len(data)):
        assert whole_frame(data[:cut]) is None
    assert whole_frame(data + b"\0") is None
    assert whole_frame(data + data) is None
    for at in range(8, 29):
        broken = data[:at] + b"\xff" + data[at + 1 :]
        found = whole_frame(broken)
        assert ([] if found is None else [found]) == FrameDecoder().feed(broken)
