"""The parts of failover that other parts of the broker need, created before them."""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.broker.config import BrokerConfig, split_addresses
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.failover.alignment import LogAlignment
from orbitmq.broker.failover.etcd import EtcdClient
from orbitmq.broker.failover.in_sync import InSyncSet
from orbitmq.broker.failover.mastership import Mastership
from orbitmq.broker.failover.own_state import OwnState
from orbitmq.broker.failover.safe_end import SafeEnd
from orbitmq.broker.replication.master import ReplicaGroup, SlaveLink
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.message_store import MessageStore

__all__ = ["FailoverParts"]


@dataclass(frozen=True, slots=True)
class FailoverParts:
    """A member's knowledge of its group. ``coordinator.Failover`` acts on it."""

    etcd: EtcdClient
    prefix: str
    """The prefix of the group's keys in etcd."""
    in_sync: InSyncSet
    mastership: Mastership
    alignment: LogAlignment
    links: list[SlaveLink]

    @classmethod
    def of(
        cls, config: BrokerConfig, store: MessageStore, file: SafeFile, events: BrokerEvents
    ) -> FailoverParts:
        """Create the parts. ``file`` stores the newest epoch that our log is part of. The store must be open. Raises
        ``ConfigError``, ``CorruptionError``, ``OSError``."""
        group = config.failover_group or f"{config.cluster_name}/{config.broker_name}"
        prefix = f"/orbitmq/failover/{group}/"
        etcd = EtcdClient(
            split_addresses(config.etcd_endpoints.replace(",", ";")),
            timeout_s=max(0.3, config.lease_ttl_s / 4),
            ca_file=config.etcd_ca_file,
            cert=(config.etcd_cert_file, config.etcd_key_file) if config.etcd_cert_file else None,
        )
        recovery = store.recovery
        own_state = OwnState(
            file, is_empty=store.max_log_offset == 0, was_clean=recovery is None or recovery.clean
        )
        links: list[SlaveLink] = []
        in_sync = InSyncSet(config, store, links, events)
        safe_end = SafeEnd(file.fs, f"{file.path}.safe", store, etcd, prefix)
        alignment = LogAlignment(config, store, own_state, safe_end, in_sync)
        return cls(etcd, prefix, in_sync, Mastership(), alignment, links)

    def replicas(self) -> ReplicaGroup:
        """Returns the parts that the replication port needs."""
        return ReplicaGroup(self.links, self.in_sync, self.mastership)
