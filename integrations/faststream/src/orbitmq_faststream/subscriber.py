"""``@broker.subscriber("topic")``: a dedicated consumer, read by ``max_workers`` tasks.

Invariants
1. A message is acknowledged, returned or dead-lettered by FastStream's acknowledgement middleware or by the user. A
   message that was taken and not finished is redelivered when its consumer is gone.
2. A stop takes no further message, waits for handlers (for at most the broker's ``graceful_timeout``), then stores
   the offsets and leaves the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, cast

from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.response import Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from orbitmq import ClientStateError, ReceivedMessage
from orbitmq_faststream.config import (
    RocketBrokerConfig,
    RocketSubscriberConfig,
    RocketSubscriberSpecificationConfig,
    Source,
    Subscription,
)
from orbitmq_faststream.message import RocketMessage, RocketParser
from orbitmq_faststream.publisher import ReplyPublisher

__all__ = ["RocketSubscriber", "RocketSubscriberSpecification"]

_CANCEL_S: Final = 5.0
"""A cancelled handler that runs longer is abandoned; its message is not acknowledged."""


class RocketSubscriberSpecification(
    SubscriberSpecification[RocketBrokerConfig, RocketSubscriberSpecificationConfig]
):
    """The AsyncAPI view of a subscriber."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
        }


class RocketSubscriber(SubscriberUsecase[ReceivedMessage]):
    """Consumes one topic for one group."""

    _outer_config: RocketBrokerConfig

    def __init__(
        self,
        config: RocketSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[ReceivedMessage],
    ) -> None:
        parser = RocketParser(config.settings.get("retry_delay"))
        config.parser = parser.parse_message
        config.decoder = parser.decode_message
        super().__init__(config, specification, calls)
        self._topic = config.topic
        self._settings = config.settings
        self._source: Source | None = None
        self._reading: AsyncIterator[ReceivedMessage] | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def subscription(self) -> Subscription:
        """The subscription, evaluated once all routers are included, because they add prefixes."""
        settings = self._settings
        sql = settings.get("sql", "")
        return Subscription(
            topic=self.topic,
            group=settings.get("group") or f"{self._outer_config.group}-{self.topic}",
            expression=sql or settings.get("tags") or "*",
            sql=bool(sql),
            settings=settings,
        )

    async def start(self) -> None:
        """Joins the group and starts consuming."""
        await super().start()
        if self._source is None:
            source = await self._outer_config.open_source(self._outer_config, self.subscription)
            self._source = source
            self._post_start()
            if self.calls:
                for _ in range(self._settings.get("max_workers", 1)):
                    task = asyncio.create_task(self._work(source), name=f"faststream-{self.topic}")
                    self._workers.add(task)
                    task.add_done_callback(self._worker_ended)
        self._post_start()

    async def stop(self) -> None:
        """Finishes the messages in progress and leaves the group; the rest is left to other members."""
        self.running = False
        for task in self._idle:
            task.cancel()
        await super().stop()
        others = self._workers - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CANCEL_S)
        source, self._source, self._reading = self._source, None, None
        if source is not None:
            await source.stop()

    async def _work(self, source: Source) -> None:
        messages = source.messages(auto_ack=False)
        task = asyncio.current_task()
        assert task is not None
        while self.running:
            self._idle.add(task)
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                return
            finally:
                self._idle.discard(task)
            try:
                await self.consume(message)
            except asyncio.CancelledError as error:
                if task.cancelling():
                    raise
                await self._cancelled_itself(message, error)

    async def _cancelled_itself(self, message: ReceivedMessage, error: asyncio.CancelledError) -> None:
        """Handles a handler that awaited something cancelled: its worker continues, and the message is retried."""
        self._log(logging.ERROR, f"handler of {self.topic} raised {error!r} id={message.message_id}")
        if self.ack_policy is not AckPolicy.MANUAL:
            try:
                await message.retry(self._settings.get("retry_delay"))
            except ClientStateError:
                pass  # already finished

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log(logging.CRITICAL, f"worker of {self.topic} ended: {error!r}")

    async def process_message(self, msg: ReceivedMessage) -> Response:
        response = await super().process_message(msg)
        if self.ack_policy is not AckPolicy.MANUAL:
            # A skipped message (``SkipMessage``) is finished, but FastStream does not acknowledge it.
            try:
                await msg.ack()
            except ClientStateError:
                pass
        return response

    async def get_one(self, *, timeout: float = 5.0) -> RocketMessage | None:  # noqa: ASYNC109 - FastStream's
        """Returns the next message, to be finished by the caller, or None after the timeout. Only without
        handlers.
        """
        assert not self.calls, "a subscriber with handlers cannot be read by hand"
        try:
            async with asyncio.timeout(timeout):
                raw = await anext(self._messages())
        except (TimeoutError, StopAsyncIteration):
            return None
        return await self._parsed(raw)

    async def __aiter__(self) -> AsyncIterator[RocketMessage]:
        """Yields messages as they arrive, each to be finished by the caller."""
        assert not self.calls, "a subscriber with handlers cannot be read by hand"
        async for raw in self._messages():
            yield await self._parsed(raw)

    def _messages(self) -> AsyncIterator[ReceivedMessage]:
        if self._source is None:
            raise ClientStateError("start the subscriber before it is read: await subscriber.start()")
        if self._reading is None:
            self._reading = self._source.messages(auto_ack=False)
        return self._reading

    async def _parsed(self, raw: ReceivedMessage) -> RocketMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        message = await process_msg(
            msg=raw,
            middlewares=(middleware(raw, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        parsed = cast(RocketMessage, message)  # unless the user's parser returns another type
        if self.ack_policy is AckPolicy.ACK_FIRST:
            await parsed.ack()
        return parsed

    def _make_response_publisher(
        self, message: StreamMessage[ReceivedMessage]
    ) -> Iterable[PublisherProto[Any]]:
        return (ReplyPublisher(self._outer_config.producer, message.raw_message, message.reply_to),)

    def get_log_context(self, message: StreamMessage[ReceivedMessage] | None) -> dict[str, str]:
        return {
            "topic": self.topic,
            "group": self.subscription.group,
            "message_id": getattr(message, "message_id", ""),
        }
