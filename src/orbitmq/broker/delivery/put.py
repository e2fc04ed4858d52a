"""The one door for puts: park, append, count, acknowledge.

Every message a master stores on its own account comes through here: sends, send-backs, commits, deliveries of delay
levels and timers, replies, recalls, marks of transactions. So the same rules hold for all of them:

1. Parked first: what asks for a delay, a time or a transaction waits under another topic (``parking.py``). What is
   delivered after it waited is not parked again.
2. Appended, and counted only if it was. A store that refuses raises ``StoreError``, and nothing is stored.
3. Acknowledged when it is as safe as configured (``durability.py``): no message is acknowledged as stored, and no
   cursor that passed it is saved or given to a slave, before its record is flushed (SYNC_FLUSH) and replicated
   (SYNC_MASTER). For a cursor that is saved it is flushed under ASYNC_FLUSH, too. A master that loses its office by
   failover goes back to its saved cursors: what the others passed may be cut off with the end of its log.

Answers to Apache's DefaultMessageStore.asyncPutMessage as its processors use it; there commits, send-backs and
deliveries are answered without the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.delivery.parking import Parking
from orbitmq.broker.figures.stats import BrokerStats
from orbitmq.codes import ResponseCode
from orbitmq.errors import SystemBusy
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, AppendedSend, NewMessage
from orbitmq.transport.router import PARKED, Answer, Call, Reply

__all__ = ["PENDING_ACKS_MAX", "PutDoor", "Stored", "is_safe"]

PENDING_ACKS_MAX: Final = 10_000
"""Appends whose acknowledgement may be outstanding; more puts are refused until some are acknowledged."""
_SUCCESS: Final = int(ResponseCode.SUCCESS)
T = TypeVar("T")


class Stored(NamedTuple):
    """A message as it was stored, and where."""

    message: NewMessage
    where: Appended

    @property
    def end(self) -> int:
        """Log offset after it."""
        return self.where.log_offset + self.where.size


class PutDoor:
    """The way into the log of one master."""

    def __init__(self, *, store: MessageStore, parking: Parking, stats: BrokerStats, gate: AckGate) -> None:
        self._store = store
        self._stats = stats
        self.parking = parking
        self.gate = gate

    # -- append and count ------------------------------------------------------------------------------

    def put(self, message: NewMessage, kind: str = "") -> Stored:
        """Store one message of the broker's own making for a client that waits. ``kind`` is counted as well.

        Raises ``BrokerError`` for one that cannot be parked, or when too many acknowledgements are outstanding,
        and ``StoreError``.
        """
        if self.gate.waiting_count >= PENDING_ACKS_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        message = self.parking.of_broker(message)
        return Stored(message, self.deliver((message,), kind)[0])

    def deliver(
        self, messages: Sequence[NewMessage], kind: str = "", *, counted: bool = True
    ) -> list[Appended]:
        """Store messages where they say, all or none. Raises ``StoreError``."""
        appended = self.append(messages)
        if counted:
            self.count(messages, appended, kind)
        return appended

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Store messages that were checked and parked already, all or none, uncounted. Raises ``StoreError``."""
        if self.gate.is_master is not None:
            self._refuse_when_closed()
        return self._store.append_batch(messages)

    def append_sends(self, messages: Sequence[NewMessage], batches: Sequence[bool]) -> list[AppendedSend]:
        """Store and count sends that were checked and parked already; see ``MessageStore.append_sends``."""
        if self.gate.is_master is not None:
            self._refuse_when_closed()
        appended = self._store.append_sends(messages, batches)
        self._stats.put_sends(messages, appended)
        return appended

    def _refuse_when_closed(self) -> None:
        """Sends are checked when they are read and appended at the end of the turn: a process that slept in between
        may have lost its lease, and what it appends then is cut off again."""
        closed = self.gate.closed
        if closed:
            raise StoreUnavailable(closed)

    def count(self, messages: Sequence[NewMessage], appended: Sequence[Appended], kind: str = "") -> None:
        """Note what was stored."""
        put = self._stats.put
        for message, where in zip(messages, appended, strict=True):
            put(message.topic, message.queue_id, 1, where.size)
            if kind:
                self._stats.note_kind(message.topic, kind, where.size)

    # -- acknowledge -----------------------------------------------------------------------------------

    def when_safe(self, log_end: int, callback: Callable[[int], None]) -> None:
        """Call back once with the code of a send's answer, when everything before ``log_end`` is as safe as
        configured, or it is known that it will not be."""
        self.gate.wait(log_end, callback)

    async def safe(self, log_end: int | None = None) -> int:
        """Wait as ``when_safe`` does, for everything stored so far unless an end is given, and for the disk under any
        flush mode. Cursors rely on it: their files are synced, so a power cut under ASYNC_FLUSH could leave a cursor
        that has passed a delayed message whose delivered copy is lost."""
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
        """Wait as ``safe`` does; whether everything stored so far stays in our log. Without failover it does: nobody
        cuts a master's log. With failover the next master may have less than we do."""
        code = await self.safe()
        return self.gate.is_master is None or is_safe(code)

    def answer(self, call: Call[Any], log_end: int, reply: Reply) -> Answer:
        """``reply`` once everything before ``log_end`` is safe; an error when that cannot be said."""
        if self.gate.immediate:
            return reply
        self.when_safe(log_end, lambda code: call.reply(_as_safe(reply, code)))
        return PARKED

    def answer_when_all_safe(self, call: Call[Any], reply: Reply) -> Answer:
        """The same for everything stored so far."""
        return self.answer(call, self._store.max_log_offset, reply)


def _as_safe(reply: Reply, code: int) -> Reply:
    return reply if is_safe(code) else Reply(ResponseCode.SYSTEM_ERROR, ResponseCode(code).name)


def _settle(future: asyncio.Future[T], answer: T) -> None:
    """The first answer counts; who was cancelled hears none."""
    if not future.done():
        future.set_result(answer)


def is_safe(code: int) -> bool:
    """Whether a put with this outcome may be relied on. Without a slave to wait for, the master's own disk is all
    there is: a send is accepted then, and so is everything else."""
    return code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
