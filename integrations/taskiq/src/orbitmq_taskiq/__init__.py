"""A taskiq broker on Apache RocketMQ."""

from __future__ import annotations

from orbitmq_taskiq.broker import RocketMQBroker

__all__ = ["RocketMQBroker"]
