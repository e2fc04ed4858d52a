"""Input and output values of the route table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orbitmq.model.data_version import DataVersion
from orbitmq.model.route import BrokerData
from orbitmq.model.topic import TopicConfig

__all__ = ["BrokerKey", "LiveBroker", "MinIdNotice", "Registered", "Registration", "Renewal", "RouteRules"]


class BrokerKey(NamedTuple):
    """A broker process: its address in its cluster."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker reports about itself."""

    key: BrokerKey
    broker_name: str
    broker_id: int
    ha_address: str = ""
    zone_name: str | None = None
    timeout_ms: int | None = None
    """How long the broker may stay silent; ``None`` stands for the server's own limit."""
    enable_acting_master: bool | None = None
    """``None`` for a 4.x broker, which does not have the option."""
    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    mappings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Static topics: topic to mapping info, which has a ``bname`` and is passed on to clients unchanged."""
    filter_servers: Sequence[str] | None = None
    connection: Hashable = None
    """The broker's connection. Losing it removes the broker."""


@dataclass(slots=True)
class LiveBroker:
    """A registered process that has not timed out."""

    broker_name: str
    broker_id: int
    last_seen_s: float
    timeout_s: float
    data_version: DataVersion
    ha_address: str
    connection: Hashable


class Renewal(NamedTuple):
    """A broker's last registration, and the state of the table at that time."""

    fingerprint: bytes
    connection: Hashable
    broker: BrokerData
    removal_count: int


@dataclass(frozen=True, slots=True)
class MinIdNotice:
    """The smallest live id of a group changed: the addresses to notify, and the notification."""

    receivers: tuple[str, ...]
    min_broker_id: int
    min_broker_address: str
    offline_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration. Contains addresses only for a slave whose master is alive."""

    master_address: str | None = None
    ha_address: str | None = None
    notice: MinIdNotice | None = None


@dataclass(frozen=True, slots=True)
class RouteRules:
    """The options that the route table uses."""

    broker_timeout_ms: int = 120_000
    support_acting_master: bool = False
    delete_topic_with_registration: bool = False
