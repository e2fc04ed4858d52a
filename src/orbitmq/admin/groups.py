"""Consumer groups and clients: their settings, connections, progress and current state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from orbitmq.admin.base import Changed, Result
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.session import Admin, best_address
from orbitmq.admin.topics import topic_names
from orbitmq.codes import ResponseCode, version_name
from orbitmq.errors import BrokerError, ConsumerNotOnline, OrbitError, TopicNotFound
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import (
    dlq_topic,
    group_of,
    is_retry_topic,
    pop_retry_topic,
    retry_topic,
)
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.runtime.words import counted, duration_text
from orbitmq.wire.bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeType,
    MessageRequestMode,
    OffsetWrapper,
    ProducerConnection,
    ProducerTable,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    decode_body,
    encode_body,
)
from orbitmq.wire.headers import (
    DeleteSubscriptiongroupRequest,
    DeleteTopicInBrokerRequest,
    DeleteTopicInNamesrvRequest,
    GetConsumerConnectionListRequest,
    GetConsumerRunningInfoRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
    GetSubscriptiongroupConfigRequest,
)

__all__ = [
    "Client",
    "ConsumerConfigs",
    "ConsumerGroups",
    "GroupConfig",
    "GroupConnection",
    "GroupMember",
    "GroupMembers",
    "GroupProgress",
    "GroupRow",
    "ProducerClients",
    "ProducerRow",
    "Producers",
    "QueueProgress",
    "RunningConsumer",
    "Subscription",
    "SubscriptionRow",
    "consume_stats",
    "consumer_configs",
    "consumer_connection",
    "consumer_groups",
    "delete_group",
    "group_members",
    "group_progress",
    "producer_connection",
    "producers",
    "read_group_list",
    "running_consumer",
    "running_info",
    "set_consume_mode",
    "subscription_rows",
    "update_group",
    "update_group_list",
]

_BLOCKED_MS: Final = 60_000
"""A consumer that holds messages and has finished none for longer than this is reported, like in Apache's tool."""
_SETTLED_MS: Final = 120_000
"""Within this time after their start, members may have different subscriptions."""


class Client(Result, kw_only=True):
    client_id: str
    client_addr: str
    language: str
    version: str


class Subscription(Result, kw_only=True):
    topic: str
    sub_expression: str
    class_filter_mode: bool = False


class GroupConnection(Result, kw_only=True):
    connections: list[Client]
    subscriptions: list[Subscription]
    consume_type: str
    message_model: str
    consume_from_where: str


class ProducerClients(Result, kw_only=True):
    connections: list[Client]


class ProducerRow(Result, kw_only=True):
    group: str
    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int


class Producers(Result, kw_only=True):
    producers: list[ProducerRow]


class GroupRow(Result, kw_only=True):
    group: str
    count: int
    version: str
    """The lowest version of the members; ``OFFLINE`` if there are none."""
    type: str
    model: str
    tps: int
    diff_total: int
    lag_total: int = 0
    """Stored messages that the group has not finished, even before its first commit; ``diff_total`` if unknown."""


class ConsumerGroups(Result, kw_only=True):
    groups: list[GroupRow]


class QueueProgress(Result, kw_only=True):
    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    client_ip: str = msgspec.field(name="clientIP", default="")
    """The member that holds the queue; empty unless requested, ``N/A`` if no member has the queue."""
    diff: int
    inflight: int
    last_timestamp: int
    """When the last consumed message was stored, in milliseconds; 0 if unknown."""
    lag: int = 0
    """Stored messages that the group has not finished, even before its first commit; ``diff`` if unknown."""


class GroupProgress(Result, kw_only=True):
    queues: list[QueueProgress]
    consume_tps: float
    diff_total: int
    inflight_total: int
    lag_total: int = 0


class GroupConfig(Result, kw_only=True):
    cluster: str
    broker_name: str
    config: SubscriptionGroupConfig


class ConsumerConfigs(Result, kw_only=True):
    configs: list[GroupConfig]


class GroupMember(Result, kw_only=True):
    client_id: str
    version: str
    info: RunningConsumer


class GroupMembers(Result, kw_only=True):
    members: list[GroupMember]
    same_subscription: bool
    findings: list[str]
    """One sentence for each stalled queue and for each member that does not report its state."""


class HeldQueue(Result, kw_only=True):
    topic: str
    broker_name: str
    queue_id: int
    commit_offset: int
    detail: dict[str, int | bool]


class ConsumeRate(Result, kw_only=True):
    topic: str
    pull_rt: float = msgspec.field(name="pullRT")
    pull_tps: float = msgspec.field(name="pullTPS")
    consume_rt: float = msgspec.field(name="consumeRT")
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS")
    consume_failed_msgs: int


class RunningConsumer(Result, kw_only=True):
    """The state that a consumer reports about itself."""

    properties: dict[str, str]
    subscriptions: list[Subscription]
    queues: list[HeldQueue]
    pop_queues: list[HeldQueue]
    rates: list[ConsumeRate]
    user_info: dict[str, str]
    jstack: str


# -- connections -------------------------------------------------------------------------------------------


async def _connection(admin: Admin, group: str, broker: str | None) -> ConsumerConnection:
    """Returns the members of a group, from the first broker that has any. Raises ``ConsumerNotOnline`` if none
    has.
    """
    if broker is not None:
        addresses = [await admin.address(broker)]
    else:
        addresses = [address for _, address in await admin.addresses_of_group(group)]
    header = GetConsumerConnectionListRequest(consumer_group=group)
    failure: BrokerError = ConsumerNotOnline(f"group {group} has no member online")
    for address in addresses:
        try:
            answer = await admin.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        except ConsumerNotOnline as error:
            failure = error
            continue
        found = ConsumerConnection.decode(answer.body)
        if found.connection_set:
            return found
    raise failure


def _clients(connection: ConsumerConnection | ProducerConnection) -> list[Client]:
    return [
        Client(
            client_id=client.client_id or "",
            client_addr=client.client_addr or "",
            language=client.language or "",
            version=version_name(client.version),
        )
        for client in connection.connection_set
    ]


async def consumer_connection(admin: Admin, group: str, broker: str | None = None) -> GroupConnection:
    """Returns the members of a group and their subscriptions. Raises ``ConsumerNotOnline`` if it has no member."""
    found = await _connection(admin, group, broker)
    return GroupConnection(
        connections=_clients(found),
        subscriptions=[
            Subscription(
                topic=data.topic, sub_expression=data.sub_string, class_filter_mode=data.class_filter_mode
            )
            for data in found.subscription_table.values()
        ],
        consume_type=found.consume_type or "",
        message_model=found.message_model or "",
        consume_from_where=found.consume_from_where or "",
    )


async def producer_connection(admin: Admin, group: str, topic: str) -> ProducerClients:
    """Returns the members of a producer group that are connected to a broker of the topic.

    Uses the first broker that has any. Raises ``UnknownNameError`` if none has.
    """
    header = GetProducerConnectionListRequest(producer_group=group)
    for _, address in await admin.addresses_of_topic(topic):
        answer = await admin.ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        found = ProducerConnection.decode(answer.body)
        if found.connection_set:
            return ProducerClients(connections=_clients(found))
    raise UnknownNameError("producer group", group)


async def producers(admin: Admin, broker: str) -> Producers:
    """Returns every producer that is connected to a broker."""
    answer = await admin.ask(await admin.address(broker), RequestCode.GET_ALL_PRODUCER_INFO)
    rows = [
        ProducerRow(
            group=group,
            client_id=info.client_id or "",
            remote_ip=info.remote_ip or "",
            language=info.language or "",
            version=info.version,
            last_update_timestamp=info.last_update_timestamp,
        )
        for group, infos in ProducerTable.decode(answer.body).data.items()
        for info in infos
    ]
    return Producers(producers=rows)


# -- progress ----------------------------------------------------------------------------------------------


async def consume_stats(
    admin: Admin,
    group: str,
    topic: str | None = None,
    *,
    route_topic: str | None = None,
    unfinished: bool = False,
) -> ConsumeStats:
    """Returns the progress of a group on every broker that has it. Raises ``UnknownNameError`` for an unknown group.

    With ``unfinished``, brokers of this project also report the number of unfinished messages, and subscribed topics
    without an offset. Apache's brokers ignore the option.
    """
    candidates = [retry_topic(group)]
    if topic is not None:
        candidates += [topic, pop_retry_topic(topic, group)]
    if route_topic is not None:
        candidates.append(route_topic)
    addresses: list[tuple[str, str]] | None = None
    for candidate in candidates:
        try:
            addresses = await admin.addresses_of_topic(candidate)
            break
        except TopicNotFound:
            continue
    if addresses is None:
        raise UnknownNameError("consumer group", group)
    tps, table = 0.0, ConsumeStats().offset_table
    header = GetConsumeStatsRequest(consumer_group=group, topic=topic, unfinished=unfinished or None)
    for _, address in addresses:
        answer = await admin.ask(address, RequestCode.GET_CONSUME_STATS, header, timeout_s=admin.slow_s)
        stats = ConsumeStats.decode(answer.body)
        tps += stats.consume_tps
        table.update(stats.offset_table)
    return ConsumeStats(consume_tps=tps, offset_table=table)


async def group_progress(
    admin: Admin,
    group: str,
    topic: str | None = None,
    *,
    with_clients: bool = False,
    route_topic: str | None = None,
) -> GroupProgress:
    """Returns the offsets of every queue that a group consumes.

    Raises ``ConsumerNotOnline`` if the group has neither offsets nor members.
    """
    stats = await consume_stats(admin, group, topic, route_topic=route_topic, unfinished=True)
    if not stats.offset_table:
        await _connection(admin, group, None)
    holders = await _holders(admin, group) if with_clients else {}
    rows = [
        QueueProgress(
            topic=queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            broker_offset=offset.broker_offset,
            consumer_offset=offset.consumer_offset,
            client_ip=holders.get(queue, "N/A") if with_clients else "",
            diff=offset.broker_offset - offset.consumer_offset,
            # 4.x brokers do not report pulled offsets.
            inflight=0 if offset.pull_offset is None else offset.pull_offset - offset.consumer_offset,
            last_timestamp=offset.last_timestamp,
            lag=_lag(offset),
        )
        for queue, offset in sorted(stats.offset_table.items(), key=lambda item: item[0].sort_key)
    ]
    return GroupProgress(
        queues=rows,
        consume_tps=stats.consume_tps,
        diff_total=sum(row.diff for row in rows),
        inflight_total=sum(row.inflight for row in rows),
        lag_total=sum(row.lag for row in rows),
    )


def _lag(offset: OffsetWrapper) -> int:
    if offset.unfinished is not None:
        return offset.unfinished
    return max(0, offset.broker_offset - offset.consumer_offset)


async def _holders(admin: Admin, group: str) -> dict[MessageQueue, str]:
    """Returns the part before ``@`` (the IP address) of the client id that holds each queue.

    Stops at the first member that does not answer.
    """
    found: dict[MessageQueue, str] = {}
    try:
        members = (await _connection(admin, group, None)).connection_set
        for member in members:
            info = await running_info(admin, group, member.client_id or "")
            found.update((queue, (member.client_id or "").partition("@")[0]) for queue in info.mq_table)
    except OrbitError:
        pass  # no member online, or a client of another kind
    return found


async def consumer_groups(admin: Admin) -> ConsumerGroups:
    """Returns every group that has a retry topic, with its members, consumption rate and lag."""
    topics = [topic for topic in (await topic_names(admin)).topics if is_retry_topic(topic)]
    rows = [await _group_row(admin, group_of(topic)) for topic in admin.each("groups", topics)]
    return ConsumerGroups(groups=rows)


async def _group_row(admin: Admin, group: str) -> GroupRow:
    tps, diff, lag = 0, 0, 0
    try:
        stats = await consume_stats(admin, group, unfinished=True)
        tps = int(stats.consume_tps)
        diff = sum(o.broker_offset - o.consumer_offset for o in stats.offset_table.values())
        lag = sum(map(_lag, stats.offset_table.values()))
    except OrbitError:
        pass
    try:
        connection = await _connection(admin, group, None)
    except OrbitError:
        return GroupRow(
            group=group,
            count=0,
            version="OFFLINE",
            type="",
            model="",
            tps=tps,
            diff_total=diff,
            lag_total=lag,
        )
    pushed = connection.consume_type == ConsumeType.PASSIVELY
    return GroupRow(
        group=group,
        count=len(connection.connection_set),
        version=version_name(min(client.version for client in connection.connection_set)),
        type="PULL" if connection.consume_type == ConsumeType.ACTIVELY else "PUSH",
        model=(connection.message_model or "") if pushed else "",
        tps=tps,
        diff_total=diff,
        lag_total=lag,
    )


# -- what a consumer does right now ------------------------------------------------------------------------


async def running_info(
    admin: Admin, group: str, client_id: str, *, stacks: bool = False
) -> ConsumerRunningInfo:
    """Returns the state that a member reports. The request is forwarded by a broker of the group."""
    header = GetConsumerRunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=stacks)
    for _, address in await admin.addresses_of_group(group):
        answer = await admin.ask(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_s=admin.slow_s
        )
        return ConsumerRunningInfo.decode(answer.body)
    raise UnknownNameError("consumer group", group)


async def running_consumer(
    admin: Admin, group: str, client_id: str, *, stacks: bool = False
) -> RunningConsumer:
    """Like ``running_info``, but returns the state as rows."""
    return _as_rows(await running_info(admin, group, client_id, stacks=stacks))


def _as_rows(info: ConsumerRunningInfo) -> RunningConsumer:
    return RunningConsumer(
        properties={key: _java_text(value) for key, value in info.properties.items()},
        subscriptions=[
            Subscription(topic=s.topic, sub_expression=s.sub_string, class_filter_mode=s.class_filter_mode)
            for s in info.subscription_set
        ],
        queues=[
            _held(queue, held.commit_offset, held)
            for queue, held in sorted(info.mq_table.items(), key=lambda item: item[0].sort_key)
        ],
        pop_queues=[_held(queue, 0, held) for queue, held in (info.mq_pop_table or {}).items()],
        rates=[
            ConsumeRate(
                topic=topic,
                pull_rt=status.pull_rt,
                pull_tps=status.pull_tps,
                consume_rt=status.consume_rt,
                consume_ok_tps=status.consume_ok_tps,
                consume_failed_tps=status.consume_failed_tps,
                consume_failed_msgs=status.consume_failed_msgs,
            )
            for topic, status in info.status_table.items()
        ],
        user_info=info.user_consumer_info or {},
        jstack=info.jstack or "",
    )


def _held(queue: MessageQueue, commit_offset: int, held: msgspec.Struct) -> HeldQueue:
    return HeldQueue(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        commit_offset=commit_offset,
        detail=msgspec.to_builtins(held),
    )


def _java_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def group_members(
    admin: Admin, group: str, *, broker: str | None = None, stacks: bool = False
) -> GroupMembers:
    """Returns every member and its state. Raises ``ConsumerNotOnline`` if there is none.

    A member that does not answer becomes a finding.
    """
    connection = await _connection(admin, group, broker)
    versions = {client.client_id or "": client.version for client in connection.connection_set}
    infos: dict[str, ConsumerRunningInfo] = {}
    findings: list[str] = []
    for client_id in admin.each("members", sorted(versions)):
        try:
            infos[client_id] = await running_info(admin, group, client_id, stacks=stacks)
        except OrbitError as error:
            findings.append(f"{client_id} does not report its state: {error}")
    now_ms = admin.clock.now_ms()
    for client_id, info in infos.items():
        findings += _standing_still(client_id, info, now_ms)
    return GroupMembers(
        members=[
            GroupMember(client_id=client_id, version=version_name(versions[client_id]), info=_as_rows(info))
            for client_id, info in infos.items()
        ],
        same_subscription=_subscribe_alike(list(infos.values()), now_ms),
        findings=findings,
    )


class SubscriptionRow(NamedTuple):
    """A topic, and the subscription of each member to it."""

    topic: str
    expressions: dict[str, str]
    """Subscription expressions by client id. Clients that do not subscribe are missing."""
    differs: bool


def subscription_rows(members: Sequence[GroupMember]) -> list[SubscriptionRow]:
    """Returns the topics that members subscribe to, except retry topics.

    ``differs`` is set if members have different expressions or if some do not subscribe.
    """
    topics = sorted(
        {s.topic for one in members for s in one.info.subscriptions if not is_retry_topic(s.topic)}
    )
    rows = []
    for topic in topics:
        by_client = {
            one.client_id: s.sub_expression
            for one in members
            for s in one.info.subscriptions
            if s.topic == topic
        }
        differs = len(by_client) < len(members) or len(set(by_client.values())) > 1
        rows.append(SubscriptionRow(topic, by_client, differs))
    return rows


def _subscribe_alike(infos: Sequence[ConsumerRunningInfo], now_ms: int) -> bool:
    if not infos or infos[0].properties.get("PROP_CONSUME_TYPE") != ConsumeType.PASSIVELY:
        return True
    if now_ms - int(infos[0].properties.get("PROP_CONSUMER_START_TIMESTAMP") or 0) <= _SETTLED_MS:
        return True
    first = {(s.topic, s.sub_string) for s in infos[0].subscription_set}
    return all({(s.topic, s.sub_string) for s in info.subscription_set} == first for info in infos)


def _standing_still(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> list[str]:
    if info.properties.get("PROP_CONSUME_TYPE") != ConsumeType.PASSIVELY:
        return []
    orderly = str(info.properties.get("PROP_CONSUMEORDERLY")).lower() == "true"
    started_ms = int(info.properties.get("PROP_CONSUMER_START_TIMESTAMP") or now_ms)
    found = []
    for queue, held in info.mq_table.items():
        where = f"{client_id} {queue.topic}/{queue.broker_name}/{queue.queue_id}"
        if orderly and not held.locked:
            found.append(
                f"{where} has not been locked for {duration_text(now_ms - held.last_lock_timestamp)}"
            )
        elif orderly and held.dropped and held.try_unlock_times > 0:
            found.append(f"{where} was dropped, and {held.try_unlock_times} tries to unlock it failed")
        elif not orderly and held.cached_msg_count > 0:
            idle_ms = now_ms - (held.last_consume_timestamp or started_ms)
            if idle_ms > _BLOCKED_MS:
                count = counted(held.cached_msg_count, "message")
                found.append(f"{where} holds {count} and finished none for {duration_text(idle_ms)}")
    return found


# -- settings ----------------------------------------------------------------------------------------------


async def consumer_configs(admin: Admin, group: str) -> ConsumerConfigs:
    """Returns the settings of a group on every broker that has it."""
    info = await admin.cluster_info()
    found: list[GroupConfig] = []
    for name, data in sorted(info.broker_addr_table.items()):
        address = best_address(data)
        if address is None:
            continue
        config = await _group_config(admin, address, group)
        if config is not None:
            cluster = next((c for c, names in info.cluster_addr_table.items() if name in names), "")
            found.append(GroupConfig(cluster=cluster, broker_name=name, config=config))
    return ConsumerConfigs(configs=found)


async def _group_config(admin: Admin, address: str, group: str) -> SubscriptionGroupConfig | None:
    """Returns the settings of a group on one broker, or None if the broker does not have the group."""
    header = GetSubscriptiongroupConfigRequest(group=group)
    answer = await admin.call(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # 4.x tells all groups or none
        answer = await admin.ask(
            address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_s=admin.slow_s
        )
        return SubscriptionGroupWrapper.decode(answer.body).subscription_group_table.get(group)
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return None
    return decode_body(SubscriptionGroupConfig, answer.body)


async def update_group(
    admin: Admin, config: SubscriptionGroupConfig, *, broker: str | None, cluster: str | None
) -> Changed:
    """Create or change a group on a broker or on all masters of a cluster."""
    targets = await admin.targets(broker, cluster)
    code, action = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, f"group {config.group_name} stored"
    return await admin.change_each(targets, action, code, None, encode_body(config))


async def update_group_list(
    admin: Admin, groups: Sequence[SubscriptionGroupConfig], *, broker: str | None, cluster: str | None
) -> Changed:
    """Create or change many groups in one request to each broker."""
    body = SubscriptionGroupList(group_config_list=list(groups)).encode()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    targets = await admin.targets(broker, cluster)
    action = f"{len(groups)} groups stored"
    return await admin.change_each(targets, action, code, None, body, timeout_s=admin.slow_s)


def read_group_list(data: bytes) -> list[SubscriptionGroupConfig]:
    """Parse a JSON array of groups. Raises ``BodyError``."""
    return decode_body(list[SubscriptionGroupConfig], data)


async def _group_names(admin: Admin, address: str) -> Iterable[str]:
    answer = await admin.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_s=admin.slow_s)
    return SubscriptionGroupWrapper.decode(answer.body).subscription_group_table


async def delete_group(
    admin: Admin, group: str, *, broker: str | None, cluster: str | None, remove_offset: bool = False
) -> Changed:
    """Delete a group. With a cluster, its retry and dead-letter topics are deleted too.

    Raises ``UnknownNameError`` if no target has the group, because brokers report success for the deletion of any
    name.
    """
    header = DeleteSubscriptiongroupRequest(
        group_name=group, clean_offset=remove_offset, remove_offset=remove_offset
    )
    targets = await admin.targets(broker, cluster)
    known = set[str]()
    for address in targets:
        known.update(await _group_names(admin, address))
    if group not in known:
        raise UnknownNameError("group", group, known)
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    changed = await admin.change_each(targets, f"group {group} deleted", code, header)
    if broker is None and cluster is not None:
        for topic in (retry_topic(group), dlq_topic(group)):
            in_broker = DeleteTopicInBrokerRequest(topic=topic)
            await admin.change_each(targets, "", RequestCode.DELETE_TOPIC_IN_BROKER, in_broker)
            in_namesrv = DeleteTopicInNamesrvRequest(topic=topic, cluster_name=cluster)
            await admin.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, in_namesrv)
    return changed


async def set_consume_mode(
    admin: Admin, mode: MessageRequestMode, *, broker: str | None, cluster: str | None
) -> Changed:
    """Choose whether a group pulls or pops the messages of a topic."""
    targets = await admin.targets(broker, cluster)
    action = f"group {mode.consumer_group} takes {mode.topic} by {mode.mode}"
    return await admin.change_each(targets, action, RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode.encode())
