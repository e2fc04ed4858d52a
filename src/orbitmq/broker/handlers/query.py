"""Serves messages by key or by log offset, and the raw units of a queue: requests 12, 33 and 321.

Follows Apache's QueryMessageProcessor and the queue part of AdminBrokerProcessor.
"""

from __future__ import annotations

from typing import Final

from orbitmq.broker.tables.clients import ConsumerTable
from orbitmq.codes import ResponseCode
from orbitmq.errors import RecordError, ServerError
from orbitmq.record.codec import decode_record
from orbitmq.requests import RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.store.index.index_keys import index_keys
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.bodies import ConsumeQueueData, QueryConsumeQueueResponse
from orbitmq.wire.headers import (
    QueryConsumeQueueRequest,
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageByIdRequest,
)

__all__ = ["QueryHandlers"]

_ANSWER_BYTES_MAX: Final = 12 << 20
"""The maximum size of the records in one answer. The first record is returned regardless of its size. Clients close
the connection if a frame is larger than 16 MiB, which Apache does not prevent."""
_UNITS_MAX: Final = 32_768
"""The maximum number of queue units in one answer, about 4 MiB of JSON. The tool requests ten."""
_TAG_INDEX: Final = "T"


class QueryHandlers:
    """Finds messages for tools, independent of consumption."""

    def __init__(
        self,
        *,
        store: MessageStore,
        store_config: StoreConfig,
        consumers: ConsumerTable,
    ) -> None:
        self._store = store
        self._store_config = store_config
        self._consumers = consumers

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.QUERY_MESSAGE, self.query_message, QueryMessageRequest),
            Route(RequestCode.VIEW_MESSAGE_BY_ID, self.view_message, ViewMessageByIdRequest),
            Route(RequestCode.QUERY_CONSUME_QUEUE, self.consume_queue, QueryConsumeQueueRequest),
        ]

    def query_message(self, call: Call[QueryMessageRequest]) -> Reply:
        """Returns the messages with a key, a unique key or, since 5.5, a tag.

        The index stores only 32-bit hashes, so a query for one topic may find records of another topic whose key has
        the same hash. The key of each record is therefore compared before it is returned.
        """
        header = call.header
        if header.last_key:
            raise ServerError(
                "lastKey continues in a RocksDB index, which this broker does not have; narrow the time"
            )
        count = (
            self._store_config.unique_key_query_count if header.unique_key_query is True else header.max_num
        )
        key = header.key
        if header.index_type == _TAG_INDEX and header.unique_key_query is not True:
            key = f"{_TAG_INDEX}#{key}"
        found, update = self._store.query(
            header.topic, key, max(0, count), header.begin_timestamp, header.end_timestamp
        )
        records = [record for record in found if _has_key(record, header.topic, key)]
        answer = QueryMessageResponse(
            index_last_update_timestamp=update.timestamp_ms, index_last_update_phyoffset=update.log_offset
        )
        if not records:
            return Reply(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message of topic {header.topic} has the key {header.key!r} in that time",
                answer,
            )
        return Reply(header=answer, body=_joined(records))

    def view_message(self, call: Call[ViewMessageByIdRequest]) -> Reply:
        log_offset = call.header.offset
        record = self._store.record_at(log_offset) if log_offset >= 0 else None
        if record is None:
            raise ServerError(f"no message starts at offset {log_offset} of the log")
        return Reply(body=bytes(record))

    def consume_queue(self, call: Call[QueryConsumeQueueRequest]) -> Reply:
        """Returns the stored units of a queue, and the subscription of a group to compare them with."""
        header = call.header
        store = self._store
        topic, queue_id = header.topic, header.queue_id
        low = store.min_offset(topic, queue_id)
        if low < 0:
            raise ServerError(f"topic {topic} has no queue {queue_id} with messages on this broker")
        subscription = None
        filter_data = None
        group = header.consumer_group
        if group is not None:
            subscription = self._consumers.known_subscription(group, topic)
            if subscription is None:
                filter_data = f"group {group} has no subscription of topic {topic} now"
            else:
                filter_data = "null"
        units = store.units(topic, queue_id, header.index, min(header.count, _UNITS_MAX))
        if not units and not low <= header.index < store.max_offset(topic, queue_id):
            return Reply(remark=f"queue {queue_id} of topic {topic} has no message {header.index}")
        return Reply(
            body=QueryConsumeQueueResponse(
                subscription_data=subscription,
                filter_data=filter_data,
                max_queue_index=store.max_offset(topic, queue_id),
                min_queue_index=low,
                queue_data=[
                    ConsumeQueueData(physic_offset=log_offset, physic_size=size, tags_code=tag_code)
                    for log_offset, size, tag_code in units
                ],
            ).encode()
        )


def _has_key(raw: memoryview, topic: str, key: str) -> bool:
    try:
        record = decode_record(raw)
    except RecordError:
        return False
    keys = index_keys(record.topic, record.properties, record.sys_flag)
    return record.topic == topic and f"{topic}#{key}" in keys


def _joined(records: list[memoryview]) -> bytes:
    chosen: list[memoryview] = []
    total = 0
    for record in records:
        if chosen and total + len(record) > _ANSWER_BYTES_MAX:
            break
        total += len(record)
        chosen.append(record)
    return b"".join(chosen)
