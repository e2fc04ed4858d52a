"""A RocketMQ message as FastStream sees it, and the conversion from the client's message."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

from orbitmq import ReceivedMessage
from orbitmq.codes import Property

__all__ = ["CONTENT_LENGTH", "CONTENT_TYPE", "CORRELATION_ID", "REPLY_TO", "RocketMessage", "RocketParser"]

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
CONTENT_LENGTH: Final = "content-length"
"""Says ``0`` of an empty body, which RocketMQ refuses: a zero byte is sent in its place."""
REPLY_TO: Final = "reply_to"
"""Properties that carry what FastStream needs; the names are those of its Kafka headers."""


class RocketMessage(StreamMessage[ReceivedMessage]):
    """Finished once: by ``ack``, ``nack`` (redelivered) or ``reject`` (sent to the dead-letter topic)."""

    retry_delay: timedelta | float | None = None
    """Of ``nack`` without a delay; None leaves it to the broker, which waits longer from attempt to attempt."""

    async def ack(self) -> None:
        if self.committed is None:
            await self.raw_message.ack()
        await super().ack()

    async def nack(self, delay: timedelta | float | None = None) -> None:
        """Rounds ``delay`` up to a delay level of the broker. After the last attempt the message is dead-lettered."""
        if self.committed is None:
            await self.raw_message.retry(self.retry_delay if delay is None else delay)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Stores the reason as property ``RETRY_REASON``; by default it is the exception being handled."""
        if self.committed is None:
            error = sys.exception()
            await self.raw_message.dead_letter(reason or (repr(error) if error is not None else ""))
        await super().reject()

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.raw_message.attempt

    @property
    def tags(self) -> str:
        return self.raw_message.tags

    @property
    def keys(self) -> list[str]:
        return self.raw_message.keys


class RocketParser:
    """Converts properties to headers; the body stays bytes until it is decoded."""

    def __init__(self, retry_delay: timedelta | float | None = None) -> None:
        self._retry_delay = retry_delay

    async def parse_message(self, message: ReceivedMessage) -> RocketMessage:
        headers = message.user_properties
        is_empty = headers.pop(CONTENT_LENGTH, "") == "0"
        reply_to = message.get(Property.REPLY_TO_CLIENT) if message.is_request else headers.get(REPLY_TO)
        parsed = RocketMessage(
            message,
            b"" if is_empty else message.body,
            headers=headers,
            reply_to=reply_to or "",
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID) or message.message_id,
            message_id=message.message_id,
        )
        parsed.retry_delay = self._retry_delay
        return parsed

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        return decode_message(message)
