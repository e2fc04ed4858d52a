"""What an SQL92 expression selects, against what Apache's broker was seen to select."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from orbitmq.errors import SubscriptionParseFailed
from orbitmq.filter import Unreadable, compile_selector, evaluate, parse
from orbitmq.filter.coercion import LONG_MAX, compare_doubles, read_double, read_integer
from orbitmq.filter.compiler import record_properties
from orbitmq.filter.parsing import DEPTH_MAX, EXPRESSION_CHARS_MAX
from orbitmq.record.codec import encode_record
from orbitmq.store.types import NewMessage

RECORDED: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "sql92" / "apache-5.5.0.json").read_text()
)
MESSAGES: Final[list[dict[str, str]]] = RECORDED["messages"]
CASES: Final[list[dict[str, Any]]] = RECORDED["cases"]
ACCEPTED: Final = [case for case in CASES if case["accepted"]]
REFUSED: Final = [case["expression"] for case in CASES if not case["accepted"]]


def text_of(properties: dict[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def record_of(
    properties: bytes, *, topic: str = "Orders", host: bytes = b"\x7f\0\0\x01\0\0\x2a\x9f"
) -> memoryview:
    message = NewMessage(topic, 3, b"body" * 20, properties, 1700000000000, host)
    return memoryview(encode_record(message, 7, 4096, 1700000000001, host))


def shown(case: Any) -> str:
    return repr(case["expression"] if isinstance(case, dict) else case)[:60]


def test_recording_is_large_enough_to_mean_something() -> None:
    assert len(ACCEPTED) >= 120
    assert len(REFUSED) >= 60


@pytest.mark.parametrize("case", ACCEPTED, ids=shown)
def test_expression_selects_what_apache_selected(case: dict[str, Any]) -> None:
    selector = compile_selector(case["expression"])
    texts = [text_of(properties) for properties in MESSAGES]
    assert [n for n, text in enumerate(texts) if selector.matches(record_of(text))] == case["selected"]
    assert [n for n, text in enumerate(texts) if selector.matches_properties(text)] == case["selected"]
    tree = parse(case["expression"]).tree
    for number, properties in enumerate(MESSAGES):
        present = {name: value for name, value in properties.items() if value}
        try:
            value = evaluate(tree, present.get)
        except Unreadable:
            value = None
        assert (value is True) == (number in case["selected"]), properties


@pytest.mark.parametrize("expression", REFUSED, ids=shown)
def test_expression_apache_refused_is_refused_with_position(expression: str) -> None:
    with pytest.raises(SubscriptionParseFailed, match=r"column \d+"):
        compile_selector(expression)


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("a = ", "column 5"),
        ("price > 'cheap'", "column 7"),
        ("a = 1 AND (b = 2", "column 17"),
        ("region = 'x' AND\n price ! 3", "line 2, column 8"),
        ("a BETWEEN 9 AND 1", "above the second"),
        ("a = 'open", "closing quote"),
        ("a = NULL", "IS NULL"),
        ("a > 0.0", "write 0 for zero"),
    ],
)
def test_fault_names_place_and_reason(expression: str, fault: str) -> None:
    with pytest.raises(SubscriptionParseFailed, match=fault):
        compile_selector(expression)


@pytest.mark.parametrize(
    ("expression", "ignored_from"),
    [("a = 5", None), ("a = 5 -- end", 6), ("a = 5 LIMIT 3", 6), ("a LIKE 'x'", 2)],
)
def test_text_behind_the_expression_is_reported(expression: str, ignored_from: int | None) -> None:
    assert compile_selector(expression).ignored_from == ignored_from


def test_too_long_or_too_deep_expressions_are_refused() -> None:
    with pytest.raises(SubscriptionParseFailed, match="characters"):
        compile_selector("a = 'x' OR " * (EXPRESSION_CHARS_MAX // 11 + 1) + "TRUE")
    nested = "(a = 'x')"
    for _ in range(DEPTH_MAX + 1):
        nested = f"(b = 'y' AND NOT {nested} OR c = 'z')"
    with pytest.raises(SubscriptionParseFailed, match="deep"):
        compile_selector(nested)


def test_deep_and_wide_expressions_still_work() -> None:
    nested = "a = 'x'"
    for _ in range(60):
        nested = f"NOT (b = 'y' OR {nested})"
    assert compile_selector(nested).matches_properties(b"a\x01x\x02b\x01n\x02")
    wide = compile_selector(" OR ".join(f"a = {n}" for n in range(3000)))
    assert wide.matches_properties(b"a\x012999\x02")
    assert not wide.matches_properties(b"a\x013000\x02")
    unsure = compile_selector("NOT (" + " OR ".join(f"a = {n}" for n in range(300)) + ") OR b = 'x'")
    assert unsure.matches_properties(b"a\x01300\x02")
    assert unsure.matches_properties(b"b\x01x\x02")
    assert not unsure.matches_properties(b"a\x01?\x02b\x01x\x02")


@pytest.mark.parametrize(
    "host", [b"\x7f\0\0\x01\0\0\x2a\x9f", b"\0" * 15 + b"\x01\0\0\x2a\x9f"], ids=["v4", "v6"]
)
@pytest.mark.parametrize("topic", ["T", "T" * 127, "T" * 200])
def test_properties_are_found_in_every_form_of_record(host: bytes, topic: str) -> None:
    record = record_of(b"a\x015\x02", topic=topic, host=host)
    assert record_properties(record) == b"\x02a\x015\x02\x02"
    selector = compile_selector("a = 5")
    assert selector.matches(record)
    assert not selector.matches(record_of(b"a\x016\x02", topic=topic, host=host))


@pytest.mark.parametrize("expression", ["a = 5 OR TRUE", "a = b OR TRUE"], ids=["generated", "interpreted"])
def test_record_too_short_for_properties_is_not_selected(expression: str) -> None:
    selector = compile_selector(expression)
    whole = bytes(record_of(b"a\x015\x02"))
    assert selector.matches(memoryview(whole))
    for cut in (0, 10, 88, 100, 168):
        assert not selector.matches(memoryview(whole[:cut]))
    huge_body = bytearray(whole)
    huge_body[84:88] = b"\x7f\xff\xff\xff"
    assert not selector.matches(memoryview(huge_body))


@pytest.mark.parametrize(
    ("properties", "selected"),
    [
        (b"a\x015\x02", True),
        (b"a\x015", True),  # 4.9 senders leave the last terminator out
        (b"aa\x015\x02", False),
        (b"x\x01a\x015\x02", False),  # inside a value
        (b"a\x014\x02a\x015\x02", True),  # the later pair counts
        (b"a\x015\x02a\x014\x02", False),
        (b"a\x015\x02a\x01\x02", True),  # an empty pair does not exist
        (b"a\x01\x02", False),
        (b"", False),
        (b"\x01\x02\x02\x01a", False),
        (b"a\x01\xff\x02", False),
    ],
)
def test_property_text_is_read_as_apache_reads_it(properties: bytes, selected: bool) -> None:
    assert compile_selector("a = 5").matches_properties(properties) is selected


def test_broken_utf8_equals_the_replacement_character() -> None:
    assert compile_selector("a = '\ufffd'").matches_properties(b"a\x01\xff\x02")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("0005", 5),
        ("\u0665", 5),
        ("0" * 6000 + "7", 7),
        (str(LONG_MAX), LONG_MAX),
    ],
)
def test_integers_are_read_as_java_reads_them(text: str, value: int) -> None:
    assert read_integer(text, LONG_MAX) == value


@pytest.mark.parametrize(
    "text", ["", "+", "-", " 5", "5 ", "5.0", "1_0", "5L", "0x1", "\U0001d7d3", str(LONG_MAX + 1), "9" * 9999]
)
def test_other_texts_are_no_integers(text: str) -> None:
    with pytest.raises(Unreadable):
        read_integer(text, LONG_MAX)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0),
        (" 5.5\t", 5.5),
        ("5.", 5.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1E-2d", 0.01),
        ("5f", 5.0),
        ("0x1p3", 8.0),
        ("0x1.8P1F", 3.0),
        ("1e999", float("inf")),
        ("-0x1p9999", float("-inf")),
        ("-Infinity", float("-inf")),
    ],
)
def test_fractions_are_read_as_java_reads_them(text: str, value: float) -> None:
    assert read_double(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "5 5", "1_0", "nan", "inf", "NaNf", "0x10", "1e", "\u0665", "5L", "--5", "9" * 30000 + "x"],
)
def test_other_texts_are_no_fractions(text: str) -> None:
    with pytest.raises(Unreadable):
        read_double(text)


def test_fractions_are_ordered_as_java_orders_them() -> None:
    ordered = [float("-inf"), -1.0, -0.0, 0.0, 1.0, float("inf"), float("nan")]
    for i, left in enumerate(ordered):
        for j, right in enumerate(ordered):
            assert compare_doubles(left, right) == (i > j) - (i < j), (left, right)
