"""Brokers: their clusters, settings, runtime statistics, consumption, maintenance and roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from orbitmq.admin.base import Change, Changed, Result, properties_text, read_properties
from orbitmq.admin.errors import UnreachableError
from orbitmq.admin.namesrv import ServerConfig, ServerConfigs
from orbitmq.admin.session import Admin
from orbitmq.errors import BrokerError, ServerError
from orbitmq.model.route import MASTER_ID
from orbitmq.requests import RequestCode
from orbitmq.runtime.apache_options import WITHOUT_EFFECT_HEADING
from orbitmq.wire import javajson
from orbitmq.wire.bodies import ConsumeStatsList, KvTable
from orbitmq.wire.headers import GetBrokerConsumeStatsRequest

__all__ = [
    "BrokerConsumeStats",
    "BrokerRow",
    "BrokerRuntime",
    "BrokerRuntimes",
    "BrokerTotals",
    "ClusterBrokers",
    "ClusterTotals",
    "ColdDataFlow",
    "ColdDataFlows",
    "GroupQueue",
    "add_broker",
    "broker_configs",
    "broker_consume_stats",
    "broker_runtimes",
    "change_role",
    "clean_expired_queues",
    "clean_unused_topics",
    "cluster_brokers",
    "cluster_totals",
    "cold_data_flow",
    "delete_expired_log",
    "first_rate",
    "remove_broker",
    "remove_cold_data_limit",
    "reset_master_flush_offset",
    "runtime_info",
    "set_read_ahead",
    "switch_timer_engine",
    "update_broker_config",
    "update_cold_data_limit",
]

ROLE_CHANGE_S: Final = 30.0
TIMER_ENGINES: Final = {"R": "ROCKSDB_TIMELINE", "F": "FILE_TIME_WHEEL"}


class BrokerRow(Result, kw_only=True):
    """One broker. Its statistics are empty if it did not answer; ``error`` then says why."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str = ""
    """The Apache RocketMQ version whose requests the broker supports."""
    release: str = ""
    """The version of this project's broker; empty for Apache's."""
    in_tps: float = 0.0
    send_queue_size: str = ""
    send_queue_wait_ms: str = ""
    out_tps: float = 0.0
    pull_queue_size: str = ""
    pull_queue_wait_ms: str = ""
    ack_queue_size: str = ""
    ack_queue_wait_ms: str = ""
    timer_read_behind: int = 0
    timer_offset_behind: int = 0
    timer_congest_num: int = 0
    timer_enqueue_tps: float = 0.0
    timer_dequeue_tps: float = 0.0
    page_cache_lock_ms: str = ""
    hours: float = 0.0
    """Age of the oldest message in hours; 0 without messages."""
    disk_ratio: float = 0.0
    active: bool = False
    error: str = ""


class ClusterBrokers(Result, kw_only=True):
    brokers: list[BrokerRow]


class BrokerTotals(Result, kw_only=True):
    cluster: str
    broker_name: str
    in_total_yesterday: int
    out_total_yesterday: int
    in_total_today: int
    out_total_today: int


class ClusterTotals(Result, kw_only=True):
    brokers: list[BrokerTotals]


class BrokerRuntime(Result, kw_only=True):
    address: str
    table: dict[str, str]


class BrokerRuntimes(Result, kw_only=True):
    brokers: list[BrokerRuntime]


class GroupQueue(Result, kw_only=True):
    topic: str
    group: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    diff: int
    last_timestamp: int


class BrokerConsumeStats(Result, kw_only=True):
    queues: list[GroupQueue]
    diff_total: int


class ColdDataFlow(Result, kw_only=True):
    address: str
    info: dict[str, Any]


class ColdDataFlows(Result, kw_only=True):
    brokers: list[ColdDataFlow]


# -- looking -----------------------------------------------------------------------------------------------


async def runtime_info(admin: Admin, address: str) -> dict[str, str]:
    """Returns a broker's runtime statistics, by name."""
    answer = await admin.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return KvTable.decode(answer.body).table


async def _members(admin: Admin, cluster: str | None) -> list[tuple[str, str, int, str]]:
    """Returns the cluster, broker name, id and address of every broker of one cluster, or of all clusters."""
    if cluster is not None:
        found = {cluster: await admin.brokers_of_cluster(cluster)}
    else:
        info = await admin.cluster_info()
        found = {
            name: [info.broker_addr_table[b] for b in sorted(brokers) if b in info.broker_addr_table]
            for name, brokers in info.cluster_addr_table.items()
        }
    return [
        (name, data.broker_name, broker_id, address)
        for name, brokers in found.items()
        for data in brokers
        for broker_id, address in sorted(data.broker_addrs.items())
    ]


async def cluster_brokers(admin: Admin, cluster: str | None = None) -> ClusterBrokers:
    """Returns every broker with its version, load, oldest message and disk. A broker that does not respond is listed
    with the error.
    """
    rows = []
    members = await _members(admin, cluster)
    for number, (name, broker, broker_id, address) in enumerate(members):
        admin.progress("brokers", number, len(members))
        row = BrokerRow(cluster=name, broker_name=broker, broker_id=broker_id, address=address)
        try:
            rows.append(_with_figures(row, await runtime_info(admin, address), admin.clock.now_ms()))
        except (BrokerError, UnreachableError) as error:
            rows.append(msgspec.structs.replace(row, error=str(error)))
    admin.progress("brokers", len(members), len(members))
    return ClusterBrokers(brokers=rows)


def _with_figures(row: BrokerRow, table: Mapping[str, str], now_ms: int) -> BrokerRow:
    earliest = _whole(table.get("earliestMessageTimeStamp"), -1)
    return msgspec.structs.replace(
        row,
        version=table.get("brokerVersionDesc", ""),
        release=table.get("orbitmqRelease", ""),
        in_tps=first_rate(table.get("putTps")),
        send_queue_size=table.get("sendThreadPoolQueueSize", ""),
        send_queue_wait_ms=table.get("sendThreadPoolQueueHeadWaitTimeMills", ""),
        out_tps=first_rate(table.get("getTransferredTps") or table.get("getTransferedTps")),  # sic
        pull_queue_size=table.get("pullThreadPoolQueueSize", ""),
        pull_queue_wait_ms=table.get("pullThreadPoolQueueHeadWaitTimeMills", ""),
        ack_queue_size=table.get("ackThreadPoolQueueSize", "N"),
        ack_queue_wait_ms=table.get("ackThreadPoolQueueHeadWaitTimeMills", "N"),
        timer_read_behind=_whole(table.get("timerReadBehind")),
        timer_offset_behind=_whole(table.get("timerOffsetBehind")),
        timer_congest_num=_whole(table.get("timerCongestNum")),
        timer_enqueue_tps=first_rate(table.get("timerEnqueueTps")),
        timer_dequeue_tps=first_rate(table.get("timerDequeueTps")),
        page_cache_lock_ms=table.get("pageCacheLockTimeMills", ""),
        # A broker without messages answers -1, which mqadmin shows as hours since 1970.
        hours=(now_ms - earliest) / 3_600_000 if earliest > 0 else 0.0,
        disk_ratio=first_rate(table.get("commitLogDiskRatio")),
        active=table.get("brokerActive") == "true",
    )


def _whole(text: str | None, default: int = 0) -> int:
    try:
        return int(text or "")
    except ValueError:
        return default


def first_rate(text: str | None) -> float:
    """Returns the first number of a text like ``0.1 0.2 0.3``, which is the rate of the last ten seconds. Returns 0
    for anything else.
    """
    try:
        return float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0


async def cluster_totals(admin: Admin, cluster: str | None = None) -> ClusterTotals:
    """Returns how many messages were stored and delivered yesterday and today."""
    rows = []
    for name, broker, _, address in await _members(admin, cluster):
        try:
            table = await runtime_info(admin, address)
        except (BrokerError, UnreachableError):
            table = {}
        marks = {
            key: [_whole(table.get(f"msg{key}Total{moment}")) for moment in _MOMENTS]
            for key in ("Put", "Get")
        }
        rows.append(
            BrokerTotals(
                cluster=name,
                broker_name=broker,
                in_total_yesterday=marks["Put"][1] - marks["Put"][0],
                out_total_yesterday=marks["Get"][1] - marks["Get"][0],
                in_total_today=marks["Put"][2] - marks["Put"][1],
                out_total_today=marks["Get"][2] - marks["Get"][1],
            )
        )
    return ClusterTotals(brokers=rows)


_MOMENTS: Final = ("YesterdayMorning", "TodayMorning", "TodayNow")


async def broker_runtimes(admin: Admin, *, broker: str | None, cluster: str | None) -> BrokerRuntimes:
    """Returns all runtime statistics of a broker, or of every broker of a cluster."""
    rows = [
        BrokerRuntime(address=address, table=dict(sorted((await runtime_info(admin, address)).items())))
        for address in admin.each("brokers", await admin.targets(broker, cluster, slaves=True))
    ]
    return BrokerRuntimes(brokers=rows)


async def config_of(admin: Admin, address: str) -> dict[str, str]:
    """Returns the settings of one broker."""
    answer = await admin.ask(address, RequestCode.GET_BROKER_CONFIG)
    return read_properties(answer.body, address)


async def options_without_effect(admin: Admin, address: str) -> list[str]:
    """Returns the options that were set for a broker of this project but have no effect, sorted; empty for
    Apache's.
    """
    answer = await admin.ask(address, RequestCode.GET_BROKER_CONFIG)
    _, _, idle = answer.body.partition(f"{WITHOUT_EFFECT_HEADING}\n".encode())
    return sorted(read_properties(idle, address))


async def broker_configs(admin: Admin, *, broker: str | None, cluster: str | None) -> ServerConfigs:
    """Returns the settings of a broker, or of every broker of a cluster, masters before their slaves."""
    if broker is not None:
        address = await admin.address(broker)
        return ServerConfigs(servers=[ServerConfig(address=address, config=await config_of(admin, address))])
    assert cluster is not None, "a broker or a cluster is needed"
    rows = []
    for data in await admin.brokers_of_cluster(cluster):
        for broker_id, address in sorted(data.broker_addrs.items()):
            is_master = broker_id == MASTER_ID
            rows.append(
                ServerConfig(
                    address=address,
                    role="master" if is_master else "slave",
                    master="" if is_master else data.master_address or "",
                    config=await config_of(admin, address),
                )
            )
    return ServerConfigs(servers=rows)


async def broker_consume_stats(
    admin: Admin, broker: str, *, ordered: bool = False, diff_min: int = 0, timeout_s: float = 50.0
) -> BrokerConsumeStats:
    """Returns the progress of every group on a broker, in the queues from which it has consumed messages.

    Leaves out queues in which the group lags by fewer than ``diff_min`` messages.
    """
    header = GetBrokerConsumeStatsRequest(is_order=ordered)
    address = await admin.address(broker)
    answer = await admin.ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_s=timeout_s)
    body = ConsumeStatsList.decode(answer.body)
    rows = [
        GroupQueue(
            topic=queue.topic,
            group=group,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            broker_offset=offset.broker_offset,
            consumer_offset=offset.consumer_offset,
            diff=offset.broker_offset - offset.consumer_offset,
            last_timestamp=offset.last_timestamp,
        )
        for groups in body.consume_stats_list
        for group, many in groups.items()
        for stats in many
        for queue, offset in sorted(stats.offset_table.items(), key=lambda item: item[0].sort_key)
        if offset.broker_offset - offset.consumer_offset >= diff_min and offset.last_timestamp > 0
    ]
    return BrokerConsumeStats(queues=rows, diff_total=body.total_diff)


# -- changing ----------------------------------------------------------------------------------------------


async def update_broker_config(
    admin: Admin, settings: dict[str, str], *, broker: str | None, cluster: str | None, slaves: bool = False
) -> Changed:
    """Change settings of a broker, or of the masters of a cluster (of all its brokers with ``slaves``)."""
    body = properties_text(settings)
    detail = " ".join(f"{key}={value}" for key, value in settings.items())
    targets = await admin.targets(broker, cluster, slaves=slaves)
    code = RequestCode.UPDATE_BROKER_CONFIG
    return await admin.change_each(targets, "config stored", code, None, body, detail=detail)


async def change_role(
    admin: Admin, broker: str, role: str, broker_id: int | None = None, *, accept_loss: bool = False
) -> Changed:
    """Make a running broker of this project a master or a slave. Apache's accepts the setting but keeps its role.

    With failover, ``accept_loss`` elects this broker although its log may lack acknowledged messages. The broker is
    first asked without the option. If it refuses, its refusal, which states what would be lost, becomes the detail of
    the change.
    """
    settings = {"brokerRole": role}
    if broker_id is not None:
        settings["brokerId"] = str(broker_id)
    if not accept_loss:
        return await _change_role(admin, broker, settings)
    try:
        return await _change_role(admin, broker, settings)
    except ServerError as refusal:
        done = await _change_role(admin, broker, {**settings, "acceptLoss": "true"})
        detail = f"{role} despite: {refusal.remark}"
        return Changed(changes=[msgspec.structs.replace(change, detail=detail) for change in done.changes])


async def _change_role(admin: Admin, broker: str, settings: dict[str, str]) -> Changed:
    detail = " ".join(f"{key}={value}" for key, value in settings.items())
    # With failover the broker answers after the change has gone through etcd, which takes seconds.
    wait_s = max(ROLE_CHANGE_S, admin.slow_s)
    code, body = RequestCode.UPDATE_BROKER_CONFIG, properties_text(settings)
    return await admin.change_each(
        await admin.targets(broker, None), "config stored", code, None, body, detail=detail, timeout_s=wait_s
    )


async def _each_broker(
    admin: Admin, broker: str | None, cluster: str | None, code: int, action: str
) -> Changed:
    """Send a request without fields to a broker, to the masters of a cluster, or to the masters of all clusters."""
    if broker is None and cluster is None:
        members = await _members(admin, None)
        addresses = [address for _, _, broker_id, address in members if broker_id == MASTER_ID]
    else:
        addresses = await admin.targets(broker, cluster)
    return await admin.change_each(addresses, action, code, timeout_s=admin.slow_s)


async def clean_expired_queues(admin: Admin, *, broker: str | None, cluster: str | None) -> Changed:
    """Delete consume queue files whose messages are no longer in the log."""
    code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
    return await _each_broker(admin, broker, cluster, code, "expired consume queues cleaned")


async def clean_unused_topics(admin: Admin, *, broker: str | None, cluster: str | None) -> Changed:
    """Delete the consume queues of topics that are no longer configured."""
    return await _each_broker(admin, broker, cluster, RequestCode.CLEAN_UNUSED_TOPIC, "unused topics cleaned")


async def delete_expired_log(admin: Admin, *, broker: str | None, cluster: str | None) -> Changed:
    """Delete expired log segments now instead of at the configured hour."""
    code = RequestCode.DELETE_EXPIRED_COMMITLOG
    return await _each_broker(admin, broker, cluster, code, "expired log segments deleted")


async def reset_master_flush_offset(admin: Admin, broker: str, offset: int) -> Changed:
    """Set the offset up to which a slave assumes that its master has flushed (Apache 5.x)."""
    address = await admin.address(broker)
    header = {"masterFlushOffset": str(offset)}
    await admin.ask(address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
    return Changed(changes=[Change(target=address, action=f"master flush offset set to {offset}")])


# -- features of Apache 5.x this project's broker refuses ----------------------------------------------------


async def cold_data_flow(admin: Admin, *, broker: str | None, cluster: str | None) -> ColdDataFlows:
    """Returns how much each group reads from disk instead of from memory."""
    rows = []
    for address in await admin.targets(broker, cluster, slaves=True):
        answer = await admin.ask(address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        rows.append(ColdDataFlow(address=address, info=javajson.loads(answer.body) if answer.body else {}))
    return ColdDataFlows(brokers=rows)


async def update_cold_data_limit(
    admin: Admin, group: str, threshold: int, *, broker: str | None, cluster: str | None
) -> Changed:
    """Limit the cold reads of a group, that is, its reads from disk."""
    body = properties_text({group: str(threshold)})
    targets = await admin.targets(broker, cluster)
    code, action = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, f"cold reads of {group} limited"
    return await admin.change_each(targets, action, code, None, body, detail=f"threshold={threshold}")


async def remove_cold_data_limit(
    admin: Admin, group: str, *, broker: str | None, cluster: str | None
) -> Changed:
    """Remove the limit of a group's cold reads."""
    targets = await admin.targets(broker, cluster)
    code, action = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, f"limit of cold reads of {group} removed"
    return await admin.change_each(targets, action, code, None, group.encode())


async def set_read_ahead(admin: Admin, mode: str, *, broker: str | None, cluster: str | None) -> Changed:
    """Set the kernel's read-ahead mode for the log: 0 for normal read-ahead, 1 for none."""
    targets = await admin.targets(broker, cluster, slaves=True)
    code, fields = RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": mode}
    return await admin.change_each(targets, f"read ahead mode set to {mode}", code, fields)


async def switch_timer_engine(
    admin: Admin, engine: str, *, broker: str | None, cluster: str | None
) -> Changed:
    """Choose the engine that stores timed messages (5.4 and later): R or F, see ``TIMER_ENGINES``."""
    targets = await admin.targets(broker, cluster)
    action = f"timer engine is {TIMER_ENGINES[engine]}"
    return await admin.change_each(targets, action, RequestCode.SWITCH_TIMER_ENGINE, {"E_T": engine})


async def add_broker(admin: Admin, container: str, config_path: str) -> Changed:
    """Start a broker inside a broker container."""
    await admin.ask(container, RequestCode.ADD_BROKER, {"configPath": config_path}, timeout_s=admin.slow_s)
    return Changed(
        changes=[Change(target=container, action="broker added", detail=f"configPath={config_path}")]
    )


async def remove_broker(admin: Admin, container: str, cluster: str, name: str, broker_id: int) -> Changed:
    """Stop a broker inside a broker container."""
    header = {"brokerClusterName": cluster, "brokerName": name, "brokerId": str(broker_id)}
    await admin.ask(container, RequestCode.REMOVE_BROKER, header, timeout_s=admin.slow_s)
    return Changed(changes=[Change(target=container, action=f"broker {cluster}:{name}:{broker_id} removed")])
