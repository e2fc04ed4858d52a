"""Remoting frames: splits a stream into frames, and writes frames in both header forms.

Corresponds to Apache's RemotingCommand and its length-field decoder. The bytes belong to the kernel
(``kernel.plain.frames`` has the format); this module has the stateful part.

1. The decoder uses neither time nor sockets, and returns the same frames however the stream is cut.
2. A length outside the limit is refused before anything is allocated for it. After a malformed frame the next one
   cannot be found: ``error`` is set and stays, the frames before it are still returned, and the owner must close the
   connection once it has handled them.
3. Only what every request needs (code, opaque, flag) and the fields of sends are parsed. Other extension fields stay
   raw bytes until they are needed (see ``header.decode_header``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, cast

import msgspec

from orbitmq.codes import FrameFlag, LanguageCode, SerializeType, Version
from orbitmq.errors import FrameError
from orbitmq.kernel import Frame, Sends, split_frames, split_requests
from orbitmq.kernel.layout import BINARY_FIXED, BINARY_MIN, FRAME_LENGTH, FRAME_PREFIX
from orbitmq.kernel.plain.frames import encode_binary_fields

__all__ = [
    "FRAME_BYTES_MAX",
    "Frame",
    "FrameDecoder",
    "Request",
    "encode_binary_fields",
    "encode_binary_request",
    "encode_frame",
    "encode_oneway",
    "encode_request",
    "encode_response",
    "whole_frame",
]

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest frame including its length field; the limit of Apache's peers."""

Request: TypeAlias = Frame | Sends
"""One request or response, or plain sends that follow each other."""

_ROCKETMQ_WORD: Final = int(SerializeType.ROCKETMQ) << 24
_LANGUAGE_NAMES: Final = {code.value: code.name for code in LanguageCode}
_JSON: Final = int(SerializeType.JSON)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_RESPONSE: Final = int(FrameFlag.RESPONSE)
_ONEWAY: Final = int(FrameFlag.ONEWAY)
_PYTHON: Final = int(LanguageCode.PYTHON)
_VERSION: Final = Version.OURS
_HTTP_STARTS: Final = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PRI ", b"HTTP"))
_TLS_START: Final = b"\x16\x03"  # a handshake record, as all versions of TLS open with


class _Written(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """A JSON header as we write it. Keys are in alphabetical order, like in Apache 5.5.0. The empty defaults only
    omit ``None``; numbers are always written."""

    code: int
    ext_fields: Mapping[str, str] | None = None
    flag: int | str = ""
    language: str = ""
    opaque: int | str = ""
    remark: str | None = None
    serialize_type_current_rpc: str = msgspec.field(name="serializeTypeCurrentRPC", default="")
    version: int | str = ""


_encode_json = msgspec.json.Encoder(enc_hook=int).encode  # a declared request is an int of its own type


def whole_frame(data: bytes) -> Frame | None:
    """Returns the frame in ``data``, for callers that send one request at a time and mostly get the response in one
    read.

    Returns None if ``data`` is less or more than one frame, or a malformed one; ``FrameDecoder`` can tell which.
    """
    frames, end, _, error = split_frames(data, FRAME_BYTES_MAX)
    return frames[0] if len(frames) == 1 and end == len(data) and not error else None


def _foreign_protocol(start: bytes) -> str:
    """Returns a text that names the protocol of a peer that connected to the wrong port; empty if it is unknown.
    ``start`` is the four bytes that the peer sent as a frame length."""
    if start in _HTTP_STARTS:
        return "; the peer speaks HTTP"
    if start[:2] == _TLS_START:
        return "; the peer speaks TLS"
    return ""


class FrameDecoder:
    """Converts chunks of a stream to frames. Once ``error`` is set it returns no more frames."""

    __slots__ = ("_buffer", "_frame_bytes_max", "_needed", "error")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._needed = 0
        self._frame_bytes_max = frame_bytes_max
        self.error: FrameError | None = None

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Returns all frames that are complete now, in order. Never raises an error; see ``error``."""
        return cast("list[Frame]", self.requests(data, 0))

    def requests(self, data: bytes, sends_max: int) -> list[Request]:
        """Like ``feed``, but returns up to ``sends_max`` consecutive plain sends as one value."""
        if self.error is not None:
            return []
        if self._buffer:
            # A large frame arrives in hundreds of chunks: skip them until it can be complete.
            if len(self._buffer) + len(data) < self._needed:
                self._buffer += data
                return []
            data = b"".join((self._buffer, data))
            self._buffer.clear()
        found, end, self._needed, error = split_requests(data, self._frame_bytes_max, sends_max)
        if error:
            self.error = FrameError(error + _foreign_protocol(data[end : end + 4]))
        elif end < len(data):
            self._buffer += data[end:] if end else data
        return found


def _encode(
    code: int,
    opaque: int,
    flag: int,
    ext: Mapping[str, str] | None,
    remark: str | None,
    body: bytes,
    serialize_type: int,
    version: int,
    language: int,
) -> bytes:
    if serialize_type == _ROCKETMQ and -32768 <= code <= 32767:
        raw_remark = remark.encode() if remark else b""
        raw_ext = encode_binary_fields(ext) if ext else b""
        header = b"".join(
            (
                BINARY_FIXED.pack(code, language, version, opaque, flag, len(raw_remark)),
                raw_remark,
                FRAME_LENGTH.pack(len(raw_ext)),
                raw_ext,
            )
        )
        word = _ROCKETMQ_WORD | len(header)
    else:
        # Codes above 32,767 (the POP family) do not fit the binary form; every peer reads JSON.
        name = _LANGUAGE_NAMES.get(language, "OTHER")
        header = _encode_json(_Written(code, ext, flag, name, opaque, remark, "JSON", version))
        word = len(header)
    return b"".join((FRAME_PREFIX.pack(4 + len(header) + len(body), word), header, body))


def encode_request(
    code: int,
    opaque: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    serialize_type: int = _JSON,
    version: int = _VERSION,
) -> bytes:
    """Returns the frame of a request that expects a response."""
    return _encode(code, opaque, 0, ext, None, body, serialize_type, version, _PYTHON)


def encode_binary_request(code: int, opaque: int, ext_raw: bytes, body: bytes) -> bytes:
    """Returns the frame of a request whose extension fields are already encoded (``encode_binary_fields``). Fast,
    because it only joins bytes."""
    ext_size = len(ext_raw)
    header_size = BINARY_MIN + ext_size
    return b"".join(
        (
            FRAME_PREFIX.pack(4 + header_size + len(body), _ROCKETMQ_WORD | header_size),
            BINARY_FIXED.pack(code, _PYTHON, _VERSION, opaque, 0, 0),
            FRAME_LENGTH.pack(ext_size),
            ext_raw,
            body,
        )
    )


def encode_oneway(
    code: int,
    opaque: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    serialize_type: int = _JSON,
    version: int = _VERSION,
) -> bytes:
    """Returns the frame of a request that must not be answered."""
    return _encode(code, opaque, _ONEWAY, ext, None, body, serialize_type, version, _PYTHON)


def encode_response(
    code: int,
    opaque: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
    serialize_type: int = _JSON,
    version: int = _VERSION,
) -> bytes:
    """Returns the frame of the response to the request with the same opaque."""
    return _encode(code, opaque, _RESPONSE, ext, remark, body, serialize_type, version, _PYTHON)


def encode_frame(frame: Frame) -> bytes:
    """Returns a decoded frame as bytes. They are the bytes it was decoded from, except that JSON keys may be in
    another order."""
    return _encode(
        frame.code,
        frame.opaque,
        frame.flag,
        frame.ext_fields or None,
        frame.remark,
        frame.body,
        frame.serialize_type,
        frame.version,
        frame.language,
    )
