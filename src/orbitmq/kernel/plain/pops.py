"""Encodes and decodes POP in bulk: acknowledgements, responses to pops, and the bodies of records in the revive
topic.

Apache: ``AckMessageRequestHeader``, ``PopMessageResponseHeader``, ``ExtraInfoUtil``, ``PopCheckPoint``, ``AckMsg``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from orbitmq.kernel.plain.answers import AnswerField, Piece, encode_answer
from orbitmq.kernel.plain.pulls import read_fields, read_numbers

__all__ = ["AckFields", "HandedOut", "PopPart", "ack_bodies", "ack_fields", "checkpoint_bodies", "pop_answer"]

AckFields = tuple[tuple[str, int], tuple[str, str, int, int, int], int, int]
"""Topic and queue id; the key of the checkpoint (topic, group, queue id, start offset, pop time); the acknowledged
queue offset; the revive queue id of the receipt."""
PopPart = tuple[int, int, int, Sequence[int]]
"""The messages of one queue in an answer: kind of the topic that stores them, queue id, the offset where the read
began, and their queue offsets."""

_RECEIPT: Final = re.compile("([0-9]{1,19}) ([0-9]{1,19}) [0-9]{1,19} ([0-9]{1,19}) [^ ]* ", re.ASCII).match
_LONG_MAX: Final = 2**63 - 1
_BITS_MAX: Final = 2**128 - 1
_BOOL_NAMES: Final = ("lo", "nsd", "oway")


class HandedOut(Protocol):
    """The messages of one queue that one pop returned."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    offsets: Sequence[int]
    acked: int
    suspended: bool


def ack_fields(raw: bytes, is_binary: bool) -> AckFields | None:
    """Read the extension fields of an acknowledgement, including its receipt.

    Returns None if the fields do not have the usual form. The typed readers then read them or report the error.
    """
    fields = read_fields(raw, is_binary)
    if fields is None or any(fields.get(name, "true") not in ("true", "false") for name in _BOOL_NAMES):
        return None
    topic, group, receipt = (fields.get(name) for name in ("topic", "consumerGroup", "extraInfo"))
    numbers = read_numbers(fields, ("queueId",), ("offset",))
    if topic is None or group is None or receipt is None or numbers is None or len(numbers) != 2:
        return None
    found = _RECEIPT(receipt)
    if found is None:
        return None
    start_offset, pop_time_ms, revive_queue_id = map(int, found.groups())
    if max(start_offset, pop_time_ms, revive_queue_id) > _LONG_MAX:
        return None
    queue_id = numbers["queueId"]
    key = (topic, group, queue_id, start_offset, pop_time_ms)
    return (topic, queue_id), key, numbers["offset"], revive_queue_id


def pop_answer(
    opaque: int,
    code: int,
    remark: str,
    numbers: tuple[int, int, int, int],
    order_counts: str | None,
    parts: Sequence[PopPart],
    pieces: Sequence[Piece],
) -> bytes:
    """Returns the response frame of a pop; see ``encode_answer``.

    ``numbers`` are the invisible time, the number of remaining messages, the pop time and the revive queue id.
    ``order_counts`` is None unless the pop is ordered.
    """
    invisible_ms, rest, pop_time_ms, revive_queue_id = numbers
    fields: list[AnswerField] = [
        ("invisibleTime", invisible_ms),
        ("startOffsetInfo", ";".join(f"{kind} {queue_id} {start}" for kind, queue_id, start, _ in parts)),
        ("restNum", rest),
    ]
    if order_counts is not None:
        fields.append(("orderCountInfo", order_counts))
    fields += (
        ("popTime", pop_time_ms),
        ("reviveQid", revive_queue_id),
        (
            "msgOffsetInfo",
            ";".join(f"{kind} {queue_id} {_joined(offsets)}" for kind, queue_id, _, offsets in parts),
        ),
    )
    return encode_answer(False, opaque, code, remark, fields, pieces)


def checkpoint_bodies(checkpoints: Sequence[HandedOut], broker_name: str) -> list[bytes]:
    """Returns the bodies of the ``ck`` records of checkpoints, one for each."""
    quoted_name = _quoted(broker_name)
    return [
        (
            b'{"bm":%d,"bn":%b,"c":%b,"d":[%b],"it":%d,"n":%d,"pt":%d,"q":%d,"reviveTime":%d,"ro":0,"so":%d,"sp":%b,'
            b'"t":%b}'
        )
        % (
            int.from_bytes((_bits(one.acked) & 0xFFFFFFFF).to_bytes(4, "big"), "big", signed=True),
            quoted_name,
            _quoted(one.group),
            _joined([offset - one.start_offset for offset in one.offsets]).encode(),
            one.invisible_ms,
            len(one.offsets),
            one.pop_time_ms,
            one.queue_id,
            _long(one.pop_time_ms + one.invisible_ms),
            one.start_offset,
            b"true" if one.suspended else b"false",
            _quoted(one.topic),
        )
        for one in checkpoints
    ]


def ack_bodies(done: Sequence[tuple[HandedOut, int]], broker_name: str) -> list[tuple[int, bytes]]:
    """Returns, for each checkpoint, the number of messages marked as done and the body of the acknowledgement record.

    Each entry of ``done`` is a checkpoint and a bit set of the positions of its finished messages. The form of the
    body depends on their number. If the number is 0, the body is empty.
    """
    quoted_name = _quoted(broker_name)
    bodies: list[tuple[int, bytes]] = []
    for one, bits in done:
        offsets = [offset for place, offset in enumerate(one.offsets) if _bits(bits) >> place & 1]
        if not offsets:
            bodies.append((0, b""))
            continue
        which = b'"ao":%d,' % offsets[0]
        if len(offsets) > 1:
            which = b'"ao":-1,"aol":[%b],' % _joined(offsets).encode()
        body = b'{%b"bn":%b,"c":%b,"pt":%d,"q":%d,"so":%d,"t":%b}' % (
            which,
            quoted_name,
            _quoted(one.group),
            one.pop_time_ms,
            one.queue_id,
            one.start_offset,
            _quoted(one.topic),
        )
        bodies.append((len(offsets), body))
    return bodies


def _bits(bits: int) -> int:
    if not 0 <= bits <= _BITS_MAX:
        raise OverflowError("a checkpoint has too many messages")
    return bits


def _long(number: int) -> int:
    if number > _LONG_MAX:
        raise OverflowError("a number of a checkpoint is too large")
    return number


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _quoted(text: str) -> bytes:
    return msgspec.json.encode(text)
