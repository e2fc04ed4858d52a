"""Sends messages for the tools, singly or in series that measure response times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from orbitmq.admin.base import Result
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.session import Admin
from orbitmq.errors import OrbitError
from orbitmq.model.route import MessageQueue

if TYPE_CHECKING:
    from orbitmq.client.message import Message, SendResult
    from orbitmq.client.produce.producer import Producer

__all__ = [
    "BrokerRt",
    "ClusterRt",
    "SendRow",
    "SendRows",
    "SentMessage",
    "cluster_rt",
    "open_producer",
    "resend",
    "send",
    "send_message",
    "send_rt",
    "send_status",
]


class SentMessage(Result, kw_only=True):
    broker_name: str
    queue_id: int
    send_status: str
    message_id: str
    offset_msg_id: str
    queue_offset: int


class SendRow(Result, kw_only=True):
    broker_name: str
    queue_id: int
    success: bool
    send_status: str
    message_id: str
    offset_msg_id: str
    queue_offset: int
    rt_ms: float
    error: str = ""


class SendRows(Result, kw_only=True):
    sends: list[SendRow]
    average_rt_ms: float
    """Average of all sends except the first, which also opens the connection."""


class BrokerRt(Result, kw_only=True):
    cluster: str
    broker_name: str
    rt_ms: float
    success_count: int
    fail_count: int


class ClusterRt(Result, kw_only=True):
    timestamp: int
    brokers: list[BrokerRt]


@asynccontextmanager
async def open_producer(admin: Admin, group: str, *, trace: bool = False) -> AsyncIterator[Producer]:
    """Yields a producer with the connection settings of ``admin`` and closes it when the block ends."""
    from orbitmq.client.produce.producer import Producer  # only commands that send pay for the client

    producer = Producer(
        group,
        ";".join(admin.required_name_servers()),
        clock=admin.clock,
        credentials=admin.options.credentials,
        tls=admin.options.tls,
        connect_timeout_s=admin.options.connect_timeout_s,
        call_timeout_s=admin.options.timeout_s,
        send_timeout_s=admin.options.timeout_s,
        trace=trace,
    )
    async with producer:
        yield producer


def _status(result: SendResult) -> str:
    return "SEND_OK" if result.status.name == "OK" else result.status.name


def _sent(result: SendResult) -> SentMessage:
    return SentMessage(
        broker_name=result.queue.broker_name,
        queue_id=result.queue.queue_id,
        send_status=_status(result),
        message_id=result.message_id,
        offset_msg_id=result.offset_message_id,
        queue_offset=result.queue_offset,
    )


async def send(admin: Admin, message: Message, *, queue: MessageQueue | None = None) -> SentMessage:
    """Send one message, to ``queue`` if it is given."""
    async with open_producer(admin, "orbitmq-admin-send") as producer:
        return _sent(await producer.send(message, queue=queue))


async def send_message(
    admin: Admin,
    topic: str,
    body: bytes,
    *,
    keys: str = "",
    tags: str = "",
    queue: MessageQueue | None = None,
    trace: bool = False,
) -> SentMessage:
    """Send one message with the given body, to a queue if one is given."""
    from orbitmq.client.message import Message

    async with open_producer(admin, "orbitmq-admin-send", trace=trace) as producer:
        return _sent(await producer.send(Message(topic, body, tags=tags, keys=keys), queue=queue))


async def resend(admin: Admin, topic: str, body: bytes, *, keys: str, tags: str) -> SentMessage:
    """Send a stored message again, as a new message."""
    return await send_message(admin, topic, body, keys=keys, tags=tags)


async def _timed(admin: Admin, producer: Producer, message: Message, queue: MessageQueue | None) -> SendRow:
    begin = admin.clock.monotonic()
    try:
        result = await producer.send(message, queue=queue)
    except OrbitError as error:
        return SendRow(
            broker_name="" if queue is None else queue.broker_name,
            queue_id=-1 if queue is None else queue.queue_id,
            success=False,
            send_status="",
            message_id="",
            offset_msg_id="",
            queue_offset=-1,
            rt_ms=(admin.clock.monotonic() - begin) * 1000,
            error=str(error),
        )
    return SendRow(
        broker_name=result.queue.broker_name,
        queue_id=result.queue.queue_id,
        success=True,
        send_status=_status(result),
        message_id=result.message_id,
        offset_msg_id=result.offset_message_id,
        queue_offset=result.queue_offset,
        rt_ms=(admin.clock.monotonic() - begin) * 1000,
    )


def _summed(rows: list[SendRow]) -> SendRows:
    later = rows[1:]
    return SendRows(sends=rows, average_rt_ms=sum(row.rt_ms for row in later) / len(later) if later else 0.0)


async def send_rt(admin: Admin, topic: str, *, amount: int = 100, size: int = 128) -> SendRows:
    """Send to the queues of a topic in turn. Returns how long each send took."""
    from orbitmq.client.message import Message

    rows = []
    async with open_producer(admin, "orbitmq-admin-rt") as producer:
        queues = await producer.queues(topic)
        for number in range(amount):
            admin.progress("messages", number, amount)
            queue = queues[number % len(queues)]
            rows.append(await _timed(admin, producer, Message(topic, b"a" * size), queue))
        admin.progress("messages", amount, amount)
    return _summed(rows)


async def send_status(admin: Admin, broker_name: str, *, count: int = 50, size: int = 128) -> SendRows:
    """Send to the topic that every broker has under its own name. Returns how long each send took."""
    from orbitmq.client.message import Message

    rows = []
    async with open_producer(admin, "orbitmq-admin-status") as producer:
        await producer.send(Message(broker_name, b"a" * 16))  # opens the connection, and fails early
        for number in range(count):
            admin.progress("messages", number, count)
            rows.append(await _timed(admin, producer, Message(broker_name, b"a" * size), None))
        admin.progress("messages", count, count)
    return _summed(rows)


async def cluster_rt(
    admin: Admin, *, cluster: str | None = None, amount: int = 100, size: int = 128
) -> ClusterRt:
    """Returns the average duration of a send to each broker of a cluster, or of all clusters."""
    from orbitmq.client.message import Message

    info = await admin.cluster_info()
    if cluster is not None and cluster not in info.cluster_addr_table:
        raise UnknownNameError("cluster", cluster, info.cluster_addr_table)
    names = [
        (name, broker)
        for name, brokers in info.cluster_addr_table.items()
        if cluster in (None, name)
        for broker in sorted(brokers)
    ]
    found = []
    async with open_producer(admin, "orbitmq-admin-cluster-rt") as producer:
        for number, (name, broker) in enumerate(names):
            rows = []
            for sent in range(amount):
                admin.progress("messages", number * amount + sent, len(names) * amount)
                rows.append(await _timed(admin, producer, Message(broker, b"a" * size), None))
            ok = sum(row.success for row in rows)
            found.append(
                BrokerRt(
                    cluster=name,
                    broker_name=broker,
                    rt_ms=_summed(rows).average_rt_ms,
                    success_count=ok,
                    fail_count=amount - ok,
                )
            )
    return ClusterRt(timestamp=admin.clock.now_ms(), brokers=found)
