"""Waits with a bound, for tests of things that happen on other machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from orbitmq.client import PushConsumer, ReceivedMessage

__all__ = ["Collector", "until"]


async def until(condition: Callable[[], Any], what: str = "", timeout_s: float = 30.0) -> None:
    """Return when the condition holds; fail with ``what`` when it does not in time."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {timeout_s} s: {what or condition}"
        await asyncio.sleep(0.02)


class Collector:
    """A handler that remembers what it got."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[str]:
        return [message.text() for message in self.messages]

    async def wait(self, count: int, timeout_s: float = 30.0) -> list[ReceivedMessage]:
        """The messages, as soon as there are that many."""
        await until(lambda: len(self.messages) >= count, f"{count} messages", timeout_s)
        return self.messages

    def on(self, consumer: PushConsumer, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        consumer.subscribe(topic, expression, self, sql=sql)
