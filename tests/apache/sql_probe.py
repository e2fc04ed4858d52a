"""Determines which messages an SQL92 expression selects on any broker, Apache's or ours, with bare requests.

``python -m tests.apache.sql_probe`` records ``tests/golden/sql92/apache-5.5.0.json`` from Apache's own broker.
Everything that can differ from run to run is left out, so a second recording gives the same bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.apache.harness import ApacheBroker, ApacheNamesrv, create_group, create_topic
from tests.apache.servers import Addressed, remoting_call
from tests.apache.sql_cases import EXPRESSIONS, MESSAGES

__all__ = ["RECORDING", "SqlProbe"]

RECORDING: Final = Path(__file__).parents[1] / "golden" / "sql92" / "apache-5.5.0.json"
SEND, PULL, CHECK_CLIENT_CONFIG = 10, 11, 46
FOUND, RETRY_AT_ONCE, NOT_FOUND = 0, 20, 19
SUBSCRIPTION_INCLUDED = 4
BODY_SIZE_AT = 84


class SqlProbe:
    """One topic with one queue, filled once, read with any number of expressions."""

    def __init__(
        self, namesrv: Addressed, broker: Any, topic: str = "SqlCases", group: str = "sql_probe"
    ) -> None:
        self._address: str = broker.address
        self._topic = topic
        self._group = group
        create_topic(namesrv, broker, topic, queue_count=1)
        create_group(namesrv, broker, group)

    def fill(self, messages: list[dict[str, str]]) -> None:
        """Sends every message; its body is its number."""
        for number, properties in enumerate(messages):
            text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
            fields = {
                "producerGroup": "sql_sender",
                "topic": self._topic,
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "1",
                "queueId": "0",
                "sysFlag": "0",
                "bornTimestamp": "1700000000000",
                "flag": "0",
                "properties": text,
                "reconsumeTimes": "0",
                "unitMode": "false",
                "batch": "false",
            }
            code, _, _ = remoting_call(self._address, SEND, fields, str(number).encode())
            assert code == 0, (code, properties)

    def accepts(self, expression: str) -> bool:
        """Returns whether the broker can compile the expression."""
        subscription = {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "SQL92",
            "subString": expression,
            "subVersion": 1,
            "tagsSet": [],
            "topic": self._topic,
        }
        body = {"clientId": "probe", "group": self._group, "namespace": "", "subscriptionData": subscription}
        code, _, _ = remoting_call(
            self._address, CHECK_CLIENT_CONFIG, {}, json.dumps(body).encode(), timeout_s=10.0
        )
        assert code in (0, 23), (code, expression)
        return code == 0

    def selected(self, expression: str, count: int) -> list[int]:
        """Returns the numbers of the messages the expression selects, out of the first ``count``."""
        offset, numbers = 0, []
        while offset < count:
            fields = {
                "consumerGroup": self._group,
                "topic": self._topic,
                "queueId": "0",
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": str(SUBSCRIPTION_INCLUDED),
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": expression,
                "subVersion": "0",
                "expressionType": "SQL92",
            }
            code, answer, body = remoting_call(self._address, PULL, fields, timeout_s=10.0)
            assert code in (FOUND, RETRY_AT_ONCE), (code, expression, offset)
            numbers += [int(text) for text in _bodies(body)]
            offset = int(answer["nextBeginOffset"])
        return numbers


def _bodies(records: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(records):
        (size,) = struct.unpack_from(">i", records, at)
        (body_size,) = struct.unpack_from(">i", records, at + BODY_SIZE_AT)
        yield records[at + BODY_SIZE_AT + 4 : at + BODY_SIZE_AT + 4 + body_size]
        at += size


def record() -> dict[str, Any]:
    """Records the result of every expression on Apache's broker."""
    with (
        ApacheNamesrv("5.5.0") as namesrv,
        ApacheBroker("5.5.0", namesrv, enablePropertyFilter=True) as broker,
    ):
        probe = SqlProbe(namesrv, broker)
        probe.fill(MESSAGES)
        cases: list[dict[str, Any]] = []
        for expression in EXPRESSIONS:
            accepted = probe.accepts(expression)
            case: dict[str, Any] = {"expression": expression, "accepted": accepted}
            if accepted:
                case["selected"] = probe.selected(expression, len(MESSAGES))
            cases.append(case)
    return {"broker": "Apache RocketMQ 5.5.0", "messages": MESSAGES, "cases": cases}


def main() -> None:
    recorded = record()
    lines = ",\n".join("    " + json.dumps(case) for case in recorded["cases"])
    messages = ",\n".join("    " + json.dumps(message) for message in recorded["messages"])
    RECORDING.parent.mkdir(exist_ok=True)
    RECORDING.write_text(
        f'{{\n  "broker": {json.dumps(recorded["broker"])},\n  "messages": [\n{messages}\n  ],\n'
        f'  "cases": [\n{lines}\n  ]\n}}\n'
    )


if __name__ == "__main__":
    main()
