"""What reading asks of the kernels, on damaged input: both give the same result or the same class of error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from types import SimpleNamespace
from typing import Any

from tests.apache.kernels import both
from tests.fuzz.mutate import mutate
from tests.golden import data
from tests.unit.wire.recorded import recorded_frames

from orbitmq.codes import SerializeType
from orbitmq.errors import RecordError
from orbitmq.filter import encode_program, parse
from orbitmq.kernel.layout import SLICE
from orbitmq.record.codec import Record, decode_record
from orbitmq.requests import RequestCode
from orbitmq.wire.frame import encode_binary_fields

UNIT = Struct(">qiq")
VALUES = (
    *(
        b"5",
        b"-5",
        b"5.5",
        b"x",
        b"true",
        b"TRUE",
        b"3000000000",
        b"NaN",
        b"-0.0",
        b" 5 ",
        b"+5",
        b"1e3",
        b"0x1p3",
    ),
    *(
        b"",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbf\xbd",
        "\u4e2d".encode(),
        "\u0665".encode(),
        b"2147483648",
        b"1\x012",
    ),
)


def same(call: Callable[[Any], object]) -> object:
    """What both kernels return, or the class of what they raise."""
    results: list[object] = []
    for kernel in both():
        try:
            results.append(call(kernel))
        except (ValueError, OverflowError) as error:
            results.append(type(error))
    assert results == results[:1] * len(results)
    return results[0]


@cache
def _expressions() -> list[str]:
    recorded = json.loads((data.APACHE.parent / "sql92" / "apache-5.5.0.json").read_text())
    return [case["expression"] for case in recorded["cases"] if case["accepted"]]


@cache
def _programs() -> list[bytes]:
    return [encode_program(parse(expression).tree) for expression in _expressions()]


@cache
def _texts() -> list[bytes]:
    recorded = json.loads((data.APACHE.parent / "sql92" / "apache-5.5.0.json").read_text())
    return [
        "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        for properties in recorded["messages"]
    ]


def _properties(rng: random.Random) -> bytes:
    """A recorded text, one of values that are read in special ways, or either of them damaged."""
    raw = rng.choice(_texts())
    if rng.random() < 0.6:
        names = [b"a", b"b", b"c", b"price", *(pair.partition(b"\x01")[0] for pair in raw.split(b"\x02"))]
        raw = b"".join(
            b"%b\x01%b\x02" % (rng.choice(names), rng.choice(VALUES)) for _ in range(rng.randrange(6))
        )
    return mutate(rng, raw, _texts()) if rng.random() < 0.5 else raw


def fuzz_sql_program(rng: random.Random, note: Callable[[bytes], None]) -> None:
    program = rng.choice(_programs())
    if rng.random() < 0.7:
        program = mutate(rng, program, _programs())
    note(program)
    texts = [_properties(rng) for _ in range(4)]
    same(lambda kernel: [kernel.Filter(None, program).matches_properties(text) for text in texts])
    same(lambda kernel: kernel.Filter(None, program).node_count)


@cache
def _records() -> list[bytes]:
    (base, segment) = data.log_segments("store-clean")[0]
    return [
        segment[record["commitLogOffset"] - base : record["commitLogOffset"] - base + record["size"]]
        for record in data.messages("store-clean")["records"][:60]
        if record["size"] < 2_000
    ]


def _placed(record: bytes, number: int, log_offset: int) -> bytes:
    """The record as message ``number`` of queue 0 at a log offset."""
    place = number.to_bytes(8, "big", signed=True) + log_offset.to_bytes(8, "big", signed=True)
    return record[:12] + bytes(4) + record[16:20] + place + record[36:]


def _log(rng: random.Random, base: int, first: int) -> tuple[bytes, bytes]:
    """A window of the log that begins at ``base``, perhaps with damage, and units of queue 0 from ``first``."""
    window, units = b"", b""
    for number, record in enumerate(rng.choices(_records(), k=rng.randrange(1, 8))):
        piece = _placed(record, first + number, base + len(window))
        if rng.random() < 0.2:
            piece = mutate(rng, piece, _records())
        units += UNIT.pack(base + len(window), len(piece), rng.choice((0, 1, 2, -(2**31) - 1)))
        window += piece
    if rng.random() < 0.5:
        units = mutate(rng, units, [units])
    return window, units


def fuzz_select(rng: random.Random, note: Callable[[bytes], None]) -> None:
    base = rng.choice((0, 1 << 30, 1 << 62))
    first = rng.choice((0, 5, 2**63 - 8))
    window, units = _log(rng, base, first)
    note(units)
    limits = (rng.choice((1, 2, 32)), rng.choice((0, 500, 1 << 20)))
    taken = rng.choice(((0, 0), (0, 0), (1, 300)))
    codes = rng.choice((None, {0, 1}, {2}))
    program = rng.choice((None, rng.choice(_programs())))
    start = rng.choice((0, 0, 0, 1, 3))
    queue = (rng.choice((b"GoldenT", b"GoldenT", b"T")), 0, rng.choice((first, first, first, 2**63 - 1)))
    trusted = rng.choice((0, base + len(window) // 2, 2**63 - 1))
    same(
        lambda kernel: kernel.select(
            units, start, (window, base), limits, taken, rng_filter(kernel, codes, program), (*queue, trusted)
        )
    )


def fuzz_answer_pulls(rng: random.Random, note: Callable[[bytes], None]) -> None:
    base = rng.choice((0, 1 << 30, 1 << 62))
    first = rng.choice((0, 5, 2**63 - 8))
    window, units = _log(rng, base, first)
    note(units)
    half = base + len(window) // 2
    bounds = (
        rng.choice((0, half, 2**63 - 1)),
        rng.choice((0, 0, half, 2**63 - 1)),
        rng.choice((0, 300, 1 << 20)),
    )
    pulls = [_asked_pull(rng, units, first) for _ in range(rng.randrange(4))]

    def call(kernel: Any) -> object:
        asked = [
            (*asked, (topic, rng_filter(kernel, codes, program), *alike))
            for asked, (topic, codes, program, *alike) in pulls
        ]
        return kernel.answer_pulls((window, base), bounds, asked)

    same(call)


def _asked_pull(rng: random.Random, units: bytes, first: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    start = rng.choice((0, 0, 0, 1, 2))
    offset = rng.choice((first + start, first + start, first + start, 2**63 - 1))
    flags = (rng.choice((0, 1, -1)), rng.randrange(3), rng.randrange(-2, 3), 2**31)
    alike = (
        rng.choice((b"GoldenT", b"GoldenT", b"T")),
        rng.choice((None, None, {0, 1}, {2})),
        rng.choice((None, rng.choice(_programs()))),
        (rng.choice((1, 2, 32)), rng.choice((0, 500, 1 << 20))),
        (rng.choice((0, 1, 2)), 700),
        flags,
    )
    asked = (
        rng.random() < 0.5,
        rng.choice((0, 7, -1, 2**31 - 1)),
        units[start * UNIT.size :],
        min(offset, 2**63 - 1),
        rng.choice((0, -1)),
        2**63 - 1,
        rng.choice((0, 0, 0, 1)),
    )
    return asked, alike


def rng_filter(kernel: Any, codes: set[int] | None, program: bytes | None) -> Any:
    return None if codes is None and program is None else kernel.Filter(codes, program)


@cache
def _pulls() -> list[tuple[bytes, bool]]:
    found = [
        (recorded.frame.ext_raw, recorded.frame.serialize_type == SerializeType.ROCKETMQ)
        for recorded in recorded_frames()
        if recorded.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        and not recorded.is_response
    ]
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32"}
    fields |= {"sysFlag": "2", "subscription": "*", "lo": "true", "requestSource": "1", "maxMsgBytes": "-1"}
    return [*found, (encode_binary_fields(fields), True), (json.dumps(fields, indent=1).encode(), False)]


def fuzz_pull_fields(rng: random.Random, note: Callable[[bytes], None]) -> None:
    raw, is_binary = rng.choice(_pulls())
    raw = mutate(rng, raw, [other for other, form in _pulls() if form is is_binary])
    note(raw)
    same(lambda kernel: kernel.pull_fields(raw, is_binary))


def _whole_number(rng: random.Random) -> int:
    return rng.choice((0, 1, -1, 2**31, 2**63 - 1, -(2**63), rng.getrandbits(40), 2**63))


def _words(rng: random.Random) -> str:
    """A text, perhaps with what JSON escapes, or half of a surrogate pair."""
    text = rng.randbytes(rng.randrange(20)).decode("utf-8", "replace")
    return text + (chr(rng.randrange(0x300)) if rng.random() < 0.95 else "\ud800")


def _pieces(rng: random.Random) -> list[tuple[memoryview, bytes]]:
    pieces = []
    for _ in range(rng.randrange(4)):
        piece = rng.randbytes(rng.randrange(40))
        bounds = sorted(
            rng.randrange(-1 if rng.random() < 0.01 else 0, 41) for _ in range(2 * rng.randrange(3))
        )
        places = [min(bound, len(piece)) for bound in bounds]
        packed = b"".join(SLICE.pack(*each) for each in zip(places[::2], places[1::2], strict=True))
        pieces.append((memoryview(piece), packed[:-1] if rng.random() < 0.01 else packed))
    return pieces


def fuzz_encode_answer(rng: random.Random, note: Callable[[bytes], None]) -> None:
    remark = rng.choice((None, _words(rng)))
    note(repr(remark).encode())
    fields = [
        (_words(rng), rng.choice((_words(rng), rng.getrandbits(64) - 2**63)))
        for _ in range(rng.choice((0, 1, 5)))
    ]
    opaque, code = rng.choice((0, -1, 2**31 - 1, -(2**31))), rng.choice((0, 19, 210, 32767, -32768))
    pieces = _pieces(rng)
    for form in (True, False):
        same(
            lambda kernel, form=form: kernel.encode_answer(form, opaque, code, remark, fields, pieces)  # type: ignore[misc]  # a default in a lambda
        )
    same(
        lambda kernel: kernel.encode_answers([(form, opaque, code, remark, fields) for form in (True, False)])
    )


def _some_offsets(rng: random.Random) -> Sequence[int]:
    start = rng.choice((0, 5, 2**40, 2**62))
    if rng.random() < 0.5:
        return range(start, start + rng.randrange(40))
    return [start + diff for diff in sorted(rng.sample(range(127), rng.randrange(40)))]


def fuzz_pop_answer(rng: random.Random, note: Callable[[bytes], None]) -> None:
    parts = [
        (rng.randrange(3), rng.randrange(9), rng.randrange(2**40), _some_offsets(rng))
        for _ in range(rng.randrange(4))
    ]
    note(repr(parts).encode())
    numbers = tuple(_whole_number(rng) for _ in range(4))
    counts = rng.choice((None, "", _words(rng)))
    pieces = _pieces(rng)
    same(lambda kernel: kernel.pop_answer(7, 0, "FOUND", numbers, counts, parts, pieces))


@cache
def _acks() -> list[tuple[bytes, bool]]:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "3", "offset": "8", "bname": "broker-a"}
    fields |= {"extraInfo": "5 1794814731195 15000 7 0 broker-a 3 8", "lo": "true"}
    return [(encode_binary_fields(fields), True), (json.dumps(fields, indent=1).encode(), False)]


def fuzz_ack_fields(rng: random.Random, note: Callable[[bytes], None]) -> None:
    raw, is_binary = rng.choice(_acks())
    raw = mutate(rng, raw, [other for other, form in _acks() if form is is_binary])
    note(raw)
    same(lambda kernel: kernel.ack_fields(raw, is_binary))


def fuzz_revive_bodies(rng: random.Random, note: Callable[[bytes], None]) -> None:
    checkpoints = [
        SimpleNamespace(
            topic=_words(rng).replace("\ud800", "?"),
            group=_words(rng).replace("\ud800", "?"),
            queue_id=rng.randrange(2**31),
            start_offset=rng.choice((0, 5, 2**40)),
            pop_time_ms=rng.choice((0, 1794814711833, 2**62)),
            invisible_ms=rng.choice((0, 0, 60_000)),
            offsets=_some_offsets(rng),
            acked=rng.choice((0, 1, 2**32 - 1, rng.getrandbits(127))),
            suspended=rng.random() < 0.5,
        )
        for _ in range(rng.randrange(3))
    ]
    note(repr(checkpoints).encode())
    name = _words(rng).replace("\ud800", "?")
    done = [(one, rng.choice((0, 1, rng.getrandbits(40), rng.getrandbits(128)))) for one in checkpoints]
    same(lambda kernel: kernel.checkpoint_bodies(checkpoints, name))
    same(lambda kernel: kernel.ack_bodies(done, name))


@cache
def _answers() -> list[tuple[bytes, bool]]:
    found = [
        (recorded.frame.ext_raw, recorded.frame.serialize_type == SerializeType.ROCKETMQ)
        for recorded in recorded_frames()
        if recorded.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE) and recorded.is_response
    ]
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "9"}
    fields |= {"offsetDelta": "5", "topicSysFlag": "0", "groupSysFlag": "0", "forbiddenType": "1"}
    return [*found, (encode_binary_fields(fields), True), (json.dumps(fields).encode(), False)]


def fuzz_answer_fields(rng: random.Random, note: Callable[[bytes], None]) -> None:
    raw, is_binary = rng.choice(_answers())
    raw = mutate(rng, raw, [other for other, form in _answers() if form is is_binary])
    note(raw)
    same(lambda kernel: kernel.answer_fields(raw, is_binary))


def fuzz_record_values(rng: random.Random, note: Callable[[bytes], None]) -> None:
    raw = b"".join(rng.choices(_records(), k=rng.choice((1, 1, 3))))
    if rng.random() < 0.8:
        raw = mutate(rng, raw, _records())
    elif rng.random() < 0.9:
        # Host bits: the fixed part is longer.
        raw = raw[:39] + bytes([raw[39] | rng.choice((0x10, 0x20, 0x30))]) + raw[40:]
    note(raw)
    for check_crc in (True, False):
        found = same(lambda kernel, crc=check_crc: kernel.record_values(raw, crc))  # type: ignore[misc]  # a default in a lambda
        try:
            decoded = [
                tuple(getattr(record, name) for name in record.__struct_fields__)
                for record in decoded_one_by_one(raw, check_crc)
            ]
        except RecordError:
            decoded = None
        assert found == decoded


def decoded_one_by_one(raw: bytes, check_crc: bool) -> list[Record]:
    records: list[Record] = []
    at = 0
    while at < len(raw):
        records.append(decode_record(raw, at, check_crc=check_crc))
        at += records[-1].size
    return records


READ_TARGETS = {
    "kernel-sql-program": fuzz_sql_program,
    "kernel-select": fuzz_select,
    "kernel-answer-pulls": fuzz_answer_pulls,
    "kernel-pull-fields": fuzz_pull_fields,
    "kernel-encode-answer": fuzz_encode_answer,
    "kernel-pop-answer": fuzz_pop_answer,
    "kernel-ack-fields": fuzz_ack_fields,
    "kernel-revive-bodies": fuzz_revive_bodies,
    "kernel-answer-fields": fuzz_answer_fields,
    "kernel-record-values": fuzz_record_values,
}
