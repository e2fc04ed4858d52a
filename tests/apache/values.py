"""The inputs and outputs of the official clients, as plain values."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Check", "Delivery", "Message", "PullResult", "Queue", "Received", "SendResult", "body_of"]

Json = Mapping[str, Any]


def body_of(message: Json) -> bytes:
    """Returns the body of a message in a driver's response or event."""
    return base64.b64decode(message["body"] or "")


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "brokerName": self.broker_name, "queueId": self.queue_id}

    @classmethod
    def from_json(cls, json: Json) -> Queue:
        return cls(json["topic"], json["brokerName"], json["queueId"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send. `properties` may name reserved ones; several keys are joined by a blank."""

    topic: str
    body: bytes = b""
    tags: str | None = None
    keys: str | None = None
    flag: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0
    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    delay_s: int | None = None
    wait_store: bool | None = None

    def to_json(self) -> dict[str, Any]:
        properties = dict(self.properties)
        timers = {
            "TIMER_DELIVER_MS": self.deliver_at_ms,
            "TIMER_DELAY_MS": self.delay_ms,
            "TIMER_DELAY_SEC": self.delay_s,
        }
        properties |= {name: str(value) for name, value in timers.items() if value is not None}
        return {
            "topic": self.topic,
            "body": base64.b64encode(self.body).decode(),
            "tags": self.tags,
            "keys": self.keys,
            "flag": self.flag,
            "properties": properties,
            "delayLevel": self.delay_level,
            "waitStoreMsgOK": self.wait_store,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """The client's result of a send. `local_state` is set only after a transactional one."""

    status: str
    msg_id: str
    offset_msg_id: str | None
    queue: Queue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: bool | None = None
    recall_handle: str | None = None
    local_state: str | None = None

    @classmethod
    def from_json(cls, json: Json) -> SendResult:
        return cls(
            status=json["status"],
            msg_id=json["msgId"],
            offset_msg_id=json.get("offsetMsgId"),
            queue=Queue.from_json(json["queue"]),
            queue_offset=json["queueOffset"],
            transaction_id=json.get("transactionId"),
            region_id=json.get("regionId"),
            trace_on=json.get("traceOn"),
            recall_handle=json.get("recallHandle"),
            local_state=json.get("localState"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as the client decoded it: every field of it."""

    topic: str
    body: bytes
    broker_name: str | None
    queue: Queue
    queue_offset: int
    log_offset: int
    msg_id: str
    offset_msg_id: str | None
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: str | None
    stored_at_ms: int
    store_host: str | None
    reconsume_times: int
    body_crc: int
    store_bytes: int
    prepared_transaction_offset: int
    transaction_id: str | None

    @classmethod
    def from_json(cls, json: Json) -> Received:
        return cls(
            topic=json["topic"],
            body=body_of(json),
            broker_name=json.get("brokerName"),
            queue=Queue(json["topic"], json.get("brokerName") or "", json.get("queueId", -1)),
            queue_offset=json.get("queueOffset", -1),
            log_offset=json.get("commitLogOffset", -1),
            msg_id=json.get("msgId", ""),
            offset_msg_id=json.get("offsetMsgId"),
            tags=json.get("tags") or None,
            keys=json.get("keys") or None,
            properties=json.get("properties") or {},
            flag=json.get("flag", 0),
            sys_flag=json.get("sysFlag", 0),
            born_at_ms=json.get("bornTimestamp", 0),
            born_host=json.get("bornHost"),
            stored_at_ms=json.get("storeTimestamp", 0),
            store_host=json.get("storeHost"),
            reconsume_times=json.get("reconsumeTimes", 0),
            body_crc=json.get("bodyCrc", 0),
            store_bytes=json.get("storeSize", 0),
            prepared_transaction_offset=json.get("preparedTransactionOffset", 0),
            transaction_id=json.get("transactionId"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One call of a push consumer's listener for one message."""

    message: Received
    received_at_ms: int
    thread: str
    attempt: int
    batch_count: int
    failed: bool

    @property
    def body(self) -> bytes:
        return self.message.body

    @classmethod
    def from_json(cls, json: Json) -> Delivery:
        return cls(
            message=Received.from_json(json["message"]),
            received_at_ms=json["receivedAt"],
            thread=json.get("thread", ""),
            attempt=json["attempt"],
            batch_count=json["batch"],
            failed=json["failed"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of an open transaction, and the script's answer."""

    message: Received
    attempt: int
    answer: str
    received_at_ms: int

    @classmethod
    def from_json(cls, json: Json) -> Check:
        return cls(
            message=Received.from_json(json["message"]),
            attempt=json["attempt"],
            answer=json["answer"],
            received_at_ms=json["receivedAt"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """The answer to one pull."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]

    @classmethod
    def from_json(cls, json: Json) -> PullResult:
        return cls(
            status=json["status"],
            next_offset=json["nextOffset"],
            min_offset=json["minOffset"],
            max_offset=json["maxOffset"],
            messages=[Received.from_json(item) for item in json["messages"] or []],
        )
