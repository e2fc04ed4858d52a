"""The client for code without asyncio: ``from orbitmq.sync import Producer``."""

from __future__ import annotations

from orbitmq.client.sync import (
    LitePullConsumer,
    LoopThread,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)

__all__ = ["LitePullConsumer", "LoopThread", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer"]
