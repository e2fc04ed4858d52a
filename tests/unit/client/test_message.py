"""What cannot be sent is refused where it is written, in plain words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

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
        ((7, "x"), {}, r"topic is 7 \(int\); a text is accepted"),
        (("T", "x"), {"properties": {"a": 1}}, r"property 'a' is 1 \(int\); a text is accepted"),
        (("T", "x"), {"properties": {1: "a"}}, r"the name of a property is 1"),
        (("T", "x"), {"properties": [("a", "b")]}, r"properties is .*list"),
        (("T", "x"), {"keys": 7}, r"keys is 7 \(int\); a text or a list of texts is accepted"),
        (("T", "x"), {"keys": [7]}, r"a key is 7"),
        (("T", "x"), {"tags": b"t"}, r"tags is b't' \(bytes\)"),
        (("T", "x"), {"delay_level": True}, r"delay_level is True \(bool\); a whole number is accepted"),
        (("T", "x"), {"delay_ms": 1.5}, r"delay_ms is 1.5 \(float\)"),
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
    ],
)
def test_message_with_delays_that_cannot_be_is_a_value_error(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Message("T", "x", **settings)


def test_bodies_and_delays_that_can_be_sent() -> None:
    for body in (b"x", bytearray(b"x"), memoryview(b"x"), "x"):
        sent: Any = body
        assert Message("T", sent).body_bytes() == b"x"
    assert Message("T", "x", delay=timedelta(seconds=1.5)).property_pairs()["TIMER_DELAY_MS"] == "1500"
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message("T", "x", deliver_at=at).property_pairs()["TIMER_DELIVER_MS"] == str(
        int(at.timestamp() * 1000)
    )
