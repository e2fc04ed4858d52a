"""Messages as a consumer would receive them, without a broker."""

from __future__ import annotations

from orbitmq.client.message import ReceivedMessage
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import Record
from orbitmq.record.properties import encode_properties

__all__ = ["QUEUE", "received"]

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


def received(offset: int, body: bytes = b"body", *, topic: str = "T", **properties: str) -> ReceivedMessage:
    """Returns a message at a queue offset."""
    record = Record(
        topic=topic,
        queue_id=0,
        body=body,
        properties=encode_properties(properties),
        born_timestamp_ms=1,
        born_host=bytes(8),
        flag=0,
        sys_flag=0,
        reconsume_times=0,
        prepared_offset=0,
        queue_offset=offset,
        log_offset=offset * 100,
        store_timestamp_ms=2,
        store_host=bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F)),
        body_crc=0,
        magic=0,
        size=100,
    )
    return ReceivedMessage(record, QUEUE)
