"""Checks all groups once for their backlog and for stalled members (Apache: ``MonitorService``)."""

from __future__ import annotations

from collections import defaultdict

from orbitmq.admin.base import Result
from orbitmq.admin.groups import consume_stats, group_members
from orbitmq.admin.session import Admin
from orbitmq.admin.topics import topic_names, topic_status
from orbitmq.errors import OrbitError
from orbitmq.model.names import group_of, is_retry_topic
from orbitmq.model.route import MessageQueue
from orbitmq.wire.bodies import OffsetWrapper

__all__ = ["MonitorRound", "Undone", "monitor_round"]


class Undone(Result, kw_only=True):
    """The backlog of an online group in a topic."""

    group: str
    topic: str
    total: int
    single_queue_max: int
    delay_ms: int
    """How much older the last consumed message is than the newest one, in the queue where it is oldest."""


class MonitorRound(Result, kw_only=True):
    timestamp: int
    undone: list[Undone]
    findings: list[str]


async def monitor_round(admin: Admin) -> MonitorRound:
    """Returns the backlog of every online group, and findings about its members."""
    groups = [group_of(topic) for topic in (await topic_names(admin)).topics if is_retry_topic(topic)]
    undone: list[Undone] = []
    findings: list[str] = []
    for group in admin.each("groups", sorted(groups)):
        try:
            members = await group_members(admin, group)
            stats = await consume_stats(admin, group, unfinished=True)
        except OrbitError:
            continue  # no member is online
        findings += members.findings
        if not members.same_subscription:
            findings.append(f"members of {group} subscribe differently")
        by_topic: dict[str, dict[MessageQueue, OffsetWrapper]] = defaultdict(dict)
        for queue, offset in stats.offset_table.items():
            by_topic[queue.topic][queue] = offset
        for topic, queues in sorted(by_topic.items()):
            undone.append(await _undone(admin, group, topic, queues))
    return MonitorRound(timestamp=admin.clock.now_ms(), undone=undone, findings=findings)


async def _undone(admin: Admin, group: str, topic: str, queues: dict[MessageQueue, OffsetWrapper]) -> Undone:
    newest: dict[tuple[str, int], int] = {}
    try:
        for row in (await topic_status(admin, topic)).queues:
            newest[row.broker_name, row.queue_id] = row.last_update_timestamp
    except OrbitError:
        pass  # deleted meanwhile: the offsets are still told, the delay is not known
    diffs = [offset.broker_offset - offset.consumer_offset for offset in queues.values()]
    delays = [
        newest.get((queue.broker_name, queue.queue_id), 0) - offset.last_timestamp
        for queue, offset in queues.items()
        if offset.last_timestamp > 0
    ]
    return Undone(
        group=group,
        topic=topic,
        total=sum(diff for diff in diffs if diff > 0),
        single_queue_max=max(0, *diffs),
        delay_ms=max(0, *delays) if delays else 0,
    )
