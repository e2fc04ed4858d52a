"""The single write path of a master, which parks, appends, counts and acknowledges messages.

Every message a master stores on its own goes through here: sends, send-backs, commits, deliveries of delay levels and
timers, replies, recalls, transaction marks. The same rules therefore apply to all of them:

1. Park: a message with a delay, a time or a transaction waits under another topic (``parking.py``). It is not parked
   again when it is delivered.
2. Append, then count. If the store refuses, it raises ``StoreError``, and nothing is stored.
3. Acknowledge when the message is as safe as configured (``durability.py``). Before its record is flushed
   (SYNC_FLUSH) and replicated (SYNC_MASTER), no message is acknowledged, and no cursor that passed it is saved or
   sent to a slave. Before a cursor is saved, the record is flushed even under ASYNC_FLUSH. A master deposed by
   failover reverts to its saved cursors because the messages that newer ones passed may be truncated.

Corresponds to Apache's DefaultMessageStore.asyncPutMessage as its processors use it; there, commits, send-backs and
deliveries are answered without this wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.delivery.parking import Parking
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.codes import ResponseCode
from orbitmq.errors import SystemBusy
from orbitmq.kernel import Sends
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, NewMessage, PutSends
from orbitmq.transport.router import PARKED, Answer, Call, Reply

__all__ = ["PENDING_ACKS_MAX", "Stored", "WritePath", "as_safe", "is_safe"]

PENDING_ACKS_MAX: Final = 10_000
"""The maximum number of unacknowledged appends. If there are more, puts are refused."""
_SUCCESS: Final = int(ResponseCode.SUCCESS)
T = TypeVar("T")


class Stored(NamedTuple):
    """A message in the form in which it was stored, and its position."""

    message: NewMessage
    where: Appended

    @property
    def end(self) -> int:
        """The log offset of the end of the message's record."""
        return self.where.log_offset + self.where.size


class WritePath:
    """Writes messages to the log of a master."""

    def __init__(self, *, store: MessageStore, parking: Parking, stats: BrokerStats, gate: AckGate) -> None:
        self._store = store
        self._stats = stats
        self.parking = parking
        self.gate = gate

    # -- append and count ------------------------------------------------------------------------------

    def put(self, message: NewMessage, kind: str = "") -> Stored:
        """Store one message that the broker created for a waiting client. It is also counted under ``kind``, if
        given.

        Raises the errors of ``admit``, and ``StoreError``.
        """
        message = self.admit(message)
        return Stored(message, self.deliver((message,), kind)[0])

    def admit(self, message: NewMessage) -> NewMessage:
        """Returns a message that the broker created for a waiting client, in the form to store. Raises
        ``BrokerError`` if it cannot be parked or if too many acknowledgements are outstanding."""
        if self.gate.waiting_count >= PENDING_ACKS_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        return self.parking.of_broker(message)

    def deliver(
        self, messages: Sequence[NewMessage], kind: str = "", *, counted: bool = True
    ) -> list[Appended]:
        """Store messages under their own topics, without parking. Stores all or none. Raises ``StoreError``."""
        appended = self.append(messages)
        if counted:
            self.count(messages, appended, kind)
        return appended

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Store messages that are already checked and parked, without counting them. Stores all or none. Raises
        ``StoreError``."""
        if self.gate.is_master is not None:
            self._refuse_when_closed()
        return self._store.append_batch(messages)

    def append_sends(self, turn: Sequence[Sends]) -> PutSends:
        """Store and count sends that are already checked and parked; see ``MessageStore.append_sends``."""
        if self.gate.is_master is not None:
            self._refuse_when_closed()
        stored = self._store.append_sends(turn)
        self._stats.put_sends(stored)
        return stored

    def _refuse_when_closed(self) -> None:
        """Raise an error if this broker must not store messages now. Sends are checked when they are read, but
        appended at the end of the turn. If the process is suspended in between, it may lose its lease, and its
        appends would be truncated."""
        closed = self.gate.closed
        if closed:
            raise StoreUnavailable(closed)

    def count(self, messages: Sequence[NewMessage], appended: Sequence[Appended], kind: str = "") -> None:
        """Count stored messages, also under ``kind`` if it is given."""
        put = self._stats.put
        for message, where in zip(messages, appended, strict=True):
            put(message.topic, message.queue_id, 1, where.size)
            if kind:
                self._stats.note_kind(message.topic, kind, where.size)

    # -- acknowledge -----------------------------------------------------------------------------------

    def when_safe(self, log_end: int, callback: Callable[[int], None]) -> None:
        """Call back once with the response code of a send, when everything before ``log_end`` is as safe as
        configured or is known not to become so."""
        self.gate.wait(log_end, callback)

    async def safe(self, log_end: int | None = None) -> int:
        """Wait like ``when_safe``, by default for everything stored so far, and also for a flush, whatever the flush
        mode. Returns the response code. Cursors need the flush because their own files are synced: after a power cut
        under ASYNC_FLUSH, a cursor could otherwise be past a delayed message whose delivered copy is lost."""
        end = self._store.max_log_offset if log_end is None else log_end
        code = _SUCCESS
        if not self.gate.immediate:
            sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.when_safe(end, lambda told: _settle(sent, told))
            code = await sent
        if code == _SUCCESS and self._store.flushed_offset < end:
            flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._store.request_flush()
            self._store.when_flushed(end, lambda done: _settle(flushed, done))
            if not await flushed:
                code = ResponseCode.FLUSH_DISK_TIMEOUT
        return code

    async def stays(self) -> bool:
        """Wait like ``safe``. Returns whether everything stored so far stays in our log. Without failover it always
        does because a master's log is never truncated. With failover the next master may have a shorter log."""
        code = await self.safe()
        return self.gate.is_master is None or is_safe(code)

    def answer(self, call: Call[Any], log_end: int, reply: Reply) -> Answer:
        """Send ``reply`` once everything before ``log_end`` is safe. If it does not become safe, send an error
        instead."""
        if self.gate.immediate:
            return reply
        self.when_safe(log_end, lambda code: call.reply(as_safe(reply, code)))
        return PARKED

    def answer_when_all_safe(self, call: Call[Any], reply: Reply) -> Answer:
        """Like ``answer``, for everything stored so far."""
        return self.answer(call, self._store.max_log_offset, reply)


def as_safe(reply: Reply, code: int) -> Reply:
    """Returns ``reply`` if ``code`` counts as safe, otherwise an error reply that names the code."""
    return reply if is_safe(code) else Reply(ResponseCode.SYSTEM_ERROR, ResponseCode(code).name)


def _settle(future: asyncio.Future[T], answer: T) -> None:
    """Set the result of a future. Does nothing if it already has a result or was cancelled."""
    if not future.done():
        future.set_result(answer)


def is_safe(code: int) -> bool:
    """Whether a put with this response code counts as safe. SLAVE_NOT_AVAILABLE does, because without a slave to wait
    for, the master's own disk is enough for sends and for all other messages."""
    return code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
