"""The cost of a stream for its servers when a topic has many queues, and where its group is visible."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from orbitmq.admin.groups import consumer_groups, group_progress
from orbitmq.admin.session import Admin
from orbitmq.client import Message
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.sync import Producer
from orbitmq.codes import ResponseCode
from orbitmq.model.names import retry_topic
from orbitmq.requests import RequestCode
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.source.batch import TopicReader
from orbitmq.spark.source.stream import TopicStreamReader
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

MANY = 300


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Returns the driver's requests by code."""
    counted: Counter[int] = Counter()
    call = ClientInstance.call

    async def counting(self: ClientInstance, address: str, code: int, *rest: Any, **more: Any) -> Any:
        counted[int(code)] += 1
        return await call(self, address, code, *rest, **more)

    monkeypatch.setattr(ClientInstance, "call", counting)
    return counted


def stream(broker: RunningBroker, **options: str) -> TopicStreamReader:
    given = {"namesrvAddr": broker.name_server, "topic": "Wide", "startingOffsets": "earliest", **options}
    return TopicStreamReader(SourceOptions.parse(given, streaming=True), ["queue_id", "body"])


def fill(broker: RunningBroker, count: int) -> None:
    """Sends message ``n`` to queue ``n % queues``."""
    broker.create_topic("Wide", queue_count=MANY)
    with Producer("wide", broker.name_server) as producer:
        route = producer.queues("Wide")
        assert len(route) == MANY
        for first in range(0, count, 100):
            for number in range(first, min(first + 100, count)):
                producer.send(Message(topic="Wide", body=b"%d" % number), queue=route[number % MANY])


def test_ends_of_many_queues_take_a_few_requests(asked: Counter[int]) -> None:
    with run_broker() as broker:
        fill(broker, 320)
        source = stream(broker)
        place = source.initialOffset()
        end = source.latestOffset(place, ReadAllAvailable())
        assert sum(end["Wide"]["broker-a"].values()) == 320
        parts = list(source.partitions(place, end))
        assert asked[RequestCode.GET_MAX_OFFSET] == asked[RequestCode.GET_MIN_OFFSET] == 0
        assert sum(asked.values()) < 20, asked
        assert len(parts) <= 256
        rows = [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]
        by_queue: dict[int, list[int]] = {}
        for row in rows:
            by_queue.setdefault(row["queue_id"], []).append(int(row["body"]))
        assert sorted(n for numbers in by_queue.values() for n in numbers) == list(range(320))
        assert all(numbers == sorted(numbers) for numbers in by_queue.values()), "the order of each queue"


def test_a_batch_reads_several_queues_in_a_task_only_if_there_are_many() -> None:
    with run_broker() as broker:
        fill(broker, 310)
        given = {"namesrvAddr": broker.name_server, "topic": "Wide"}
        for options, least, most in (
            ({}, 100, 256),
            ({"maxPartitions": "10"}, 5, 11),
            ({"maxPartitions": "1000"}, MANY, MANY),
        ):
            reader = TopicReader(SourceOptions.parse({**given, **options}, streaming=False), ["body"])
            parts = list(reader.partitions())
            assert least <= len(parts) <= most
            bodies = [
                int(body)
                for part in parts
                for batch in reader.read(part)
                for body in batch.column(0).to_pylist()
            ]
            assert sorted(bodies) == list(range(310))


def test_a_broker_that_refuses_the_bulk_question_is_asked_queue_by_queue(
    monkeypatch: pytest.MonkeyPatch, asked: Counter[int]
) -> None:
    call = ClientInstance.call

    async def refusing(self: ClientInstance, address: str, code: int, *rest: Any, **more: Any) -> Any:
        frame = await call(self, address, code, *rest, **more)
        if code == RequestCode.GET_TOPIC_STATS_INFO:
            frame = msgspec.structs.replace(frame, code=ResponseCode.NO_PERMISSION)
        return frame

    monkeypatch.setattr(ClientInstance, "call", refusing)
    with run_broker() as broker:
        broker.create_topic("Wide", queue_count=MANY)
        cluster = Cluster(
            SourceOptions.parse({"namesrvAddr": broker.name_server, "topic": "Wide"}, streaming=True)
        )
        assert len(cluster.latest(cluster.queues())) == MANY
        assert asked[RequestCode.GET_MAX_OFFSET] == MANY


def test_the_group_of_a_stream_shows_in_consumer_progress() -> None:
    with run_broker() as broker:
        broker.create_topic("Wide", queue_count=2)
        with Producer("wide", broker.name_server) as producer:
            for number in range(10):
                producer.send(Message(topic="Wide", body=b"%d" % number))

        async def listed(group: str) -> tuple[set[str], int]:
            async with Admin(broker.name_server) as admin:
                groups = {row.group for row in (await consumer_groups(admin)).groups}
                return groups, (await group_progress(admin, group)).diff_total if group in groups else -1

        source = stream(broker, group="to-lake")
        place = source.initialOffset()
        end = source.latestOffset(place, ReadAllAvailable())
        for part in source.partitions(place, end):
            list(source.read(part))  # a pull creates the group
        silent = stream(broker)
        silent.latestOffset(silent.initialOffset(), ReadAllAvailable())
        assert asyncio.run(listed("to-lake")) == (set(), -1), "nothing is committed yet"
        source.latestOffset(end, ReadAllAvailable())
        assert asyncio.run(listed("to-lake")) == ({"to-lake"}, 0)


def test_a_retry_topic_that_is_there_is_left_as_it_is() -> None:
    with run_broker() as broker:
        broker.create_topic("Wide", queue_count=2)
        broker.create_topic(retry_topic("to-lake"), queue_count=3)
        source = stream(broker, group="to-lake")
        place = source.initialOffset()
        for part in source.partitions(place, source.latestOffset(place, ReadAllAvailable())):
            list(source.read(part))
        source.commit(place)
        options = SourceOptions.parse(
            {"namesrvAddr": broker.name_server, "topic": retry_topic("to-lake")}, streaming=True
        )
        assert len(Cluster(options).queues()) == 3
