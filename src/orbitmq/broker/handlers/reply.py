"""Request-reply: forwards SEND_REPLY_MESSAGE(_V2) to the requesting client (Apache: ReplyMessageProcessor).

The reply names the requesting client (REPLY_TO_CLIENT), whose connection is looked up among the producers. The reply
is pushed with PUSH_REPLY_MESSAGE_TO_CLIENT first and stored afterwards, because the client is waiting and the stored
copy is only for inspection. With access control, anyone may send to the cluster's reply topic; any other topic
requires publish permission.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.handlers.send_checks import SendChecks
from orbitmq.broker.tables.clients import ProducerTable
from orbitmq.codes import TRANSACTION_MASK, Property, ResponseCode
from orbitmq.errors import (
    BrokerError,
    ConnectionLostError,
    RequestTimeoutError,
    TopicNotFound,
)
from orbitmq.model.names import is_reply_topic
from orbitmq.model.topic import TopicConfig
from orbitmq.record.hosts import encode_host, host_text
from orbitmq.record.ids import offset_message_id
from orbitmq.record.properties import find_property, set_property
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreError
from orbitmq.store.types import NewMessage
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.headers import (
    PushReplyMessageToClientRequest,
    SendMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
)

__all__ = ["ReplyHandlers"]

logger = logging.getLogger(__name__)

_PUSH_S: Final = 10.0
_NOT_STORED: Final = "0"
"""Message id of a reply that was forwarded but not stored; clients require one."""
_ASKER: Final = Property.REPLY_TO_CLIENT.encode()
_PUSHED_AT: Final = Property.PUSH_REPLY_TIME.encode()


class ReplyHandlers:
    """Forwards replies to the requesting clients."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_host: bytes,
        producers: ProducerTable,
        puts: WritePath,
        checks: SendChecks,
        clock: Clock,
    ) -> None:
        self._config = config
        self._address = host_text(store_host)
        self._store_host = store_host
        self._producers = producers
        self._puts = puts
        self._checks = checks
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.SEND_REPLY_MESSAGE, self.reply, SendMessageRequest),
            Route(RequestCode.SEND_REPLY_MESSAGE_V2, self.reply, SendMessageRequestV2),
        ]

    async def reply(self, call: Call[SendMessageRequest]) -> Reply:
        """Serve SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325)."""
        header = call.header
        region = {
            Property.MSG_REGION.value: self._config.region_id,
            Property.TRACE_ON.value: "true" if self._config.trace_on else "false",
        }
        try:
            self._checks.broker(call.peer)
            topic = self._topic(call)
        except BrokerError as error:
            return Reply(error.response_code, error.remark, ext=region)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = 0 if topic is None else random.randrange(topic.write_queue_nums)
        properties = (header.properties or "").encode()
        failure = await self._push(call, properties)
        answer = SendMessageResponse(msg_id=_NOT_STORED, queue_id=queue_id, queue_offset=0)
        code = int(ResponseCode.SUCCESS)
        stores = self._config.store_replies and topic is not None
        if stores:
            code = await self._stored(call, queue_id, properties, answer)
        if failure:
            logger.warning("reply not forwarded reason=%s", failure)
            return Reply(ResponseCode.SYSTEM_ERROR, failure, answer if stores else None, region)
        return Reply(code, header=answer, ext=region)

    def _topic(self, call: Call[SendMessageRequest]) -> TopicConfig | None:
        """Returns the topic of a reply. It is never created, because anyone may send a reply.

        Returns None if the reply topic of a namespace is missing; the reply is then forwarded but not stored. Raises
        ``BrokerError``.
        """
        try:
            return self._checks.topic(call.header, call.peer.remote_text, create=False)
        except TopicNotFound:
            if not is_reply_topic(call.header.topic, self._config.cluster_name):
                raise
            return None

    async def _push(self, call: Call[SendMessageRequest], properties: bytes) -> str:
        """Push the reply to the requesting client. Returns the reason if that failed, otherwise an empty string."""
        asker = find_property(properties, _ASKER)
        if asker is None:
            return f"reply message properties[{Property.REPLY_TO_CLIENT.value}] is null"
        client_id = asker.decode("utf-8", "replace")
        connection = self._producers.channel_of(client_id)
        if connection is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        header = call.header
        now_ms = self._clock.now_ms()
        pushed = set_property(properties, _PUSHED_AT, b"%d" % now_ms)
        push = PushReplyMessageToClientRequest(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=pushed.decode("utf-8", "replace"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=call.peer.remote_text,
            store_host=self._address,
            store_timestamp=now_ms,
        )
        try:
            answer = await connection.call(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, call.body, timeout_s=_PUSH_S
            )
        except (RequestTimeoutError, ConnectionLostError) as error:
            logger.warning("reply not delivered client=%s error=%s", client_id, error)
            return f"push reply message to {client_id}fail."
        if answer.code != ResponseCode.SUCCESS:
            logger.warning("reply refused client=%s remark=%s", client_id, answer.remark)
            return f"push reply message to {client_id}fail."
        return ""

    async def _stored(
        self, call: Call[SendMessageRequest], queue_id: int, properties: bytes, answer: SendMessageResponse
    ) -> int:
        """Store the reply and wait until it is as safe as a send. Returns the response code for its sender."""
        header = call.header
        message = NewMessage(
            header.topic,
            queue_id,
            call.body,
            properties,
            header.born_timestamp,
            encode_host(*call.peer.remote),
            header.flag,
            header.sys_flag & ~TRANSACTION_MASK,
            header.reconsume_times or 0,
        )
        try:
            stored = self._puts.put(message)
        except (StoreError, BrokerError) as error:
            logger.warning("reply not stored topic=%s reason=%s", header.topic, error)
            return ResponseCode.SUCCESS
        answer.msg_id = offset_message_id(self._store_host, stored.where.log_offset)
        answer.queue_offset = stored.where.queue_offset
        return await self._puts.safe(stored.end)
