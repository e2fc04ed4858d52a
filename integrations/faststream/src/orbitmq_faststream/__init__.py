"""A FastStream broker on Apache RocketMQ."""

from __future__ import annotations

from orbitmq_faststream.annotations import RocketMessage
from orbitmq_faststream.broker import RocketBroker
from orbitmq_faststream.response import RocketResponse
from orbitmq_faststream.router import RocketPublisher, RocketRoute, RocketRouter
from orbitmq_faststream.testing import TestRocketBroker

__all__ = [
    "RocketBroker",
    "RocketMessage",
    "RocketPublisher",
    "RocketResponse",
    "RocketRoute",
    "RocketRouter",
    "TestRocketBroker",
]
