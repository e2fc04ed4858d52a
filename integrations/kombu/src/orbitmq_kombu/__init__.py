"""A kombu transport on RocketMQ. Importing it registers ``rocketmq://`` with kombu."""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from orbitmq_kombu.transport import Channel, Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES["rocketmq"] = "orbitmq_kombu.transport:Transport"
