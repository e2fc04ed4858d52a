"""The handlers of one consumer, by topic."""

from __future__ import annotations

from typing import Final

from orbitmq.client.consume.handlers import Handler
from orbitmq.client.message import ReceivedMessage
from orbitmq.model.names import unwrap_namespace

__all__ = ["HandlerTable"]


class HandlerTable:
    """Handlers by topic. The keys are topics as the user names them, without the namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._by_topic: dict[str, Handler] = {}
        self.default: Handler | None = None
        """The handler of every topic that has none of its own."""

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def set(self, wire_topic: str, handler: Handler) -> None:
        self._by_topic[unwrap_namespace(wire_topic, self._namespace)] = handler

    def remove(self, wire_topic: str) -> None:
        self._by_topic.pop(unwrap_namespace(wire_topic, self._namespace), None)

    def of_topic(self, wire_topic: str) -> Handler | None:
        """Returns the handler of a topic, given as brokers name it. Returns None if the topic has no handler and no
        default is set."""
        return self._by_topic.get(unwrap_namespace(wire_topic, self._namespace)) or self.default

    def of_message(self, message: ReceivedMessage) -> Handler:
        """Returns the handler of a message.

        If its topic is no longer subscribed, the returned handler always fails, so that the message is redelivered to
        a member that subscribes to the topic.
        """
        return self._by_topic.get(message.topic) or self.default or _NO_HANDLER


def _no_handler(message: ReceivedMessage) -> None:
    raise LookupError(f"no handler for topic {message.topic}")


_NO_HANDLER: Final = Handler(_no_handler, None)
