"""Reads and writes the fields of pull requests and responses, in both header forms (Apache:
``PullMessageRequestHeader``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from orbitmq.codes import ResponseCode
from orbitmq.kernel.layout import (
    BORN_V6,
    FIXED,
    FIXED_V4,
    INT,
    LONG,
    MAGIC_V1,
    MAGIC_V2,
    STORE_V6,
    SYS_FLAG_AT,
    UNIT,
)
from orbitmq.kernel.plain.answers import AnswerField, Piece, encode_answer
from orbitmq.kernel.plain.hashes import body_crc
from orbitmq.kernel.plain.select import MAX_OFFSET, Filter, select

__all__ = [
    "AskedPull",
    "PullFields",
    "PullsAlike",
    "answer_fields",
    "answer_pulls",
    "pull_answer",
    "pull_fields",
    "record_values",
]


class PullFields(msgspec.Struct, gc=False):
    """The fields of a ``PullMessageRequest`` that the broker uses."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    sub_version: int = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None


AnswerValues = tuple[int, int, int, int, int | None, int | None, int | None, int | None]
"""In the order of ``orbitmq.wire.headers.PullMessageResponse``: suggested broker, next, minimum and maximum offset,
offset delta, flags of the topic and of the group, kind of refusal."""

RecordValues = tuple[
    str, int, bytes, bytes, int, bytes, int, int, int, int, int, int, int, bytes, int, int, int
]
"""In the order of ``orbitmq.record.codec.Record``."""

_TEXT: Final = rb'"([^"\\\x00-\x1f]*)"[ \t\r\n]*'
_PAIR: Final = re.compile(_TEXT + rb":[ \t\r\n]*" + _TEXT)
_OPEN: Final = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_COMMA: Final = re.compile(rb",[ \t\r\n]*")
_CLOSE: Final = re.compile(rb"\}[ \t\r\n]*\Z")
_NUMBER: Final = re.compile("[+-]?[0-9]{1,18}")
_INT_NAMES: Final = ("queueId", "maxMsgNums", "sysFlag", "maxMsgBytes", "requestSource")
_LONG_NAMES: Final = ("queueOffset", "commitOffset", "suspendTimeoutMillis", "subVersion")
_ANSWER_LONGS: Final = (
    "suggestWhichBrokerId",
    "nextBeginOffset",
    "minOffset",
    "maxOffset",
    "offsetDelta",
)
_ANSWER_INTS: Final = ("topicSysFlag", "groupSysFlag", "forbiddenType")
_NUMBER_NAMES: Final = (
    "suggestWhichBrokerId",
    "nextBeginOffset",
    "minOffset",
    "maxOffset",
    "topicSysFlag",
    "groupSysFlag",
)
_JSON_ORDER: Final = (0, 5, 1, 3, 2, 4)
_BOOL_NAMES: Final = ("lo", "nsd", "oway")
_REQUIRED: Final = ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag")


def pull_fields(raw: bytes, is_binary: bool) -> PullFields | None:
    """Read the extension fields of a pull, in any order. If a name occurs twice, the later field counts.

    Returns None if a field is missing or malformed, or needs a complete JSON reader (an escape, or a value that is
    not a text). The typed header reader then reads the fields or reports the error.
    """
    fields = read_fields(raw, is_binary)
    if fields is None or any(name not in fields for name in _REQUIRED):
        return None
    numbers = read_numbers(fields, _INT_NAMES, _LONG_NAMES)
    if numbers is None or any(fields.get(name, "true") not in ("true", "false") for name in _BOOL_NAMES):
        return None
    return PullFields(
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


def answer_fields(raw: bytes, is_binary: bool) -> AnswerValues | None:
    """Read the extension fields of a pull response. Returns None like ``pull_fields``."""
    fields = read_fields(raw, is_binary)
    numbers = None if fields is None else read_numbers(fields, _ANSWER_INTS, _ANSWER_LONGS)
    if numbers is None or any(name not in numbers for name in _ANSWER_LONGS[:4]):
        return None
    return (
        numbers["suggestWhichBrokerId"],
        numbers["nextBeginOffset"],
        numbers["minOffset"],
        numbers["maxOffset"],
        numbers.get("offsetDelta"),
        numbers.get("topicSysFlag"),
        numbers.get("groupSysFlag"),
        numbers.get("forbiddenType"),
    )


def read_fields(raw: bytes, is_binary: bool) -> dict[str, str] | None:
    pairs = _binary_pairs(raw) if is_binary else _json_pairs(raw)
    try:
        return None if pairs is None else {name.decode(): value.decode() for name, value in pairs}
    except UnicodeDecodeError:
        return None


def read_numbers(
    fields: dict[str, str], int_names: Sequence[str], long_names: Sequence[str]
) -> dict[str, int] | None:
    """Returns the numeric fields that are present, by name; None if one is malformed or out of range."""
    numbers: dict[str, int] = {}
    for name in (*int_names, *long_names):
        text = fields.get(name)
        if text is not None:
            if not _NUMBER.fullmatch(text):
                return None
            numbers[name] = int(text)
            if name in int_names and not -(2**31) <= numbers[name] < 2**31:
                return None
    return numbers


def _binary_pairs(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """Returns the pairs of ``name size 2 | name | value size 4 | value``, without those that have an empty name or
    value. Returns None if the bytes are malformed."""
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
    """Returns the pairs of a JSON object of texts without escapes; None for anything else."""
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


PullNumbers = tuple[int, int, int, int, int, int]
"""The numbers of an answer: suggested broker, next, minimum and maximum offset, flags of the topic and of the
group."""


def pull_answer(
    is_binary: bool,
    opaque: int,
    code: int,
    remark: str,
    numbers: PullNumbers,
    pieces: Sequence[Piece],
) -> bytes:
    """Returns the response frame of a pull; see ``encode_answer``. Its fields are in Apache's order for the header
    form."""
    pairs: list[AnswerField] = list(zip(_NUMBER_NAMES, numbers, strict=True))
    fields = pairs if is_binary else [pairs[place] for place in _JSON_ORDER]
    return encode_answer(is_binary, opaque, code, remark, fields, pieces)


PullsAlike = tuple[bytes, Filter | None, tuple[int, int], tuple[int, int], tuple[int, int, int, int]]
"""What one reader's pulls have in common: the topic, the filter, the maximum records and bytes of a read that begins
in memory and of one that does not, and four numbers of the response: the broker suggested to a reader that keeps up,
the one for a reader that lags, the flags of the topic and of the group."""
AskedPull = tuple[bool, int, bytes, int, int, int, int, PullsAlike]
"""A pull with something to read: whether its header is binary, opaque, queue units, queue offset of the first unit,
the queue's minimum and maximum offset, queue id, and what it has in common with others."""


def answer_pulls(
    window: tuple[memoryview | bytes, int],
    bounds: tuple[int, int, int],
    asked: Sequence[AskedPull],
) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Answer pulls whose records are in one window of the log, one after another; see ``select`` and ``pull_answer``.

    Returns the frames and, for each pull, the next queue offset and the count and bytes of its records. Stops before
    a pull that meets a damaged record or one outside the window, and when the frames have reached the given size.
    ``bounds`` are the log offset from which records are in memory, the log offset from which the log and the units
    are trusted, and that size in bytes.
    """
    memory_start, trusted_offset, enough_bytes = bounds
    frames: list[bytes] = []
    given: list[tuple[int, int, int]] = []
    total = 0
    for is_binary, opaque, units, offset, low, high, queue_id, alike in asked:
        topic, wanted, in_memory, on_disk, numbers = alike
        if len(units) < UNIT.size:
            break
        lags = LONG.unpack_from(units)[0] < memory_start
        place = (topic, queue_id, offset, trusted_offset)
        at, count, size_bytes, bounds_of_slices, is_outside, damaged = select(
            units, 0, window, on_disk if lags else in_memory, (0, 0), wanted, place
        )
        if is_outside or damaged or not 0 < at <= MAX_OFFSET - offset:
            break
        is_slow = lags and LONG.unpack_from(units, (at - 1) * UNIT.size)[0] < memory_start
        suggested = numbers[1] if is_slow else numbers[0]
        frames.append(
            pull_answer(
                is_binary,
                opaque,
                ResponseCode.SUCCESS if count else ResponseCode.PULL_RETRY_IMMEDIATELY,
                "FOUND" if count else "NO_MATCHED_MESSAGE",
                (suggested, offset + at, low, high, numbers[2], numbers[3]),
                [(window[0], bounds_of_slices)],
            )
        )
        given.append((offset + at, count, size_bytes))
        total += len(frames[-1])
        if total >= enough_bytes:
            break
    return b"".join(frames), given


def record_values(data: bytes, check_crc: bool) -> list[RecordValues] | None:
    """Returns the consecutive records in ``data``; None if it contains anything else.

    Compressed bodies are not decompressed.
    """
    records: list[RecordValues] = []
    at = 0
    while at < len(data):
        if len(data) - at < FIXED_V4.size:
            return None
        layout = FIXED[INT.unpack_from(data, at + SYS_FLAG_AT)[0] & (BORN_V6 | STORE_V6)]
        if len(data) - at < layout.size:
            return None
        # fmt: off
        (size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms, born_host, store_ms,
         store_host, reconsume_times, prepared_offset, body_size) = layout.unpack_from(data, at)
        # fmt: on
        body, end = at + layout.size, at + size
        body_end = body + body_size
        if body_size < 0 or body_end + 3 > end or end > len(data) or magic not in (MAGIC_V1, MAGIC_V2):
            return None
        topic = body_end + (1 if magic == MAGIC_V1 else 2)
        topic_end = topic + int.from_bytes(data[body_end:topic], "big")
        if (
            topic_end + 2 > end
            or int.from_bytes(data[topic_end : topic_end + 2], "big") != end - topic_end - 2
        ):
            return None
        if check_crc and body_crc(data[body:body_end]) != crc:
            return None
        try:
            topic_text = data[topic:topic_end].decode()
        except UnicodeDecodeError:
            return None
        # fmt: off
        records.append((
            topic_text, queue_id, data[body:body_end], data[topic_end + 2 : end], born_ms, born_host, flag, sys_flag,
            reconsume_times, prepared_offset, queue_offset, log_offset, store_ms, store_host, crc, magic, size,
        ))
        # fmt: on
        at = end
    return records
