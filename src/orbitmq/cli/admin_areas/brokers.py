"""Commands for brokers."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from orbitmq.admin import Admin, brokers
from orbitmq.admin.base import Changed
from orbitmq.admin.namesrv import ServerConfigs
from orbitmq.cli.admin_kit.declare import BROKER, Args, Command, Flag, group_flag, targets
from orbitmq.cli.admin_kit.output import Lines, Part, changed, second, table

__all__ = ["COMMANDS", "configs_view"]

_TARGET: Final = targets()
_CLUSTER_TARGET: Final = targets("--cluster")
_REQUIRED_BROKER: Final = Flag(names=BROKER.names, help=BROKER.help, required=True, completes="broker")
_ROLES: Final = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")


def _status_view(result: brokers.BrokerRuntimes, args: Args) -> list[Part]:
    lines = [
        f"{one.address + ' ' if args['clusterName'] else '':<24}{key:<32}: {value}"
        if args["clusterName"]
        else f"{key:<32}: {value}"
        for one in result.brokers
        for key, value in one.table.items()
    ]
    return [Lines(lines)]


def _consume_stats_view(result: brokers.BrokerConsumeStats, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        "Topic": "topic",
        "Group": "group",
        "Broker Name": "broker_name",
        "QID": "queue_id",
        "Broker Offset": "broker_offset",
        "Consumer Offset": "consumer_offset",
        "Diff": "diff",
        "LastTime": lambda r: second(r.last_timestamp),
    }
    return [table(result.queues, columns), Lines(["", f"Diff Total: {result.diff_total}"])]


def configs_view(result: ServerConfigs, args: Args) -> list[Part]:
    """Formats the settings of servers, one server after the other."""
    parts: list[Part] = []
    for server in result.servers:
        title = {
            "master": f"Master: {server.address}",
            "slave": f"My Master: {server.master}=====Slave: {server.address}",
        }.get(server.role, server.address)
        settings = [f"{key:<50}=  {value}" for key, value in server.config.items()]
        parts.append(Lines([f"============{title}============", *settings, ""]))
    return parts


def _cold_view(result: brokers.ColdDataFlows, args: Args) -> list[Part]:
    return [
        Lines(
            [
                f"============{one.address}============",
                *msgspec.json.format(msgspec.json.encode(one.info), indent=2).decode().splitlines(),
            ]
        )
        for one in result.brokers
    ]


async def _remove_broker(admin: Admin, args: Args) -> Changed:
    parts = args["brokerIdentity"].split(":")
    if len(parts) != 3 or not parts[2].isdigit():
        raise click.UsageError("-b takes clusterName:brokerName:brokerId")
    return await brokers.remove_broker(admin, args["brokerContainerAddr"], parts[0], parts[1], int(parts[2]))


async def _set_config(admin: Admin, args: Args) -> Changed:
    return await brokers.update_broker_config(
        admin,
        {args["key"]: args["value"]},
        broker=args["brokerAddr"],
        cluster=args["clusterName"],
        slaves=args["updateAllBroker"] is not None,
    )


_WATCH: Final = (
    Command(
        name="brokerStatus",
        help="Everything a broker counts and measures.",
        flags=_TARGET.flags,
        one_of=_TARGET.keys,
        call=lambda admin, a: brokers.broker_runtimes(
            admin, broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=_status_view,
        results=(brokers.BrokerRuntimes,),
    ),
    Command(
        name="brokerConsumeStats",
        help="How far every group of a broker is.",
        flags=(
            _REQUIRED_BROKER,
            Flag(names=("-o", "--order"), help="Only ordered topics.", kind=bool),
            Flag(names=("-l", "--level"), help="Only queues with a backlog of at least this.", kind=int),
            Flag(names=("-t", "--timeoutMillis"), help="How long to wait [50000].", kind=int),
        ),
        call=lambda admin, a: brokers.broker_consume_stats(
            admin,
            a["brokerAddr"],
            ordered=bool(a["order"]),
            diff_min=a["level"] or 0,
            timeout_s=(a["timeoutMillis"] or 50_000) / 1000,
        ),
        view=_consume_stats_view,
        results=(brokers.BrokerConsumeStats,),
    ),
    Command(
        name="getBrokerConfig",
        help="Settings of a broker or of all brokers of a cluster.",
        flags=_TARGET.flags,
        one_of=_TARGET.keys,
        call=lambda admin, a: brokers.broker_configs(admin, broker=a["brokerAddr"], cluster=a["clusterName"]),
        view=configs_view,
        results=(ServerConfigs,),
    ),
)

_CHANGE: Final = (
    Command(
        name="updateBrokerConfig",
        help="Change a setting of a broker or of the masters of a cluster.",
        flags=(
            *_TARGET.flags,
            Flag(names=("-a", "--updateAllBroker"), help="With -c: the slaves, too.", kind=bool),
            Flag(names=("-k", "--key"), help="Setting.", required=True),
            Flag(names=("-v", "--value"), help="Its new value.", required=True),
        ),
        one_of=_TARGET.keys,
        call=_set_config,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="changeRole",
        help="Make a running broker a master or a slave (not a command of mqadmin).",
        flags=(
            _REQUIRED_BROKER,
            Flag(names=("-r", "--role"), help="Its new role.", required=True, choices=_ROLES),
            Flag(
                names=("-i", "--brokerId"),
                help="Its new broker id; 0 is a master's, others slaves'.",
                kind=int,
            ),
            Flag(
                names=("--acceptLoss",),
                help="With failover: make it the master although its log may lack acknowledged messages.",
                switch=True,
            ),
        ),
        call=lambda admin, a: brokers.change_role(
            admin, a["brokerAddr"], a["role"].upper(), a["brokerId"], accept_loss=a["acceptLoss"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="cleanExpiredCQ",
        help="Delete files of consume queues whose messages are gone.",
        flags=_CLUSTER_TARGET.flags,
        call=lambda admin, a: brokers.clean_expired_queues(
            admin, broker=a["brokerAddr"], cluster=a["cluster"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="cleanUnusedTopic",
        help="Delete the queues of topics that no longer exist.",
        flags=_CLUSTER_TARGET.flags,
        call=lambda admin, a: brokers.clean_unused_topics(
            admin, broker=a["brokerAddr"], cluster=a["cluster"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="deleteExpiredCommitLog",
        help="Delete log segments past their time now.",
        flags=_CLUSTER_TARGET.flags,
        call=lambda admin, a: brokers.delete_expired_log(admin, broker=a["brokerAddr"], cluster=a["cluster"]),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="resetMasterFlushOffset",
        help="Make a slave forget how far its master had flushed.",
        flags=(
            _REQUIRED_BROKER,
            Flag(names=("-o", "--offset"), help="Log offset.", kind=int, required=True),
        ),
        call=lambda admin, a: brokers.reset_master_flush_offset(admin, a["brokerAddr"], a["offset"]),
        view=changed,
        results=(Changed,),
    ),
)

_APACHE: Final = (
    Command(
        name="getColdDataFlowCtrInfo",
        help="Which groups read old messages from disk, and how much.",
        flags=_TARGET.flags,
        one_of=_TARGET.keys,
        call=lambda admin, a: brokers.cold_data_flow(admin, broker=a["brokerAddr"], cluster=a["clusterName"]),
        view=_cold_view,
        results=(brokers.ColdDataFlows,),
    ),
    Command(
        name="updateColdDataFlowCtrGroupConfig",
        help="Limit the cold reads of a group.",
        flags=(
            *_TARGET.flags,
            group_flag("--consumerGroup"),
            Flag(names=("-v", "--threshold"), help="Bytes a second.", kind=int, required=True),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: brokers.update_cold_data_limit(
            admin, a["consumerGroup"], a["threshold"], broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="removeColdDataFlowCtrGroupConfig",
        help="Lift the limit on the cold reads of a group.",
        flags=(*_TARGET.flags, group_flag("--consumerGroup")),
        one_of=_TARGET.keys,
        call=lambda admin, a: brokers.remove_cold_data_limit(
            admin, a["consumerGroup"], broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="setCommitLogReadAheadMode",
        help="How the kernel reads the log ahead.",
        flags=(
            *_TARGET.flags,
            Flag(
                names=("-m", "--commitLogReadAheadMode"),
                help="0: as usual, 1: not at all.",
                required=True,
                choices=("0", "1"),
            ),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: brokers.set_read_ahead(
            admin, a["commitLogReadAheadMode"], broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="switchTimerEngine",
        help="Which engine keeps timed messages.",
        flags=(
            *_TARGET.flags,
            Flag(
                names=("-e", "--engineType"),
                help="R: RocksDB, F: files.",
                required=True,
                choices=("R", "F"),
            ),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: brokers.switch_timer_engine(
            admin, a["engineType"].upper(), broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="addBroker",
        help="Start a broker inside a broker container.",
        flags=(
            Flag(names=("-c", "--brokerContainerAddr"), help="Container, as host:port.", required=True),
            Flag(names=("-b", "--brokerConfigPath"), help="Configuration file there.", required=True),
        ),
        call=lambda admin, a: brokers.add_broker(admin, a["brokerContainerAddr"], a["brokerConfigPath"]),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="removeBroker",
        help="Stop a broker inside a broker container.",
        flags=(
            Flag(names=("-c", "--brokerContainerAddr"), help="Container, as host:port.", required=True),
            Flag(names=("-b", "--brokerIdentity"), help="clusterName:brokerName:brokerId", required=True),
        ),
        call=_remove_broker,
        view=changed,
        results=(Changed,),
    ),
)

COMMANDS: Final = (*_WATCH, *_CHANGE, *_APACHE)
