"""Objects that remain after a send."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest

from orbitmq.client import Message, Producer, SendFailed, SendStatus, SendTimeoutError
from orbitmq.client.produce import sender
from orbitmq.client.produce.sender import Outgoing, Sender
from orbitmq.errors import ConnectionLostError, NoPermission, RequestTimeoutError
from orbitmq.model.route import MessageQueue
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


def test_queues_of_a_namespaced_producer_have_the_names_of_its_user() -> None:
    async def scenario(name_server: str) -> None:
        async with Producer("spaced", name_server, namespace="ns") as producer:
            first = await producer.send(Message("spaced", "x"))
            queues = await producer.queues("spaced")
            assert {queue.topic for queue in queues} == {"spaced"}
            assert (await producer.send(Message("spaced", "y"), queue=queues[0])).queue == queues[0]
            assert first.queue in queues

    with run_broker() as broker:
        asyncio.run(scenario(broker.name_server))


def test_refused_permission_is_not_tried_again_on_the_same_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    async def refused(*_: Any) -> Any:
        nonlocal attempts
        attempts += 1
        raise NoPermission("no")

    async def scenario(name_server: str) -> None:
        async with Producer("refused", name_server) as producer:
            await producer.send(Message("refused", "x"))
            monkeypatch.setattr(Sender, "attempt", refused)
            with pytest.raises(SendFailed, match="1 attempt "):
                await producer.send(Message("refused", "y"))

    with run_broker() as broker:
        asyncio.run(scenario(broker.name_server))
    assert attempts == 1


def test_idempotent_send_without_an_answer_is_repeated_on_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another queue would be on another broker, which cannot know the first copy."""
    tried: list[MessageQueue] = []

    async def unanswered(self: Sender, outgoing: Outgoing, queue: MessageQueue, *_: Any) -> Any:
        tried.append(queue)
        raise RequestTimeoutError("no answer")

    async def scenario(name_server: str) -> None:
        async with Producer("pinned", name_server, idempotent=True, retries=0) as producer:
            await producer.send(Message("pinned", "x"))
            monkeypatch.setattr(Sender, "attempt", unanswered)
            with pytest.raises(SendTimeoutError):
                await producer.send(Message("pinned", "y"), timeout_s=0.2)

    with run_broker() as broker:
        asyncio.run(scenario(broker.name_server))
    assert len(tried) > 1
    assert len(set(tried)) == 1
