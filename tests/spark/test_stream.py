"""``spark.readStream.format("rocketmq")``: limits, new queues, groups, losses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.apache.harness import remoting_call
from tests.support.ports import broker_ports
from tests.support.waiting import until

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.spark.lag import Lag, lag_listener
from orbitmq.testing import RunningBroker, run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.slow, pytest.mark.apache]

DELETE_EXPIRED_COMMITLOG = 329
QUERY_CONSUMER_OFFSET = 14
SCHEMA = "topic string, broker string, queue_id int, queue_offset bigint, body binary"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker(mappedFileSizeCommitLog=256 * 1024, fileReservedTime=0) as running:
        yield running


def send(broker: RunningBroker, topic: str, numbers: range, size: int = 10) -> None:
    with Producer("stream", broker.name_server) as producer:
        for number in numbers:
            producer.send(Message(topic=topic, body=b"%d" % number + b"." * size))


class Stream:
    """A streaming query that writes Parquet. When restarted, it resumes from its checkpoint."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, path: Path, **options: Any) -> None:
        self._spark = spark
        self._path = path
        self._options = {"namesrvAddr": broker.name_server, "startingOffsets": "earliest", **options}

    def start(self, **trigger: Any) -> StreamingQuery:
        reader = self._spark.readStream.format("rocketmq").schema(SCHEMA).options(**self._options)
        writer = reader.load().writeStream.format("parquet").option("path", str(self._path / "rows"))
        writer = writer.option("checkpointLocation", str(self._path / "checkpoint"))
        return writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()

    def run(self) -> StreamingQuery:
        """Everything there is now."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(150)
        return query

    def numbers(self) -> list[int]:
        rows = self._spark.read.parquet(str(self._path / "rows")).select("body").collect()
        return sorted(int(row.body.rstrip(b".")) for row in rows)


def batches(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def ends(query: StreamingQuery) -> dict[str, Any]:
    """What the source last reported."""
    shown = [progress.sources[0].latestOffset for progress in query.recentProgress]
    found: dict[str, Any] = json.loads((shown or ["{}"])[-1] or "{}") or {}
    return found


def committed(broker: RunningBroker, group: str, topic: str, queue_count: int) -> list[int]:
    found = []
    for queue_id in range(queue_count):
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        found.append(int(remoting_call(broker.address, QUERY_CONSUMER_OFFSET, fields)[1].get("offset", -1)))
    return found


def test_available_now_reads_in_limited_batches_goes_on_and_moves_the_group(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    topic = broker.create_topic("Limited", queue_count=2)
    send(broker, topic, range(100))
    stream = Stream(spark, broker, tmp_path, topic=topic, maxOffsetsPerTrigger=40, group="spark-limited")
    seen: list[Lag] = []
    listener = lag_listener(seen.append)
    spark.streams.addListener(listener)
    try:
        assert batches(stream.run()) == [40, 40, 20]
        until(lambda: any(one.topics == {topic: 0} for one in seen), "the listener hears of the last batch")
    finally:
        spark.streams.removeListener(listener)
    assert [one.topics[topic] for one in seen][:3] == [60, 20, 0]
    # The last batch of a run, too: Spark itself would not tell the source of it.
    assert committed(broker, "spark-limited", topic, 2) == [50, 50]
    # More queues: they are read from their beginning.
    broker.create_topic("Limited", queue_count=4)
    send(broker, topic, range(100, 140))
    assert sum(batches(stream.run())) == 40
    assert stream.numbers() == list(range(140))
    offsets = json.loads((tmp_path / "checkpoint" / "offsets" / "3").read_text().splitlines()[-1])
    assert list(offsets["Limited"]["broker-a"]) == ["0", "1", "2", "3"]
    assert sum(offsets["Limited"]["broker-a"].values()) == 140


def test_a_running_stream_follows_its_topics_and_shows_how_far_they_are(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    broker.create_topic("follow-1", queue_count=1)
    stream = Stream(spark, broker, tmp_path, topicPattern="follow-.*", routeRefreshMs=100)
    query = stream.start()
    try:
        send(broker, "follow-1", range(10))
        until(lambda: sum(batches(query)) == 10, "the first topic is read")
        broker.create_topic("follow-2", queue_count=1)
        send(broker, "follow-2", range(10, 25))
        until(lambda: sum(batches(query)) == 25, "a topic that came later is read from its beginning")
        until(
            lambda: ends(query).get("follow-2") == {"broker-a": {"0": 15}},
            "progress shows the ends of queues",
        )
    finally:
        query.stop()
    assert stream.numbers() == list(range(25))


def expire(broker: RunningBroker, topic: str, beyond: int) -> None:
    """Deletes expired log files repeatedly until the topic's first offset is greater than ``beyond``."""

    def gone() -> bool:
        assert remoting_call(broker.address, DELETE_EXPIRED_COMMITLOG, {})[0] == 0
        return first_offset(broker, topic) > beyond

    until(gone, "messages expire")


def first_offset(broker: RunningBroker, topic: str) -> int:
    return int(remoting_call(broker.address, 31, {"topic": topic, "queueId": "0"})[1]["offset"])


def test_messages_that_expire_while_a_query_runs_are_named_one_way_or_the_other(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    topic = broker.create_topic("Running", queue_count=1)
    send(broker, topic, range(20))
    strict = Stream(spark, broker, tmp_path / "strict", topic=topic, maxOffsetsPerTrigger=10)
    lenient = Stream(
        spark, broker, tmp_path / "lenient", topic=topic, maxOffsetsPerTrigger=10, failOnDataLoss="false"
    )
    queries = [one.start(processingTime="1 second") for one in (strict, lenient)]
    try:
        until(lambda: all(sum(batches(query)) >= 10 for query in queries), "both run")
        # Ten messages a second, and thousands arrive and expire: most of them before they are read.
        send(broker, topic, range(20, 3000), size=300)
        expire(broker, topic, 100)
        first = first_offset(broker, topic)
        send(broker, topic, range(3000, 3050))  # what is left may be a handful
        with pytest.raises(StreamingQueryException, match=r"Running/broker-a/0: \d+ to \d+"):
            queries[0].awaitTermination(150)
        before = sum(batches(queries[1]))
        until(lambda: sum(batches(queries[1])) >= before + 20, "the other goes on")
        lost = ends(queries[1])["lost ranges"]["Running/broker-a/0"]
    finally:
        for query in queries:
            query.stop()
    numbers = lenient.numbers()
    read_before = [number for number in numbers if number < first]
    assert read_before == list(range(len(read_before)))
    # A batch that expired between its plan and its read is named by the executor, in its log, not in the progress.
    assert lost[0][0] - len(read_before) in (0, 10)
    assert lost[-1][1] == first
    assert [number for number in numbers if number >= first][:5] == list(range(first, first + 5))


def test_a_running_stream_outlives_a_restart_of_its_servers(spark: SparkSession, tmp_path: Path) -> None:
    conf = broker_ports()
    query: StreamingQuery | None = None
    try:
        with run_broker(data=tmp_path / "data", **conf) as broker:
            topic = broker.create_topic("Restarted", queue_count=2)
            send(broker, topic, range(50))
            stream = Stream(spark, broker, tmp_path, topic=topic)
            query = stream.start()
            until(lambda: sum(batches(query)) == 50, "what was there is read")
        with run_broker(data=tmp_path / "data", **conf) as broker:
            send(broker, topic, range(50, 100))
            until(lambda: sum(batches(query)) == 100, "what came after the restart is read")
    finally:
        if query is not None:
            query.stop()
    assert stream.numbers() == list(range(100))
