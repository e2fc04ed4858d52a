"""The streaming source, called method by method like Spark does, against a real broker and without a JVM."""

from __future__ import annotations

import json
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.apache.harness import remoting_call
from tests.unit.transport.certificates import make_certificates

from orbitmq.client import Message
from orbitmq.client.errors import NameServerError
from orbitmq.client.sync import LoopThread, Producer
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.spark.connections import server_client
from orbitmq.spark.options import SourceOptions, access
from orbitmq.spark.source.planning import DataLossError
from orbitmq.spark.source.stream import LOST_RANGES, TopicStreamReader
from orbitmq.testing import RunningBroker, run_broker
from orbitmq.transport.tls import TlsMode

pytestmark = pytest.mark.slow

DELETE_EXPIRED_COMMITLOG = 329
GET_MIN_OFFSET = 31
QUERY_CONSUMER_OFFSET = 14
ALL = ReadAllAvailable()


def reader(broker: RunningBroker, **options: str) -> TopicStreamReader:
    given = {"namesrvAddr": broker.name_server, "topic": "T", "startingOffsets": "earliest", **options}
    return TopicStreamReader(SourceOptions.parse(given, streaming=True), ["queue_id", "body"])


def send(broker: RunningBroker, numbers: range, *, size: int = 0, queue_count: int = 2) -> None:
    broker.create_topic("T", queue_count=queue_count)
    with Producer("stream", broker.name_server) as producer:
        for first in range(numbers.start, numbers.stop, 50):
            chunk = range(first, min(first + 50, numbers.stop))
            producer.send_batch([Message(topic="T", body=b"%d" % n + b"." * size) for n in chunk])


def read(source: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Returns what executors read: each has another copy of the reader, because Spark pickles it."""
    copy = pickle.loads(pickle.dumps(source))  # our own bytes, as Spark does
    parts = pickle.loads(pickle.dumps(list(source.partitions(start, end))))  # the same
    bodies = [body for part in parts for batch in copy.read(part) for body in batch.column(1).to_pylist()]
    return sorted(int(body.rstrip(b".")) for body in bodies)


def total(offsets: dict[str, Any]) -> int:
    return sum(offset for queues in offsets["T"].values() for offset in queues.values())


def expire(broker: RunningBroker) -> int:
    """Applies retention as soon as the log is on the disk; returns the first remaining offset of queue 0."""
    deadline = time.monotonic() + 30
    while True:
        assert remoting_call(broker.address, DELETE_EXPIRED_COMMITLOG, {})[0] == 0
        fields = {"topic": "T", "queueId": "0"}
        first = int(remoting_call(broker.address, GET_MIN_OFFSET, fields)[1]["offset"])
        if first > 100:
            return first
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


def test_batches_obey_their_limit_and_an_idle_stream_stays_where_it_is() -> None:
    with run_broker() as broker:
        send(broker, range(200))
        source = reader(broker, maxOffsetsPerTrigger="70")
        assert source.getDefaultReadLimit() == ReadMaxRows(70)
        place = source.initialOffset()
        seen: list[int] = []
        for expected in (70, 140, 200):
            end = source.latestOffset(place, ReadMaxRows(70))
            assert total(end) == expected
            seen += read(source, place, end)
            place = end
        assert sorted(seen) == list(range(200))
        again = source.latestOffset(place, ReadMaxRows(70))
        # Spark compares the text of offsets.
        assert json.dumps(again) == json.dumps(place)
        assert list(source.partitions(place, place)) == []
        assert source.reportLatestOffset() == {"T": place["T"]}


def test_a_batch_is_bounded_in_bytes() -> None:
    with run_broker() as broker:
        send(broker, range(200), size=1000)
        source = reader(broker, maxBytesPerTrigger="60000")
        place = source.initialOffset()
        end = source.latestOffset(place, ALL)
        # A record takes its body and about 130 bytes.
        assert 40 <= total(end) <= 60
        assert len(read(source, place, end)) == total(end)


def test_queues_that_appear_later_are_read_from_their_beginning() -> None:
    with run_broker() as broker:
        send(broker, range(100), queue_count=1)
        source = reader(broker, routeRefreshMs="0", startingOffsets="latest")
        place = source.initialOffset()
        send(broker, range(100, 300), queue_count=4)
        end = source.latestOffset(place, ALL)
        assert list(end["T"]["broker-a"]) == ["0", "1", "2", "3"]
        assert read(source, place, end) == list(range(100, 300))


def test_available_now_ends_where_the_topic_ended_when_it_began() -> None:
    with run_broker() as broker:
        send(broker, range(100))
        source = reader(broker, routeRefreshMs="0")
        place = source.initialOffset()
        source.prepareForTriggerAvailableNow()
        send(broker, range(100, 200), queue_count=4)
        end = source.latestOffset(place, ALL)
        assert read(source, place, end) == list(range(100))
        assert source.latestOffset(end, ALL) == end


def test_fewer_messages_than_wanted_are_waited_for_until_the_delay_is_over() -> None:
    with run_broker() as broker:
        send(broker, range(10))
        patient = reader(broker, minOffsetsPerTrigger="50")
        place = patient.initialOffset()
        assert patient.latestOffset(place, ALL) == place
        send(broker, range(10, 80))
        deadline = time.monotonic() + 10
        while (end := patient.latestOffset(place, ALL)) == place:
            assert time.monotonic() < deadline
        assert total(end) == 80
        hasty = reader(broker, minOffsetsPerTrigger="500", maxTriggerDelayMs="100")
        while hasty.latestOffset(place, ALL) == place:
            assert time.monotonic() < deadline


def test_offsets_of_the_group_are_where_the_query_is() -> None:
    with run_broker() as broker:
        send(broker, range(100))
        source = reader(broker, group="lag")

        def committed() -> list[int]:
            fields = [{"consumerGroup": "lag", "topic": "T", "queueId": str(queue)} for queue in range(2)]
            answers = [remoting_call(broker.address, QUERY_CONSUMER_OFFSET, one) for one in fields]
            return [int(answer[1].get("offset", -1)) for answer in answers]

        place = source.initialOffset()
        end = source.latestOffset(place, ALL)
        read(source, place, end)  # the broker has offsets of the group from now on
        assert source.latestOffset(end, ALL) == end
        assert committed() == [50, 50]
        # A restarted query that finds nothing new still shows its position.
        broker.create_topic("T", queue_count=2)
        fresh = reader(broker, group="lag")
        fresh.latestOffset(place, ALL)
        assert committed() == [0, 0]
        fresh.commit(end)
        assert committed() == [50, 50]


def test_expired_messages_stop_a_stream_or_stand_in_its_report(caplog: pytest.LogCaptureFixture) -> None:
    with run_broker(mappedFileSizeCommitLog=256 * 1024, fileReservedTime=0) as broker:
        send(broker, range(10), queue_count=1)
        strict = reader(broker)
        place = strict.latestOffset(strict.initialOffset(), ALL)
        send(broker, range(10, 3000), size=300, queue_count=1)
        first = expire(broker)
        end = strict.latestOffset(place, ALL)
        with pytest.raises(DataLossError, match=f"T/broker-a/0: 10 to {first}[.]"):
            strict.partitions(place, end)
        lenient = reader(broker, failOnDataLoss="false")
        # Expired messages do not use up the limit: the first batch has a hundred messages.
        end = lenient.latestOffset(place, ReadMaxRows(100))
        assert read(lenient, place, end) == list(range(first, first + 100))
        assert f"T/broker-a/0: 10 to {first}" in caplog.text
        report = lenient.reportLatestOffset()
        assert report is not None
        assert report[LOST_RANGES] == {"T/broker-a/0": [[10, first]]}


def test_a_queue_that_ends_before_the_checkpoint_is_a_loss() -> None:
    with run_broker() as broker:
        send(broker, range(10), queue_count=1)
        ahead = {"T": {"broker-a": {"0": 500}}}
        with pytest.raises(DataLossError, match=r"T/broker-a/0: 500 to [?]"):
            reader(broker).latestOffset(ahead, ALL)
        lenient = reader(broker, failOnDataLoss="false")
        assert lenient.latestOffset(ahead, ALL)["T"] == {"broker-a": {"0": 10}}
        assert lenient.latestOffset({"T": {"broker-a": {"0": 10}}}, ALL) == {"T": {"broker-a": {"0": 10}}}


def test_connections_use_tls_and_are_used_again(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    config = NameServerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(tmp_path / "kv.json"),
        tls_mode=TlsMode.ENFORCING,
        tls_certificate=str(made.server),
        tls_key=str(made.server_key),
    )
    loop = LoopThread()
    server = NameServer(config)
    loop.run(server.__aenter__())
    try:
        options = {"namesrvAddr": server.address, "tls.trustCertPath": str(made.authority)}
        for _ in range(3):
            client = server_client(access(options))
            assert isinstance(client.run(client.all_topics), list)
            assert server_client(access(options)) is client
        for wrong in ({}, {"tls.trustCertPath": str(made.stranger)}):
            given = {"namesrvAddr": server.address, **wrong}
            client = server_client(access(given))
            with pytest.raises(NameServerError):
                client.run(client.all_topics)
    finally:
        loop.run(server.__aexit__(None, None, None))
        loop.close()
