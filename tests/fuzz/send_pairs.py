"""Reads and turns of sends for both kernels: the same frames, records and answers, or an error of the same class."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from tests.apache.kernels import Kernel, load
from tests.fuzz import frame_pairs, record_pairs
from tests.fuzz.mutate import mutate

from orbitmq.codes import SerializeType
from orbitmq.kernel.plain import frames as plain
from orbitmq.wire.frame import encode_oneway, encode_request

_kernel = cache(load)
_ADDED = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
_PROPERTIES = (
    "UNIQ_KEY\x01k\x02",
    "UNIQ_KEY\x01" + "FD00" * 14 + "\x02WAIT\x01false\x02TAGS\x01a",
    "KEYS\x01a b\x02UNIQ_KEY\x01k\u00e9y\x02p\x01\0",
    "DELAY\x013\x02UNIQ_KEY\x01k\x02",
    "UNIQ_KEY\x01k\x02_SYS_MSG_PRIORITY_\x013\x02",
    "UNIQ_KEY\x01k\x02CLUSTER\x01c\x02",
    "UNIQ_KEY\x01k\x02UNIQ_KEY\x01l\x02",
    "UNIQ_KEY\x01k\x02a\x01" + "\0" * 512 + "b\x02",
    "a\x01" + "v" * 32_700 + "\x02UNIQ_KEY\x01k\x02",
    "".join(f"n{number}\x01v\x02" for number in range(32)),
    "",
)
_TOPICS = ("orders", "orders", "t\u00f6pic", "%RETRY%g", "t" * 128, "t" * 256, "a\0b", "")


def _request(rng: random.Random, number: int) -> bytes:
    """A send, mostly plain."""
    properties = rng.choice(_PROPERTIES[: 3 if rng.random() < 0.7 else None])
    if rng.random() < 0.1:
        properties = mutate(rng, properties.encode(), [b"\x01", b"\x02", b"UNIQ_KEY"]).decode(
            "utf-8", "replace"
        )
    batch = rng.random() < 0.3
    body = record_pairs._batch_body(rng) if batch else rng.randbytes(rng.choice((0, 1, 9, 300, 5_000)))
    values = (
        "group",
        rng.choice(_TOPICS[: 2 if rng.random() < 0.8 else None]),
        "TBW102",
        "4",
        str(rng.choice((0, 1, 7, -1) if rng.random() < 0.2 else (0, 1))),
        str(rng.choice((0, 1, 16, 4, 12) if rng.random() < 0.2 else (0,))),
        str(rng.choice((1_794_773_001_075, -1, 2**63 - 1))),
        str(rng.choice((0, 5, -1))),
        properties,
        str(rng.choice((0, 3))),
        "false",
        "16",
        "true" if batch else rng.choice(("false", "false", "true")),
    )
    code = rng.choice((10, 310, 320 if batch else 310))
    names = plain._LONG_NAMES if code == 10 else plain._SHORT_NAMES
    encode = encode_oneway if rng.random() < 0.1 else encode_request
    fields = dict(zip(names, values, strict=True))
    return encode(
        code, number, fields, body if isinstance(body, bytes) else b"", rng.choice(list(SerializeType))
    )


def _read(rng: random.Random) -> bytes:
    return b"".join(_request(rng, number) for number in range(rng.choice((1, 2, 5, 9))))


def _made(rng: random.Random) -> tuple[Any, ...]:
    is_batch = rng.random() < 0.4
    body = record_pairs._batch_body(rng) if is_batch else record_pairs._body(rng)
    request = (rng.randrange(2), rng.randrange(2**31), rng.choice((0, 0, 2)))
    names = (rng.randrange(99), rng.randbytes(rng.randrange(20)), rng.choice(("", "aGFuZGxl")))
    return (record_pairs._message(rng, body), is_batch, request, rng.random() < 0.8, *names)


def _each(kernel: Kernel, found: list[Any]) -> list[tuple[Any, Any]]:
    """Every frame of a read, with the value that it is part of."""
    return [
        (frame, sends)
        for item in found
        for frame, sends in (
            [(frame, item.part(at, at + 1)) for at, frame in enumerate(item.frames())]
            if isinstance(item, kernel.Sends)
            else [(item, None)]
        )
    ]


def _facts(sends: Any) -> tuple[Any, ...]:
    """All that a value says of its sends."""
    counts = (len(sends), sends.size_bytes, sends.body_bytes_max, sends.is_batch, sends.waits, sends.code)
    return (*counts, sends.queues, sends.requests(), sends.messages())


def compare_reads(rng: random.Random) -> None:
    """One damaged read on both kernels. A send that the compiled kernel takes for plain is so on the other."""
    frames = frame_pairs._frames()
    damaged = _read(rng) if rng.random() < 0.5 else rng.choice(frames)
    data = mutate(rng, damaged, frames) if rng.random() < 0.7 else damaged + rng.choice(frames)
    limit, sends_max = rng.choice((1 << 24, 1 << 24, 2_000, 300)), rng.choice((64, 1, 2, 0))
    expected, found = (_kernel(name).split_requests(data, limit, sends_max) for name in ("plain", "fast"))
    assert found[1:] == expected[1:], (data, limit, sends_max)
    pairs = [_each(_kernel(name), each[0]) for name, each in (("plain", expected), ("fast", found))]
    assert [frame for frame, _ in pairs[0]] == [frame for frame, _ in pairs[1]], (data, limit, sends_max)
    assert [frame for frame, _ in pairs[0]] == _kernel("fast").split_frames(data, limit)[0]
    for (_, one), (_, other) in zip(*pairs, strict=True):
        assert other is None or _facts(one) == _facts(other), (data, limit, sends_max)


def _turn(kernel: Kernel, parts: list[Any], stamp: tuple[Any, ...], place: tuple[Any, ...]) -> Any:
    """What a turn of sends comes to: what was stamped, the encoded records, the answers."""
    turn, stamped = [], []
    try:
        for part in parts:
            if isinstance(part, bytes):
                for item in kernel.split_requests(part, 1 << 24, 64)[0]:
                    if isinstance(item, kernel.Sends):
                        stamped.append(item.stamp(*stamp))
                        turn.append(item)
            else:
                turn.append(kernel.sends_of(*part))
        queues = kernel.queues_of_sends(turn)
        offsets, *rest = place
        encoded = kernel.encode_sends(turn, [offsets] * len(queues), *rest)
        answers = [
            kernel.encode_send_answers(turn, code, waiting, stamp[0] or b"", "r\u00e9gion", True)
            for code, waiting in ((0, None), (10, True), (0, False))
        ]
        facts = [_facts(sends) for sends in turn]
        halves = [_facts(sends.part(0, (len(sends) + 1) // 2)) for sends in turn]
    except Exception as error:  # noqa: BLE001 - what is compared is the class
        return type(error)
    return queues, stamped, encoded, answers, facts, halves


def compare_turns(rng: random.Random) -> Any:
    """One turn of sends on both kernels; what came of it."""
    parts = [_read(rng) if rng.random() < 0.6 else _made(rng) for _ in range(rng.choice((0, 1, 1, 2, 4)))]
    host = rng.choice(record_pairs._HOSTS[:5])
    stamp = (host, rng.choice((_ADDED, _ADDED, b"", b"a\x01\0")), rng.choice((1 << 22, 1 << 22, 300)))
    place = (*(record_pairs._long(rng) for _ in range(3)), host, rng.randrange(3))
    expected = _turn(_kernel("plain"), parts, stamp, place)
    found = _turn(_kernel("fast"), parts, stamp, place)
    assert found == expected, (parts, stamp, place)
    return expected
