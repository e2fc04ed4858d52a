"""Calls hooks around handlers and around iterated messages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from orbitmq.client.consume.handlers import ConsumeContext, ConsumeHook, Outcome, Wrap
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.message import ReceivedMessage

__all__ = ["Observed"]

logger = logging.getLogger(__name__)


class Observed:
    """Calls the hooks of one consumer. An error in a hook is logged and has no other effect."""

    def __init__(self, group: str, hooks: list[ConsumeHook], now_ms: Callable[[], int]) -> None:
        self._group = group
        self._hooks = hooks
        self._now_ms = now_ms
        self._open: dict[int, ConsumeContext] = {}

    @property
    def wrap(self) -> Wrap | None:
        """A function that calls a handler between the hooks; None if there are no hooks."""
        return self._call if self._hooks else None

    async def _call(self, messages: list[ReceivedMessage], call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        context = self._before(messages)
        try:
            outcome = await call()
        except BaseException as error:  # cancelled at the end of the consumer
            self._after(context, Outcome(0, 0, error))
            raise
        self._after(context, outcome)
        return outcome

    def begin(self, held: ProcessQueue, message: ReceivedMessage) -> None:
        """Call the hooks before a reader gets a message."""
        if self._hooks:
            self._open[id(message)] = self._before([message])

    def end(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """Call the hooks after a reader has finished messages."""
        context = self._open.pop(id(messages[0]), None)
        if context is not None:
            self._after(context, outcome)

    def _before(self, messages: list[ReceivedMessage]) -> ConsumeContext:
        context = ConsumeContext(self._group, messages, started_ms=self._now_ms())
        for hook in self._hooks:
            try:
                hook.before_consume(context)
            except Exception:  # code of the user's that only watches
                logger.exception("consume hook failed hook=%r", hook)
        return context

    def _after(self, context: ConsumeContext, outcome: Outcome) -> None:
        context.success = outcome.done == -1
        context.error = outcome.error
        failed = "EXCEPTION" if context.error is not None else "RECONSUME_LATER"
        context.status = "SUCCESS" if context.success else failed
        for hook in reversed(self._hooks):
            try:
                hook.after_consume(context)
            except Exception:  # as above
                logger.exception("consume hook failed hook=%r", hook)
