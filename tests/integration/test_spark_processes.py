"""Streams through killed and paused servers, under load; called like Spark does, without a JVM.

The same with Spark, and longer: tests/spark/test_stream_outages.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.apache.etcd import Etcd, etcd
from tests.integration.outage_kit import Load, failover, outages, processes

from orbitmq.spark.options import SourceOptions
from orbitmq.spark.source.stream import TopicStreamReader

__all__ = ["etcd"]
pytestmark = pytest.mark.slow

COLUMNS = ["broker", "queue_id", "queue_offset", "body"]


class Follower:
    """Runs a stream like Spark, on its own thread."""

    def __init__(self, name_server: str) -> None:
        options = {
            "namesrvAddr": name_server,
            "topic": "T",
            "startingOffsets": "earliest",
            "routeRefreshMs": "200",
            "pullTimeoutMs": "1000",
        }
        self._source = TopicStreamReader(SourceOptions.parse(options, streaming=True), COLUMNS)
        self._rows: list[tuple[str, int, int, int]] = []
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            place: dict[str, Any] = self._source.initialOffset()
            while not self._ended.wait(0.02):
                end = self._source.latestOffset(place, ReadAllAvailable())
                for part in self._source.partitions(place, end):
                    for batch in self._source.read(part):
                        columns = [batch.column(number).to_pylist() for number in range(4)]
                        self._rows += [(*row[:3], int(row[3])) for row in zip(*columns, strict=True)]
                place = end
        except Exception as error:  # noqa: BLE001  # raised by the next to look at the rows
            self._failure = error

    def rows(self) -> list[tuple[str, int, int, int]]:
        if self._failure is not None:
            raise self._failure
        return list(self._rows)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(30)


@pytest.fixture
def followers() -> Iterator[list[Follower]]:
    started: list[Follower] = []
    yield started
    for one in started:
        one.stop()


@pytest.mark.timeout(280)
def test_stream_goes_on_through_killed_and_paused_servers(followers: list[Follower]) -> None:
    with processes() as servers:
        followers.append(Follower(servers.names.address))
        with Load(servers.names.address) as load:
            outages(servers, followers[0], load, names_s=1, pause_s=2)


@pytest.mark.timeout(280)
def test_stream_goes_on_through_an_election(etcd: Etcd, followers: list[Follower]) -> None:
    def start(name_server: str) -> Follower:
        followers.append(Follower(name_server))
        return followers[0]

    failover(etcd, start, kills=1)
