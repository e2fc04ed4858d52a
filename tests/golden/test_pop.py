"""The POP exchanges recorded from Apache 5.5.0, asked of our broker: same codes, remarks, fields and offsets."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.ha_kit import until
from tests.integration.pop_kit import PopClient, create_topic, golden, serving
from tests.unit.transport.loops import run

from orbitmq.broker.pop.service import PopService
from orbitmq.record.codec import decode_records
from orbitmq.requests import RequestCode
from orbitmq.wire.frame import Frame

pytestmark = pytest.mark.slow

_TIMED = {
    # They wait for seconds of redelivery and are tried with shorter times elsewhere.
    "pop until redelivery (pollTime 8000)",
    "ack a message of the pop retry topic",
    "get topic config of the pop retry topic",
}
_JAVA_REMARK = "java.lang.IllegalArgumentException"


class Replay:
    """Asks what the recording asked, with the times of today."""

    def __init__(self, client: PopClient, dice: list[int]) -> None:
        self.client = client
        self.dice = dice
        self.pop_times: dict[str, str] = {}
        self.revive_queues: dict[str, str] = {}
        self.seen = 0

    def _rewritten(self, entry: dict[str, Any]) -> dict[str, str]:
        fields = dict(entry["request"]["extFields"])
        if "bornTime" in fields:
            age_ms = 10_000 if entry["label"] == "pop, born long ago" else 0
            fields["bornTime"] = str(time.time_ns() // 1_000_000 - age_ms)
        if fields.get("extraInfo", "").count(" ") > 2:
            parts = fields["extraInfo"].split(" ")
            parts[1] = self.pop_times[parts[1]]
            parts[3] = self.revive_queues.get(entry["label"], parts[3])
            fields["extraInfo"] = " ".join(parts)
        return fields

    def _body(self, entry: dict[str, Any]) -> bytes:
        text: str = entry["request"].get("bodyText", "")
        for recorded, ours in self.pop_times.items():
            text = text.replace(recorded, ours)
        return text.encode()

    async def ask(self, entry: dict[str, Any]) -> None:
        starts = entry["response"]["extFields"].get("startOffsetInfo") or "0 0 0"
        # Above the percentage of pops that look for redelivered messages first.
        self.dice[0] = 98 + int(starts.split(";")[0].split(" ")[1]) % 2
        answer = await self.client.call(entry["code"], self._rewritten(entry), self._body(entry))
        self.compare(entry, answer)

    def compare(self, entry: dict[str, Any], answer: Frame) -> None:
        label, expected = entry["label"], entry["response"]
        fields, wanted = answer.ext_fields, expected["extFields"]
        assert answer.code == expected["code"], (label, answer.code, answer.remark)
        assert _masked(answer.remark) == _masked(expected["remark"]), label
        assert fields.keys() == wanted.keys(), label
        for name in wanted:
            if name == "popTime":
                self.pop_times[wanted[name]] = fields[name]
                assert (fields[name] == "0") == (wanted[name] == "0"), label
            elif name == "reviveQid":
                assert (fields[name] == "999") == (wanted[name] == "999"), label
            elif name == "invisibleTime" and label.startswith("order, change"):
                assert 2000 <= int(fields[name]) < 5000, label
            else:
                assert fields[name] == wanted[name], (label, name, fields[name], wanted[name])
        if "bodyText" in expected:
            assert answer.body.decode() == expected["bodyText"], label
        records = [(one["queueId"], one["queueOffset"], one["body"]) for one in expected.get("records", [])]
        if records:
            found = decode_records(answer.body)
            assert [(one.queue_id, one.queue_offset, one.body.decode()) for one in found] == records, label
        self.seen += 1


def _masked(remark: str | None) -> str | None:
    if remark is None or remark.startswith((_JAVA_REMARK, "getBrokerName")):
        return None if remark is None else "a receipt that cannot be read"
    return re.sub(r"127\.0\.0\.1:\d+", "PEER", remark)


async def _prepare(client: PopClient) -> None:
    create_topic(client.broker, "PopGoldB", 2)
    create_topic(client.broker, "PopOrderB", 1)
    for number in range(5):
        await client.send(f"q0-{number}", 0, topic="PopGoldB", tag="B" if number == 0 else "A")
    for number in range(3):
        await client.send(f"q1-{number}", 1, topic="PopGoldB", tag="A")
    for number in range(6):
        await client.send(f"o{number}", 0, topic="PopOrderB")


def test_recorded_pops_answered_as_by_apache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = [98]
    monkeypatch.setattr(PopService, "dice", staticmethod(lambda: dice[0]))

    async def scenario() -> None:
        async with serving(tmp_path) as client:
            await _prepare(client)
            replay = Replay(client, dice)
            for entry in golden()["fs"]:
                label = entry["label"]
                if label in _TIMED or "query assignment" in label or "mode" in label:
                    continue
                if label == "polling info, one poller":
                    await _woken(replay, client)
                elif label == "notification woken by a send":
                    await _notified(client)
                elif label == "pop with tag A":
                    for number in range(4):
                        await client.send(f"f{number}", 0, topic="PopGoldB", tag="A" if number % 2 else "B")
                    await replay.ask(entry)
                elif label == "order pop a third time":
                    await asyncio.sleep(3.2)  # the invisible time of the pop before
                    await replay.ask(entry)
                elif "request" in entry:
                    await replay.ask(entry)
                elif label.startswith("committed"):
                    _committed(client, label, entry)
            assert replay.seen > 35

    run("uvloop", scenario)


def _committed(client: PopClient, label: str, entry: dict[str, Any]) -> None:
    ordered = "acknowledging" in label
    topic, group = ("PopOrderB", "G_orderB") if ordered else ("PopGoldB", "G_popB")
    for name, value in entry.items():
        if name.startswith("q"):
            assert client.broker.offsets.query(group, topic, int(name[1:])) == value, label


async def _woken(replay: Replay, client: PopClient) -> None:
    """A pop waits, POLLING_INFO sees it, a message ends the wait."""
    fields = {"consumerGroup": "G_popB", "topic": "PopGoldB"}
    waiting = asyncio.ensure_future(client.pop(**fields, pollTime=8000, invisibleTime=15000))
    await until(lambda: client.broker._pop.waiters.count == 1, "a waiting pop")
    answer = await client.call(RequestCode.POLLING_INFO, {**fields, "queueId": "-1"})
    assert (answer.code, answer.ext_fields) == (0, {"pollingNum": "1"})
    await client.send("wake", 1, topic="PopGoldB", tag="A")
    answer = await waiting
    assert (answer.code, answer.ext_fields["msgOffsetInfo"]) == (0, "0 1 3")


async def _notified(client: PopClient) -> None:
    fields = {"consumerGroup": "G_popB", "topic": "PopGoldB", "queueId": "-1", "pollTime": "5000"}
    waiting = asyncio.ensure_future(client.call(RequestCode.NOTIFICATION, fields))
    await until(lambda: client.broker._pop.notified.count == 1, "a waiting request")
    await client.send("wake2", 1, topic="PopGoldB", tag="A")
    assert (await waiting).ext_fields == {"hasMsg": "true", "pollingFull": "false"}
