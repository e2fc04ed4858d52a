"""Remoting frames: split a byte stream into frames, read and write both header forms.

Answers to Apache's RemotingCommand, RocketMQSerializable and its length-field decoder.

    length int32 | header word int32 (top byte: form, low 24 bits: header length) | header | body

Theory of operation
1. The decoder never looks at time or sockets; it gives the same frames for every way of cutting the stream.
2. A length outside the limit is refused before anything is allocated for it. After a broken frame there is
   no way to find the next one: ``error`` is set and stays, the frames before it are still given out, and
   the owner must close the connection once it has handled them.
3. Only what every request needs (code, opaque, flag) is read here. Extension fields stay raw bytes until
   somebody asks: the send and pull paths read them with their own readers (see ``header.decode_header``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from orbitmq.codes import FrameFlag, LanguageCode, SerializeType, Version
from orbitmq.errors import FrameError, HeaderFieldError

__all__ = [
    "FRAME_BYTES_MAX",
    "Frame",
    "FrameDecoder",
    "encode_binary_ext",
    "encode_binary_request",
    "encode_frame",
    "encode_oneway",
    "encode_request",
    "encode_response",
    "whole_frame",
]

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest frame including its length word; the limit of Apache's peers."""

_LENGTH: Final = struct.Struct(">i")
_PREFIX: Final = struct.Struct(">ii")
_BINARY_FIXED: Final = struct.Struct(">hBhiii")
"""code, language, version, opaque, flag, remark length."""
_BINARY_PLAIN: Final = struct.Struct(">hBhiiii")
"""The same without a remark: the last field is the length of the extension region then."""
_KEY_LENGTH: Final = struct.Struct(">h")
_BINARY_MIN: Final = _BINARY_FIXED.size + _LENGTH.size
assert _BINARY_MIN == 21, "wire format: the shortest binary header"

_HEADER_LENGTH_MASK: Final = 0xFFFFFF
_ROCKETMQ_WORD: Final = int(SerializeType.ROCKETMQ) << 24
_LANGUAGE_NAMES: Final = {code.value: code.name for code in LanguageCode}
_LANGUAGE_CODES: Final = {code.name: code.value for code in LanguageCode}
_OTHER: Final = int(LanguageCode.OTHER)
_JSON: Final = int(SerializeType.JSON)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_RESPONSE: Final = int(FrameFlag.RESPONSE)
_ONEWAY: Final = int(FrameFlag.ONEWAY)
_PYTHON: Final = int(LanguageCode.PYTHON)
_VERSION: Final = Version.OURS

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _Envelope(msgspec.Struct, gc=False, rename="camel"):
    """A JSON header. Extension fields are kept raw: most requests are read by a typed reader of their own."""

    code: _Int32 = 0
    flag: _Int32 = 0
    language: str | int | None = None
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0
    ext_fields: msgspec.Raw = msgspec.Raw()


class _Written(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """A JSON header as we write it: keys in alphabetical order, like Apache 5.5.0. The empty defaults only
    let ``None`` be left out; every number is always given."""

    code: int
    ext_fields: Mapping[str, str] | None = None
    flag: int | str = ""
    language: str = ""
    opaque: int | str = ""
    remark: str | None = None
    serialize_type_current_rpc: str = msgspec.field(name="serializeTypeCurrentRPC", default="")
    version: int | str = ""


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_ext = msgspec.json.Decoder(dict[str, str | None]).decode
_decode_loose_ext = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode
_encode_json = msgspec.json.Encoder().encode


class Frame(msgspec.Struct, gc=False):
    """One whole frame. ``ext_raw`` is the undecoded extension map: JSON text or the binary region."""

    code: int
    opaque: int
    flag: int = 0
    version: int = _VERSION
    language: int = _PYTHON
    serialize_type: int = _JSON
    remark: str | None = None
    ext_raw: bytes = b""
    body: bytes = b""
    _ext: dict[str, str] | None = None

    @property
    def is_response(self) -> bool:
        return self.flag & _RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & _ONEWAY != 0

    @property
    def language_name(self) -> str:
        return _LANGUAGE_NAMES.get(self.language, "OTHER")

    @property
    def ext_fields(self) -> dict[str, str]:
        """The extension fields as text. Raises ``HeaderFieldError`` when they cannot be read."""
        if self._ext is None:
            read = _read_binary_ext if self.serialize_type == _ROCKETMQ else _read_json_ext
            self._ext = read(self.ext_raw)
        return self._ext


def _read_json_ext(raw: bytes) -> dict[str, str]:
    if not raw or raw == b"null":
        return {}
    try:
        return {key: value for key, value in _decode_ext(raw).items() if value is not None}
    except msgspec.ValidationError:
        return _read_loose_ext(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderFieldError(f"extFields cannot be read: {error}") from None


def _read_loose_ext(raw: bytes) -> dict[str, str]:
    """The C++ client writes some numbers as numbers; Java reads them as their text."""
    fields: dict[str, str] = {}
    try:
        for key, value in _decode_loose_ext(raw).items():
            if isinstance(value, bool):
                fields[key] = "true" if value else "false"
            elif value is not None:
                fields[key] = str(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderFieldError(f"extFields cannot be read: {error}") from None
    return fields


def _read_binary_ext(raw: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    position = 0
    end = len(raw)
    # Nearly every region is ASCII, length words included: then one decode serves all entries.
    text = raw.decode() if raw.isascii() else None
    try:
        while position < end:
            key_start = position + 2
            key_end = key_start + (raw[position] << 8 | raw[position + 1])
            value_start = key_end + 4
            value_end = (
                value_start
                + (raw[key_end] << 24 | raw[key_end + 1] << 16)
                + (raw[key_end + 2] << 8 | raw[key_end + 3])
            )
            if value_end > end:
                raise HeaderFieldError("extFields cannot be read: an entry reaches behind the region")
            # A zero-length text is null in this form, as in Apache's reader.
            if key_end > key_start and value_end > value_start:
                if text is not None:
                    fields[text[key_start:key_end]] = text[value_start:value_end]
                else:
                    fields[raw[key_start:key_end].decode()] = raw[value_start:value_end].decode()
            position = value_end
    except IndexError:
        raise HeaderFieldError("extFields cannot be read: the region ends inside an entry") from None
    except UnicodeDecodeError:
        raise HeaderFieldError("extFields cannot be read: not UTF-8") from None
    return fields


def _parse_json(header: bytes, body: bytes) -> Frame:
    try:
        envelope = _decode_envelope(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"JSON header cannot be read: {error}") from None
    language = envelope.language
    if not isinstance(language, int):
        language = _LANGUAGE_CODES.get(language or "JAVA", _OTHER)
    return Frame(
        envelope.code,
        envelope.opaque,
        envelope.flag,
        envelope.version,
        language,
        _JSON,
        envelope.remark,
        bytes(envelope.ext_fields),
        body,
    )


def _parse_binary(data: bytes, start: int, body_start: int, end: int) -> Frame:
    if body_start - start >= _BINARY_MIN:
        # Hot: once per frame. Nearly none has a remark, and then nothing is copied but what is kept.
        code, language, version, opaque, flag, remark_length, ext_length = _BINARY_PLAIN.unpack_from(
            data, start
        )
        ext_start = start + _BINARY_MIN
        if remark_length == 0 and 0 <= ext_length <= body_start - ext_start:
            ext_raw = data[ext_start : ext_start + ext_length]
            return Frame(
                code, opaque, flag, version, language, _ROCKETMQ, None, ext_raw, data[body_start:end]
            )
    return _parse_any_binary(data[start:body_start], data[body_start:end])


def _parse_any_binary(header: bytes, body: bytes) -> Frame:
    size = len(header)
    if size < _BINARY_MIN:
        raise FrameError(f"binary header of {size} bytes is shorter than {_BINARY_MIN}")
    code, language, version, opaque, flag, remark_length = _BINARY_FIXED.unpack_from(header)
    position = _BINARY_FIXED.size
    remark = None
    if remark_length:
        end = position + remark_length
        if remark_length < 0 or end + _LENGTH.size > size:
            raise FrameError(f"remark of {remark_length} bytes does not fit the header")
        try:
            remark = header[position:end].decode()
        except UnicodeDecodeError:
            raise FrameError("remark is not UTF-8") from None
        position = end
    (ext_length,) = _LENGTH.unpack_from(header, position)
    position += _LENGTH.size
    if ext_length < 0 or position + ext_length > size:
        raise FrameError(f"extension region of {ext_length} bytes does not fit the header")
    ext_raw = header[position : position + ext_length]
    return Frame(code, opaque, flag, version, language, _ROCKETMQ, remark, ext_raw, body)


def whole_frame(data: bytes) -> Frame | None:
    """The frame that ``data`` is, for who asks one thing at a time and mostly gets the answer in one read.

    None: it is less or more than one frame in the binary form, or a broken one; ``FrameDecoder`` can tell.
    """
    if len(data) < _PREFIX.size + _BINARY_MIN:
        return None
    size, word = _PREFIX.unpack_from(data)
    body_start = _PREFIX.size + (word & _HEADER_LENGTH_MASK)
    if size + 4 != len(data) or word >> 24 != _ROCKETMQ or body_start > len(data):
        return None
    try:
        return _parse_binary(data, _PREFIX.size, body_start, len(data))
    except FrameError:
        return None


class FrameDecoder:
    """Turns chunks of a stream into frames. Once ``error`` is set it gives no more frames."""

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
        """All whole frames up to the end of ``data``, in order. Never raises; see ``error``."""
        if self.error is not None:
            return []
        if self._buffer:
            self._buffer += data
            # A large frame comes in hundreds of chunks: do not look at it again until it can be whole.
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        frames: list[Frame] = []
        try:
            end = self._split(data, frames)
        except FrameError as error:
            self.error = error
            return frames
        if end < len(data):
            self._buffer += data[end:] if end else data
        return frames

    def _split(self, data: bytes, frames: list[Frame]) -> int:
        append = frames.append
        unpack = _PREFIX.unpack_from
        position = 0
        available = len(data)
        limit = self._frame_bytes_max - 4
        self._needed = 4
        while available - position >= 8:
            size, word = unpack(data, position)
            if not 4 <= size <= limit:
                raise FrameError(f"frame length {size} is outside 4..{limit}")
            end = position + 4 + size
            header_length = word & _HEADER_LENGTH_MASK
            if header_length > size - 4:
                raise FrameError(f"header length {header_length} is longer than its frame of {size} bytes")
            if end > available:
                self._needed = end - position
                return position
            body_start = position + 8 + header_length
            form = word >> 24
            if form == _ROCKETMQ:
                append(_parse_binary(data, position + 8, body_start, end))
            elif form == _JSON:
                append(_parse_json(data[position + 8 : body_start], data[body_start:end]))
            else:
                raise FrameError(f"unknown header serialization {form & 0xFF}")
            position = end
        if available - position >= 4:
            # The length alone can be refused already, before the header word arrives.
            (size,) = _LENGTH.unpack_from(data, position)
            if not 4 <= size <= limit:
                raise FrameError(f"frame length {size} is outside 4..{limit}")
            self._needed = 8
        return position


def encode_binary_ext(fields: Mapping[str, str]) -> bytes:
    """The extension region of a binary header. Empty texts cannot travel in this form and are left out."""
    parts: list[bytes] = []
    for key, value in fields.items():
        if not value:
            continue
        raw_key = key.encode()
        raw_value = value.encode()
        parts += (
            _KEY_LENGTH.pack(len(raw_key)),
            raw_key,
            _LENGTH.pack(len(raw_value)),
            raw_value,
        )
    return b"".join(parts)


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
        raw_ext = encode_binary_ext(ext) if ext else b""
        header = b"".join(
            (
                _BINARY_FIXED.pack(code, language, version, opaque, flag, len(raw_remark)),
                raw_remark,
                _LENGTH.pack(len(raw_ext)),
                raw_ext,
            )
        )
        word = _ROCKETMQ_WORD | len(header)
    else:
        # Codes over 32,767 (the POP family) do not fit the binary form; every peer reads JSON.
        name = _LANGUAGE_NAMES.get(language, "OTHER")
        header = _encode_json(_Written(code, ext, flag, name, opaque, remark, "JSON", version))
        word = len(header)
    return b"".join((_PREFIX.pack(4 + len(header) + len(body), word), header, body))


def encode_request(
    code: int,
    opaque: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    serialize_type: int = _JSON,
    version: int = _VERSION,
) -> bytes:
    """A request that expects an answer."""
    return _encode(code, opaque, 0, ext, None, body, serialize_type, version, _PYTHON)


def encode_binary_request(code: int, opaque: int, ext_raw: bytes, body: bytes) -> bytes:
    """A request whose extension fields are written already (``encode_binary_ext``): one join, no loop."""
    ext_size = len(ext_raw)
    header_size = _BINARY_MIN + ext_size
    return b"".join(
        (
            _PREFIX.pack(4 + header_size + len(body), _ROCKETMQ_WORD | header_size),
            _BINARY_FIXED.pack(code, _PYTHON, _VERSION, opaque, 0, 0),
            _LENGTH.pack(ext_size),
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
    """A request that must not be answered."""
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
    """An answer to the request with the same opaque."""
    return _encode(code, opaque, _RESPONSE, ext, remark, body, serialize_type, version, _PYTHON)


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a decoded frame: same values, and the same bytes but for the free order of JSON keys."""
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
