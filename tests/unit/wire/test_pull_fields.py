"""The short way to read a pull must never see anything else than the typed reader does."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.wire.recorded import recorded_frames

from orbitmq.codes import RequestCode, SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.wire.frame import Frame, FrameDecoder, encode_binary_ext, encode_request, encode_response
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.consume import PullMessageRequest
from orbitmq.wire.pull_fields import encode_pull_answer, read_pull

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


def frame_of(raw: bytes) -> Frame:
    """A binary pull with this extension region."""
    [frame] = FrameDecoder().feed(encode_request(11, 1, FIELDS, b"", SerializeType.ROCKETMQ))
    return Frame(
        frame.code,
        frame.opaque,
        frame.flag,
        frame.version,
        frame.language,
        frame.serialize_type,
        None,
        raw,
        b"",
    )


def typed(frame: Frame) -> PullMessageRequest | str:
    try:
        return decode_header(PullMessageRequest, frame)
    except HeaderFieldError as error:
        return str(error)


def short(frame: Frame) -> PullMessageRequest | str:
    try:
        return read_pull(frame)
    except HeaderFieldError as error:
        return str(error)


def assert_read_alike(raw: bytes) -> None:
    """Twice: what the first reading may have remembered must serve the second."""
    wanted = typed(frame_of(raw))
    assert short(frame_of(raw)) == wanted
    assert short(frame_of(raw)) == wanted


def test_recorded_pulls_of_every_client_are_read_alike() -> None:
    found = 0
    for recorded in recorded_frames():
        if recorded.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE) and (
            not recorded.is_response
        ):
            wanted = decode_header(PullMessageRequest, recorded.frame)
            assert read_pull(recorded.frame) == wanted
            assert read_pull(recorded.frame) == wanted
            found += 1
    assert found > 20


def test_remembered_head_and_tail_never_leak_into_another_pull() -> None:
    names = {"queueId": ("0", "7"), "queueOffset": ("0", "999999999999999999"), "sysFlag": ("2", "6")}
    for values in itertools.product(*names.values()):
        changed = FIELDS | dict(zip(names, values, strict=True))
        assert_read_alike(encode_binary_ext(changed))
        assert_read_alike(encode_binary_ext(changed | {"topic": "other", "subVersion": "1"}))
        assert_read_alike(
            encode_binary_ext(changed | {"subscription": "A || B", "ns": "space", "nsd": "true"})
        )
    one = read_pull(frame_of(encode_binary_ext(FIELDS)))
    one.topic = "changed by its owner"
    assert read_pull(frame_of(encode_binary_ext(FIELDS))).topic == "T"


def test_fields_in_any_order_or_missing_are_read_alike() -> None:
    for name in FIELDS:
        rest = {key: value for key, value in FIELDS.items() if key != name}
        assert_read_alike(encode_binary_ext(rest))
        assert_read_alike(encode_binary_ext(rest | {name: FIELDS[name]}))
        assert_read_alike(encode_binary_ext({name: FIELDS[name]} | rest))
        # Given twice: the later one counts, also when it stands behind what is remembered.
        assert_read_alike(encode_binary_ext(FIELDS) + encode_binary_ext({name: "9"}))
        assert_read_alike(encode_binary_ext({name: "9"}) + encode_binary_ext(FIELDS))


@pytest.mark.parametrize("name", ["queueOffset", "maxMsgNums", "sysFlag", "commitOffset"])
@pytest.mark.parametrize(
    "value", ["-1", "", "x", "1.5", "00012", "2147483648", "9223372036854775808", "+1", " 1", "1_0", "٣"]
)
def test_odd_numbers_are_read_alike(name: str, value: str) -> None:
    assert_read_alike(encode_binary_ext(FIELDS))
    assert_read_alike(encode_binary_ext(FIELDS | {name: value}))


def test_region_cut_or_damaged_anywhere_is_read_alike() -> None:
    raw = encode_binary_ext(FIELDS)
    assert_read_alike(raw)
    for position in range(len(raw)):
        assert_read_alike(raw[:position])
        for byte in (0x00, 0x01, 0x30, 0xFF):
            assert_read_alike(raw[:position] + bytes([byte]) + raw[position + 1 :])


@pytest.mark.parametrize(
    "numbers", [(0, 32, 0, 40, 0, 0), (1, 0, -1, 0, 2**31 - 1, 5), (0, 2**63 - 1, 9, 10, 1, 2)]
)
@pytest.mark.parametrize("body", [b"", b"messages" * 100])
def test_answer_is_what_the_general_writer_writes(
    numbers: tuple[int, int, int, int, int, int], body: bytes
) -> None:
    names = (
        "suggestWhichBrokerId",
        "nextBeginOffset",
        "minOffset",
        "maxOffset",
        "topicSysFlag",
        "groupSysFlag",
    )
    ext = {name: str(number) for name, number in zip(names, numbers, strict=True)}
    general = encode_response(20, 77, ext, body, "NO_MATCHED_MESSAGE", SerializeType.ROCKETMQ)
    assert encode_pull_answer(77, 20, b"NO_MATCHED_MESSAGE", len(body), numbers) + body == general
