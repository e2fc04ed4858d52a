"""Streams and batch reads while servers are down, hang or lose topics; called like Spark does, without a JVM."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.integration.spark_servers import Server, Servers

from orbitmq.broker.broker import Broker
from orbitmq.errors import ConfigError
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.source.batch import TopicPartition, TopicReader
from orbitmq.spark.source.planning import DataLossError, QueueKey, QueueRange
from orbitmq.spark.source.stream import LOST_RANGES, TopicStreamReader

pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with Servers(tmp_path) as running:
        yield running


def stream(servers: Servers, **options: str) -> TopicStreamReader:
    given = {
        "namesrvAddr": servers.name_server,
        "startingOffsets": "earliest",
        "routeRefreshMs": "50",
        "retryTimeoutMs": "3000",
        "pullTimeoutMs": "1000",
        **options,
    }
    return TopicStreamReader(SourceOptions.parse(given, streaming=True), ["body"])


def read(source: Any, parts: Any) -> list[int]:
    copy = pickle.loads(pickle.dumps(source))  # our own bytes, as Spark does
    planned = pickle.loads(pickle.dumps(list(parts)))  # the same
    bodies = [body for part in planned for batch in copy.read(part) for body in batch.column(0).to_pylist()]
    return sorted(int(body) for body in bodies)


class Follower:
    """Runs a stream like Spark, one micro-batch after the other."""

    def __init__(self, source: TopicStreamReader, place: dict[str, Any] | None = None) -> None:
        self.source = source
        self.place = source.initialOffset() if place is None else place
        self.rows: list[int] = []

    def step(self) -> None:
        end = self.source.latestOffset(self.place, ALL)
        if end != self.place:
            self.rows += read(self.source, self.source.partitions(self.place, end))
            self.place = json.loads(json.dumps(end))  # as restored from a checkpoint

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {len(self.rows)} rows at {self.place}"
            self.step()


def test_routes_once_known_are_used_while_no_name_server_answers(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    servers.send("T", range(10))
    followers = [Follower(stream(servers, topic="T")), Follower(stream(servers, topicPattern="T"))]
    for one in followers:
        one.until(lambda one=one: len(one.rows) == 10, "the first messages")  # type: ignore[misc]  # a default in a lambda
    producer = servers.producer()
    producer.queues("T")
    servers.names.stop()
    servers.send_with(producer, "T", range(10, 30))
    for one in followers:
        one.until(lambda one=one: one.rows == list(range(30)), "messages without a name server")  # type: ignore[misc]  # the same


def test_a_deleted_topic_of_a_pattern_is_a_loss_with_its_unread_messages(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("log-1", broker)
    servers.create_topic("log-2", broker)
    servers.send("log-1", range(10))
    strict = Follower(stream(servers, topicPattern="log-.*"))
    lenient = Follower(stream(servers, topicPattern="log-.*", failOnDataLoss="false"))
    for one in (strict, lenient):
        one.until(lambda one=one: len(one.rows) == 10, "the first messages")  # type: ignore[misc]  # a default in a lambda
    servers.send("log-1", range(10, 50))
    servers.delete_topic("log-1", broker)
    servers.send("log-2", range(100, 105))
    with pytest.raises(DataLossError, match=r"log-1/broker-a/0: 10 to (50|[?])"):
        strict.until(lambda: False, "an error", 5)
    lenient.until(lambda: lenient.rows[10:] == list(range(100, 105)), "the other topic")
    lenient.until(lambda: "log-1" not in lenient.place, "the queue is left")
    report = lenient.source.reportLatestOffset()
    assert report is not None
    assert report[LOST_RANGES]["log-1/broker-a/0"][0][0] == 10
    # Recreated, it is another topic: read from its beginning.
    servers.create_topic("log-1", broker)
    servers.send("log-1", range(200, 203))
    lenient.until(lambda: sorted(lenient.rows)[-3:] == [200, 201, 202], "the new topic")
    assert len(lenient.rows) == 18


def recreate(servers: Servers, topic: str, broker: Server[Broker], numbers: range) -> None:
    servers.delete_topic(topic, broker)
    servers.create_topic(topic, broker)
    servers.send(topic, numbers)


@pytest.mark.parametrize("frozen", [False, True], ids=["continuous", "available now"])
@pytest.mark.parametrize("count", [0, 3, 10, 25])
def test_a_topic_made_again_while_no_query_ran_is_a_loss_or_read_from_its_beginning(
    servers: Servers, count: int, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the new one by now has as many messages as were read from the old one."""
    monkeypatch.setattr("orbitmq.spark.source.stream._CLOCK_SKEW_MS", 0)  # one clock here
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    servers.create_topic("U", broker)
    servers.send("T", range(10))
    servers.send("U", range(100, 103))
    first = Follower(stream(servers, topic="T,U"))
    first.until(lambda: len(first.rows) == 13, "the first messages")
    recreate(servers, "T", broker, range(200, 200 + count))

    def again(**options: str) -> Follower:
        source = stream(servers, topic="T,U", **options)
        if frozen:
            source.prepareForTriggerAvailableNow()
        return Follower(source, first.place)

    with pytest.raises(DataLossError, match=rf"T/broker-a/0: 10 to [?] \(it ends at {count} now") as caught:
        again().until(lambda: False, "an error", 5)
    assert len(caught.value.lost) == 1
    lenient = again(failOnDataLoss="false")
    lenient.step()
    assert lenient.rows == list(range(200, 200 + count))
    report = lenient.source.reportLatestOffset()
    assert report is not None
    assert report[LOST_RANGES] == {"T/broker-a/0": [[10, None]]}
    # A driver that has only the checkpoint plans it identically.
    replayed = stream(servers, topic="T,U", failOnDataLoss="false")
    assert read(replayed, replayed.partitions(first.place, lenient.place)) == lenient.rows
    servers.send("T", range(300, 302))
    after = Follower(stream(servers, topic="T,U"), lenient.place)
    after.until(lambda: len(after.rows) >= 2, "the messages sent last")
    assert after.rows == [300, 301]


def test_a_topic_made_again_under_a_running_query_is_read_from_its_beginning(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    servers.send("T", range(10))
    strict, lenient = (
        Follower(stream(servers, topic="T")),
        Follower(stream(servers, topic="T", failOnDataLoss="false")),
    )
    for one in (strict, lenient):
        one.until(lambda one=one: len(one.rows) == 10, "the first messages")  # type: ignore[misc]  # a default in a lambda
    recreate(servers, "T", broker, range(200, 204))
    with pytest.raises(DataLossError, match="T/broker-a/0: 10 to"):
        strict.until(lambda: False, "an error", 5)
    lenient.until(lambda: len(lenient.rows) == 14, "the new topic")
    assert lenient.rows == [*range(10), *range(200, 204)]


def test_queues_added_under_a_running_query_are_read_from_their_beginning(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    servers.send("T", range(10))
    follower = Follower(stream(servers, topic="T"))
    follower.until(lambda: len(follower.rows) == 10, "the first messages")
    servers.create_topic("T", broker, queue_count=4)
    servers.send("T", range(10, 50))
    follower.until(lambda: len(follower.rows) == 50, "rows of all queues")
    assert sorted(follower.rows) == list(range(50))
    assert len(follower.place["T"]["broker-a"]) == 4


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_made_again_with_fewer_queues_names_each_and_is_read_from_its_beginning(
    servers: Servers, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.spark.source.stream._CLOCK_SKEW_MS", 0)  # one clock here
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker, queue_count=3)
    servers.send("T", range(12))
    strict = Follower(stream(servers, topic="T"))
    lenient = Follower(stream(servers, topic="T", failOnDataLoss="false"))
    for one in (strict, lenient):
        one.until(lambda one=one: len(one.rows) == 12, "the first messages")  # type: ignore[misc]  # a default in a lambda
    recreate(servers, "T", broker, range(200, 220))
    if restarted:
        strict = Follower(stream(servers, topic="T"), strict.place)
        lenient = Follower(stream(servers, topic="T", failOnDataLoss="false"), lenient.place)
    with pytest.raises(DataLossError, match=r"T/broker-a/[012]: 4 to [?]") as caught:
        strict.until(lambda: False, "an error", 5)
    if restarted:
        assert [lost.queue.queue_id for lost in caught.value.lost] == [0, 1, 2], "one error names all of them"
    begun = len(lenient.rows)
    lenient.until(lambda: len(lenient.rows) == begun + 20, "the new topic")
    assert lenient.rows[begun:] == list(range(200, 220))
    left = lenient.place["T"]["broker-a"]
    assert left.pop("0") == 20
    assert set(left.values()) <= {0}
    report = lenient.source.reportLatestOffset()
    assert report is not None
    assert report[LOST_RANGES] == {f"T/broker-a/{queue}": [[4, None]] for queue in range(3)}


def test_queues_that_a_topic_hides_keep_their_place(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker, queue_count=2)
    servers.send("T", range(10))
    follower = Follower(stream(servers, topic="T"))
    follower.until(lambda: len(follower.rows) == 10, "the first messages")
    servers.create_topic("T", broker, queue_count=1)
    servers.send("T", range(10, 20))
    follower.until(lambda: len(follower.rows) == 20, "messages of the other queue")
    assert follower.place["T"]["broker-a"] == {"0": 15, "1": 5}
    servers.create_topic("T", broker, queue_count=2)
    servers.send("T", range(20, 40))
    follower.until(lambda: len(follower.rows) == 40, "messages of both queues")
    assert sorted(follower.rows) == list(range(40))


def test_a_planned_range_of_a_queue_that_is_not_there_any_more_is_named_and_passed_over(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker, queue_count=2)
    servers.send("T", range(10))
    source = stream(servers, topic="T", failOnDataLoss="false", retryTimeoutMs="300")
    place = source.initialOffset()
    end = source.latestOffset(place, ALL)
    planned = list(source.partitions(place, end))
    recreate(servers, "T", broker, range(200, 220))
    # On an executor, and on a driver with only the checkpoint.
    read(source, planned)
    assert "T/broker-a/1: 0 to 5" in caplog.text
    caplog.clear()
    again = stream(servers, topic="T", failOnDataLoss="false")
    read(again, again.partitions(place, end))
    assert "T/broker-a/1: 0 to 5" in caplog.text
    strict = stream(servers, topic="T")
    with pytest.raises(DataLossError, match="T/broker-a/1: 0 to 5"):
        strict.partitions(place, end)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_planned_range_of_a_deleted_topic_is_named_and_passed_over(
    servers: Servers, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    servers.create_topic("U", broker)
    servers.send("T", range(5))
    servers.send("U", range(10, 12))
    options = {"topic": "T,U", "failOnDataLoss": "false"}
    source = stream(servers, **options)
    place = source.initialOffset()
    end = source.latestOffset(place, ALL)
    planned = list(source.partitions(place, end))
    servers.delete_topic("T", broker)
    if restarted:  # the batch is in the checkpoint's log and replanned by a driver without any state
        source = stream(servers, **options)
        planned = list(source.partitions(place, end))
    assert read(source, planned) == [10, 11]
    assert "T/broker-a/0: 0 to 5" in caplog.text
    strict = stream(servers, topic="T,U")
    with pytest.raises(DataLossError, match="T/broker-a/0: 0 to 5"):
        read(strict, strict.partitions(place, end))


def test_a_slave_is_read_while_its_master_is_dead_and_other_brokers_go_on(servers: Servers) -> None:
    master, other = servers.broker("broker-a"), servers.broker("broker-b")
    slave = servers.broker("broker-a", 1)
    servers.create_topic("T", master, other)
    servers.send("T", range(10), "broker-a")
    servers.send("T", range(100, 110), "broker-b")
    servers.until_copied("T", master, slave)
    follower = Follower(stream(servers, topic="T"))
    master.stop()
    follower.until(lambda: len(follower.rows) == 20, "rows of the slave and of the other broker")
    servers.send("T", range(110, 120), "broker-b")
    follower.until(lambda: len(follower.rows) == 30, "the other broker goes on")
    assert sorted(follower.rows) == [*range(10), *range(100, 120)]
    batch = TopicReader(
        SourceOptions.parse(
            {"namesrvAddr": servers.name_server, "topic": "T", "retryTimeoutMs": "3000"}, streaming=False
        ),
        ["body"],
    )
    assert read(batch, batch.partitions()) == sorted(follower.rows)


def test_a_queue_that_a_slave_does_not_know_yet_is_read_from_its_master(servers: Servers) -> None:
    master = servers.broker("broker-a")
    servers.create_topic("T", master)
    servers.send("T", range(2))
    slave = servers.broker("broker-a", 1, slaveSyncInterval="600000")
    servers.until_copied("T", master, slave)
    servers.create_topic("T", master, queue_count=2)
    servers.send("T", range(10, 20))
    source = stream(servers, topic="T")
    end = source.latestOffset(source.initialOffset(), ALL)["T"]["broker-a"]["1"]
    piece = QueueRange(QueueKey("T", "broker-a", 1), 0, end)
    assert len(read(source, [TopicPartition([piece], slave.address, from_master=False)])) == end > 0


def test_a_dead_or_hanging_broker_without_a_slave_holds_up_its_own_queues_only(servers: Servers) -> None:
    first, other = servers.broker("broker-a"), servers.broker("broker-b")
    servers.create_topic("T", first, other)
    servers.send("T", range(5), "broker-a")
    servers.send("T", range(100, 105), "broker-b")
    follower = Follower(stream(servers, topic="T", group="lag"))
    follower.until(lambda: len(follower.rows) == 10, "all messages")
    servers.send("T", range(5, 8), "broker-a")
    first.pause()
    try:
        servers.send("T", range(105, 110), "broker-b")
        began = time.monotonic()
        follower.until(lambda: len(follower.rows) == 15, "the other broker goes on")
        for _ in range(20):
            follower.step()
        assert time.monotonic() - began < 10, "the hanging broker is waited for again and again"
    finally:
        first.resume()
    follower.until(lambda: len(follower.rows) == 18, "the broker is back")
    other.stop()
    servers.send("T", range(8, 12), "broker-a")
    follower.until(lambda: len(follower.rows) == 22, "without the dead broker")
    assert sorted(follower.rows) == [*range(12), *range(100, 110)]


def test_a_stream_whose_brokers_are_all_gone_ends_after_the_time_given(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    follower = Follower(stream(servers, topic="T", retryTimeoutMs="300"))
    broker.stop()
    with pytest.raises(ConnectionError, match="retryTimeoutMs"):
        follower.until(lambda: False, "an error", 15)


def test_a_missing_topic_among_several_is_refused(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    with pytest.raises(ConfigError, match="no such topic: nobody"):
        stream(servers, topic="T,nobody").initialOffset()


def test_an_sql_filter_that_cannot_work_is_refused_on_the_driver(servers: Servers) -> None:
    broker = servers.broker("broker-a")
    servers.create_topic("T", broker)
    with pytest.raises(ConfigError, match="'sql'"):
        stream(servers, topic="T", sql="a >")
    with pytest.raises(ConfigError, match=r"'sql'.*refuses"):  # this broker does not filter by properties
        stream(servers, topic="T", sql="a > 1").initialOffset()
