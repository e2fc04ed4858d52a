"""``RocketBroker``: FastStream on Apache RocketMQ."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Unpack

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

from orbitmq import OrbitError, Producer, ProducerOptions, PushOptions, ReceivedMessage, SendResult
from orbitmq_faststream.config import RocketBrokerConfig, Subscription
from orbitmq_faststream.logs import make_rocket_logger_state
from orbitmq_faststream.message import RocketMessage
from orbitmq_faststream.producer import RocketProducer
from orbitmq_faststream.registrator import RocketRegistrator
from orbitmq_faststream.response import RocketPublishCommand, SendSettings
from orbitmq_faststream.subscriber import RocketSubscriber

__all__ = ["RocketBroker"]


class RocketBroker(RocketRegistrator, BrokerUsecase[ReceivedMessage, Producer, RocketBrokerConfig]):
    """Publishes with one ``Producer``; each subscriber has its own ``PushConsumer``."""

    def __init__(
        self,
        name_servers: str = "",
        *,
        group: str = "faststream",
        create_topics: int = 0,
        producer: ProducerOptions | None = None,
        consumer: PushOptions | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        """``group`` is the prefix of the groups of subscribers that name none. ``create_topics`` is the number of
        queues of a topic that is created because a subscriber finds it missing; with 0 none is created. ``producer``
        and ``consumer`` are settings of the clients: credentials, TLS, timeouts.
        """
        self._group = group
        self._name_servers = name_servers
        self._producer_options = producer
        super().__init__(
            routers=routers,
            config=RocketBrokerConfig(
                name_servers=name_servers,
                group=group,
                create_topics=create_topics,
                consumer_options=consumer,
                producer=RocketProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_rocket_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[specification_url or name_servers or "127.0.0.1:9876"],
                protocol="rocketmq",
                protocol_version=None,
                description=description,
                tags=tags,
                security=None,
            ),
        )

    async def _connect(self) -> Producer:
        producer = Producer(f"{self._group}-publishers", self._name_servers, self._producer_options)
        await producer.start()
        config = self.config.broker_config
        assert isinstance(config.producer, RocketProducer)
        config.producer.connect(producer, config.fd_config._serializer, config.broker_codec)
        return producer

    async def start(self) -> None:
        """Connects and starts all subscribers. Raises ``SetupError`` for invalid groups."""
        self._check_groups()
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Waits for handlers, leaves the groups, and sends the messages in flight."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            connection, self._connection = self._connection, None
            if connection is not None:
                assert isinstance(self._producer, RocketProducer)
                self._producer.disconnect()
                await connection.stop()

    def _check_groups(self) -> None:
        """Checks that all members of a group have the same subscription: the broker keeps one for each group."""
        known: dict[str, Subscription] = {}
        for subscriber in self.subscribers:
            assert isinstance(subscriber, RocketSubscriber)
            wanted = subscriber.subscription
            other = known.setdefault(wanted.group, wanted)
            if (other.topic, other.expression) != (wanted.topic, wanted.expression):
                raise SetupError(
                    f"group {wanted.group} would consume {other.topic} ({other.expression}) and {wanted.topic} "
                    f"({wanted.expression}); members of one group want the same: give one of them another group"
                )

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - FastStream's interface
        """Returns whether a name server answers."""
        if self._connection is None:
            return False
        try:
            await self._connection.wait_ready(timeout_s=timeout or 5.0)
        except (OrbitError, OSError):
            return False
        return True

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **settings: Unpack[SendSettings],
    ) -> SendResult:
        """Sends a message. ``reply_to`` is the topic for the handler's result. Raises ``orbitmq.SendFailed`` and
        related errors.
        """
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            settings=settings,
            _publish_type=PublishType.PUBLISH,
        )
        result: SendResult = await self._basic_publish(cmd, producer=self._producer)
        return result

    async def publish_batch(  # type: ignore[override]  # FastStream's brokers name their destinations
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **settings: Unpack[SendSettings],
    ) -> list[SendResult]:
        """Sends messages of one topic in as few requests as their size allows; result i belongs to message i."""
        if not messages:
            return []
        cmd = RocketPublishCommand(
            *messages,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            settings=settings,
            _publish_type=PublishType.PUBLISH,
        )
        results: list[SendResult] = await self._basic_publish_batch(cmd, producer=self._producer)
        return results

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        timeout: float = 3.0,  # noqa: ASYNC109 - FastStream's interface
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **settings: Unpack[SendSettings],
    ) -> RocketMessage:
        """Sends a message and waits for the result of its handler. Raises ``TimeoutError``."""
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout=timeout,
            settings=settings,
            _publish_type=PublishType.REQUEST,
        )
        answer: RocketMessage = await self._basic_request(cmd, producer=self._producer)
        return answer
