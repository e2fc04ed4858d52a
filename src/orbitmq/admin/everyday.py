"""Functions of the short commands that mqadmin lacks: descriptions, changes that keep other settings, and resets with
a preview.

All of them are composed of functions of the other areas.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec

from orbitmq.admin.base import Changed, Result
from orbitmq.admin.brokers import BrokerRow, cluster_brokers
from orbitmq.admin.census import all_lags, gather_bounded
from orbitmq.admin.errors import AdminError, UnknownNameError
from orbitmq.admin.groups import (
    GroupConfig,
    GroupConnection,
    GroupProgress,
    consumer_configs,
    consumer_connection,
    group_progress,
)
from orbitmq.admin.moves import OffsetTarget, QueueMove, plan_moves
from orbitmq.admin.offsets import END, reset_by_time, reset_queue
from orbitmq.admin.session import Admin
from orbitmq.admin.topics import (
    QueueRange,
    groups_of_topic,
    topic_config,
    topic_names,
    topic_status,
    update_topic,
)
from orbitmq.errors import OrbitError, TopicNotFound
from orbitmq.model.names import group_of, is_retry_topic, retry_topic
from orbitmq.model.route import MASTER_ID
from orbitmq.model.topic import TopicConfig

__all__ = [
    "GroupDescription",
    "OffsetMove",
    "OffsetMoves",
    "Overview",
    "TopicChange",
    "TopicDescription",
    "alter_topic",
    "create_topic",
    "describe_group",
    "describe_topic",
    "only_cluster",
    "overviews",
    "reset_offsets",
]

_GROUPS_SHOWN: Final = 20


async def only_cluster(admin: Admin, broker: str | None, cluster: str | None) -> str | None:
    """Returns the cluster to use. If neither a broker nor a cluster is named, it is the only one that exists.

    Raises ``AdminError`` if there is no cluster or more than one.
    """
    if broker is not None or cluster is not None:
        return cluster
    names = sorted((await admin.cluster_info()).cluster_addr_table)
    if len(names) == 1:
        return names[0]
    if not names:
        raise AdminError("no broker is registered with the name server")
    raise AdminError(f"there are {len(names)} clusters: name one with -c ({', '.join(names)})")


# -- topics ------------------------------------------------------------------------------------------------


class TopicOnBroker(Result, kw_only=True):
    broker_name: str
    address: str
    config: TopicConfig


class TopicDescription(Result, kw_only=True):
    topic: str
    brokers: list[TopicOnBroker]
    queues: list[QueueRange]
    message_count: int
    """Stored messages, excluding expired ones."""
    topic_put_tps: float
    groups: list[str]


class TopicChange(msgspec.Struct, frozen=True, kw_only=True):
    """Settings to change; None leaves a setting as it is."""

    read_queue_nums: int | None = None
    write_queue_nums: int | None = None
    perm: int | None = None
    order: bool | None = None
    attributes: Mapping[str, str] = {}

    @property
    def settings(self) -> dict[str, int | bool]:
        names = ("read_queue_nums", "write_queue_nums", "perm", "order")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


async def describe_topic(admin: Admin, topic: str) -> TopicDescription:
    """Returns the topic's settings on every master, the range of every queue, and the groups that consume it."""
    status = await topic_status(admin, topic)
    brokers = []
    for data in sorted((await admin.route(topic)).broker_datas, key=lambda data: data.broker_name):
        address = data.broker_addrs.get(MASTER_ID)
        if address is not None:
            config = await topic_config(admin, address, topic)
            brokers.append(TopicOnBroker(broker_name=data.broker_name, address=address, config=config))
    return TopicDescription(
        topic=topic,
        brokers=brokers,
        queues=status.queues,
        message_count=sum(queue.max_offset - queue.min_offset for queue in status.queues),
        topic_put_tps=status.topic_put_tps,
        groups=sorted(await groups_of_topic(admin, topic)),
    )


async def create_topic(
    admin: Admin,
    config: TopicConfig,
    attributes: Mapping[str, str],
    *,
    broker: str | None,
    cluster: str | None,
) -> Changed:
    """Create a topic. Raises ``AdminError`` if it exists, because its settings would be replaced."""
    name = config.topic_name
    if name in (await topic_names(admin)).topics:
        raise AdminError(f"topic {name} exists; `orbitmq topic alter {name}` changes it")
    cluster = await only_cluster(admin, broker, cluster)
    return await update_topic(admin, config, attributes, broker=broker, cluster=cluster)


async def alter_topic(
    admin: Admin, topic: str, change: TopicChange, *, broker: str | None, cluster: str | None
) -> Changed:
    """Change a topic on each master that has it. Settings that ``change`` does not name are kept."""
    if not change.settings and not change.attributes:
        raise AdminError("nothing to change: name at least one setting")
    cluster = await only_cluster(admin, broker, cluster)
    done: list[Changed] = []
    for address in await admin.targets(broker, cluster):
        try:
            config = await topic_config(admin, address, topic)
        except TopicNotFound:
            continue
        config = msgspec.structs.replace(config, topic_name=topic, **change.settings)
        done.append(await update_topic(admin, config, change.attributes, broker=address, cluster=None))
    if not done:
        raise UnknownNameError("topic", topic, (await topic_names(admin)).topics)
    return Changed(changes=[one for changed in done for one in changed.changes])


# -- groups ------------------------------------------------------------------------------------------------


class GroupDescription(Result, kw_only=True):
    group: str
    configs: list[GroupConfig]
    connection: GroupConnection | None
    """The members; None if none is online."""
    progress: GroupProgress | None
    """The offsets; None if the group has consumed nothing."""


async def describe_group(admin: Admin, group: str) -> GroupDescription:
    """Returns a group's settings, members and progress. Raises ``UnknownNameError`` for a group that was never
    used.
    """
    known = (await topic_names(admin)).topics
    configs = (await consumer_configs(admin, group)).configs
    # A broker that creates groups on demand returns settings for any name; a group in use has a retry topic.
    if not configs or retry_topic(group) not in known:
        raise UnknownNameError("group", group, map(group_of, filter(is_retry_topic, known)))
    connection: GroupConnection | None = None
    progress: GroupProgress | None = None
    try:
        connection = await consumer_connection(admin, group)
    except OrbitError:
        pass  # no member is online
    try:
        progress = await group_progress(admin, group)
    except OrbitError:
        pass  # no offset is stored
    return GroupDescription(group=group, configs=configs, connection=connection, progress=progress)


class OffsetMove(Result, kw_only=True):
    broker_name: str
    queue_id: int
    now: int
    then: int
    min_offset: int
    max_offset: int


class OffsetMoves(Result, kw_only=True):
    group: str
    topic: str
    dry_run: bool
    skipped: int
    """How many messages the group will not receive."""
    again: int
    """How many messages the group will receive again."""
    queues: list[OffsetMove]


async def reset_offsets(
    admin: Admin, group: str, topic: str, target: OffsetTarget, *, queue: str = "", dry_run: bool
) -> OffsetMoves:
    """Move a group in every queue of a topic, or only in ``queue`` (``broker:queue``). Online members follow
    immediately.

    With ``dry_run``, computes the moves and changes nothing.
    """
    moves = await plan_moves(admin, group, topic, target, queue_name=queue)
    if not dry_run:
        times = {"first": 0, "last": END, "time": target.time_ms}
        if target.kind in times and not queue:
            await reset_by_time(admin, group, topic, times[target.kind])
        else:
            await _move_queues(admin, group, moves)
    return OffsetMoves(
        group=group,
        topic=topic,
        dry_run=dry_run,
        skipped=sum(max(0, move.then - move.now) for move in moves),
        again=sum(max(0, move.now - move.then) for move in moves),
        queues=[
            OffsetMove(
                broker_name=move.queue.broker_name,
                queue_id=move.queue.queue_id,
                now=move.now,
                then=move.then,
                min_offset=move.low,
                max_offset=move.high,
            )
            for move in moves
        ],
    )


async def _move_queues(admin: Admin, group: str, moves: list[QueueMove]) -> None:
    for move in moves:
        await reset_queue(admin, group, move.queue, broker=move.address, timestamp_ms=END, offset=move.then)


# -- overview ----------------------------------------------------------------------------------------------


class GroupLoad(Result, kw_only=True):
    group: str
    lag: int
    oldest_ms: int | None
    """Age of the oldest unfinished message in milliseconds; None if there is none or the broker does not report
    it.
    """
    finished_per_s: float | None
    """Messages finished per second since the previous round; None in the first round."""


class Overview(Result, kw_only=True):
    timestamp: int
    brokers: list[BrokerRow]
    groups: list[GroupLoad]
    """At most 20 groups, those with the largest lag first."""
    group_count: int


async def overviews(admin: Admin) -> AsyncIterator[Overview]:
    """Yields the current state of the cluster at each iteration, indefinitely.

    An iteration costs one request per broker and one more per master.
    """
    finished: dict[str, int] = {}
    before_ms = 0
    while True:
        now_ms = admin.clock.now_ms()
        brokers = (await cluster_brokers(admin)).brokers
        masters = [row.address for row in brokers if row.broker_id == MASTER_ID]
        answers = await gather_bounded(lambda address: all_lags(admin, address), masters)
        lags = [lag for answer in answers if not isinstance(answer, OrbitError) for lag in answer]
        groups: dict[str, GroupLoad] = {}
        latest: dict[str, int] = {}
        for lag in lags:
            load = groups.setdefault(
                lag.group, GroupLoad(group=lag.group, lag=0, oldest_ms=None, finished_per_s=None)
            )
            load.lag += lag.diff
            latest[lag.group] = latest.get(lag.group, 0) + max(0, lag.consumer_offset)
            if lag.oldest_unfinished:
                load.oldest_ms = max(load.oldest_ms or 0, now_ms - lag.oldest_unfinished)
        for name, load in groups.items():
            if name in finished and now_ms > before_ms:
                load.finished_per_s = max(0, latest[name] - finished[name]) * 1000 / (now_ms - before_ms)
        finished, before_ms = latest, now_ms
        ordered = sorted(groups.values(), key=lambda load: (-load.lag, load.group))
        yield Overview(
            timestamp=now_ms, brokers=brokers, groups=ordered[:_GROUPS_SHOWN], group_count=len(ordered)
        )
