"""Replies from templates say the same as the general encoder, in both header forms."""

from __future__ import annotations

import pytest

from orbitmq.broker.handlers.send import SendReplies
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.store.types import Appended
from orbitmq.wire.frame import Frame, FrameDecoder

HOST = bytes.fromhex("7f00000100002a9f")


def replies(region: str = "DefaultRegion") -> SendReplies:
    return SendReplies(HOST, region, trace_on=True)


@pytest.mark.parametrize("form", list(SerializeType))
@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT])
def test_single_send_is_answered_with_every_field(form: SerializeType, code: ResponseCode) -> None:
    request = Frame(310, 77, serialize_type=form)
    encoded = replies().stored(request, code, 3, [Appended(0x1F, 100, 12345678901, 1)], b"ABCDEF")
    (frame,) = FrameDecoder().feed(encoded)
    assert (frame.code, frame.opaque, frame.flag, frame.serialize_type) == (code, 77, 1, form)
    assert frame.remark is None
    assert frame.body == b""
    assert frame.ext_fields == {
        "msgId": "7F00000100002A9F000000000000001F",
        "queueId": "3",
        "queueOffset": "12345678901",
        "transactionId": "ABCDEF",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


@pytest.mark.parametrize("form", list(SerializeType))
def test_batch_is_answered_with_all_ids_and_the_first_queue_offset(form: SerializeType) -> None:
    where = [Appended(0, 100, 7, 1), Appended(100, 100, 8, 1)]
    encoded = replies().stored(Frame(320, 1, serialize_type=form), 0, 0, where, b"K")
    (frame,) = FrameDecoder().feed(encoded)
    assert frame.ext_fields["msgId"] == "7F00000100002A9F0000000000000000,7F00000100002A9F0000000000000064"
    assert frame.ext_fields["queueOffset"] == "7"


@pytest.mark.parametrize("form", list(SerializeType))
@pytest.mark.parametrize("region", ['100%"quoted"', "süd"])
def test_region_of_any_text_survives(form: SerializeType, region: str) -> None:
    encoded = replies(region).stored(Frame(310, 1, serialize_type=form), 0, 0, [Appended(0, 1, 0, 1)], b"K")
    (frame,) = FrameDecoder().feed(encoded)
    assert frame.ext_fields["MSG_REGION"] == region


@pytest.mark.parametrize("form", list(SerializeType))
@pytest.mark.parametrize("key", ['a"b\\c', "\x01\n", "", "ключ"])
def test_unique_key_of_any_text_survives(form: SerializeType, key: str) -> None:
    request = Frame(310, 1, serialize_type=form)
    encoded = replies().stored(request, 0, 0, [Appended(0, 1, 0, 1)], key.encode())
    (frame,) = FrameDecoder().feed(encoded)
    assert frame.ext_fields.get("transactionId", "") == key
