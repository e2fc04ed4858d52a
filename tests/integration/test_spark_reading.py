"""A Spark executor's handling of its range: pulls from a real broker, without Spark around it."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from tests.apache.harness import remoting_call
from tests.support.ports import broker_ports, free_ports

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.errors import ConfigError, ConnectionLostError
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.source.batch import TopicPartition, TopicReader
from orbitmq.spark.source.planning import DataLossError, LostRange, QueueKey, QueueRange
from orbitmq.spark.source.reading import read_ranges
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

DELETE_EXPIRED_COMMITLOG = 329
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
QUEUE = QueueKey("T", "broker-a", 0)
COLUMNS = ("queue_offset", "body", "tags")


def options(broker: RunningBroker | str, **more: str) -> SourceOptions:
    name_server = broker if isinstance(broker, str) else broker.name_server
    return SourceOptions.parse({"namesrvAddr": name_server, "topic": "T", **more}, streaming=False)


def fill(broker: RunningBroker, count: int, *, size: int = 20, queue_count: int = 1) -> None:
    """Sends messages ``0`` to ``count`` of topic T, one in three with tag B, in batches."""
    broker.create_topic("T", queue_count=queue_count)
    with Producer("fill", broker.name_server) as producer:
        for first in range(0, count, 100):
            numbers = range(first, min(first + 100, count))
            producer.send_batch(
                [
                    Message(topic="T", body=b"%d" % number + b"." * size, tags="A" if number % 3 else "B")
                    for number in numbers
                ]
            )


def read(broker: RunningBroker, start: int, end: int, **more: str) -> pa.Table:
    batches = list(
        read_ranges(options(broker, **more), [QueueRange(QUEUE, start, end)], broker.address, COLUMNS)
    )
    return pa.Table.from_batches(batches) if batches else None


def offsets(table: pa.Table) -> list[int]:
    return table.column("queue_offset").to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


@pytest.mark.parametrize(
    "bound", [{}, {"maxTransferCountOnMessageInMemory": 3}, {"maxTransferBytesOnMessageInMemory": 999}]
)
def test_a_range_is_read_whole_and_in_order_whatever_an_answer_may_hold(bound: dict[str, Any]) -> None:
    with run_broker(**bound) as broker:
        fill(broker, 3000)
        assert offsets(read(broker, 0, 3000)) == list(range(3000))
        assert offsets(read(broker, 17, 2991)) == list(range(17, 2991))
        bodies = read(broker, 5, 8).column("body").to_pylist()
        assert [int(body.rstrip(b".")) for body in bodies] == [5, 6, 7]


def test_messages_larger_than_the_buffer_is_filled_at_once_are_read() -> None:
    with run_broker() as broker:
        fill(broker, 40, size=300_000)
        assert offsets(read(broker, 0, 40)) == list(range(40))


def test_a_filter_gives_its_rows_and_still_ends_where_nothing_matches() -> None:
    with run_broker(enablePropertyFilter=True) as broker:
        fill(broker, 2000)
        assert offsets(read(broker, 0, 2000, tags="B")) == list(range(0, 2000, 3))
        assert offsets(read(broker, 10, 20, tags="A || C")) == [10, 11, 13, 14, 16, 17, 19]
        assert read(broker, 0, 2000, tags="nobody") is None
        assert offsets(read(broker, 0, 50, sql="TAGS = 'B'")) == list(range(0, 50, 3))
        # Tags are compared even if the requested columns do not include them.
        plain = read_ranges(
            options(broker, tags="B"), [QueueRange(QUEUE, 0, 9)], broker.address, ["queue_offset"]
        )
        assert offsets(pa.Table.from_batches(list(plain))) == [0, 3, 6]


def test_a_broker_that_restarts_in_the_middle_of_a_range_is_waited_for(tmp_path: Path) -> None:
    # Small responses, so that the reader still has most of the range to read when the broker stops.
    conf = {**broker_ports(), "maxTransferCountOnMessageInMemory": 2}
    with run_broker(data=tmp_path, **conf) as broker:
        fill(broker, 60_000, size=200)
        address = broker.address
        reader = read_ranges(options(broker), [QueueRange(QUEUE, 0, 60_000)], address, COLUMNS)
        batches = [next(reader)]
    assert batches[0].num_rows < 30_000
    restarted = threading.Event()
    done = threading.Event()

    def serve() -> None:
        with run_broker(data=tmp_path, **conf):
            restarted.set()
            done.wait(60)

    server = threading.Thread(target=serve)
    server.start()
    try:
        batches += reader
        assert restarted.is_set()
    finally:
        done.set()
        server.join(60)
    assert offsets(pa.Table.from_batches(batches)) == list(range(60_000))


def test_a_broker_that_stays_away_is_an_error_after_the_time_given() -> None:
    [port] = free_ports()
    nobody = f"127.0.0.1:{port}"
    with pytest.raises(ConnectionLostError):
        list(read_ranges(options(nobody, retryTimeoutMs="200"), [QueueRange(QUEUE, 0, 5)], nobody, COLUMNS))


def expire(broker: RunningBroker) -> int:
    """Applies retention as soon as the log is on the disk; returns the first remaining offset."""
    deadline = time.monotonic() + 30
    while not (low := _earliest(broker)):
        assert time.monotonic() < deadline
        assert remoting_call(broker.address, DELETE_EXPIRED_COMMITLOG, {})[0] == 0
        threading.Event().wait(0.05)
    return low


def test_expired_messages_stop_the_read_or_are_passed_over_with_their_exact_range(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with run_broker(mappedFileSizeCommitLog=256 * 1024, fileReservedTime=0) as broker:
        fill(broker, 4000, size=200)
        low = expire(broker)
        assert 0 < low < 4000
        with pytest.raises(DataLossError) as caught:
            read(broker, 0, 4000)
        assert caught.value.lost == (LostRange(QUEUE, 0, low),)
        assert f"T/broker-a/0: 0 to {low}" in str(caught.value)
        with caplog.at_level(logging.WARNING, "orbitmq.spark"):
            assert offsets(read(broker, 5, 4000, failOnDataLoss="false")) == list(range(low, 4000))
        assert f"T/broker-a/0: 5 to {low}" in caplog.text
        assert read(broker, 0, low, failOnDataLoss="false") is None


def _earliest(broker: RunningBroker) -> int:
    cluster = Cluster(options(broker))
    cluster.queues()
    return cluster.earliest([QUEUE])[QUEUE]


def test_a_range_behind_the_end_of_its_queue_is_lost_after_the_time_given() -> None:
    with run_broker() as broker:
        fill(broker, 10)
        with pytest.raises(DataLossError) as caught:
            read(broker, 5, 20, retryTimeoutMs="100")
        assert caught.value.lost == (LostRange(QUEUE, 10, 20),)
        assert offsets(read(broker, 5, 20, retryTimeoutMs="100", failOnDataLoss="false")) == list(
            range(5, 10)
        )


def test_partitions_of_a_batch_follow_the_options() -> None:
    def pieces(broker: RunningBroker, **more: str) -> list[QueueRange]:
        planned = TopicReader(options(broker, **more)).partitions()
        return [piece for part in planned if isinstance(part, TopicPartition) for piece in part.pieces]

    with run_broker() as broker:
        fill(broker, 1000, queue_count=2)
        whole = pieces(broker)
        assert sum(piece.end - piece.start for piece in whole) == 1000
        assert [piece.queue.queue_id for piece in whole] == [0, 1]
        assert len(pieces(broker, minPartitions="7")) >= 7
        asked = '{"T": {"broker-a": {"0": 3, "1": -1}}}'
        [one] = pieces(broker, startingOffsets=asked, endingOffsets='{"T": {"broker-a": {"0": 10}}}')
        assert (one.start, one.end) == (3, 10)
        assert pieces(broker, startingTimestamp="1") == whole
        assert pieces(broker, startingTimestamp="9000000000000") == []
        assert pieces(broker, endingTimestamp="1") == []
        with pytest.raises(ConfigError, match="backwards"):
            pieces(broker, startingOffsets=asked, endingOffsets='{"T": {"broker-a": {"0": 2}}}')
        with pytest.raises(ConfigError, match="no such topic: nobody"):
            pieces(broker, topic="nobody")


def test_queues_times_and_groups_choose_where_to_begin() -> None:
    def pieces(broker: RunningBroker, **more: str) -> dict[int, tuple[int, int]]:
        given = {"namesrvAddr": broker.name_server, "topic": "T", **more}
        if "assign" in more:
            del given["topic"]
        planned = TopicReader(SourceOptions.parse(given, streaming=False)).partitions()
        found = [piece for part in planned if isinstance(part, TopicPartition) for piece in part.pieces]
        return {piece.queue.queue_id: (piece.start, piece.end) for piece in found}

    with run_broker() as broker:
        fill(broker, 1000, queue_count=2)
        whole = pieces(broker)
        assert set(whole) == {0, 1}
        assert pieces(broker, assign='{"T": [1]}') == {1: whole[1]}
        assert pieces(broker, assign='{"T": {"broker-a": [0]}}') == {0: whole[0]}
        with pytest.raises(ConfigError, match="names queue T/any broker/7, which does not exist"):
            pieces(broker, assign='{"T": [0, 7]}')
        late = '{"T": {"broker-a": {"0": 9000000000000}}}'
        assert pieces(broker, startingOffsetsByTimestamp=late) == {1: whole[1]}
        assert pieces(broker, endingOffsetsByTimestamp='{"T": {"broker-a": {"0": 1}}}') == {1: whole[1]}
        with pytest.raises(ConfigError, match="T/broker-a/0 has no message stored at 9000000000000 or later"):
            pieces(broker, startingOffsetsByTimestamp=late, startingOffsetsByTimestampStrategy="error")
        with pytest.raises(ConfigError, match="names queue T/broker-z/0"):
            pieces(broker, startingOffsetsByTimestamp='{"T": {"broker-z": {"0": 1}}}')
        cluster = Cluster(options(broker))
        cluster.queues()
        created = {"groupName": "readers", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}
        body = json.dumps(created).encode()
        assert remoting_call(broker.address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)[0] == 0
        cluster.commit("readers", {QueueKey("T", "broker-a", 1): 30})
        found = pieces(broker, startingOffsets="group", group="readers")
        assert found == {0: whole[0], 1: (30, whole[1][1])}


def test_topics_are_found_by_pattern_without_those_of_the_system() -> None:
    with run_broker() as broker:
        for topic in ("order-eu", "order-us", "invoice"):
            broker.create_topic(topic, queue_count=1)
        given = {"namesrvAddr": broker.name_server, "topicPattern": "order-.*|RMQ_SYS.*|TBW102"}
        cluster = Cluster(SourceOptions.parse(given, streaming=True))
        assert [key.topic for key in cluster.queues()] == ["order-eu", "order-us"]
