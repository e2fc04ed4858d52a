"""Damaged frames and fields for both kernels: the same result, or an error of the same class."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.fuzz.mutate import mutate
from tests.unit.wire.recorded import recorded_frames

from orbitmq.codes import SerializeType
from orbitmq.kernel.plain import frames as plain
from orbitmq.kernel.plain.frames import SendOrigin, SendTarget
from orbitmq.wire.frame import encode_request, encode_response

_KEYS = ("7F0000014676C0DEE0B0000000000001", "FD00" * 14, "k\u00e9y", "")
_ADDED = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


@cache
def _frames() -> list[bytes]:
    """Recorded frames, and sends in all codes and forms."""
    made = []
    for number, key in enumerate(_KEYS):
        properties = f"KEYS\x01a{number}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01t\x02"
        values = (
            "g",
            "t\u00f6pic",
            "TBW102",
            "4",
            "3",
            "0",
            "1794773001075",
            "0",
            properties,
            "1",
            "false",
            "16",
            "true",
        )
        for form in SerializeType:
            for code, names in (
                (10, plain._LONG_NAMES),
                (310, plain._SHORT_NAMES),
                (320, plain._SHORT_NAMES),
            ):
                fields = dict(zip(names, values, strict=True))
                made.append(encode_request(code, number, fields, b"body", form))
            answer = {
                "msgId": "7F",
                "queueId": "1",
                "queueOffset": "5",
                "transactionId": key,
                "TRACE_ON": "true",
            }
            made.append(encode_response(0, number, answer, b"", None, form))
            pull = {
                "consumerGroup": key,
                "topic": "T",
                "queueId": "1",
                "queueOffset": "5",
                "maxMsgNums": "32",
            }
            pull |= {"sysFlag": "3", "commitOffset": "4", "subVersion": "7", "expressionType": "TAG"}
            made.append(encode_request(11, number, pull, b"", form))
    raws = [recorded.raw for recorded in recorded_frames()][::7]
    return made * 5 + raws + [b"".join(made[at : at + 4]) for at in range(0, len(made), 4)]


@cache
def _regions() -> list[tuple[int, bytes]]:
    found = []
    for raw in _frames():
        for frame in plain.split_frames(raw, 1 << 24).frames:
            found.append((frame.serialize_type, frame.ext_raw))
    return found


@cache
def _texts() -> list[bytes]:
    made = [f"A\x01b\x02UNIQ_KEY\x01{key}\x02WAIT\x01false\x02DELAY\x013\x02".encode() for key in _KEYS]
    return [*made, _ADDED, b"POP_CK\x01x\x02CLUSTER\x01c\x02", b"TAGS\x01a\x01b\x02TIMER_DELAY_MS\x015"]


def _split(rng: random.Random) -> tuple[Any, ...]:
    return (mutate(rng, rng.choice(_frames()), _frames()), rng.choice((1 << 24, 2_000, 300, 4)))


def _send(rng: random.Random) -> tuple[Any, ...]:
    form, raw = rng.choice(_regions())
    return (rng.choice((10, 310, 320)), form, mutate(rng, raw, [raw for _, raw in _regions()]))


def _answer(rng: random.Random) -> tuple[Any, ...]:
    return _send(rng)[1:]


def _properties(rng: random.Random) -> tuple[Any, ...]:
    return (mutate(rng, rng.choice(_texts()), _texts()), rng.choice((_ADDED, b"", _texts()[0])))


def _text(rng: random.Random) -> str:
    return mutate(rng, rng.choice(_texts()), _texts())[:60].decode("utf-8", "replace")


def _fields(rng: random.Random) -> tuple[Any, ...]:
    origin = SendOrigin(_text(rng), _text(rng), rng.randrange(2**31))
    target = SendTarget(_text(rng), _text(rng), rng.randrange(2**31))
    numbers = [rng.randrange(-(2**31), 2**62) for _ in range(3)]
    return (origin, target, mutate(rng, rng.choice(_texts()), _texts()), *numbers, rng.random() < 0.5)


FUNCTIONS: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "split_frames": _split,
    "read_send": _send,
    "read_send_answer": _answer,
    "stored_properties": _properties,
    "encode_send_fields": _fields,
}
"""The functions both kernels have, and the arguments of one damaged call."""


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - what is compared is the class
        return type(error)


def compare(name: str, fast: Any, rng: random.Random) -> None:
    """One damaged call of a function on both kernels."""
    arguments = FUNCTIONS[name](rng)
    expected = _outcome(getattr(plain, name), arguments)
    found = _outcome(getattr(fast, name), arguments)
    assert found == expected, (name, arguments)
