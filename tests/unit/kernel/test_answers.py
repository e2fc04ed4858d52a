"""Responses written by the kernels: the same bytes or fields as those of the general writer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.apache.kernels import Kernel

from orbitmq.codes import SerializeType
from orbitmq.kernel.layout import SLICE
from orbitmq.wire.frame import Frame, FrameDecoder, encode_response

ROCKETMQ, JSON = SerializeType.ROCKETMQ, SerializeType.JSON
PIECES = [
    [],
    [(b"messages" * 100, [(0, 800)])],
    [
        (b"-a--bc", [(1, 2), (4, 6)]),
        (memoryview(b"-de-")[1:3], [(0, 2)]),
        (bytearray(b"f"), [(0, 0), (0, 1)]),
        (b"g", []),
    ],
]
FIELDS: list[list[tuple[str, str | int]]] = [
    [],
    [("zero", 0), ("least", -(2**63)), ("greatest", 2**63 - 1)],
    [("text", 'quote " \\ \n\x01 é 中'), ("n\u00e4me", "x" * 300), ("text", "")],
]


def packed_slices(slices: list[tuple[int, int]]) -> bytes:
    return b"".join(SLICE.pack(*each) for each in slices)


def decoded(data: bytes) -> Frame:
    [frame] = FrameDecoder().feed(data)
    frame.ext_fields  # noqa: B018 - decoded before the raw bytes are dropped
    frame.ext_raw = b""
    return frame


@pytest.mark.parametrize("fields", FIELDS, ids=["none", "numbers", "texts"])
@pytest.mark.parametrize("remark", [None, "", "FOUND", 'a "remark"\n'])
@pytest.mark.parametrize("pieces", PIECES, ids=["none", "one", "several"])
def test_answer_is_what_the_general_writer_writes(
    kernel: Kernel,
    fields: list[tuple[str, str | int]],
    remark: str | None,
    pieces: list[tuple[bytes, list[tuple[int, int]]]],
) -> None:
    ext = {name: str(value) for name, value in fields}
    body = b"".join(piece[start:end] for piece, slices in pieces for start, end in slices)
    packed = [(piece, packed_slices(slices)) for piece, slices in pieces]
    texts = [(name, value) for name, value in fields if value != ""]
    general = encode_response(20, 77, {name: str(value) for name, value in texts}, body, remark, ROCKETMQ)
    assert kernel.encode_answer(True, 77, 20, remark, texts, packed) == general
    written = kernel.encode_answer(False, -77, 20, remark, fields, packed)
    assert decoded(written) == decoded(encode_response(20, -77, ext, body, remark, JSON))


def test_answers_without_bodies_follow_each_other(kernel: Kernel) -> None:
    asked = [(form, opaque, 0, None, ()) for form in (False, True) for opaque in (1, -(2**31))]
    one_by_one = [kernel.encode_answer(*each, ()) for each in asked]
    assert kernel.encode_answers(asked) == b"".join(one_by_one)
    assert one_by_one[0] == encode_response(0, 1)
    assert kernel.encode_answers([]) == b""


def test_pull_answers_keep_the_field_order_of_either_form(kernel: Kernel) -> None:
    numbers = (1, 2, 3, 4, 5, 6)
    json = kernel.pull_answer(False, 9, 0, "FOUND", numbers, ())
    assert json[8:] == (
        b'{"code":0,"extFields":{"suggestWhichBrokerId":"1","groupSysFlag":"6","nextBeginOffset":"2",'
        b'"maxOffset":"4","minOffset":"3","topicSysFlag":"5"},"flag":1,"language":"PYTHON","opaque":9,'
        b'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":513}'
    )
    binary = kernel.pull_answer(True, 9, 0, "FOUND", numbers, ())
    names = [
        "suggestWhichBrokerId",
        "nextBeginOffset",
        "minOffset",
        "maxOffset",
        "topicSysFlag",
        "groupSysFlag",
    ]
    ext = {name: str(number) for name, number in zip(names, numbers, strict=True)}
    assert binary == encode_response(0, 9, ext, b"", "FOUND", ROCKETMQ)


@pytest.mark.parametrize(
    "slices",
    [*(packed_slices([each]) for each in ((0, 5), (3, 2), (-1, 2), (5, 6))), packed_slices([(0, 1)])[:-1]],
)
def test_slice_outside_of_its_piece_is_refused(kernel: Kernel, slices: bytes) -> None:
    with pytest.raises(ValueError):
        kernel.encode_answer(True, 1, 0, "FOUND", (), [(b"four", slices)])


@pytest.mark.parametrize(
    "wrong",
    [{"code": 2**15}, {"opaque": 2**31}, {"fields": [("n", 2**63)]}, {"fields": [("n", -(2**63) - 1)]}],
)
def test_number_that_does_not_fit_is_refused(kernel: Kernel, wrong: dict[str, Any]) -> None:
    asked = {"opaque": 1, "code": 0, "fields": ()} | wrong
    with pytest.raises((OverflowError, TypeError)):
        kernel.encode_answer(False, asked["opaque"], asked["code"], None, asked["fields"], ())
