"""Lists, describes, creates, changes and deletes topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from orbitmq.admin.base import Change, Changed, Result
from orbitmq.admin.errors import AdminError, UnknownNameError
from orbitmq.admin.session import Admin
from orbitmq.codes import TopicSysFlag
from orbitmq.errors import OrbitError, QueryNotFound
from orbitmq.model.names import AUTO_CREATE_TOPIC, is_dlq_topic, is_retry_topic, is_system_topic, reply_topic
from orbitmq.model.rebalance import allocate_averagely
from orbitmq.model.route import MASTER_ID, MessageQueue, TopicRoute
from orbitmq.model.topic import PERM_READ_WRITE, TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import ClusterInfo, GroupList, TopicConfigList, TopicList, TopicStats, decode_body
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    DeleteKvConfigRequest,
    DeleteTopicInBrokerRequest,
    DeleteTopicInNamesrvRequest,
    GetKvConfigRequest,
    GetKvConfigResponse,
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
    PutKvConfigRequest,
    QueryTopicConsumeByWhoRequest,
    UpdateAndCreateTopicListRequest,
    UpdateAndCreateTopicRequest,
)

__all__ = [
    "Allocation",
    "Allocations",
    "OrderConf",
    "QueueRange",
    "RouteRow",
    "TopicClusters",
    "TopicNames",
    "TopicOwner",
    "TopicOwners",
    "TopicRouting",
    "TopicStatus",
    "allocation",
    "delete_order_conf",
    "delete_topic",
    "groups_of_topic",
    "listed_topics",
    "new_topic",
    "order_conf",
    "put_order_conf",
    "read_topic_list",
    "system_flag",
    "topic_clusters",
    "topic_config",
    "topic_names",
    "topic_owners",
    "topic_route",
    "topic_stats",
    "topic_status",
    "update_topic",
    "update_topic_list",
    "update_topic_perm",
]

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""The namespace in which name servers keep the queue counts of ordered topics."""
QUEUES_DEFAULT: Final = 8
"""The number of queues of a topic that a tool creates."""


class TopicNames(Result, kw_only=True):
    topics: list[str]
    system: list[str] = msgspec.field(default_factory=list)
    """Those of ``topics`` that servers and consumer groups created for themselves, if requested."""


class TopicOwner(Result, kw_only=True):
    cluster: str
    topic: str
    group: str
    """The consumer group; empty if no group consumes the topic."""


class TopicOwners(Result, kw_only=True):
    topics: list[TopicOwner]


class QueueRange(Result, kw_only=True):
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_timestamp: int
    """When the newest message was stored, in milliseconds; 0 if the queue is empty."""


class TopicStatus(Result, kw_only=True):
    queues: list[QueueRange]
    topic_put_tps: float


class RouteRow(Result, kw_only=True):
    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    read_queue_nums: int
    write_queue_nums: int
    perm: int


class TopicRouting(Result, kw_only=True):
    route: TopicRoute
    brokers: list[RouteRow]


class TopicClusters(Result, kw_only=True):
    clusters: list[str]


class Allocation(Result, kw_only=True):
    client: str
    queues: list[MessageQueue]


class Allocations(Result, kw_only=True):
    allocations: list[Allocation]


class OrderConf(Result, kw_only=True):
    topic: str
    order_conf: str


# -- looking -----------------------------------------------------------------------------------------------


async def topic_names(admin: Admin) -> TopicNames:
    """Returns every topic registered with the name server, including system topics."""
    answer = await admin.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return TopicNames(topics=TopicList.decode(answer.body).topic_list)


async def listed_topics(admin: Admin) -> TopicNames:
    """Like ``topic_names``, but also lists the system topics separately.

    These are retry and dead-letter topics, and those named after clusters and brokers or used by the servers.
    """
    names = (await topic_names(admin)).topics
    info = await admin.cluster_info()
    made = {*info.cluster_addr_table, *info.broker_addr_table, *map(reply_topic, info.cluster_addr_table)}
    return TopicNames(
        topics=names,
        system=[
            name
            for name in names
            if name in made or is_system_topic(name) or is_retry_topic(name) or is_dlq_topic(name)
        ],
    )


async def topic_owners(admin: Admin) -> TopicOwners:
    """Returns the cluster and the consumer groups of every topic except retry and dead-letter topics."""
    info = await admin.cluster_info()
    topics = [
        topic
        for topic in (await topic_names(admin)).topics
        if not is_retry_topic(topic) and not is_dlq_topic(topic)
    ]
    rows: list[TopicOwner] = []
    for topic in admin.each("topics", topics):
        cluster, groups = "", [""]
        try:
            cluster = next(iter(_clusters_of(await admin.route(topic), info)), "")
            groups = await groups_of_topic(admin, topic) or [""]
        except OrbitError:
            pass  # gone meanwhile, or a broker that does not answer: shown without
        rows += (TopicOwner(cluster=cluster, topic=topic, group=group) for group in groups)
    return TopicOwners(topics=rows)


async def groups_of_topic(admin: Admin, topic: str) -> list[str]:
    """Returns the groups that consume a topic, according to the first of its brokers."""
    for _, address in await admin.addresses_of_topic(topic):
        header = QueryTopicConsumeByWhoRequest(topic=topic)
        answer = await admin.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return GroupList.decode(answer.body).group_list
    return []


async def topic_stats(admin: Admin, address: str, topic: str) -> TopicStats:
    """Returns the offsets of a topic on one broker."""
    header = GetTopicStatsInfoRequest(topic=topic)
    answer = await admin.ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
    return TopicStats.decode(answer.body)


async def topic_status(admin: Admin, topic: str, *, route_topic: str = "") -> TopicStatus:
    """Returns the offsets of every queue, sorted by broker and queue. Raises ``UnknownNameError`` without queues.

    If the topic has no route of its own, ``route_topic`` is one on the same brokers.
    """
    queues: list[QueueRange] = []
    tps = 0.0
    for _, address in await admin.addresses_of_topic(route_topic or topic):
        stats = await topic_stats(admin, address, topic)
        tps += stats.topic_put_tps or 0.0
        queues += (
            QueueRange(
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                min_offset=offset.min_offset,
                max_offset=offset.max_offset,
                last_update_timestamp=offset.last_update_timestamp,
            )
            for queue, offset in stats.offset_table.items()
        )
    if not queues:
        raise UnknownNameError("topic", topic)
    queues.sort(key=lambda row: (row.broker_name, row.queue_id))
    return TopicStatus(queues=queues, topic_put_tps=tps)


async def topic_route(admin: Admin, topic: str) -> TopicRouting:
    """Returns the route of a topic, both as the name server returned it and as one row per broker."""
    route = await admin.route(topic)
    queues = {data.broker_name: data for data in route.queue_datas}
    rows = [
        RouteRow(
            cluster=data.cluster or "",
            broker_name=data.broker_name,
            broker_addrs=data.broker_addrs,
            read_queue_nums=queues[data.broker_name].read_queue_nums,
            write_queue_nums=queues[data.broker_name].write_queue_nums,
            perm=queues[data.broker_name].perm,
        )
        for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        if data.broker_name in queues
    ]
    return TopicRouting(route=route, brokers=rows)


async def topic_clusters(admin: Admin, topic: str) -> TopicClusters:
    """Returns the clusters that have the topic."""
    route = await admin.route(topic)
    return TopicClusters(clusters=_clusters_of(route, await admin.cluster_info()))


def _clusters_of(route: TopicRoute, info: ClusterInfo) -> list[str]:
    names = {data.broker_name for data in route.broker_datas}
    return [cluster for cluster, brokers in info.cluster_addr_table.items() if names & set(brokers)]


async def topic_config(admin: Admin, address: str, topic: str) -> TopicConfig:
    """Returns the settings of a topic on one broker."""
    answer = await admin.ask(address, RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequest(topic=topic))
    return decode_body(TopicConfig, answer.body)


async def allocation(admin: Admin, topic: str, clients: Sequence[str]) -> Allocations:
    """Returns the queues that each client would get by the default strategy."""
    queues = (await admin.route(topic)).subscribe_queues(topic)
    rows = [
        Allocation(client=client, queues=allocate_averagely(queues, list(clients), client))
        for client in clients
    ]
    return Allocations(allocations=rows)


# -- changing ----------------------------------------------------------------------------------------------


async def update_topic(
    admin: Admin,
    config: TopicConfig,
    changes: Mapping[str, str],
    *,
    broker: str | None,
    cluster: str | None,
) -> Changed:
    """Create or change a topic on a broker or on all masters of a cluster.

    ``changes`` has the form ``{"+name": "value", "-name": ""}``: attributes to set and to remove. For an ordered
    topic, its entry in the name servers is also written.
    """
    if config.read_queue_nums <= 0 and config.write_queue_nums <= 0:
        raise AdminError(f"topic {config.topic_name} would have no queue: give at least 1 with -r or -w")
    targets = await admin.targets(broker, cluster)
    done = (await _put_topic(admin, targets, config, changes)).changes
    if config.order:
        if cluster is not None and broker is None:
            names = await admin.broker_names(cluster)
            conf = ";".join(f"{name}:{config.write_queue_nums}" for name in names)
        else:
            name = await admin.name_of(targets[0])
            conf = await _merged_order(admin, config.topic_name, f"{name}:{config.write_queue_nums}")
        done += (await put_order_conf(admin, config.topic_name, conf)).changes
    return Changed(changes=done)


async def _put_topic(
    admin: Admin, addresses: list[str], config: TopicConfig, changes: Mapping[str, str]
) -> Changed:
    attributes = ",".join(f"{key}={value}" if key.startswith("+") else key for key, value in changes.items())
    header = UpdateAndCreateTopicRequest(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type.value,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes,
    )
    detail = (
        f"readQueueNums={config.read_queue_nums} writeQueueNums={config.write_queue_nums} perm={config.perm}"
        f" order={str(config.order).lower()} topicSysFlag={config.topic_sys_flag}"
        + (f" attributes={attributes}" if attributes else "")
    )
    code, action = RequestCode.UPDATE_AND_CREATE_TOPIC, f"topic {config.topic_name} stored"
    return await admin.change_each(addresses, action, code, header, detail=detail)


def system_flag(*, unit: bool, unit_subscription: bool) -> int:
    """Returns the ``topicSysFlag`` for a topic."""
    return (TopicSysFlag.UNIT if unit else 0) | (TopicSysFlag.UNIT_SUB if unit_subscription else 0)


async def update_topic_list(
    admin: Admin, topics: Sequence[TopicConfig], *, broker: str | None, cluster: str | None
) -> Changed:
    """Create or change many topics in one request to each broker."""
    body = TopicConfigList(topic_config_list=list(topics)).encode()
    return await admin.change_each(
        await admin.targets(broker, cluster),
        f"{len(topics)} topics stored",
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        UpdateAndCreateTopicListRequest(),
        body,
        timeout_s=admin.slow_s,
    )


async def update_topic_perm(
    admin: Admin, topic: str, perm: int, *, broker: str | None, cluster: str | None
) -> Changed:
    """Change a topic's permission. Like with mqadmin, the order flag and the filter type are reset to their defaults,
    because routes do not contain them."""
    route = await admin.route(topic)
    queues = {data.broker_name: data for data in route.queue_datas}
    wanted = set(await admin.targets(broker, cluster))
    done = []
    for data in route.broker_datas:
        address = data.broker_addrs.get(MASTER_ID)
        if address not in wanted or data.broker_name not in queues or address is None:
            continue
        old = queues[data.broker_name]
        if old.perm == perm:
            done.append(Change(target=address, action=f"perm of {topic} is {perm} already"))
            continue
        config = TopicConfig(
            topic_name=topic,
            perm=perm,
            read_queue_nums=old.read_queue_nums,
            write_queue_nums=old.write_queue_nums,
            topic_sys_flag=old.topic_sys_flag,
        )
        await _put_topic(admin, [address], config, {})
        done.append(Change(target=address, action=f"perm of {topic} changed from {old.perm} to {perm}"))
    if not done:
        raise AdminError(f"topic {topic} is on no master of {broker or cluster}")
    return Changed(changes=done)


async def delete_topic(admin: Admin, topic: str, cluster: str) -> Changed:
    """Delete a topic from the masters of a cluster, then from every name server.

    Raises ``UnknownNameError`` if no name server has the topic, because brokers report success for the deletion of
    any name.
    """
    header = DeleteTopicInBrokerRequest(topic=topic)
    targets = await admin.targets(None, cluster)
    known = (await topic_names(admin)).topics
    if topic not in known:
        raise UnknownNameError("topic", topic, (name for name in known if not name.startswith("%")))
    action = f"topic {topic} deleted"
    done = (await admin.change_each(targets, action, RequestCode.DELETE_TOPIC_IN_BROKER, header)).changes
    names = DeleteTopicInNamesrvRequest(topic=topic, cluster_name=cluster)
    for address in await admin.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, names):
        done.append(Change(target=address, action=action))
    return Changed(changes=done)


# -- ordered topics ----------------------------------------------------------------------------------------


async def order_conf(admin: Admin, topic: str) -> OrderConf:
    """Returns the queue counts of an ordered topic by broker. Raises ``QueryNotFound``."""
    header = GetKvConfigRequest(namespace=ORDER_NAMESPACE, key=topic)
    answer = await admin.ask_name_server(RequestCode.GET_KV_CONFIG, header)
    return OrderConf(topic=topic, order_conf=decode_header(GetKvConfigResponse, answer).value or "")


async def put_order_conf(admin: Admin, topic: str, conf: str) -> Changed:
    """Set the queue counts of an ordered topic in every name server."""
    header = PutKvConfigRequest(namespace=ORDER_NAMESPACE, key=topic, value=conf)
    answers = await admin.tell_name_servers(RequestCode.PUT_KV_CONFIG, header)
    done = [Change(target=a, action=f"order of {topic} stored", detail=f"orderConf={conf}") for a in answers]
    return Changed(changes=done)


async def delete_order_conf(admin: Admin, topic: str) -> Changed:
    """Delete the queue counts of an ordered topic from every name server."""
    header = DeleteKvConfigRequest(namespace=ORDER_NAMESPACE, key=topic)
    answers = await admin.tell_name_servers(RequestCode.DELETE_KV_CONFIG, header)
    return Changed(changes=[Change(target=a, action=f"order of {topic} deleted") for a in answers])


async def _merged_order(admin: Admin, topic: str, entry: str) -> str:
    """Returns the queue counts of an ordered topic with the entry of one broker replaced or added."""
    try:
        old = (await order_conf(admin, topic)).order_conf
    except QueryNotFound:
        old = ""
    entries = {part.partition(":")[0]: part for part in [*old.split(";"), entry] if part}
    return ";".join(entries.values())


def read_topic_list(data: bytes) -> list[TopicConfig]:
    """Parse a JSON array of topics in the form of ``topics.json`` entries. Raises ``BodyError``."""
    return decode_body(list[TopicConfig], data)


def new_topic(name: str, *, read: int | None, write: int | None, perm: int | None) -> TopicConfig:
    """Returns a topic with the tools' defaults for all values that are None."""
    return TopicConfig(
        topic_name=name,
        read_queue_nums=QUEUES_DEFAULT if read is None else read,
        write_queue_nums=QUEUES_DEFAULT if write is None else write,
        perm=PERM_READ_WRITE if perm is None else perm,
    )
