"""``@broker.publisher("topic")``, and how a handler's result is returned to the requester."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.producer import ProducerProto
from faststream._internal.types import PublisherMiddleware
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from orbitmq import OrbitError, ReceivedMessage, SendResult
from orbitmq_faststream.config import (
    RocketBrokerConfig,
    RocketPublisherConfig,
    RocketPublisherSpecificationConfig,
)
from orbitmq_faststream.message import RocketMessage
from orbitmq_faststream.response import RocketPublishCommand, SendSettings

__all__ = ["ReplyPublisher", "RocketPublisher", "RocketPublisherSpecification"]

logger = logging.getLogger(__name__)


class RocketPublisherSpecification(
    PublisherSpecification[RocketBrokerConfig, RocketPublisherSpecificationConfig]
):
    """The AsyncAPI view of a publisher."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
        }


class RocketPublisher(PublisherUsecase):
    """Publishes to one topic; its settings apply where a message has none of its own."""

    _outer_config: RocketBrokerConfig

    def __init__(
        self, config: RocketPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.headers = config.headers
        self.reply_to = config.reply_to
        self.settings = config.settings

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **settings: Unpack[SendSettings],
    ) -> SendResult:
        """Sends a message. Raises ``orbitmq.SendFailed`` and related errors."""
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            settings=settings,
            _publish_type=PublishType.PUBLISH,
        )
        result: SendResult = await self._publish(cmd, _extra_middlewares=())
        return result

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware[Any]]
    ) -> Any:
        return await self._basic_publish(
            self._completed(cmd),
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = 3.0,  # noqa: ASYNC109 - FastStream's interface
        **settings: Unpack[SendSettings],
    ) -> RocketMessage:
        """Sends a message and waits for the result of its handler. Raises ``TimeoutError``."""
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout=timeout,
            settings=settings,
            _publish_type=PublishType.REQUEST,
        )
        answer: RocketMessage = await self._basic_request(
            self._completed(cmd), producer=self._outer_config.producer
        )
        return answer

    def _completed(self, command: PublishCommand) -> RocketPublishCommand:
        cmd = RocketPublishCommand.from_cmd(command)
        cmd.destination = cmd.destination or self.topic
        cmd.reply_to = cmd.reply_to or self.reply_to
        cmd.add_headers(self.headers, override=False)
        cmd.settings = {**self.settings, **cmd.settings}
        return cmd


class ReplyPublisher(FakePublisher):
    """Answers a request through the broker it came from, and any other message through its ``reply_to`` topic."""

    def __init__(self, producer: ProducerProto[Any], message: ReceivedMessage, topic: str) -> None:
        super().__init__(producer=producer)
        self._message = message
        self._topic = topic

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware[Any]]
    ) -> Any:
        try:
            return await super()._publish(cmd, _extra_middlewares=_extra_middlewares)
        except OrbitError as error:
            if not self._message.is_request:
                raise
            # The requester is gone or timed out. The handler succeeded, so it must not run again.
            logger.warning("reply not sent id=%s error=%s", self._message.message_id, error)
            return None

    def patch_command(self, cmd: PublishCommand) -> RocketPublishCommand:
        answer = RocketPublishCommand.from_cmd(super().patch_command(cmd))
        if self._message.is_request:
            answer.request = self._message
        else:
            answer.destination = self._topic
        return answer
