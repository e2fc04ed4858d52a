"""Texts of the POP protocol: receipts, and the lists of offsets in an answer (Apache: ExtraInfoUtil).

A receipt has eight fields separated by single spaces: start offset of its checkpoint, pop time, invisible time,
revive queue, kind of topic, broker name, queue id, queue offset. A proxy may append more; they are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from orbitmq.errors import ServerError

__all__ = [
    "NORMAL_TOPIC",
    "ORDERED_QUEUE_ID",
    "RETRY_TOPIC_V1",
    "RETRY_TOPIC_V2",
    "Receipt",
    "format_receipt",
    "order_counts_entries",
    "parse_receipt",
    "topic_kind",
]

NORMAL_TOPIC: Final = "0"
RETRY_TOPIC_V1: Final = "1"
RETRY_TOPIC_V2: Final = "2"
ORDERED_QUEUE_ID: Final = 999
"""Placeholder for the revive queue in receipts of ordered pops, which have no checkpoint."""
_FIELDS_MIN: Final = 6
_DIGITS_MAX: Final = 19
_USUAL: Final = re.compile("([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([^ ]*) ").match
"""Matches a receipt as brokers write it, to parse it in one call."""


class Receipt(NamedTuple):
    """The fields of a receipt that the broker uses; topic, queue and offset are in the request itself."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: str


def _number(text: str, name: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise ServerError(f"{name} of the receipt is not a number: {text[:32]!r}")
    return int(text)


def parse_receipt(text: str) -> Receipt:
    """Parse a receipt (extraInfo, POP_CK). Raises ``ServerError`` if it is too short or a field is not a number."""
    found = _USUAL(text)
    if found is not None:
        start, pop_time, invisible, revive_queue, kind = found.groups()
        return Receipt(int(start), int(pop_time), int(invisible), int(revive_queue), kind)
    fields = text.split(" ", 8)
    if len(fields) < _FIELDS_MIN:
        # Same limit and message as Apache's.
        raise ServerError(f"getBrokerName fail, extraInfoStrs length {len(fields)}")
    return Receipt(
        _number(fields[0], "start offset"),
        _number(fields[1], "pop time"),
        _number(fields[2], "invisible time"),
        _number(fields[3], "revive queue"),
        fields[4],
    )


def format_receipt(receipt: Receipt, broker_name: str, queue_id: int, queue_offset: int) -> str:
    """Formats the receipt of one message."""
    return " ".join(map(str, (*receipt, broker_name, queue_id, queue_offset)))


def topic_kind(topic: str) -> str:
    """Returns the character that tells a client which topic actually stores a message."""
    if not topic.startswith("%RETRY%"):
        return NORMAL_TOPIC
    return RETRY_TOPIC_V2 if "+" in topic else RETRY_TOPIC_V1


def order_counts_entries(kind: str, queue_id: int, offsets: Sequence[int], counts: dict[int, int]) -> str:
    """Returns the entries of orderCountInfo: one for each offset that was delivered before, then one for the queue
    with the smallest count."""
    entries = [
        f"{kind} qo{queue_id}%{offset} {counts[offset]}" for offset in offsets if counts.get(offset, 0) > 0
    ]
    smallest = min((counts.get(offset, 0) for offset in offsets), default=0)
    entries.append(f"{kind} {queue_id} {smallest}")
    return ";".join(entries)
