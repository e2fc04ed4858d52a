"""Serves requests 28 and 315, for the state of the broker itself (Apache: part of AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.statistics.stats import BrokerStats, StatsWindow
from orbitmq.errors import ServerError
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import bodies
from orbitmq.wire.headers import (
    Empty,
    ViewBrokerStatsDataRequest,
)

__all__ = ["StatsInspection"]


class StatsInspection:
    """Serves the broker's statistics and runtime state."""

    def __init__(
        self, *, config: BrokerConfig, stats: BrokerStats, runtime_info: Callable[[], Mapping[str, str]]
    ) -> None:
        self._config = config
        self._stats = stats
        self._runtime_info = runtime_info

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info, Empty),
            Route(RequestCode.VIEW_BROKER_STATS_DATA, self.stats_data, ViewBrokerStatsDataRequest),
        ]

    def runtime_info(self, _call: Call[Empty]) -> Reply:
        return Reply(body=bodies.KvTable(table=dict(self._runtime_info())).encode())

    def stats_data(self, call: Call[ViewBrokerStatsDataRequest]) -> Reply:
        header = call.header
        windows = self._stats.windows(header.stats_name, header.stats_key)
        hidden = header.stats_name.startswith("QUEUE_") and not self._config.detail_stats_enabled
        if windows is None or hidden:
            raise ServerError(f"nothing has been counted yet as {header.stats_name} of {header.stats_key}")
        return Reply(
            body=bodies.BrokerStatsData(
                stats_minute=_item(windows.minute),
                stats_hour=_item(windows.hour),
                stats_day=_item(windows.day),
            ).encode()
        )


def _item(window: StatsWindow) -> bodies.BrokerStatsItem:
    return bodies.BrokerStatsItem(sum=window.sum, tps=window.tps, avgpt=window.average)
