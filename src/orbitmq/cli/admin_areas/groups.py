"""Commands for consumer groups, their members, and producers."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import msgspec

from orbitmq.admin import Admin, Result, groups, monitor
from orbitmq.admin.base import Changed
from orbitmq.cli.admin_kit.declare import BROKER, Args, Command, Flag, group_flag, targets, topic_flag
from orbitmq.cli.admin_kit.output import Lines, Part, changed, flat, java_map, pairs, second, table
from orbitmq.model.group import GroupRetryPolicy, SubscriptionGroupConfig
from orbitmq.model.topic import parse_attribute_changes
from orbitmq.wire.bodies import MessageRequestMode, decode_body

__all__ = ["COMMANDS"]

_TARGET: Final = targets()
_CLIENTS: Final = {
    "ClientId": "client_id",
    "ClientAddr": "client_addr",
    "Language": "language",
    "Version": "version",
}


# -- progress ----------------------------------------------------------------------------------------------


def _progress(admin: Admin, args: Args) -> Awaitable[Result]:
    if args["groupName"] is None:
        return groups.consumer_groups(admin)
    return groups.group_progress(
        admin,
        args["groupName"],
        args["topicName"],
        with_clients=bool(args["showClientIP"]),
        route_topic=args["cluster"],
    )


def _progress_view(result: groups.ConsumerGroups | groups.GroupProgress, args: Args) -> list[Part]:
    if isinstance(result, groups.ConsumerGroups):
        overview = {
            "Group": "group",
            "Count": "count",
            "Version": "version",
            "Type": "type",
            "Model": "model",
            "TPS": "tps",
            "Diff Total": "diff_total",
            "Lag": "lag_total",
        }
        return [table(result.groups, overview)]
    columns: dict[str, Any] = {
        "Topic": "topic",
        "Broker Name": "broker_name",
        "QID": "queue_id",
        "Broker Offset": "broker_offset",
        "Consumer Offset": "consumer_offset",
        "Client IP": "client_ip",
        "Diff": "diff",
        "Inflight": "inflight",
        "LastTime": lambda r: second(r.last_timestamp),
        "Lag": "lag",
    }
    if not args["showClientIP"]:
        del columns["Client IP"]
    sums = [
        "",
        f"Consume TPS: {result.consume_tps:.2f}",
        f"Consume Diff Total: {result.diff_total}",
        f"Consume Inflight Total: {result.inflight_total}",
        f"Lag Total: {result.lag_total}",
    ]
    return [table(result.queues, columns), Lines(sums)]


# -- members -----------------------------------------------------------------------------------------------


def _connection_view(result: groups.GroupConnection, args: Args) -> list[Part]:
    return [
        table(result.connections, _CLIENTS),
        table(result.subscriptions, {"Topic": "topic", "SubExpression": "sub_expression"}),
        Lines(
            [
                "",
                f"ConsumeType: {result.consume_type}",
                f"MessageModel: {result.message_model}",
                f"ConsumeFromWhere: {result.consume_from_where}",
            ]
        ),
    ]


def _producers_view(result: groups.Producers, args: Args) -> list[Part]:
    columns = {
        "Group": "group",
        "ClientId": "client_id",
        "RemoteIP": "remote_ip",
        "Language": "language",
        "Version": "version",
        "LastUpdate": "last_update_timestamp",
    }
    return [table(result.producers, columns)]


def _status(admin: Admin, args: Args) -> Awaitable[Result]:
    if args["clientId"] is not None:
        return groups.running_consumer(admin, args["consumerGroup"], args["clientId"], stacks=args["jstack"])
    return groups.group_members(
        admin, args["consumerGroup"], broker=args["brokerAddr"], stacks=args["jstack"]
    )


def _status_view(result: groups.GroupMembers | groups.RunningConsumer, args: Args) -> list[Part]:
    if isinstance(result, groups.RunningConsumer):
        return _running_view(result)
    rows = [_Member(number, one.client_id, one.version) for number, one in enumerate(result.members, 1)]
    alike = "the same" if result.same_subscription else "DIFFERENT"
    lines = ["", f"Subscriptions of the members are {alike}", *result.findings]
    columns = {"Index": "index", "ClientId": "client_id", "Version": "version"}
    return [table(rows, columns), Lines(lines)]


class _Member(msgspec.Struct):
    index: int
    client_id: str
    version: str


def _running_view(result: groups.RunningConsumer) -> list[Part]:
    offsets = {"Topic": "topic", "Broker Name": "broker_name", "QID": "queue_id"}
    held: dict[str, Any] = {**offsets, "ProcessQueueInfo": lambda r: java_map(r.detail)}
    rates: dict[str, Any] = {
        "Topic": "topic",
        "Pull RT": lambda r: f"{r.pull_rt:.2f}",
        "Pull TPS": lambda r: f"{r.pull_tps:.2f}",
        "Consume RT": lambda r: f"{r.consume_rt:.2f}",
        "ConsumeOK TPS": lambda r: f"{r.consume_ok_tps:.2f}",
        "ConsumeFailed TPS": lambda r: f"{r.consume_failed_tps:.2f}",
        "ConsumeFailedMsgsInHour": "consume_failed_msgs",
    }
    subscriptions = [
        f"{number:03d} Topic: {one.topic:<40} ClassFilter: {flat(one.class_filter_mode):<8} "
        f"SubExpression: {one.sub_expression}"
        for number, one in enumerate(result.subscriptions, 1)
    ]
    parts: list[Part] = [
        Lines(["#Consumer Properties#"]),
        pairs(result.properties, width=40),
        Lines(["", "", "#Consumer Subscription#", *subscriptions, "", "", "#Consumer Offset#"]),
        table(result.queues, {**offsets, "Consumer Offset": "commit_offset"}),
        Lines(["", "", "#Consumer MQ Detail#"]),
        table(result.queues, held),
        Lines(["", "", "#Consumer Pop Detail#"]),
        table(result.pop_queues, held),
        Lines(["", "", "#Consumer RT&TPS#"]),
        table(result.rates, rates),
    ]
    if result.user_info:
        parts += [Lines(["", "", "#User Consume Info#"]), pairs(result.user_info, width=40)]
    if result.jstack:
        parts.append(Lines(["", "", "#Consumer jstack#", *result.jstack.splitlines()]))
    return parts


# -- settings ----------------------------------------------------------------------------------------------

_ORDER: Final = (
    "groupName",
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "consumeMessageOrderly",
    "retryQueueNums",
    "retryMaxTimes",
    "groupRetryPolicy",
    "brokerId",
    "whichBrokerWhenConsumeSlowly",
    "notifyConsumerIdsChangedEnable",
    "groupSysFlag",
    "consumeTimeoutMinute",
    "subscriptionDataSet",
    "attributes",
)


def _config_view(result: groups.ConsumerConfigs, args: Args) -> list[Part]:
    parts: list[Part] = []
    for one in result.configs:
        values = msgspec.to_builtins(one.config)
        policy = values["groupRetryPolicy"]
        values["groupRetryPolicy"] = (
            f"GroupRetryPolicy{{type={policy['type']}, "
            + ", ".join(
                f"{name}={(policy.get(name) and java_map(policy[name])) or 'null'}"
                for name in ("exponentialRetryPolicy", "customizedRetryPolicy")
            )
            + "}"
        )
        values["attributes"] = java_map(values["attributes"])
        lines = [f"{key:<40}=  {flat(values.get(key))}" for key in _ORDER]
        title = f"{one.cluster}:{one.broker_name}"
        parts.append(Lines([f"{title:=^{58 + len(title)}}", *lines]))
    return parts or [Lines([f"no broker has a group {args['groupName']}"])]


def _update(admin: Admin, args: Args) -> Awaitable[Changed]:
    given = {
        "consume_enable": args["consumeEnable"],
        "consume_from_min_enable": bool(args["consumeFromMinEnable"]),
        "consume_broadcast_enable": bool(args["consumeBroadcastEnable"]),
        "consume_message_orderly": args["consumeMessageOrderly"],
        "retry_queue_nums": args["retryQueueNums"],
        "retry_max_times": args["retryMaxTimes"],
        "broker_id": args["brokerId"],
        "which_broker_when_consume_slowly": args["whichBrokerWhenConsumeSlowly"],
        "notify_consumer_ids_changed_enable": args["notifyConsumerIdsChanged"],
        "attributes": parse_attribute_changes(args["attributes"]) if args["attributes"] else None,
        "group_retry_policy": decode_body(GroupRetryPolicy, args["groupRetryPolicy"].encode())
        if args["groupRetryPolicy"]
        else None,
    }
    config = SubscriptionGroupConfig(group_name=args["groupName"])
    changes = {key: value for key, value in given.items() if value is not None}
    config = msgspec.structs.replace(config, **changes)
    return groups.update_group(admin, config, broker=args["brokerAddr"], cluster=args["clusterName"])


def _update_list(admin: Admin, args: Args) -> Awaitable[Changed]:
    configs = groups.read_group_list(Path(args["filename"]).read_bytes())
    return groups.update_group_list(admin, configs, broker=args["brokerAddr"], cluster=args["clusterName"])


def _mode(admin: Admin, args: Args) -> Awaitable[Changed]:
    mode = MessageRequestMode(
        consumer_group=args["groupName"],
        topic=args["topicName"],
        mode=args["mode"].upper(),
        pop_share_queue_num=args["popShareQueueNum"] or 0,
    )
    return groups.set_consume_mode(admin, mode, broker=args["brokerAddr"], cluster=args["clusterName"])


def _monitor_view(result: monitor.MonitorRound, args: Args) -> list[Part]:
    columns = {
        "Group": "group",
        "Topic": "topic",
        "UndoneTotal": "total",
        "UndoneSingleMQ": "single_queue_max",
        "DelayTime(ms)": "delay_ms",
    }
    return [Lines([second(result.timestamp)]), table(result.undone, columns), Lines(result.findings)]


COMMANDS: Final = (
    Command(
        name="consumerProgress",
        help="Progress of consumer groups, or of one group by queue.",
        flags=(
            group_flag("--groupName", "Only this group, queue by queue.", required=False),
            topic_flag("Only this topic of the group.", required=False, name="--topicName"),
            Flag(names=("-s", "--showClientIP"), help="Show the owner of each queue.", kind=bool),
            Flag(names=("-c", "--cluster"), help="Topic or cluster whose route finds the brokers."),
        ),
        call=_progress,
        view=_progress_view,
        results=(groups.ConsumerGroups, groups.GroupProgress),
    ),
    Command(
        name="consumerConnection",
        help="Members of a consumer group and what they subscribe to.",
        flags=(group_flag("--consumerGroup"), BROKER),
        call=lambda admin, a: groups.consumer_connection(admin, a["consumerGroup"], a["brokerAddr"]),
        view=_connection_view,
        results=(groups.GroupConnection,),
    ),
    Command(
        name="consumerStatus",
        help="Current state of the members of a consumer group, or of one member.",
        flags=(
            group_flag("--consumerGroup"),
            Flag(names=("-i", "--clientId"), help="Only this member, in detail."),
            Flag(names=("-s", "--jstack"), help="With the stacks of its threads.", switch=True),
            BROKER,
        ),
        call=_status,
        view=_status_view,
        results=(groups.GroupMembers, groups.RunningConsumer),
    ),
    Command(
        name="getConsumerConfig",
        help="Settings of a consumer group on every broker.",
        flags=(group_flag("--groupName"),),
        call=lambda admin, a: groups.consumer_configs(admin, a["groupName"]),
        view=_config_view,
        results=(groups.ConsumerConfigs,),
    ),
    Command(
        name="producerConnection",
        help="Members of a producer group.",
        flags=(
            Flag(names=("-g", "--producerGroup"), help="Producer group.", required=True),
            topic_flag("A topic they send to."),
        ),
        call=lambda admin, a: groups.producer_connection(admin, a["producerGroup"], a["topic"]),
        view=lambda result, a: [table(result.connections, _CLIENTS)],
        results=(groups.ProducerClients,),
    ),
    Command(
        name="producer",
        help="Every producer registered with a broker.",
        flags=(
            Flag(
                names=("-b", "--broker"),
                help="Broker, as host:port or by its name.",
                required=True,
                completes="broker",
            ),
        ),
        call=lambda admin, a: groups.producers(admin, a["broker"]),
        view=_producers_view,
        results=(groups.Producers,),
    ),
    Command(
        name="updateSubGroup",
        help="Create or change a consumer group.",
        flags=(
            *_TARGET.flags,
            group_flag("--groupName"),
            Flag(names=("-s", "--consumeEnable"), help="May consume [true].", kind=bool),
            Flag(names=("-m", "--consumeFromMinEnable"), help="May start at the oldest message.", kind=bool),
            Flag(names=("-d", "--consumeBroadcastEnable"), help="May broadcast.", kind=bool),
            Flag(names=("-o", "--consumeMessageOrderly"), help="Consumes in order.", kind=bool),
            Flag(names=("-q", "--retryQueueNums"), help="Queues of its retry topic [1].", kind=int),
            Flag(
                names=("-r", "--retryMaxTimes"),
                help="Deliveries before a message is dead-lettered [16].",
                kind=int,
            ),
            Flag(names=("-p", "--groupRetryPolicy"), help="When to deliver again, as JSON."),
            Flag(names=("-i", "--brokerId"), help="Broker id to consume from [0].", kind=int),
            Flag(
                names=("-w", "--whichBrokerWhenConsumeSlowly"),
                help="Broker id for a group that lags [1].",
                kind=int,
            ),
            Flag(
                names=("-a", "--notifyConsumerIdsChanged"),
                help="Notify members when the membership changes [true].",
                kind=bool,
            ),
            Flag(names=("--attributes",), help="Changes to attributes: +a=b,-c."),
        ),
        one_of=_TARGET.keys,
        call=_update,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="updateSubGroupList",
        help="Create or change the consumer groups of a JSON file.",
        flags=(
            *_TARGET.flags,
            Flag(names=("-f", "--filename"), help="A JSON array of groups.", required=True),
        ),
        one_of=_TARGET.keys,
        call=_update_list,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="deleteSubGroup",
        help="Delete a consumer group.",
        flags=(
            *_TARGET.flags,
            group_flag("--groupName"),
            Flag(names=("-r", "--removeOffset"), help="Delete its offsets too.", kind=bool),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: groups.delete_group(
            admin,
            a["groupName"],
            broker=a["brokerAddr"],
            cluster=a["clusterName"],
            remove_offset=bool(a["removeOffset"]),
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="setConsumeMode",
        help="Set whether a group pulls or pops a topic.",
        flags=(
            *_TARGET.flags,
            topic_flag(name="--topicName"),
            group_flag("--groupName"),
            Flag(names=("-m", "--mode"), help="How.", required=True, choices=("PULL", "POP")),
            Flag(names=("-q", "--popShareQueueNum"), help="Queues each member shares with others.", kind=int),
        ),
        one_of=_TARGET.keys,
        call=_mode,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="startMonitoring",
        help="Watch all groups: backlog, stalled members, differing subscriptions.",
        flags=(
            Flag(
                names=("-i", "--interval"),
                help="Seconds between two checks; 0: check once.",
                kind=float,
                default=60.0,
            ),
        ),
        call=lambda admin, a: monitor.monitor_round(admin),
        view=_monitor_view,
        results=(monitor.MonitorRound,),
    ),
)
