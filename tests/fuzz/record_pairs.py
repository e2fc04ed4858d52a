"""Damaged records, batches and properties for both kernels: the same result, or an error of the same class."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.apache.kernels import load
from tests.fuzz.mutate import INTERESTING_INTS, mutate
from tests.golden import data

from orbitmq.kernel.layout import INDEX_KEY
from orbitmq.record.batch import encode_batch

_kernel = cache(load)
V4 = bytes((127, 0, 0, 1, 0, 0, 0x1F, 0x90))
V6 = bytes(15) + b"\x01" + b"\0\0\x1f\x90"
_HOSTS = (V4, V4, V4, V6, V6, b"", V4[:7], V6 + b"\0")
_TOPICS = ("orders", "orders", "t", "t\u00f6pic", "%RETRY%" + "g" * 121, "t" * 255)
_BAD_TOPICS = ("", "a\0b", "t" * 256, "\u4e2d" * 86, "\ud800", "x\udfff", None, b"orders")
_LONGS = (0, 1, -1, 700, 1 << 30, 1 << 62, 2**63 - 1, -(2**63))
_TOO_LONG = (2**63, -(2**63) - 1, 2**64, "1", None, 1.5)
_KEYS = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"", b"TAG", b"\x01", b"\x02", b"TAGS\x01a")


@cache
def _texts() -> list[bytes]:
    """Property texts that Apache stored, and some with what is read in special ways."""
    found = [bytes.fromhex(record["propertiesHex"]) for record in data.messages("store-clean")["records"]]
    made = [
        b"UNIQ_KEY\x01" + b"FD00" * 14 + b"\x02TAGS\x01TagA\x02KEYS\x01k1 k2  k3 \x02",
        "TAGS\x01\u4e2d\U0001f600\x02KEYS\x01\u00e9 x\x02".encode(),
        b"TAGS\x01a\x02TAGS\x01\x02TAGS\x01b\x01c\x02KEYS\x01 \x02UNIQ_KEY\x01\x02",
        b"a\x01" + bytes(511) + b"b\x02TAGS\x01t",
        b"a\x01b\0",
        b"a\x01" + b"v" * 32_760 + b"\x02",
        b"TAGS\x01\xed\xa0\x80\xff\xf0\x9f\x02",
        b"",
    ]
    return sorted(set(found), key=lambda text: (len(text), text))[:200] + made * 4


@cache
def _records() -> list[bytes]:
    """Records that Apache stored, and one each with other hosts, a long topic and bits of transactions."""
    (base, segment) = data.log_segments("store-clean")[0]
    found = [
        segment[record["commitLogOffset"] - base : record["commitLogOffset"] - base + record["size"]]
        for record in data.messages("store-clean")["records"][:60]
        if record["size"] < 2_000
    ]
    encode = _kernel("plain").encode_record
    for topic, host, flags in (("orders", V6, 0), ("t" * 200, V4, 0x4), ("t" * 128, V6, 0xC), ("o", V4, 0x8)):
        message = (topic, 1, b"body", _texts()[-8], 5, host, 0, flags, 0, 0)
        found += [encode(message, offset, 0, 7, host) for offset in (0, 1, 2, 2**63 - 1)]
    return found


@cache
def _batches() -> list[bytes]:
    pieces = [(n, b"x" * n, text) for n, text in enumerate(_texts()) if len(text) < 2_000]
    return [encode_batch(pieces[at : at + 3]) for at in range(0, len(pieces), 3)] + [
        encode_batch(pieces[:1]),
        encode_batch(pieces[:40]),
    ]


def _text(rng: random.Random) -> bytes:
    text = rng.choice(_texts())
    return mutate(rng, text, _texts()) if rng.random() < 0.6 else text


def _long(rng: random.Random) -> Any:
    chance = rng.random()
    if chance < 0.03:
        return rng.choice(_TOO_LONG)
    return rng.choice(_LONGS) if chance < 0.4 else rng.getrandbits(40)


def _int(rng: random.Random) -> Any:
    chance = rng.random()
    if chance < 0.02:
        return rng.choice((2**31, -(2**31) - 1, *_TOO_LONG))
    return rng.choice(INTERESTING_INTS) if chance < 0.3 else rng.randrange(16)


def _flags(rng: random.Random) -> Any:
    return _int(rng) if rng.random() < 0.2 else rng.randrange(0x40)


def _host(rng: random.Random) -> Any:
    return rng.choice((*_HOSTS, None, "127.0.0.1")) if rng.random() < 0.2 else rng.choice(_HOSTS[:5])


def _message(rng: random.Random, body: Any) -> tuple[Any, ...]:
    topic = rng.choice(_BAD_TOPICS) if rng.random() < 0.05 else rng.choice(_TOPICS)
    text: Any = None if rng.random() < 0.01 else _text(rng)
    fields = (topic, _int(rng), body, text, _long(rng), _host(rng), _int(rng), _flags(rng), _int(rng))
    whole = (*fields, _long(rng))
    return whole if rng.random() < 0.99 else rng.choice((whole[:9], (*whole, 0), ()))


def _body(rng: random.Random) -> Any:
    if rng.random() < 0.03:
        return rng.choice((None, 7, "text", b"", bytearray(b"copied"), memoryview(b"viewed")))
    return rng.randbytes(rng.choice((0, 1, 4, 40, 300)))


def _encode_records(rng: random.Random) -> tuple[Any, ...]:
    messages = [_message(rng, _body(rng)) for _ in range(rng.choice((0, 1, 1, 2, 4)))]
    queues = rng.choice((1, 2, 3))
    slots = [rng.randrange(queues) for _ in messages]
    if rng.random() < 0.05:
        slots = rng.choice(([*slots, 0], slots[1:], [-1 for _ in slots], [queues for _ in slots]))
    offsets = [_long(rng) for _ in range(queues)]
    return (messages, slots, offsets, _long(rng), _long(rng), _host(rng), rng.randrange(3))


def _batch_body(rng: random.Random) -> Any:
    body: Any = rng.choice(_batches())
    if rng.random() < 0.6:
        body = mutate(rng, body, _batches())
    return rng.choice((None, 7, "text", b"")) if rng.random() < 0.01 else body


def _encode_record(rng: random.Random) -> tuple[Any, ...]:
    return (_message(rng, _body(rng)), _long(rng), _long(rng), _long(rng), _host(rng))


def _log(rng: random.Random, base: int) -> bytes:
    """Records that mostly say where they lie, some of them damaged, sometimes with something before or after."""
    log = bytearray(b"junk" if rng.random() < 0.05 else b"")
    records = rng.sample(_records(), 2)
    next_offsets = dict.fromkeys(records, rng.choice((0, 0, 5, 2**63 - 2)))
    for _ in range(rng.choice((0, 1, 2, 3, 6))):
        chosen = rng.choice(records)
        record = bytearray(chosen)
        if rng.random() < 0.97:
            record[28:36] = ((base + len(log)) & (2**64 - 1)).to_bytes(8, "big")
        if rng.random() < 0.95:
            record[20:28] = (next_offsets[chosen] & (2**64 - 1)).to_bytes(8, "big")
            next_offsets[chosen] += 1
        log += mutate(rng, bytes(record), _records()) if rng.random() < 0.2 else record
    log += rng.choice((b"", b"", bytes(8), bytes(600), b"\0\0\1\0\xcb\xd4\x31\x94", rng.randbytes(20)))
    return bytes(log)


def _walk(rng: random.Random) -> tuple[Any, ...]:
    base = rng.choice((0, 0, 1 << 30, 1 << 30, 2**63 - 300, -5))
    log = _log(rng, base)
    start, end = 0, len(log)
    if rng.random() < 0.2:
        start = rng.choice((4, -1, len(log), len(log) + 1, 2**62, -(2**62), rng.randrange(len(log) + 1)))
    if rng.random() < 0.2:
        end = rng.choice((2**62, 0, -1, -(2**62), rng.randrange(len(log) + 1)))
    said = base if rng.random() < 0.9 else rng.choice((None, 0, base // 2))
    return (log, start, end, rng.random() < 0.5, said)


def _dispatch(rng: random.Random) -> tuple[Any, ...]:
    log, start, end, check_crc, base = _walk(rng)
    return (log, start, end, check_crc, base or 0, rng.randrange(3), rng.choice((0, 1, 2, 1 << 20)))


def _hash_keys(rng: random.Random) -> tuple[Any, ...]:
    topics = (*_TOPICS, "", "a\0b", "\ud800", "x\udfff\U0001f600", "\udcff\udcfe")
    records = [
        (rng.choice(topics), _text(rng), rng.choice((0, 4, 8, 12, rng.getrandbits(31), -1)), *numbers)
        for numbers in [(rng.choice(_LONGS), rng.choice(_LONGS)) for _ in range(rng.randrange(4))]
    ]
    return (records, rng.randrange(3))


def _link_keys(rng: random.Random) -> tuple[Any, ...]:
    slots = array(
        "i", [rng.choice((0, 1, -1, rng.getrandbits(31))) for _ in range(rng.choice((0, 1, 3, 50)))]
    )
    keys = [
        INDEX_KEY.pack(rng.choice((0, 7, -1, rng.getrandbits(31))), _wrapped(rng), _wrapped(rng))
        for _ in range(rng.choice((0, 1, 2, 9)))
    ]
    cut = b"".join(keys)[: rng.choice((1 << 20, 1 << 20, 1 << 20, 19))]
    first = rng.choice((1, 1, 2, 1000, 0, -1, 2**31 - 5, 2**31 - 1, 2**31, 2**62))
    return (memoryview(slots), cut, first, _wrapped(rng))


def _wrapped(rng: random.Random) -> int:
    return rng.choice((0, 1, -1, 1_700_000_000_000, 2**63 - 1, -(2**63), rng.getrandbits(40)))


def _find_property(rng: random.Random) -> tuple[Any, ...]:
    return (_text(rng), rng.choice(_KEYS) if rng.random() < 0.8 else rng.choice(_text(rng).split(b"\x01")))


def _one_text(rng: random.Random) -> tuple[Any, ...]:
    return (_text(rng) if rng.random() < 0.8 else rng.randbytes(rng.randrange(600)),)


def _record_starts(rng: random.Random) -> tuple[Any, ...]:
    return _walk(rng)[:3]


def _columns(rng: random.Random) -> tuple[Any, ...]:
    rows = [_text(rng) for _ in range(rng.choice((0, 1, 3, 20)))]
    if rng.random() < 0.2:
        rows.append(b"".join(b"%d\x01%d\x02" % (rng.randrange(20), number) for number in range(40)))
    ends = [rng.choice((0, 0, 0, 3))]
    texts = bytes(ends[0])
    for row in rows:
        texts += row
        ends.append(len(texts))
    if rng.random() < 0.2:
        ends[rng.randrange(len(ends))] = rng.choice((-1, 0, 2**31 - 1, rng.randrange(len(texts) + 2)))
    packed = array("i", ends).tobytes()
    return (texts, packed if rng.random() < 0.9 else packed[: rng.randrange(len(packed) + 1)])


def _property_values(rng: random.Random) -> tuple[Any, ...]:
    names = [rng.choice((*_KEYS[:3], b"TAG", b"0")) for _ in range(rng.randrange(4))]
    return (*_columns(rng), names if rng.random() < 0.9 else [*names, rng.choice((b"", b"a\x01", b"\x02"))])


def _body_crcs(rng: random.Random) -> tuple[Any, ...]:
    log = _log(rng, 0)
    ranges: list[int] = []
    for _ in range(rng.randrange(5)):
        start = rng.randrange(len(log) + 1)
        ranges += (start, rng.randrange(start, len(log) + 1))
    if ranges and rng.random() < 0.3:
        ranges[rng.randrange(len(ranges))] = rng.choice(_LONGS)
    packed = array("q", ranges).tobytes()
    return (log, packed if rng.random() < 0.9 else packed[: rng.randrange(len(packed) + 1)])


FUNCTIONS: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "body_crc": _one_text,
    "body_crcs": _body_crcs,
    "dispatch_records": _dispatch,
    "encode_record": _encode_record,
    "encode_records": _encode_records,
    "find_property": _find_property,
    "hash_keys": _hash_keys,
    "java_hash_bytes": _one_text,
    "link_keys": _link_keys,
    "property_pairs": _columns,
    "property_values": _property_values,
    "record_starts": _record_starts,
    "tag_code": _one_text,
    "walk_records": _walk,
}
"""The record functions both kernels have, and the arguments of one damaged call."""


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - what is compared is the class
        return type(error)


def compare(name: str, rng: random.Random) -> Any:
    """One damaged call of a function on both kernels; what came of it."""
    arguments = FUNCTIONS[name](rng)
    # Of what a call writes into, each kernel gets a copy of its own.
    copies = tuple(
        memoryview(array("i", each)) if isinstance(each, memoryview) else each for each in arguments
    )
    expected = _outcome(getattr(_kernel("plain"), name), arguments)
    found = _outcome(getattr(_kernel("fast"), name), copies)
    assert (found, copies) == (expected, arguments), (name, arguments)
    return expected
