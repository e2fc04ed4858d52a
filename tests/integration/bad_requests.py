"""Requests with one fault: each field of each core request missing, malformed or out of range.

The same list goes to a real Apache 5.5.0 broker (tests/apache/test_broker_bad_input.py), whose codes are kept in
bad_requests.json, and to ours.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

RECORDED: Final = Path(__file__).with_name("bad_requests.json")
SEND_TOPIC: Final = "bad-send"
READ_TOPIC: Final = "bad-read"
GROUP: Final = "bad-group"
STORED_COUNT: Final = 3
NOW: Final = "1700000000000"
NUMBERS: Final = ("abc", "", "1.5", "-1", "2147483648", "9223372036854775808", "99")
NAMES: Final = ("", "bad name!", "x" * 300)
BODIES: Final = (b"", b"\xff\xfe{", b"[]", b"{}", b"null")

LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "m": "batch",
}
SEND: Final = {
    "producerGroup": "producers",
    "topic": SEND_TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": NOW,
    "flag": "0",
    "properties": "k\x01v\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}
SEND_V2: Final = {short: SEND[name] for short, name in LONG_NAMES.items()}
PULL: Final = {
    "consumerGroup": GROUP,
    "topic": READ_TOPIC,
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}
QUEUE: Final = {"topic": READ_TOPIC, "queueId": "0"}
TEXTS: Final = {"consumerGroup", "topic", "producerGroup", "defaultTopic", "group", "clientID", "key"}
TEXTS_V2: Final = {"a", "b", "c"}
FREE_TEXTS: Final = {
    "properties",
    "i",
    "subscription",
    "expressionType",
    "topicFilterType",
    "originMsgId",
    "originTopic",
    "msgId",
    "transactionId",
}
FLAGS: Final = {"unitMode", "batch", "k", "m", "order", "fromTransactionCheck"}


def batch_entry(body: bytes = b"x", properties: bytes = b"") -> bytes:
    size = 22 + len(body) + len(properties)
    fixed = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return fixed + body + struct.pack(">h", len(properties)) + properties


HEARTBEAT: Final = json.dumps(
    {
        "clientID": "client",
        "consumerDataSet": [
            {
                "groupName": GROUP,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "topic": READ_TOPIC,
                        "subString": "*",
                        "classFilterMode": False,
                        "codeSet": [],
                        "tagsSet": [],
                        "subVersion": 1,
                        "expressionType": "TAG",
                    }
                ],
            }
        ],
        "producerDataSet": [{"groupName": "producers"}],
    }
).encode()
LOCK: Final = json.dumps(
    {
        "clientId": "client",
        "consumerGroup": GROUP,
        "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": READ_TOPIC}],
    }
).encode()
EXPRESSION: Final = json.dumps(
    {
        "clientId": "client",
        "group": GROUP,
        "subscriptionData": {
            "topic": READ_TOPIC,
            "subString": "*",
            "expressionType": "TAG",
            "tagsSet": [],
            "codeSet": [],
        },
    }
).encode()

VALID: Final[Mapping[int, tuple[Mapping[str, str], bytes]]] = {
    10: (SEND, b"body"),
    310: (SEND_V2, b"body"),
    320: ({**SEND_V2, "m": "true"}, batch_entry()),
    11: (PULL, b""),
    361: (PULL, b""),
    14: ({"consumerGroup": GROUP, **QUEUE}, b""),
    15: ({"consumerGroup": GROUP, **QUEUE, "commitOffset": "0"}, b""),
    38: ({"consumerGroup": GROUP}, b""),
    41: ({}, LOCK),
    42: ({}, LOCK),
    29: ({**QUEUE, "timestamp": NOW}, b""),
    30: (QUEUE, b""),
    31: (QUEUE, b""),
    32: (QUEUE, b""),
    34: ({}, HEARTBEAT),
    35: ({"clientID": "client", "producerGroup": "producers", "consumerGroup": GROUP}, b""),
    46: ({}, EXPRESSION),
    36: (
        {
            "offset": "0",
            "group": GROUP,
            "delayLevel": "0",
            "originMsgId": "x",
            "originTopic": READ_TOPIC,
            "maxReconsumeTimes": "16",
        },
        b"",
    ),
    37: (
        {
            "producerGroup": "producers",
            "tranStateTableOffset": "0",
            "commitLogOffset": "0",
            "commitOrRollback": "8",
            "msgId": "x",
        },
        b"",
    ),
    17: (
        {
            "topic": "bad-new",
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        },
        b"",
    ),
    12: (
        {
            "topic": READ_TOPIC,
            "key": "k1",
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": "9000000000000",
        },
        b"",
    ),
    33: ({"offset": "0"}, b""),
    21: ({}, b""),
    43: ({}, b""),
    45: ({}, b""),
    201: ({}, b""),
}
UNKNOWN_CODES: Final = (9_999, -1, 0, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Case:
    """One request. ``field`` is the faulty part: the name of a header field, "body" or nothing."""

    code: int
    what: str
    field: str
    value: str
    fields: Mapping[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return f"{self.code} {self.what}"

    @property
    def is_send(self) -> bool:
        return self.code in (10, 310, 320)


def cases() -> Iterator[Case]:
    """Yields valid requests first, so that a wrong base would be noticed."""
    for code, (fields, body) in VALID.items():
        yield Case(code, "valid", "", "", fields, body)
        for field in fields:
            without = {name: value for name, value in fields.items() if name != field}
            yield Case(code, f"without {field}", field, "", without, body)
            for value in _wrong_values(code, field):
                short = value if len(value) < 30 else f"{len(value)} characters"
                yield Case(code, f"{field}={short!r}", field, value, {**fields, field: value}, body)
        if body and code not in (10, 310):
            for wrong in (*BODIES, body[:-1]):
                shown = wrong.decode("ascii", "backslashreplace")
                what = f"body {shown!r}" if wrong != body[:-1] else "body cut by a byte"
                yield Case(code, what, "body", "", fields, wrong)
        elif body:
            yield Case(code, "body ''", "body", "", fields, b"")
    for code in UNKNOWN_CODES:
        yield Case(code, "unknown", "", "", {}, b"")


def _wrong_values(code: int, field: str) -> tuple[str, ...]:
    if field in FREE_TEXTS:
        return ()
    if field in FLAGS:
        return ("maybe",)
    if field in (TEXTS_V2 if code in (310, 320) else TEXTS):
        return NAMES
    return NUMBERS


@cache
def recorded_codes() -> Mapping[str, int | None]:
    """Returns the codes that Apache 5.5.0 answered, by case; None where it did not answer."""
    content: dict[str, int | None] = json.loads(RECORDED.read_text())
    return content
