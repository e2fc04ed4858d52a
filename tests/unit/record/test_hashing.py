"""Java hashes and checksums."""

from __future__ import annotations

import pytest

from orbitmq.record.hashing import body_crc, index_hash, java_hash, java_hash_bytes, tags_code


def by_definition(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("TagA", 2598919), ("中文", 646394), ("\U0001f600", 1772899)]
)
def test_java_hash_gives_what_java_gives(text: str, expected: int) -> None:
    assert (
        java_hash(text)
        == java_hash_bytes(text.encode())
        == tags_code(text)
        == tags_code(text.encode())
        == expected
    )


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "\0\0",
        "\x7f" * 40,
        "é",
        "A" * 511,
        "B" * 512,
        "C" * 513,
        "D" * 5000,
        "中" * 3000,
        "\ud83d",
        "x\U0010ffff",
    ],
)
def test_java_hash_of_any_length_and_alphabet_follows_the_definition(text: str) -> None:
    assert java_hash(text) == by_definition(text)


def test_java_hash_of_bytes_that_are_not_utf8_is_that_of_the_replaced_text() -> None:
    assert java_hash_bytes(b"a\xff") == by_definition("a\ufffd")


def test_index_hash_is_never_negative() -> None:
    assert [index_hash(value) for value in (5, -5, 0, -(2**31), 2**31 - 1)] == [5, 5, 0, 0, 2**31 - 1]


def test_tags_code_without_a_tag_is_zero() -> None:
    assert tags_code(None) == tags_code("") == tags_code(b"") == 0


def test_body_crc_clears_the_top_bit() -> None:
    assert body_crc(b"hi") == 1486039724
    assert body_crc(b"") == 0
    assert all(0 <= body_crc(bytes([value])) < 2**31 for value in range(256))
