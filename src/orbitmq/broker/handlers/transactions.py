"""END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE (Apache: EndTransactionProcessor, part of AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.half_messages import number
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.delivery.transactions import Transactions
from orbitmq.codes import Property, SysFlag
from orbitmq.errors import BrokerError, IllegalOperation, RecordError, ServerError, SlaveNotAvailable
from orbitmq.model.names import HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import PARKED, Answer, Call, Reply, Route
from orbitmq.wire.headers import EndTransactionRequest, ResumeCheckHalfMessageRequest

__all__ = ["TransactionHandlers"]

logger = logging.getLogger(__name__)

_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_GROUP: Final = Property.PRODUCER_GROUP.encode()


class TransactionHandlers:
    """Ends transactions for producers, and resumes abandoned ones for operators."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        transactions: Transactions,
        puts: WritePath,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._transactions = transactions
        self._puts = puts
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.END_TRANSACTION, self.end, EndTransactionRequest),
            Route(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume, ResumeCheckHalfMessageRequest),
        ]

    def end(self, call: Call[EndTransactionRequest]) -> Answer:
        """END_TRANSACTION (37). Outcome UNKNOWN gets no reply.

        A commit is answered when its message is as safe as a send. A rollback stores nothing that must not be lost:
        if its mark is lost, the half message is checked again.
        """
        header = call.header
        if self._config.is_slave:
            raise SlaveNotAvailable("transactions are ended on the master, this broker is a slave")
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
        try:
            if header.commit_or_rollback == _COMMIT:
                return self._puts.answer(call, self._transactions.commit(half), Reply())
            self._transactions.roll_back(half)
        except StoreError as error:
            raise BrokerError(error.remark, code=error.code) from None
        except RecordError as error:
            raise ServerError(f"the half message cannot be committed: {error}") from None
        return Reply()

    def _record(self, log_offset: int) -> Record:
        raw = self._store.record_at(log_offset) if log_offset >= 0 else None
        if raw is None:
            raise ServerError("Find prepared transaction message failed")
        try:
            return decode_record(raw)
        except RecordError as error:
            raise ServerError(f"Find prepared transaction message failed: {error}") from None

    def _check_time(self, header: EndTransactionRequest, half: Record) -> None:
        """After the immunity period a transaction can be ended only in reply to a check."""
        if header.from_transaction_check:
            return
        immunity_s = number(half, Property.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if immunity_s is None:
            return
        limit_ms = self._config.transaction_timeout_ms if immunity_s == -1 else immunity_s * 1000
        if self._clock.now_ms() - half.born_timestamp_ms > limit_ms:
            raise IllegalOperation("the transaction can only be ended in answer to a check now")

    def resume(self, call: Call[ResumeCheckHalfMessageRequest]) -> Answer:
        """RESUME_CHECK_HALF_MESSAGE (323)."""
        try:
            log_offset = parse_offset_message_id(call.header.msg_id or "").log_offset
            record = self._record(log_offset)
            if record.topic not in (TRANSACTION_CHECK_MAX_TIME_TOPIC, HALF_TOPIC):
                raise ServerError(f"{call.header.msg_id} is not a half message")
            log_end = self._transactions.resume(record)
        except (RecordError, StoreError, ServerError) as error:
            raise ServerError(f"Put message back to {HALF_TOPIC} failed. {error}") from None
        return self._puts.answer(call, log_end, Reply())


def _check_same(header: EndTransactionRequest, half: Record) -> None:
    group = (half.find(_GROUP) or b"").decode("utf-8", "replace")
    if group != header.producer_group:
        raise ServerError("The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise ServerError("The transaction state table offset wrong")
    if half.log_offset != header.commit_log_offset or half.topic != HALF_TOPIC:
        raise ServerError("The commit log offset wrong")
