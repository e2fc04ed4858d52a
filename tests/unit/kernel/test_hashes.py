from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apache.kernels import Kernel, load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0),
        (b"TagA", 2598919),
        (b"TagB", 2598920),
        ("\u4e2d".encode(), 0x4E2D),
        ("\U0001f600".encode(), 0xD83D * 31 + 0xDE00),
        (b"\xff", 0xFFFD),
    ],
)
def test_java_hash_of_known_text_is_javas(kernel: Kernel, text: bytes, expected: int) -> None:
    assert kernel.java_hash_bytes(text) == expected


@given(data=st.binary(max_size=200))
def test_java_hash_of_any_bytes_is_the_same_in_both(data: bytes) -> None:
    assert load("fast").java_hash_bytes(data) == load("plain").java_hash_bytes(data)
