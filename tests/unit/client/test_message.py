"""Invalid messages are refused where they are created, with clear errors."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from orbitmq import Message


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (("T", 5), {}, r"body is 5 \(int\); bytes or text can be sent, other values with Message.json"),
        (("T", True), {}, r"body is True \(bool\)"),
        (("T", [1, 2]), {}, r"body is \[1, 2\] \(list\)"),
        (("T", {"a": 1}), {}, r"body is \{'a': 1\} \(dict\)"),
        (("T", None), {}, r"body is None"),
        ((7, "x"), {}, r"topic is 7 \(int\); a string is accepted"),
        (("T", "x"), {"properties": {"a": 1}}, r"property 'a' is 1 \(int\); a string is accepted"),
        (("T", "x"), {"properties": {1: "a"}}, r"the name of a property is 1"),
        (("T", "x"), {"properties": [("a", "b")]}, r"properties is .*list"),
        (("T", "x"), {"keys": 7}, r"keys is 7 \(int\); a string or a list of strings is accepted"),
        (("T", "x"), {"keys": [7]}, r"a key is 7"),
        (("T", "x"), {"tags": b"t"}, r"tags is b't' \(bytes\)"),
        (("T", "x"), {"delay_level": True}, r"delay_level is True \(bool\); a whole number is accepted"),
        (("T", "x"), {"delay_ms": 1.5}, r"delay_ms is 1.5 \(float\)"),
        (("T", "x"), {"flag": "1"}, r"flag is '1' \(str\); a whole number is accepted"),
        (("T", "x"), {"wait_stored": "no"}, r"wait_stored is 'no' \(str\); True or False is accepted"),
    ],
)
def test_message_of_wrong_types_is_a_type_error(
    arguments: tuple[Any, ...], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        Message(*arguments, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"delay_level": 99}, "delay_level is 99; 1 to 18 is accepted"),
        ({"delay_level": -1}, "delay_level is -1; it cannot be negative"),
        ({"delay_level": 1, "delay_ms": 5}, "a message has one delay"),
        ({"delay": timedelta(seconds=1), "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "one delay"),
        ({"delay": 1.0, "delay_level": 2}, "one delay"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=None)}, "zone"),  # noqa: DTZ001 - the mistake itself
        ({"keys": ["a", "b c"]}, "key 'b c' has a space, which separates keys"),
    ],
)
def test_message_with_impossible_values_is_a_value_error(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Message("T", "x", **settings)


class Reading(msgspec.Struct):
    value: float


class Model(pydantic.BaseModel):
    value: float | None = None
    path: Path = Path("a")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_json_would_turn_into_null_is_refused(bad: float) -> None:
    values: list[Any] = [
        bad,
        [1, bad],
        {"a": {"b": (1, bad)}},
        Reading(bad),
        Model(value=bad),
        [Model(value=bad)],
    ]
    for value in values:
        with pytest.raises(ValueError, match="NaN and infinity cannot be written as JSON"):
            Message.json("T", value)
    assert Message.json("T", {"a": None, "b": [1.5, "NaN"]}).body == b'{"a":null,"b":[1.5,"NaN"]}'
    assert Message.json("T", [Model(), None]).body == b'[{"value":null,"path":"a"},null]'
    assert Message.json("T", Model()).body == b'{"value":null,"path":"a"}'
    assert Message.json("T", Reading(2.5)).body == b'{"value":2.5}'


def test_flag_of_more_than_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="flag is 4294967296; it has 32 bits"):
        Message("T", "x", flag=1 << 32)
    assert Message("T", "x", flag=-(1 << 31)).flag == -(1 << 31)


def test_bodies_and_delays_that_can_be_sent() -> None:
    for body in (b"x", bytearray(b"x"), memoryview(b"x"), "x"):
        sent: Any = body
        assert Message("T", sent).body_bytes() == b"x"
    assert Message("T", "x", delay=timedelta(seconds=1.5)).property_pairs()["TIMER_DELAY_MS"] == "1500"
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message("T", "x", deliver_at=at).property_pairs()["TIMER_DELIVER_MS"] == str(
        int(at.timestamp() * 1000)
    )
