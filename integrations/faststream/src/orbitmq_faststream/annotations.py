"""Annotations for the parameters of handlers: ``async def handle(order: Order, message: RocketMessage) -> None``."""

from __future__ import annotations

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

import orbitmq
from orbitmq_faststream import broker, message

__all__ = ["ContextRepo", "Logger", "NoCast", "Producer", "RocketBroker", "RocketMessage"]

RocketBroker = Annotated[broker.RocketBroker, Context("broker")]
RocketMessage = Annotated[message.RocketMessage, Context("message")]
Producer = Annotated[orbitmq.Producer, Context("broker._connection")]
