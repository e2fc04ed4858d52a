"""Settles messages after their handler: finishes, redelivers, dead-letters or answers them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from orbitmq.client.consume.handler_table import HandlerTable
from orbitmq.client.consume.handlers import Outcome, name_of
from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.offset_store import OffsetStore
from orbitmq.client.consume.pop_mode import PopQueue
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.send_back import SendBack
from orbitmq.client.errors import BodyMismatch, RetryLater
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import PushOptions
from orbitmq.errors import OrbitError
from orbitmq.model.route import MessageQueue

__all__ = ["Settling"]

logger = logging.getLogger(__name__)

_EXPIRED_PER_ROUND: Final = 16
_EXPIRED_LEVEL: Final = 3


class Settling:
    """Settles the messages of one push consumer."""

    def __init__(
        self,
        membership: Membership,
        options: PushOptions,
        store: OffsetStore,
        send_back: SendBack,
        handlers: HandlerTable,
    ) -> None:
        self._membership = membership
        self._options = options
        self._store = store
        self._send_back = send_back
        self._handlers = handlers

    # -- success ---------------------------------------------------------------------------------------

    def finish(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Finish messages: record their offsets, or acknowledge them if they were popped."""
        offset = held.remove(messages)
        if isinstance(held, PopQueue):
            held.mode.done(messages)
        elif offset >= 0 and not held.dropped:
            self._store.update(held.queue, offset)

    def commit(self, held: ProcessQueue, offset: int | None = None) -> None:
        """Commit the messages taken from an orderly queue. Messages from ``offset`` on are not committed."""
        end = held.commit()
        if offset is None:
            offset = end
        if offset >= 0 and not held.dropped:
            self._store.update(held.queue, offset, increase_only=False)

    # -- failure ---------------------------------------------------------------------------------------

    async def finish_other(
        self, held: ProcessQueue, messages: list[ReceivedMessage], outcome: Outcome
    ) -> list[ReceivedMessage]:
        """Settle messages whose handler did not succeed for all of them. Returns the messages that no broker took
        back and that must be handled again here."""
        if outcome.reply is not None:
            await self.answer(messages, outcome)
        finished = list(messages if outcome.done < 0 else messages[: outcome.done])
        again: list[ReceivedMessage] = []
        failed = messages[len(finished) :]
        if failed:
            self.log_failure(failed, outcome)
        if isinstance(held, PopQueue):
            self.finish(held, finished)
            held.remove(messages)
            held.mode.failed(failed, outcome)
            return again
        for message in failed:
            if self._membership.broadcasting:
                self._log_event("failed message dropped, broadcasting has no retry", message, outcome)
                finished.append(message)
            elif not held.holds(message) or await self._send_again(message, outcome):
                finished.append(message)
            else:
                message.reconsume_times += 1
                again.append(message)
        self.finish(held, finished)
        return again

    async def _send_again(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Return a failed message to the broker for another attempt, or dead-letter it. Returns False if that
        failed."""
        if self._send_back.is_last(message, outcome):
            self._log_event("dead letter", message, outcome)
        return await self._send_back.send_back(message, outcome)

    async def give_up(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Dead-letter a message of an orderly queue, so that it no longer blocks those behind it. Returns False if
        that failed."""
        self._log_event("dead letter", message, outcome)
        return await self._send_back.send_copy(message, self._options.reconsume_max, outcome)

    async def send_back_expired(self, table: Mapping[MessageQueue, ProcessQueue]) -> None:
        """Return messages whose handler takes too long to the broker for another attempt."""
        limit_s = self._options.consume_timeout_s
        reason = f"the handler ran for more than {limit_s:g} s (consume_timeout_s)"
        expired = Outcome(0, _EXPIRED_LEVEL, reason=reason)
        for held in list(table.values()):
            for _ in range(_EXPIRED_PER_ROUND):
                first = held.first()
                if first is None or not first.consume_started_ms or held.ending:
                    break
                if self._membership.steady.now_ms() - first.consume_started_ms <= limit_s * 1000:
                    break
                text = "handler takes too long, sending back id=%s queue=%s"
                logger.warning(text, first.message_id, held.queue)
                if self._membership.broadcasting or not await self._send_back.send_back(first, expired):
                    break
                if held.first() is first:
                    self.finish(held, [first])

    # -- requests --------------------------------------------------------------------------------------

    async def answer(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """Send the reply that a request handler returned. If that fails, the requester's call times out."""
        try:
            await self._send_back.reply(messages[0], outcome.reply)
        except (OrbitError, TypeError, ValueError) as error:
            logger.warning("reply not sent id=%s error=%s", messages[0].message_id, error)

    # -- logs ------------------------------------------------------------------------------------------

    def _log_event(self, event: str, message: ReceivedMessage, outcome: Outcome) -> None:
        logger.warning(
            "%s group=%s topic=%s id=%s keys=%s attempt=%d reason=%s",
            event,
            self._membership.group,
            message.topic,
            message.message_id,
            ",".join(message.keys),
            message.attempt,
            outcome.reason or "asked for",
        )

    def log_failure(self, messages: list[ReceivedMessage], outcome: Outcome) -> None:
        """Log a handler's failure, at most once per interval for each topic and exception type. ``RetryLater`` is not
        logged, and a body mismatch is logged without a traceback."""
        if isinstance(outcome.error, RetryLater):
            return  # asked for, not an accident
        message, error = messages[0], outcome.error
        handler = self._handlers.of_topic(message.topic)
        # The traceback of a body that does not match the type shows only our code.
        misfit = isinstance(error, BodyMismatch)
        self._membership.instance.log_limits.log_error(
            logger,
            ("handler", message.topic, type(error)),
            "handler failed, message will be redelivered handler=%s topic=%s id=%s keys=%s attempt=%d"
            + (" reason=%s" if misfit else ""),
            "" if handler is None else name_of(handler.function),
            message.topic,
            message.message_id,
            ",".join(message.keys),
            message.attempt,
            *([error] if misfit else []),
            error=None if misfit else error,
        )
