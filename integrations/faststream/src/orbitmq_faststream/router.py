"""``RocketRouter``: subscribers and publishers that a broker includes later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Unpack

from fast_depends.dependencies import Dependant
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.middlewares import AckPolicy

from orbitmq import ReceivedMessage
from orbitmq_faststream.config import RocketBrokerConfig
from orbitmq_faststream.registrator import PublisherSettings, RocketRegistrator, SubscriberSettings

__all__ = ["RocketPublisher", "RocketRoute", "RocketRouter"]


class RocketPublisher(ArgsContainer):
    """A publisher of a ``RocketRoute``; accepts the arguments of ``broker.publisher``."""

    def __init__(self, topic: str, **settings: Unpack[PublisherSettings]) -> None:
        super().__init__(topic, **settings)


class RocketRoute(SubscriberRoute):
    """A handler for ``RocketRouter(handlers=[...])``; accepts the arguments of ``broker.subscriber``."""

    def __init__(
        self,
        call: Callable[..., Any] | Callable[..., Awaitable[Any]],
        topic: str,
        *,
        publishers: Iterable[RocketPublisher] = (),
        **settings: Unpack[SubscriberSettings],
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **settings)


class RocketRouter(RocketRegistrator, BrokerRouter[ReceivedMessage, RocketBrokerConfig]):
    """Prepends ``prefix`` to the topics of all its subscribers and publishers."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=RocketBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
        )
