"""The configuration of brokers, routers, subscribers and publishers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypedDict

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from orbitmq import ConsumeFromWhere, OrbitError, PushConsumer, PushOptions, ReceivedMessage
from orbitmq.admin.session import Admin, AdminOptions
from orbitmq.admin.topics import update_topic
from orbitmq.model.topic import TopicConfig
from orbitmq_faststream.response import SendSettings

__all__ = [
    "RocketBrokerConfig",
    "RocketPublisherConfig",
    "RocketPublisherSpecificationConfig",
    "RocketSubscriberConfig",
    "RocketSubscriberSpecificationConfig",
    "Source",
    "Subscription",
    "SubscriptionSettings",
    "open_consumer",
]


class SubscriptionSettings(TypedDict, total=False):
    """How a subscriber consumes its topic."""

    group: str
    """Members of one group share the messages. Default: the broker's group, a dash, the topic."""
    tags: str
    """``"A || B"``; default all."""
    sql: str
    """An SQL92 expression over properties, in place of ``tags``."""
    orderly: bool
    """One message of a queue at a time, in order."""
    broadcast: bool
    """Every member gets every message."""
    start: Literal["first", "last"] | datetime
    """Where a new group begins; default ``"first"``."""
    retry_delay: timedelta | float | None
    """Before a failed message is delivered again; default: the broker's, which grows from attempt to attempt."""
    max_attempts: int
    """Deliveries before a message goes to the dead-letter topic; default: 17, or without end when orderly."""
    max_workers: int
    """Handlers that run at once; default 1."""
    options: PushOptions | None
    """Everything else about the consumer, in place of the broker's ``consumer``."""


class Source(Protocol):
    """The source a subscriber reads: a started ``PushConsumer``, or an idle source in tests."""

    def messages(self, *, auto_ack: bool = True) -> AsyncIterator[ReceivedMessage]: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """Everything needed to consume a topic."""

    topic: str
    group: str
    expression: str
    sql: bool
    settings: SubscriptionSettings

    def options(self, base: PushOptions | None) -> PushOptions:
        """The consumer's options: the subscriber's, or else the broker's, overridden by individual settings."""
        from orbitmq.client.options import build_options

        wanted: dict[str, object] = {
            name: self.settings[name] for name in ("orderly", "broadcast", "start") if name in self.settings
        }
        if "max_attempts" in self.settings:
            wanted["reconsume_max"] = self.settings["max_attempts"] - 1
        given = self.settings.get("options") or base or PushOptions()
        if given.start is None and given.from_where is ConsumeFromWhere.LAST_OFFSET:
            wanted.setdefault("start", "first")  # the client's default was not chosen explicitly
        return build_options(PushOptions, given, wanted)


OpenSource = Callable[["RocketBrokerConfig", Subscription], Awaitable[Source]]


async def open_consumer(config: RocketBrokerConfig, subscription: Subscription) -> Source:
    """Returns a consumer that has joined its group. Creates the topic if the broker is configured to."""
    options = subscription.options(config.consumer_options)
    if config.create_topics:
        await _create_topic(config, subscription.topic, options)
    consumer = PushConsumer(subscription.group, config.name_servers, options)
    consumer.subscribe(subscription.topic, subscription.expression, sql=subscription.sql)
    await consumer.start()
    return consumer


async def _create_topic(config: RocketBrokerConfig, topic: str, options: PushOptions) -> None:
    if options.namespace:
        topic = f"{options.namespace}%{topic}"
    count = config.create_topics
    admin_options = AdminOptions(credentials=options.credentials, tls=options.tls_context)
    async with Admin(config.name_servers, admin_options) as admin:
        try:
            await admin.route(topic)
        except OrbitError:
            wanted = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
            for cluster in (await admin.cluster_info()).cluster_addr_table:
                await update_topic(admin, wanted, {}, broker=None, cluster=cluster)


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    """The configuration of a broker. Routers have one too, whose connection settings are ignored."""

    name_servers: str = ""
    group: str = "faststream"
    create_topics: int = 0
    consumer_options: PushOptions | None = None
    open_source: OpenSource = field(default=open_consumer)


@dataclass(kw_only=True)
class RocketSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str


@dataclass(kw_only=True)
class RocketSubscriberConfig(SubscriberUsecaseConfig):
    _outer_config: RocketBrokerConfig
    topic: str
    settings: SubscriptionSettings

    @property
    def ack_policy(self) -> AckPolicy:
        """By default a failed message is redelivered, as retry topics are meant for."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class RocketPublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


@dataclass(kw_only=True)
class RocketPublisherConfig(PublisherUsecaseConfig):
    _outer_config: RocketBrokerConfig
    topic: str
    headers: dict[str, str]
    reply_to: str
    settings: SendSettings
