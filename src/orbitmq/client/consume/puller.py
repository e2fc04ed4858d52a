"""Single pulls: the request and the parsed response (Apache: ``PullAPIWrapper``)."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from orbitmq.client.consume.answers import AnswerReader
from orbitmq.client.consume.class_filter import filter_server
from orbitmq.client.errors import add_hint
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions
from orbitmq.codes import PullFlag, ResponseCode
from orbitmq.errors import (
    ConnectFailedError,
    OrbitError,
    RecordError,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    TopicNotFound,
    error_for_code,
)
from orbitmq.model.names import unwrap_namespace
from orbitmq.model.route import MASTER_ID, MessageQueue
from orbitmq.model.subscription import SubscriptionData
from orbitmq.record.batch import is_inner_batch, unwrap
from orbitmq.record.codec import Record
from orbitmq.requests import RequestCode
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import PullMessageRequest
from orbitmq.wire.pulls import AnswerFields, read_pull_answer

__all__ = ["PullResult", "PullStatus", "Puller"]

logger = logging.getLogger(__name__)

_LITE_BROKERS_FROM: Final = 413
"""Brokers know LITE_PULL_MESSAGE from this version on."""
_INNER: Final = 0xC0


class PullStatus(Enum):
    """The outcome of a pull."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


_STATUSES: Final = {status.value.value: status for status in PullStatus}


class PullResult(msgspec.Struct):
    """The result of a pull."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[ReceivedMessage]


class _Fault(NamedTuple):
    """Why a response could be read only in part."""

    error: RecordError
    answer_end: int
    """The offset after everything in the answer, according to the broker."""


class Puller:
    """Pulls for one consumer."""

    def __init__(
        self, instance: ClientInstance, group: str, options: ConsumerOptions, reader: AnswerReader
    ) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self._reader = reader
        self._suggested: dict[MessageQueue, int] = {}
        self._asked: dict[MessageQueue, int] = {}
        self._avoided: dict[MessageQueue, int] = {}
        """The replica at which the last pull failed; the next pull uses another one, if there is one."""

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        flags: PullFlag,
        commit_offset: int = 0,
        max_count: int | None = None,
        suspend_s: float | None = None,
    ) -> PullResult:
        """Pull once. Raises ``BrokerError`` if the broker refuses, and connection errors.

        Damaged messages are left out. A damaged message that makes the rest of the response unreadable is pulled
        alone, because the broker then returns the offset of the next message.
        """
        result, fault = await self._ask(
            queue,
            offset,
            subscription,
            flags=flags,
            commit_offset=commit_offset,
            max_count=max_count,
            suspend_s=suspend_s,
        )
        if fault is None or result.next_offset > offset:
            return result
        if max_count != 1:
            flags &= ~PullFlag.SUSPEND
            result, fault = await self._ask(
                queue, offset, subscription, flags=flags, commit_offset=commit_offset, max_count=1
            )
        if fault is not None and result.next_offset <= offset:
            result.next_offset = max(fault.answer_end, offset + 1)
            # Messages before it may have been filtered out by the subscription.
            self._reader.skip(queue, queue.queue_id, result.next_offset - 1, fault.error)
        return result

    async def _ask(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        flags: PullFlag,
        commit_offset: int = 0,
        max_count: int | None = None,
        suspend_s: float | None = None,
    ) -> tuple[PullResult, _Fault | None]:
        options = self._options
        broker_id, address = await self._address(queue)
        if broker_id != MASTER_ID:
            flags &= ~PullFlag.COMMIT_OFFSET  # a slave must not take offsets
        if subscription.class_filter_mode:
            flags = (flags & ~PullFlag.COMMIT_OFFSET) | PullFlag.CLASS_FILTER
            address = filter_server(self._instance, queue.topic, address)
        lite = bool(flags & PullFlag.LITE_PULL)
        version = self._instance.broker_versions.get(address, 0)
        code = (
            RequestCode.LITE_PULL_MESSAGE
            if lite and version >= _LITE_BROKERS_FROM
            else RequestCode.PULL_MESSAGE
        )
        wait_s = options.suspend_s if suspend_s is None else suspend_s
        header = PullMessageRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_count or options.pull_batch_size,
            sys_flag=int(flags),
            commit_offset=commit_offset,
            suspend_timeout_millis=int(wait_s * 1000) if flags & PullFlag.SUSPEND else 0,
            sub_version=0 if lite and subscription.is_tag_type else subscription.sub_version,
            subscription=subscription.sub_string if flags & PullFlag.SUBSCRIPTION else None,
            expression_type=subscription.expression_type,
            max_msg_bytes=options.pull_bytes,
            broker_name=queue.broker_name,
        )
        timeout_s = (
            max(options.pull_timeout_s, wait_s + 5.0) if flags & PullFlag.SUSPEND else options.pull_timeout_s
        )
        fields = self._instance.fields(header)
        rpc = self._instance.rpc
        connection = rpc.open_connection(address)
        if connection is not None:
            frame = await connection.call(int(code), None, timeout_s=timeout_s, ext=fields)
        else:
            frame = await rpc.call(address, int(code), None, timeout_s=timeout_s, ext=fields)
        return self._result(queue, offset, subscription, frame)

    async def _address(self, queue: MessageQueue) -> tuple[int, str]:
        book = self._instance.book
        self._asked.pop(queue, None)
        data = book.broker(queue.broker_name)
        if data is None:
            await book.refresh(queue.topic)
            data = book.broker(queue.broker_name)
        found = None if data is None else data.read_address(self._suggested.get(queue, MASTER_ID))
        if found is None or data is None:
            raise ConnectFailedError(f"no address of broker {queue.broker_name} is known")
        if self._avoided:
            avoided = self._avoided.pop(queue, None)
            if avoided == found[0]:
                others = [pair for pair in data.broker_addrs.items() if pair[0] != avoided]
                found = others[0] if others else found
        self._asked[queue] = found[0]
        return found

    def is_deleted(self, queue: MessageQueue, error: OrbitError) -> bool:
        """Whether a pull failed because the topic was deleted: the queue's master does not have it. A slave may not
        have the topic yet, and a name server may be empty after a restart."""
        return isinstance(error, TopicNotFound) and self._asked.get(queue) == MASTER_ID

    async def failed(self, queue: MessageQueue, offset: int, error: OrbitError) -> None:
        """Handle a failed pull: refresh the route if it may be out of date, log the error (rate-limited), and
        pause."""
        instance = self._instance
        if isinstance(error, SubscriptionNotExist | SubscriptionNotLatest):
            # The broker does not know our present subscription, for example after its restart.
            logger.info("broker lacks the subscription, registering again queue=%s", queue)
            await instance.heartbeat()
            await asyncio.sleep(self._options.pull_error_pause_s)
            return
        if error.stale_route:
            self._suggested.pop(queue, None)
            if queue in self._asked:
                self._avoided[queue] = self._asked[queue]
            instance.refresh_soon(queue.topic)
        key, text = ("pull", queue.broker_name, type(error)), "pull failed queue=%s offset=%d error=%s"
        instance.log_limits.warning(logger, key, text, queue, offset, error)
        await asyncio.sleep(self._options.pull_error_pause_s)

    def _result(
        self, queue: MessageQueue, offset: int, subscription: SubscriptionData, frame: Frame
    ) -> tuple[PullResult, _Fault | None]:
        status = _STATUSES.get(frame.code)
        if status is None:
            raise add_hint(error_for_code(frame.code, frame.remark))
        header = read_pull_answer(frame)
        self._suggested[queue] = header.suggest_which_broker_id
        messages: list[ReceivedMessage] = []
        if status is PullStatus.FOUND and frame.body:
            records, damaged, error = self._reader.read(queue, frame.body)
            records = self._unwrapped(queue, records, header)
            messages = self._messages(queue, subscription, records, header)
            if error is not None:
                delta = header.offset_delta or 0
                ends = [record.queue_offset + 1 for record in records]
                ends += [record.queue_offset + delta + 1 for record in damaged]
                # A damaged queue unit may lead to a record with the offset of another queue.
                end = min(max(ends, default=offset), header.next_begin_offset)
                result = PullResult(status, end, header.min_offset, header.max_offset, messages)
                return result, _Fault(error, header.next_begin_offset)
        result = PullResult(status, header.next_begin_offset, header.min_offset, header.max_offset, messages)
        return result, None

    def _unwrapped(self, queue: MessageQueue, records: list[Record], header: AnswerFields) -> list[Record]:
        """Returns the records, with those that contain several messages unpacked. Offsets are those of the logical
        queue."""
        if any(record.sys_flag & _INNER for record in records):
            wrapped, records = records, []
            for record in wrapped:
                try:
                    records += unwrap(record) if is_inner_batch(record.sys_flag) else [record]
                except RecordError as error:
                    offset = record.queue_offset + (header.offset_delta or 0)
                    self._reader.skip(queue, queue.queue_id, offset, error)
        if header.offset_delta:
            for record in records:
                record.queue_offset += header.offset_delta
        return records

    def _messages(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        records: list[Record],
        header: AnswerFields,
    ) -> list[ReceivedMessage]:
        tags = {tag.encode() for tag in subscription.tags_set}
        if tags and not subscription.class_filter_mode:
            # The broker compares only hashes, so a tag with the same hash can get this far.
            records = [record for record in records if record.find(b"TAGS") in tags]
        low, high = header.min_offset, header.max_offset
        messages = [ReceivedMessage(record, queue, low, high) for record in records]
        namespace = self._options.namespace
        if namespace:
            for message in messages:
                message.rename(unwrap_namespace(message.topic, namespace))
        return messages

    def forget(self, queue: MessageQueue) -> None:
        self._suggested.pop(queue, None)
        self._asked.pop(queue, None)
        self._avoided.pop(queue, None)
