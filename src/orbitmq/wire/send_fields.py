"""The header of a send, read as fast as Python can.

A send carries a dozen fields, of which all but four repeat from message to message: who sends, to which topic, and
the tail of flags. The binary form keeps them in a fixed order (Apache's fast encoder writes ``a`` to ``n``), so the
repeating head and tail are looked up as bytes, whole, and one regular expression reads the rest. Anything that does
not look exactly like that goes through the typed reader, which also finds every error.

Measured with a 128-byte message of the Java 5.5.0 client: 2.0 us, against 8 us for the typed reader.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from orbitmq.codes import SerializeType
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.send import SendMessageRequest, SendMessageRequestV2

__all__ = ["SendFields", "read_send", "read_send_v2"]

_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)


class SendFields(msgspec.Struct, gc=False):
    """What the send path needs of a request, whatever its code and form."""

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


class _Head(msgspec.Struct, gc=False):
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int


class _Tail(msgspec.Struct, gc=False):
    reconsume_times: int
    max_reconsume_times: int | None
    batch: bool


def _digits(lengths: range) -> bytes:
    """A value of decimal digits whose length byte is right."""
    cases = b"|".join(b"\\x%02x(?=\\d{%d}\\x00)" % (n, n) for n in lengths)
    return b"(?:" + cases + b")(\\d+)"


_MIDDLE: Final = re.compile(
    b"\\x00\\x01e\\x00\\x00\\x00"
    + _digits(range(1, 5))
    + b"\\x00\\x01f\\x00\\x00\\x00"
    + _digits(range(1, 5))
    + b"\\x00\\x01g\\x00\\x00\\x00\\x0d(\\d{13})"
    + b"\\x00\\x01h\\x00\\x00\\x00"
    + _digits(range(1, 10))
    + b"\\x00\\x01i\\x00\\x00(..)",
    re.DOTALL,
)
_QUEUE_KEY: Final = b"\x00\x01e\x00\x00\x00"
_MEMO_ENTRIES: Final = 4096
_MEMO_KEY_BYTES: Final = 1024
"""Longer heads and tails are no ordinary producer's; remembering them would only cost memory."""
_heads: dict[bytes, _Head] = {}
_tails: dict[bytes, _Tail] = {}


def read_send_v2(frame: Frame) -> SendFields:
    """Fields of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE. Raises ``HeaderFieldError`` naming what is wrong."""
    if frame.serialize_type == _ROCKETMQ:
        raw = frame.ext_raw
        at = raw.find(_QUEUE_KEY)
        if at > 0:
            head = _heads.get(raw[:at])
            if head is not None:
                middle = _MIDDLE.match(raw, at)
                if middle is not None:
                    start = middle.end()
                    end = start + (raw[start - 2] << 8 | raw[start - 1])
                    properties = raw[start:end]
                    tail = _tails.get(raw[end:])
                    if tail is not None and (properties.isascii() or _is_utf8(properties)):
                        queue_id, sys_flag, born, flag, _ = middle.groups()
                        return SendFields(
                            head.producer_group,
                            head.topic,
                            head.default_topic,
                            head.default_topic_queue_nums,
                            int(queue_id),
                            int(sys_flag),
                            int(born),
                            int(flag),
                            properties,
                            tail.reconsume_times,
                            tail.max_reconsume_times,
                            tail.batch,
                        )
    header = decode_header(SendMessageRequestV2, frame)
    fields = SendFields(
        header.producer_group,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        header.properties.encode() if header.properties else b"",
        header.reconsume_times or 0,
        header.max_reconsume_times,
        bool(header.batch),
    )
    if frame.serialize_type == _ROCKETMQ:
        _learn(frame.ext_raw, fields)
    return fields


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _learn(raw: bytes, fields: SendFields) -> None:
    """Remember head and tail of a header the typed reader accepted."""
    at = raw.find(_QUEUE_KEY)
    middle = _MIDDLE.match(raw, at) if at > 0 else None
    if middle is None:
        return
    start = middle.end()
    end = start + (raw[start - 2] << 8 | raw[start - 1])
    if raw[start:end] != fields.properties or not _has_keys(raw[:at], b"abcd"):
        return
    # The tail must hold j to n only: a field of the head in it would be lost. It must not be empty: that would also
    # match a header that was cut inside its properties.
    if end >= len(raw) or not _has_keys(raw[end:], b"jklmn"):
        return
    if at > _MEMO_KEY_BYTES or len(raw) - end > _MEMO_KEY_BYTES:
        return
    if len(_heads) >= _MEMO_ENTRIES:
        _heads.clear()
    if len(_tails) >= _MEMO_ENTRIES:
        _tails.clear()
    _heads[raw[:at]] = _Head(
        fields.producer_group, fields.topic, fields.default_topic, fields.default_topic_queue_nums
    )
    _tails[raw[end:]] = _Tail(fields.reconsume_times, fields.max_reconsume_times, fields.batch)


def _has_keys(region: bytes, allowed: bytes) -> bool:
    """Whether the region is whole entries with one-letter keys out of ``allowed``."""
    position = 0
    while position < len(region):
        if region[position : position + 2] != b"\x00\x01" or position + 7 > len(region):
            return False
        if region[position + 2] not in allowed:
            return False
        position += 7 + int.from_bytes(region[position + 3 : position + 7], "big")
    return position == len(region)


def read_send(frame: Frame) -> SendFields:
    """Fields of SEND_MESSAGE, the form with long names."""
    header = decode_header(SendMessageRequest, frame)
    return SendFields(
        header.producer_group,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        header.properties.encode() if header.properties else b"",
        header.reconsume_times or 0,
        header.max_reconsume_times,
        bool(header.batch),
    )
