"""The messages an SQL92 expression selects, compared with those that Apache's broker selected."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.apache.kernels import Kernel

from orbitmq.errors import SubscriptionParseFailed
from orbitmq.filter import compile_expression, encode_program, parse
from orbitmq.filter.parsing import DEPTH_MAX, EXPRESSION_CHARS_MAX, WORDS_MAX
from orbitmq.kernel.java_numbers import (
    INT_MAX,
    LONG_MAX,
    Unreadable,
    compare_doubles,
    read_double,
    read_integer,
)
from orbitmq.record.codec import encode_record
from orbitmq.store.types import NewMessage

A_IS_5: Final = encode_program(parse("a = 5").tree)
OPERATORS: Final[dict[str, Callable[[int], bool]]] = {
    "=": lambda sign: sign == 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
}
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
def test_expression_selects_what_apache_selected(kernel: Kernel, case: dict[str, Any]) -> None:
    wanted = kernel.Filter(None, encode_program(parse(case["expression"]).tree))
    texts = [text_of(properties) for properties in MESSAGES]
    assert [n for n, text in enumerate(texts) if wanted.matches_record(record_of(text))] == case["selected"]
    assert [n for n, text in enumerate(texts) if wanted.matches_properties(text)] == case["selected"]


@pytest.mark.parametrize("expression", REFUSED, ids=shown)
def test_expression_apache_refused_is_refused_with_position(expression: str) -> None:
    with pytest.raises(SubscriptionParseFailed, match=r"column \d+"):
        compile_expression(expression)


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("a = ", "column 5"),
        ("price > 'cheap'", "column 7"),
        ("a = 1 AND (b = 2", "column 17"),
        ("region = 'x' AND\n price ! 3", "line 2, column 8"),
        ("a BETWEEN 9 AND 1", "above the upper limit"),
        ("a = 'open", "unclosed string"),
        ("a = NULL", "IS NULL"),
        ("a > 0.0", "write 0 for zero"),
    ],
)
def test_fault_names_place_and_reason(expression: str, fault: str) -> None:
    with pytest.raises(SubscriptionParseFailed, match=fault):
        compile_expression(expression)


@pytest.mark.parametrize(
    ("expression", "ignored_from"),
    [("a = 5", None), ("a = 5 -- end", 6), ("a = 5 LIMIT 3", 6), ("a LIKE 'x'", 2)],
)
def test_text_behind_the_expression_is_reported(expression: str, ignored_from: int | None) -> None:
    assert compile_expression(expression).ignored_from == ignored_from


def test_too_long_or_too_deep_expressions_are_refused() -> None:
    with pytest.raises(SubscriptionParseFailed, match="characters"):
        compile_expression("a = 'x' OR " * (EXPRESSION_CHARS_MAX // 11 + 1) + "TRUE")
    with pytest.raises(SubscriptionParseFailed, match="words"):
        compile_expression("a=1 OR " * (WORDS_MAX // 4) + "a=1")
    nested = "(a = 'x')"
    for _ in range(DEPTH_MAX + 1):
        nested = f"(b = 'y' AND NOT {nested} OR c = 'z')"
    for expression in (nested, "(" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1), "a" + " = a" * 1000):
        with pytest.raises(SubscriptionParseFailed, match="deep"):
            compile_expression(expression)


@pytest.mark.parametrize(
    "expression",
    [
        " OR ".join(["a=1"] * 1000),
        "OR ".join(["a=1 "] * 8192),
        "a BETWEEN 1 AND 2 OR " * 580 + "TRUE",
        "a IN (" + ",".join(["'x'"] * 2040) + ")",
        "NOT " * 4000 + "a",
        "- " * 4000 + "5 = 1",
        "(" * 4000,
        "a" + "=a" * 2000,
        "a=1 " + "/*" * 30_000,
        "/* * " * 13_000,
        "'" * 65_530,
        "a = '" + "''" * 32_000,
    ],
    ids=lambda text: text[:20],
)
def test_no_expression_takes_long(expression: str) -> None:
    """Counted in steps of the interpreter, which do not depend on the machine: 20 ms are some 400,000 of them."""
    steps = 0

    def count(_frame: object, event: str, _argument: object) -> Any:
        nonlocal steps
        steps += event in ("call", "line")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        encode_program(parse(expression).tree)
    except SubscriptionParseFailed:
        pass
    finally:
        sys.settrace(before)
    assert steps < 200_000


def test_deep_and_wide_expressions_still_work(kernel: Kernel) -> None:
    def selects(expression: str, properties: bytes) -> bool:
        wanted = kernel.Filter(None, encode_program(parse(expression).tree))
        return bool(wanted.matches_properties(properties))

    nested = "a = 'x'"
    for _ in range(48):
        nested = f"NOT (b = 'y' OR {nested})"
    assert selects(nested, b"a\x01x\x02b\x01n\x02")
    wide = " OR ".join(f"a = {n}" for n in range(1000))
    assert selects(wide, b"a\x01999\x02")
    assert not selects(wide, b"a\x011000\x02")
    many_names = " OR ".join(f"a{n} = {n}" for n in range(1000))
    assert selects(many_names, b"a\x010\x02a998\x01998\x02")
    assert not selects(many_names, b"a998\x01999\x02a1001\x011001\x02")
    unsure = "NOT (" + " OR ".join(f"a = {n}" for n in range(300)) + ") OR b = 'x'"
    assert selects(unsure, b"a\x01300\x02")
    assert selects(unsure, b"b\x01x\x02")
    assert not selects(unsure, b"a\x01?\x02b\x01x\x02")


@pytest.mark.parametrize(
    "host", [b"\x7f\0\0\x01\0\0\x2a\x9f", b"\0" * 15 + b"\x01\0\0\x2a\x9f"], ids=["v4", "v6"]
)
@pytest.mark.parametrize("topic", ["T", "T" * 127, "T" * 200])
def test_properties_are_found_in_every_form_of_record(kernel: Kernel, host: bytes, topic: str) -> None:
    wanted = kernel.Filter(None, A_IS_5)
    assert wanted.matches_record(record_of(b"a\x015\x02", topic=topic, host=host))
    assert not wanted.matches_record(record_of(b"a\x016\x02", topic=topic, host=host))


def test_record_too_short_for_properties_is_not_selected(kernel: Kernel) -> None:
    wanted = kernel.Filter(None, encode_program(parse("a = 5 OR TRUE").tree))
    whole = bytes(record_of(b"a\x015\x02"))
    assert wanted.matches_record(memoryview(whole))
    for cut in (0, 10, 88, 100, 168):
        assert not wanted.matches_record(memoryview(whole[:cut]))
    huge_body = bytearray(whole)
    huge_body[84:88] = b"\x7f\xff\xff\xff"
    assert not wanted.matches_record(memoryview(huge_body))


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
def test_property_text_is_read_as_apache_reads_it(kernel: Kernel, properties: bytes, selected: bool) -> None:
    assert kernel.Filter(None, A_IS_5).matches_properties(properties) is selected


@pytest.mark.parametrize("test", ["a = '{}'", "a IN ('x', '{}')", "a CONTAINS '{}'", "a = b"])
def test_broken_utf8_equals_the_replacement_character(kernel: Kernel, test: str) -> None:
    program = encode_program(parse(test.format("\ufffd")).tree)
    wanted = kernel.Filter(None, program)
    assert wanted.matches_properties(b"a\x01\xff\x02b\x01\xfe\x02")
    assert not wanted.matches_properties(b"a\x01\xc3\xa9\x02b\x01\xfe\x02")


@pytest.mark.parametrize("test", ["a = '\ud800'", "a CONTAINS '\ud800'", "a IN ('\ud800')"])
def test_half_a_surrogate_pair_equals_nothing(kernel: Kernel, test: str) -> None:
    wanted = kernel.Filter(None, encode_program(parse(test).tree))
    for value in (b"\xed\xa0\x80", b"?", b"\xef\xbf\xbd"):
        assert not wanted.matches_properties(b"a\x01%b\x02" % value)


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except Unreadable:
        return "unreadable"


NUMBER_TEXTS: Final = [
    *(
        "5",
        "+5",
        "-5",
        "0005",
        "\u0665",
        "0" * 6000 + "7",
        str(LONG_MAX),
        str(-LONG_MAX - 1),
        "",
        "+",
        "-",
        " 5",
    ),
    *(
        "5 ",
        "5.0",
        "1_0",
        "5L",
        "0x1",
        "\U0001d7d3",
        str(LONG_MAX + 1),
        "9" * 9999,
        "2147483647",
        "2147483648",
    ),
    *(" 5.5\t", "5.", ".5", ".", "1e3", "1E-2d", "5f", "0x1p3", "0x1.8P1F", "1e999", "-1e999", "-0x1p9999"),
    *("-Infinity", "NaN", "-NaN", "NaNf", "Infinityd", "-0.0", "0.0", "1e-400", "4.9e-324", "0x1p-1074"),
    *(
        "0x1p-1075",
        "0x1.8p-1075",
        "0x1.00000000000008p0",
        "0x1.00000000000018p0",
        "0x.8p1",
        "0x8.p-3",
        "0x.p1",
    ),
    *(
        "0x1.000000000000080000000000000001p0",
        "0x1fffffffffffffp971",
        "0x1fffffffffffff8p968",
        "0x0p9999999999999",
    ),
    *(
        "0x1p-99999999999999999999",
        "0x1p99999999999999999999",
        "0x" + "f" * 300 + "p-1190",
        "1" * 400 + "e-390",
    ),
    *(
        "123456789012345678901234567890",
        "9007199254740993",
        "0.1",
        "1e22",
        "1e23",
        "nan",
        "inf",
        "5 5",
        "--5",
        "1e",
    ),
    *("0\u0660", "\u0660" * 20, "\uff15", "\u0ae6", "5\0", "\0\x1f5"),
]


@pytest.mark.parametrize("text", NUMBER_TEXTS, ids=lambda text: ascii(text)[:30])
def test_texts_are_compared_with_numbers_as_java_does(kernel: Kernel, text: str) -> None:
    """The functions below are the definition; separate tests compare them with Java's."""
    raw = b"a\x01%b\x02b\x015\x02" % text.encode()
    for number, limit in ((5, INT_MAX), (LONG_MAX, LONG_MAX), (5_000_000_000, LONG_MAX)):
        value = outcome(lambda limit=limit: read_integer(text, limit))  # type: ignore[misc]  # a default in a lambda
        for operator, holds in OPERATORS.items():
            program = encode_program(parse(f"a {operator} {number}").tree)
            expected = isinstance(value, int) and holds((value > number) - (value < number))
            assert kernel.Filter(None, program).matches_properties(raw) is expected, (operator, number)
    for literal in ("5.5", "1e300", "4.9e-324", "0.1"):
        value = outcome(lambda: read_double(text))
        for operator, holds in OPERATORS.items():
            program = encode_program(parse(f"a {operator} {literal}").tree)
            expected = isinstance(value, float) and holds(compare_doubles(value, float(literal)))
            assert kernel.Filter(None, program).matches_properties(raw) is expected, (operator, literal)


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
