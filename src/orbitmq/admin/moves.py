"""Plans how to move a group's offsets, queue by queue, before anything is changed."""

from __future__ import annotations

from typing import NamedTuple

from orbitmq.admin.census import gather_bounded
from orbitmq.admin.errors import AdminError, UnknownNameError
from orbitmq.admin.groups import consume_stats
from orbitmq.admin.offsets import max_offset, offset_at
from orbitmq.admin.reading import min_offset
from orbitmq.admin.session import Admin
from orbitmq.errors import OrbitError
from orbitmq.model.route import MessageQueue

__all__ = ["OffsetTarget", "QueueMove", "plan_moves"]


class OffsetTarget(NamedTuple):
    """The target of a move."""

    kind: str
    """One of ``first``, ``last``, ``time``, ``offset``, ``shift`` and ``group``."""
    offset: int = 0
    shift: int = 0
    time_ms: int = 0
    source: str = ""
    """The group whose offsets are copied. Queues in which it has none are not moved."""


class QueueMove(NamedTuple):
    """The planned move in one queue."""

    queue: MessageQueue
    address: str
    now: int
    then: int
    """The new offset, limited to the queue's range."""
    low: int
    high: int


async def plan_moves(
    admin: Admin, group: str, topic: str, target: OffsetTarget, *, queue_name: str = ""
) -> list[QueueMove]:
    """Returns the planned moves for all queues of a topic, or for the queue ``queue_name`` (``broker:queue``)."""
    route = await admin.route(topic)
    addresses = dict(await admin.addresses_of_topic(topic))
    queues = [
        queue
        for queue in route.subscribe_queues(topic)
        if queue_name in ("", f"{queue.broker_name}:{queue.queue_id}") and queue.broker_name in addresses
    ]
    if not queues:
        raise UnknownNameError("queue", queue_name or f"of topic {topic}")
    try:
        offsets = await _offsets(admin, group, topic)
    except OrbitError:
        offsets = {}  # the group has consumed nothing: it is at the oldest message
    copied = await _offsets(admin, target.source, topic) if target.kind == "group" else {}

    async def move(queue: MessageQueue) -> QueueMove:
        address = addresses[queue.broker_name]
        low, high = await min_offset(admin, address, queue), await max_offset(admin, address, queue)
        now = offsets.get(queue, low)
        match target.kind:
            case "first":
                then = low
            case "last":
                then = high
            case "offset":
                then = target.offset
            case "shift":
                then = now + target.shift
            case "time":
                then = await offset_at(admin, address, queue, target.time_ms)
            case "group":
                then = copied.get(queue, now)
            case other:
                raise AdminError(
                    f"offsets can be set to first, last, time, offset, shift or group, not {other!r}"
                )
        return QueueMove(queue, address, now, min(max(then, low), high), low, high)

    answers = await gather_bounded(move, queues)
    for answer in answers:
        if isinstance(answer, OrbitError):
            raise answer
    return [answer for answer in answers if isinstance(answer, QueueMove)]


async def _offsets(admin: Admin, group: str, topic: str) -> dict[MessageQueue, int]:
    table = (await consume_stats(admin, group, topic)).offset_table
    return {queue: offset.consumer_offset for queue, offset in table.items()}
