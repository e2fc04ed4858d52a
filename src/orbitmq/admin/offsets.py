"""Resets, skips and clones the offsets of consumer groups."""

from __future__ import annotations

from orbitmq.admin.base import Change, Changed, Result
from orbitmq.admin.errors import AdminError
from orbitmq.admin.groups import consume_stats
from orbitmq.admin.session import Admin, best_address
from orbitmq.admin.topics import topic_stats
from orbitmq.codes import ResponseCode, Version, version_name
from orbitmq.errors import ConsumerNotOnline, error_for_code
from orbitmq.model.route import BrokerData, MessageQueue, QueueData
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import ConsumeStats, ResetOffset
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    GetConsumerListByGroupRequest,
    GetConsumeStatsRequest,
    GetMaxOffsetRequest,
    OffsetResponse,
    ResetOffsetRequest,
    SearchOffsetByTimestampRequest,
    UpdateConsumerOffsetRequest,
)

__all__ = [
    "END",
    "QueueOffset",
    "ResetOffsets",
    "clone_group_offset",
    "max_offset",
    "offset_at",
    "reset_by_time",
    "reset_queue",
    "store_offset",
]

END = -1
"""In place of a time: the position after the newest message."""


class QueueOffset(Result, kw_only=True):
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsets(Result, kw_only=True):
    group: str
    topic: str
    timestamp: int
    queues: list[QueueOffset]


async def offset_at(admin: Admin, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """Returns the offset of the first message stored at that time or later."""
    header = SearchOffsetByTimestampRequest(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, broker_name=queue.broker_name
    )
    answer = await admin.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return decode_header(OffsetResponse, answer).offset


async def max_offset(admin: Admin, address: str, queue: MessageQueue) -> int:
    """Returns the offset that the next message will get."""
    header = GetMaxOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name or None
    )
    answer = await admin.ask(address, RequestCode.GET_MAX_OFFSET, header)
    return decode_header(OffsetResponse, answer).offset


async def store_offset(admin: Admin, address: str, group: str, queue: MessageQueue, offset: int) -> None:
    """Store a group's offset. Online members ignore it until they are reset (``reset_by_time``)."""
    header = UpdateConsumerOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        broker_name=queue.broker_name or None,
    )
    await admin.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def reset_by_time(
    admin: Admin, group: str, topic: str, timestamp_ms: int, *, force: bool = True, route_topic: str = ""
) -> ResetOffsets:
    """Reset a group to a time in every queue of a topic. Online members follow immediately.

    A 4.x broker refuses this for a group that is not online. Its offsets are then stored one by one.
    """
    route = await admin.route(route_topic or topic)
    queues = {data.broker_name: data for data in route.queue_datas}
    rows: list[QueueOffset] = []
    for data in route.broker_datas:
        address = best_address(data)
        if address is None:
            continue
        header = ResetOffsetRequest(
            topic=topic, group=group, timestamp=timestamp_ms, is_force=force, queue_id=-1, offset=-1
        )
        answer = await admin.call(
            address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout_s=admin.slow_s
        )
        if answer.code == ResponseCode.SUCCESS:
            rows += _rows(ResetOffset.decode(answer.body)) if answer.body else []
        elif answer.code == ConsumerNotOnline.code and data.broker_name in queues:
            rows += await _reset_offline(
                admin, data, queues[data.broker_name], (group, topic, timestamp_ms, force)
            )
        else:
            raise error_for_code(answer.code, answer.remark)
    rows.sort(key=lambda row: (row.broker_name, row.queue_id))
    return ResetOffsets(group=group, topic=topic, timestamp=timestamp_ms, queues=rows)


def _rows(body: ResetOffset) -> list[QueueOffset]:
    return [
        QueueOffset(broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset)
        for queue, offset in body.offset_table.items()
    ]


async def _reset_offline(
    admin: Admin, data: BrokerData, queues: QueueData, wanted: tuple[str, str, int, bool]
) -> list[QueueOffset]:
    group, topic, timestamp_ms, force = wanted
    address = best_address(data)
    assert address is not None, "checked by the caller"
    stats_header = GetConsumeStatsRequest(consumer_group=group)
    answer = await admin.ask(address, RequestCode.GET_CONSUME_STATS, stats_header, timeout_s=admin.slow_s)
    known = {
        queue: offset.consumer_offset
        for queue, offset in ConsumeStats.decode(answer.body).offset_table.items()
        if queue.topic == topic
    }
    if not known:
        stats = await topic_stats(admin, address, topic)
        known = {
            queue: offset.min_offset
            for queue, offset in stats.offset_table.items()
            if queue.queue_id < queues.read_queue_nums
        }
    rows = []
    for queue, consumed in known.items():
        if timestamp_ms == END:
            target = await max_offset(admin, address, queue)
        else:
            target = await offset_at(admin, address, queue, timestamp_ms)
        if force or target <= consumed:
            await store_offset(admin, address, group, queue, target)
        else:
            target = consumed
        rows.append(QueueOffset(broker_name=queue.broker_name, queue_id=queue.queue_id, offset=target))
    return rows


async def reset_queue(
    admin: Admin,
    group: str,
    queue: MessageQueue,
    *,
    broker: str,
    timestamp_ms: int,
    offset: int | None = None,
) -> ResetOffsets:
    """Reset a group to a time or an offset in one queue.

    Brokers before 5.2 reset online members to a time in every queue, so a single queue of such a broker can only be
    moved while no member is online.
    """
    address = await admin.address(broker)
    members = await admin.call(
        address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequest(consumer_group=group)
    )
    moves_queues = members.version >= Version.V5_2_0
    if members.code == ResponseCode.SUCCESS and not moves_queues:
        raise AdminError(
            f"members of {group} are online, and {version_name(members.version)} of {broker} cannot move them in one"
            " queue: stop them first, or reset all queues by time"
        )
    if offset is not None:
        target = offset
    elif timestamp_ms == END:
        target = await max_offset(admin, address, queue)
    else:
        target = await offset_at(admin, address, queue, timestamp_ms)
    await store_offset(admin, address, group, queue, target)
    if moves_queues:
        header = ResetOffsetRequest(
            topic=queue.topic, group=group, timestamp=0, is_force=True, queue_id=queue.queue_id, offset=target
        )
        answer = await admin.call(
            address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout_s=admin.slow_s
        )
        if answer.code not in (ResponseCode.SUCCESS, ConsumerNotOnline.code):
            raise error_for_code(answer.code, answer.remark)
    row = QueueOffset(broker_name=queue.broker_name or broker, queue_id=queue.queue_id, offset=target)
    return ResetOffsets(group=group, topic=queue.topic, timestamp=timestamp_ms, queues=[row])


async def clone_group_offset(admin: Admin, source: str, target: str, topic: str) -> Changed:
    """Give ``target`` the offsets that ``source`` has in a topic. Apache's tool also copies those of other topics."""
    stats = await consume_stats(admin, source, topic)
    addresses = dict(await admin.addresses_of_topic(topic))
    done = []
    for queue, offset in sorted(stats.offset_table.items(), key=lambda item: item[0].sort_key):
        address = addresses.get(queue.broker_name)
        if queue.topic != topic or address is None or offset.consumer_offset < 0:
            continue
        await store_offset(admin, address, target, queue, offset.consumer_offset)
        done.append(
            Change(
                target=address,
                action=f"offset of {target} in queue {queue.queue_id} of {topic} stored",
                detail=f"offset={offset.consumer_offset}",
            )
        )
    if not done:
        raise AdminError(f"group {source} has no offsets in topic {topic}")
    return Changed(changes=done)
