"""Compressed bodies."""

from __future__ import annotations

import zlib

import pytest

from orbitmq.codes import SysFlag
from orbitmq.errors import RecordError
from orbitmq.record.compression import Compression, compress_body, decompress_body

MAGICS = {
    Compression.ZLIB: b"\x78\x5e",
    Compression.LZ4: b"\x04\x22\x4d\x18",
    Compression.ZSTD: b"\x28\xb5\x2f\xfd",
}


def test_zlib_gives_the_bytes_of_apaches_compressor() -> None:
    assert compress_body(b"a" * 24).hex() == "785e4b4cc40e0071c40919"


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("body", [b"", b"x", b"text " * 50_000, bytes(range(256)) * 600])
def test_each_kind_starts_with_its_magic_and_reads_back(compression: Compression, body: bytes) -> None:
    compressed = compress_body(body, compression)
    assert compressed.startswith(MAGICS[compression])
    assert decompress_body(compressed, SysFlag.COMPRESSED | compression) == body


def test_lz4_blocks_are_independent() -> None:
    assert compress_body(b"x" * 100, Compression.LZ4)[4] & 0x20


def test_old_senders_leave_the_kind_zero_for_zlib() -> None:
    assert decompress_body(zlib.compress(b"old"), SysFlag.COMPRESSED) == b"old"


@pytest.mark.parametrize("compression", Compression)
def test_a_body_that_inflates_beyond_the_bound_is_refused(compression: Compression) -> None:
    bomb = compress_body(bytes(1_000_000), compression)
    assert len(bomb) < 10_000
    assert len(decompress_body(bomb, compression, 1_000_000)) == 1_000_000
    with pytest.raises(RecordError, match="more than 999999 bytes"):
        decompress_body(bomb, compression, 999_999)


@pytest.mark.parametrize("compression", Compression)
def test_a_damaged_or_cut_body_is_refused(compression: Compression) -> None:
    compressed = compress_body(bytes(range(256)) * 10, compression)
    for broken in (b"", b"garbage", compressed[:3], compressed[:-6], b"\xff" + compressed[1:]):
        with pytest.raises(RecordError):
            decompress_body(broken, compression)


@pytest.mark.parametrize("kind", [0x400, 0x500, 0x600, 0x700])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(RecordError, match="unknown compression type"):
        decompress_body(b"x", kind)
