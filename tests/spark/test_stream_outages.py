"""A query of Spark through outages of its servers, under load: every message once, each loss named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from pyspark.errors import StreamingQueryException
from tests.apache.etcd import Etcd, etcd
from tests.apache.process import wait_until
from tests.apache.servers import create_topic, remoting_call
from tests.integration.outage_kit import TOPIC, Load, failover, outages, processes

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.requests import RequestCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["etcd"]
pytestmark = [pytest.mark.slow, pytest.mark.apache, pytest.mark.soak]

NAMES_DOWN_S = 60.0
PAUSED_S = 30.0


class FileQuery:
    """A query into plain files; what it has committed are the files that its log names."""

    def __init__(self, spark: SparkSession, directory: Path, name_server: str, **options: str) -> None:
        rows = (
            spark.readStream.format("rocketmq")
            .schema("broker string, queue_id int, queue_offset bigint, body binary")
            .options(namesrvAddr=name_server, topic=TOPIC, startingOffsets="earliest", routeRefreshMs="1000")
            .options(**options)
            .load()
        )
        self._rows = directory / "rows"
        writer = rows.writeStream.format("parquet").option("path", str(self._rows))
        self.query: StreamingQuery = writer.option(
            "checkpointLocation", str(directory / "checkpoint")
        ).start()

    def rows(self) -> list[tuple[str, int, int, int]]:
        if (error := self.query.exception()) is not None:
            raise error
        # By hand: Spark would need a free core to look, and a batch that waits for a broker holds all of them.
        listed: set[str] = set()
        for log in (self._rows / "_spark_metadata").glob("[0-9]*"):
            entries = [json.loads(line) for line in log.read_text().splitlines()[1:]]
            listed.update(entry["path"].removeprefix("file://") for entry in entries)
        if not listed:
            return []
        table = pyarrow.dataset.dataset(sorted(listed)).to_table()
        columns = [table.column(name).to_pylist() for name in ("broker", "queue_id", "queue_offset", "body")]
        return [(*row[:3], int(row[3])) for row in zip(*columns, strict=True)]


@contextmanager
def running(spark: SparkSession, directory: Path, name_server: str, **options: str) -> Iterator[FileQuery]:
    started = FileQuery(spark, directory, name_server, **options)
    try:
        yield started
    finally:
        started.query.stop()


@pytest.mark.timeout(900)
def test_query_goes_on_through_outages_and_names_what_a_deleted_topic_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    with processes() as servers:
        names = servers.names.address
        with running(spark, tmp_path, names) as query, Load(names) as load:
            outages(servers, query, load, names_s=NAMES_DOWN_S, pause_s=PAUSED_S)
            before = query.rows()
        # Deleted and made again while no query runs.
        for broker in (servers.master, servers.other):
            fields = {"topic": TOPIC}
            assert remoting_call(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, fields)[0] == 0
        assert remoting_call(names, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": TOPIC})[0] == 0
        for broker in (servers.master, servers.other):
            create_topic(servers.names, broker, TOPIC, queue_count=1)
        with Producer("again", names) as producer:
            for number in range(100):
                producer.send(Message(TOPIC, b"%d" % (load.tried + number)))
        with (
            running(spark, tmp_path, names) as query,
            pytest.raises(StreamingQueryException, match=r"T/broker-[ab]/0: \d+ to"),
        ):
            wait_until(lambda: query.rows() is None, timeout_s=90, what="an error")
        with running(spark, tmp_path, names, failOnDataLoss="false") as query:
            wait_until(
                lambda: len(query.rows()) >= len(before) + 100, timeout_s=90, what="rows of the new topic"
            )
            found = sorted(row[3] for row in query.rows())
    assert found == sorted([row[3] for row in before] + [load.tried + number for number in range(100)])


@pytest.mark.timeout(600)
def test_query_goes_on_through_elections(spark: SparkSession, etcd: Etcd, tmp_path: Path) -> None:
    started: list[FileQuery] = []

    def start(name_server: str) -> FileQuery:
        started.append(FileQuery(spark, tmp_path, name_server))
        return started[0]

    try:
        failover(etcd, start, kills=3)
    finally:
        for one in started:
            one.query.stop()
