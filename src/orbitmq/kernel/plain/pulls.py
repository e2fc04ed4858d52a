"""The fields of a pull request and its answer, in both header forms (Apache: ``PullMessageRequestHeader``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final

from orbitmq.codes import FrameFlag, LanguageCode, SerializeType, Version

__all__ = ["PullFieldValues", "pull_answer", "pull_fields"]

PullFieldValues = tuple[str, str, int, int, int, int, int, int, int, str | None, str | None, int | None]
"""In the order of ``orbitmq.wire.headers.PullMessageRequest``: consumer group, topic, queue id, queue offset, most
messages, sys flag, commit offset, suspend time, subscription version, subscription, expression type, most bytes."""

_TEXT: Final = rb'"([^"\\\x00-\x1f]*)"[ \t\r\n]*'
_PAIR: Final = re.compile(_TEXT + rb":[ \t\r\n]*" + _TEXT)
_OPEN: Final = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_COMMA: Final = re.compile(rb",[ \t\r\n]*")
_CLOSE: Final = re.compile(rb"\}[ \t\r\n]*\Z")
_NUMBER: Final = re.compile("[+-]?[0-9]{1,18}")
_INT_NAMES: Final = ("queueId", "maxMsgNums", "sysFlag", "maxMsgBytes", "requestSource")
_LONG_NAMES: Final = ("queueOffset", "commitOffset", "suspendTimeoutMillis", "subVersion")
_BOOL_NAMES: Final = ("lo", "nsd", "oway")
_REQUIRED: Final = ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag")

_FIXED: Final = Struct(">hBhiii")
"""Of a binary header: code, language, version, opaque, flag, remark length."""


def pull_fields(raw: bytes, is_binary: bool) -> PullFieldValues | None:
    """Read the extension fields of a pull, given in any order; of two with one name the later counts.

    None when something is missing or malformed, or written in a way that only a complete JSON reader understands (an
    escape, a value that is not a text): the typed header reader then reads it or says what is wrong.
    """
    pairs = _binary_pairs(raw) if is_binary else _json_pairs(raw)
    if pairs is None:
        return None
    try:
        fields = {name.decode(): value.decode() for name, value in pairs}
    except UnicodeDecodeError:
        return None
    if any(name not in fields for name in _REQUIRED):
        return None
    numbers: dict[str, int] = {}
    for name in (*_INT_NAMES, *_LONG_NAMES):
        text = fields.get(name)
        if text is not None:
            if not _NUMBER.fullmatch(text):
                return None
            numbers[name] = int(text)
            if name in _INT_NAMES and not -(2**31) <= numbers[name] < 2**31:
                return None
    if any(fields.get(name, "true") not in ("true", "false") for name in _BOOL_NAMES):
        return None
    return (
        fields["consumerGroup"],
        fields["topic"],
        numbers["queueId"],
        numbers["queueOffset"],
        numbers["maxMsgNums"],
        numbers["sysFlag"],
        numbers.get("commitOffset", 0),
        numbers.get("suspendTimeoutMillis", 0),
        numbers.get("subVersion", 0),
        fields.get("subscription"),
        fields.get("expressionType"),
        numbers.get("maxMsgBytes"),
    )


def _binary_pairs(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """``name size 2 | name | value size 4 | value``; an empty name or value does not exist."""
    pairs: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(raw):
        name_end = at + 2 + int.from_bytes(raw[at : at + 2], "big")
        end = name_end + 4 + int.from_bytes(raw[name_end : name_end + 4], "big")
        if name_end + 4 > len(raw) or end > len(raw):
            return None
        name, value = raw[at + 2 : name_end], raw[name_end + 4 : end]
        if name and value:
            pairs.append((name, value))
        at = end
    return pairs


def _json_pairs(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """An object of texts without escapes."""
    found = _OPEN.match(raw)
    if found is None:
        return None
    pairs: list[tuple[bytes, bytes]] = []
    while found is not None:
        pair = _PAIR.match(raw, found.end())
        if pair is None:
            return None
        pairs.append((pair[1], pair[2]))
        found = _COMMA.match(raw, pair.end())
        if found is None and _CLOSE.match(raw, pair.end()) is None:
            return None
    return pairs


def pull_answer(
    is_binary: bool,
    opaque: int,
    code: int,
    remark: bytes,
    numbers: tuple[int, int, int, int, int, int],
    slices: Sequence[memoryview | bytes],
) -> bytes:
    """A whole answer frame, with the slices as its body.

    ``numbers``: suggested broker, next, least and greatest offset, flags of the topic and of the group. ``remark`` is
    written into JSON as it is, so it must be a status name.
    """
    suggested, following, low, high, topic_flag, group_flag = numbers
    if is_binary:
        fields = b"".join(
            len(name).to_bytes(2, "big") + name + len(value := b"%d" % number).to_bytes(4, "big") + value
            for name, number in (
                (b"suggestWhichBrokerId", suggested),
                (b"nextBeginOffset", following),
                (b"minOffset", low),
                (b"maxOffset", high),
                (b"topicSysFlag", topic_flag),
                (b"groupSysFlag", group_flag),
            )
        )
        header = _FIXED.pack(code, LanguageCode.PYTHON, Version.OURS, opaque, FrameFlag.RESPONSE, len(remark))
        header += remark + len(fields).to_bytes(4, "big") + fields
        word = SerializeType.ROCKETMQ << 24 | len(header)
    else:
        header = (
            b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","groupSysFlag":"%d","nextBeginOffset":"%d",'
            b'"maxOffset":"%d","minOffset":"%d","topicSysFlag":"%d"},"flag":1,"language":"PYTHON","opaque":%d,'
            b'"remark":"%b","serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (code, suggested, group_flag, following, high, low, topic_flag, opaque, remark, Version.OURS)
        word = len(header)
    size = 4 + len(header) + sum(len(piece) for piece in slices)
    return b"".join((size.to_bytes(4, "big"), word.to_bytes(4, "big"), header, *slices))
