"""What a send leaves behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest

from orbitmq.client import Message, Producer, SendStatus
from orbitmq.client.produce import sender
from orbitmq.client.produce.sender import Sender
from orbitmq.errors import ConnectionLostError
from orbitmq.testing import run_broker


def test_attempts_that_failed_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error and the frames of its traceback refer to each other, so only the collector can free them."""
    monkeypatch.setattr(
        logging.getLogger(sender.__name__), "disabled", True
    )  # a kept log record keeps the error
    attempt = Sender.attempt
    errors: list[weakref.ref[ConnectionLostError]] = []

    async def fails_first(self: Sender, *args: Any) -> Any:
        if not errors:
            error = ConnectionLostError("cut")
            errors.append(weakref.ref(error))
            raise error
        return await attempt(self, *args)

    async def send(name_server: str) -> None:
        async with Producer("freed", name_server) as producer:
            monkeypatch.setattr(Sender, "attempt", fails_first)
            assert (await producer.send(Message("freed", "x"))).status is SendStatus.OK

    with run_broker() as broker:
        asyncio.run(send(broker.name_server))
    gc.collect()
    [error] = errors
    assert error() is None
