"""Compressed bodies: zlib (the default), LZ4 frames and zstd (Apache: ``common/compression``).

Inflating is bounded: a small body that claims to become huge is refused once the bound is passed, not after the
memory is gone. The lz4 and zstandard packages are loaded when first needed.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

from orbitmq.codes import COMPRESSION_MASK, SysFlag
from orbitmq.errors import RecordError

__all__ = ["COMPRESSION_LEVEL", "DECOMPRESSED_BYTES_MAX", "Compression", "compress_body", "decompress_body"]

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Sixteen times the largest body a broker takes by default."""

COMPRESSION_LEVEL: Final = 5
_ZSTD_PIECE: Final = 1024
_ZSTD_WINDOW_MAX: Final = 1 << 27


class Compression(IntEnum):
    """The compression field of ``sysFlag``."""

    LZ4 = SysFlag.COMPRESSION_LZ4
    ZSTD = SysFlag.COMPRESSION_ZSTD
    ZLIB = SysFlag.COMPRESSION_ZLIB


def compress_body(
    body: bytes, compression: Compression = Compression.ZLIB, level: int = COMPRESSION_LEVEL
) -> bytes:
    """The compressed body; the sender then sets ``SysFlag.COMPRESSED | compression`` in ``sysFlag``."""
    if compression is Compression.ZLIB:
        return zlib.compress(body, level)
    if compression is Compression.LZ4:
        import lz4.frame

        # Blocks independent and of the default size: what Apache's reader was built for.
        compressed: bytes = lz4.frame.compress(body, block_linked=False)
        return compressed
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress_body(body: bytes, sys_flag: int, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The inflated body.

    Raises ``RecordError`` if it is damaged, unfinished, of unknown kind or longer than ``max_bytes``.
    Whether it is compressed at all is the caller's question (``SysFlag.COMPRESSED``).
    """
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, Compression.ZLIB):  # senders before 4.9.4 leave the field 0
        return _inflate_zlib(body, max_bytes)
    if kind == Compression.LZ4:
        return _inflate_lz4(body, max_bytes)
    if kind == Compression.ZSTD:
        return _inflate_zstd(body, max_bytes)
    raise RecordError(f"unknown compression type {kind >> 8}")


def _too_large(max_bytes: int) -> RecordError:
    return RecordError(f"the body inflates to more than {max_bytes} bytes")


def _inflate_zlib(body: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise RecordError(f"the zlib body is damaged: {error}") from None
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    if not inflater.eof:
        raise RecordError("the zlib body ends too early")
    return data


def _inflate_lz4(body: bytes, max_bytes: int) -> bytes:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        data: bytes = inflater.decompress(body, max_length=max_bytes + 1)
    except (RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise RecordError(f"the LZ4 body is damaged: {error}") from None
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    if not inflater.eof:
        raise RecordError("the LZ4 body ends too early")
    return data


def _inflate_zstd(body: bytes, max_bytes: int) -> bytes:
    import zstandard

    # The reader of whole streams takes a cut stream for a finished one, and the one-shot call trusts the sender's
    # claim of the size or allocates the bound. Fed in small pieces the decoder's output is bounded as well: a
    # block takes at least 4 bytes and gives at most 128 KiB.
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).decompressobj()
    chunks: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(body), _ZSTD_PIECE):
            chunk = inflater.decompress(body[start : start + _ZSTD_PIECE])
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(max_bytes)
            if inflater.eof:
                return b"".join(chunks)
    except zstandard.ZstdError as error:
        raise RecordError(f"the zstd body is damaged: {error}") from None
    raise RecordError("the zstd body ends too early")
