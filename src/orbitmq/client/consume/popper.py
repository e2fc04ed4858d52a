"""Single pops and acknowledgements: requests and their responses (Apache: the POP part of ``MQClientAPIImpl``).

A broker hides the messages it returns for a while. Each message comes with a receipt, which is used to acknowledge
the message or to hide it for longer. A message that is not acknowledged is redelivered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from orbitmq.client.consume.answers import AnswerReader
from orbitmq.client.errors import add_hint
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions
from orbitmq.codes import Property, ResponseCode
from orbitmq.errors import OrbitError, RemoteProtocolError, error_for_code
from orbitmq.model.names import RETRY_PREFIX, pop_retry_topic, unwrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SubscriptionData
from orbitmq.record.codec import Record
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
"""How much longer to wait for an answer than the broker may hold the request."""
_POP_CK: Final = Property.POP_CK.encode()


class PoppedMessage(ReceivedMessage):
    """A message that is redelivered unless it is acknowledged in time."""

    __slots__ = ("invisible_until_ms", "real_topic", "receipt")

    def __init__(self, record: Record, queue: MessageQueue, receipt: str, real_topic: str) -> None:
        super().__init__(record, queue)
        self.receipt = receipt
        self.real_topic = real_topic
        """The topic it is stored in: its own, or the group's pop retry topic."""
        fields = receipt.split(" ")
        self.invisible_until_ms = int(fields[1]) + int(fields[2])
        """When it is redelivered unless it is acknowledged, by the broker's clock."""

    @property
    def attempt(self) -> int:
        """The number of this delivery, starting with 1."""
        return self.reconsume_times + 1


class PopResult:
    """The result of a pop."""

    __slots__ = ("full", "messages")

    def __init__(self, messages: list[PoppedMessage], *, full: bool = False) -> None:
        self.messages = messages
        self.full = full
        """The broker already holds too many requests; an immediate retry is useless."""


class Popper:
    """Pops and acknowledges messages for one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        options: ConsumerOptions,
        clock: Clock,
        reader: AnswerReader,
    ) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self._clock = clock
        self._reader = reader

    async def pop(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        max_count: int,
        invisible_s: float,
        wait_s: float,
    ) -> PopResult:
        """Send one pop. Queue id -1 means any queue of the broker. Raises ``BrokerError`` if the broker refuses it,
        and connection errors."""
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
        messages, damaged = self._messages(queue, answer)
        for receipt in damaged:
            # If it were not acknowledged, it would be copied to the retry topic with a CRC that matches its damaged
            # body.
            await self._pass_over(queue, receipt)
        if subscription.tags_set:
            messages = await self._matching(messages, subscription)
        return PopResult(messages)

    async def _matching(
        self, messages: list[PoppedMessage], subscription: SubscriptionData
    ) -> list[PoppedMessage]:
        """Returns the messages whose tags match.

        The broker compares only hashes of tags. A message with another tag is acknowledged, because it is not for us
        and no other member will acknowledge it. Messages from the retry topic are not checked, because they were ours
        before.
        """
        tags = {tag.encode() for tag in subscription.tags_set}
        kept = []
        for message in messages:
            if message.real_topic != message.queue.topic or message.record.find(b"TAGS") in tags:
                kept.append(message)
                continue
            await self._pass_over(message.queue, message.receipt)
        return kept

    async def _pass_over(self, queue: MessageQueue, receipt: str) -> None:
        """Acknowledge a message that is not delivered. If that fails, it is redelivered after its invisible time."""
        try:
            await self._acknowledge(queue, receipt)
        except OrbitError as error:
            logger.debug("skipped message not acknowledged topic=%s error=%s", queue.topic, error)

    async def has_messages(
        self, queue: MessageQueue, subscription: SubscriptionData, *, wait_s: float
    ) -> bool:
        """Wait up to ``wait_s`` until a pop would return messages. Returns whether it would."""
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
        """Acknowledge the message. Raises ``BrokerError`` if the broker refuses, and connection errors. The broker
        accepts a late acknowledgement, but still redelivers the message."""
        await self._acknowledge(message.queue, message.receipt)

    async def _acknowledge(self, queue: MessageQueue, receipt: str) -> None:
        fields = receipt.split(" ")
        header = AckMessageRequest(
            consumer_group=self._group,
            topic=self._real_topic(queue, fields[4]),
            queue_id=int(fields[6]),
            extra_info=receipt,
            offset=int(fields[7]),
            broker_name=queue.broker_name,
        )
        address = await self._instance.address_for(queue.broker_name, queue.topic)
        await self._instance.ask(address, RequestCode.ACK_MESSAGE, header)

    def _real_topic(self, queue: MessageQueue, kind: str) -> str:
        """Returns the topic in which the broker stores messages of this kind."""
        if kind == "0":
            return queue.topic
        return pop_retry_topic(queue.topic, self._group, version_2=kind == "2")

    async def change_invisible(
        self, message: PoppedMessage, invisible_s: float, *, counted: bool = True
    ) -> None:
        """Hide the message for this time, counted from now, and replace its receipt. Raises like ``ack``. Unless
        ``counted`` is set, the next delivery does not count as another attempt (brokers from 5.5 on)."""
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

    def _messages(self, queue: MessageQueue, answer: Frame) -> tuple[list[PoppedMessage], list[str]]:
        """Returns the messages to deliver, and the receipts of the damaged ones."""
        header = decode_header(PopMessageResponse, answer)
        starts = _starts(header.start_offset_info or "")
        records, damaged, fault = self._reader.read(queue, answer.body)
        messages = []
        for record in records:
            kind, receipt = _receipt(record, queue, header, starts)
            message = PoppedMessage(record, queue, receipt, self._real_topic(queue, kind))
            message.rename(unwrap_namespace(queue.topic, self._options.namespace))
            messages.append(message)
        receipts = [_receipt(record, queue, header, starts)[1] for record in damaged]
        if fault is not None:
            # The broker redelivers everything after it in the answer when its invisible time is over.
            found = {_place(receipt) for receipt in (*(message.receipt for message in messages), *receipts)}
            lost = next(
                (place for place in _places(header.msg_offset_info or "") if place not in found), None
            )
            if lost is None:
                self._reader.skip(queue, queue.queue_id, -1, fault)
            else:
                self._reader.skip(queue, lost.queue_id, lost.offset, fault)
                receipts.append(_built_receipt(lost, queue, header, starts))
        return messages, receipts


class _Place(NamedTuple):
    """The location of a popped message."""

    kind: str
    queue_id: int
    offset: int


def _place(receipt: str) -> _Place:
    fields = receipt.split(" ")
    return _Place(fields[4], int(fields[6]), int(fields[7]))


def _places(text: str) -> Iterator[_Place]:
    """Yields the locations of a response's messages, in the order of the messages."""
    for entry in filter(None, text.split(";")):
        try:
            kind, queue_id, offsets = entry.split(" ")
            for offset in offsets.split(","):
                yield _Place(kind, int(queue_id), int(offset))
        except ValueError:
            raise RemoteProtocolError(f"msgOffsetInfo {text[:200]!r} cannot be read") from None


def _starts(text: str) -> dict[tuple[str, int], str]:
    """Returns the offset where the read of each queue began, by kind of topic and queue id."""
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
    """Returns the kind of topic and the receipt of a message. The receipt is the one sent by the broker, or is built
    from the response's fields."""
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
    return kind, _built_receipt(_Place(kind, record.queue_id, record.queue_offset), queue, header, starts)


def _built_receipt(
    place: _Place, queue: MessageQueue, header: PopMessageResponse, starts: dict[tuple[str, int], str]
) -> str:
    kind, queue_id, offset = place
    # An old broker that sends no start counts from the message's own offset.
    start = starts.get((kind, queue_id), str(offset))
    times = f"{header.pop_time} {header.invisible_time} {header.revive_qid}"
    return f"{start} {times} {kind} {queue.broker_name} {queue_id} {offset}"
