"""Metrics of the name server. Apache's name server exports none; the labels are those of its broker's exporter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orbitmq.metrics.endpoint import parse_labels
from orbitmq.metrics.families import Declared, Families, Kind
from orbitmq.metrics.process import ProcessMetrics
from orbitmq.metrics.requests import RPC_LATENCY, RequestTimes
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.route_table import RouteTable

__all__ = ["NAME_SERVER_FAMILIES", "NameServerMetrics"]

_SERIES_MAX: Final = 5_000
TOPICS: Final = Declared("rocketmq_topic_number", Kind.GAUGE, "Topics with a route.")
BROKERS: Final = Declared(
    "orbitmq_namesrv_brokers",
    Kind.GAUGE,
    "Brokers registered, masters and slaves.",
    ("broker_cluster", "role"),
)
CONNECTIONS: Final = Declared("orbitmq_connections", Kind.GAUGE, "Open connections of brokers and clients.")
NAME_SERVER_FAMILIES: Final = (TOPICS, BROKERS, CONNECTIONS, RPC_LATENCY)
"""All declared metrics, for the reference page."""


class NameServerMetrics:
    """Builds the metrics page."""

    def __init__(
        self,
        config: NameServerConfig,
        table: RouteTable,
        requests: RequestTimes,
        connection_count: Callable[[], int],
    ) -> None:
        self._table = table
        self._requests = requests
        self._connection_count = connection_count
        self._process = ProcessMetrics()
        self._common = {**parse_labels(config.metrics_labels), "node_type": "nameserver"}

    async def families(self) -> Families:
        """Returns all current metrics."""
        families = Families(self._common, _SERIES_MAX)
        families.gauge(TOPICS, len(self._table.topics()))
        family = families.start(BROKERS)
        brokers = self._table.brokers()
        for cluster, names in self._table.clusters().items():
            ids = [broker_id for name in names if name in brokers for broker_id in brokers[name].broker_addrs]
            family.add(sum(1 for broker_id in ids if broker_id == 0), cluster, "master")
            family.add(sum(1 for broker_id in ids if broker_id != 0), cluster, "slave")
        families.gauge(CONNECTIONS, self._connection_count())
        self._requests.report(families)
        self._process.report(families)
        return families
