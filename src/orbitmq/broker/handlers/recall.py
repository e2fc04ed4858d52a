"""Serves RECALL_MESSAGE, which cancels a timer message before its time (Apache: RecallMessageProcessor). Off by
default.

The answer to a producer's send contains a handle with the topic, broker, time and unique key. A recall stores another
timer message for the same second, which deletes the first one. It works on any broker that processes that second,
including Apache's.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import Stored, WritePath
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Property
from orbitmq.errors import (
    BrokerError,
    IllegalOperation,
    NoPermission,
    ServerError,
    ServiceNotAvailable,
    SlaveNotAvailable,
    TopicNotFound,
)
from orbitmq.model.names import RETRY_PREFIX
from orbitmq.record.hosts import encode_host
from orbitmq.record.properties import encode_properties, find_property
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreError
from orbitmq.store.types import NewMessage
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Answer, Call, Reply, Route
from orbitmq.wire.headers import RecallMessageRequest, RecallMessageResponse

__all__ = ["RecallHandle", "RecallHandlers", "recall_handle"]

_VERSION: Final = "v1"
_TAG: Final = "_RECALL_TAG_"
_OUT: Final = Property.TIMER_OUT_MS.encode()
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode()
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()


class RecallHandle(NamedTuple):
    """The data by which a producer can recall a message."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Parse the text form of a handle. Raises ``IllegalOperation`` if it is invalid."""
        try:
            padded = text + "=" * (-len(text) % 4)
            parts = base64.b64decode(padded.encode(), b"-_", validate=True).decode().split(" ")
            version, topic, broker_name, deliver_ms, unique_key, *_ = parts
            if version != _VERSION:
                raise ValueError(version)
            return cls(topic, broker_name, int(deliver_ms), unique_key)
        except (ValueError, binascii.Error):
            raise IllegalOperation("recall handle is invalid") from None


def recall_handle(message: NewMessage, broker_name: str) -> str | None:
    """Returns the handle of a message in its stored form, or None unless it is a producer's timer message."""
    properties = message.properties
    out = find_property(properties, _OUT)
    topic = find_property(properties, _REAL_TOPIC)
    key = find_property(properties, _UNIQUE_KEY)
    if out is None or topic is None or key is None or topic.startswith(RETRY_PREFIX.encode()):
        return None
    # One millisecond after the start of its second, so that the recall is entered under the same second.
    return RecallHandle(
        topic.decode("utf-8", "replace"), broker_name, int(out) + 1, key.decode("utf-8", "replace")
    ).encode()


class RecallHandlers:
    """Recalls timer messages."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        puts: WritePath,
        clock: Clock,
    ) -> None:
        self._config = config
        self._topics = topics
        self._puts = puts
        self._clock = clock

    def routes(self) -> list[Route]:
        return [Route(RequestCode.RECALL_MESSAGE, self.recall, RecallMessageRequest)]

    def recall(self, call: Call[RecallMessageRequest]) -> Answer:
        """Serve RECALL_MESSAGE (370)."""
        region = {Property.MSG_REGION.value: self._config.region_id}
        try:
            unique_key, stored = self._recall(call.header, call.peer)
        except BrokerError as error:
            return Reply(error.response_code, error.remark, ext=region)
        reply = Reply(header=RecallMessageResponse(msg_id=unique_key), ext=region)
        return self._puts.answer(call, stored.end, reply)

    def _recall(self, header: RecallMessageRequest, peer: Connection) -> tuple[str, Stored]:
        config = self._config
        now_ms = self._clock.now_ms()
        if not config.recall_enabled:
            raise NoPermission("recall failed, operation is forbidden")
        if config.is_slave:
            raise SlaveNotAvailable("recall failed, broker service not available")
        if now_ms < config.accept_sends_from_ms or not config.writable:
            raise ServiceNotAvailable("recall failed, broker service not available")
        if self._topics.find(header.topic) is None:
            raise TopicNotFound(f"recall failed, the topic[{header.topic}] not exist")
        handle = RecallHandle.decode(header.recall_handle)
        if handle.topic != header.topic:
            raise IllegalOperation("recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise IllegalOperation("recall failed, broker service not available")
        if not 0 < handle.deliver_ms - now_ms < config.timer_delay_max_s * 1000:
            raise IllegalOperation("recall failed, timestamp invalid")
        key = handle.unique_key
        properties: dict[str, str] = {
            Property.TAGS: _TAG,
            Property.TIMER_DEL_UNIQKEY: f"{handle.topic}+{key}" if config.timer_delete_key_has_topic else key,
            Property.UNIQUE_KEY: handle.unique_key,
            Property.TIMER_DELIVER_MS: str(handle.deliver_ms),
            Property.BORN_TIMESTAMP: str(now_ms),
            Property.PRODUCER_GROUP: header.producer_group or "",
        }
        message = NewMessage(
            handle.topic, 0, b"0", encode_properties(properties), now_ms, encode_host(*peer.remote)
        )
        try:
            return handle.unique_key, self._puts.put(message)
        except StoreError as error:
            raise ServerError(f"recall failed, execute error: {error.remark}") from None
