"""SQL92 expressions of any shape: both kernels mean the same, and no text breaks the parser."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.apache.kernels import both

from orbitmq.errors import SubscriptionParseFailed
from orbitmq.filter import encode_program, parse
from orbitmq.kernel.java_numbers import Unreadable
from orbitmq.kernel.plain.sql import evaluate, parse_program

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["x", "y", "5", "true", "", "it's", "\u4e2d"])
NUMBERS = st.sampled_from(["5", "0", "-5", "5.5", "3000000000", "-1e3", "7L"])
VALUES = st.sampled_from(
    [
        "5",
        "6",
        "-5",
        "5.5",
        "x",
        "y",
        "true",
        "TRUE",
        "3000000000",
        "NaN",
        "-0.0",
        "it's",
        "\u4e2dx",
        " 5 ",
        "+5",
    ]
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


LITERALS = st.one_of(NUMBERS, TEXTS.map(quoted), st.sampled_from(["TRUE", "FALSE"]))
CONDITIONS = st.one_of(
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["=", "<>"]), LITERALS),
    st.builds("{1} {0} {2}".format, st.sampled_from(["=", "<>"]), LITERALS, NAMES),
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["<", "<=", ">", ">="]), NUMBERS),
    st.builds("{} {} {}".format, NUMBERS, st.sampled_from(["<", "<=", ">", ">="]), NAMES),
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["=", "<>", "<", ">="]), NAMES),
    st.builds("{} {}".format, NAMES, st.sampled_from(["IS NULL", "IS NOT NULL", "NOT BETWEEN 0 AND 9"])),
    st.builds(
        "{} {} ({}, {})".format,
        NAMES,
        st.sampled_from(["IN", "NOT IN"]),
        TEXTS.map(quoted),
        TEXTS.map(quoted),
    ),
    st.builds(
        "{} {} {}".format,
        NAMES,
        st.sampled_from(["CONTAINS", "NOT CONTAINS", "STARTSWITH", "NOT ENDSWITH"]),
        TEXTS.map(quoted),
    ),
    st.sampled_from(["TRUE", "FALSE", "NULL", "a", "b"]),
)
EXPRESSIONS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("(({}) = ({}))".format, inner, inner),
        st.builds("(-({}) IS NULL)".format, inner),
    ),
    max_leaves=8,
)
PROPERTIES = st.dictionaries(NAMES, VALUES)


def value_of(expression: str, properties: dict[str, str]) -> bool | str | None:
    try:
        root, _ = parse_program(encode_program(parse(expression).tree))
        return evaluate(root, {name.encode(): value for name, value in properties.items()})
    except SubscriptionParseFailed:
        return "refused"
    except Unreadable:
        return "unreadable"


@settings(max_examples=200)
@given(EXPRESSIONS, PROPERTIES)
def test_both_kernels_select_what_the_program_means(expression: str, properties: dict[str, str]) -> None:
    value = value_of(expression, properties)
    if value == "refused":
        return
    raw = "".join(f"{name}\x01{text}\x02" for name, text in properties.items()).encode()
    program = encode_program(parse(expression).tree)
    for kernel in both():
        assert kernel.Filter(None, program).matches_properties(raw) is (value is True)


@settings(max_examples=200)
@given(EXPRESSIONS, EXPRESSIONS, PROPERTIES)
def test_laws_of_three_valued_logic_hold(left: str, right: str, properties: dict[str, str]) -> None:
    def value(expression: str) -> bool | str | None:
        return value_of(expression, properties)

    assert value(f"NOT ({left} AND {right})") == value(f"NOT ({left}) OR NOT ({right})")
    assert value(f"NOT ({left} OR {right})") == value(f"NOT ({left}) AND NOT ({right})")
    assert value(f"NOT (NOT ({left}))") == value(f"({left}) OR FALSE")


@settings(max_examples=200)
@given(
    st.text(alphabet=st.sampled_from("ab1.5eE'=<>()-+*/, \n\tNOTANDINIS$_#\u017f\ud800"), max_size=40)
    | st.text(max_size=40)
)
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        program = encode_program(parse(text).tree)
    except SubscriptionParseFailed:
        return
    for raw in (b"a\x015\x02b\x01x\x02", b"a\x01\xff\x02"):
        assert len({kernel.Filter(None, program).matches_properties(raw) for kernel in both()}) == 1
