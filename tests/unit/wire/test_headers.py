"""Typed headers compared with the frames of real peers, and the tables by code."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.unit.wire.declared import REQUEST_HEADERS, RESPONSE_HEADERS
from tests.unit.wire.recorded import RecordedFrame, recorded_frames

import orbitmq.wire.headers as headers
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.requests import Request, RequestCode
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request
from orbitmq.wire.header import Header, decode_header, encode_ext
from orbitmq.wire.headers import Empty

ALL_HEADERS = sorted({*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda cls: cls.__name__)

HOOK_FIELDS = {"ReqT"}
"""Added to any request by a client's hook, not by the header class."""

ANSWERS_WITH_HEADER = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}


def header_type(recorded: RecordedFrame) -> type[Header]:
    if recorded.is_response:
        return RESPONSE_HEADERS.get(recorded.code, Empty)
    return REQUEST_HEADERS[recorded.code]


def frame_with(fields: dict[str, str], serialize_type: SerializeType = SerializeType.JSON) -> Frame:
    (frame,) = FrameDecoder().feed(encode_request(1, 1, fields, serialize_type=serialize_type))
    return frame


@pytest.mark.parametrize("recorded", recorded_frames(), ids=lambda recorded: recorded.name)
def test_recorded_header_survives_decode_and_encode(recorded: RecordedFrame) -> None:
    fields = recorded.header.get("extFields") or {}
    if recorded.is_response and recorded.header["code"] not in ANSWERS_WITH_HEADER and not fields:
        assert recorded.frame.ext_fields == {}
        return
    header = decode_header(header_type(recorded), recorded.frame)
    # In the binary form an empty text is null: Java writes it with length 0 and reads it back as null.
    binary = recorded.frame.serialize_type == SerializeType.ROCKETMQ
    assert encode_ext(header) == {
        key: value for key, value in fields.items() if key not in HOOK_FIELDS and not (binary and value == "")
    }


def test_recorded_frames_cover_both_serializations_and_both_directions() -> None:
    kinds = {(recorded.frame.serialize_type, recorded.is_response) for recorded in recorded_frames()}
    assert kinds == {(0, False), (0, True), (1, False), (1, True)}
    assert len(recorded_frames()) > 500


def test_every_recorded_code_is_in_the_table() -> None:
    assert {recorded.code for recorded in recorded_frames()} <= set(REQUEST_HEADERS)


@pytest.mark.parametrize("cls", ALL_HEADERS, ids=lambda cls: cls.__name__)
def test_wire_names_of_a_header_are_unique(cls: type[Header]) -> None:
    assert len(set(cls.__struct_encode_fields__)) == len(cls.__struct_encode_fields__)


@pytest.mark.parametrize("cls", ALL_HEADERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_absent_fields_are_refused_by_name_or_read_as_none(
    cls: type[Header], serialize_type: SerializeType
) -> None:
    required = [info for info in msgspec.structs.fields(cls) if info.required]
    frame = frame_with({}, serialize_type)
    if not required:
        assert encode_ext(decode_header(cls, frame)) == {}
        return
    with pytest.raises(HeaderFieldError, match=required[0].encode_name):
        decode_header(cls, frame)


def test_header_names_follow_the_request_codes() -> None:
    by_type: dict[type[Header], list[Request]] = {}
    for code, cls in REQUEST_HEADERS.items():
        by_type.setdefault(cls, []).append(code)
    for cls, codes in by_type.items():
        if len(codes) == 1:
            words = codes[0].name.lower().split("_")
            assert cls.__name__ == "".join(map(str.capitalize, words)) + "Request"


def test_response_headers_are_of_known_requests() -> None:
    assert set(RESPONSE_HEADERS) <= set(REQUEST_HEADERS)


def test_package_exports_every_header() -> None:
    for cls in ALL_HEADERS:
        assert getattr(headers, cls.__name__) is cls
        assert cls.__name__ in headers.__all__


def test_short_names_of_a_send_are_the_long_names_in_order() -> None:
    values = {
        "producerGroup": "g",
        "topic": "t",
        "defaultTopic": "d",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "2",
        "bornTimestamp": "3",
        "flag": "5",
        "properties": "A\x01b\x02",
        "reconsumeTimes": "6",
        "unitMode": "false",
        "maxReconsumeTimes": "7",
        "batch": "true",
        "bname": "broker-a",
    }
    long = decode_header(headers.SendMessageRequest, frame_with(values))
    short = decode_header(
        headers.SendMessageRequestV2,
        frame_with(dict(zip("abcdefghijklmn", values.values(), strict=True))),
    )
    assert {name: getattr(long, name) for name in long.__struct_fields__} == {
        name: getattr(short, name) for name in long.__struct_fields__
    }
    assert re.fullmatch(r"[a-n]+", "".join(sorted(encode_ext(short))))


@pytest.mark.parametrize(
    ("field", "value"),
    [("queueId", "2147483648"), ("queueOffset", "9223372036854775808"), ("queueId", "one"), ("queueId", "")],
)
def test_number_outside_its_width_is_refused_by_name(field: str, value: str) -> None:
    pull = next(
        recorded
        for recorded in recorded_frames()
        if recorded.code == RequestCode.LITE_PULL_MESSAGE and not recorded.is_response
    )
    fields = {**pull.frame.ext_fields, field: value}
    with pytest.raises(HeaderFieldError, match=field):
        decode_header(headers.PullMessageRequest, frame_with(fields))


def test_offsets_of_a_deleted_group_go_under_either_name() -> None:
    for fields, expected in [({}, False), ({"removeOffset": "true"}, True), ({"cleanOffset": "true"}, True)]:
        frame = frame_with({"groupName": "g", **fields})
        assert decode_header(headers.DeleteSubscriptiongroupRequest, frame).drops_offsets is expected


@pytest.mark.parametrize("form", list(SerializeType))
def test_numbers_are_read_as_java_reads_them(form: SerializeType) -> None:
    fields = {
        "consumerGroup": "007",
        "topic": "0042",
        "queueId": "+3",
        "queueOffset": "0000000000000000000000012",
        "maxMsgNums": "-0",
        "sysFlag": "007",
        "commitOffset": "-005",
        "subVersion": "1",
        "suspendTimeoutMillis": "0",
    }
    [frame] = FrameDecoder().feed(encode_request(11, 1, fields, serialize_type=form))
    header = decode_header(headers.PullMessageRequest, frame)
    assert (header.consumer_group, header.topic) == ("007", "0042"), "texts stay as they are"
    assert (header.queue_id, header.queue_offset, header.max_msg_nums) == (3, 12, 0)
    assert (header.sys_flag, header.commit_offset) == (7, -5)
    for bad in ("", "1_0", "\u0663", " 1", "++1", "0x1", "0" * 50, "09999999999"):
        if bad or form is SerializeType.JSON:
            [frame] = FrameDecoder().feed(
                encode_request(11, 1, fields | {"queueId": bad}, serialize_type=form)
            )
            with pytest.raises(HeaderFieldError):
                decode_header(headers.PullMessageRequest, frame)
