"""``TestRocketBroker``: calls a broker's handlers in memory with the messages that a test publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast, overload
from unittest.mock import MagicMock

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from orbitmq import ReceivedMessage, SendResult, SendStatus
from orbitmq.filter.program import compile_expression
from orbitmq.model.subscription import subscribe_by_tags
from orbitmq.testing import message as received_message
from orbitmq_faststream.broker import RocketBroker
from orbitmq_faststream.config import RocketBrokerConfig, Source, Subscription
from orbitmq_faststream.message import RocketParser
from orbitmq_faststream.producer import RocketProducer, headers_of
from orbitmq_faststream.publisher import RocketPublisher
from orbitmq_faststream.response import RocketPublishCommand
from orbitmq_faststream.subscriber import RocketSubscriber

__all__ = ["MemoryMessage", "MemoryProducer", "TestRocketBroker"]


class MemoryMessage(ReceivedMessage):
    """A message that was never stored: it is finished without a broker and delivered once."""

    async def ack(self) -> None: ...

    async def retry(self, delay: timedelta | float | None = None) -> None: ...

    async def dead_letter(self, reason: str = "") -> None: ...


class MemorySource:
    """Delivers nothing: the publisher passes messages directly to the subscribers."""

    async def messages(self, *, auto_ack: bool = True) -> AsyncIterator[ReceivedMessage]:
        await asyncio.Event().wait()
        yield cast(ReceivedMessage, None)

    async def stop(self) -> None: ...


async def _open_nothing(config: RocketBrokerConfig, subscription: Subscription) -> Source:
    return MemorySource()


class TestRocketBroker(TestBroker[RocketBroker, EnterType], broker=RocketBroker):
    """``async with TestRocketBroker(broker) as running:``. A publish returns when all handlers are done and raises
    their exceptions. Delays are ignored and nothing is redelivered. With ``with_real=True`` a real broker is used.
    """

    __test__ = False  # for pytest

    @overload
    def __init__(
        self: TestRocketBroker[RocketBroker],
        broker: RocketBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestRocketBroker[tuple[RocketBroker, ...]],
        *brokers: RocketBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(
        self, *brokers: RocketBroker, with_real: bool = False, connect_only: bool | None = None
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketPublisher
    ) -> tuple[RocketSubscriber, bool]:
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        # The publisher's topic has its router's prefix; the broker's own is empty.
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        opened, config.open_source = config.open_source, _open_nothing
        try:
            with change_producer(config, MemoryProducer(broker, self.brokers)):
                yield
        finally:
            config.open_source = opened

    async def _fake_connect(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> Any:
        return MagicMock()


class MemoryProducer(RocketProducer):
    """Passes each message to one subscriber of every group whose subscription matches."""

    def __init__(self, broker: RocketBroker, brokers: Sequence[RocketBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        default = RocketParser()
        self._parser = ParserComposition(broker._parser, default.parse_message)
        self._decoder = ParserComposition(broker._decoder, default.decode_message)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self._broker = broker
        self._brokers = brokers
        self._published = 0

    async def publish(self, cmd: RocketPublishCommand) -> SendResult:
        return await self._deliver(cmd, cmd.body)

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[SendResult]:
        return [await self._deliver(cmd, body) for body in cmd.batch_bodies]

    async def request(self, cmd: RocketPublishCommand) -> ReceivedMessage:
        message = await self._built(cmd, cmd.body)
        for subscriber in self._wanting(message):
            async with asyncio.timeout(cmd.timeout):
                response = await subscriber.process_message(message)
            answer = RocketPublishCommand.from_cmd(response.as_publish_command())
            answer.destination = cmd.destination
            return await self._built(answer, answer.body)
        raise SubscriberNotFound(f"no subscriber of topic {cmd.destination}")

    async def _deliver(self, cmd: RocketPublishCommand, body: Any) -> SendResult:
        message = await self._built(cmd, body)
        for subscriber in self._wanting(message):
            await subscriber.process_message(message)
        return SendResult(
            SendStatus.OK, message.message_id, message.queue, message.queue_offset, message.offset_message_id
        )

    async def _built(self, cmd: RocketPublishCommand, value: Any) -> MemoryMessage:
        body, content_type = await self.codec.encode(value, self._broker.config.fd_config._serializer)
        keys = cmd.settings.get("keys", ())
        made = received_message(
            body,
            topic=cmd.destination,
            tags=cmd.settings.get("tags", ""),
            keys=keys if isinstance(keys, str) else list(keys),
            properties=headers_of(cmd, content_type),
            queue_offset=self._published,
        )
        self._published += 1
        return MemoryMessage(made.record, made.queue)

    def _wanting(self, message: ReceivedMessage) -> Iterator[RocketSubscriber]:
        """Yields one subscriber of each group; for broadcast groups all of them."""
        served: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            wanted = subscriber.subscription
            if wanted.topic != message.topic or wanted.group in served or not _selects(wanted, message):
                continue
            if not wanted.settings.get("broadcast"):
                served.add(wanted.group)
            yield subscriber


def _subscribers(brokers: Sequence[RocketBroker]) -> list[RocketSubscriber]:
    found = [subscriber for broker in brokers for subscriber in broker.subscribers]
    return cast(list[RocketSubscriber], found)


def _selects(wanted: Subscription, message: ReceivedMessage) -> bool:
    if wanted.sql:
        return compile_expression(wanted.expression).filter.matches_properties(message.record.properties)
    return subscribe_by_tags(wanted.topic, wanted.expression).matches_tag(message.tags)
