"""The broker's role in its group, and role changes at run time (Apache 4: changeToMaster/Slave).

A master delivers delayed messages and checks transactions; a slave follows its master's log and copies its tables.
Both listen on the replication port. UPDATE_BROKER_CONFIG with ``brokerRole`` (and ``brokerId`` for a slave) changes
the role, as in ``mqadmin updateBrokerConfig -k brokerRole -v SLAVE``.

The order of a change ensures that no two brokers of a group deliver simultaneously, and that nothing is written that
no slave can follow:

- to slave: refuse sends, stop deliveries, disconnect our own slaves, follow, copy tables, register.
- to master: stop copying, stop following (an incomplete record is dropped), accept sends, deliver, register.

With failover, only ``failover.coordinator`` changes the role. It also chooses the master to follow.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from orbitmq.broker.config import MASTER_ID, BrokerConfig, BrokerRole, change_role
from orbitmq.broker.delivery.deliveries import Deliveries
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.replication.log_prefix import LogPrefixCheck
from orbitmq.broker.replication.master import ReplicaServer
from orbitmq.broker.replication.metadata_sync import MetadataSync, copied_text
from orbitmq.broker.replication.record_repair import RecordRepair
from orbitmq.broker.replication.slave import Follower, Membership
from orbitmq.model.data_version import DataVersion
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import RpcClient
from orbitmq.wire import bodies
from orbitmq.wire.headers import ExchangeBrokerHaInfoRequest, ExchangeBrokerHaInfoResponse

__all__ = ["GroupLog", "Peers", "RoleSwitch"]

logger = logging.getLogger(__name__)

_SIGN_IN_S: Final = 3.0


class GroupLog(Protocol):
    """Aligns our log with the failover group's log before we follow a master. Used only with failover."""

    def align(self) -> None:
        """Truncate the part of our log that is known to differ from the master's. Raises ``OrbitError``."""

    async def aligned(self) -> Membership:
        """Returns how we follow the master. Called when our log is a prefix of the master's. Raises
        ``OrbitError``."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The parts through which a broker reaches the other brokers of its group, as master or as slave."""

    rpc: RpcClient
    replicas: ReplicaServer
    addresses: Callable[[], Awaitable[list[str]]]
    """Returns the addresses of all brokers of the group that name servers know."""
    group_log: GroupLog | None = None
    """Exists only with failover."""


class RoleSwitch:
    """Switches everything that differs between a master and a slave."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        sync: MetadataSync,
        peers: Peers,
        deliveries: Deliveries,
        events: BrokerEvents,
    ) -> None:
        self._config = config
        self._store = store
        self._rpc = rpc = peers.rpc
        self._sync = sync
        self._changing = asyncio.Lock()
        self.address = self.ha_address = ""
        """Our own addresses, which are never accepted as our master's."""
        self.replicas = peers.replicas
        self._group_addresses = peers.addresses
        self._group_log = peers.group_log
        self._deliveries = deliveries
        self._changed = events.role_changed
        self.log_prefix_check = LogPrefixCheck(config, store, rpc)
        self.follower = Follower(config, store, clock, self._agree, events, peers.replicas.protection)
        self.repair = RecordRepair(store, rpc, events.readable, self._peers, self._has_peers)
        self._acting = False
        """Whether this broker currently does a master's work. Differs from the role in the config during a change."""
        events.master_known.append(self.master_announced)

    async def start(self, bound: socket.socket, address: str, ha_address: str) -> None:
        """Serve slaves on the bound socket, and assume the configured role. Raises ``OSError``."""
        self.address, self.ha_address = address, ha_address
        await self.replicas.start(bound)
        if self._config.is_slave:
            self._become_slave()
        else:
            self._acting = True
            self._deliveries.start()

    async def stop(self) -> None:
        await self.repair.stop()
        await self._sync.stop()
        await self.follower.stop()
        await self.replicas.stop()
        try:
            await self._deliveries.stop()
        finally:
            await self._rpc.close()

    def master_announced(self, master_address: str, ha_address: str) -> None:
        """Handle our master's address, sent by a name server or by the master itself. With failover it is ignored,
        because only etcd determines the master."""
        if self._config.failover_enabled:
            return
        if self._config.is_slave and master_address != self.address and ha_address != self.ha_address:
            self._sync.copy_from(master_address)
            self.follower.master_announced(master_address, ha_address)

    # -- failover --------------------------------------------------------------------------------------

    def follow(self, master_address: str, ha_address: str) -> None:
        """Follow the elected master, whether or not this broker followed another one before."""
        if self._config.is_slave:
            self._sync.copy_from(master_address)
            self.follower.start()
            self.follower.master_announced(master_address, ha_address)

    async def freeze(self) -> None:
        """Stop following for now, so that the end of our log stays fixed."""
        await self.follower.stop()

    def adopt_topics(self) -> None:
        """Create every topic that has messages in our log. Called before this broker becomes master."""
        self._sync.adopt_topics()

    async def end_deliveries(self) -> None:
        """Stop deliveries. Called before this broker steps down as master voluntarily."""
        await self._deliveries.stop()

    def fence(self, broker_id: int) -> None:
        """Immediately stop presenting this broker as master. ``change`` must be called to complete the change of
        role."""
        if not self._config.is_slave:
            change_role(self._config, BrokerRole.SLAVE, broker_id)
        self.replicas.drop_links()

    async def _agree(self, master_address: str) -> Membership | None:
        group_log = self._group_log
        if group_log is not None:
            group_log.align()
        await self._sign_in(master_address)
        await self.log_prefix_check.check(master_address)
        if group_log is None:
            return None
        # A member may become master, so it needs the topics and groups of all messages it follows.
        if self.follower.master_address:
            await self._sync.copy_tables(self.follower.master_address)
        return await group_log.aligned()

    async def _sign_in(self, master_address: str) -> None:
        """Send a signed request to the master. A master with access control does not send its log to a host before
        that."""
        if self._rpc.sign is not None and master_address:
            await self._rpc.call(master_address, RequestCode.EXCHANGE_BROKER_HA_INFO, timeout_s=_SIGN_IN_S)

    # -- change ----------------------------------------------------------------------------------------

    async def change(self, role: BrokerRole, broker_id: int) -> None:
        """Assume a role and a broker id in the group. Does nothing if the broker already has them."""
        async with self._changing:
            config = self._config
            was_slave = not self._acting
            if (role, broker_id) == (config.role, config.broker_id) and config.is_slave == was_slave:
                return
            logger.info(
                "role changed from=%s id=%d to=%s id=%d",
                config.role.value,
                config.broker_id,
                role.value,
                broker_id,
            )
            if role is BrokerRole.SLAVE:
                change_role(config, role, broker_id)
                if not was_slave:
                    await self._deliveries.stop()
                    self.replicas.drop_links()
                    self._acting = False
                    # The operator has chosen the other broker's log; with failover the epoch history decides.
                    self.log_prefix_check.allow_cut(not config.failover_enabled)
                    self._become_slave()
            else:
                if was_slave:
                    await self._sync.stop()
                    await self.follower.stop()
                    self.replicas.drop_links()
                    self._store.correct_offsets(True)
                    self.adopt_topics()
                change_role(config, role, MASTER_ID)
                if was_slave:
                    self._acting = True
                    self._deliveries.start()
            self._changed()

    def _become_slave(self) -> None:
        self._store.correct_offsets(False)
        self.follower.start()
        self._sync.start()

    # -- other brokers with our log --------------------------------------------------------------------

    def _has_peers(self) -> bool:
        return bool(self.follower.master_address if self._config.is_slave else self.replicas.links)

    async def _peers(self) -> list[str]:
        """Returns the request addresses of the group's other brokers, our master first."""
        known = await self._group_addresses()
        found = dict.fromkeys((self.follower.master_address, *known))
        return [address for address in found if address not in ("", self.address)]

    # -- status ----------------------------------------------------------------------------------------

    def master_info(self) -> ExchangeBrokerHaInfoResponse | None:
        """Returns the response header of EXCHANGE_BROKER_HA_INFO, or None on a slave."""
        if self._config.is_slave:
            return None
        return ExchangeBrokerHaInfoResponse(
            master_ha_address=self.ha_address,
            master_flush_offset=self._store.flushed_offset,
            master_address=self.address,
        )

    def take_master_info(self, told: ExchangeBrokerHaInfoRequest) -> None:
        """Handle a master's announcement of its address."""
        if told.master_address and told.master_ha_address:
            self.master_announced(told.master_address, told.master_ha_address)

    def take_copied(self, told: str, topics: DataVersion, groups: DataVersion) -> None:
        """Record that a member of our failover group has copied these versions of the tables, if ``told`` names
        them."""
        member = told.partition(":")[0]
        if member.isascii() and member.isdecimal() and told == copied_text(int(member), topics, groups):
            self.replicas.copied_tables(int(member))

    def status(self) -> bodies.HaRuntimeInfo:
        """Returns the response body of GET_BROKER_HA_STATUS."""
        if self._config.is_slave:
            return bodies.HaRuntimeInfo(
                master=False,
                ha_client_runtime_info=self.follower.status(),
                master_commit_log_max_offset=0,
            )
        links = self.replicas.status()
        return bodies.HaRuntimeInfo(
            master=True,
            ha_client_runtime_info=bodies.HaClientRuntimeInfo(),
            ha_connection_info=links,
            in_sync_slave_nums=sum(link.in_sync for link in links),
            master_commit_log_max_offset=self._store.max_log_offset,
        )
