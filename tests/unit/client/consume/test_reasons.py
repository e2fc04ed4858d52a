"""The text that says why a handler failed."""

from __future__ import annotations

import json

from orbitmq.client import RetryLater
from orbitmq.client.consume.handlers import failed
from orbitmq.client.consume.reasons import reason_of


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_reason_has_type_text_and_place() -> None:
    text = reason_of(raised(ValueError("cannot book bad1")))
    assert text.startswith("ValueError: cannot book bad1 (consume/test_reasons.py:")
    assert text.endswith(" in raised)")


def test_place_is_in_the_users_code_and_not_in_a_library() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        text = reason_of(error)
    assert text.startswith("JSONDecodeError: ")
    assert text.endswith(" in test_place_is_in_the_users_code_and_not_in_a_library)")


def test_error_that_cannot_be_shown_or_was_never_raised_is_named() -> None:
    assert reason_of(raised(Unprintable())).startswith("Unprintable (")
    assert reason_of(KeyError()) == "KeyError"


def test_long_text_leaves_room_for_the_place() -> None:
    text = reason_of(raised(ValueError("x" * 5_000)))
    assert len(text) < 1_024
    assert text.endswith(" in raised)")


def test_retry_later_keeps_its_text() -> None:
    outcome = failed(raised(RetryLater("stock is empty", delay=1)))
    assert outcome.reason.startswith("RetryLater: stock is empty (")
    assert outcome.delay_level > 0
