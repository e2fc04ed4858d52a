"""Half messages and their outcomes (Apache: ``TransactionMQProducer``, END_TRANSACTION, CHECK_TRANSACTION_STATE)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from orbitmq.client.callables import UserCalls
from orbitmq.client.errors import ClientStateError, SendFailed
from orbitmq.client.message import Message, ReceivedMessage, SendResult, SendStatus, TransactionState
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.produce.sender import SendContext, Sender
from orbitmq.codes import Property
from orbitmq.errors import MessageIllegal, OrbitError, RecordError
from orbitmq.model.names import unwrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import decode_record
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import PARKED, Answer, Call
from orbitmq.wire.headers import CheckTransactionStateRequest, EndTransactionRequest

__all__ = ["LocalTransaction", "TransactionBlock", "TransactionCheck", "Transactions"]

logger = logging.getLogger(__name__)

LocalTransaction = Callable[[Message, str], "TransactionState | Awaitable[TransactionState | None] | None"]
"""Called with the message and its transaction id once the half message is stored."""
TransactionCheck = Callable[[ReceivedMessage], "TransactionState | Awaitable[TransactionState | None] | None"]
"""Called when the broker checks back, perhaps in another process than the one that sent the half message."""

CHECKS_MAX: Final = 2000
"""Checks that may wait. The broker repeats those that are refused."""


class Transactions:
    """The transactions of one producer."""

    def __init__(
        self, instance: ClientInstance, sender: Sender, check: TransactionCheck | None, calls: UserCalls
    ) -> None:
        self._instance = instance
        self._sender = sender
        self._check = check
        self._calls = calls
        self._checking = 0
        self.on_end: Callable[[Message, SendResult, TransactionState], None] | None = None
        """Called with each outcome of our own transactions."""

    async def send(
        self,
        message: Message,
        local: LocalTransaction,
        *,
        timeout_s: float | None = None,
        context: SendContext | None = None,
    ) -> SendResult:
        """Store a half message, run the local transaction, and send its outcome to the broker.

        Returns a result for every outcome. An exception in ``local`` counts as an unknown outcome, and the broker
        checks back later.
        """
        result = await self.begin(message, timeout_s, context)
        state = TransactionState.ROLLBACK
        if result.status is SendStatus.OK:
            state = await self._judge(local, message, result.transaction_id or result.message_id)
        return await self.finish(message, result, state)

    async def begin(
        self, message: Message, timeout_s: float | None, context: SendContext | None = None
    ) -> SendResult:
        """Store a half message."""
        if self._check is None:
            raise ClientStateError(
                "a transaction needs a producer with check=...; the broker calls it when no outcome arrives"
            )
        if message.is_delayed:
            # Apache's client drops the delay too: consumers get the message immediately.
            raise MessageIllegal("a transactional message cannot be delayed")
        extra = {
            Property.TRANSACTION_PREPARED.value: "true",
            Property.PRODUCER_GROUP.value: self._sender.group,
        }
        outgoing = self._sender.prepare(message, extra)
        if context is not None:
            context.unique_key = outgoing.unique_key
        timeout_s = await self._sender.introduce(outgoing.topic, timeout_s)
        return await self._sender.send(
            outgoing, shard_key=message.shard_key, timeout_s=timeout_s, context=context
        )

    async def finish(self, message: Message, result: SendResult, state: TransactionState) -> SendResult:
        """Send the outcome to the broker. If that fails, the broker checks back."""
        try:
            await self._end(result, state)
        except (OrbitError, ValueError) as error:
            logger.warning(
                "outcome not reported, the broker will check back id=%s state=%s error=%s",
                result.message_id,
                state,
                error,
            )
        if self.on_end is not None:
            self.on_end(message, result, state)
        return msgspec.structs.replace(result, transaction_state=state)

    async def _judge(self, function: Callable[..., Any], *arguments: Any) -> TransactionState:
        try:
            state = await self._calls.run(function, *arguments)
        except Exception:  # whatever the user's code raises, the outcome is unknown
            logger.exception(
                "transaction function failed function=%s", getattr(function, "__qualname__", function)
            )
            return TransactionState.UNKNOWN
        return state if isinstance(state, TransactionState) else TransactionState.UNKNOWN

    async def _end(self, result: SendResult, state: TransactionState) -> None:
        header = EndTransactionRequest(
            producer_group=self._sender.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=parse_offset_message_id(result.offset_message_id).log_offset,
            commit_or_rollback=state.value,
            msg_id=result.message_id,
            transaction_id=result.transaction_id,
            topic=self._sender.wire_topic(result.queue.topic),
            broker_name=result.queue.broker_name,
        )
        address = self._instance.master(result.queue.broker_name)
        await self._instance.tell(address, RequestCode.END_TRANSACTION, header)

    # -- the broker asks -------------------------------------------------------------------------------

    def asked(self, call: Call[CheckTransactionStateRequest]) -> Answer:
        """Handle CHECK_TRANSACTION_STATE (39), a oneway request that is answered with another request."""
        if self._check is None or self._checking >= CHECKS_MAX or not self._instance.running:
            logger.warning("transaction check skipped id=%s checking=%d", call.header.msg_id, self._checking)
            return PARKED
        self._checking += 1
        self._instance.tasks.start(self._answer(call.header, call.body, call.peer), "transaction-check")
        return PARKED

    async def _answer(self, header: CheckTransactionStateRequest, body: bytes, peer: Connection) -> None:
        try:
            try:
                record = decode_record(body, decompress=True)
            except RecordError as error:
                logger.warning("transaction check not readable peer=%s error=%s", peer.remote_text, error)
                return
            queue = MessageQueue(
                topic=record.topic, broker_name=header.broker_name or "", queue_id=record.queue_id
            )
            message = ReceivedMessage(record, queue)
            namespace = self._instance.options.namespace
            if namespace:
                message.rename(unwrap_namespace(record.topic, namespace))
            assert self._check is not None
            state = await self._judge(self._check, message)
            answer = EndTransactionRequest(
                producer_group=self._sender.group,
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_offset=header.commit_log_offset,
                commit_or_rollback=state.value,
                msg_id=message.message_id,
                from_transaction_check=True,
                transaction_id=header.transaction_id,
                topic=record.topic,
                broker_name=header.broker_name,
            )
            peer.notify(RequestCode.END_TRANSACTION, ext=self._instance.fields(answer))
        finally:
            self._checking -= 1


class TransactionBlock:
    """A transaction around a block of code. The end of the block commits it, an exception rolls it back.

    ``result`` and ``id`` are available inside the block. If the message was stored but not safely, it is rolled back
    and ``SendFailed`` is raised instead of entering the block.
    """

    def __init__(self, transactions: Transactions, message: Message, timeout_s: float | None) -> None:
        self._transactions = transactions
        self._message = message
        self._timeout_s = timeout_s
        self.result: SendResult | None = None

    @property
    def id(self) -> str:
        """The transaction id, which the broker includes when it checks back."""
        if self.result is None:
            raise ClientStateError("a transaction has an id only inside its block")
        return self.result.transaction_id or self.result.message_id

    async def __aenter__(self) -> Self:
        result = await self._transactions.begin(self._message, self._timeout_s)
        if result.status is not SendStatus.OK:
            await self._transactions.finish(self._message, result, TransactionState.ROLLBACK)
            raise SendFailed(
                f"the half message was not stored safely: {result.status.name}",
                code=int(result.status.value),
                attempts=1,
            )
        self.result = result
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.result is not None
        state = TransactionState.COMMIT if kind is None else TransactionState.ROLLBACK
        self.result = await self._transactions.finish(self._message, self.result, state)
