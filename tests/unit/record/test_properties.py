"""Property text."""

from __future__ import annotations

import pytest

from orbitmq.errors import RecordError
from orbitmq.record.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
    set_properties,
    set_property,
    terminated,
)

THREE = b"TAGS\x01ta\x02KEYS\x01k1 k2\x02own\x01x\x01y\x02"


def test_encode_terminates_every_pair_as_5x_does() -> None:
    assert encode_properties({"A": "1", "B": "2"}) == bytes.fromhex("4101310242013202")


def test_encode_leaves_out_empty_values_and_writes_half_a_surrogate_pair_as_java_does() -> None:
    assert encode_properties({"A": "", "B": "2"}) == b"B\x012\x02"
    assert encode_properties({"A": "\ud800x"}) == b"A\x01?x\x02"


@pytest.mark.parametrize("pair", [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", "v\x02")])
def test_encode_refuses_what_would_read_back_differently(pair: tuple[str, str]) -> None:
    with pytest.raises(RecordError, match="separator"):
        encode_properties(dict([pair]))


def test_encode_refuses_more_than_the_length_field_can_say() -> None:
    assert len(encode_properties({"a": "x" * (32767 - 3)})) == 32767
    with pytest.raises(RecordError, match="32768"):
        encode_properties({"a": "x" * (32767 - 2)})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (THREE, {"TAGS": "ta", "KEYS": "k1 k2", "own": "x\x01y"}),
        (THREE[:-1], {"TAGS": "ta", "KEYS": "k1 k2", "own": "x\x01y"}),
        (b"\x01v\x02n\x01\x02\x02\x02plain\x02a\x01b", {"a": "b"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
        ("标签\x01值\x02".encode(), {"标签": "值"}),
    ],
)
def test_decode_keeps_the_rules_of_apaches_parser(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected


@pytest.mark.parametrize(
    ("raw", "name", "expected"),
    [
        (THREE, b"TAGS", b"ta"),
        (THREE, b"KEYS", b"k1 k2"),
        (THREE, b"own", b"x\x01y"),
        (THREE[:-1], b"own", b"x\x01y"),
        (THREE, b"wn", None),  # the tail of a longer name
        (THREE, b"x", None),  # the inside of a value
        (THREE, b"TAG", None),
        (b"XTAGS\x01no\x02", b"TAGS", None),
        (b"a\x01TAGS\x01no\x02", b"TAGS", None),
        (b"TAGS\x01\x02", b"TAGS", None),
        (b"TAGS\x01a\x02TAGS\x01b\x02", b"TAGS", b"b"),
        (b"TAGS\x01a\x02TAGS\x01\x02", b"TAGS", b"a"),
        (b"x\x011\x02TAGS\x01a\x02TAGS\x01\x02", b"TAGS", b"a"),
        (b"TAGS\x01", b"TAGS", None),
        (b"", b"TAGS", None),
    ],
)
def test_find_agrees_with_the_parser(raw: bytes, name: bytes, expected: bytes | None) -> None:
    assert find_property(raw, name) == expected
    assert decode_properties(raw).get(name.decode()) == (None if expected is None else expected.decode())


def test_thousands_of_empty_pairs_are_no_burden() -> None:
    raw = b"TAGS\x01a\x02" + b"TAGS\x01\x02" * 5000
    assert find_property(raw, b"TAGS") == b"a"
    assert find_property(raw[7:], b"TAGS") is None
    assert remove_property(raw, b"TAGS") == b""
    assert set_property(raw, b"TAGS", b"b") == b"TAGS\x01b\x02"


def test_remove_takes_all_pairs_of_the_name_and_nothing_else() -> None:
    assert remove_property(THREE, b"TAGS") == b"KEYS\x01k1 k2\x02own\x01x\x01y\x02"
    assert remove_property(THREE, b"KEYS") == b"TAGS\x01ta\x02own\x01x\x01y\x02"
    assert remove_property(THREE, b"own") == b"TAGS\x01ta\x02KEYS\x01k1 k2\x02"
    assert remove_property(THREE[:-1], b"own") == b"TAGS\x01ta\x02KEYS\x01k1 k2\x02"
    assert remove_property(b"A\x011\x02A\x012\x02A\x013", b"A") == b""
    assert remove_property(b"A\x011\x02B\x012\x02A\x013", b"A") == b"B\x012"
    assert remove_property(THREE, b"wn") is THREE


def test_set_replaces_appends_and_with_an_empty_value_removes() -> None:
    assert set_property(b"", b"A", b"1") == b"A\x011\x02"
    assert set_property(b"A\x011", b"B", b"2") == b"A\x011\x02B\x012\x02"
    assert set_property(b"A\x011\x02B\x012\x02", b"A", b"3") == b"B\x012\x02A\x013\x02"
    assert set_property(b"A\x011\x02B\x012\x02", b"A", b"") == b"B\x012\x02"
    assert set_properties(b"A\x011", [(b"A", b"2"), (b"B", b"3")]) == b"A\x012\x02B\x013\x02"


def test_terminated_adds_only_a_missing_terminator() -> None:
    assert terminated(b"") == b""
    assert terminated(b"A\x011") == terminated(b"A\x011\x02") == b"A\x011\x02"
