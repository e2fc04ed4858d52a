"""Prometheus metrics of a proxy (Apache: ProxyMetricsManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.metrics.families import Declared, Families, Kind
from orbitmq.metrics.process import ProcessMetrics

if TYPE_CHECKING:
    from orbitmq.proxy.server import Proxy

__all__ = ["PROXY_FAMILIES", "ProxyMetrics"]

_SERIES_MAX: Final = 5_000
UP: Final = Declared("rocketmq_proxy_up", Kind.GAUGE, "1 while the proxy runs.", ("proxy_mode",))
CONNECTIONS: Final = Declared("orbitmq_proxy_connections", Kind.GAUGE, "Open connections of clients.")
CLIENTS: Final = Declared("orbitmq_proxy_clients", Kind.GAUGE, "Registered clients.", ("client_type",))
WAITING: Final = Declared("orbitmq_proxy_waiting_receives", Kind.GAUGE, "Receives that wait for a message.")
HELD: Final = Declared(
    "orbitmq_proxy_held_messages", Kind.GAUGE, "Messages of push consumers whose time the proxy renews."
)
MESSAGES: Final = Declared(
    "orbitmq_proxy_messages_total",
    Kind.COUNTER,
    "Messages sent, received and acknowledged through the proxy.",
    ("direction",),
)
CALLS: Final = Declared(
    "orbitmq_proxy_calls_total",
    Kind.COUNTER,
    "Calls by name and code of their status. Of sends and receives only those that were not simply OK.",
    ("call", "code"),
)
PROXY_FAMILIES: Final = (UP, CONNECTIONS, CLIENTS, WAITING, HELD, MESSAGES, CALLS)
"""All metric families, for the metrics reference."""


class ProxyMetrics:
    """Builds the metrics page."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._process = ProcessMetrics()
        self._common = {"node_type": "proxy", "cluster": proxy.config.proxy_cluster_name}

    async def families(self) -> Families:
        """Returns the current values of all families."""
        proxy = self._proxy
        families = Families(self._common, _SERIES_MAX)
        families.gauge(UP, 1, "local" if proxy.brokers.local is not None else "cluster")
        families.gauge(CONNECTIONS, proxy.connection_count)
        counts: dict[str, int] = {}
        held = 0
        for client in proxy.clients:
            kind = "consumer" if client.is_consumer else "producer"
            counts[kind] = counts.get(kind, 0) + 1
            held += len(client.held)
        family = families.start(CLIENTS)
        for kind, count in sorted(counts.items()):
            family.add(count, kind)
        families.gauge(WAITING, proxy.receiving.waiting)
        families.gauge(HELD, held)
        family = families.start(MESSAGES)
        family.add(proxy.sending.sent, "sent")
        family.add(proxy.receiving.received, "received")
        family.add(proxy.acking.acknowledged, "acknowledged")
        family = families.start(CALLS)
        for (name, code), count in sorted(proxy.service.calls.items()):
            family.add(count, name, code)
        self._process.report(families)
        return families
