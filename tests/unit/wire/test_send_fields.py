"""The fast reader of send headers must agree with the typed reader on every input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.wire import send_fields
from orbitmq.wire.frame import Frame, FrameDecoder, encode_binary_ext, encode_request
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.send import SendMessageRequestV2
from orbitmq.wire.send_fields import SendFields, read_send_v2

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


def frame_of(fields: dict[str, str], serialize: SerializeType = SerializeType.ROCKETMQ) -> Frame:
    (frame,) = FrameDecoder().feed(encode_request(310, 1, fields, b"body", serialize))
    return frame


def typed(frame: Frame) -> SendFields:
    header = decode_header(SendMessageRequestV2, frame)
    return SendFields(
        header.producer_group,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        (header.properties or "").encode(),
        header.reconsume_times or 0,
        header.max_reconsume_times,
        bool(header.batch),
    )


def test_second_reading_of_the_same_producer_takes_the_fast_way_and_agrees() -> None:
    read_send_v2(frame_of(FIELDS))
    changed = FIELDS | {"e": "11", "g": "1794773001099", "i": "UNIQ_KEY\x01FD0001\x02"}
    frame = frame_of(changed)
    assert read_send_v2(frame) == typed(frame_of(changed))
    assert frame._ext is None, "the typed reader was used; the fast way is dead"


def test_json_and_binary_forms_read_alike() -> None:
    assert read_send_v2(frame_of(FIELDS)) == read_send_v2(frame_of(FIELDS, SerializeType.JSON))


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(
    overrides=st.dictionaries(st.sampled_from(sorted(FIELDS)), text | st.integers(-(2**63), 2**63).map(str)),
    dropped=st.sets(st.sampled_from(sorted(FIELDS)), max_size=3),
    order=st.permutations(sorted(FIELDS)),
)
def test_any_header_reads_as_the_typed_reader_says(
    overrides: dict[str, str], dropped: set[str], order: list[str]
) -> None:
    read_send_v2(frame_of(FIELDS))  # the memo is warm
    merged = FIELDS | overrides
    fields = {key: merged[key] for key in order if key not in dropped}
    try:
        expected = typed(frame_of(fields))
    except HeaderFieldError:
        with pytest.raises(HeaderFieldError):
            read_send_v2(frame_of(fields))
        return
    assert read_send_v2(frame_of(fields)) == expected


@given(st.data())
def test_mutated_binary_region_never_reads_differently(data: st.DataObject) -> None:
    read_send_v2(frame_of(FIELDS))
    raw = bytearray(encode_binary_ext(FIELDS))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))

    def frame() -> Frame:
        return Frame(310, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=bytes(raw))

    try:
        expected = typed(frame())
    except HeaderFieldError:
        with pytest.raises(HeaderFieldError):
            read_send_v2(frame())
        return
    assert read_send_v2(frame()) == expected


def test_memo_is_bounded() -> None:
    for number in range(send_fields._MEMO_ENTRIES + 10):
        read_send_v2(frame_of(FIELDS | {"b": f"topic{number}"}))
    assert len(send_fields._heads) <= send_fields._MEMO_ENTRIES


def test_header_cut_inside_its_properties_is_refused_whatever_was_learned() -> None:
    whole = {key: value for key, value in FIELDS.items() if key <= "i"}
    raw = encode_binary_ext(whole)
    read_send_v2(Frame(310, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=raw))
    for cut in range(1, len(whole["i"])):
        with pytest.raises(HeaderFieldError):
            read_send_v2(Frame(310, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=raw[:-cut]))


def test_numbers_and_booleans_in_json_fields_read_as_their_text() -> None:
    frame = Frame(310, 1, ext_raw=b'{"a":1,"b":true,"c":null,"d":"x","e":-2.5}')
    assert frame.ext_fields == {"a": "1", "b": "true", "d": "x", "e": "-2.5"}
    with pytest.raises(HeaderFieldError):
        _ = Frame(310, 1, ext_raw=b'{"a":[1]}').ext_fields
