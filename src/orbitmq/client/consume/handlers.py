"""Handlers of the user: what they get, what their results mean, and hooks around them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from inspect import isawaitable, iscoroutine
from typing import Any, Final, Protocol

import msgspec

from orbitmq.client.callables import is_async
from orbitmq.client.errors import RetryLater
from orbitmq.client.message import ReceivedMessage

__all__ = ["SUCCESS", "ConsumeContext", "ConsumeHook", "ConsumeResult", "Handler", "Outcome"]

logger = logging.getLogger(__name__)


class ConsumeResult(Enum):
    """What a handler may return; returning nothing is success, raising is RETRY."""

    SUCCESS = "success"
    RETRY = "retry"
    """Deliver again later. An orderly consumer waits in the queue."""


class Outcome(msgspec.Struct, frozen=True):
    """How a chunk of messages ended: the first ``done`` are finished (-1: all), the others come again."""

    done: int = -1
    delay_level: int = 0
    error: BaseException | None = None


SUCCESS: Final = Outcome()
_RETRY: Final = Outcome(0)

Listener = Callable[[Any], "ConsumeResult | Awaitable[ConsumeResult | None] | None"]


class ConsumeContext(msgspec.Struct):
    """What a hook sees of one call of a handler."""

    group: str
    messages: list[ReceivedMessage]
    success: bool = False
    error: BaseException | None = None
    status: str = ""
    started_ms: int = 0
    extra: dict[str, Any] = {}


class ConsumeHook(Protocol):
    """Called around each call of a handler, on the event loop."""

    def before_consume(self, context: ConsumeContext) -> None:
        """Before the handler."""

    def after_consume(self, context: ConsumeContext) -> None:
        """After it; ``success``, ``error`` and ``status`` are set."""


class Handler:
    """A listener with what must be known to call it."""

    __slots__ = ("batch_size", "function", "is_async", "is_batch")

    def __init__(self, function: Listener, batch_size: int | None) -> None:
        self.function = function
        self.is_async = is_async(function)
        self.is_batch = batch_size is not None
        self.batch_size = batch_size or 1

    async def run(self, messages: list[ReceivedMessage]) -> Outcome:
        """Call a coroutine function."""
        try:
            result = await self.function(messages if self.is_batch else messages[0])  # type: ignore[misc]  # is_coroutine says it can be awaited
        except Exception as error:  # noqa: BLE001 - whatever a handler raises means "again later"
            return failed(error, self.function)
        return SUCCESS if result is None else judged(result)

    def run_blocking(self, messages: list[ReceivedMessage]) -> Outcome:
        """Call a plain function, on the thread this runs on."""
        try:
            result = self.function(messages if self.is_batch else messages[0])
            if result is not None and isawaitable(result):
                raise _never_awaited(result)
        except Exception as error:  # noqa: BLE001 - as above
            return failed(error, self.function)
        return SUCCESS if result is None else judged(result)


def _never_awaited(result: Awaitable[Any]) -> TypeError:
    """A lambda around a coroutine function looks plain and is not: nothing has been done yet."""
    if iscoroutine(result):
        result.close()
    return TypeError("a plain function as handler returned an awaitable: write it as `async def`")


def judged(result: object) -> Outcome:
    """The outcome a returned value stands for."""
    return _RETRY if result is ConsumeResult.RETRY else SUCCESS


def failed(error: Exception, function: object) -> Outcome:
    """The outcome an exception stands for."""
    if isinstance(error, RetryLater):
        return Outcome(error.done, error.delay_level, error)
    logger.warning(
        "handler failed, messages come again handler=%s",
        getattr(function, "__qualname__", function),
        exc_info=error,
    )
    return Outcome(0, 0, error)
