"""Answers to sends: the fast reader means what the table of fields means, and gives way to it."""

from __future__ import annotations

import pytest

from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.wire import send_answer
from orbitmq.wire.frame import FrameDecoder, encode_response, whole_frame
from orbitmq.wire.send_answer import SendAnswer, SendAnswerReader

IDS = "7F00000100006CA70000000000000000"
OURS = {
    "msgId": IDS,
    "queueId": "7",
    "queueOffset": "12",
    "transactionId": "C00002026C494F5F4F1E4E2B2E6A0000",
    "TRACE_ON": "true",
    "MSG_REGION": "DefaultRegion",
}


def read(reader: SendAnswerReader, fields: dict[str, str], form: SerializeType) -> SendAnswer:
    [frame] = FrameDecoder().feed(encode_response(0, 5, fields, serialize_type=form))
    return reader.read(frame)


@pytest.mark.parametrize(
    "fields",
    [
        OURS,
        OURS | {"msgId": f"{IDS},{IDS}" * 20},
        OURS | {"transactionId": "my own key"},
        OURS | {"TRACE_ON": "false", "MSG_REGION": "elsewhere"},
        OURS | {"recallHandle": "djEgaGFuZGxl"},
        {name: value for name, value in OURS.items() if name != "transactionId"},
        {"queueOffset": "12", "queueId": "7", "msgId": IDS},
        {"msgId": IDS, "queueId": "7", "queueOffset": "12"},
        {"msgId": IDS, "queueId": "7", "queueOffset": "-1"},
        {"queueOffset": "3"},
        {},
    ],
)
@pytest.mark.parametrize("form", list(SerializeType))
def test_answer_means_the_same_in_any_order_and_form(fields: dict[str, str], form: SerializeType) -> None:
    reader = SendAnswerReader()
    for _ in range(2):  # the second one from memory
        assert read(reader, fields, form) == SendAnswer(
            int(fields["queueId"]) if "queueId" in fields else None,
            int(fields.get("queueOffset", -1)),
            fields.get("msgId", ""),
            fields.get("transactionId"),
            fields.get("MSG_REGION"),
            fields.get("TRACE_ON") != "false",
            fields.get("recallHandle"),
        )


@pytest.mark.parametrize("fields", [{"queueId": "x"}, {"queueOffset": "1.5"}])
def test_queue_that_is_no_number_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(HeaderFieldError, match="no number"):
        read(SendAnswerReader(), OURS | fields, SerializeType.ROCKETMQ)


def test_what_is_remembered_is_bounded() -> None:
    reader = SendAnswerReader()
    for number in range(3 * send_answer._MEMO_ENTRIES):
        answer = read(reader, OURS | {"recallHandle": f"h{number}"}, SerializeType.ROCKETMQ)
        assert answer.recall_handle == f"h{number}"
        assert len(reader._memo) <= send_answer._MEMO_ENTRIES


@pytest.mark.parametrize("remark", [None, "busy"])
def test_whole_frame_is_what_the_decoder_gives(remark: str | None) -> None:
    data = encode_response(14, 77, OURS, b"body", remark=remark, serialize_type=SerializeType.ROCKETMQ)
    assert [whole_frame(data)] == FrameDecoder().feed(data)
    for cut in range(len(data)):
        assert whole_frame(data[:cut]) is None
    assert whole_frame(data + b"\0") is None
    assert whole_frame(data + data) is None
    assert whole_frame(encode_response(0, 5, OURS)) is None, "JSON"
    for at in range(8, 29):
        broken = data[:at] + b"\xff" + data[at + 1 :]
        found = whole_frame(broken)
        assert ([] if found is None else [found]) == FrameDecoder().feed(broken)
