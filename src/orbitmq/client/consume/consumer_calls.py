"""Handles calls from brokers: reset offsets (220), report offsets (221), report running info (307) and consume a
message directly (309).

Corresponds to Apache's ClientRemotingProcessor.
"""

from __future__ import annotations

import sys
import traceback

from orbitmq.client.consume.assignment import Assignment
from orbitmq.client.consume.delivery import Delivery
from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.offset_store import OffsetStore
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import PushOptions
from orbitmq.codes import LanguageCode, ResponseCode, Version, version_name
from orbitmq.errors import BodyError, RecordError
from orbitmq.model.names import unwrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import decode_record
from orbitmq.requests import RequestCode
from orbitmq.transport.router import PARKED, Answer, Call, RawRoute, Reply, Route
from orbitmq.wire.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeType,
    DirectConsumeResult,
    ProcessQueueInfo,
    ResetOffset,
    ResetOffsetForCpp,
)
from orbitmq.wire.headers import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    ResetOffsetRequest,
)
from orbitmq.wire.javajson import ObjectMap

__all__ = ["ConsumerCalls"]

_MIB = 1024 * 1024


class ConsumerCalls:
    """Handles the calls that brokers make to one push consumer."""

    def __init__(
        self,
        membership: Membership,
        options: PushOptions,
        store: OffsetStore,
        assignment: Assignment,
        delivery: Delivery,
    ) -> None:
        self._membership = membership
        self._options = options
        self._store = store
        self._assignment = assignment
        self._delivery = delivery

    def routes(self) -> list[Route | RawRoute]:
        return [
            Route(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset, ResetOffsetRequest),
            Route(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status, GetConsumerStatusRequest),
            Route(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info, GetConsumerRunningInfoRequest),
            Route(
                RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume_directly, ConsumeMessageDirectlyRequest
            ),
        ]

    def _reset(self, call: Call[ResetOffsetRequest]) -> Answer:
        if call.header.group == self._membership.group:
            offsets = _reset_offsets(call.body)
            reset = self._assignment.reset(call.header.topic, offsets)
            self._membership.instance.tasks.start(reset, "reset-offsets")
        return PARKED

    def _status(self, call: Call[GetConsumerStatusRequest]) -> Answer:
        offsets = {
            queue: offset
            for queue, offset in self._store.offsets.items()
            if queue.topic == call.header.topic and call.header.group == self._membership.group
        }
        return Reply(body=ConsumerStatus(message_queue_table=ObjectMap(offsets)).encode())

    def _refusal(self, group: str | None) -> Reply | None:
        """Returns the error reply to a call for another group; None if ``group`` is ours."""
        if group == self._membership.group:
            return None
        return Reply(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")

    def _running_info(self, call: Call[GetConsumerRunningInfoRequest]) -> Answer:
        refusal = self._refusal(call.header.consumer_group)
        if refusal is not None:
            return refusal
        membership, options = self._membership, self._options
        info = ConsumerRunningInfo(
            jstack=_stacks() if call.header.jstack_enable else None,
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(membership.instance.name_servers),
                "PROP_CONSUME_TYPE": ConsumeType.PASSIVELY.value,
                "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
                "PROP_THREADPOOL_CORE_SIZE": str(options.workers),
                "PROP_CONSUMER_START_TIMESTAMP": str(membership.started_ms),
                "PROP_CLIENT_VERSION": version_name(Version.OURS),
                "PROP_CLIENT_LANGUAGE": LanguageCode.PYTHON.name,
            },
            subscription_set=list(membership.subscriptions.wanted.values()),
            mq_table=ObjectMap(
                {queue: self._queue_info(held) for queue, held in self._assignment.held.items()}
            ),
        )
        return Reply(body=info.encode())

    def _queue_info(self, held: ProcessQueue) -> ProcessQueueInfo:
        return ProcessQueueInfo(
            commit_offset=self._store.offsets.get(held.queue, 0),
            cached_msg_count=len(held.messages),
            cached_msg_min_offset=held.first_offset() if held.messages else 0,
            cached_msg_max_offset=max(held.max_offset, 0),
            cached_msg_size_in_mib=held.size // _MIB,
            locked=held.locked,
            last_lock_timestamp=held.last_lock_ms,
            dropped=held.dropped,
            last_pull_timestamp=held.last_pull_ms,
            last_consume_timestamp=held.last_consume_ms,
            transaction_msg_count=len(held.consuming),
            transaction_msg_min_offset=min(held.consuming, default=0),
            transaction_msg_max_offset=max(held.consuming, default=0),
        )

    async def _consume_directly(self, call: Call[ConsumeMessageDirectlyRequest]) -> Answer:
        refusal = self._refusal(call.header.consumer_group)
        if refusal is not None:
            return refusal
        try:
            record = decode_record(call.body, decompress=True)
        except RecordError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {error}")
        broker_name = call.header.message_broker_name or call.header.broker_name or ""
        queue = MessageQueue(topic=record.topic, broker_name=broker_name, queue_id=record.queue_id)
        message = ReceivedMessage(record, queue)
        message.rename(unwrap_namespace(message.topic, self._options.namespace))
        now_ms = self._membership.instance.clock.now_ms
        started_ms = now_ms()
        outcome = await self._delivery.handle_directly(message)
        result = DirectConsumeResult.SUCCESS
        if outcome.done == 0:
            result = DirectConsumeResult.THROW_EXCEPTION if outcome.error else DirectConsumeResult.LATER
        body = ConsumeMessageDirectlyResult(
            order=self._options.orderly,
            consume_result=result,
            remark=None if outcome.error is None else repr(outcome.error),
            spent_time_mills=now_ms() - started_ms,
        )
        return Reply(body=body.encode())


def _reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    try:
        return dict(ResetOffset.decode(body).offset_table)
    except BodyError:
        table = ResetOffsetForCpp.decode(body).offset_table
        return {
            MessageQueue(topic=item.topic, broker_name=item.broker_name, queue_id=item.queue_id): item.offset
            for item in table
        }


def _stacks() -> str:
    """Returns the stacks of all threads of this process, for tools that request a thread dump."""
    return "\n\n".join(
        f"thread {number}\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()
    )
