"""Converts FastStream's commands to messages of ``orbitmq.Producer``."""

from __future__ import annotations

from typing import Any, Final

from fast_depends.library.serializer import SerializerProto
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import AsyncCallable, CustomCallable
from faststream.exceptions import IncorrectState

from orbitmq import Message, Producer, ReceivedMessage, SendResult
from orbitmq_faststream.message import CONTENT_LENGTH, CONTENT_TYPE, CORRELATION_ID, REPLY_TO, RocketParser
from orbitmq_faststream.response import RocketPublishCommand

__all__ = ["RocketProducer", "headers_of"]

_REQUEST_S: Final = 3.0


class RocketProducer(ProducerProto[RocketPublishCommand]):
    """Owned by a broker; connected while the broker is."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        default = RocketParser()
        self._parser: AsyncCallable = ParserComposition(parser, default.parse_message)
        self._decoder: AsyncCallable = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._producer: Producer | None = None

    def connect(
        self, producer: Producer, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        self._producer = producer
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        self._producer = None

    @property
    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("connect the broker before a message is published: await broker.connect()")
        return self._producer

    async def publish(self, cmd: RocketPublishCommand) -> SendResult:
        """Raises ``orbitmq.SendFailed`` and related errors."""
        return await self._connected.send(await self._message(cmd, cmd.body))

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[SendResult]:
        messages = [await self._message(cmd, body) for body in cmd.batch_bodies]
        return await self._connected.send_batch(messages)

    async def request(self, cmd: RocketPublishCommand) -> ReceivedMessage:
        """Raises ``orbitmq.ReplyTimeoutError``, a ``TimeoutError``."""
        message = await self._message(cmd, cmd.body)
        return await self._connected.request(message, timeout_s=cmd.timeout or _REQUEST_S)

    async def _message(self, cmd: RocketPublishCommand, value: Any) -> Message:
        body, content_type = await self.codec.encode(value, self._serializer)
        headers = headers_of(cmd, content_type)
        if not body:
            body, headers[CONTENT_LENGTH] = b"\0", "0"
        if cmd.request is not None:
            answer = cmd.request.reply(body)
            answer.properties = headers
            return answer
        return Message(cmd.destination, body, properties=headers, **cmd.settings)


def headers_of(cmd: RocketPublishCommand, content_type: str | None) -> dict[str, str]:
    """Returns all headers of a command as text, the type of properties."""
    headers = {name: value if isinstance(value, str) else str(value) for name, value in cmd.headers.items()}
    if content_type:
        headers[CONTENT_TYPE] = content_type
    if cmd.reply_to:
        headers[REPLY_TO] = cmd.reply_to
    if cmd.correlation_id:
        headers[CORRELATION_ID] = cmd.correlation_id
    return headers
