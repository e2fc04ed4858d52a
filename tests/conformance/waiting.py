"""Waits with a limit, for tests of events on other machines."""

from __future__ import annotations

from tests.support.waiting import LIMIT_S, until_async

from orbitmq.client import PushConsumer, ReceivedMessage

__all__ = ["Collector", "until"]


until = until_async


class Collector:
    """A handler that collects the messages it receives."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[str]:
        return [message.text() for message in self.messages]

    async def wait(self, count: int, timeout_s: float = LIMIT_S) -> list[ReceivedMessage]:
        """Returns the messages as soon as there are that many."""
        await until(lambda: len(self.messages) >= count, f"{count} messages", timeout_s)
        return self.messages

    def on(self, consumer: PushConsumer, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        consumer.subscribe(topic, expression, self, sql=sql)
