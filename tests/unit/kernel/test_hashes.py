from __future__ import annotations

from array import array
from zlib import crc32

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


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_checksums_of_parts_are_those_of_each_part(kernel: Kernel, kind: type) -> None:
    data = bytes(range(256)) * 4
    ranges = [(0, 0), (0, 1024), (1, 129), (100, 101), (1024, 1024)]
    packed = array("q", [place for pair in ranges for place in pair]).tobytes()
    found = array("I", kernel.body_crcs(kind(data), packed))
    assert list(found) == [crc32(data[start:end]) & 0x7FFFFFFF for start, end in ranges]
    assert kernel.body_crcs(kind(data), b"") == b""


@pytest.mark.parametrize("pair", [(0, 11), (-1, 3), (5, 4), (11, 12), (2**62, 2**62)])
def test_checksum_of_a_part_outside_of_the_data_is_refused(kernel: Kernel, pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        kernel.body_crcs(b"0123456789", array("q", pair).tobytes())


def test_checksum_of_half_a_pair_is_refused(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match="pairs"):
        kernel.body_crcs(b"0123456789", array("q", [0]).tobytes())
