"""Registrations for tests, and the invariants of the table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from orbitmq.model.data_version import DataVersion
from orbitmq.model.topic import TopicConfig
from orbitmq.namesrv.registration import BrokerKey, Registration
from orbitmq.namesrv.route_table import RouteTable

CLUSTER = "C"


def topic_config(name: str, *, queues: int = 4, perm: int = 6, flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=flag
    )


def registration(
    topics: Iterable[str | TopicConfig] = ("T", "U"),
    *,
    name: str = "a",
    broker_id: int = 0,
    address: str | None = None,
    version: int = 1,
    epoch: int = 0,
    acting: bool | None = False,
    connection: Hashable = None,
    cluster: str = CLUSTER,
    zone: str | None = None,
    timeout_ms: int | None = None,
    filter_servers: list[str] | None = None,
    mappings: Mapping[str, Any] | None = None,
) -> Registration:
    """Returns a broker's full registration; the address follows from name and id unless it is given."""
    configs = [topic_config(topic) if isinstance(topic, str) else topic for topic in topics]
    address = address if address is not None else f"{name}{broker_id}:1"
    return Registration(
        key=BrokerKey(cluster, address),
        broker_name=name,
        broker_id=broker_id,
        ha_address=f"{address}0",
        zone_name=zone,
        timeout_ms=timeout_ms,
        enable_acting_master=acting,
        data_version=DataVersion(counter=version, state_version=epoch),
        topics={config.topic_name: config for config in configs},
        mappings=mappings or {},
        filter_servers=[] if filter_servers is None else filter_servers,
        connection=connection if connection is not None else f"connection of {address}",
    )


def key(name: str = "a", broker_id: int = 0, cluster: str = CLUSTER) -> BrokerKey:
    return BrokerKey(cluster, f"{name}{broker_id}:1")


def addresses(table: RouteTable, name: str = "a") -> dict[int, str]:
    return dict(table.members(name))


def perms(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.route(topic)
    return {} if route is None else {queues.broker_name: queues.perm for queues in route.queue_datas}


def check_invariants(table: RouteTable) -> None:
    """Checks the numbered invariants in the table's docstring; reads its private parts on purpose."""
    for name, broker in table._brokers.items():
        assert broker.broker_addrs, f"{name} has no address"
    live = {(entry.broker_name, broker_key.address) for broker_key, entry in table._live.items()}
    behind = {
        (n, address) for n, broker in table._brokers.items() for address in broker.broker_addrs.values()
    }
    assert live == behind
    for name, topics in table._topics_of.items():
        assert name in table._brokers
        assert topics == {topic for topic, queues in table._topics.items() if name in queues}
    for topic, queues in table._topics.items():
        assert queues, f"{topic} has no queues"
        assert queues.keys() <= table._topics_of.keys()
    by_connection = {(entry.connection, broker_key) for broker_key, entry in table._live.items()}
    assert by_connection == {(c, k) for c, keys in table._keys_of.items() for k in keys}
    assert table._filter_servers.keys() <= set(live)
