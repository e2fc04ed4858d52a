"""The decoder returns the same frames, and the same error, for every chunking of the stream."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import data as golden

from orbitmq.codes import SerializeType
from orbitmq.wire.frame import FRAME_BYTES_MAX, Frame, FrameDecoder, encode_request, encode_response

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
fields = st.dictionaries(texts, texts, max_size=5)
int32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def encoded_frames(draw: st.DrawFn) -> bytes:
    code = draw(st.integers(0, 32_767) | st.just(200_050))
    opaque = draw(int32)
    ext = draw(st.none() | fields)
    body = draw(st.binary(max_size=300))
    form = draw(st.sampled_from(SerializeType))
    if draw(st.booleans()):
        return encode_request(code, opaque, ext, body, form)
    return encode_response(code, opaque, ext, body, draw(st.none() | texts), form)


def broken_frames() -> st.SearchStrategy[bytes]:
    """Returns frames that no reader may accept: lengths, header lengths, forms, texts."""

    def framed(word: int, header: bytes) -> bytes:
        return struct.pack(">iI", 4 + len(header), word) + header

    return st.one_of(
        st.integers(-(2**31), 3).map(lambda size: struct.pack(">i", size)),
        st.integers(FRAME_BYTES_MAX - 3, 2**31 - 1).map(lambda size: struct.pack(">i", size)),
        st.integers(9, 0xFFFFFF).map(lambda length: struct.pack(">iI", 12, length) + b"12345678"),
        st.integers(2, 255).map(lambda form: framed(form << 24 | 2, b"{}")),
        st.just(framed(4, b"nope")),
        st.just(framed(14, b'{"remark":"\xff"}'[:14])),
        st.just(framed(1 << 24 | 5, b"short")),
        st.just(framed(9000, b'{"code":' + b"[" * 8992)),
    )


def values(frame: Frame) -> tuple[Any, ...]:
    return (
        frame.code,
        frame.opaque,
        frame.flag,
        frame.remark,
        frame.ext_fields,
        frame.body,
        frame.serialize_type,
    )


def fed(chunks: list[bytes]) -> tuple[list[tuple[Any, ...]], str | None]:
    decoder = FrameDecoder()
    frames = [frame for chunk in chunks for frame in decoder.feed(chunk)]
    return [values(frame) for frame in frames], None if decoder.error is None else str(decoder.error)


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(at), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(frames=st.lists(encoded_frames(), min_size=1, max_size=6), data=st.data())
@settings(deadline=None)
def test_decoder_gives_the_same_frames_for_every_chunking(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    whole = fed([stream])
    assert len(whole[0]) == len(frames)
    assert whole[1] is None
    assert fed(cut(stream, cuts)) == whole
    assert fed([bytes([byte]) for byte in stream]) == whole
    assert fed(frames) == whole


@given(frames=st.lists(encoded_frames(), max_size=4), broken=broken_frames(), data=st.data())
@settings(deadline=None)
def test_decoder_serves_what_comes_before_a_broken_frame_for_every_chunking(
    frames: list[bytes], broken: bytes, data: st.DataObject
) -> None:
    stream = b"".join(frames) + broken
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    whole = fed([stream])
    assert len(whole[0]) == len(frames)
    assert whole[1] is not None
    assert fed(cut(stream, cuts)) == whole
    assert fed([bytes([byte]) for byte in stream]) == whole


def golden_streams() -> list[tuple[str, bytes]]:
    """Returns all recorded frames, one stream per kind of peer."""
    streams: dict[str, list[bytes]] = {}
    for entry in golden.frames():
        for side in ("request", "response"):
            if entry.get(side):
                streams.setdefault(entry["label"], []).append(bytes.fromhex(entry[side]["hex"]))
    return [(label, b"".join(frames)) for label, frames in streams.items()]


@pytest.mark.parametrize(
    ("label", "stream"), golden_streams(), ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000, 65_536])
def test_recorded_frames_survive_every_chunk_size(label: str, stream: bytes, step: int) -> None:
    assert label
    whole = fed([stream])
    assert whole[0]
    assert whole[1] is None
    assert fed([stream[start : start + step] for start in range(0, len(stream), step)]) == whole


def test_decoder_refuses_a_length_over_the_limit_by_the_length_alone() -> None:
    decoder = FrameDecoder(1024)
    assert decoder.feed(struct.pack(">i", 1021)) == []
    assert decoder.error is not None
    assert decoder.buffered_bytes == 0


def test_decoder_accepts_a_frame_of_exactly_the_limit() -> None:
    frame = encode_request(10, 1, None, b"x" * 100)
    assert len(FrameDecoder(len(frame)).feed(frame)) == 1
    assert FrameDecoder(len(frame) - 1).feed(frame) == []


def test_decoder_after_an_error_keeps_nothing_and_gives_nothing() -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">i", -1))
    assert decoder.feed(encode_request(10, 1)) == []
    assert decoder.buffered_bytes == 0
