"""Commands for replication and Apache's controllers."""

from __future__ import annotations

from typing import Any, Final

from orbitmq.admin import ha
from orbitmq.admin.base import Changed
from orbitmq.admin.namesrv import ServerConfigs
from orbitmq.cli.admin_areas.brokers import configs_view
from orbitmq.cli.admin_kit.declare import CLUSTER, INTERVAL, Args, Command, Flag, targets
from orbitmq.cli.admin_kit.output import Lines, Part, changed, moment, table

__all__ = ["COMMANDS"]

_TARGET: Final = targets()
_CONTROLLER: Final = Flag(
    names=("-a", "--controllerAddress"), help="Controller, as host:port.", required=True
)
_NAME: Final = Flag(names=("-b", "--brokerName"), help="Broker name.", completes="name")


def _status_view(result: ha.HaStatuses, args: Args) -> list[Part]:
    slaves: dict[str, Any] = {
        "SlaveAddr": "address",
        "SlaveAckOffset": "slave_ack_offset",
        "Diff": "diff",
        "TransferSpeed(KB/s)": lambda r: f"{r.transferred_byte_in_second / 1024:.2f}",
        "Status": lambda r: "OK" if r.in_sync else "Fall Behind",
        "TransferFromWhere": "transfer_from_where",
    }
    parts: list[Part] = []
    for one in result.brokers:
        if one.master is None:
            lines = [
                "",
                f"#MasterAddr\t{one.address}",
                f"#MasterCommitLogMaxOffset\t{one.master_commit_log_max_offset}",
                f"#SlaveNum\t{len(one.slaves)}",
                f"#InSyncSlaveNum\t{one.in_sync_slave_nums}",
            ]
            parts += [Lines(lines), table(one.slaves, slaves)]
            continue
        lines = [
            "",
            f"#MasterAddr\t{one.master.address}",
            f"#CommitLogMaxOffset\t{one.master.max_offset}",
            f"#TransferSpeed(KB/s)\t{one.master.transferred_byte_in_second / 1024:.2f}",
            f"#LastReadTime\t{moment(one.master.last_read_timestamp)}",
            f"#LastWriteTime\t{moment(one.master.last_write_timestamp)}",
            f"#MasterFlushOffset\t{one.master.master_flush_offset}",
        ]
        parts.append(Lines(lines))
    return parts


def _epoch_view(result: ha.Epochs, args: Args) -> list[Part]:
    parts: list[Part] = []
    for one in result.brokers:
        lines = [
            "",
            f"#clusterName\t{one.cluster}",
            f"#brokerName\t{one.broker_name}",
            f"#brokerAddr\t{one.address}",
            f"#brokerId\t{one.broker_id}",
        ]
        columns = {"Epoch": "epoch", "StartOffset": "start_offset", "EndOffset": "end_offset"}
        parts += [Lines(lines), table(one.epochs, columns)]
    return parts


def _sync_view(result: ha.SyncStates, args: Args) -> list[Part]:
    parts: list[Part] = []
    columns: dict[str, Any] = {
        "BrokerId": "broker_id",
        "BrokerAddress": "broker_address",
        "Alive": "alive",
    }
    for one in result.brokers:
        lines = [
            "",
            f"#brokerName\t{one.broker_name}",
            f"#MasterBrokerId\t{one.master_broker_id}",
            f"#MasterAddr\t{one.master_address}",
            f"#MasterEpoch\t{one.master_epoch}",
            f"#SyncStateSetEpoch\t{one.sync_state_set_epoch}",
            f"#SyncStateSetNums\t{len(one.in_sync_replicas)}",
        ]
        parts += [Lines([*lines, "InSyncReplicas:"]), table(one.in_sync_replicas, columns)]
        parts += [Lines(["NotInSyncReplicas:"]), table(one.not_in_sync_replicas, columns)]
    return parts


def _meta_view(result: ha.ControllerMetaData, args: Args) -> list[Part]:
    lines = [
        f"#ControllerGroup\t{result.group}",
        f"#ControllerLeaderId\t{result.controller_leader_id}",
        f"#ControllerLeaderAddress\t{result.controller_leader_address}",
        *(f"#Peer:\t{peer}" for peer in result.peers),
    ]
    return [Lines(lines)]


def _elected_view(result: ha.ElectedMaster, args: Args) -> list[Part]:
    lines = [
        f"#ClusterName\t{result.cluster}",
        f"#BrokerName\t{result.broker_name}",
        f"#BrokerMasterAddr\t{result.master_address}",
        f"#MasterEpoch\t{result.master_epoch}",
        f"#SyncStateSetEpoch\t{result.sync_state_set_epoch}",
        *(f"\t#Broker\t{broker_id}\t{address}" for broker_id, address in result.brokers.items()),
    ]
    return [Lines(lines)]


def _split(addresses: str) -> list[str]:
    return [part.strip() for part in addresses.split(";") if part.strip()]


COMMANDS: Final = (
    Command(
        name="haStatus",
        help="Replication progress of a master's slaves, or of one slave.",
        flags=(*_TARGET.flags, INTERVAL),
        one_of=_TARGET.keys,
        call=lambda admin, a: ha.ha_status(admin, broker=a["brokerAddr"], cluster=a["clusterName"]),
        view=_status_view,
        results=(ha.HaStatuses,),
    ),
    Command(
        name="getSyncStateSet",
        help="The in-sync replicas that a controller knows.",
        flags=(_CONTROLLER, _NAME, CLUSTER, INTERVAL),
        one_of=(_NAME.key, CLUSTER.key),
        call=lambda admin, a: ha.sync_states(
            admin,
            _split(a["controllerAddress"])[0],
            broker_name=a["brokerName"],
            cluster=a["clusterName"],
        ),
        view=_sync_view,
        results=(ha.SyncStates,),
    ),
    Command(
        name="getBrokerEpoch",
        help="Epochs of a broker: which master wrote from which log offset.",
        flags=(_NAME, CLUSTER, INTERVAL),
        one_of=(_NAME.key, CLUSTER.key),
        call=lambda admin, a: ha.broker_epochs(admin, broker_name=a["brokerName"], cluster=a["clusterName"]),
        view=_epoch_view,
        results=(ha.Epochs,),
    ),
    Command(
        name="getControllerMetaData",
        help="The leader of the controllers.",
        flags=(_CONTROLLER,),
        call=lambda admin, a: ha.controller_meta_data(admin, a["controllerAddress"]),
        view=_meta_view,
        results=(ha.ControllerMetaData,),
    ),
    Command(
        name="getControllerConfig",
        help="Settings of controllers.",
        flags=(_CONTROLLER,),
        call=lambda admin, a: ha.controller_configs(admin, _split(a["controllerAddress"])),
        view=configs_view,
        results=(ServerConfigs,),
    ),
    Command(
        name="updateControllerConfig",
        help="Change a setting of controllers.",
        flags=(
            _CONTROLLER,
            Flag(names=("-k", "--key"), help="Setting.", required=True),
            Flag(names=("-v", "--value"), help="Its new value.", required=True),
        ),
        call=lambda admin, a: ha.update_controller_config(
            admin, _split(a["controllerAddress"]), a["key"], a["value"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="electMaster",
        help="Have a controller make a replica the master.",
        flags=(
            _CONTROLLER,
            Flag(names=("-b", "--brokerId"), help="Its broker id.", kind=int, required=True),
            Flag(names=("-bn", "--brokerName"), help="Broker name.", required=True, completes="name"),
            Flag(names=("-c", "--clusterName"), help="Cluster.", required=True, completes="cluster"),
        ),
        call=lambda admin, a: ha.elect_master(
            admin, a["controllerAddress"], a["clusterName"], a["brokerName"], a["brokerId"]
        ),
        view=_elected_view,
        results=(ha.ElectedMaster,),
    ),
    Command(
        name="cleanBrokerMetadata",
        help="Remove replicas from a controller's metadata.",
        flags=(
            _CONTROLLER,
            Flag(names=("-b", "--brokerControllerIdsToClean"), help="Ids of the replicas: 1;2;3. Else all."),
            Flag(names=("-bn", "--brokerName"), help="Broker name.", required=True, completes="name"),
            CLUSTER,
            Flag(names=("-l", "--cleanLivingBroker"), help="Also those that are alive.", switch=True),
        ),
        call=lambda admin, a: ha.clean_broker_data(
            admin,
            a["controllerAddress"],
            a["brokerName"],
            cluster=a["clusterName"],
            broker_ids=a["brokerControllerIdsToClean"],
            living=a["cleanLivingBroker"],
        ),
        view=changed,
        results=(Changed,),
    ),
)
