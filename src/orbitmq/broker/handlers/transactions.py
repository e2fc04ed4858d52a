"""Serves END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE (Apache: EndTransactionProcessor, AdminBrokerProcessor).

Commits that arrive in one turn of the event loop are appended together, like sends. With a separate append for each
commit, ending a transaction took three times as much CPU.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from orbitmq.broker.delivery.half_messages import number
from orbitmq.broker.delivery.put import as_safe
from orbitmq.broker.delivery.transactions import Transactions
from orbitmq.codes import Property, ResponseCode, SysFlag
from orbitmq.errors import IllegalOperation, RecordError, ServerError, SlaveNotAvailable
from orbitmq.model.names import HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.store.errors import StoreError
from orbitmq.store.types import NewMessage
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import PARKED, Answer, Call, Reply, Route, encode_reply
from orbitmq.wire.headers import EndTransactionRequest, ResumeCheckHalfMessageRequest

__all__ = ["TransactionHandlers"]

logger = logging.getLogger(__name__)

_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_GROUP: Final = Property.PRODUCER_GROUP.encode()
_SLAVE: Final = "transactions are ended on the master, this broker is a slave"
_PENDING_MAX: Final = 64
"""The number of pending commits that are appended without waiting for the end of the turn."""


def _after_turn(work: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(work)


class _Commit(NamedTuple):
    """A checked commit that waits for the append."""

    call: Call[EndTransactionRequest]
    half: Record
    message: NewMessage


class TransactionHandlers:
    """Ends transactions for producers, and resumes abandoned ones for operators."""

    def __init__(
        self, transactions: Transactions, after_turn: Callable[[Callable[[], None]], None] = _after_turn
    ) -> None:
        self._transactions = transactions
        self._config = transactions.config
        self._store = transactions.store
        self._puts = transactions.puts
        self._clock = transactions.clock
        self._after_turn = after_turn
        self._pending: list[_Commit] = []
        self._pending_places: set[int] = set()

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.END_TRANSACTION, self.end, EndTransactionRequest),
            Route(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume, ResumeCheckHalfMessageRequest),
        ]

    def end(self, call: Call[EndTransactionRequest]) -> Answer:
        """Serve END_TRANSACTION (37). The outcome UNKNOWN gets no reply.

        A commit is answered when its message is as safe as a send. A rollback is answered immediately, because losing
        it is harmless: the half message is then checked again.
        """
        header = call.header
        if self._config.is_slave:
            raise SlaveNotAvailable(_SLAVE)
        if header.commit_or_rollback not in (0, _COMMIT, _ROLLBACK):
            raise ServerError(
                f"commitOrRollback is {header.commit_or_rollback}, not 0, {_COMMIT} or {_ROLLBACK}"
            )
        if header.commit_or_rollback not in (_COMMIT, _ROLLBACK):
            logger.info(
                "transaction stays open group=%s id=%s remark=%s",
                header.producer_group,
                header.transaction_id,
                call.frame.remark,
            )
            return PARKED
        half = self._record(header.commit_log_offset)
        self._check_time(header, half)
        _check_same(header, half)
        places = self._transactions.places(half)
        if not self._pending_places.isdisjoint(places):
            self.append_pending()  # the same transaction ends twice in one turn
        if header.commit_or_rollback == _ROLLBACK:
            self._transactions.roll_back(half)
            return Reply()
        try:
            message = self._transactions.to_commit(half)
        except RecordError as error:
            raise ServerError(f"the half message cannot be committed: {error}") from None
        if message is None:
            return self._puts.answer_when_all_safe(call, Reply())
        if not self._pending:
            self._after_turn(self.append_pending)
        self._pending.append(_Commit(call, half, message))
        self._pending_places.update(places)
        if len(self._pending) >= _PENDING_MAX:
            self.append_pending()
        return PARKED

    def append_pending(self) -> None:
        """Append and answer all pending commits."""
        pending, self._pending = self._pending, []
        self._pending_places.clear()
        if not pending:
            return
        try:
            self._append(pending)
        except Exception as error:
            # Answer even after a bug, or the producer waits for seconds.
            logger.exception("commits not finished count=%d", len(pending))
            _answer(pending, Reply(ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}"))

    def _append(self, commits: list[_Commit]) -> None:
        """Append commits with one write. If the write is refused, append them one by one."""
        if self._config.is_slave:
            # The role has changed since they were checked.
            _answer(commits, Reply(ResponseCode.SLAVE_NOT_AVAILABLE, _SLAVE))
            return
        try:
            self._transactions.commit([one.half for one in commits], [one.message for one in commits])
        except StoreError as error:
            if len(commits) == 1:
                _answer(commits, Reply(error.code, error.remark))
                return
            for one in commits:
                self._append([one])
            return
        log_end = self._store.max_log_offset
        if self._puts.gate.immediate:
            _answer(commits, Reply())
        else:
            self._puts.when_safe(log_end, lambda code: _answer(commits, as_safe(Reply(), code)))

    def _record(self, log_offset: int) -> Record:
        raw = self._store.record_at(log_offset) if log_offset >= 0 else None
        if raw is None:
            raise ServerError("Find prepared transaction message failed")
        try:
            return decode_record(raw)
        except RecordError as error:
            raise ServerError(f"Find prepared transaction message failed: {error}") from None

    def _check_time(self, header: EndTransactionRequest, half: Record) -> None:
        """Raise an error if the transaction must not be ended now: after the immunity period, it can be ended only in
        reply to a check."""
        if header.from_transaction_check:
            return
        immunity_s = number(half, Property.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if immunity_s is None:
            return
        limit_ms = self._config.transaction_timeout_ms if immunity_s == -1 else immunity_s * 1000
        if self._clock.now_ms() - half.born_timestamp_ms > limit_ms:
            raise IllegalOperation("the transaction can only be ended in answer to a check now")

    def resume(self, call: Call[ResumeCheckHalfMessageRequest]) -> Answer:
        """Serve RESUME_CHECK_HALF_MESSAGE (323)."""
        try:
            log_offset = parse_offset_message_id(call.header.msg_id or "").log_offset
            record = self._record(log_offset)
            if record.topic not in (TRANSACTION_CHECK_MAX_TIME_TOPIC, HALF_TOPIC):
                raise ServerError(f"{call.header.msg_id} is not a half message")
            log_end = self._transactions.resume(record)
        except (RecordError, StoreError, ServerError) as error:
            raise ServerError(f"Put message back to {HALF_TOPIC} failed. {error}") from None
        return self._puts.answer(call, log_end, Reply())


def _answer(commits: list[_Commit], reply: Reply) -> None:
    """Answer commits, with one write per connection."""
    by_peer: dict[Connection, list[bytes]] = {}
    for call, _, _ in commits:
        if not call.frame.is_oneway:
            by_peer.setdefault(call.peer, []).append(encode_reply(call.frame, reply))
    for peer, answers in by_peer.items():
        peer.send(b"".join(answers))


def _check_same(header: EndTransactionRequest, half: Record) -> None:
    group = (half.find(_GROUP) or b"").decode("utf-8", "replace")
    if group != header.producer_group:
        raise ServerError("The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise ServerError("The transaction state table offset wrong")
    if half.log_offset != header.commit_log_offset or half.topic != HALF_TOPIC:
        raise ServerError("The commit log offset wrong")
