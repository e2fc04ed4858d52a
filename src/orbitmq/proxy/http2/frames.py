"""HTTP/2 frames (RFC 9113): constants, and encoders of the frames that a server sends."""

from __future__ import annotations

from struct import Struct
from typing import Final

from orbitmq.proxy.http2.hpack import literal

__all__ = [
    "ACK",
    "ANSWER_HEADERS",
    "CONTINUATION",
    "DATA",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_BYTES_DEFAULT",
    "GOAWAY",
    "HEADER",
    "HEADERS",
    "MESSAGE_PREFIX",
    "OK_TRAILERS",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITY_FLAG",
    "RST_STREAM",
    "SETTING",
    "SETTINGS",
    "WINDOW_DEFAULT",
    "WINDOW_MAX",
    "WINDOW_UPDATE",
    "H2Error",
    "frame",
    "settings_frame",
    "trailers",
    "window_update",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER: Final = Struct(">HBBBI")
"""Frame header: length (16 high bits, 8 low bits), type, flags, stream."""
assert HEADER.size == 9
MESSAGE_PREFIX: Final = Struct(">BI")
"""Prefix of each gRPC message: compression flag and size."""
SETTING: Final = Struct(">HI")
_NUMBER: Final = Struct(">I")

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

FRAME_BYTES_DEFAULT: Final = 16_384
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
_MESSAGE_MAX: Final = 1024
"""Maximum length of a status message, in characters."""


class H2Error(Exception):
    """The peer violated the protocol. The connection ends with this error code."""

    NO_ERROR: Final = 0
    PROTOCOL: Final = 1
    FLOW_CONTROL: Final = 3
    STREAM_CLOSED: Final = 5
    FRAME_SIZE: Final = 6
    REFUSED_STREAM: Final = 7
    CANCEL: Final = 8
    COMPRESSION: Final = 9
    ENHANCE_YOUR_CALM: Final = 11

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Returns the bytes of one frame."""
    size = len(payload)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream_id: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(count))


# ":status: 200" and "content-type" are in the static table.
ANSWER_HEADERS: Final = b"\x88\x0f\x10\x10application/grpc"
OK_TRAILERS: Final = literal("grpc-status", "0")


def trailers(status: int, message: str) -> bytes:
    """Returns the header block that ends a call."""
    if not status and not message:
        return OK_TRAILERS
    safe = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte != 0x25 else f"%{byte:02X}"
        for byte in message[:_MESSAGE_MAX].encode("utf-8", "replace")
    )
    return literal("grpc-status", str(status)) + (literal("grpc-message", safe) if safe else b"")
