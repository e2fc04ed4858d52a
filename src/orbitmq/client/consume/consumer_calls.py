"""What brokers ask of a consumer: reset (220), offsets (221), how it does (307), consume this one (309).

Answers to Apache's ClientRemotingProcessor.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TYPE_CHECKING

from orbitmq.client.message import ReceivedMessage
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

if TYPE_CHECKING:
    from orbitmq.client.consume.push_consumer import PushConsumer

__all__ = ["ConsumerCalls"]

logger = logging.getLogger(__name__)
_MIB = 1024 * 1024


class ConsumerCalls:
    """Answers for one consumer; the only class beside it that sees its inside."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer

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
        consumer = self._consumer
        if call.header.group != consumer.group:
            return PARKED
        offsets = _reset_offsets(call.body)
        consumer._instance.tasks.start(self._apply_reset(call.header.topic, offsets), "reset-offsets")
        return PARKED

    async def _apply_reset(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        consumer = self._consumer
        async with consumer._rebalancing:
            for queue, offset in offsets.items():
                held = consumer._held.get(queue)
                if held is None or queue.topic != topic:
                    continue
                # A handler still at work cannot commit over the new offset: a dropped queue takes no offsets.
                held.drop()
                held.clear()
                consumer._offsets.update(queue, offset, increase_only=False)
                await consumer._release(held)
                logger.info("offset reset queue=%s offset=%d", queue, offset)
        consumer.rebalance_soon()

    def _status(self, call: Call[GetConsumerStatusRequest]) -> Answer:
        consumer = self._consumer
        offsets = {
            queue: offset
            for queue, offset in consumer._offsets.offsets.items()
            if queue.topic == call.header.topic and call.header.group == consumer.group
        }
        return Reply(body=ConsumerStatus(message_queue_table=ObjectMap(offsets)).encode())

    def _running_info(self, call: Call[GetConsumerRunningInfoRequest]) -> Answer:
        consumer = self._consumer
        if call.header.consumer_group != consumer.group:
            return Reply(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{call.header.consumer_group}> not exist in this consumer",
            )
        info = ConsumerRunningInfo(
            jstack=_stacks() if call.header.jstack_enable else None,
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(consumer._instance.name_servers),
                "PROP_CONSUME_TYPE": consumer.consume_type.value,
                "PROP_CONSUMEORDERLY": str(consumer.orderly).lower(),
                "PROP_THREADPOOL_CORE_SIZE": str(consumer.options.workers),
                "PROP_CONSUMER_START_TIMESTAMP": str(consumer._started_ms),
                "PROP_CLIENT_VERSION": version_name(Version.OURS),
                "PROP_CLIENT_LANGUAGE": LanguageCode.PYTHON.name,
            },
            subscription_set=list(consumer._subscriptions.values()),
            mq_table=ObjectMap({queue: self._queue_info(queue) for queue in consumer._held}),
        )
        return Reply(body=info.encode())

    def _queue_info(self, queue: MessageQueue) -> ProcessQueueInfo:
        held = self._consumer._held[queue]
        return ProcessQueueInfo(
            commit_offset=self._consumer._offsets.offsets.get(queue, 0),
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
        consumer = self._consumer
        if call.header.consumer_group != consumer.group:
            return Reply(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{call.header.consumer_group}> not exist in this consumer",
            )
        try:
            record = decode_record(call.body, decompress=True)
        except RecordError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {error}")
        broker_name = call.header.message_broker_name or call.header.broker_name or ""
        queue = MessageQueue(topic=record.topic, broker_name=broker_name, queue_id=record.queue_id)
        message = ReceivedMessage(record, queue)
        message.rename(unwrap_namespace(message.topic, consumer.options.namespace))
        handler = consumer._handler_for(message)
        started_ms = consumer._clock.now_ms()
        chunk = [message]
        outcome = (
            await handler.run(chunk, consumer._instance.tasks)
            if handler.is_async
            else await consumer._calls.in_thread(handler.run_blocking, chunk)
        )
        result = DirectConsumeResult.SUCCESS
        if outcome.done == 0:
            result = DirectConsumeResult.THROW_EXCEPTION if outcome.error else DirectConsumeResult.LATER
        body = ConsumeMessageDirectlyResult(
            order=consumer.orderly,
            consume_result=result,
            remark=None if outcome.error is None else repr(outcome.error),
            spent_time_mills=consumer._clock.now_ms() - started_ms,
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
    """Where each thread of this process is, for a tool that asks for a thread dump."""
    return "\n\n".join(
        f"thread {number}\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()
    )
