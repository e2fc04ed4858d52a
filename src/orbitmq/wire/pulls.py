"""Reads the fields of pull requests and of their answers, for both ends (PULL_MESSAGE 11, LITE_PULL_MESSAGE 361)."""

from __future__ import annotations

from typing import Final, NamedTuple

from orbitmq.codes import SerializeType
from orbitmq.errors import FrameError
from orbitmq.kernel import PullFields, answer_fields
from orbitmq.wire.frame import Frame, FrameDecoder
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.consume import PullMessageRequest, PullMessageResponse

__all__ = ["AnswerFields", "PullFields", "answer_head", "read_pull", "read_pull_answer"]

_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)


def read_pull(frame: Frame) -> PullFields:
    """Parses the fields of a pull frame that the kernel left unparsed. Raises ``HeaderFieldError`` naming the bad
    field."""
    # The typed parser handles every form of JSON, and reports missing or malformed fields.
    request = decode_header(PullMessageRequest, frame)
    return PullFields(*(getattr(request, name) for name in PullFields.__struct_fields__))


class AnswerFields(NamedTuple):
    """The fields of a ``PullMessageResponse``, in the order of ``kernel.answer_fields``."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


def answer_head(buffer: bytearray, at: int, size: int) -> tuple[Frame, int]:
    """Returns the frame of ``size`` bytes at ``at`` without its body, and the position where the body begins. So a
    reader that decodes records in its buffer need not copy them. Raises ``FrameError``."""
    word = bytes(buffer[at + 4 : at + 8])
    start = at + 8
    body = start + int.from_bytes(word[1:], "big")
    if len(word) < 4 or body > at + size:
        raise FrameError("a header is longer than its frame")
    decoder = FrameDecoder()
    frames = decoder.feed(b"".join(((body - at - 4).to_bytes(4, "big"), word, buffer[start:body])))
    if decoder.error is not None or len(frames) != 1:
        raise FrameError(f"an answer cannot be read: {decoder.error}")
    return frames[0], body


def read_pull_answer(frame: Frame) -> AnswerFields:
    """Parse the answer to a pull. Raises ``HeaderFieldError`` naming the bad field."""
    values = answer_fields(frame.ext_raw, frame.serialize_type == _ROCKETMQ)
    if values is not None:
        return AnswerFields._make(values)
    header = decode_header(PullMessageResponse, frame)
    return AnswerFields._make(getattr(header, name) for name in AnswerFields._fields)
