"""Tracks which brokers are alive and which topics they hold (Apache: RouteInfoManager). No I/O; the clock is a
parameter.

Invariants
1. A broker name is in ``_brokers`` if and only if it has at least one address.
2. Every address of every broker name has one live entry, and every live entry has an address. They are added and
   removed together.
3. ``_topics_of[name]`` are exactly the topics whose queue table has ``name``; no topic has an empty queue table.
4. Every change to the route of a topic is reported to ``on_change`` before the call returns.

Apache breaks the first two in corner cases (a refused registration leaves an empty broker name behind); here every
decision precedes the changes. Liveness uses a steady clock, so a corrected wall clock expires no broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from orbitmq.codes import Perm
from orbitmq.errors import ServerError
from orbitmq.model.data_version import DataVersion
from orbitmq.model.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from orbitmq.model.topic import PERM_READ_WRITE, TopicConfig, is_writable
from orbitmq.namesrv.registration import (
    BrokerKey,
    LiveBroker,
    MinIdNotice,
    Registered,
    Registration,
    Renewal,
    RouteRules,
)
from orbitmq.runtime.clock import Clock

__all__ = ["RouteTable", "route_in_zone"]

logger = logging.getLogger(__name__)

_WRITE: Final = int(Perm.WRITE)
_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which the brokers of a group find each other. Their routes always show the real master."""


class RouteTable:
    """Brokers, topics, and the routes derived from them."""

    def __init__(
        self,
        clock: Clock,
        rules: RouteRules = RouteRules(),  # noqa: B008 - a frozen value
        on_change: Callable[[Collection[str]], None] = lambda topics: None,
    ) -> None:
        self._clock = clock
        self.rules = rules
        self._on_change = on_change
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._keys_of: dict[Hashable, set[BrokerKey]] = {}
        self._filter_servers: dict[tuple[str, str], list[str]] = {}
        """Filter servers, by broker name and address."""
        self._mappings: dict[str, dict[str, Any]] = {}
        self._renewals: dict[BrokerKey, Renewal] = {}
        self._removal_count = 0
        """The number of times that topics were removed from brokers."""

    # -- brokers come -------------------------------------------------------------------------------------

    def register(self, registration: Registration) -> Registered:
        """Add or renew a broker. Raises ``ServerError`` for a single topic of an unknown broker.

        A broker whose id is held by another address with a newer epoch is ignored without an error.
        """
        name, key, broker_id = registration.broker_name, registration.key, registration.broker_id
        old = self._brokers.get(name)
        addresses = {} if old is None else dict(old.broker_addrs)
        min_id_before = min(addresses, default=MASTER_ID)
        # A slave that became master registers its old address with a new id; an address has only one id.
        for stale_id in [i for i, address in addresses.items() if address == key.address and i != broker_id]:
            del addresses[stale_id]
        holder = addresses.get(broker_id)
        live = self._live.get(key)
        if self._is_outranked(registration, holder):
            return Registered(notice=None if live is None else self.unregister(key, live.broker_name))
        if holder is None and len(registration.topics) == 1:
            # A change notice, not a registration: the broker's other topics must be known first.
            raise ServerError("register broker failed")

        if live is not None and live.broker_name != name:
            self.unregister(key, live.broker_name)
        members = [other for other, entry in self._live.items() if entry.broker_name == name and other != key]
        for member in members:
            if member.address in (key.address, holder):
                self._drop(member)
        stays = old is not None and any(
            member.cluster == old.cluster for member in members if member in self._live
        )
        addresses[broker_id] = key.address
        broker = BrokerData(
            broker_addrs=addresses,
            broker_name=name,
            cluster=old.cluster if old is not None and stays else key.cluster,
            enable_acting_master=registration.enable_acting_master is True,
            zone_name=registration.zone_name if registration.zone_name is not None else msgspec.UNSET,
        )
        if broker != old:
            self._brokers[name] = broker
            self._on_change(self._topics_of.get(name, ()))
        self._take_topics(registration, broker, is_new=holder is None)
        self._mark_live(registration)
        master_address, ha_address = self._master_of(broker) if broker_id != MASTER_ID else (None, None)
        notice = None
        if broker_id < min_id_before:
            others = tuple(address for other, address in addresses.items() if other != broker_id)
            notice = MinIdNotice(
                others or (key.address,), broker_id, key.address, None, registration.ha_address
            )
        return Registered(master_address, ha_address, notice)

    def note_renewal(self, registration: Registration, fingerprint: bytes) -> None:
        """Remember the content of a registration, so that an identical one need not be parsed."""
        broker = self._brokers.get(registration.broker_name)
        if broker is not None and registration.broker_id == MASTER_ID and registration.key in self._live:
            self._renewals[registration.key] = Renewal(
                fingerprint, registration.connection, broker, self._removal_count
            )

    def renew(self, key: BrokerKey, connection: Hashable, fingerprint: bytes) -> bool:
        """Whether a registration repeats the previous one of this broker, so that only its liveness has to be
        updated. This is the usual case: every broker repeats its registration, with all of its topics, twice a
        minute.

        True only for a master, whose answer depends on no other broker, and only if since then no topic was removed
        from any broker and its own broker name has not changed. Never true with ``delete_topic_with_registration``.
        """
        known = self._renewals.get(key)
        live = self._live.get(key)
        if (
            known is None
            or live is None
            or known.fingerprint != fingerprint
            or known.connection != connection
            or known.removal_count != self._removal_count
            or known.broker is not self._brokers.get(live.broker_name)
            or self.rules.delete_topic_with_registration
        ):
            return False
        live.last_seen_s = self._clock.monotonic()
        return True

    def _is_outranked(self, registration: Registration, holder: str | None) -> bool:
        if holder is None or holder == registration.key.address:
            return False
        live = self._live_at(registration.broker_name, holder)
        if live is None:
            return False
        epoch = registration.data_version.state_version
        if live.data_version.state_version <= epoch:
            if registration.broker_id == MASTER_ID and live.data_version.state_version == epoch:
                logger.warning(
                    "another master registered under the name broker=%s address=%s from=%s",
                    registration.broker_name,
                    registration.key.address,
                    holder,
                )
            return False
        logger.warning(
            "registration ignored, its id is registered with a newer epoch broker=%s id=%d address=%s holder=%s",
            registration.broker_name,
            registration.broker_id,
            registration.key.address,
            holder,
        )
        return True

    def _take_topics(self, registration: Registration, broker: BrokerData, *, is_new: bool) -> None:
        is_master = registration.broker_id == MASTER_ID
        is_prime_slave = (
            not is_master
            and registration.enable_acting_master is not None
            and registration.broker_id == min(broker.broker_addrs)
        )
        if not (is_master or is_prime_slave):
            return
        name = broker.broker_name
        if self.rules.delete_topic_with_registration and not registration.mappings:
            for topic in self._topics_of.get(name, set()) - registration.topics.keys():
                self._remove_queues(topic, (name,))
        live = self._live.get(registration.key)
        changed = is_new or live is None or live.data_version != registration.data_version
        topics: Iterable[str] = registration.topics
        if not changed:
            # The usual case, twice a minute from every broker: only topics that an operator deleted here.
            topics = registration.topics.keys() - self._topics_of.get(name, set())
        read_only = is_prime_slave and broker.enable_acting_master
        for topic in topics:
            self._put_queues(topic, _queue_data(name, registration.topics[topic], read_only=read_only))
        if changed:
            for topic, mapping in registration.mappings.items():
                self._mappings.setdefault(topic, {})[mapping["bname"]] = mapping
            if registration.mappings:
                self._on_change(registration.mappings.keys())

    def _put_queues(self, topic: str, queues: QueueData) -> None:
        table = self._topics.get(topic)
        if table is None:
            table = self._topics[topic] = {}
            logger.debug("topic added topic=%s broker=%s", topic, queues.broker_name)
        old = table.get(queues.broker_name)
        if old == queues:
            return
        if old is not None:
            logger.info("topic changed topic=%s old=%s new=%s", topic, old, queues)
        table[queues.broker_name] = queues
        self._topics_of.setdefault(queues.broker_name, set()).add(topic)
        self._on_change((topic,))

    def _mark_live(self, registration: Registration) -> None:
        key = registration.key
        old = self._live.get(key)
        if old is None:
            logger.info(
                "broker registered cluster=%s broker=%s id=%d address=%s ha=%s",
                key.cluster,
                registration.broker_name,
                registration.broker_id,
                key.address,
                registration.ha_address,
            )
        elif old.connection != registration.connection:
            self._forget_connection(old.connection, key)
        timeout_ms = registration.timeout_ms
        self._live[key] = LiveBroker(
            registration.broker_name,
            registration.broker_id,
            self._clock.monotonic(),
            (self.rules.broker_timeout_ms if timeout_ms is None else timeout_ms) / 1000,
            registration.data_version,
            registration.ha_address,
            registration.connection,
        )
        self._keys_of.setdefault(registration.connection, set()).add(key)
        if registration.filter_servers is not None:
            self._put_filter_servers(registration.broker_name, key.address, registration.filter_servers)

    def _put_filter_servers(self, broker_name: str, address: str, servers: Sequence[str]) -> None:
        key = (broker_name, address)
        if list(servers) == self._filter_servers.get(key, []):
            return
        if servers:
            self._filter_servers[key] = list(servers)
        else:
            del self._filter_servers[key]
        self._on_change(self._topics_of.get(broker_name, ()))

    def _live_at(self, broker_name: str, address: str) -> LiveBroker | None:
        for key, live in self._live.items():
            if key.address == address and live.broker_name == broker_name:
                return live
        return None

    def _master_of(self, broker: BrokerData) -> tuple[str | None, str | None]:
        master = broker.master_address
        live = None if master is None else self._live_at(broker.broker_name, master)
        return (None, None) if live is None else (master, live.ha_address)

    def heartbeat(self, key: BrokerKey) -> None:
        """Record that a broker is alive. Unregistered brokers are ignored."""
        live = self._live.get(key)
        if live is not None:
            live.last_seen_s = self._clock.monotonic()

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """Returns the version of a broker's topics at its last registration; ``None`` for an unregistered broker."""
        live = self._live.get(key)
        return None if live is None else live.data_version

    # -- brokers go ---------------------------------------------------------------------------------------

    def unregister(self, key: BrokerKey, broker_name: str) -> MinIdNotice | None:
        """Remove a broker, and the topics that no other broker has. Returns a notice if the rest of its group must be
        notified."""
        live = self._live.get(key)
        if live is None or live.broker_name != broker_name:
            return None
        self._drop(key)
        broker = self._brokers[broker_name]
        logger.info("broker removed cluster=%s broker=%s address=%s", key.cluster, broker_name, key.address)
        addresses = {
            other: address for other, address in broker.broker_addrs.items() if address != key.address
        }
        self._replace_broker(broker, addresses)
        if not addresses or not broker.enable_acting_master:
            return None
        min_id = min(addresses)
        if min_id > MASTER_ID:
            # Without its master, the rest of the group serves reads and accepts no writes.
            self._change_perm(broker_name, lambda perm: perm & ~_WRITE)
        if min_id == min(broker.broker_addrs):
            return None
        return MinIdNotice(tuple(addresses.values()), min_id, addresses[min_id], key.address, None)

    def _replace_broker(self, broker: BrokerData, addresses: dict[int, str]) -> None:
        """Give a broker name new addresses. If there are none, the broker name is removed."""
        name = broker.broker_name
        if addresses:
            self._brokers[name] = msgspec.structs.replace(broker, broker_addrs=addresses)
            self._on_change(self._topics_of.get(name, ()))
            return
        del self._brokers[name]
        for topic in list(self._topics_of.get(name, ())):
            self._remove_queues(topic, (name,))

    def _drop(self, key: BrokerKey) -> None:
        """Remove a live entry."""
        live = self._live.pop(key)
        self._renewals.pop(key, None)
        self._forget_connection(live.connection, key)
        self._put_filter_servers(live.broker_name, key.address, ())

    def _forget_connection(self, connection: Hashable, key: BrokerKey) -> None:
        keys = self._keys_of.get(connection)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._keys_of[connection]

    def connection_lost(self, connection: Hashable) -> list[MinIdNotice]:
        """Remove the brokers that last registered over ``connection``."""
        return list(self._unregister_all(sorted(self._keys_of.get(connection, ()))))

    def expire(self) -> tuple[list[Hashable], list[MinIdNotice]]:
        """Remove the brokers that sent nothing within their timeout. Returns their connections, which the caller must
        close, and the notices to send."""
        now_s = self._clock.monotonic()
        expired = [key for key, live in self._live.items() if live.last_seen_s + live.timeout_s < now_s]
        for key in expired:
            logger.warning("broker expired cluster=%s address=%s", key.cluster, key.address)
        connections = [self._live[key].connection for key in expired]
        return connections, list(self._unregister_all(expired))

    def _unregister_all(self, keys: Sequence[BrokerKey]) -> Iterator[MinIdNotice]:
        for key in keys:
            live = self._live[key]
            notice = self.unregister(key, live.broker_name)
            if notice is not None:
                yield notice

    # -- topics -------------------------------------------------------------------------------------------

    def _remove_queues(self, topic: str, broker_names: Iterable[str]) -> None:
        table = self._topics.get(topic)
        if table is None:
            return
        self._removal_count += 1
        for name in broker_names:
            if table.pop(name, None) is None:
                continue
            self._topics_of[name].discard(topic)
            if not self._topics_of[name]:
                del self._topics_of[name]
        if not table:
            del self._topics[topic]
            logger.debug("topic removed topic=%s", topic)
        self._on_change((topic,))

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, from one cluster or from all, until a broker registers it again."""
        table = self._topics.get(topic)
        if table is None:
            return
        held_in = self._names_in(cluster) if cluster else table.keys()
        names = [name for name in table if name in held_in]
        self._remove_queues(topic, names)
        if topic not in self._topics:
            self._mappings.pop(topic, None)

    def add_topic(self, topic: str, queues: Sequence[QueueData]) -> None:
        """Add queues of a topic before the brokers register it; does nothing if one of the brokers is unknown."""
        unknown = [data.broker_name for data in queues if data.broker_name not in self._brokers]
        if unknown:
            logger.warning("topic not added, unknown broker topic=%s broker=%s", topic, unknown[0])
            return
        for data in queues:
            self._put_queues(topic, data)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Make all topics of a broker name read-only until it registers a change. Returns the number of topics."""
        return self._change_perm(broker_name, lambda perm: perm & ~_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all topics of a broker name readable and writable. Returns the number of topics."""
        return self._change_perm(broker_name, lambda perm: PERM_READ_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self._topics_of.get(broker_name, set())
        for topic in topics:
            table = self._topics[topic]
            old = table[broker_name]
            table[broker_name] = msgspec.structs.replace(old, perm=change(old.perm))
        self._on_change(topics)
        return len(topics)

    # -- questions ----------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Returns the route of a topic; ``None`` if no live broker holds it."""
        table = self._topics.get(topic)
        if table is None:
            return None
        brokers = [self._brokers[name] for name in table]
        filters = {
            address: self._filter_servers[key]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (key := (broker.broker_name, address)) in self._filter_servers
        }
        if self.rules.support_acting_master and not topic.startswith(_MEMBER_TOPIC_PREFIX):
            brokers = [_with_acting_master(broker, table[broker.broker_name]) for broker in brokers]
        return TopicRoute(
            broker_datas=brokers,
            filter_server_table=filters,
            queue_datas=list(table.values()),
            topic_queue_mapping_by_broker=self._mappings.get(topic, msgspec.UNSET),
        )

    def brokers(self) -> dict[str, BrokerData]:
        """Returns all brokers by broker name."""
        return dict(self._brokers)

    def clusters(self) -> dict[str, list[str]]:
        """Returns the broker names of each cluster, sorted."""
        return {
            cluster: sorted(self._names_in(cluster))
            for cluster in dict.fromkeys(key.cluster for key in self._live)
        }

    def _names_in(self, cluster: str) -> set[str]:
        return {live.broker_name for key, live in self._live.items() if key.cluster == cluster}

    def members(self, broker_name: str) -> dict[int, str]:
        """Returns the addresses of a broker name by broker id; empty if the name is unknown."""
        broker = self._brokers.get(broker_name)
        return {} if broker is None else broker.broker_addrs

    def topics(self) -> list[str]:
        """Returns all topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Returns the topics that brokers of the cluster hold."""
        names = self._names_in(cluster)
        return [topic for topic, table in self._topics.items() if not names.isdisjoint(table)]

    def topics_with(self, matches: Callable[[int], bool]) -> list[str]:
        """Returns the topics whose system flag matches. If brokers report different flags, the first broker's
        counts."""
        return [
            topic
            for topic, table in self._topics.items()
            if matches(next(iter(table.values())).topic_sys_flag)
        ]


def _queue_data(broker_name: str, topic: TopicConfig, *, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=topic.perm & ~_WRITE if read_only else topic.perm,
        read_queue_nums=topic.read_queue_nums,
        topic_sys_flag=topic.topic_sys_flag,
        write_queue_nums=topic.write_queue_nums,
    )


def _with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """Returns the broker group with its smallest id shown as master, if it has no master, allows an acting one and
    the topic is not writable. Otherwise returns it unchanged."""
    if MASTER_ID in broker.broker_addrs or not broker.enable_acting_master or is_writable(queues.perm):
        return broker
    addresses = dict(broker.broker_addrs)
    acting = addresses.pop(min(addresses))
    return msgspec.structs.replace(broker, broker_addrs={MASTER_ID: acting, **addresses})


def route_in_zone(route: TopicRoute, zone_name: str) -> TopicRoute:
    """Returns the part of a route in the client's zone. Groups without a master are included from any zone, because
    reading across zones is better than not reading at all."""
    zone = zone_name.lower()
    kept = [
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone
    ]
    kept_names = {broker.broker_name for broker in kept}
    kept_addresses = {address for broker in kept for address in broker.broker_addrs.values()}
    return msgspec.structs.replace(
        route,
        broker_datas=kept,
        queue_datas=[queues for queues in route.queue_datas if queues.broker_name in kept_names],
        filter_server_table={
            address: servers
            for address, servers in route.filter_server_table.items()
            if address in kept_addresses
        },
    )
