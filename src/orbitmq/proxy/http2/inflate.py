"""Decompresses messages. Official clients do not compress; others may use gzip."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Final

from orbitmq.proxy.http2.call import GrpcError, GrpcStatus

if TYPE_CHECKING:
    from orbitmq.proxy.http2.call import Call

__all__ = ["INFLATE_BYTES", "inflate", "inflate_slowly"]

INFLATE_BYTES: Final = 1024 * 1024
"""Bytes to inflate in one step, which takes a few milliseconds."""


def inflate(call: Call, message: bytes, limit: int) -> bytes:
    """Returns the decompressed message. Raises ``GrpcError``."""
    inflater = _inflater(call)
    plain = _step(inflater, message, limit)
    if inflater.unconsumed_tail or not inflater.eof:
        raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "the decompressed message is too large or cut")
    return plain


async def inflate_slowly(call: Call, message: bytes, limit: int) -> bytes:
    """Returns the decompressed message, letting other work run between steps. Raises ``GrpcError``.

    The decompressed bytes are counted as held by the call.
    """
    inflater = _inflater(call)
    parts: list[bytes] = []
    size = 0
    while True:
        parts.append(_step(inflater, message, INFLATE_BYTES))
        size += len(parts[-1])
        call.connection.keep(call, len(parts[-1]))
        message = inflater.unconsumed_tail
        if inflater.eof:
            return b"".join(parts)
        if size > limit or not message:
            raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "the decompressed message is too large or cut")
        await asyncio.sleep(0)
        if call.done:
            return b""


def _inflater(call: Call) -> zlib._Decompress:
    if call.header("grpc-encoding") != "gzip":
        raise GrpcError(GrpcStatus.UNIMPLEMENTED, "compression other than gzip is not supported")
    return zlib.decompressobj(wbits=31)


def _step(inflater: zlib._Decompress, message: bytes, limit: int) -> bytes:
    try:
        return inflater.decompress(message, limit)
    except zlib.error as error:
        raise GrpcError(GrpcStatus.INTERNAL, f"the message cannot be decompressed: {error}") from None
