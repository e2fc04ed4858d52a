"""Exports of a cluster's topics and groups, important settings, and load, as values that can be written as JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from orbitmq.admin.base import Change, Changed
from orbitmq.admin.brokers import config_of, first_rate, runtime_info
from orbitmq.admin.groups import consumer_connection
from orbitmq.admin.session import Admin
from orbitmq.admin.stats import PUT_COUNT, broker_stats, sum_of_a_day
from orbitmq.codes import Version, version_name
from orbitmq.errors import OrbitError
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import (
    HALF_TOPIC,
    PREDEFINED_GROUPS,
    SCHEDULE_TOPIC,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
)
from orbitmq.model.topic import TopicConfig, is_perm_valid
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import SubscriptionGroupWrapper, TopicConfigWrapper, TopicList

__all__ = [
    "cluster_configs",
    "cluster_metadata",
    "cluster_metrics",
    "pop_records",
    "user_groups",
    "user_topics",
]

_POP_RECORDS_S: Final = 30.0

_SETTINGS: Final = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)
"""Settings that another cluster must share to take over the load of this one."""


async def user_topics(admin: Admin, address: str, *, special: bool = False) -> TopicConfigWrapper:
    """Returns the topics of a broker, without system topics. Includes retry and dead-letter topics only if
    ``special``.
    """
    answer = await admin.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout_s=admin.slow_s)
    wrapper = TopicConfigWrapper.decode(answer.body)
    answer = await admin.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    system = set(TopicList.decode(answer.body).topic_list)
    chosen = {
        name: config
        for name, config in wrapper.topic_config_table.items()
        if name not in system
        and not is_system_topic(name)
        and (special or not (is_retry_topic(name) or is_dlq_topic(name)))
        and is_perm_valid(config.perm)
    }
    return msgspec.structs.replace(wrapper, topic_config_table=chosen)


async def user_groups(admin: Admin, address: str) -> SubscriptionGroupWrapper:
    """Returns the consumer groups of a broker, without system groups."""
    answer = await admin.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_s=admin.slow_s)
    wrapper = SubscriptionGroupWrapper.decode(answer.body)
    chosen = {
        name: config
        for name, config in wrapper.subscription_group_table.items()
        if not is_system_group(name) and name not in PREDEFINED_GROUPS
    }
    return msgspec.structs.replace(wrapper, subscription_group_table=chosen)


async def cluster_metadata(admin: Admin, cluster: str, *, special: bool = False) -> dict[str, Any]:
    """Returns the topics and groups of a cluster. The queue counts of a topic on several brokers are added up."""
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for address in await admin.targets(None, cluster):
        for name, topic in (await user_topics(admin, address, special=special)).topic_config_table.items():
            if (known := topics.get(name)) is not None:
                topic = msgspec.structs.replace(
                    topic,
                    read_queue_nums=topic.read_queue_nums + known.read_queue_nums,
                    write_queue_nums=topic.write_queue_nums + known.write_queue_nums,
                )
            topics[name] = topic
        for name, group in (await user_groups(admin, address)).subscription_group_table.items():
            if (before := groups.get(name)) is not None:
                added = group.retry_queue_nums + before.retry_queue_nums
                group = msgspec.structs.replace(group, retry_queue_nums=added)
            groups[name] = group
    return {
        "topicConfigTable": msgspec.to_builtins(topics),
        "subscriptionGroupTable": msgspec.to_builtins(groups),
        "exportTime": admin.clock.now_ms(),
    }


async def cluster_configs(admin: Admin, cluster: str) -> dict[str, Any]:
    """Returns the ``_SETTINGS`` of each master by broker name, and the number of servers."""
    configs: dict[str, dict[str, str]] = {}
    masters = slaves = 0
    for data in await admin.brokers_of_cluster(cluster):
        if data.master_address is None:
            slaves += len(data.broker_addrs)
            continue
        masters += 1
        slaves += len(data.broker_addrs) - 1
        config = await config_of(admin, data.master_address)
        configs[data.broker_name] = {key: config[key] for key in _SETTINGS if key in config}
    scale = {
        "namesrvSize": len(admin.required_name_servers()),
        "masterBrokerSize": masters,
        "slaveBrokerSize": slaves,
    }
    return {"brokerConfigs": configs, "clusterScale": scale}


async def cluster_metrics(admin: Admin, cluster: str) -> dict[str, Any]:
    """Returns the load and size of each master, and the totals of the cluster."""
    report: dict[str, Any] = {}
    rates = dict.fromkeys(
        ("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps"), 0.0
    )
    sums = dict.fromkeys(
        ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum"), 0
    )
    for data in await admin.brokers_of_cluster(cluster):
        if data.master_address is None:
            continue
        quota = await _quota(admin, data.master_address)
        for key, value in quota["tps"].items():
            rates[f"total{key[0].upper()}{key[1:]}"] += value
        for key, value in quota["oneDayNum"].items():
            sums[key] += value
        table = await runtime_info(admin, data.master_address)
        config = await config_of(admin, data.master_address)
        environment = {
            "cpuNum": config.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": table.get("totalMemKBytes"),
        }
        report[data.broker_name] = {
            "runtimeEnv": {key: value for key, value in environment.items() if value is not None},
            "runtimeQuota": quota,
            "runtimeVersion": await _versions(admin, data.master_address),
        }
    return {"evaluateReport": report, "totalData": {"totalTps": rates, "totalOneDayNum": sums}}


async def _quota(admin: Admin, address: str) -> dict[str, Any]:
    table = await runtime_info(admin, address)
    half = await broker_stats(admin, address, PUT_COUNT, HALF_TOPIC)
    delayed = await broker_stats(admin, address, PUT_COUNT, SCHEDULE_TOPIC)

    def of_yesterday(kind: str) -> int:
        return int(table.get(f"msg{kind}TotalTodayMorning", 0)) - int(
            table.get(f"msg{kind}TotalYesterdayMorning", 0)
        )

    topics = await user_topics(admin, address)
    groups = await user_groups(admin, address)
    return {
        "diskRatio": {
            key: table[key] for key in ("commitLogDiskRatio", "consumeQueueDiskRatio") if key in table
        },
        "tps": {
            "normalInTps": first_rate(table.get("putTps")),
            "normalOutTps": first_rate(
                table.get("getTransferredTps") or table.get("getTransferedTps")
            ),  # sic
            "transInTps": half.stats_minute.tps if half and half.stats_minute else 0.0,
            "scheduleInTps": delayed.stats_minute.tps if delayed and delayed.stats_minute else 0.0,
        },
        "oneDayNum": {
            "normalOneDayInNum": of_yesterday("Put"),
            "normalOneDayOutNum": of_yesterday("Get"),
            "transOneDayInNum": sum_of_a_day(half),
            "scheduleOneDayInNum": sum_of_a_day(delayed),
        },
        "messageAverageSize": table.get("putMessageAverageSize"),
        "topicSize": len(topics.topic_config_table),
        "groupSize": len(groups.subscription_group_table),
    }


async def _versions(admin: Admin, address: str) -> dict[str, Any]:
    found: set[str] = set()
    for group in (await user_groups(admin, address)).subscription_group_table:
        try:
            clients = (await consumer_connection(admin, group)).connections
        except OrbitError:
            continue
        found.update(f"{client.language}%{client.version}" for client in clients)
    return {"rocketmqVersion": version_name(Version.OURS), "clientInfo": sorted(found)}


async def pop_records(admin: Admin, *, broker: str | None, cluster: str | None, dry_run: bool) -> Changed:
    """Have brokers, including slaves, write POP checkpoints to the log that they keep elsewhere.

    Apache's brokers keep them in RocksDB; this project's keep acknowledgements in memory. With ``dry_run`` no broker
    is called.
    """
    targets = await admin.targets(broker, cluster, slaves=True)
    action = "POP checkpoints written to the log"
    if dry_run:
        return Changed(changes=[Change(target=one, action=action, detail="dry run") for one in targets])
    return await admin.change_each(targets, action, RequestCode.POP_ROLLBACK, timeout_s=_POP_RECORDS_S)
