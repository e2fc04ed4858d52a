"""Compresses and inflates bodies with zlib (the default), LZ4 frames or zstd (Apache: ``common/compression``).

Inflating is limited: a small body that would inflate to a huge one is refused as soon as it passes the limit. The
packages for LZ4 and zstd are loaded on first use.
"""

from __future__ import annotations

import sys
import zlib
from enum import IntEnum
from types import ModuleType
from typing import Final

from orbitmq.codes import COMPRESSION_MASK, SysFlag
from orbitmq.errors import RecordError

__all__ = [
    "COMPRESSION_LEVEL",
    "DECOMPRESSED_BYTES_MAX",
    "Compression",
    "compress_body",
    "decompress_body",
    "decompress_start",
]

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Sixteen times the largest body that a broker accepts by default."""

COMPRESSION_LEVEL: Final = 5
_ZSTD_WINDOW_LOG_MAX: Final = 27
"""The limit that zstd's own command uses by default: 128 MiB of memory for one body."""


class Compression(IntEnum):
    """The compression field of ``sysFlag``."""

    LZ4 = SysFlag.COMPRESSION_LZ4
    ZSTD = SysFlag.COMPRESSION_ZSTD
    ZLIB = SysFlag.COMPRESSION_ZLIB


def compress_body(
    body: bytes, compression: Compression = Compression.ZLIB, level: int = COMPRESSION_LEVEL
) -> bytes:
    """Returns the compressed body. The caller must set ``SysFlag.COMPRESSED | compression`` in ``sysFlag``."""
    if compression is Compression.ZLIB:
        return zlib.compress(body, level)
    if compression is Compression.LZ4:
        import lz4.frame

        # Independent blocks of the default size, which Apache's reader expects.
        compressed: bytes = lz4.frame.compress(body, block_linked=False)
        return compressed
    squeezed: bytes = _zstd().compress(body, level=level)
    return squeezed


def decompress_body(body: bytes, sys_flag: int, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Returns the inflated body.

    Raises ``RecordError`` if the body is damaged, incomplete, of an unknown kind or longer than ``max_bytes``. The
    caller decides whether it is compressed at all (``SysFlag.COMPRESSED``).
    """
    data, ended = _inflate(body, sys_flag, max_bytes + 1)
    if len(data) > max_bytes:
        raise RecordError(f"the body inflates to more than {max_bytes} bytes")
    if not ended:
        raise RecordError("the compressed body ends too early")
    return data


def decompress_start(body: bytes, sys_flag: int, max_bytes: int) -> tuple[bytes, bool]:
    """Returns the first ``max_bytes`` of the inflated body, and whether there is more. Nothing beyond them is
    inflated.

    Raises ``RecordError`` if the body is damaged before that point, incomplete or of an unknown kind.
    """
    data, ended = _inflate(body, sys_flag, max_bytes + 1)
    if len(data) > max_bytes:
        return data[:max_bytes], True
    if not ended:
        raise RecordError("the compressed body ends too early")
    return data, False


def _inflate(body: bytes, sys_flag: int, max_bytes: int) -> tuple[bytes, bool]:
    """Returns at most ``max_bytes`` of the inflated body, and whether the end of the body was reached."""
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, Compression.ZLIB):  # senders before 4.9.4 leave the field 0
        return _inflate_zlib(body, max_bytes)
    if kind == Compression.LZ4:
        return _inflate_lz4(body, max_bytes)
    if kind == Compression.ZSTD:
        return _inflate_zstd(body, max_bytes)
    raise RecordError(f"unknown compression type {kind >> 8}")


def _inflate_zlib(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, max_bytes)
    except zlib.error as error:
        raise RecordError(f"the zlib body is damaged: {error}") from None
    return data, inflater.eof


def _inflate_lz4(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        data: bytes = inflater.decompress(body, max_length=max_bytes)
    except (RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise RecordError(f"the LZ4 body is damaged: {error}") from None
    return data, inflater.eof


def _zstd() -> ModuleType:
    """Returns the zstd module of the standard library, or the package that provides it before Python 3.14."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _inflate_zstd(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    zstd = _zstd()
    inflater = zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX}
    )
    try:
        data: bytes = inflater.decompress(body, max_length=max_bytes)
    except zstd.ZstdError as error:
        raise RecordError(f"the zstd body is damaged: {error}") from None
    return data, inflater.eof
