"""AckMessage, ChangeInvisibleDuration and dead letters (Apache: AckMessageActivity,
ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity, ConsumerProcessor)."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from typing import Final

import msgspec

from orbitmq.codes import ResponseCode
from orbitmq.errors import OrbitError, error_for_code
from orbitmq.proxy.brokers import Brokers
from orbitmq.proxy.checks import check_group, check_invisible_ms, check_topic
from orbitmq.proxy.clients import Client, Clients
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.handles import Handle, HandleSeal
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.renewal import Renewal
from orbitmq.proxy.statuses import OK, Refused, common_status, refused_by, status_of_code
from orbitmq.record.codec import decode_record
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    ChangeMessageInvisibletimeResponse,
    ConsumerSendMsgBackRequest,
    Empty,
    ViewMessageByIdRequest,
)

__all__ = ["Acking"]

_ENTRIES_MAX: Final = 2048
"""Limit of the entries per call. The largest receive returns 32 messages."""
_AT_ONCE: Final = 32
"""How many entries of one call are processed concurrently."""
_ANSWERED_AT_ONCE: Final = 512
_DEAD: Final = -1


class Acking:
    """Acknowledges, hides and dead-letters messages."""

    def __init__(
        self,
        config: ProxyConfig,
        brokers: Brokers,
        clients: Clients,
        seal: HandleSeal,
        *,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._clock = clock
        self.seal = seal
        self.renewal = Renewal(
            config,
            clients,
            self.change_quietly,
            clock=clock,
            tasks=tasks,
            retry_delay_ms=self._retry_delay_ms,
        )
        self.acknowledged = 0

    async def _retry_delay_ms(self, group: str, attempts: int) -> int:
        config = await self._brokers.group(group)
        return 10_000 if config is None else config.group_retry_policy.delay_ms(attempts - 1)

    # -- single messages -------------------------------------------------------------------------------

    def check_alive(self, handle: Handle) -> None:
        """Raise ``Refused`` if the handle has expired or its broker is unknown."""
        if handle.visible_ms <= self._clock.now_ms():
            raise Refused(pb.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        if not self._brokers.knows(handle.broker_name):
            raise Refused(pb.INVALID_RECEIPT_HANDLE, f"broker {handle.broker_name} is not known")

    async def ack_one(self, group: str, topic: str, handle: Handle) -> pb.Status:
        """Acknowledge a message. Returns the broker's result. Raises ``OrbitError``."""
        header = AckMessageRequest(
            consumer_group=group,
            topic=handle.real_topic(topic, group),
            queue_id=handle.queue_id,
            extra_info=handle.extra_info,
            offset=handle.queue_offset,
            broker_name=handle.broker_name,
        )
        address = self._brokers.address(handle.broker_name)
        answer = await self._brokers.call(address, RequestCode.ACK_MESSAGE, header)
        if answer.code == ResponseCode.SUCCESS:
            self.acknowledged += 1
            return OK
        if answer.code == ResponseCode.NO_MESSAGE:
            return Refused(pb.INVALID_RECEIPT_HANDLE, answer.remark or "no such message").status
        return status_of_code(answer.code, answer.remark)

    async def change_one(
        self, group: str, topic: str, handle: Handle, invisible_ms: int, *, suspend: bool | None = None
    ) -> Handle:
        """Hide a message for ``invisible_ms`` from now. Returns the new handle. Raises ``Refused`` or
        ``OrbitError``.
        """
        header = ChangeMessageInvisibletimeRequest(
            consumer_group=group,
            topic=handle.real_topic(topic, group),
            queue_id=handle.queue_id,
            extra_info=handle.extra_info,
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
            broker_name=handle.broker_name,
            suspend=suspend,
        )
        address = self._brokers.address(handle.broker_name)
        answer = await self._brokers.call(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        if answer.code == ResponseCode.NO_MESSAGE:
            raise Refused(pb.INVALID_RECEIPT_HANDLE, answer.remark or "no such message")
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        changed = decode_header(ChangeMessageInvisibletimeResponse, answer)
        return handle.changed(changed.pop_time, changed.invisible_time, changed.revive_qid)

    async def change_quietly(self, group: str, topic: str, handle: Handle, invisible_ms: int) -> Handle:
        """Like ``change_one``, in the form that ``Renewal`` calls. Renewals and releases do not count as
        deliveries.
        """
        return await self.change_one(group, topic, handle, invisible_ms)

    async def bury(self, group: str, topic: str, handle: Handle, message_id: str) -> pb.Status:
        """Dead-letter a message and acknowledge it. Returns the result. Raises ``Refused`` or ``OrbitError``."""
        if handle.log_offset is None:
            raise Refused(pb.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        header = ConsumerSendMsgBackRequest(
            offset=handle.log_offset,
            group=group,
            delay_level=_DEAD,
            origin_msg_id=message_id,
            origin_topic=handle.real_topic(topic, group),
            max_reconsume_times=0,
            broker_name=handle.broker_name,
        )
        address = self._brokers.address(handle.broker_name)
        answer = await self._brokers.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        if answer.code != ResponseCode.SUCCESS:
            return status_of_code(answer.code, answer.remark)
        await self.ack_one(group, topic, handle)
        return pb.Status(code=pb.OK, message=str(int(answer.code)))

    # -- client calls ----------------------------------------------------------------------------------

    async def ack(self, request: pb.AckMessageRequest, client: Client | None) -> pb.AckMessageResponse:
        group = check_group(request.group.name)
        topic = check_topic(request.topic.name)
        entries = request.entries
        if not entries:
            raise Refused(pb.INTERNAL_SERVER_ERROR, "ack message result is empty")
        if len(entries) > _ENTRIES_MAX:
            raise Refused(pb.BAD_REQUEST, f"more than {_ENTRIES_MAX} entries")
        if self._config.batch_ack and len(entries) > 1:
            statuses = await self._ack_in_batches(group, topic, list(entries), client)
        elif len(entries) == 1:
            statuses = [await self._ack_entry(group, topic, entries[0], client)]
        else:
            statuses = []
            for start in range(0, len(entries), _AT_ONCE):
                part = entries[start : start + _AT_ONCE]
                statuses += await asyncio.gather(
                    *(self._ack_entry(group, topic, entry, client) for entry in part)
                )
        response = pb.AckMessageResponse(status=common_status(statuses))
        for index, (entry, result) in enumerate(zip(entries, statuses, strict=True), 1):
            response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=result
            )
            if not index % _ANSWERED_AT_ONCE:
                await asyncio.sleep(0)
        return response

    async def _current(
        self, client: Client | None, message_id: str, text: str, group: str, topic: str
    ) -> tuple[Handle, bool]:
        """Returns the valid handle, which is the client's own or its renewal, and whether a proxy is known to have
        issued it.

        Stops renewing the message. Raises ``Refused``.
        """
        renewed = await self.renewal.release(client, message_id, text, group, topic)
        return self.seal.open(text, group, topic) if renewed is None else (renewed, True)

    async def _ack_entry(
        self, group: str, topic: str, entry: pb.AckMessageEntry, client: Client | None
    ) -> pb.Status:
        try:
            handle, _ = await self._current(client, entry.message_id, entry.receipt_handle, group, topic)
            self.check_alive(handle)
            return await self.ack_one(group, topic, handle)
        except Refused as refused:
            return refused.status
        except OrbitError as error:
            return refused_by(error).status

    async def _ack_in_batches(
        self, group: str, topic: str, entries: list[pb.AckMessageEntry], client: Client | None
    ) -> list[pb.Status]:
        """Acknowledge messages with one request per broker (``enableBatchAck``). Returns a status for each entry."""
        statuses: list[pb.Status] = [OK] * len(entries)
        by_broker: dict[str, list[tuple[int, Handle]]] = defaultdict(list)
        for index, entry in enumerate(entries):
            if not index % _AT_ONCE:
                await asyncio.sleep(0)
            try:
                handle, _ = await self._current(client, entry.message_id, entry.receipt_handle, group, topic)
                self.check_alive(handle)
                by_broker[handle.broker_name].append((index, handle))
            except Refused as refused:
                statuses[index] = refused.status
        for broker_name, handles in by_broker.items():
            try:
                body = _batch_body(broker_name, group, topic, [handle for _, handle in handles])
                await self._brokers.ask(
                    self._brokers.address(broker_name),
                    RequestCode.BATCH_ACK_MESSAGE,
                    Empty(),
                    body,
                )
                self.acknowledged += len(handles)
            except OrbitError as error:
                for index, _ in handles:
                    statuses[index] = refused_by(error).status
        return statuses

    async def change(
        self, request: pb.ChangeInvisibleDurationRequest, client: Client | None
    ) -> pb.ChangeInvisibleDurationResponse:
        group = check_group(request.group.name)
        topic = check_topic(request.topic.name)
        duration = request.invisible_duration
        invisible_ms = check_invisible_ms(
            duration.seconds * 1000 + duration.nanos // 1_000_000, 0, self._config.invisible_max_ms
        )
        handle, _ = await self._current(client, request.message_id, request.receipt_handle, group, topic)
        self.check_alive(handle)
        suspend = request.suspend if request.HasField("suspend") else None
        changed = await self.change_one(group, topic, handle, invisible_ms, suspend=suspend)
        text = self.seal.text(changed, group, topic)
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=text)

    async def forward(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, client: Client | None
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        group = check_group(request.group.name)
        topic = check_topic(request.topic.name)
        handle, is_ours = await self._current(
            client, request.message_id, request.receipt_handle, group, topic
        )
        if handle.log_offset is not None and not self._brokers.knows(handle.broker_name):
            raise Refused(pb.INVALID_RECEIPT_HANDLE, f"broker {handle.broker_name} is not known")
        if not is_ours:
            await self._check_record(group, topic, handle)
        result = await self.bury(group, topic, handle, request.message_id)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=result)

    async def _check_record(self, group: str, topic: str, handle: Handle) -> None:
        """Check that the record at the handle's log offset is the message that the handle names.

        A client may have written the handle itself. Raises ``Refused`` or ``OrbitError``.
        """
        if handle.log_offset is None:
            return  # ``bury`` refuses it
        header = ViewMessageByIdRequest(offset=handle.log_offset)
        address = self._brokers.address(handle.broker_name)
        answer = await self._brokers.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        record = decode_record(answer.body)
        named = (handle.real_topic(topic, group), handle.queue_id, handle.queue_offset)
        if (record.topic, record.queue_id, record.queue_offset) != named:
            raise Refused(pb.INVALID_RECEIPT_HANDLE, "the receipt handle names another message")


def _batch_body(broker_name: str, group: str, topic: str, handles: list[Handle]) -> bytes:
    """Returns a BATCH_ACK_MESSAGE body.

    It has one entry per pop and queue, with the offsets as a bitmap relative to the pop's start offset.
    """
    bits: dict[tuple[str, int, int, int, int, int], int] = defaultdict(int)
    for handle in handles:
        key = (
            handle.retry,
            handle.start_offset,
            handle.queue_id,
            handle.revive_queue_id,
            handle.pop_time_ms,
            handle.invisible_ms,
        )
        bits[key] |= 1 << max(0, min(handle.queue_offset - handle.start_offset, 65_535))
    acks = [
        {
            "c": group,
            "t": topic,
            "r": retry,
            "so": start,
            "q": queue_id,
            "rq": revive,
            "pt": pop_time,
            "it": invisible,
            "b": base64.b64encode(found.to_bytes((found.bit_length() + 7) // 8, "little")).decode(),
        }
        for (retry, start, queue_id, revive, pop_time, invisible), found in bits.items()
    ]
    return msgspec.json.encode({"brokerName": broker_name, "acks": acks})
