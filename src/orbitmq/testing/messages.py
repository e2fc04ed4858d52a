"""Messages as handlers receive them, for tests without a broker."""

from __future__ import annotations

from orbitmq.client.bodies import json_bytes
from orbitmq.client.message import Message, ReceivedMessage
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import Record
from orbitmq.record.properties import encode_properties

__all__ = ["message"]


def message(
    body: object = b"",
    *,
    topic: str = "test",
    tags: str = "",
    keys: str | list[str] | tuple[str, ...] = (),
    properties: dict[str, str] | None = None,
    attempt: int = 1,
    queue_offset: int = 0,
) -> ReceivedMessage:
    """Returns a received message. Bytes and text become the body unchanged, other values become JSON."""
    data = body if isinstance(body, bytes | str) else json_bytes(body)
    sent = Message(topic, data, tags=tags, keys=keys, properties=properties or {})
    pairs = sent.property_pairs()
    pairs["UNIQ_KEY"] = f"7F0000010000000000000000{queue_offset:08X}"
    record = Record(
        topic=topic,
        queue_id=0,
        body=sent.body_bytes(),
        properties=encode_properties(pairs),
        born_timestamp_ms=1_700_000_000_000,
        born_host=bytes((127, 0, 0, 1, 0, 0, 0, 1)),
        flag=0,
        sys_flag=0,
        reconsume_times=attempt - 1,
        prepared_offset=0,
        queue_offset=queue_offset,
        log_offset=queue_offset * 1000,
        store_timestamp_ms=1_700_000_000_000,
        store_host=bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F)),
        body_crc=0,
        magic=0,
        size=len(data),
    )
    return ReceivedMessage(record, MessageQueue(topic=topic, broker_name="test", queue_id=0))
