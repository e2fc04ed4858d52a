"""Published messages: the command that middlewares see, and the response that a handler may return."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from orbitmq import ReceivedMessage

__all__ = ["RocketPublishCommand", "RocketResponse", "SendSettings"]


class SendSettings(TypedDict, total=False):
    """The fields of a RocketMQ message in addition to body and headers; the names are those of
    ``orbitmq.Message``.
    """

    tags: str
    keys: str | Sequence[str]
    shard_key: str
    """Messages with one key go to one queue and stay in order."""
    delay: timedelta | float | None
    deliver_at: datetime | None


class RocketPublishCommand(BatchPublishCommand):
    """One message to send, or several of one topic."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        settings: SendSettings | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.timeout = timeout
        self.settings: SendSettings = settings or {}
        self.request: ReceivedMessage | None = None
        """The request this is the answer to."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketPublishCommand:
        """Converts any command to a RocketPublishCommand; with ``batch``, each item of a sequence is a message."""
        if isinstance(cmd, RocketPublishCommand):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(body={self.body!r}, topic={self.destination!r}, settings={self.settings}, "
            f"reply_to={self.reply_to!r}, headers={self.headers}, correlation_id={self.correlation_id!r})"
        )


class RocketResponse(Response):
    """A handler's result with settings for its message: ``return RocketResponse(order, keys=order.id)``."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **settings: Unpack[SendSettings],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.settings = settings

    def as_publish_command(self) -> RocketPublishCommand:
        return RocketPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            settings=self.settings,
            _publish_type=PublishType.PUBLISH,
        )
