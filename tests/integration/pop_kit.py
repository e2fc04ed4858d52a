"""A broker in this process and a client that speaks POP to it, header by header."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.bad_requests import SEND_V2

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.model.topic import TopicConfig
from orbitmq.record.codec import Record, decode_records
from orbitmq.requests import RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.transport.client import RpcClient
from orbitmq.wire.frame import Frame

HOST = "127.0.0.1"
TOPIC = "Orders"
GROUP = "packers"


@dataclass(slots=True)
class Popped:
    """One message and its receipt."""

    record: Record
    receipt: str
    topic: str
    """Where it really lies."""

    @property
    def body(self) -> str:
        return self.record.body.decode()


@dataclass(slots=True)
class PopClient:
    """Sends requests to one broker; ``broker`` may be another one after a restart."""

    rpc: RpcClient
    broker: Broker

    async def call(self, code: int, fields: dict[str, str], body: bytes = b"", wait_s: float = 20.0) -> Frame:
        return await self.rpc.call(self.broker.address, code, None, body, timeout_s=wait_s, ext=fields)

    async def send(
        self, body: str, queue_id: int = 0, *, topic: str = TOPIC, tag: str = "", properties: str = ""
    ) -> None:
        text = f"UNIQ_KEY\x01{body.upper():0>32}\x02" + (f"TAGS\x01{tag}\x02" if tag else "") + properties
        fields = {**SEND_V2, "b": topic, "e": str(queue_id), "i": text}
        answer = await self.call(RequestCode.SEND_MESSAGE_V2, fields, body.encode())
        assert answer.code == 0, answer.remark

    async def pop(self, **changes: Any) -> Frame:
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": "60000",
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": "false",
            **{name: str(value) for name, value in changes.items()},
        }
        return await self.call(RequestCode.POP_MESSAGE, fields)

    async def messages(self, **changes: Any) -> list[Popped]:
        """Pops and reads the response like a client; no message is an empty list."""
        answer = await self.pop(**changes)
        assert answer.code in (0, 210), (answer.code, answer.remark)
        return popped(answer, changes.get("topic", TOPIC), changes.get("consumerGroup", GROUP))

    async def ack(self, message: Popped, group: str = GROUP) -> Frame:
        return await self.call(RequestCode.ACK_MESSAGE, ack_fields(message, group))

    async def hide(self, message: Popped, invisible_ms: int, group: str = GROUP, **more: str) -> Frame:
        fields = {**ack_fields(message, group), "invisibleTime": str(invisible_ms), **more}
        return await self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


def ack_fields(message: Popped, group: str = GROUP) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": message.topic,
        "queueId": str(message.record.queue_id),
        "extraInfo": message.receipt,
        "offset": str(message.record.queue_offset),
    }


def popped(answer: Frame, topic: str, group: str) -> list[Popped]:
    """Returns the messages of a response with their receipts, built like the Java client's."""
    fields = answer.ext_fields
    starts = {}
    for entry in filter(None, fields.get("startOffsetInfo", "").split(";")):
        kind, queue_id, start = entry.split(" ")
        starts[kind, int(queue_id)] = start
    found = []
    for record in decode_records(answer.body):
        receipt = record.property_map().get("POP_CK")
        kind = receipt.split(" ")[4] if receipt is not None else "0"
        if receipt is None:
            start = starts[kind, record.queue_id]
            times = f"{fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']}"
            receipt = f"{start} {times} 0 broker-a {record.queue_id} {record.queue_offset}"
        separator = {"1": "_", "2": "+"}.get(kind)
        real = topic if separator is None else f"%RETRY%{group}{separator}{topic}"
        found.append(Popped(record, receipt, real))
    return found


def make_broker(root: Path, **options: Any) -> Broker:
    config = BrokerConfig(
        public_host=HOST,
        ha_public_host=HOST,
        bind_host=HOST,
        listen_port=0,
        fast_port_enabled=False,
        **options,
    )
    store = StoreConfig(root=str(root), segment_bytes=1 << 20, index_slots=1000, index_entries=50_000)
    return Broker(config, store)


def create_topic(broker: Broker, topic: str = TOPIC, queues: int = 2) -> None:
    broker.topics.update(TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues))


@asynccontextmanager
async def serving(root: Path, *, queues: int = 2, **options: Any) -> AsyncIterator[PopClient]:
    """Yields a broker with a topic, and its client."""
    rpc = RpcClient()
    async with make_broker(root, **options) as broker:
        if broker.topics.find(TOPIC) is None:
            create_topic(broker, TOPIC, queues)
        try:
            yield PopClient(rpc, broker)
        finally:
            await rpc.close()


def golden() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "golden" / "apache-5.5.0" / "pop.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


async def until_popped(client: PopClient, wait_ms: int = 5_000, **changes: Any) -> list[Popped]:
    """Returns messages as soon as there are some."""
    found = await client.messages(pollTime=wait_ms, **changes)
    assert found, "nothing came in time"
    await asyncio.sleep(0)
    return found
