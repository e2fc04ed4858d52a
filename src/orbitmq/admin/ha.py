"""Replication: a master's view of its slaves, a slave's view of its master, and Apache's controllers and epochs."""

from __future__ import annotations

import msgspec

from orbitmq.admin.base import Change, Changed, Result, properties_text, read_properties
from orbitmq.admin.errors import AdminError
from orbitmq.admin.namesrv import ServerConfig, ServerConfigs
from orbitmq.admin.session import Admin
from orbitmq.requests import RequestCode
from orbitmq.wire import javajson
from orbitmq.wire.bodies import Body, BrokerMemberGroup, HaRuntimeInfo, always
from orbitmq.wire.frame import Frame

__all__ = [
    "BrokerEpochs",
    "ControllerMetaData",
    "ElectedMaster",
    "EpochEntry",
    "Epochs",
    "HaMaster",
    "HaSlave",
    "HaStatus",
    "HaStatuses",
    "Replica",
    "SyncState",
    "SyncStates",
    "broker_epochs",
    "clean_broker_data",
    "controller_configs",
    "controller_meta_data",
    "elect_master",
    "ha_status",
    "sync_states",
    "update_controller_config",
]


class HaSlave(Result, kw_only=True):
    address: str
    slave_ack_offset: int
    diff: int
    transferred_byte_in_second: int
    in_sync: bool
    transfer_from_where: int


class HaMaster(Result, kw_only=True):
    """A slave's view of its master."""

    address: str
    max_offset: int
    transferred_byte_in_second: int
    last_read_timestamp: int
    last_write_timestamp: int
    master_flush_offset: int


class HaStatus(Result, kw_only=True):
    address: str
    is_master: bool
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    slaves: list[HaSlave] = msgspec.field(default_factory=list)
    master: HaMaster | None = None


class HaStatuses(Result, kw_only=True):
    brokers: list[HaStatus]


async def ha_status(admin: Admin, *, broker: str | None, cluster: str | None) -> HaStatuses:
    """Returns the replication state of a broker, or of each master of a cluster."""
    rows = []
    for address in await admin.targets(broker, cluster):
        answer = await admin.ask(address, RequestCode.GET_BROKER_HA_STATUS)
        rows.append(_ha_row(address, HaRuntimeInfo.decode(answer.body)))
    return HaStatuses(brokers=rows)


def _ha_row(address: str, info: HaRuntimeInfo) -> HaStatus:
    client = info.ha_client_runtime_info
    return HaStatus(
        address=address,
        is_master=info.master,
        master_commit_log_max_offset=info.master_commit_log_max_offset,
        in_sync_slave_nums=info.in_sync_slave_nums,
        slaves=[
            HaSlave(
                address=slave.addr or "",
                slave_ack_offset=slave.slave_ack_offset,
                diff=slave.diff,
                transferred_byte_in_second=slave.transferred_byte_in_second,
                in_sync=slave.in_sync,
                transfer_from_where=slave.transfer_from_where,
            )
            for slave in info.ha_connection_info
        ],
        master=None
        if info.master or client is None
        else HaMaster(
            address=client.master_addr or "",
            max_offset=client.max_offset,
            transferred_byte_in_second=client.transferred_byte_in_second,
            last_read_timestamp=client.last_read_timestamp,
            last_write_timestamp=client.last_write_timestamp,
            master_flush_offset=client.master_flush_offset,
        ),
    )


# -- Apache 5.x's controller mode ----------------------------------------------------------------------------


class EpochEntry(Result, kw_only=True):
    epoch: int
    start_offset: int
    end_offset: int


class BrokerEpochs(Result, kw_only=True):
    cluster: str
    broker_name: str
    address: str
    broker_id: int
    epochs: list[EpochEntry]


class Epochs(Result, kw_only=True):
    brokers: list[BrokerEpochs]


class ControllerMetaData(Result, kw_only=True):
    group: str
    controller_leader_id: str
    controller_leader_address: str
    peers: list[str]


class Replica(Result, kw_only=True):
    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool


class SyncState(Result, kw_only=True):
    broker_name: str
    master_broker_id: int
    master_address: str
    master_epoch: int
    sync_state_set_epoch: int
    in_sync_replicas: list[Replica]
    not_in_sync_replicas: list[Replica]


class SyncStates(Result, kw_only=True):
    brokers: list[SyncState]


class ElectedMaster(Result, kw_only=True):
    cluster: str
    broker_name: str
    master_address: str
    master_epoch: int
    sync_state_set_epoch: int
    brokers: dict[int, str]


class _Epoch(Body, frozen=True, kw_only=True):
    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 2**63 - 1


class _EpochCache(Body, frozen=True, kw_only=True):
    broker_id: int = 0
    broker_name: str | None = None
    cluster_name: str | None = None
    epoch_list: list[_Epoch] = always(list)
    max_offset: int = 0


class _Replica(Body, frozen=True, kw_only=True):
    alive: bool | None = None
    broker_address: str | None = None
    broker_id: int | None = None
    broker_name: str | None = None


class _Replicas(Body, frozen=True, kw_only=True):
    in_sync_replicas: list[_Replica] = always(list)
    master_address: str | None = None
    master_broker_id: int | None = None
    master_epoch: int | None = None
    not_in_sync_replicas: list[_Replica] = always(list)
    sync_state_set_epoch: int | None = None


class _ReplicasTable(Body, frozen=True, kw_only=True):
    replicas_info_table: dict[str, _Replicas] = always(dict)


async def broker_epochs(admin: Admin, *, broker_name: str | None, cluster: str | None) -> Epochs:
    """Returns the epochs of each broker: which part of the log was written under which master."""
    if broker_name is not None:
        addresses = [a for _, a in sorted((await admin.broker_data(broker_name)).broker_addrs.items())]
    else:
        addresses = await admin.targets(None, cluster, slaves=True)
    rows = []
    for address in addresses:
        answer = await admin.ask(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        cache = _EpochCache.decode(answer.body)
        entries = [
            EpochEntry(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=entry.end_offset)
            for entry in cache.epoch_list
        ]
        if entries:
            # The last one is still open.
            entries[-1] = msgspec.structs.replace(entries[-1], end_offset=cache.max_offset)
        rows.append(
            BrokerEpochs(
                cluster=cache.cluster_name or "",
                broker_name=cache.broker_name or "",
                address=address,
                broker_id=cache.broker_id,
                epochs=entries,
            )
        )
    return Epochs(brokers=rows)


async def controller_meta_data(admin: Admin, controller: str) -> ControllerMetaData:
    """Returns the leader and the members of the controller group."""
    answer = await admin.ask(controller, RequestCode.CONTROLLER_GET_METADATA_INFO, role="controller")
    fields = answer.ext_fields
    return ControllerMetaData(
        group=fields.get("group", ""),
        controller_leader_id=fields.get("controllerLeaderId", ""),
        controller_leader_address=fields.get("controllerLeaderAddress", ""),
        peers=[peer for peer in fields.get("peers", "").split(";") if peer],
    )


async def _ask_leader(
    admin: Admin, controller: str, code: int, fields: dict[str, str], body: bytes = b""
) -> Frame:
    leader = (await controller_meta_data(admin, controller)).controller_leader_address
    if not leader:
        raise AdminError(f"controller {controller} has no leader")
    return await admin.ask(leader, code, fields, body, role="controller")


async def sync_states(
    admin: Admin, controller: str, *, broker_name: str | None, cluster: str | None
) -> SyncStates:
    """Returns the in-sync replicas of a broker name, or of each broker name of a cluster, according to the
    controller.
    """
    if broker_name is not None:
        names = [broker_name]
    else:
        assert cluster is not None, "a broker or a cluster is needed"
        names = await admin.broker_names(cluster)
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    answer = await _ask_leader(admin, controller, code, {}, javajson.encode(names))
    table = _ReplicasTable.decode(answer.body).replicas_info_table
    rows = [
        SyncState(
            broker_name=name,
            master_broker_id=-1 if info.master_broker_id is None else info.master_broker_id,
            master_address=info.master_address or "",
            master_epoch=info.master_epoch or 0,
            sync_state_set_epoch=info.sync_state_set_epoch or 0,
            in_sync_replicas=[_replica(one) for one in info.in_sync_replicas],
            not_in_sync_replicas=[_replica(one) for one in info.not_in_sync_replicas],
        )
        for name, info in table.items()
    ]
    return SyncStates(brokers=rows)


def _replica(one: _Replica) -> Replica:
    return Replica(
        broker_name=one.broker_name or "",
        broker_id=-1 if one.broker_id is None else one.broker_id,
        broker_address=one.broker_address or "",
        alive=bool(one.alive),
    )


async def controller_configs(admin: Admin, controllers: list[str]) -> ServerConfigs:
    """Returns the settings of controllers."""
    rows = []
    for address in controllers:
        answer = await admin.ask(address, RequestCode.GET_CONTROLLER_CONFIG, role="controller")
        rows.append(ServerConfig(address=address, config=read_properties(answer.body, address)))
    return ServerConfigs(servers=rows)


async def update_controller_config(admin: Admin, controllers: list[str], key: str, value: str) -> Changed:
    """Change one setting of each controller."""
    done = []
    for address in controllers:
        body = properties_text({key: value})
        await admin.ask(address, RequestCode.UPDATE_CONTROLLER_CONFIG, None, body, role="controller")
        done.append(Change(target=address, action="config stored", detail=f"{key}={value}"))
    return Changed(changes=done)


async def elect_master(
    admin: Admin, controller: str, cluster: str, broker_name: str, broker_id: int
) -> ElectedMaster:
    """Have a controller elect a replica as master."""
    fields = {
        "clusterName": cluster,
        "brokerName": broker_name,
        "brokerId": str(broker_id),
        "designateElect": "true",
        "invokeTime": str(admin.clock.now_ms()),
    }
    answer = await _ask_leader(admin, controller, RequestCode.CONTROLLER_ELECT_MASTER, fields)
    told = answer.ext_fields
    members = BrokerMemberGroup.decode(answer.body).broker_addrs if answer.body else {}
    return ElectedMaster(
        cluster=cluster,
        broker_name=broker_name,
        master_address=told.get("masterAddress", ""),
        master_epoch=int(told.get("masterEpoch") or 0),
        sync_state_set_epoch=int(told.get("syncStateSetEpoch") or 0),
        brokers=members,
    )


async def clean_broker_data(
    admin: Admin,
    controller: str,
    broker_name: str,
    *,
    cluster: str | None,
    broker_ids: str | None,
    living: bool,
) -> Changed:
    """Have a controller remove replicas of a broker."""
    if not living and not cluster:
        raise AdminError("a cluster is required unless live brokers are cleaned too")
    fields = {
        "brokerName": broker_name,
        "isCleanLivingBroker": "true" if living else "false",
        "invokeTime": str(admin.clock.now_ms()),
    }
    if cluster:
        fields["clusterName"] = cluster
    if broker_ids:
        fields["brokerControllerIdsToClean"] = broker_ids
    await _ask_leader(admin, controller, RequestCode.CLEAN_BROKER_DATA, fields)
    return Changed(changes=[Change(target=controller, action=f"data of broker {broker_name} cleaned")])
