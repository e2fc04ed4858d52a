"""Sends failed messages back for another attempt (Apache: ``sendMessageBack`` of the push consumer)."""

from __future__ import annotations

import logging
from typing import Any, Final

from orbitmq.client.bodies import json_bytes
from orbitmq.client.consume.handlers import Outcome
from orbitmq.client.message import Message, ReceivedMessage
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions, ProducerOptions
from orbitmq.client.produce.sender import Outgoing, Sender
from orbitmq.codes import COMPRESSION_MASK, Property, SysFlag
from orbitmq.errors import OrbitError
from orbitmq.model.names import CLIENT_INNER_PRODUCER_GROUP, retry_topic
from orbitmq.record.properties import encode_properties, set_property
from orbitmq.record.reasons import REASON, reason_bytes
from orbitmq.requests import RequestCode
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import ConsumerSendMsgBackRequest, ConsumerSendMsgBackResponse

__all__ = ["SendBack"]

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
RETRIES_MAX: Final = 16
_COMPRESSION: Final = int(SysFlag.COMPRESSED) | int(COMPRESSION_MASK)


class SendBack:
    """Sends messages of one group back to their brokers."""

    def __init__(
        self, instance: ClientInstance, group: str, options: ConsumerOptions, reconsume_max: int
    ) -> None:
        self._instance = instance
        self._group = group
        self.reconsume_max = RETRIES_MAX if reconsume_max < 0 else reconsume_max
        sender_options = ProducerOptions(
            namespace="",
            credentials=options.credentials,
            send_timeout_s=TIMEOUT_S,
            compress_over_bytes=2**31 - 1,
        )
        self._keeps_reasons: set[str] = set()
        """Names of brokers that store the reason in the request."""
        self._sender = Sender(instance, CLIENT_INNER_PRODUCER_GROUP, sender_options)

    async def send_back(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Have the message redelivered or dead-lettered, with the reason. Returns False if neither the request nor a
        copy succeeded.

        Apache's brokers ignore the reason in the request. So the last attempt is sent as a copy until the broker has
        confirmed that it stores reasons. On such brokers the reasons of earlier attempts are lost.
        """
        name = message.queue.broker_name
        if outcome.reason and name not in self._keeps_reasons and self.is_last(message, outcome):
            return await self.send_copy(message, self.reconsume_max, outcome)
        header = ConsumerSendMsgBackRequest(
            offset=message.log_offset,
            group=self._group,
            delay_level=outcome.delay_level,
            origin_msg_id=message.message_id,
            origin_topic=_origin_topic(message),
            max_reconsume_times=self.reconsume_max,
            broker_name=name,
            retry_reason=reason_bytes(outcome.reason, 0).decode() or None,
        )
        try:
            address = self._instance.book.master_address(name) or message.store_host
            answer = await self._instance.ask(
                address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_s=TIMEOUT_S
            )
            stored = decode_header(ConsumerSendMsgBackResponse, answer).reason_stored
        except OrbitError as error:
            self._instance.log_limits.warning(
                logger,
                ("send-back", name),
                "message not sent back, sending a copy id=%s error=%s",
                message.message_id,
                error,
            )
            return await self.send_copy(message, self.reconsume_max, outcome)
        if stored:
            self._keeps_reasons.add(name)  # as many as the consumer's topics have brokers
        return True

    def is_last(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Whether the message will be dead-lettered."""
        return message.reconsume_times >= self.reconsume_max or outcome.delay_level < 0

    async def send_copy(self, message: ReceivedMessage, reconsume_max: int, outcome: Outcome) -> bool:
        """Send the message to the retry topic as a new message, which the broker dead-letters at the retry limit.
        Returns False if that failed."""
        topic = retry_topic(self._group)
        pairs = dict(message.properties)
        for name in (Property.TRANSACTION_PREPARED, Property.DELAY, Property.MIN_OFFSET, Property.MAX_OFFSET):
            pairs.pop(name.value, None)
        pairs[Property.RETRY_TOPIC.value] = _origin_topic(message)
        pairs.setdefault(Property.ORIGIN_MESSAGE_ID.value, message.message_id)
        level = outcome.delay_level
        pairs[Property.DELAY.value] = str(level if level > 0 else 3 + message.reconsume_times)
        if level < 0:
            reconsume_max = 0  # any number of tries is one too many
        try:
            outgoing = Outgoing(
                topic,
                message.record.body,
                _encode_with_reason(pairs, outcome.reason),
                pairs.get(Property.UNIQUE_KEY.value, message.message_id),
                sys_flag=message.record.sys_flag & _COMPRESSION,  # of a body that could not be inflated
                flag=message.flag,
                reconsume=(message.reconsume_times + 1, reconsume_max),
            )
            await self._sender.send(outgoing)
        except OrbitError as error:
            self._instance.log_limits.warning(
                logger,
                ("copy", message.queue.broker_name),
                "copy not sent id=%s error=%s",
                message.message_id,
                error,
            )
            return False
        return True

    async def reply(self, message: ReceivedMessage, value: Any) -> None:
        """Answer a request with its handler's result. The result may be bytes, text or a message created by
        ``message.reply``; any other value is sent as JSON."""
        answer = value
        if not isinstance(value, Message):
            body = value if isinstance(value, bytes | str) else json_bytes(value)
            answer = message.reply(body)
        await self._sender.send(self._sender.prepare(answer))


def _encode_with_reason(pairs: dict[str, str], reason: str) -> bytes:
    """Returns the encoded properties with the reason, or without it if they would be too long. Raises
    ``RecordError``."""
    raw = encode_properties({name: value for name, value in pairs.items() if name != REASON})
    return set_property(raw, REASON.encode(), reason_bytes(reason, len(raw)))


def _origin_topic(message: ReceivedMessage) -> str:
    """Returns the topic the message was first sent to, as it appears on the wire."""
    return message.get(Property.RETRY_TOPIC) or message.record.topic
