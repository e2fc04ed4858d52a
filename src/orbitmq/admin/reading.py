"""Reads the units of consume queues, and the messages of queues without moving a consumer group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from orbitmq.admin.base import Result
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.messages import MessageView, opened_views
from orbitmq.admin.offsets import max_offset, offset_at
from orbitmq.admin.session import Admin, best_address
from orbitmq.codes import PullFlag, ResponseCode
from orbitmq.errors import NoMessage, error_for_code
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import subscribe_by_tags
from orbitmq.record.codec import decode_records
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import QueryConsumeQueueResponse
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    GetMinOffsetRequest,
    OffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueryConsumeQueueRequest,
)

__all__ = [
    "TOOLS_GROUP",
    "Pulled",
    "QueueData",
    "QueueSlice",
    "QueueUnit",
    "ReadPlan",
    "by_offset",
    "min_offset",
    "pull_once",
    "query_queue",
    "read_topic",
]

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""A group that every broker has by default."""
_BATCH: Final = 32
_PULL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit in bytes of the messages of one answer, if bodies are limited."""
_VIEW_BYTES: Final = 2048
"""Rough size of a message without its body, in bytes."""


class QueueUnit(Result, kw_only=True):
    index: int
    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None
    bit_map: str | None
    eval: bool
    msg: str | None


class QueueData(Result, kw_only=True):
    subscription: dict[str, object] | None
    filter_data: str | None
    min_queue_index: int
    max_queue_index: int
    units: list[QueueUnit]


class QueueSlice(Result, kw_only=True):
    """Consecutive messages of a queue; the first slice of a queue may be empty."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: list[MessageView]


async def query_queue(
    admin: Admin,
    topic: str,
    queue_id: int,
    index: int,
    *,
    count: int = 10,
    broker: str | None = None,
    group: str | None = None,
) -> QueueData:
    """Returns units of a consume queue, starting at ``index``.

    With a group, also returns which of them the group's filter selects.
    """
    if broker is not None:
        address = await admin.address(broker)
    else:
        found = await admin.addresses_of_topic(topic)
        if not found:
            raise UnknownNameError("topic", topic)
        address = found[0][1]
    header = QueryConsumeQueueRequest(
        topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
    )
    answer = await admin.ask(address, RequestCode.QUERY_CONSUME_QUEUE, header)
    body = QueryConsumeQueueResponse.decode(answer.body)
    units = [
        QueueUnit(
            index=number,
            physic_offset=unit.physic_offset,
            physic_size=unit.physic_size,
            tags_code=unit.tags_code,
            extend_data_json=unit.extend_data_json,
            bit_map=unit.bit_map,
            eval=unit.eval,
            msg=unit.msg,
        )
        for number, unit in enumerate(body.queue_data or (), index)
    ]
    subscription = body.subscription_data
    return QueueData(
        subscription=None if subscription is None else msgspec.to_builtins(subscription),
        filter_data=body.filter_data,
        min_queue_index=body.min_queue_index,
        max_queue_index=body.max_queue_index,
        units=units,
    )


async def _address_of(admin: Admin, queue: MessageQueue, route_topic: str = "") -> str:
    route = await admin.route(route_topic or queue.topic)
    data = route.broker(queue.broker_name)
    address = None if data is None else best_address(data)
    if address is None:
        raise UnknownNameError("broker", queue.broker_name, [d.broker_name for d in route.broker_datas])
    return address


async def by_offset(
    admin: Admin, queue: MessageQueue, offset: int, *, route_topic: str = "", read_bytes: int | None = None
) -> MessageView:
    """Returns the message at an offset of a queue. Raises ``NoMessage``."""
    address = await _address_of(admin, queue, route_topic)
    plan = ReadPlan(topic=queue.topic, read_bytes=read_bytes)
    frame, header = await _pull(admin, address, queue, offset, 1, plan)
    messages, _ = _pulled(frame, queue, header, plan)
    for message in messages:
        if message.queue_offset == offset:
            return message
    raise NoMessage(
        f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name} has no message at offset {offset}; "
        f"it holds {header.min_offset} to {header.max_offset}"
    )


async def min_offset(admin: Admin, address: str, queue: MessageQueue) -> int:
    """Returns the oldest offset that a queue still has."""
    header = GetMinOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name or None
    )
    answer = await admin.ask(address, RequestCode.GET_MIN_OFFSET, header)
    return decode_header(OffsetResponse, answer).offset


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the messages of a topic to read."""

    topic: str
    broker_name: str | None = None
    queue_id: int | None = None
    expression: str = "*"
    expression_type: str = "TAG"
    """``TAG``, or ``SQL92`` if property filters are enabled on the broker."""
    begin_ms: int | None = None
    """Store time of the first message to read; None means from the oldest message."""
    end_ms: int | None = None
    """Store time at which reading stops; None means the newest message when the queue is opened."""
    start_offset: int = 0
    count_max: int | None = None
    group: str = TOOLS_GROUP
    route_topic: str = ""
    read_bytes: int | None = None
    """Bytes of each body to inflate; None means all of it."""


async def read_topic(admin: Admin, plan: ReadPlan) -> AsyncIterator[QueueSlice]:
    """Yields the messages of a topic, queue by queue.

    Every queue begins with an empty slice. No offset is stored, so the group does not move.
    """
    route = await admin.route(plan.route_topic or plan.topic)
    queues = [
        queue
        for queue in route.subscribe_queues(plan.topic)
        if plan.broker_name in (None, queue.broker_name) and plan.queue_id in (None, queue.queue_id)
    ]
    if not queues:
        names = {data.broker_name for data in route.broker_datas}
        if plan.broker_name not in (None, *names):
            raise UnknownNameError("broker", plan.broker_name or "", names)
        raise UnknownNameError("queue", f"{plan.queue_id} of {plan.topic}")
    left = plan.count_max
    for number, queue in enumerate(queues):
        admin.progress("queues", number, len(queues))
        async for part in _read_queue(admin, queue, plan, left):
            yield part
            left = None if left is None else left - len(part.messages)
        if left is not None and left <= 0:
            break
    admin.progress("queues", len(queues), len(queues))


async def _read_queue(
    admin: Admin, queue: MessageQueue, plan: ReadPlan, left: int | None
) -> AsyncIterator[QueueSlice]:
    address = await _address_of(admin, queue, plan.route_topic)
    if plan.begin_ms is None:
        low = await min_offset(admin, address, queue)
    else:
        low = await offset_at(admin, address, queue, plan.begin_ms)
    if plan.end_ms is None:
        high = await max_offset(admin, address, queue)
    else:
        high = await offset_at(admin, address, queue, plan.end_ms)
    yield _slice(queue, low, high, [])
    by_tags = plan.expression_type == "TAG"
    wanted = subscribe_by_tags(queue.topic, plan.expression if by_tags else "*")
    offset = max(low, plan.start_offset)
    while offset < high and (left is None or left > 0):
        count = min(_BATCH, high - offset, _BATCH if left is None else left)
        frame, header = await _pull(admin, address, queue, offset, count, plan)
        pulled, following = _pulled(frame, queue, header, plan)
        messages = [
            message
            for message in pulled
            if offset <= message.queue_offset < high and wanted.matches_tag(message.tags)
        ]
        if messages:
            yield _slice(queue, low, high, messages)
        left = None if left is None else left - len(messages)
        if following <= offset:
            break  # the broker makes no progress
        offset = following


def _slice(queue: MessageQueue, low: int, high: int, messages: list[MessageView]) -> QueueSlice:
    return QueueSlice(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        min_offset=low,
        max_offset=high,
        messages=messages,
    )


_PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


async def _pull(
    admin: Admin,
    address: str,
    queue: MessageQueue,
    offset: int,
    count: int,
    plan: ReadPlan,
    suspend_s: float = 0.0,
) -> tuple[Frame, PullMessageResponse]:
    flags = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if suspend_s else PullFlag(0))
    header = PullMessageRequest(
        consumer_group=plan.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=int(flags),
        commit_offset=0,
        suspend_timeout_millis=int(suspend_s * 1000),
        sub_version=admin.clock.now_ms(),
        subscription=plan.expression,
        expression_type=plan.expression_type,
        broker_name=queue.broker_name,
    )
    frame = await admin.call(address, RequestCode.PULL_MESSAGE, header, timeout_s=admin.slow_s + suspend_s)
    if frame.code not in _PULL_CODES:
        raise error_for_code(frame.code, frame.remark)
    return frame, decode_header(PullMessageResponse, frame)


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pull."""

    messages: list[MessageView]
    next_offset: int
    min_offset: int
    max_offset: int


async def pull_once(
    admin: Admin,
    address: str,
    queue: MessageQueue,
    offset: int,
    *,
    count: int,
    plan: ReadPlan,
    suspend_s: float = 0.0,
) -> Pulled:
    """Pull once without storing an offset. The broker waits up to ``suspend_s`` for a new message."""
    frame, header = await _pull(admin, address, queue, offset, count, plan, suspend_s)
    messages, following = _pulled(frame, queue, header, plan)
    if plan.expression_type == "TAG":
        wanted = subscribe_by_tags(queue.topic, plan.expression)
        messages = [message for message in messages if wanted.matches_tag(message.tags)]
    return Pulled(
        messages=messages,
        next_offset=following,
        min_offset=header.min_offset,
        max_offset=header.max_offset,
    )


def _pulled(
    frame: Frame, queue: MessageQueue, header: PullMessageResponse, plan: ReadPlan
) -> tuple[list[MessageView], int]:
    """Returns the messages of an answer and the offset at which to continue.

    If bodies are limited, so is their sum over an answer. The next pull reads the rest.
    """
    if frame.code != ResponseCode.SUCCESS:
        return [], header.next_begin_offset
    bounds = {"MIN_OFFSET": str(header.min_offset), "MAX_OFFSET": str(header.max_offset)}
    views: list[MessageView] = []
    read = 0
    for record in decode_records(frame.body, check_crc=False):
        if plan.read_bytes is not None and read >= _PULL_BYTES_MAX:
            return views, record.queue_offset
        for view in opened_views(record, queue.broker_name, plan.read_bytes):
            read += _VIEW_BYTES + len(view.body_base64)
            # The properties as consumers see them, including the queue's bounds.
            views.append(msgspec.structs.replace(view, properties=view.properties | bounds))
    return views, header.next_begin_offset
