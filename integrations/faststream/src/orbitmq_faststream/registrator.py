"""Shared by brokers and routers: subscribers, publishers, and nested routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, cast

from fast_depends.dependencies import Dependant
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from orbitmq import ReceivedMessage
from orbitmq_faststream.config import (
    RocketBrokerConfig,
    RocketPublisherConfig,
    RocketPublisherSpecificationConfig,
    RocketSubscriberConfig,
    RocketSubscriberSpecificationConfig,
    SubscriptionSettings,
)
from orbitmq_faststream.publisher import RocketPublisher, RocketPublisherSpecification
from orbitmq_faststream.response import SendSettings
from orbitmq_faststream.subscriber import RocketSubscriber, RocketSubscriberSpecification

__all__ = ["PublisherSettings", "RocketRegistrator", "SubscriberSettings"]

_SUBSCRIPTION_NAMES = frozenset(SubscriptionSettings.__annotations__)
_SEND_NAMES = frozenset(SendSettings.__annotations__)


class SubscriberSettings(SubscriptionSettings, total=False):
    """The subscription's settings and FastStream's own."""

    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    persistent: bool
    title: str | None
    description: str | None
    include_in_schema: bool


class PublisherSettings(SendSettings, total=False):
    """The settings of messages and FastStream's own."""

    headers: dict[str, str] | None
    reply_to: str
    persistent: bool
    title: str | None
    description: str | None
    schema: Any
    include_in_schema: bool


class RocketRegistrator(Registrator[ReceivedMessage, RocketBrokerConfig]):
    """Registers handlers of RocketMQ topics."""

    def subscriber(  # type: ignore[override]  # FastStream's base takes a finished subscriber
        self, topic: str, **settings: Unpack[SubscriberSettings]
    ) -> RocketSubscriber:
        """Registers a handler of a topic, see ``SubscriberSettings``. Raises ``SetupError`` for invalid settings."""
        _check(topic, settings)
        outer = cast(
            RocketBrokerConfig, self.config
        )  # the composition has the interface of the configuration it consists of
        wanted = cast(
            SubscriptionSettings,
            {name: value for name, value in settings.items() if name in _SUBSCRIPTION_NAMES},
        )
        calls = CallsCollection[ReceivedMessage]()
        subscriber = RocketSubscriber(
            RocketSubscriberConfig(
                _outer_config=outer,
                _ack_policy=settings.get("ack_policy", EMPTY),
                no_reply=settings.get("no_reply", False),
                topic=topic,
                settings=wanted,
            ),
            RocketSubscriberSpecification(
                outer,
                RocketSubscriberSpecificationConfig(
                    topic=topic,
                    title_=settings.get("title"),
                    description_=settings.get("description"),
                    include_in_schema=settings.get("include_in_schema", True),
                ),
                calls,
            ),
            calls,
        )
        super().subscriber(subscriber, persistent=settings.get("persistent", True))
        return subscriber.add_call(
            parser_=settings.get("parser") or self._parser,
            decoder_=settings.get("decoder") or self._decoder,
            codec_=settings.get("codec"),
            dependencies_=settings.get("dependencies", ()),
        )

    def publisher(  # type: ignore[override]  # FastStream's base takes a finished publisher
        self, topic: str, **settings: Unpack[PublisherSettings]
    ) -> RocketPublisher:
        """Returns a publisher to a topic: a decorator of handlers, or an object with a ``publish`` method."""
        outer = cast(RocketBrokerConfig, self.config)
        wanted = cast(SendSettings, {name: value for name, value in settings.items() if name in _SEND_NAMES})
        publisher = RocketPublisher(
            RocketPublisherConfig(
                _outer_config=outer,
                topic=topic,
                headers=settings.get("headers") or {},
                reply_to=settings.get("reply_to", ""),
                settings=wanted,
            ),
            RocketPublisherSpecification(
                outer,
                RocketPublisherSpecificationConfig(
                    topic=topic,
                    title_=settings.get("title"),
                    description_=settings.get("description"),
                    schema_=settings.get("schema"),
                    include_in_schema=settings.get("include_in_schema", True),
                ),
            ),
        )
        super().publisher(publisher, persistent=settings.get("persistent", True))
        return publisher

    def include_router(
        self,
        router: Registrator[ReceivedMessage, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[ReceivedMessage]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        if not isinstance(router, RocketRegistrator):
            raise TypeError(
                f"a router of {type(router).__name__} cannot be included; RocketRouter is accepted"
            )
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


def _check(topic: str, settings: SubscriberSettings) -> None:
    """Reports mistakes at the decorator, where they are made, not when the broker starts."""
    unknown = sorted(set(settings) - set(SubscriberSettings.__annotations__))
    if unknown:
        raise TypeError(f"subscriber of {topic}: no such setting: {', '.join(unknown)}")
    if settings.get("tags") and settings.get("sql"):
        raise SetupError(f"subscriber of {topic}: tags or sql select messages, not both")
    for name in ("max_workers", "max_attempts"):
        value = settings.get(name, 1)
        if not isinstance(value, int) or value < 1:
            raise SetupError(f"subscriber of {topic}: {name} is {value!r}; 1 or more is accepted")
