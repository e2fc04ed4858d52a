"""What is fuzzed. A target takes a generator, makes one damaged input, and checks what must hold for every input.

Only the declared errors may come out; and what is accepted must mean the same after it was written and read again.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from tests.fuzz.mutate import mutate
from tests.fuzz.read_targets import READ_TARGETS
from tests.fuzz.record_pairs import FUNCTIONS, compare
from tests.golden import data
from tests.unit.wire.declared import REQUEST_HEADERS, RESPONSE_HEADERS
from tests.unit.wire.recorded import RecordedFrame, recorded_frames
from tests.unit.wire.test_bodies import JAVA_CLASSES, REQUEST_BODIES, RESPONSE_BODIES

from orbitmq.codes import SerializeType, Version
from orbitmq.errors import BodyError, HeaderFieldError, RecordError
from orbitmq.kernel import read_send
from orbitmq.record.batch import split_batch, unwrap
from orbitmq.record.codec import decode_record, decode_records
from orbitmq.record.properties import decode_properties, find_property, remove_property, set_property
from orbitmq.record.scan import scan
from orbitmq.requests import RequestCode
from orbitmq.wire import javajson
from orbitmq.wire.bodies import TimerCheckPoint, decode_registration, encode_body, encode_registration
from orbitmq.wire.frame import Frame, FrameDecoder, encode_frame, encode_request
from orbitmq.wire.header import Header, decode_header, encode_ext
from orbitmq.wire.headers import Empty
from orbitmq.wire.headers.send import send_fields

Target = Callable[[random.Random, Callable[[bytes], None]], None]
"""The second argument is told the input before it is used, for the report of a failure."""


# Frames.
@cache
def _frame_corpus() -> list[bytes]:
    raws = [recorded.raw for recorded in recorded_frames()]
    return raws + [b"".join(raws[at : at + 5]) for at in range(0, len(raws), 50)]


def _meaning(frame: Frame) -> tuple[Any, ...]:
    try:
        fields: dict[str, str] | str = frame.ext_fields
    except HeaderFieldError as error:
        fields = str(error)
    return (frame.code, frame.opaque, frame.flag, frame.version, frame.remark, fields, frame.body)


def fuzz_frame(rng: random.Random, note: Callable[[bytes], None]) -> None:
    raw = mutate(rng, rng.choice(_frame_corpus()), _frame_corpus())
    note(raw)
    whole = FrameDecoder()
    frames = whole.feed(raw)
    pieces = FrameDecoder()
    again: list[Frame] = []
    position = 0
    while position < len(raw):
        size = rng.choice((1, 3, 4, 7, 50, 1000))
        again += pieces.feed(raw[position : position + size])
        position += size
    assert [_meaning(frame) for frame in again] == [_meaning(frame) for frame in frames]
    assert (pieces.error is None) == (whole.error is None)
    assert pieces.buffered_bytes <= len(raw)
    for frame in frames:
        try:
            fields = frame.ext_fields
        except HeaderFieldError:
            continue
        (copy,) = FrameDecoder().feed(encode_frame(frame))
        assert (copy.code, copy.opaque, copy.flag, copy.body) == (
            frame.code,
            frame.opaque,
            frame.flag,
            frame.body,
        )
        assert copy.remark == frame.remark
        assert copy.ext_fields == fields


# Headers.
@cache
def _header_corpus(serialize_type: SerializeType) -> list[tuple[RecordedFrame, type[Header]]]:
    return [
        (
            recorded,
            RESPONSE_HEADERS.get(recorded.code, Empty)
            if recorded.is_response
            else REQUEST_HEADERS[recorded.code],
        )
        for recorded in recorded_frames()
        if recorded.frame.serialize_type == serialize_type
    ]


def _fuzz_headers(rng: random.Random, note: Callable[[bytes], None], serialize_type: SerializeType) -> None:
    corpus = _header_corpus(serialize_type)
    recorded, header_type = rng.choice(corpus)
    others = [other.frame.ext_raw for other, _ in rng.sample(corpus, 3)]
    raw = mutate(rng, recorded.frame.ext_raw, others)
    note(raw)
    frame = Frame(code=int(recorded.code), opaque=1, serialize_type=serialize_type, ext_raw=raw)
    try:
        header = decode_header(header_type, frame)
    except HeaderFieldError:
        if recorded.code == RequestCode.SEND_MESSAGE_V2 and not recorded.is_response:
            _assert_refused(frame)
        return
    (copy,) = FrameDecoder().feed(encode_request(1, 1, encode_ext(header)))
    assert decode_header(header_type, copy) == header
    if recorded.code == RequestCode.SEND_MESSAGE_V2 and not recorded.is_response:
        assert read_send(310, serialize_type, raw) in (None, send_fields(frame))


def _assert_refused(frame: Frame) -> None:
    assert read_send(310, frame.serialize_type, frame.ext_raw) is None, (
        "taken, but the typed reader refuses it"
    )


def fuzz_headers_json(rng: random.Random, note: Callable[[bytes], None]) -> None:
    _fuzz_headers(rng, note, SerializeType.JSON)


def fuzz_headers_binary(rng: random.Random, note: Callable[[bytes], None]) -> None:
    _fuzz_headers(rng, note, SerializeType.ROCKETMQ)


# Records.
@cache
def _record_corpus() -> list[bytes]:
    (base, segment) = data.log_segments("store-clean")[0]
    sizes = [
        (record["commitLogOffset"] - base, record["size"])
        for record in data.messages("store-clean")["records"]
        if record["commitLogOffset"] + record["size"] <= base + len(segment) and record["size"] < 20_000
    ]
    picked = sizes[:60] + sizes[60::40]
    return [segment[start : start + size] for start, size in picked]


@cache
def _batch_corpus() -> list[bytes]:
    return [
        recorded.frame.body
        for recorded in recorded_frames()
        if recorded.code == RequestCode.SEND_BATCH_MESSAGE and not recorded.is_response
    ]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def fuzz_record(rng: random.Random, note: Callable[[bytes], None]) -> None:
    corpus = _record_corpus()
    raw = mutate(rng, b"".join(rng.choices(corpus, k=rng.choice((1, 1, 3)))), corpus)
    note(raw)
    for check_crc in (True, False):
        try:
            for record in decode_records(raw, check_crc=check_crc, decompress=True):
                unwrap(record)
        except RecordError:
            pass
    scanned = scan(raw, 0, len(raw), check_crc=False)
    for found in scanned:
        try:
            assert decode_record(raw, found.position, check_crc=False).size == found.size
        except RecordError:
            # The scan gives topics as bytes and does not look into them.
            assert not _is_utf8(found.topic)
    assert scanned.end is not None
    body = mutate(rng, rng.choice(_batch_corpus()), _batch_corpus())
    note(body)
    try:
        split_batch(body)
    except RecordError:
        pass


# Properties.
@cache
def _properties_corpus() -> list[bytes]:
    return [
        bytes.fromhex(record["propertiesHex"]) for record in data.messages("store-clean")["records"][:200]
    ]


def fuzz_properties(rng: random.Random, note: Callable[[bytes], None]) -> None:
    corpus = _properties_corpus()
    raw = mutate(rng, rng.choice(corpus), corpus)
    note(raw)
    properties = decode_properties(raw)
    for name in (b"TAGS", b"KEYS", b"UNIQ_KEY", b"x"):
        value = find_property(raw, name)
        assert (None if value is None else value.decode("utf-8", "replace")) == properties.get(name.decode())
        assert find_property(remove_property(raw, name), name) is None
        assert find_property(set_property(raw, name, b"v"), name) == b"v"


# Bodies.
@cache
def _body_corpus() -> list[tuple[type[msgspec.Struct], bytes]]:
    corpus: list[tuple[type[msgspec.Struct], bytes]] = [
        ((RESPONSE_BODIES if recorded.is_response else REQUEST_BODIES)[recorded.code], recorded.frame.body)
        for recorded in recorded_frames()
        if recorded.body_text is not None and len(recorded.frame.body) < 2_000
    ]
    written = json.loads((data.APACHE / "bodies.json").read_bytes())["filled"]
    corpus += ((JAVA_CLASSES[name], text.encode()) for name, text in written.items())
    return corpus


def fuzz_bodies(rng: random.Random, note: Callable[[bytes], None]) -> None:
    corpus = _body_corpus()
    wanted, text = rng.choice(corpus)
    raw = mutate(rng, text, [other for _, other in rng.sample(corpus, 3)])
    note(raw)
    try:
        value = javajson.decode(raw, wanted)
    except BodyError:
        return
    encoded = javajson.encode(value)
    assert javajson.encode(javajson.decode(encoded, wanted)) == encoded
    fast = encode_body(value)
    assert javajson.encode(javajson.decode(fast, wanted)) == encoded


def fuzz_body_text(rng: random.Random, note: Callable[[bytes], None]) -> None:
    """Any text: what can be read at all is the same in all three written forms."""
    corpus = [text for _, text in rng.sample(_body_corpus(), 4)]
    raw = mutate(rng, corpus[0], corpus[1:])
    note(raw)
    try:
        value = javajson.loads(raw)
    except BodyError:
        return
    for write in (javajson.encode, javajson.encode_standard, javajson.encode_pretty):
        assert javajson.loads(write(value)) == value


@cache
def _registration() -> bytes:
    recorded = json.loads((data.APACHE / "bodies.json").read_bytes())["registration"]
    return bytes.fromhex(recorded["compressedHex"])


def fuzz_registration(rng: random.Random, note: Callable[[bytes], None]) -> None:
    compressed = _registration()
    if rng.random() < 0.1:
        raw = mutate(rng, compressed, [compressed])
    else:
        inflated = zlib.decompress(compressed)
        raw = zlib.compress(mutate(rng, inflated, [inflated]), 1)
    note(raw)
    version = rng.choice((Version.V4_9_4, Version.V5_5_0))
    try:
        body = decode_registration(raw, compressed=True, version=version)
    except BodyError:
        pass
    else:
        again = encode_registration(body, compressed=True, version=version)
        assert (
            encode_registration(
                decode_registration(again, compressed=True, version=version), compressed=True, version=version
            )
            == again
        )
    checkpoint = rng.randbytes(rng.choice((32, 56, 56, 55, 7)))
    try:
        assert TimerCheckPoint.decode(checkpoint).encode()[: len(checkpoint)] == checkpoint
    except BodyError:
        assert len(checkpoint) not in (32, 56)


def fuzz_kernel_records(rng: random.Random, note: Callable[[bytes], None]) -> None:
    name = rng.choice(sorted(FUNCTIONS))
    note(name.encode())
    compare(name, rng)


TARGETS: dict[str, Target] = {
    "frame": fuzz_frame,
    "headers-json": fuzz_headers_json,
    "headers-binary": fuzz_headers_binary,
    "record": fuzz_record,
    "properties": fuzz_properties,
    "bodies": fuzz_bodies,
    "body-text": fuzz_body_text,
    "registration": fuzz_registration,
    "kernel-records": fuzz_kernel_records,
    **READ_TARGETS,
}
