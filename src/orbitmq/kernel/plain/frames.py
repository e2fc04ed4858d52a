"""Remoting frames: splits a byte stream into frames, reads the fields of sends, and encodes their responses.

Corresponds to Apache's RemotingCommand, RocketMQSerializable and its length-field decoder.

    length int32 | header word int32 (top byte: form, low 24 bits: header length) | header | body

A header has one of two forms. JSON: an object with code, flag, language, opaque, version, remark and the extension
fields. Binary: ``code int16, language int8, version int16, opaque int32, flag int32, remark length int32, remark,
extension length int32`` and entries ``key length int16, key, value length int32, value``. All extension fields are
text.

``read_send`` reads the form every client writes: texts, numbers in decimal digits, ``true`` and ``false``. For
anything else it returns None, and the typed reader (``wire.header``) accepts it or reports the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Final, NamedTuple

import msgspec

from orbitmq.codes import FrameFlag, KernelRequest, LanguageCode, Property, SerializeType, Version
from orbitmq.errors import FrameError, HeaderFieldError, RecordError
from orbitmq.kernel.layout import (
    BINARY_FIXED,
    BINARY_KEY_LENGTH,
    BINARY_MIN,
    FRAME_LENGTH,
    FRAME_PREFIX,
    HEADER_LENGTH_MASK,
    PROPERTIES_BYTES_MAX,
)
from orbitmq.kernel.plain.pulls import PullFields, pull_fields

__all__ = [
    "Frame",
    "SendAnswerFields",
    "SendFields",
    "SendOrigin",
    "SendTarget",
    "StoredProperties",
    "encode_send_fields",
    "read_send",
    "read_send_answer",
    "split_frames",
    "stored_properties",
]

_JSON: Final = int(SerializeType.JSON)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_RESPONSE: Final = int(FrameFlag.RESPONSE)
_ONEWAY: Final = int(FrameFlag.ONEWAY)
_PYTHON: Final = int(LanguageCode.PYTHON)
_VERSION: Final = Version.OURS
_LANGUAGE_NAMES: Final = {code.value: code.name for code in LanguageCode}
_LANGUAGE_CODES: Final = {code.name: code.value for code in LanguageCode}
_OTHER: Final = int(LanguageCode.OTHER)
_SEND: Final = int(KernelRequest.SEND_MESSAGE)
_SENDS: Final = (_SEND, int(KernelRequest.SEND_MESSAGE_V2), int(KernelRequest.SEND_BATCH_MESSAGE))
_PULLS: Final = (int(KernelRequest.PULL_MESSAGE), int(KernelRequest.LITE_PULL_MESSAGE))
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_NUMBER: Final = re.compile("[+-]?[0-9]{1,40}").fullmatch

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class SendFields(msgspec.Struct, gc=False):
    """The fields of a request that the send path needs, for every request code and header form."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    properties: bytes
    reconsume_times: int
    max_reconsume_times: int | None
    batch: bool


class Frame(msgspec.Struct, gc=False):
    """A whole frame. ``ext_raw`` holds the extension fields before decoding: JSON text or the binary region."""

    code: int
    opaque: int
    flag: int = 0
    version: int = _VERSION
    language: int = _PYTHON
    serialize_type: int = _JSON
    remark: str | None = None
    ext_raw: bytes = b""
    body: bytes = b""
    send: SendFields | None = None
    """Set for a send that ``read_send`` can read."""
    pull: PullFields | None = None
    """Set for a pull that ``pull_fields`` can read."""
    _ext: dict[str, str] | None = None
    request_count: ClassVar[int] = 1

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
        """The extension fields as text. Raises ``HeaderFieldError`` if they cannot be decoded."""
        if self._ext is None:
            read = read_binary_fields if self.serialize_type == _ROCKETMQ else read_json_fields
            self._ext = read(self.ext_raw)
        return self._ext


class Split(NamedTuple):
    """The result of ``split_frames``."""

    frames: list[Frame]
    end: int
    """Start of the first incomplete frame."""
    needed: int
    """Bytes needed from ``end`` on before another call can make progress."""
    error: str
    """Why nothing after the frames can be read; empty when it can."""


def split_frames(data: bytes, frame_bytes_max: int) -> Split:
    """Returns all whole frames of ``data``, in order. An invalid length is reported even if the frame is not complete
    yet."""
    frames: list[Frame] = []
    end, needed, error = split_into(frames.append, data, frame_bytes_max)
    return Split(frames, end, needed, error)


def split_into(add: Callable[[Frame], None], data: bytes, frame_bytes_max: int) -> tuple[int, int, str]:
    """Pass each frame to ``add``, and return the other fields of ``Split``."""
    position, available, limit = 0, len(data), frame_bytes_max - FRAME_LENGTH.size
    try:
        while available - position >= FRAME_LENGTH.size:
            (size,) = FRAME_LENGTH.unpack_from(data, position)
            if not 4 <= size <= limit:
                raise FrameError(f"frame length {size} is outside 4..{limit}")
            if available - position < FRAME_PREFIX.size:
                return position, FRAME_PREFIX.size, ""
            _, word = FRAME_PREFIX.unpack_from(data, position)
            header_length = word & HEADER_LENGTH_MASK
            if header_length > size - 4:
                raise FrameError(f"header length {header_length} is longer than its frame of {size} bytes")
            end = position + FRAME_LENGTH.size + size
            if end > available:
                return position, end - position, ""
            start = position + FRAME_PREFIX.size
            header, body = data[start : start + header_length], data[start + header_length : end]
            add(parse_header(word >> 24 & 0xFF, header, body))
            position = end
    except FrameError as error:
        return position, 0, str(error)
    return position, FRAME_LENGTH.size, ""


def parse_header(form: int, header: bytes, body: bytes) -> Frame:
    """Returns the frame with this header and body. Raises ``FrameError``."""
    if form == _ROCKETMQ:
        frame = _parse_binary(header, body)
    elif form == _JSON:
        frame = _parse_json(header, body)
    else:
        raise FrameError(f"unknown header serialization {form}")
    if frame.code in _SENDS and not frame.flag & _RESPONSE:
        frame.send = read_send(frame.code, form, frame.ext_raw)
    elif frame.code in _PULLS and not frame.flag & _RESPONSE:
        frame.pull = pull_fields(frame.ext_raw, form == _ROCKETMQ)
    return frame


class _Envelope(msgspec.Struct, gc=False, rename="camel"):
    """A JSON header. Extension fields stay raw, because most requests have a typed reader of their own."""

    code: Int32 = 0
    flag: Int32 = 0
    language: str | int | None = None
    opaque: Int32 = 0
    remark: str | None = None
    version: Int32 = 0
    ext_fields: msgspec.Raw = msgspec.Raw()


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_ext = msgspec.json.Decoder(dict[str, str | None]).decode
_decode_loose_ext = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode


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


def _parse_binary(header: bytes, body: bytes) -> Frame:
    size = len(header)
    if size < BINARY_MIN:
        raise FrameError(f"binary header of {size} bytes is shorter than {BINARY_MIN}")
    code, language, version, opaque, flag, remark_length = BINARY_FIXED.unpack_from(header)
    position = BINARY_FIXED.size
    remark = None
    if remark_length:
        end = position + remark_length
        if remark_length < 0 or end + FRAME_LENGTH.size > size:
            raise FrameError(f"remark of {remark_length} bytes does not fit the header")
        try:
            remark = header[position:end].decode()
        except UnicodeDecodeError:
            raise FrameError("remark is not UTF-8") from None
        position = end
    (ext_length,) = FRAME_LENGTH.unpack_from(header, position)
    position += FRAME_LENGTH.size
    if ext_length < 0 or position + ext_length > size:
        raise FrameError(f"extension region of {ext_length} bytes does not fit the header")
    ext_raw = header[position : position + ext_length]
    return Frame(code, opaque, flag, version, language, _ROCKETMQ, remark, ext_raw, body)


# -- extension fields ----------------------------------------------------------------------------------


def read_json_fields(raw: bytes) -> dict[str, str]:
    """Returns the extension fields of a JSON header. Raises ``HeaderFieldError``."""
    if not raw or raw == b"null":
        return {}
    try:
        return {key: value for key, value in _decode_ext(raw).items() if value is not None}
    except msgspec.ValidationError:
        return _read_loose_fields(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderFieldError(f"extFields cannot be read: {error}") from None


def _read_loose_fields(raw: bytes) -> dict[str, str]:
    """Returns fields whose values may be JSON numbers, which the C++ client writes. Like in Java, numbers are
    returned as their text."""
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


def read_binary_fields(raw: bytes) -> dict[str, str]:
    """Returns the extension fields of a binary header. Raises ``HeaderFieldError``."""
    fields: dict[str, str] = {}
    position = 0
    end = len(raw)
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
                fields[raw[key_start:key_end].decode()] = raw[value_start:value_end].decode()
            position = value_end
    except IndexError:
        raise HeaderFieldError("extFields cannot be read: the region ends inside an entry") from None
    except UnicodeDecodeError:
        raise HeaderFieldError("extFields cannot be read: not UTF-8") from None
    return fields


def _texts(form: int, raw: bytes) -> dict[str, str] | None:
    """Returns the extension fields if all of them are texts; otherwise None."""
    try:
        if form == _ROCKETMQ:
            return read_binary_fields(raw)
        if not raw or raw == b"null":
            return {}
        return {key: value for key, value in _decode_ext(raw).items() if value is not None}
    except (HeaderFieldError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


# -- sends ---------------------------------------------------------------------------------------------

_LONG_NAMES: Final = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
_SHORT_NAMES: Final = tuple("abcdefghijklm")
_SWITCHES: Final = ("nsd", "oway", "lo")
"""Boolean fields of every 5.x request, which a send only validates."""


class _Unreadable(Exception):
    """A field is missing or does not have the usual form of its type."""


def _number(text: str | None, allowed: range, default: int | None = None) -> int:
    if text is None:
        if default is None:
            raise _Unreadable
        return default
    if _NUMBER(text) is None or (number := int(text)) not in allowed:
        raise _Unreadable
    return number


def _flag(text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise _Unreadable
    return text == "true"


def read_send(code: int, form: int, ext_raw: bytes) -> SendFields | None:
    """Returns the fields of SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) or SEND_BATCH_MESSAGE (320). Returns None if
    they do not have the usual form."""
    found = _texts(form, ext_raw)
    if found is None:
        return None
    names = _LONG_NAMES if code == _SEND else _SHORT_NAMES
    a, b, c, d, e, f, g, h, i, j, k, last, m = map(found.get, names)
    try:
        if b is None:
            return None
        for switch in (k, *map(found.get, _SWITCHES)):
            _flag(switch)
        return SendFields(
            a or "",
            b,
            c or "",
            _number(d, _INT32, 0),
            _number(e, _INT32),
            _number(f, _INT32),
            _number(g, _INT64),
            _number(h, _INT32),
            (i or "").encode(),
            _number(j, _INT32, 0),
            None if last is None else _number(last, _INT32),
            _flag(m),
        )
    except _Unreadable:
        return None


class StoredProperties(NamedTuple):
    """The properties of a send as they are stored, and the values that the send path needs."""

    properties: bytes
    unique_key: bytes
    """Empty if the sender set none."""
    waits: bool
    """False if the sender set WAIT=false: the send is acknowledged as soon as it is stored."""
    asks: bool
    """Whether the message requests a delay, a delivery time, a transaction or an idempotent send."""


_ASKS: Final = frozenset(
    (
        Property.DELAY.value,
        Property.TRANSACTION_PREPARED.value,
        Property.TIMER_DELAY_SEC.value,
        Property.TIMER_DELAY_MS.value,
        Property.TIMER_DELIVER_MS.value,
        Property.IDEMPOTENT.value,
    )
)


def stored_properties(raw: bytes, added: bytes) -> StoredProperties:
    """Returns the property text of a send, with the pairs of ``added`` set and POP_CK removed.

    Pairs with an empty name or value are dropped. If two pairs have the same name, the later one counts. The text
    ends with a terminator. Raises ``RecordError`` if the result is too long.
    """
    pairs = pairs_of(raw)
    pairs.pop(Property.POP_CK.value, None)
    unique_key = pairs.get(Property.UNIQUE_KEY.value, "")
    waits = pairs.get(Property.WAIT.value) != "false"
    asks = not _ASKS.isdisjoint(pairs)
    pairs.update(pairs_of(added))
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()]).encode()
    if len(text) > PROPERTIES_BYTES_MAX:
        raise RecordError(f"properties have {len(text)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed")
    return StoredProperties(text, unique_key.encode(), waits, asks)


def pairs_of(raw: bytes) -> dict[str, str]:
    split = (pair.partition("\x01") for pair in raw.decode("utf-8", "replace").split("\x02"))
    return {name: value for name, _, value in split if name and value}


def encode_binary_fields(fields: Mapping[str, str]) -> bytes:
    """Returns the extension region of a binary header. Empty texts are omitted, because this form cannot represent
    them."""
    parts: list[bytes] = []
    for key, value in fields.items():
        if value:
            raw_key, raw_value = key.encode(), value.encode()
            parts += (
                BINARY_KEY_LENGTH.pack(len(raw_key)),
                raw_key,
                FRAME_LENGTH.pack(len(raw_value)),
                raw_value,
            )
    return b"".join(parts)


# -- the client's side ---------------------------------------------------------------------------------


class SendOrigin(NamedTuple):
    """The values shared by all sends of a producer."""

    group: str
    default_topic: str
    default_queue_count: int


class SendTarget(NamedTuple):
    """The destination of a send."""

    topic: str
    broker_name: str
    queue_id: int


def encode_send_fields(
    origin: SendOrigin,
    target: SendTarget,
    properties: bytes,
    born_ms: int,
    sys_flag: int,
    flag: int,
    batch: bool,
) -> bytes:
    """Returns the extension region of a send in the binary form, in the order of Apache's fast encoder."""
    group, default_topic, default_queue_count = origin
    topic, broker_name, queue_id = target
    head = {
        "a": group,
        "b": topic,
        "c": default_topic,
        "d": str(default_queue_count),
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(born_ms),
        "h": str(flag),
    }
    tail = {"j": "0", "k": "false", "m": "true" if batch else "false", "n": broker_name}
    middle = b"\x00\x01i" + FRAME_LENGTH.pack(len(properties)) + properties if properties else b""
    return encode_binary_fields(head) + middle + encode_binary_fields(tail)


class SendAnswerFields(msgspec.Struct, gc=False):
    """The response fields that a producer needs. Missing ones are None."""

    queue_id: int | None
    queue_offset: int
    message_id: str
    transaction_id: str | None
    region: str | None
    traced: bool
    recall_handle: str | None


def read_send_answer(form: int, ext_raw: bytes) -> SendAnswerFields:
    """Returns the fields of a send response. Raises ``HeaderFieldError``."""
    fields = read_binary_fields(ext_raw) if form == _ROCKETMQ else read_json_fields(ext_raw)
    queue_id, queue_offset = fields.get("queueId"), fields.get("queueOffset")
    try:
        return SendAnswerFields(
            None if queue_id is None else _number(queue_id, _INT32),
            _number(queue_offset, _INT64, -1),
            fields.get("msgId", ""),
            fields.get("transactionId"),
            fields.get("MSG_REGION"),
            fields.get("TRACE_ON") != "false",
            fields.get("recallHandle"),
        )
    except _Unreadable:
        raise HeaderFieldError("the answer to a send has a queue that is not a number") from None
