"""The user's handlers: their arguments, the interpretation of their results, and hooks around calls."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from inspect import isawaitable, iscoroutine
from typing import Any, Final, Protocol

import msgspec

from orbitmq.client.bodies import Decode, decoder_for
from orbitmq.client.callables import UserCalls, is_async
from orbitmq.client.consume.reasons import reason_of
from orbitmq.client.delays import delay_level_for
from orbitmq.client.errors import BodyMismatch, RetryLater
from orbitmq.client.message import ReceivedMessage
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner

__all__ = [
    "SUCCESS",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeResult",
    "Handler",
    "HandlerContext",
    "HandlerPool",
    "Listener",
    "Outcome",
    "Wrap",
    "name_of",
]


class ConsumeResult(Enum):
    """The values a handler may return. Returning None counts as success, raising an exception as RETRY."""

    SUCCESS = "success"
    RETRY = "retry"
    """Redeliver later. An orderly consumer retries within the queue."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a chunk of messages. The first ``done`` messages are finished (-1 means all), the others are
    redelivered."""

    done: int = -1
    delay_level: int = 0
    error: BaseException | None = None
    reason: str = ""
    """Kept in the property RETRY_REASON of the message that is redelivered or dead-lettered."""
    reply: Any = None
    """The value that the handler of a request returned."""


SUCCESS: Final = Outcome()
_RETRY: Final = Outcome(0, reason="the handler returned ConsumeResult.RETRY")

Listener = Callable[..., Any]
"""``handler(message)``, ``handler(messages)`` with a batch size, or either with a ``HandlerContext`` after it."""


class HandlerContext:
    """The second argument of handlers that accept one."""

    __slots__ = ("_delay_level", "_done", "group", "messages")

    def __init__(self, group: str, messages: list[ReceivedMessage]) -> None:
        self.group = group
        self.messages = messages
        """The messages as received, even if the handler gets values."""
        self._done = -1
        self._delay_level = 0

    @property
    def message(self) -> ReceivedMessage:
        """The first message of the batch."""
        return self.messages[0]

    @property
    def queue(self) -> MessageQueue:
        """The queue from which the messages were pulled."""
        return self.messages[0].queue

    @property
    def attempt(self) -> int:
        """The number of this delivery, starting with 1."""
        return self.messages[0].attempt

    def acknowledge(self, count: int) -> None:
        """Finish the first ``count`` messages of the batch, however the handler ends. The others are redelivered."""
        if not 0 <= count <= len(self.messages):
            raise ValueError(f"the batch has {len(self.messages)} messages, {count} cannot be acknowledged")
        self._done = count

    def retry_after(self, delay: timedelta | float) -> None:
        """Set the delay before redelivery (in seconds or as a timedelta). It is rounded up to one of the broker's
        levels."""
        self._delay_level = delay_level_for(delay)

    def judge(self, outcome: Outcome) -> Outcome:
        """Returns the handler's outcome combined with the calls made on this context."""
        if self._done < 0 and not self._delay_level:
            return outcome
        done = self._done if self._done >= 0 else outcome.done
        if done >= len(self.messages):
            return SUCCESS if outcome.reply is None else outcome
        return msgspec.structs.replace(
            outcome, done=done, delay_level=outcome.delay_level or self._delay_level
        )


class ConsumeContext(msgspec.Struct):
    """One call of a handler, as hooks see it."""

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
        """Called before the handler."""

    def after_consume(self, context: ConsumeContext) -> None:
        """Called after the handler; ``success``, ``error`` and ``status`` are set."""


class Handler:
    """A listener and how to call it. The constructor raises ``TypeError`` for a function that cannot be called."""

    __slots__ = (
        "_decode",
        "_group",
        "_plain",
        "_wants_context",
        "batch_size",
        "function",
        "is_async",
        "is_batch",
    )

    def __init__(
        self,
        function: Listener,
        batch_size: int | None,
        *,
        group: str = "",
        kind: Any = None,
        decode: Decode | None = None,
    ) -> None:
        """``kind`` is the type of a JSON body. ``decode`` is any other function that converts a body to a value."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 is accepted")
        if kind is not None and decode is not None:
            raise TypeError("a handler has a type or a decode function, not both")
        self._wants_context = _check_listener(function)
        self.function = function
        self.is_async = is_async(function)
        self.is_batch = batch_size is not None
        self.batch_size = batch_size or 1
        self._group = group
        self._decode = decoder_for(kind) if kind is not None else decode
        self._plain = not self._wants_context and self._decode is None

    def _arguments(self, messages: list[ReceivedMessage], context: HandlerContext | None) -> tuple[Any, ...]:
        decode = self._decode
        value: Any
        if decode is None:
            value = messages if self.is_batch else messages[0]
        else:
            try:
                values = [decode(message.body) for message in messages]
            except BodyMismatch:
                raise
            except Exception as error:
                raise BodyMismatch(f"the body cannot be decoded: {error}") from error
            value = values if self.is_batch else values[0]
        return (value,) if context is None else (value, context)

    async def run(self, messages: list[ReceivedMessage], tasks: TaskOwner) -> Outcome:
        """Call a coroutine function. ``tasks`` owns the task in which the handler runs."""
        context = None
        try:
            if self._plain:
                result = await self.function(messages if self.is_batch else messages[0])
            else:
                context = HandlerContext(self._group, messages) if self._wants_context else None
                result = await self.function(*self._arguments(messages, context))
        except (GeneratorExit, KeyboardInterrupt):  # the loop is being ended, the handler raised nothing
            raise
        except asyncio.CancelledError as error:
            if tasks.closed:
                raise
            # Something inside the handler was cancelled, not this worker: the message failed, the worker continues.
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            return _judged(failed(error), context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises means "again later", sys.exit too
            return _judged(failed(error), context)
        if result is None and context is None:
            return SUCCESS
        return _judged(judged(result, messages), context)

    def run_blocking(self, messages: list[ReceivedMessage]) -> Outcome:
        """Call a plain function on the current thread."""
        context = None
        try:
            if self._plain:
                result = self.function(messages if self.is_batch else messages[0])
            else:
                context = HandlerContext(self._group, messages) if self._wants_context else None
                result = self.function(*self._arguments(messages, context))
            if result is not None and isawaitable(result):
                raise _never_awaited(result)
        except BaseException as error:  # noqa: BLE001 - as above; on a thread nothing else ends by exceptions
            return _judged(failed(error), context)
        if result is None and context is None:
            return SUCCESS
        return _judged(judged(result, messages), context)


Wrap = Callable[[list[ReceivedMessage], Callable[[], Awaitable[Outcome]]], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class HandlerPool:
    """Where the handlers of one consumer run."""

    tasks: TaskOwner
    """For coroutines."""
    threads: UserCalls
    """For plain functions."""
    clock: Clock
    wrap: Wrap | None
    """Calls a handler between hooks; None when there are no hooks."""


def _check_listener(function: Listener) -> bool:
    """Returns whether a function accepts a context. Raises ``TypeError`` for functions that cannot work as
    intended."""
    name = name_of(function)
    if not callable(function):
        raise TypeError(f"a handler is a function, not {function!r}")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    call = getattr(inner, "__call__", None)  # noqa: B004 - of an object that is called like a function
    if any(map(inspect.isgeneratorfunction, (inner, call))) or any(
        map(inspect.isasyncgenfunction, (inner, call))
    ):
        raise TypeError(f"handler {name} is a generator function: calling it runs nothing, remove the yield")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C: it says nothing about itself
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    missing = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(required) > 2 or missing or not (positional or open_ended):
        has = inspect.signature(function)
        raise TypeError(f"handler {name} takes a message, and a HandlerContext if it wants one; it has {has}")
    return len(required) == 2 or (
        len(positional) > 1
        and str(positional[1].annotation).rpartition(".")[2].rstrip("'>") == "HandlerContext"
    )


def name_of(function: object) -> str:
    """Returns the name of a user's function for log lines."""
    return str(getattr(function, "__qualname__", function))


def _judged(outcome: Outcome, context: HandlerContext | None) -> Outcome:
    return outcome if context is None else context.judge(outcome)


def _never_awaited(result: Awaitable[Any]) -> TypeError:
    """Returns the error for a lambda around a coroutine function, which looks like a plain function, so that its
    coroutine never ran."""
    if iscoroutine(result):
        result.close()
    return TypeError("a plain function as handler returned an awaitable: write it as `async def`")


def judged(result: object, messages: list[ReceivedMessage]) -> Outcome:
    """Returns the outcome for a value that a handler returned."""
    if result is ConsumeResult.RETRY:
        return _RETRY
    if result is None or isinstance(result, ConsumeResult) or not messages[0].is_request:
        return SUCCESS
    return Outcome(reply=result)


def failed(error: BaseException) -> Outcome:
    """Returns the outcome for an exception that a handler raised."""
    if isinstance(error, RetryLater):
        return Outcome(error.done, error.delay_level, error, reason_of(error))
    if isinstance(error, BodyMismatch):
        return Outcome(0, 0, error, str(error))
    return Outcome(0, 0, error, reason_of(error))
