"""Encodes response frames in both header forms. Every response with a body or many fields is encoded here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from orbitmq.codes import FrameFlag, LanguageCode, SerializeType, Version
from orbitmq.kernel.layout import BINARY_FIXED, FRAME_LENGTH, FRAME_PREFIX, SLICE

__all__ = ["AnswerField", "Piece", "encode_answer", "encode_answers"]

AnswerField = tuple[str, str | int]
"""Name and value of an extension field."""
Piece = tuple[memoryview | bytes, bytes]
"""A part of the log and the bounds of the slices of it to send, as ``select`` returns them."""

_CODE_MAX: Final = 2**15 - 1
_NUMBER_MAX: Final = 2**63 - 1
_HEADER_BYTES_MAX: Final = 0x00FF_FFFF


def encode_answers(
    answers: Sequence[tuple[bool, int, int, str | None, Sequence[AnswerField]]],
) -> bytes:
    """Returns several response frames without a body, concatenated. Each element of ``answers`` is the first five
    arguments of ``encode_answer``."""
    return b"".join([encode_answer(*answer, ()) for answer in answers])


def encode_answer(
    is_binary: bool,
    opaque: int,
    code: int,
    remark: str | None,
    fields: Sequence[AnswerField],
    pieces: Sequence[Piece],
) -> bytes:
    """Returns a response frame. Its extension fields keep the given order, and its body consists of the slices of
    each piece.

    Raises ``OverflowError`` for a number or a header that is too large, and ``ValueError`` for a slice outside its
    piece. The binary form omits a field without a value, like all binary headers.
    """
    header = _header(is_binary, opaque, code, remark, fields)
    if len(header) > _HEADER_BYTES_MAX:
        raise OverflowError("an answer is too large for its frame")
    slices: list[memoryview | bytes] = []
    for piece, bounds in pieces:
        if len(bounds) % SLICE.size:
            raise ValueError("a slice is cut short")
        for start, end in SLICE.iter_unpack(bounds):
            if not 0 <= start <= end <= len(piece):
                raise ValueError("a slice is outside its piece")
            slices.append(piece[start:end])
    word = (SerializeType.ROCKETMQ << 24 if is_binary else 0) | len(header)
    size = 4 + len(header) + sum(map(len, slices))
    return b"".join((FRAME_PREFIX.pack(size, word), header, *slices))


def _header(
    is_binary: bool, opaque: int, code: int, remark: str | None, fields: Sequence[AnswerField]
) -> bytes:
    if not -_CODE_MAX - 1 <= code <= _CODE_MAX or not -(2**31) <= opaque < 2**31:
        raise OverflowError("the code or the number of an answer is too large")
    texts = [(name, _text(value)) for name, value in fields]
    if is_binary:
        raw_remark = (remark or "").encode()
        raw_fields = b"".join(
            len(name.encode()).to_bytes(2, "big")
            + name.encode()
            + FRAME_LENGTH.pack(len(value.encode()))
            + value.encode()
            for name, value in texts
            if value
        )
        fixed = BINARY_FIXED.pack(
            code, LanguageCode.PYTHON, Version.OURS, opaque, FrameFlag.RESPONSE, len(raw_remark)
        )
        return b"".join((fixed, raw_remark, FRAME_LENGTH.pack(len(raw_fields)), raw_fields))
    pairs = b",".join(_quoted(name) + b":" + _quoted(value) for name, value in texts)
    return (
        b'{"code":%d,%b"flag":1,"language":"PYTHON","opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}'
    ) % (
        code,
        b'"extFields":{%b},' % pairs if texts else b"",
        opaque,
        b'"remark":%b,' % _quoted(remark) if remark is not None else b"",
        Version.OURS,
    )


def _text(value: str | int) -> str:
    if isinstance(value, str):
        return value
    if not -_NUMBER_MAX - 1 <= value <= _NUMBER_MAX:
        raise OverflowError("a number of an answer is too large")
    return str(value)


def _quoted(text: str) -> bytes:
    return msgspec.json.encode(text)
