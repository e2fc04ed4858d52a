"""Sends messages that wait for a reply (Apache: ``request`` of the producer, the other end of
ReplyMessageProcessor)."""

from __future__ import annotations

import asyncio
import logging
import uuid

from orbitmq.client.errors import ReplyTimeoutError
from orbitmq.client.message import Message, ReceivedMessage
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.produce.sender import SendContext, Sender
from orbitmq.codes import COMPRESSION_MASK, Property, ResponseCode, SysFlag
from orbitmq.errors import RecordError
from orbitmq.kernel.layout import MAGIC_V1
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import Record
from orbitmq.record.compression import decompress_body
from orbitmq.record.hashing import body_crc
from orbitmq.record.hosts import encode_host
from orbitmq.transport.client import split_address
from orbitmq.transport.router import Answer, Call, Reply
from orbitmq.wire.headers import PushReplyMessageToClientRequest

__all__ = ["Requests"]

logger = logging.getLogger(__name__)


class Requests:
    """The requests of one producer that wait for replies."""

    def __init__(self, instance: ClientInstance, sender: Sender) -> None:
        self._instance = instance
        self._sender = sender
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    async def request(
        self, message: Message, *, timeout_s: float, context: SendContext | None = None
    ) -> ReceivedMessage:
        """Send a request and wait for the reply. Raises the errors of a send, and ``ReplyTimeoutError``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        correlation_id = str(uuid.uuid4())
        extra = {
            Property.CORRELATION_ID.value: correlation_id,
            Property.REPLY_TO_CLIENT.value: self._instance.client_id,
            Property.TTL.value: str(int(timeout_s * 1000)),
        }
        outgoing = self._sender.prepare(message, extra)
        if context is not None:
            context.unique_key = outgoing.unique_key
        # The broker pushes the reply to us, so it must know our connection before anyone can reply.
        await self._sender.introduce(outgoing.topic, timeout_s)
        future: asyncio.Future[ReceivedMessage] = loop.create_future()
        self._waiting[correlation_id] = future
        try:
            left_s = max(0.001, deadline - loop.time())
            result = await self._sender.send(
                outgoing, shard_key=message.shard_key, timeout_s=left_s, context=context
            )
            if context is not None:
                context.result = result
            return await self._answer(future, correlation_id, message.topic, deadline)
        finally:
            del self._waiting[correlation_id]

    async def _answer(
        self, future: asyncio.Future[ReceivedMessage], correlation_id: str, topic: str, deadline: float
    ) -> ReceivedMessage:
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise ReplyTimeoutError(
                f"no answer to request {correlation_id} on topic {topic} in time"
            ) from None

    def answered(self, call: Call[PushReplyMessageToClientRequest]) -> Answer:
        """Handle PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""
        try:
            message = _received(call.header, call.body, self._instance.clock.now_ms())
        except RecordError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the reply cannot be read: {error}")
        future = self._waiting.get(message.get(Property.CORRELATION_ID) or "")
        if future is None or future.done():
            logger.info("reply without a pending request id=%s", message.get(Property.CORRELATION_ID))
        else:
            future.set_result(message)
        return Reply()


def _received(header: PushReplyMessageToClientRequest, body: bytes, now_ms: int) -> ReceivedMessage:
    sys_flag = header.sys_flag
    if sys_flag & SysFlag.COMPRESSED:
        body = decompress_body(body, sys_flag)
        sys_flag &= ~(SysFlag.COMPRESSED | COMPRESSION_MASK)
    properties = (header.properties or "").encode()
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties += f"{Property.ARRIVE_TIME}\x01{now_ms}\x02".encode()
    record = Record(
        header.topic,
        header.queue_id,
        body,
        properties,
        header.born_timestamp,
        _host(header.born_host),
        header.flag,
        int(sys_flag),
        header.reconsume_times or 0,
        0,
        -1,
        -1,
        header.store_timestamp,
        _host(header.store_host),
        body_crc(body),
        MAGIC_V1,
        0,
    )
    queue = MessageQueue(topic=header.topic, broker_name=header.broker_name or "", queue_id=header.queue_id)
    return ReceivedMessage(record, queue)


def _host(text: str) -> bytes:
    """Parse an address such as ``/10.0.0.1:10911``, as Java prints it. Text that is not an address becomes all
    zeros."""
    try:
        return encode_host(*split_address(text.lstrip("/")))
    except Exception:  # noqa: BLE001 - display only: a reply must not be lost for it
        return bytes(8)
