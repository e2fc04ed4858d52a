"""One pop, one acknowledgement: the requests and their answers (Apache: ``MQClientAPIImpl``, the part of POP).

A broker hides what it hands out for a while. Each message comes with a receipt; with it the message is acknowledged,
or hidden for another time. A message that was not acknowledged is redelivered.
"""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.client.errors import add_hint
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions
from orbitmq.codes import Property, ResponseCode
from orbitmq.errors import OrbitError, RemoteProtocolError, error_for_code
from orbitmq.model.names import RETRY_PREFIX, pop_retry_topic, unwrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SubscriptionData
from orbitmq.record.codec import Record, decode_records
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.wire.bodies import ConsumeFromWhere
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    ChangeMessageInvisibletimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)

__all__ = ["ALL_QUEUES", "PopResult", "PoppedMessage", "Popper"]

logger = logging.getLogger(__name__)

ALL_QUEUES: Final = -1
_NOTHING: Final = frozenset(
    {ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL}
)
_ANSWER_S: Final = 10.0
"""How much longer than the broker may hold it a request is waited for."""
_POP_CK: Final = Property.POP_CK.encode()


class PoppedMessage(ReceivedMessage):
    """A message that has to be acknowledged, or comes again when its time is over."""

    __slots__ = ("invisible_until_ms", "real_topic", "receipt")

    def __init__(self, record: Record, queue: MessageQueue, receipt: str, real_topic: str) -> None:
        super().__init__(record, queue)
        self.receipt = receipt
        self.real_topic = real_topic
        """The topic it lies in at the broker: its own, or the group's pop retry topic."""
        fields = receipt.split(" ")
        self.invisible_until_ms = int(fields[1]) + int(fields[2])
        """When it comes again unless it is acknowledged, by the broker's clock."""

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.reconsume_times + 1


class PopResult:
    """What a pop brought."""

    __slots__ = ("full", "messages")

    def __init__(self, messages: list[PoppedMessage], *, full: bool = False) -> None:
        self.messages = messages
        self.full = full
        """The broker holds too many requests already; asking again at once is useless."""


class Popper:
    """Pops and acknowledges for one consumer."""

    def __init__(self, instance: ClientInstance, group: str, options: ConsumerOptions, clock: Clock) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self._clock = clock

    async def pop(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        max_count: int,
        invisible_s: float,
        wait_s: float,
    ) -> PopResult:
        """Ask once; queue id -1 is any queue of the broker. Raises the ``BrokerError`` of a refusal, and connection
        errors."""
        from_newest = self._options.from_where is not ConsumeFromWhere.FIRST_OFFSET
        header = PopMessageRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=max_count,
            invisible_time=int(invisible_s * 1000),
            poll_time=int(wait_s * 1000),
            born_time=self._clock.now_ms(),
            init_mode=int(from_newest),
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=False,
            broker_name=queue.broker_name,
        )
        answer = await self._ask(queue, RequestCode.POP_MESSAGE, header, wait_s)
        if answer.code in _NOTHING:
            return PopResult([], full=answer.code == ResponseCode.POLLING_FULL)
        if answer.code != ResponseCode.SUCCESS:
            raise add_hint(error_for_code(answer.code, answer.remark))
        messages = self._messages(queue, answer)
        if subscription.tags_set:
            messages = await self._matching(messages, subscription)
        return PopResult(messages)

    async def _matching(
        self, messages: list[PoppedMessage], subscription: SubscriptionData
    ) -> list[PoppedMessage]:
        """The broker compares hashes of tags only. A message of another tag is not for us, and nobody else will
        acknowledge it; one from the retry topic was ours before."""
        tags = {tag.encode() for tag in subscription.tags_set}
        kept = []
        for message in messages:
            if message.real_topic != message.queue.topic or message.record.find(b"TAGS") in tags:
                kept.append(message)
                continue
            try:
                await self.ack(message)
            except OrbitError as error:
                # It comes again when its time is over.
                logger.debug(
                    "message of another tag not acknowledged topic=%s error=%s", message.queue.topic, error
                )
        return kept

    async def has_messages(
        self, queue: MessageQueue, subscription: SubscriptionData, *, wait_s: float
    ) -> bool:
        """Wait until a pop would bring something, at most ``wait_s``."""
        header = NotificationRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            poll_time=int(wait_s * 1000),
            born_time=self._clock.now_ms(),
            order=False,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            broker_name=queue.broker_name,
        )
        answer = await self._ask(queue, RequestCode.NOTIFICATION, header, wait_s)
        if answer.code != ResponseCode.SUCCESS:
            raise add_hint(error_for_code(answer.code, answer.remark))
        return decode_header(NotificationResponse, answer).has_msg

    async def _ask(
        self, queue: MessageQueue, code: int, header: PopMessageRequest | NotificationRequest, wait_s: float
    ) -> Frame:
        address = await self._instance.address_for(queue.broker_name, queue.topic)
        return await self._instance.call(address, code, header, timeout_s=wait_s + _ANSWER_S)

    async def ack(self, message: PoppedMessage) -> None:
        """The message is done with. Raises the ``BrokerError`` of a refusal, and connection errors. One whose time
        was over is accepted, and comes again all the same."""
        header = AckMessageRequest(
            consumer_group=self._group,
            topic=message.real_topic,
            queue_id=message.record.queue_id,
            extra_info=message.receipt,
            offset=message.record.queue_offset,
            broker_name=message.queue.broker_name,
        )
        await self._instance.ask(await self._address(message), RequestCode.ACK_MESSAGE, header)

    async def change_invisible(
        self, message: PoppedMessage, invisible_s: float, *, counted: bool = True
    ) -> None:
        """Hide the message for this time from now on; its receipt is replaced. Raises as ``ack`` does. Unless it is
        ``counted`` the next delivery is no attempt more (brokers of 5.5)."""
        header = ChangeMessageInvisibletimeRequest(
            consumer_group=self._group,
            topic=message.real_topic,
            queue_id=message.record.queue_id,
            extra_info=message.receipt,
            offset=message.record.queue_offset,
            invisible_time=int(invisible_s * 1000),
            suspend=None if counted else True,
            broker_name=message.queue.broker_name,
        )
        answer = await self._instance.ask(
            await self._address(message), RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header
        )
        changed = decode_header(ChangeMessageInvisibletimeResponse, answer)
        fields = message.receipt.split(" ")
        fields[:4] = [
            str(message.record.queue_offset),
            str(changed.pop_time),
            str(changed.invisible_time),
            str(changed.revive_qid),
        ]
        message.receipt = " ".join(fields)
        message.invisible_until_ms = changed.pop_time + changed.invisible_time

    async def _address(self, message: PoppedMessage) -> str:
        return await self._instance.address_for(message.queue.broker_name, message.queue.topic)

    def _messages(self, queue: MessageQueue, answer: Frame) -> list[PoppedMessage]:
        header = decode_header(PopMessageResponse, answer)
        starts = _starts(header.start_offset_info or "")
        messages = []
        for record in decode_records(answer.body, check_crc=False, decompress=True):
            kind, receipt = _receipt(record, queue, header, starts)
            real_topic = queue.topic
            if kind != "0":
                real_topic = pop_retry_topic(queue.topic, self._group, version_2=kind == "2")
            message = PoppedMessage(record, queue, receipt, real_topic)
            message.rename(unwrap_namespace(queue.topic, self._options.namespace))
            messages.append(message)
        return messages


def _starts(text: str) -> dict[tuple[str, int], str]:
    """Where the read of each queue began, by kind of topic and queue id."""
    starts = {}
    for entry in filter(None, text.split(";")):
        fields = entry.split(" ")
        if len(fields) != 3:
            raise RemoteProtocolError(f"startOffsetInfo {text[:200]!r} cannot be read")
        starts[fields[0], int(fields[1])] = fields[2]
    return starts


def _receipt(
    record: Record, queue: MessageQueue, header: PopMessageResponse, starts: dict[tuple[str, int], str]
) -> tuple[str, str]:
    """Kind of topic and receipt: the broker's own, or made of the answer's fields."""
    given = record.find(_POP_CK)
    if given is not None:
        receipt = given.decode("utf-8", "replace")
        fields = receipt.split(" ")
        if len(fields) < 8:
            raise RemoteProtocolError(f"receipt {receipt[:200]!r} cannot be read")
        return fields[4], receipt
    kind = "0"
    if record.topic != queue.topic and record.topic.startswith(RETRY_PREFIX):
        kind = "2" if "+" in record.topic else "1"
    # A broker of old that gives no start counts by the message's own offset.
    start = starts.get((kind, record.queue_id), str(record.queue_offset))
    times = f"{header.pop_time} {header.invisible_time} {header.revive_qid}"
    return kind, f"{start} {times} {kind} {queue.broker_name} {record.queue_id} {record.queue_offset}"
